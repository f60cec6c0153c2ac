"""What a caller sees of assets over the API. `access.decision` decides it for each version.

| caller                    | assets                   | fields of a version                   |
|---------------------------|--------------------------|---------------------------------------|
| reviewer, operator, admin | all                      | all                                   |
| b2b                       | of its own platform      | its progress, without jobs and people |
| b2b                       | public, of others        | those of the served revision          |
| viewer                    | published                | those of the served revision          |
| others                    | public                   | those of the served revision          |

If a caller asks for something that it may not see, the error says that it does not exist.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dagmaster.access.caller import Caller
from dagmaster.access.decision import Publication, may_preview, own_platform_of, read_access, readable_clearances
from dagmaster.assets.states import Clearance, Exposure
from dagmaster.client.models.assets import (
    AssetInfo,
    AssetSubmissionResult,
    RevisionInfo,
    SubmissionStatus,
    VersionInfo,
)
from dagmaster.database.assets.reads import VisibleAssets, no_such_asset, no_such_platform
from dagmaster.errors import Conflict, NotFound

_PEOPLE = ("cleared_by", "made_public_by", "deleted_by", "created_by")


def visible_assets(caller: Caller) -> VisibleAssets | None:
    """The assets that a caller sees in lists; None for all."""
    if may_preview(caller):
        return None
    return VisibleAssets(own_platform_of(caller), readable_clearances(caller))


def require_visible_platform(caller: Caller, platform_id: str) -> None:
    """A b2b key sees only its own platform. For other platforms, the error says that they do not exist."""
    if own_platform_of(caller) not in (None, platform_id):
        raise no_such_platform(platform_id)


def visible_submission(caller: Caller, submission: SubmissionStatus) -> SubmissionStatus:
    if not may_preview(caller) and submission.platform_id != own_platform_of(caller):
        raise NotFound(f"there is no submission {submission.request_id}", code="submission.not-found")
    return submission


def visible_result(caller: Caller, result: AssetSubmissionResult) -> AssetSubmissionResult:
    """Partners follow a submission by its request id, not by its job."""
    if own_platform_of(caller) is None:
        return result
    return result.model_copy(update={"job_id": None, "superseded_job_id": None})


def visible_part(caller: Caller, asset: AssetInfo, name: str) -> AssetInfo:
    """The part of an asset that a caller may see. If there is none, the error says that `name` does not exist, where
    `name` is the name in the request: another name of the asset would reveal that it exists."""
    if may_preview(caller):
        return asset
    if asset.platform_id == own_platform_of(caller):
        versions = [_without_internals(version) for version in asset.versions]
        return asset.model_copy(update={"versions": versions, **dict.fromkeys(_PEOPLE)})
    versions = [_served_part(version) for version in asset.versions if _is_readable(caller, asset, version)]
    if not versions:
        raise no_such_asset(name)
    shown = {"versions": versions, "version_count": len(versions), "to_review": 0, **dict.fromkeys(_PEOPLE)}
    return asset.model_copy(update=shown)


@contextmanager
def without_events(caller: Caller) -> Iterator[None]:
    """A refusal because the asset has changed lists its events, except for partners, because events name jobs and
    people."""
    try:
        yield
    except Conflict as error:
        if not may_preview(caller):
            error.facts.pop("events", None)
        raise


def publication_of(asset: AssetInfo, version: VersionInfo) -> Publication:
    return Publication(
        platform_id=asset.platform_id,
        clearance=Clearance(asset.clearance_state),
        exposure=Exposure(asset.exposure),
        latest=asset.latest_approved_version_ordinal,
        ordinal=version.version_ordinal,
        approved_revision=version.approved_revision,
        is_withdrawn=any((asset.deleted_at, version.deleted_at, version.unpublished_at)),
        is_deleted=any((asset.deleted_at, version.deleted_at)),
    )


def _is_readable(caller: Caller, asset: AssetInfo, version: VersionInfo) -> bool:
    return read_access(caller, publication_of(asset, version)).includes_data


def _without_internals(version: VersionInfo) -> VersionInfo:
    revisions = [_revision_without_internals(revision) for revision in version.revisions]
    return version.model_copy(update={"current_job_id": None, "reviewer": None, "revisions": revisions})


def _revision_without_internals(revision: RevisionInfo) -> RevisionInfo:
    hidden = dict.fromkeys(
        ("error", "due_at", "retry_at", "job_id", "run_id", "blob_path", "stac_path", "manifest_path")
    )
    return revision.model_copy(
        update={
            "job_id": None,
            "submitted_by": None,
            "outputs": {},
            "is_export_due": False,
            "external": revision.external.model_copy(update=hidden),
        }
    )


def _served_part(version: VersionInfo) -> VersionInfo:
    """Only the revision that is served, as if there were no other."""
    served = [
        _revision_without_internals(revision).model_copy(update={"source": {}, "workflow_id": None})
        for revision in version.revisions
        if revision.revision == version.approved_revision
    ]
    shown = {
        "revision": version.approved_revision,
        "approval_state": "approved",
        "processing_state": "completed",
        "rejection_reason": None,
        "revisions": served,
    }
    return _without_internals(version).model_copy(update=shown)
