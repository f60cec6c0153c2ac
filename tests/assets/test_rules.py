"""Submissions and reviews: every combination of state and action is allowed, or refused with a code."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.assets import rules
from dagmaster.assets.rules import SubmissionOutcome, SubmittedSource
from dagmaster.assets.states import (
    ApprovalState,
    AssetState,
    AssetVersionState,
    Clearance,
    Exposure,
    ProcessingState,
    SourceIdentity,
)
from dagmaster.errors import DagmasterError
from tests.assets.processing import with_processing

pytestmark = pytest.mark.requirement("A3", "A4", "A5")

SOURCE = SourceIdentity(etag="e1", size=10)
OTHER = SourceIdentity(etag="e2", size=10)

PROCESSING = {"queued": "version.processing", "processing": "version.processing", "failed": "version.failed"}


def version(ordinal=0, **facts):
    return AssetVersionState(ordinal, facts.pop("label", str(ordinal)), source=SOURCE, parameters_hash="p", **facts)


def outcome(action, *args, **options):
    """The result of an action, or the code of the error if it is refused."""
    try:
        return action(*args, **options)
    except DagmasterError as error:
        return error.code


def expected_approval(approval, processing, clearance, level, *, unpublished, deleted, asset_deleted):
    """The code of the refusal, from the specification: the first one in this list that applies."""
    refusals = [
        ("asset.deleted", asset_deleted),
        ("version.deleted", deleted),
        (PROCESSING.get(processing), processing != "completed"),
        ("version.already-approved", approval == "approved" and not unpublished),
        ("clearance.required", level == "uncleared" or (clearance == "uncleared" and level is None)),
        ("clearance.differs", level is not None and clearance not in ("uncleared", level)),
    ]
    return next((code for code, applies in refusals if applies), None)


@pytest.mark.parametrize("processing", list(ProcessingState))
@pytest.mark.parametrize("approval", list(ApprovalState))
def test_an_approval_is_allowed_or_refused_correctly_in_every_state(approval, processing):
    for clearance, level, unpublished, deleted, asset_deleted in product(
        Clearance, [None, *Clearance], [False, True], [False, True], [False, True]
    ):
        state = AssetState(
            "ddh",
            clearance=clearance,
            is_deleted=asset_deleted,
            versions=(
                version(
                    approval=approval,
                    processing=processing,
                    approved_revision=1 if approval == "approved" else None,
                    is_unpublished=unpublished,
                    is_deleted=deleted,
                ),
            ),
        )
        result = outcome(rules.approve, state, 0, clearance=level)

        expected = expected_approval(
            approval,
            processing,
            clearance,
            level,
            unpublished=unpublished,
            deleted=deleted,
            asset_deleted=asset_deleted,
        )
        if expected is not None:
            assert result == expected
        else:
            approved = result.state.version(0)
            cleared = level or clearance
            assert (approved.approval, approved.served_revision, result.state.latest) == ("approved", 1, 0)
            assert (result.state.clearance, result.exports_due) == (cleared, ((0, 1),) if cleared == "public" else ())


def every_state():
    """Assets with one version in every state. The newest revision is 2; 2, 1 or none is approved."""
    for approval, processing, has_earlier, unpublished, deleted, asset_deleted, clearance in product(
        ApprovalState, ProcessingState, *[[False, True]] * 4, Clearance
    ):
        approved_revision = 2 if approval == "approved" else (1 if has_earlier else None)
        if unpublished and approved_revision is None:
            continue  # a version that was never approved cannot be unpublished
        only = version(
            revision=2,
            approval=approval,
            processing=processing,
            approved_revision=approved_revision,
            is_unpublished=unpublished,
            is_deleted=deleted,
        )
        yield AssetState("ddh", clearance=clearance, is_deleted=asset_deleted, versions=(only,))


def first_of(*refusals):
    return next((code for code, applies in refusals if applies), None)


def check(action, state, expected, *args, **options):
    """The state after an allowed action, whose due exports and withdrawals are checked; None if it was refused."""
    result = outcome(action, state, *args, **options)
    if expected is not None:
        assert result == expected, state
        return None
    assert not isinstance(result, str), (result, state)
    public, still_public = public_editions(state), public_editions(result.state)
    assert set(result.exports_due) == still_public - public, state
    assert set(result.withdrawals_due) == public - still_public, state
    return result.state


def public_editions(state):
    if state.clearance != "public" or state.is_deleted:
        return set()
    return {(v.ordinal, v.approved_revision) for v in state.versions if is_served(v)}


def is_served(known):
    return known.approved_revision is not None and not known.is_unpublished and not known.is_deleted


@pytest.mark.parametrize("reason", ["blurred", " "])
def test_a_rejection_is_allowed_or_refused_correctly_in_every_state(reason):
    for state in every_state():
        (known,) = state.versions
        expected = first_of(
            ("asset.deleted", state.is_deleted),
            ("version.deleted", known.is_deleted),
            ("rejection.no-reason", not reason.strip()),
            ("version.processing", known.processing in ("queued", "processing")),
            ("version.already-approved", known.approval == "approved"),
            ("version.already-rejected", known.approval == "rejected"),
        )

        if after := check(rules.reject, state, expected, 0, reason=reason):
            assert after.versions == (replace(known, approval="rejected"),)  # the served revision stays


@pytest.mark.parametrize("level", list(Clearance))
def test_a_change_of_clearance_is_allowed_or_refused_correctly_in_every_state(level):
    for state in every_state():
        expected = first_of(("asset.deleted", state.is_deleted), ("clearance.unchanged", state.clearance == level))

        if after := check(rules.clear, state, expected, level):
            assert after == replace(state, clearance=level)


@pytest.mark.parametrize(("before", "exposure"), product(Exposure, Exposure))
def test_a_change_of_exposure_is_allowed_or_refused_correctly_in_every_state(before, exposure):
    for state in every_state():
        exposed = replace(state, exposure=before)
        expected = first_of(("asset.deleted", state.is_deleted), ("exposure.unchanged", before == exposure))

        if after := check(rules.expose, exposed, expected, exposure):
            assert after == replace(state, exposure=exposure)


@pytest.mark.parametrize("ordinal", [0, None])
def test_unpublishing_is_allowed_or_refused_correctly_in_every_state(ordinal):
    for state in every_state():
        (known,) = state.versions
        expected = first_of(
            ("asset.deleted", state.is_deleted),
            ("version.deleted", known.is_deleted and ordinal is not None),
            ("version.not-published", not is_served(known)),
        )

        if after := check(rules.unpublish, state, expected, ordinal):
            assert after == replace(state, versions=(replace(known, is_unpublished=True),))


@pytest.mark.parametrize("ordinal", [0, None])
def test_a_deletion_is_allowed_or_refused_correctly_in_every_state(ordinal):
    for state in every_state():
        (known,) = state.versions
        expected = first_of(
            ("asset.deleted", state.is_deleted), ("version.deleted", known.is_deleted and ordinal is not None)
        )

        if after := check(rules.delete, state, expected, ordinal):
            of_asset = {"is_deleted": True, "clearance": Clearance.UNCLEARED} if ordinal is None else {}
            assert after == replace(state, versions=(replace(known, is_deleted=True),), **of_asset)


@pytest.mark.parametrize("action", [rules.approve, rules.unpublish, rules.delete])
def test_actions_on_a_version_that_does_not_exist_are_refused(action):
    assert outcome(action, AssetState("ddh", versions=(version(),)), 1) == "version.not-found"


def expected_submission(state, *, label, is_same, force):
    """The outcome of a submission, or the code of its refusal."""
    (known,) = state.versions
    if state.is_deleted or known.is_deleted:
        return "new_version"
    if label == "next":
        return "new_version" if known.approval == "approved" else "version.unresolved"
    if is_same and not force and known.processing in ("queued", "processing"):
        return "already_processing"
    is_available = not known.is_unpublished and not known.is_purged and known.approval != "rejected"
    if is_same and not force and known.processing == "completed" and is_available:
        return "already_completed"
    return "new_revision"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("source", [SOURCE, OTHER], ids=["same", "other"])
@pytest.mark.parametrize("label", ["0", None, "next"])
def test_a_submission_has_the_right_outcome_in_every_state(label, source, force):
    for unpurged, is_purged in product(every_state(), [False, True]):
        known = replace(unpurged.versions[0], is_purged=is_purged)
        state = replace(unpurged, versions=(known,))
        expected = expected_submission(state, label=label, is_same=source is SOURCE, force=force)

        result = outcome(rules.submit, state, SubmittedSource(label, source, "p"), platform_id="ddh", force=force)

        assert (result if isinstance(result, str) else result.outcome) == expected, state
        if expected.startswith("already"):
            assert result.state == state
        elif expected == "new_revision":
            revised = result.state.version(0)
            assert (revised.revision, revised.approval, revised.processing) == (3, "pending_review", "queued")
            assert (revised.approved_revision, revised.is_purged) == (known.approved_revision, False)
            assert revised.served_revision == known.served_revision
        elif expected == "new_version":
            added = result.state.version(1)
            assert (added.revision, added.approval, added.processing) == (1, "pending_review", "queued")
            assert result.state.version(0) == known
            assert not result.state.is_deleted


@pytest.mark.parametrize("approval", [ApprovalState.PENDING_REVIEW, ApprovalState.REJECTED])
def test_an_unpublished_version_whose_newest_revision_failed_serves_the_approved_one_again(approval):
    known = approved(is_unpublished=True, approved_revision=1, revision=2, approval=approval, processing="failed")
    state = AssetState("ddh", Clearance.PUBLIC, versions=(known,))

    change = rules.approve(state, 0)

    assert change.state.versions == (replace(known, is_unpublished=False),)
    assert (change.state.latest, change.exports_due, change.withdrawals_due) == (0, ((0, 1),), ())
    assert change.state.version(0).is_unresolved  # the revision that failed
    assert outcome(rules.approve, state, 0, revision=2) == "version.failed"
    assert outcome(rules.approve, change.state, 0) == "version.failed"


def test_approving_a_newer_revision_of_a_public_version_replaces_its_external_copy():
    state = AssetState("ddh", Clearance.PUBLIC, versions=(approved(),))
    revised = rules.submit(state, SubmittedSource("0", OTHER, "p"), platform_id="ddh").state

    change = rules.approve(with_processing(revised, 0, ProcessingState.COMPLETED), 0)

    assert (change.exports_due, change.withdrawals_due) == (((0, 2),), ((0, 1),))


def approved(ordinal=0, **facts):
    facts = {"approval": ApprovalState.APPROVED, "processing": ProcessingState.COMPLETED, **facts}
    return version(ordinal, **{"approved_revision": facts.get("revision", 1), **facts})


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        (version(processing=ProcessingState.COMPLETED), "version.unresolved"),
        (version(approval=ApprovalState.REJECTED), "version.unresolved"),
        (replace(approved(), revision=2, approval=ApprovalState.PENDING_REVIEW), "version.unresolved"),
        (approved(), SubmissionOutcome.NEW_VERSION),
        (version(is_deleted=True), SubmissionOutcome.NEW_VERSION),
        (approved(is_unpublished=True), SubmissionOutcome.NEW_VERSION),
        (
            replace(approved(is_unpublished=True), revision=2, approval=ApprovalState.PENDING_REVIEW),
            "version.unresolved",
        ),
    ],
)
def test_a_new_label_creates_a_version_unless_an_earlier_one_is_not_resolved(earlier, expected):
    state = AssetState("ddh", versions=(earlier,))
    result = outcome(rules.submit, state, SubmittedSource("next", OTHER, "p"), platform_id="ddh")

    if isinstance(expected, SubmissionOutcome):
        assert (result.outcome, result.ordinal, result.revision) == (expected, 1, 1)
        assert result.state.version(0) == earlier
    else:
        assert result == expected


@pytest.mark.parametrize(
    ("processing", "source", "parameters", "force", "expected"),
    [
        ("queued", SOURCE, "p", False, "already_processing"),
        ("processing", SOURCE, "p", False, "already_processing"),
        ("completed", SOURCE, "p", False, "already_completed"),
        ("failed", SOURCE, "p", False, "new_revision"),
        ("completed", OTHER, "p", False, "new_revision"),
        ("completed", SOURCE, "q", False, "new_revision"),
        ("completed", SOURCE, "p", True, "new_revision"),
        ("processing", OTHER, "p", False, "new_revision"),
        ("processing", SOURCE, "p", True, "new_revision"),
        ("completed", SourceIdentity(), "p", False, "new_revision"),
    ],
)
@pytest.mark.parametrize("label", ["0", None])
def test_a_submission_with_the_same_label_creates_a_revision_if_it_differs(
    processing, source, parameters, force, expected, *, label
):
    served = approved(revision=3, processing=ProcessingState(processing))
    state = AssetState("ddh", clearance=Clearance.PUBLIC, versions=(served,))
    result = rules.submit(state, SubmittedSource(label, source, parameters), platform_id="ddh", force=force)

    assert result.outcome == expected
    if expected == "new_revision":
        revised = result.state.version(0)
        assert (revised.revision, revised.approval, revised.processing) == (4, "pending_review", "queued")
        assert (revised.served_revision, result.state.latest) == (3, 0)
        assert result.supersedes == (3 if processing == "processing" else None)
    else:
        assert result.state == state


def test_identical_content_as_a_new_version_is_reported():
    state = AssetState("ddh", versions=(approved(),))

    assert rules.submit(state, SubmittedSource("b", SOURCE, "p"), platform_id="ddh").same_content_as == 0
    assert rules.submit(state, SubmittedSource("b", OTHER, "p"), platform_id="ddh").same_content_as is None


def test_content_hashes_are_compared_instead_of_etags_if_both_are_known():
    first, second = SourceIdentity("e1", 1, "h"), SourceIdentity("e2", 1, "h")

    assert first.is_same(second)
    assert not first.is_same(replace(second, content_hash="other", etag="e1"))


def test_a_deleted_asset_that_is_submitted_again_must_be_cleared_again():
    state = rules.delete(AssetState("ddh", clearance=Clearance.PUBLIC, versions=(approved(),))).state
    again = rules.submit(state, SubmittedSource("0", SOURCE, "p"), platform_id="ddh")

    assert (again.outcome, again.ordinal, again.state.clearance) == ("new_version", 1, "uncleared")
    assert [v.ordinal for v in again.state.present] == [1]


def test_approval_by_a_second_person_can_be_required():
    state = AssetState("ddh", versions=(version(processing=ProcessingState.COMPLETED, submitted_by="ann"),))
    options = {"clearance": Clearance.OUO, "needs_second_person": True}

    assert outcome(rules.approve, state, 0, by="ann", **options) == "approval.own-submission"
    assert outcome(rules.approve, state, 0, by="bob", **options).state.latest == 0


ACTIONS = st.one_of(
    st.tuples(
        st.just("submit"), st.sampled_from(["a", "b", "c", None]), st.sampled_from([SOURCE, OTHER]), st.booleans()
    ),
    st.tuples(st.just("end"), st.integers(0, 3), st.sampled_from(list(ProcessingState))),
    st.tuples(st.just("approve"), st.integers(0, 3), st.sampled_from([None, *Clearance])),
    st.tuples(st.just("reject"), st.integers(0, 3)),
    st.tuples(st.just("clear"), st.sampled_from(list(Clearance))),
    st.tuples(st.just("expose"), st.sampled_from(list(Exposure))),
    st.tuples(st.just("unpublish"), st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("delete"), st.sampled_from([None, 0, 1, 2])),
)


def act(state, action):
    name, *args = action
    if name == "submit":
        label, source, force = args
        return rules.submit(state, SubmittedSource(label, source, "p"), platform_id="ddh", force=force).state
    if name == "end":
        return with_processing(state, *args)
    if name == "reject":
        return rules.reject(state, args[0], reason="why").state
    if name == "approve":
        return rules.approve(state, args[0], clearance=args[1]).state
    return getattr(rules, name)(state, *args).state


@given(st.lists(ACTIONS, max_size=30))
def test_only_actions_of_reviewers_change_which_revisions_are_served(actions):
    state = rules.submit(None, SubmittedSource("a", SOURCE, "p"), platform_id="ddh").state
    for action in actions:
        before = {v.ordinal: v.served_revision for v in state.present}
        try:
            after = act(state, action)
        except DagmasterError:
            continue
        served = {v.ordinal: v.served_revision for v in after.present}
        if action[0] in ("submit", "end", "reject", "clear", "expose"):
            assert {o: r for o, r in served.items() if r} == {o: r for o, r in before.items() if r}
        for ordinal, revision in served.items():
            if revision and revision != before.get(ordinal):  # it became served just now
                assert action[0] == "approve"
                known = state.version(ordinal)
                is_republished = known.is_unpublished and revision == known.approved_revision < known.revision
                assert known.processing == "completed" or is_republished
                assert after.clearance != "uncleared"
        ordinals = [v.ordinal for v in after.versions]
        assert len(set(ordinals)) == len(ordinals)
        labels = [v.label for v in after.present]
        assert len(set(labels)) == len(labels)
        assert sum(v.is_unresolved and v.approved_revision is None for v in after.present) <= 1
        state = after


@given(st.lists(ACTIONS, max_size=30))
def test_external_copies_are_due_exactly_for_the_public_versions(actions):
    """After the due exports and withdrawals, the external zone always has exactly the public versions."""
    state = rules.submit(None, SubmittedSource("a", SOURCE, "p"), platform_id="ddh").state
    outside = set()
    for action in actions:
        name, *args = action
        try:
            if name in ("submit", "end"):
                state = act(state, action)
                continue
            options = {"approve": {"clearance": args[-1]}, "reject": {"reason": "why"}}.get(name, {})
            change = getattr(rules, name)(state, *args[:1], **options)
        except DagmasterError:
            continue
        state = change.state
        outside = (outside | set(change.exports_due)) - set(change.withdrawals_due)
        assert outside == public_editions(state)
