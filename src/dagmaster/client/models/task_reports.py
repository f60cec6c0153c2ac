"""Results of tasks that a worker reports over HTTP."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, JsonValue

from dagmaster.client.models.base import ApiModel, RequestModel
from dagmaster.jobs.states import Blame


class TaskError(RequestModel):
    """Why an attempt failed. `blame` is the cause, which decides whether the task is retried."""

    model_config = ConfigDict(extra="allow")

    message: Annotated[str, Field(min_length=1, max_length=4000)]
    blame: Blame = Blame.HANDLER
    code: Annotated[str, Field(max_length=100)] = "handler.failed"


class TaskReport(RequestModel):
    """The result of one attempt, from the worker that ran it."""

    task_id: Annotated[str, Field(max_length=200, description="Job, node and attempt, joined by underscores")]
    worker_id: UUID
    status: Literal["succeeded", "failed", "returned"] = Field(
        description="returned: the worker ended the attempt early, because it stops or the task is cancelled"
    )
    output: JsonValue = None
    error: TaskError | None = Field(None, description="Required if the attempt failed")
    metrics: dict[str, Any] | None = None


class ReportReceipt(ApiModel):
    """`accepted` is false if the report was too late. It is stored anyway; the worker need not act."""

    accepted: bool
