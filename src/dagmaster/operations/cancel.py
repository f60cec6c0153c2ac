"""Cancel a job: the request is written to the job's row, and the orchestrator that owns the job acts on it."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from dagmaster.database.ledger.protocol import SubmissionLedger
from dagmaster.errors import Conflict
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus


@dataclass(frozen=True, slots=True)
class Cancellation:
    """`is_new` is false if the cancellation was already requested."""

    job_id: UUID
    status: Literal["cancelling", "cancelled"]
    is_new: bool


async def cancel(
    ledger: SubmissionLedger, job_id: UUID, *, by: str | None = None, reason: str | None = None
) -> Cancellation:
    """Request the cancellation of a job. Repeating it changes nothing. Conflict if the job has ended in another way."""
    status, is_new = await ledger.request_cancel(job_id, by=by, reason=reason)
    if status is JobStatus.CANCELLED:
        return Cancellation(job_id=job_id, status="cancelled", is_new=False)
    if status in JOB_TERMINAL:
        raise Conflict(f"job {job_id} has ended already: it is {status.value}", code="job.ended", status=status.value)
    return Cancellation(job_id=job_id, status="cancelling", is_new=is_new)
