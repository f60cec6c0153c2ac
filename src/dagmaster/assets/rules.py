"""What a submission or a reviewer's action changes, or why it is refused.

Every function takes the state as it is and returns the state as it should be, or raises `Conflict`,
`InvalidRequest` or `NotFound` with the code of the refusal. Processing alone does not change what is served: only
`approve`, `clear`, `expose`, `unpublish` and `delete` do.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from dagmaster.assets.states import (
    IN_PROGRESS,
    ApprovalState,
    AssetState,
    AssetVersionState,
    Clearance,
    Exposure,
    ProcessingState,
    SourceIdentity,
    VersionRevision,
)
from dagmaster.errors import Conflict, InvalidRequest, NotFound


class SubmissionOutcome(StrEnum):
    """The outcomes of a submission that is not refused."""

    NEW_ASSET = "new_asset"
    NEW_VERSION = "new_version"
    NEW_REVISION = "new_revision"
    ALREADY_PROCESSING = "already_processing"
    ALREADY_COMPLETED = "already_completed"


@dataclass(frozen=True, slots=True)
class SubmittedSource:
    """What is submitted: the label of the version (None: the newest one), the source, the parameters, and the
    submitter."""

    label: str | None
    source: SourceIdentity
    parameters_hash: str
    submitted_by: str | None = None


@dataclass(frozen=True, slots=True)
class SubmissionDecision:
    """`state` is unchanged if the outcome is `already_…`. `supersedes` is the revision whose job must be cancelled."""

    outcome: SubmissionOutcome
    state: AssetState
    ordinal: int
    revision: int
    supersedes: int | None = None
    same_content_as: int | None = None  # the ordinal of another version with identical content


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The state after an action. Revisions in `exports_due` must be copied to the external zone, the copies of those in
    `withdrawals_due` must be removed."""

    state: AssetState
    exports_due: tuple[VersionRevision, ...] = ()
    withdrawals_due: tuple[VersionRevision, ...] = ()


def submit(
    asset: AssetState | None, submitted: SubmittedSource, *, platform_id: str, force: bool = False
) -> SubmissionDecision:
    """Decide what a submission creates: an asset, a version, a revision, or nothing because it exists already."""
    if asset is None:
        first = _new_version(0, submitted)
        state = AssetState(platform_id, versions=(first,))
        return SubmissionDecision(SubmissionOutcome.NEW_ASSET, state, first.ordinal, first.revision)
    target = _version_labelled(asset, submitted.label)
    if target is None:
        return _submit_version(asset, submitted)
    is_same = target.source.is_same(submitted.source) and target.parameters_hash == submitted.parameters_hash
    if is_same and not force and target.processing in IN_PROGRESS:
        return SubmissionDecision(SubmissionOutcome.ALREADY_PROCESSING, asset, target.ordinal, target.revision)
    if is_same and not force and _is_complete(target):
        return SubmissionDecision(SubmissionOutcome.ALREADY_COMPLETED, asset, target.ordinal, target.revision)
    revised = replace(
        target,
        revision=target.revision + 1,
        approval=ApprovalState.PENDING_REVIEW,
        processing=ProcessingState.QUEUED,
        source=submitted.source,
        parameters_hash=submitted.parameters_hash,
        submitted_by=submitted.submitted_by,
        is_purged=False,
    )
    return SubmissionDecision(
        SubmissionOutcome.NEW_REVISION,
        _with_version(asset, revised),
        revised.ordinal,
        revised.revision,
        supersedes=target.revision if target.processing in IN_PROGRESS else None,
        same_content_as=_same_content(asset, submitted, except_ordinal=target.ordinal),
    )


def approve(
    asset: AssetState,
    ordinal: int,
    *,
    clearance: Clearance | None = None,
    by: str | None = None,
    needs_second_person: bool = False,
    revision: int | None = None,
) -> ActionResult:
    """Publish the newest revision of a version. `clearance` is required if the asset is not cleared yet.

    If a version was unpublished and the processing of its newest revision has failed, the revision that was approved
    before is published again, unless the reviewer names the newest one as `revision`.
    """
    version = _present_version(asset, ordinal)
    is_republished = revision is None and _falls_back_to_approved(version)
    if not is_republished:
        _require_processed(version)
    if version.approval == ApprovalState.APPROVED and not version.is_unpublished:
        raise Conflict(f"version {ordinal} is approved already", code="version.already-approved")
    if needs_second_person and by is not None and by == version.submitted_by:
        raise Conflict(
            f"'{by}' submitted version {ordinal} and may not approve it",
            code="approval.own-submission",
            hint="another reviewer must approve it",
        )
    published = replace(version, is_unpublished=False)
    if not is_republished:
        published = replace(published, approval=ApprovalState.APPROVED, approved_revision=version.revision)
    state = replace(_with_version(asset, published), clearance=_clearance_for_approval(asset, clearance))
    return ActionResult(state, _exports_due(asset, state), _withdrawals_due(asset, state))


def reject(asset: AssetState, ordinal: int, *, reason: str) -> ActionResult:
    """Reject the newest revision. An older approved revision is still served."""
    version = _present_version(asset, ordinal)
    if not reason.strip():
        raise InvalidRequest("a reason is required", code="rejection.no-reason", hint="say why the version is rejected")
    if version.processing in IN_PROGRESS:
        raise _still_processing(version)
    if version.approval == ApprovalState.APPROVED:
        raise Conflict(
            f"version {ordinal} is approved",
            code="version.already-approved",
            hint="to stop serving the version, unpublish it",
        )
    if version.approval == ApprovalState.REJECTED:
        raise Conflict(f"version {ordinal} is rejected already", code="version.already-rejected")
    return ActionResult(_with_version(asset, replace(version, approval=ApprovalState.REJECTED)))


def clear(asset: AssetState, clearance: Clearance) -> ActionResult:
    """Decide who may see approved versions. With a clearance below public, external copies are withdrawn."""
    _require_present(asset)
    if asset.clearance == clearance:
        raise Conflict(f"the clearance is '{clearance}' already", code="clearance.unchanged")
    state = replace(asset, clearance=clearance)
    return ActionResult(state, _exports_due(asset, state), _withdrawals_due(asset, state))


def expose(asset: AssetState, exposure: Exposure) -> ActionResult:
    _require_present(asset)
    if asset.exposure == exposure:
        raise Conflict(f"the exposure is '{exposure}' already", code="exposure.unchanged")
    return ActionResult(replace(asset, exposure=exposure))


def unpublish(asset: AssetState, ordinal: int | None = None) -> ActionResult:
    """Stop serving a version, or all versions of the asset. The data is kept; approving a version publishes it
    again."""
    return _withdraw(asset, ordinal, lambda version: replace(version, is_unpublished=True))


def delete(asset: AssetState, ordinal: int | None = None) -> ActionResult:
    """Soft-delete a version or the whole asset. A deleted asset loses its clearance: if it is submitted again, it
    must be cleared again."""
    if ordinal is not None:
        version = _present_version(asset, ordinal)
        state = _with_version(asset, replace(version, is_deleted=True))
        return ActionResult(state, withdrawals_due=_withdrawals_due(asset, state))
    _require_present(asset)
    deleted = tuple(replace(version, is_deleted=True) for version in asset.versions)
    state = replace(asset, is_deleted=True, clearance=Clearance.UNCLEARED, versions=deleted)
    return ActionResult(state, withdrawals_due=_withdrawals_due(asset, state))


def _submit_version(asset: AssetState, submitted: SubmittedSource) -> SubmissionDecision:
    if unresolved := next((version for version in asset.present if version.is_unresolved), None):
        raise Conflict(
            f"a new version cannot be submitted while version {unresolved.ordinal} is not approved "
            f"({unresolved.approval})",
            code="version.unresolved",
            hint="approve or delete that version, or submit the data under its label",
            version_ordinal=unresolved.ordinal,
        )
    added = _new_version(max((version.ordinal for version in asset.versions), default=-1) + 1, submitted)
    state = replace(asset, is_deleted=False, versions=(*asset.versions, added))
    same = _same_content(asset, submitted, except_ordinal=added.ordinal)
    return SubmissionDecision(SubmissionOutcome.NEW_VERSION, state, added.ordinal, added.revision, same_content_as=same)


def _version_labelled(asset: AssetState, label: str | None) -> AssetVersionState | None:
    """The version with this label; without a label, the newest one. Deleted versions do not count."""
    present = list(asset.present)
    if label is None:
        return present[-1] if present else None
    return next((version for version in present if version.label == label), None)


def _new_version(ordinal: int, submitted: SubmittedSource) -> AssetVersionState:
    return AssetVersionState(
        ordinal=ordinal,
        label=str(ordinal) if submitted.label is None else submitted.label,
        source=submitted.source,
        parameters_hash=submitted.parameters_hash,
        submitted_by=submitted.submitted_by,
    )


def _is_complete(version: AssetVersionState) -> bool:
    """Whether processing the same source again would produce nothing new: its results exist, and may be approved or are
    served."""
    is_available = not version.is_unpublished and not version.is_purged and version.approval != ApprovalState.REJECTED
    return is_available and version.processing == ProcessingState.COMPLETED


def _falls_back_to_approved(version: AssetVersionState) -> bool:
    """Whether approving an unpublished version publishes its approved revision again, because the newest one failed."""
    has_failed = version.processing == ProcessingState.FAILED
    return has_failed and version.is_unpublished and version.approved_revision not in (None, version.revision)


def _same_content(asset: AssetState, submitted: SubmittedSource, *, except_ordinal: int) -> int | None:
    others = (version for version in asset.present if version.ordinal != except_ordinal)
    return next((version.ordinal for version in others if version.source.is_same(submitted.source)), None)


def _clearance_for_approval(asset: AssetState, requested: Clearance | None) -> Clearance:
    if requested == Clearance.UNCLEARED or (requested is None and asset.clearance == Clearance.UNCLEARED):
        raise InvalidRequest(
            "a clearance is required, because the asset is not cleared yet",
            code="clearance.required",
            hint="approve with the clearance 'ouo' or 'public'",
        )
    if requested is None or requested == asset.clearance:
        return asset.clearance
    if asset.clearance != Clearance.UNCLEARED:
        raise Conflict(
            f"the clearance of the asset is '{asset.clearance}', and the approval has '{requested}'",
            code="clearance.differs",
            hint="approve without a clearance, or change the clearance of the asset first",
        )
    return requested


def _withdraw(
    asset: AssetState, ordinal: int | None, change: Callable[[AssetVersionState], AssetVersionState]
) -> ActionResult:
    if ordinal is None:
        _require_present(asset)
        chosen = [version for version in asset.present if version.served_revision is not None]
    else:
        chosen = [v for v in [_present_version(asset, ordinal)] if v.served_revision is not None]
    if not chosen:
        subject = "the asset has no version that is" if ordinal is None else f"version {ordinal} is not"
        raise Conflict(f"{subject} published", code="version.not-published")
    state = asset
    for version in chosen:
        state = _with_version(state, change(version))
    return ActionResult(state, withdrawals_due=_withdrawals_due(asset, state))


def export_again(asset: AssetState, ordinal: int) -> VersionRevision:
    """The revision of a version whose external copies are created again."""
    version = _present_version(asset, ordinal)
    edition = next((each for each in public_editions(asset) if each[0] == version.ordinal), None)
    if edition is None:
        raise Conflict(
            f"version {ordinal} is not approved and public: it has no external copies",
            code="export.not-public",
            hint="approve it, and set the clearance of the asset to public; the export then starts automatically",
        )
    return edition


def public_editions(asset: AssetState) -> set[VersionRevision]:
    """The served revisions of a public asset: these have external copies."""
    if asset.clearance != Clearance.PUBLIC:
        return set()
    return {(v.ordinal, v.served_revision) for v in asset.present if v.served_revision is not None}


def _exports_due(before: AssetState, after: AssetState) -> tuple[VersionRevision, ...]:
    return tuple(sorted(public_editions(after) - public_editions(before)))


def _withdrawals_due(before: AssetState, after: AssetState) -> tuple[VersionRevision, ...]:
    return tuple(sorted(public_editions(before) - public_editions(after)))


def _with_version(asset: AssetState, version: AssetVersionState) -> AssetState:
    versions = tuple(version if each.ordinal == version.ordinal else each for each in asset.versions)
    return replace(asset, versions=versions)


def _require_present(asset: AssetState) -> None:
    if asset.is_deleted:
        raise Conflict("the asset is deleted", code="asset.deleted", hint="submit it again to restore it")


def _present_version(asset: AssetState, ordinal: int) -> AssetVersionState:
    _require_present(asset)
    version = asset.version(ordinal)
    if version is None:
        raise NotFound(f"the asset has no version {ordinal}", code="version.not-found")
    if version.is_deleted:
        raise Conflict(f"version {ordinal} is deleted", code="version.deleted", hint="submit it again")
    return version


def _require_processed(version: AssetVersionState) -> None:
    if version.processing in IN_PROGRESS:
        raise _still_processing(version)
    if version.processing == ProcessingState.FAILED:
        raise Conflict(
            f"the processing of version {version.ordinal}, revision {version.revision} has failed",
            code="version.failed",
            hint="submit it again",
        )


def _still_processing(version: AssetVersionState) -> Conflict:
    return Conflict(
        f"version {version.ordinal}, revision {version.revision} is still being processed ({version.processing})",
        code="version.processing",
        hint="wait until its job has ended, or cancel the job",
    )
