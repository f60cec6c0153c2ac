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

pytestmark = pytest.mark.requirement("A3", "A4", "A5")

SOURCE = SourceIdentity(etag="e1", size=10)
OTHER = SourceIdentity(etag="e2", size=10)

PROCESSING = {"queued": "version.processing", "processing": "version.processing", "failed": "version.failed"}


def version(ordinal=0, **facts):
    return AssetVersionState(ordinal, facts.pop("label", str(ordinal)), source=SOURCE, parameters_hash="p", **facts)


def outcome(action, *args, **options):
    """The change, or the code of the refusal."""
    try:
        return action(*args, **options)
    except DagmasterError as error:
        return error.code


def expected_approval(approval, processing, clearance, level, *, unpublished, deleted, asset_deleted):
    """Written from the specification, as one list of refusals in the order in which a reviewer would want them."""
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
def test_approval_in_every_state(approval, processing):
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
            assert (result.state.clearance, result.exports_due) == (cleared, (0,) if cleared == "public" else ())


@pytest.mark.parametrize(
    ("approval", "processing", "reason", "expected"),
    [
        ("pending_review", "completed", "blurred", None),
        ("pending_review", "failed", "blurred", None),
        ("pending_review", "completed", " ", "rejection.no-reason"),
        ("pending_review", "queued", "blurred", "version.processing"),
        ("pending_review", "processing", "blurred", "version.processing"),
        ("approved", "completed", "blurred", "version.already-approved"),
        ("rejected", "completed", "blurred", "version.already-rejected"),
    ],
)
def test_rejection_in_every_state(approval, processing, reason, expected):
    state = AssetState(
        "ddh", versions=(version(approval=ApprovalState(approval), processing=ProcessingState(processing)),)
    )
    result = outcome(rules.reject, state, 0, reason=reason)

    assert result == expected if expected else result.state.version(0).approval == "rejected"


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
    ],
)
def test_a_new_label_makes_a_version_unless_an_earlier_one_is_unresolved(earlier, expected):
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
def test_the_same_label_again(processing, source, parameters, force, expected, *, label):
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


def test_hashes_decide_over_etags_where_both_are_known():
    first, second = SourceIdentity("e1", 1, "h"), SourceIdentity("e2", 1, "h")

    assert first.is_same(second)
    assert not first.is_same(replace(second, content_hash="other", etag="e1"))


def test_the_end_of_an_older_revisions_job_changes_nothing():
    state = AssetState("ddh", versions=(version(revision=2),))

    assert rules.record_processing(state, 0, 1, ProcessingState.COMPLETED) == state
    assert rules.record_processing(state, 0, 2, ProcessingState.COMPLETED).version(0).processing == "completed"


def test_a_deleted_asset_that_is_submitted_again_must_be_cleared_again():
    state = rules.delete(AssetState("ddh", clearance=Clearance.PUBLIC, versions=(approved(),))).state
    again = rules.submit(state, SubmittedSource("0", SOURCE, "p"), platform_id="ddh")

    assert (again.outcome, again.ordinal, again.state.clearance) == ("new_version", 1, "uncleared")
    assert [v.ordinal for v in again.state.present] == [1]


def test_an_approver_may_be_required_to_be_another_person():
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
        ordinal, processing = args
        current = state.version(ordinal)
        return rules.record_processing(state, ordinal, current.revision if current else 1, processing)
    if name == "reject":
        return rules.reject(state, args[0], reason="why").state
    if name == "approve":
        return rules.approve(state, args[0], clearance=args[1]).state
    return getattr(rules, name)(state, *args).state


@given(st.lists(ACTIONS, max_size=30))
def test_only_reviewers_change_what_is_served(actions):
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
                assert state.version(ordinal).processing == "completed"
                assert after.clearance != "uncleared"
        ordinals = [v.ordinal for v in after.versions]
        assert len(set(ordinals)) == len(ordinals)
        labels = [v.label for v in after.present]
        assert len(set(labels)) == len(labels)
        assert sum(v.is_unresolved and v.approved_revision is None for v in after.present) <= 1
        state = after


@given(st.lists(ACTIONS, max_size=30))
def test_external_copies_follow_what_is_public(actions):
    """Applying the due exports and withdrawals always leaves exactly the public versions outside."""
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
        public = {v.ordinal for v in state.present if v.served_revision} if state.clearance == "public" else set()
        assert outside == public
