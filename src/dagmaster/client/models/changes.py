"""Changes of the platform, as its stream sends them: jobs, assets, queues and instances."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from dagmaster.client.models.base import ApiModel, Extensible
from dagmaster.client.models.nodes import ProgressCounts
from dagmaster.jobs.states import JobStatus

ChangeKind = Literal["jobs", "assets", "queues", "instances"]
ResyncReason = Literal["too_old", "too_many", "slow"]


class JobChange(ApiModel):
    """A job after a change. `version` grows with each change: a change with a smaller version is outdated."""

    job_id: UUID
    workflow_id: str
    status: Extensible[JobStatus]
    version: int
    sequence: int = Field(description="The sequence number of its last event")
    priority: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    error_message: str | None = None
    resume_count: int = 0
    cancel_requested_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    progress: ProgressCounts | None = None


class AssetChange(ApiModel):
    """A change of an asset. Callers who may not see its history only learn that it has changed."""

    event_id: int
    asset_id: str
    dataset_id: str
    platform_id: str
    action: str
    version_ordinal: int | None = None
    revision: int | None = None
    created_at: datetime


class ChangeBatch(ApiModel):
    """The changes since the previous batch. `resync`: changes were left out; reload the data that you display.

    `queues` and `instances` are true if queues or instances may have changed. `cursor` continues the stream after this
    batch.
    """

    cursor: str
    jobs: list[JobChange] = []
    assets: list[AssetChange] = []
    queues: bool = False
    instances: bool = False
    resync: Extensible[ResyncReason] | None = None
