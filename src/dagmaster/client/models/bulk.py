"""Cancel, resume or retry many jobs with one request."""

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator

from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.client.models.jobs import JobPart, ReasonText
from dagmaster.jobs.states import JobStatus

MAX_JOBS = 1000

BulkAction = Literal["cancel", "resume", "retry"]
_FilterNames = Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=50)]
_When = Annotated[str, Field(max_length=64, description="A time with a zone, or an age such as `2h`")]


class BulkFilter(RequestModel):
    """The filters of a list of jobs. Without `status`, jobs in all states that the action can change are selected."""

    status: Annotated[list[JobStatus], Field(min_length=1, max_length=10)] | None = None
    workflow_id: _FilterNames | None = None
    submitted_by: _FilterNames | None = None
    correlation_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    q: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    since: _When | None = None
    until: _When | None = None

    @model_validator(mode="after")
    def _is_not_empty(self) -> "BulkFilter":
        if not any(value for value in dict(self).values()):
            raise ValueError("a filter without conditions would match every job: set at least one")
        return self


class BulkRequest(RequestModel):
    """What to do, with which jobs, and why. With `preview` nothing is changed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "resume", "filter": {"status": ["failed"], "since": "2h"}, "reason": "disk", "preview": True}
            ]
        }
    )

    action: BulkAction
    job_ids: Annotated[list[UUID], Field(min_length=1, max_length=MAX_JOBS)] | None = None
    filter: BulkFilter | None = None
    part: JobPart | None = Field(None, description="The part to run again, for `retry` only")
    reason: ReasonText | None = None
    preview: bool = False

    @model_validator(mode="after")
    def _is_complete(self) -> "BulkRequest":
        if (self.job_ids is None) == (self.filter is None):
            raise ValueError("set either `job_ids` or `filter`")
        if (self.action == "retry") != (self.part is not None):
            raise ValueError("`part` is required for `retry`, and not allowed for other actions")
        return self


class BulkResult(ApiModel):
    """The result for one job; in a preview, the expected result. `unchanged`: there was nothing to change. `code` and
    `detail` say why a job was refused."""

    job_id: UUID
    workflow_id: str | None = None
    status: Extensible[JobStatus] | None = Field(None, description="The status of the job before the request")
    outcome: Extensible[Literal["accepted", "unchanged", "refused"]]
    code: str | None = None
    detail: str | None = None
    nodes: Sequence[str] = Field([], description="The nodes that run again")
    children: dict[str, int] = Field({}, description="The number of children of each fan_out that run again")


class BulkReport(ApiModel):
    """One result for each job, in the order of the request or newest first."""

    action: Extensible[BulkAction]
    is_preview: bool
    is_complete: bool = Field(description="False if the filter matches more jobs than one request changes")
    accepted: int
    unchanged: int
    refused: int
    results: list[BulkResult]
