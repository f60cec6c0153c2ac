"""Cancel, resume or retry many jobs. Each job is a transaction of its own: a refused one does not affect the others."""

from collections.abc import Sequence
from typing import assert_never
from uuid import UUID

from dagmaster.client.models.bulk import BulkAction, BulkResult
from dagmaster.client.models.jobs import JobPart, JobSummary, Resumed
from dagmaster.database.ledger.protocol import SubmissionLedger, no_such_job
from dagmaster.errors import Conflict, DagmasterError
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.operations.cancel import cancel
from dagmaster.operations.rerun import resume, retry

# The states of jobs that an action can change.
CHANGEABLE: dict[BulkAction, Sequence[JobStatus]] = {
    "cancel": (JobStatus.PENDING, JobStatus.RUNNING),
    "resume": (JobStatus.FAILED, JobStatus.PARTIAL_SUCCESS, JobStatus.CANCELLED),
    "retry": (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.PARTIAL_SUCCESS, JobStatus.CANCELLED),
}


async def act_on(
    ledger: SubmissionLedger,
    job_id: UUID,
    job: JobSummary | None,
    action: BulkAction,
    *,
    part: JobPart | None = None,
    by: str,
    reason: str | None = None,
    is_preview: bool = False,
) -> BulkResult:
    """Apply an action to one job, or report what would happen. `job` is the job as it was listed; None if there is
    none. `part` is the part of the job that a retry runs again."""
    try:
        if job is None:
            raise no_such_job(job_id)
        match action:
            case "cancel":
                result = await _cancelled(ledger, job, by=by, reason=reason, is_preview=is_preview)
            case "resume":
                result = _rerun(await resume(ledger, job_id, by=by, reason=reason, is_dry_run=is_preview))
            case "retry":
                assert part is not None  # BulkRequest requires it
                result = _rerun(await retry(ledger, job_id, part, by=by, reason=reason, is_dry_run=is_preview))
            case _:
                assert_never(action)
    except DagmasterError as error:
        result = BulkResult(job_id=job_id, outcome="refused", code=error.code, detail=error.message)
    if job is None:
        return result
    return result.model_copy(update={"workflow_id": job.workflow_id, "status": job.status})


async def _cancelled(
    ledger: SubmissionLedger, job: JobSummary, *, by: str, reason: str | None, is_preview: bool
) -> BulkResult:
    if is_preview:
        is_new = job.cancel_requested_at is None and job.status not in JOB_TERMINAL
        if job.status in JOB_TERMINAL and job.status is not JobStatus.CANCELLED:
            raise Conflict(f"job {job.job_id} has ended already: it is {job.status}", code="job.ended")
    else:
        is_new = (await cancel(ledger, job.job_id, by=by, reason=reason)).is_new
    if is_new:
        return BulkResult(job_id=job.job_id, outcome="accepted")
    return BulkResult(job_id=job.job_id, outcome="unchanged", detail="its cancellation was already requested")


def _rerun(result: Resumed) -> BulkResult:
    return BulkResult(job_id=result.job_id, outcome="accepted", nodes=list(result.nodes), children=result.children)
