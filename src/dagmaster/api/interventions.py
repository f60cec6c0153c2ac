"""What people do to a job that exists: cancel it, let it go on, or run a part of it again."""

import asyncio
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.notify.notifier import JOBS, RESULTS
from dagmaster.database.reads.pages import StoppingTask
from dagmaster.jobs.model import ShortId
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.operations.cancel import cancel
from dagmaster.operations.rerun import Part, Resumed, resume, retry

router = APIRouter(prefix="/jobs", tags=["jobs"])

_LOOK_SECONDS = 0.1


class Wish(BaseModel):
    """Who asks, and why; kept with the job's events."""

    model_config = ConfigDict(extra="forbid")

    by: ShortId | None = None
    reason: Annotated[str, Field(max_length=1000)] | None = None


class Cancelled(BaseModel):
    """How far a cancel has come. `tasks` are those that ran when it was asked for, with when their worker told the handler."""

    job_id: UUID
    status: JobStatus
    requested_at: datetime | None
    requested_by: str | None
    reason: str | None
    is_over: bool
    tasks: list[StoppingTask]


@router.post(
    "/{job_id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    status_code=202,
    responses=responses(404, 409),
)
async def cancel_job(
    services: Services,
    job_id: JobId,
    wish: Wish | None = None,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for the job's end before the answer")] = 2,
) -> Cancelled:
    """What waits never starts; running handlers are told within a second, and ended if they don't stop within their grace. Asking
    again changes nothing and shows how far it has come, also once the job is cancelled. A job that has ended otherwise is a
    conflict."""
    wish = wish or Wish()
    async with services.ledgers.one() as ledger:
        await cancel(ledger, job_id, by=wish.by, reason=wish.reason)
    services.notifier.notify(RESULTS)
    for _ in range(int(wait / _LOOK_SECONDS)):
        answer = await _cancelled(services, job_id)
        if answer.is_over:
            return answer
        await asyncio.sleep(_LOOK_SECONDS)
    return await _cancelled(services, job_id)


async def _cancelled(services: Services, job_id: UUID) -> Cancelled:
    job = await services.reads.job(job_id)
    return Cancelled(
        job_id=job_id,
        status=job.status,
        requested_at=job.cancel_requested_at,
        requested_by=job.cancel_requested_by,
        reason=job.cancel_reason,
        is_over=job.status in JOB_TERMINAL,
        tasks=await services.reads.stopping_tasks(job_id),
    )


@router.post(
    "/{job_id}/resume",
    operation_id="resume_job",
    summary="Let a job that has ended go on",
    status_code=202,
    responses=responses(404, 409),
)
async def resume_job(
    services: Services,
    job_id: JobId,
    wish: Wish | None = None,
    dry_run: Annotated[bool, Query(description="Only say what would run again")] = False,
) -> Resumed:
    """Only what failed, was cancelled or was skipped because of that runs again, children included, with the inputs and the
    definition that the job began with."""
    wish = wish or Wish()
    async with services.ledgers.one() as ledger:
        answer = await resume(ledger, job_id, by=wish.by, reason=wish.reason, is_dry_run=dry_run)
    if not dry_run:
        services.notifier.notify(JOBS)
    return answer


class RetryWish(Part):
    """One part of the job, and who asks for it, and why."""

    by: ShortId | None = None
    reason: Annotated[str, Field(max_length=1000)] | None = None


@router.post(
    "/{job_id}/retry",
    operation_id="retry_job",
    summary="Run a part of a job once more",
    status_code=202,
    responses=responses(404, 409),
)
async def retry_job(
    services: Services,
    job_id: JobId,
    wish: RetryWish,
    dry_run: Annotated[bool, Query(description="Only say what would run again")] = False,
) -> Resumed:
    """A node (or one child), a stage, or the children of a fan_out that failed, with everything downstream of it and nothing
    else. A fan_out that runs again reads its source again."""
    part = Part(node=wish.node, stage=wish.stage, failed_children=wish.failed_children)
    async with services.ledgers.one() as ledger:
        answer = await retry(ledger, job_id, part, by=wish.by, reason=wish.reason, is_dry_run=dry_run)
    if not dry_run:
        services.notifier.notify(JOBS)
    return answer
