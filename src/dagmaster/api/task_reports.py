"""Reports of tasks over HTTP, for workers without access to the database. The paths begin with `/callbacks`, as in the
old system."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.api.worker_requests import attempt_of, require_own
from dagmaster.client.models.task_reports import ReportReceipt, TaskReport
from dagmaster.database.ledger.protocol import Demand, PayloadLedger, Report
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.jobs.states import TaskStatus
from dagmaster.observe.redaction import redact
from dagmaster.web.authentication import needs
from dagmaster.workflows.storable import encode

router = APIRouter(prefix="/callbacks", tags=["callbacks"])

_NO_DEMAND = Demand(queues=())


@router.post(
    "/task-result", operation_id="report_task_result", summary="Report the result of a task", responses=responses()
)
async def report_task_result(
    services: Services, caller: Annotated[Caller, Depends(needs(Permission.TASKS_REPORT))], report: TaskReport
) -> ReportReceipt:
    """A report counts once. If it is repeated, the response is the same. A key that is limited to queues can
    report only for workers that were started with it."""
    if caller.queues is not None:
        require_own(report.worker_id, caller)
    result = _result_of(report)
    # The report of a worker that has not claimed the task is not stored: it would block the report of the one that has.
    if not await services.reads.may_report(report.worker_id, result.job_id, result.node_id, result.attempt):
        return ReportReceipt(accepted=False)
    async with services.ledgers.acquire() as ledger:
        result = await _with_payload(ledger, result)
        response = await ledger.report(
            report.worker_id, [result], _NO_DEMAND, lease_seconds=services.settings.task_lease_sec
        )
    return ReportReceipt(accepted=not response.late)


async def _with_payload(ledger: PayloadLedger, report: Report) -> Report:
    """The report. An output that is too large for its row is stored as a payload first, as workers do."""
    encoded = encode(report.output, "the output")
    if len(encoded) <= INLINE_BYTES:
        return report
    return replace(report, output=None, output_ref=await ledger.store_payload(report.job_id, encoded))


def _result_of(report: TaskReport) -> Report:
    attempt = attempt_of(report.task_id)
    if report.status == "failed" and report.error is None:
        raise InvalidRequest("a failed attempt needs an `error` with a message", code="task.no-error")
    error = report.error.model_dump(mode="json") if report.error else None
    if error is not None:
        error["message"] = redact(error["message"])
    # `log` is reserved for the log lines that dagmaster's own workers report.
    metrics = {name: value for name, value in (report.metrics or {}).items() if name != "log"} or None
    return Report(*attempt, TaskStatus(report.status), report.output, error, metrics)
