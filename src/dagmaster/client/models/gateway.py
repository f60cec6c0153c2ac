"""Requests and responses of the gateway. Responses for partners contain no job ids."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from dagmaster.client.models.assets import (
    AssetSubmissionRequest,
    ClearanceLevel,
    ExposureLevel,
    Reason,
    RequestId,
    SubmissionEstimate,
    SubmissionOutcomeName,
    SubmissionStatus,
)
from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.jobs.states import JobStatus, NodeStatus


class PartnerSubmission(AssetSubmissionRequest):
    """A submission of data that the platform has put into the bronze zone. Without a `request_id` the gateway generates
    one."""


class PartnerReceipt(ApiModel):
    """The submission is recorded. Poll `status_url`; callbacks arrive at the `callback_url` of the submission, or at
    the URLs of its `subscriber`."""

    request_id: str
    status: Literal["received", "dry_run"]
    status_url: str | None = None
    outcome: Extensible[SubmissionOutcomeName] | None = None
    asset_id: str | None = None
    dataset_id: str | None = None
    version_ordinal: int | None = None
    version_label: str | None = None
    revision: int | None = None
    is_tiled: bool | None = None
    estimate: SubmissionEstimate | None = None
    refusal: dict[str, Any] | None = None


class PartnerStatus(SubmissionStatus):
    """The status of a request, and the version that it belongs to."""

    dataset_id: str
    version_ordinal: int
    revision: int
    outcome: str
    same_content_as: int | None = None


class PartnerDecision(RequestModel):
    """A decision on the version of a request. `clearance_level` is required for the first approval of an asset,
    `reason` for a rejection."""

    request_id: RequestId
    clearance_level: Literal["ouo", "public"] | None = None
    reason: Reason | None = None


class BatchSubmission(RequestModel):
    """Each entry is a submission, as in `POST /api/v1/jobs`."""

    # Any value: an entry that is not an object gets an error as its result, and does not affect the others.
    submissions: Annotated[list[Any], Field(min_length=1, max_length=100)]


class BatchResult(ApiModel):
    """One result for each entry, in their order: `status` is that of an HTTP response."""

    status: int
    result: dict[str, Any]


class BatchResults(ApiModel):
    results: list[BatchResult]


class GatewayVersion(ApiModel):
    version_ordinal: int
    version_label: str
    platform_refs: dict[str, Any] = {}
    revision: int
    approved_revision: int | None = None
    approval_state: str
    processing_state: str
    rejection_reason: str | None = None
    reviewed_at: datetime | None = None
    unpublished_at: datetime | None = None
    deleted_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


class GatewayAsset(ApiModel):
    asset_id: str
    dataset_id: str
    platform_id: str
    platform_refs: dict[str, Any]
    title: str | None = None
    clearance_state: Extensible[ClearanceLevel]
    exposure: Extensible[ExposureLevel]
    latest_approved_version_ordinal: int | None = None
    deleted_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    versions: list[GatewayVersion] = []


class GatewayJob(ApiModel):
    """A job, without its inputs and its result."""

    job_id: UUID
    workflow_id: str
    workflow_version: str
    status: Extensible[JobStatus]
    priority: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    asset_id: str | None = None
    version_ordinal: int | None = None
    error_message: str | None = None
    resume_count: int = 0
    deadline_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None


class GatewayNode(ApiModel):
    node_id: str
    parent_node_id: str | None = None
    fan_out_index: int | None = None
    label: str | None = None
    status: Extensible[NodeStatus]
    reason: str | None = None
    attempt: int = 0
    retry_count: int = 0
    max_retries: int = 0
    error_message: str | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


class GatewayEvent(ApiModel):
    event_id: int
    job_id: UUID | None = None
    sequence: int | None = None
    node_id: str | None = None
    event_type: str
    event_status: str | None = None
    attempt: int | None = None
    created_at: datetime


class GatewayInstance(ApiModel):
    role: str
    instance_id: UUID
    software_version: str
    started_at: datetime
    heartbeat_at: datetime
    silent_seconds: float


class StatusCount(ApiModel):
    status: str
    jobs: int


class OrchestratorState(ApiModel):
    url: str
    is_healthy: bool
    error: str | None = None
    checked_seconds_ago: float | None = None


class ProxyHealth(ApiModel):
    """The state of each orchestrator and worker that the proxy can reach."""

    orchestrator: list[OrchestratorState]
    worker: list[OrchestratorState]


class GatewayReadiness(ApiModel):
    """`is_ready` is true if the database can be read: without orchestrators, clients can poll but not submit."""

    is_ready: bool
    can_read: bool
    can_forward: bool


class GatewayHealth(GatewayReadiness):
    """Readiness, with the version of the gateway and the state of each orchestrator."""

    version: str
    orchestrators: list[OrchestratorState] = []


class JobStats(ApiModel):
    jobs: dict[str, int]


class Lookup(ApiModel):
    """What an id belongs to: a request, jobs with this correlation id, or an asset."""

    request: PartnerStatus | None = None
    jobs: list[GatewayJob] = []
    asset: GatewayAsset | None = None
