"""Results over HTTP, for workers without access to the database."""

import re
from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from dagmaster.api import examples
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.ledger.protocol import Demand, Ledger, Report
from dagmaster.database.notify.notifier import RESULTS
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.jobs.states import Blame, TaskStatus
from dagmaster.observe.redaction import redact
from dagmaster.workflows.storable import encode

router = APIRouter(prefix="/callbacks", tags=["callbacks"])

_TASK_ID = re.compile(r"([0-9a-fA-F-]{36})_(.{1,100})_([1-9][0-9]{0,8})")
_NOTHING_MORE = Demand(queues=())


class TaskError(BaseModel):
    """Why an attempt failed, and whose move it is."""

    model_config = ConfigDict(extra="allow")

    message: Annotated[str, Field(min_length=1, max_length=4000)]
    blame: Blame = Blame.HANDLER
    code: Annotated[str, Field(max_length=100)] = "handler.failed"


class TaskReport(BaseModel):
    """What a worker says of one attempt it ran."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [examples.TASK_REPORT]})

    task_id: Annotated[str, Field(max_length=200, description="Job, node and attempt, joined by underscores")]
    worker_id: UUID
    status: Literal["succeeded", "failed", "returned"] = Field(description="returned: stopped early, as it was told")
    output: JsonValue = None
    error: TaskError | None = Field(None, description="Needed where the attempt failed")
    metrics: dict[str, Any] | None = None


class Receipt(BaseModel):
    """`accepted` is false where the report came too late to count: it is kept for people, and nothing is to be done."""

    accepted: bool


@router.post(
    "/task-result", operation_id="report_task_result", summary="Report the result of a task", responses=responses()
)
async def report_task_result(services: Services, report: TaskReport) -> Receipt:
    """Handled exactly once: reported again, it is answered as before."""
    told = _as_told(report)
    # A stranger's report is not even kept: it would stand in the way of the one that the holder is going to make.
    if not await services.reads.may_report(report.worker_id, told.job_id, told.node_id, told.attempt):
        return Receipt(accepted=False)
    async with services.ledgers.one() as ledger:
        told = await _with_payload(ledger, told)
        answer = await ledger.exchange(
            report.worker_id, [told], _NOTHING_MORE, lease_seconds=services.settings.task_lease_sec
        )
    services.notifier.notify(RESULTS)
    return Receipt(accepted=not answer.late)


async def _with_payload(ledger: Ledger, report: Report) -> Report:
    """An output that is too large for a row is stored first, as workers do it."""
    encoded = encode(report.output, "the output")
    if len(encoded) <= INLINE_BYTES:
        return report
    return replace(report, output=None, output_ref=await ledger.store_payload(report.job_id, encoded))


def _as_told(report: TaskReport) -> Report:
    services = _TASK_ID.fullmatch(report.task_id)
    try:
        if services is None:
            raise ValueError
        job_id = UUID(services[1])
    except ValueError:
        raise InvalidRequest("this is not the id of a task", code="task.bad-id", task_id=report.task_id) from None
    if report.status == "failed" and report.error is None:
        raise InvalidRequest("a failed attempt needs an `error` with a message", code="task.no-error")
    error = report.error.model_dump(mode="json") if report.error else None
    if error is not None:
        error["message"] = redact(error["message"])
    status = TaskStatus(report.status)
    # `log` has the lines that our workers kept; what others call so has another form.
    metrics = {name: value for name, value in (report.metrics or {}).items() if name != "log"} or None
    return Report(job_id, services[2], int(services[3]), status, report.output, error, metrics)
