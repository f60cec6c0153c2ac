"""Assets, versions, submissions, platforms and keys, as the API describes them.

The same models are used by the server, the command line and the Python client.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field

from dagmaster.client.models.base import ApiModel, Extensible, RequestModel, few_fields
from dagmaster.jobs.model import Subscriber

PlatformName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]
RequestId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# Some platforms use numbers as references, such as for the layers of a service. A number equals its text.
ReferenceText = Annotated[str, BeforeValidator(_as_text)]
ReferenceTexts = Annotated[dict[str, ReferenceText], BeforeValidator(few_fields)]
MAX_BLOBS = 10_000  # of one submission

ClearanceLevel = Literal["uncleared", "ouo", "public"]
ExposureLevel = Literal["latest-only", "all-versions"]
SubmissionOutcomeName = Literal["new_asset", "new_version", "new_revision", "already_processing", "already_completed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SourceReference(RequestModel):
    """Objects of the bronze zone: one `blob`, or several `blobs` that become one collection."""

    container: str | None = None
    blob: str | None = None
    blobs: Annotated[list[str], Field(max_length=MAX_BLOBS)] | None = None


class AssetSubmissionRequest(RequestModel):
    """`parameters` are inputs of the workflow; inputs that are set automatically (dataset, version, revision,
    references, source) are refused. Without `workflow_id`, the workflow depends on the data type, and on whether the
    source has `blob` or `blobs`."""

    platform_id: PlatformName
    platform_refs: ReferenceTexts
    version_label: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    data_type: Literal["raster"] = "raster"
    source: SourceReference
    workflow_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    parameters: dict[str, Any] = {}
    request_id: RequestId | None = None
    callback_url: Annotated[str, Field(max_length=512)] | None = None
    subscriber: Subscriber | None = Field(None, description="Replaces `callback_url`: one URL per kind of callback")
    priority: Annotated[int, Field(ge=0, le=10)] = 0
    force: bool = False
    dry_run: bool = False


class SubmissionEstimate(ApiModel):
    """Estimates from past runs of the workflow; a value is null if no past run provides it."""

    tile_count: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    based_on_runs: int = 0


class AssetSubmissionResult(ApiModel):
    """`outcome` says what was created, or that the same data was submitted before. With `dry_run` nothing was created:
    `request_id` and `job_id` are null, and `refusal` has the reason if the submission would be refused.

    `same_content_as` is the number of another version with the same content. `superseded_job_id` is the job of the
    previous revision, which is cancelled because it is no longer needed. `is_tiled` and `estimate` are set only with
    `dry_run`. `is_tiled` is null if it depends on facts of the file that are only known when it is opened.
    """

    request_id: str | None
    outcome: Extensible[SubmissionOutcomeName] | None
    asset_id: str
    dataset_id: str
    version_ordinal: int | None
    version_label: str | None
    revision: int | None
    workflow_id: str
    job_id: UUID | None = None
    same_content_as: int | None = None
    superseded_job_id: UUID | None = None
    is_dry_run: bool = False
    is_tiled: bool | None = None
    estimate: SubmissionEstimate | None = None
    refusal: dict[str, Any] | None = None


class FindingInfo(ApiModel):
    """A finding about the source or the result. `fix` names a correction that is applied automatically.

    `hint` says what to do. `count` is the number of files or tiles with this finding, and `places` are the first of
    them. `stage` is `validation` if it was found before anything was written, and `processing` if every pixel had to
    be read for it.
    """

    code: str
    severity: Extensible[Literal["info", "warn", "error"]]
    message: str
    hint: str | None = None
    fix: str | None = None
    stage: str | None = None
    count: int = 1
    places: list[str] = []


class ExternalCopiesInfo(ApiModel):
    """The copies of a revision in the external zone.

    `state`: `none` (never needed), `due` (an export will start), `running`, `exported`, `failed` (see `error`; an
    operator can repeat the export), `withdrawing` (the copies are being removed; after an error, this is retried at
    `retry_at`), `withdrawn`. `job_id` is the last job that created or removed the copies, `run_id` the pipeline run of
    Azure Data Factory, if one created them. Paths are `container/blob` in the external zone. `url`, `stac_url` and
    `manifest_url` are the URLs of the objects at `blob_path`, `stac_path` and `manifest_path`.
    """

    state: Extensible[Literal["none", "due", "running", "exported", "failed", "withdrawing", "withdrawn"]] = "none"
    error: str | None = None
    due_at: datetime | None = None
    retry_at: datetime | None = None
    job_id: UUID | None = None
    run_id: str | None = None
    exported_at: datetime | None = None
    withdrawn_at: datetime | None = None
    blob_path: str | None = None
    stac_path: str | None = None
    manifest_path: str | None = None
    url: str | None = None
    stac_url: str | None = None
    manifest_url: str | None = None


class RevisionInfo(ApiModel):
    """`findings` are those of the validation and the processing, the most severe first. They are kept when the job is
    deleted.

    `reviewed_as` is the decision on this revision. `same_content_as` is the number of another version with the same
    content. `is_export_due`: the revision must be copied to the external zone. At `purged_at` its data was removed.
    """

    revision: int
    processing_state: Extensible[Literal["queued", "processing", "completed", "failed"]]
    is_partial: bool = False
    is_served: bool = False
    reviewed_as: str | None = None
    reviewed_at: datetime | None = None
    job_id: UUID | None = None
    workflow_id: str | None = None
    source: dict[str, Any] = {}
    content_hash: str | None = None
    same_content_as: int | None = None
    submitted_by: str | None = None
    error_message: str | None = None
    outputs: dict[str, Any] = {}
    findings: list[FindingInfo] = []
    is_export_due: bool = False
    external: ExternalCopiesInfo = ExternalCopiesInfo()
    created_at: datetime
    processed_at: datetime | None = None
    purged_at: datetime | None = None


class VersionInfo(ApiModel):
    """States are those of the newest revision; `approved_revision` is the one that is served."""

    version_ordinal: int
    version_label: str
    platform_refs: dict[str, Any] = {}
    revision: int
    approved_revision: int | None = None
    approval_state: Extensible[Literal["pending_review", "approved", "rejected"]]
    processing_state: Extensible[Literal["queued", "processing", "completed", "failed"]]
    is_latest: bool = False
    is_served: bool = False
    current_job_id: UUID | None = None
    reviewer: str | None = None
    reviewed_at: datetime | None = None
    rejection_reason: str | None = None
    unpublished_at: datetime | None = None
    deleted_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    revisions: list[RevisionInfo] = []


class AssetSummary(ApiModel):
    asset_id: str
    dataset_id: str
    platform_id: str
    platform_refs: dict[str, Any]
    title: str | None = None
    clearance_state: Extensible[ClearanceLevel]
    exposure: Extensible[ExposureLevel]
    latest_approved_version_ordinal: int | None = None
    version_count: int = 0
    to_review: int = Field(0, description="The number of versions that wait for a review")
    deleted_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


class AssetInfo(AssetSummary):
    """Send `etag` as `If-Match` with a change: the change is refused if the asset has changed since."""

    etag: str
    cleared_at: datetime | None = None
    cleared_by: str | None = None
    made_public_at: datetime | None = None
    made_public_by: str | None = None
    deleted_by: str | None = None
    created_by: str | None = None
    versions: list[VersionInfo] = []


class AssetHistoryEntry(ApiModel):
    """An event of an asset: who did what, when and why."""

    event_id: int
    action: str
    actor: str
    reason: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    detail: dict[str, Any] = {}
    request_id: str | None = None
    created_at: datetime


class AuditEntry(AssetHistoryEntry):
    """A change of an asset, a platform or a key, a direct command, or a change of many jobs. `platform_id` is the
    platform that was changed, or the platform of the asset or key."""

    asset_id: str | None = None
    dataset_id: str | None = None
    platform_id: str | None = None


class ApproveRequest(RequestModel):
    """`clearance_level` is required unless the asset is cleared already. `revision` is the number of the revision that
    was reviewed; the request is refused if a newer one exists."""

    clearance_level: Literal["ouo", "public"] | None = None
    revision: Annotated[int, Field(ge=1)] | None = None
    reason: Reason | None = None


class RejectRequest(RequestModel):
    """`revision` is the number of the revision that was reviewed; the request is refused if a newer one exists."""

    reason: Reason
    revision: Annotated[int, Field(ge=1)] | None = None


class ClearRequest(RequestModel):
    clearance_level: ClearanceLevel
    reason: Reason | None = None


class ExposeRequest(RequestModel):
    exposure: ExposureLevel
    reason: Reason | None = None


class ReasonRequest(RequestModel):
    reason: Reason | None = None


class PlatformInfo(ApiModel):
    """A platform. `version_ref` is the reference that names the version; the other required ones identify the asset."""

    platform_id: str
    display_name: str
    required_refs: list[str]
    optional_refs: list[str] = []
    version_ref: str | None = None
    is_active: bool = True
    b2b_may_approve: bool = False
    created_at: datetime
    updated_at: datetime

    @property
    def etag(self) -> str:
        """The time of the last change in microseconds."""
        return str((self.updated_at - _EPOCH) // timedelta(microseconds=1))


class PlatformRequest(RequestModel):
    """`b2b_may_approve`: keys of the platform may approve, reject and unpublish versions of its own assets."""

    platform_id: PlatformName
    display_name: Annotated[str, Field(min_length=1, max_length=200)]
    required_refs: Annotated[list[str], Field(min_length=1, max_length=20)]
    optional_refs: Annotated[list[str], Field(max_length=20)] = []
    version_ref: str | None = None
    b2b_may_approve: bool = False


class PlatformChange(RequestModel):
    """Fields that are not given stay unchanged. References cannot be changed: the ids of assets depend on them."""

    display_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    is_active: bool | None = None
    b2b_may_approve: bool | None = None
    reason: Reason | None = None


class SubmissionStatus(ApiModel):
    """The status of a request as partners see it, without jobs and nodes."""

    request_id: str
    status: Extensible[
        Literal[
            "received",
            "processing",
            "awaiting_review",
            "partial",
            "approved",
            "published",
            "rejected",
            "unpublished",
            "failed",
            "invalid",
        ]
    ]
    reason: str | None = None
    platform_id: str
    asset_id: str
    version_label: str
    created_at: datetime
    updated_at: datetime


QueueName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")]


class KeyInfo(ApiModel):
    """After a rotation, the previous secret is accepted until `previous_until`. `last_used_at` is exact to a minute. A
    worker with a key that has `queues` claims tasks of these queues only."""

    key_id: str
    name: str
    scopes: list[str]
    platform_id: str | None = None
    expires_at: datetime | None = None
    previous_until: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    created_at: datetime
    created_by: str | None = None
    queues: list[str] | None = None


class KeyRequest(RequestModel):
    """`name` is unique, and is recorded as the actor of changes that are made with the key. `queues` is allowed only
    for the scope `worker`: a worker with the key claims tasks of these queues only."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    scopes: Annotated[list[str], Field(min_length=1, max_length=8)]
    platform_id: PlatformName | None = None
    queues: Annotated[list[QueueName], Field(min_length=1, max_length=32)] | None = None
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None


class KeyUses(RequestModel):
    """Keys that were used at a gateway since its last report."""

    key_ids: Annotated[list[Annotated[str, Field(max_length=32)]], Field(min_length=1, max_length=1000)]


class KeyRotation(RequestModel):
    """The previous secret is accepted for another `overlap_hours`; with 0 it is refused at once."""

    overlap_hours: Annotated[float, Field(ge=0, le=24 * 90)] = 24.0
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    reason: Reason | None = None


class CreatedKey(KeyInfo):
    """`key` is shown once and stored nowhere."""

    key: str


class CallerInfo(ApiModel):
    """The caller of the request, and its permissions."""

    name: str
    scopes: list[str]
    platform_id: str | None = None
    queues: list[str] | None = None
    permissions: list[str]
    is_authentication_enabled: bool


class LinkRequest(RequestModel):
    """A signed link to one version; with `revision`, to the preview of a revision that is not served."""

    revision: Annotated[int, Field(ge=1)] | None = None
    expires_in_hours: Annotated[float, Field(gt=0, le=24 * 90)] = 24.0


class SignedLink(ApiModel):
    """Append `token` to URLs of this version, as `?token=…`."""

    token: str
    expires_at: datetime
    map_url: str
    tilejson_url: str
