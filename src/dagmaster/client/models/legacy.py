"""Responses of the old API. Each field of several words is also sent in camel case, which is not listed here."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from dagmaster.client.models.base import ApiModel, Extensible

ServedBy = Extensible[Literal["dagmaster", "legacy"]]
_SERVED_BY = "`dagmaster`, or `legacy` if the request was forwarded to the old system"


class OldApiModel(ApiModel):
    # A forwarded response has whatever fields the old system sends.
    model_config = ConfigDict(frozen=True, extra="allow", json_schema_serialization_defaults_required=False)


class OldSubmissionResponse(OldApiModel):
    """`status` is `queued`, `already_completed`, `already_processing`, `previously_failed` or `resumed`; it determines
    which other fields are set."""

    status: str = "queued"
    job_id: str | None = None
    job_type: str | None = None
    queue: str | None = None
    message_id: str | None = None
    status_url: str | None = None
    created_at: str | None = None
    result_data: Any = None
    stage: int | None = None
    total_stages: int | None = None
    job_status: str | None = None
    failed_stage: int | None = None
    completed_stages: list[str] | None = None
    error: str | None = None
    resume_hint: str | None = None
    resumed_from_stage: int | None = None
    resume_count: int | None = None
    message: str | None = None
    served_by: ServedBy = Field("dagmaster", description=_SERVED_BY)


class OldStageResult(OldApiModel):
    completed_at: str | None = None
    task_count: int = 0
    success_count: int = 0
    checkpoint: bool = True


class OldJobStatus(OldApiModel):
    """`result_data` has the result of the job, and a summary of each stage as `stage_1`, `stage_2`, …"""

    job_id: str | None = None
    job_type: str | None = None
    status: str = Field("queued", description="queued, processing, completed, partial_success or failed")
    stage: int | None = None
    total_stages: int | None = None
    parameters: dict[str, Any] | None = None
    stage_results: dict[str, OldStageResult] | None = Field(None, description="Complete stages, by number")
    result_data: Any = None
    error_details: str | None = None
    duration_seconds: float | None = None
    resumable: bool = False
    resume_from_stage: int | None = None
    resume_hint: str | None = None
    resume_count: int | None = None
    created_at: str | None = None
    updated_at: str | None = None
    served_by: ServedBy = Field("dagmaster", description=_SERVED_BY)


class OldStageRetry(OldApiModel):
    status: str = "stage_retry_initiated"
    job_id: str | None = None
    stage: int | None = None
    message: str | None = None
    served_by: ServedBy = Field("dagmaster", description=_SERVED_BY)


class OldTaskList(OldApiModel):
    """Params and results of more than 16 KB are left out. `next_offset` is the `offset` of the next page."""

    job_id: str | None = None
    stage: int | None = None
    count: int | None = None
    tasks: list[dict[str, Any]] | None = None
    next_offset: int | None = None
    served_by: ServedBy = Field("dagmaster", description=_SERVED_BY)
