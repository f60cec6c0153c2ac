"""Interventions in a job: cancel it, resume it, or run a part of it again."""

import asyncio
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.jobs import CancelProgress, Intervention, JobPart, Resumed, RetryRequest
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.operations.cancel import cancel
from dagmaster.operations.rerun import resume, retry
from dagmaster.web.authentication import needs, requires

router = APIRouter(prefix="/jobs", tags=["jobs"])

Operator = Annotated[Caller, Depends(needs(Permission.JOBS_OPERATE))]

_POLL_SECONDS = 0.1


@router.post(
    "/{job_id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    status_code=202,
    responses=responses(404, 409),
)
async def cancel_job(
    services: Services,
    caller: Operator,
    job_id: JobId,
    intervention: Intervention | None = None,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for the end of the job")] = 2,
) -> CancelProgress:
    """Waiting tasks do not start. Running handlers are informed within a second (by workers over HTTP: within about
    two seconds), and ended if they do not stop within their grace period. A repeated request changes nothing and
    returns the progress, also after the job is cancelled. For a job that has ended in another way, the response is a
    conflict."""
    intervention = intervention or Intervention()
    async with services.ledgers.acquire() as ledger:
        await cancel(ledger, job_id, by=caller.name, reason=intervention.reason)
    for _ in range(int(wait / _POLL_SECONDS)):
        progress = await _progress(services, job_id)
        if progress.is_over:
            return progress
        await asyncio.sleep(_POLL_SECONDS)
    return await _progress(services, job_id)


@router.get(
    "/{job_id}/cancel",
    operation_id="get_cancellation",
    summary="Get the progress of a cancellation",
    dependencies=[requires(Permission.JOBS_READ)],
    responses=responses(404),
)
async def get_cancellation(services: Services, job_id: JobId) -> CancelProgress:
    """The tasks that were running when the cancellation was requested, and when their workers informed the handlers.
    `requested_at` is null if no cancellation was requested."""
    return await _progress(services, job_id)


async def _progress(services: Services, job_id: UUID) -> CancelProgress:
    job = await services.reads.job(job_id)
    return CancelProgress(
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
    summary="Resume a job that has ended",
    status_code=202,
    responses=responses(404, 409),
)
async def resume_job(
    services: Services,
    caller: Operator,
    job_id: JobId,
    intervention: Intervention | None = None,
    dry_run: Annotated[bool, Query(description="Change nothing, only return what would run again")] = False,
) -> Resumed:
    """Nodes and children that failed, were cancelled, or were skipped for that reason run again, with the inputs and
    the definition of the job."""
    intervention = intervention or Intervention()
    async with services.ledgers.acquire() as ledger:
        return await resume(ledger, job_id, by=caller.name, reason=intervention.reason, is_dry_run=dry_run)


@router.post(
    "/{job_id}/retry",
    operation_id="retry_job",
    summary="Run a part of a job again",
    status_code=202,
    responses=responses(404, 409),
)
async def retry_job(
    services: Services,
    caller: Operator,
    job_id: JobId,
    request: RetryRequest,
    dry_run: Annotated[bool, Query(description="Change nothing, only return what would run again")] = False,
) -> Resumed:
    """A node (or one child), a stage, or the failed children of a fan_out run again, with everything downstream of
    them. A fan_out that runs again reads its source again."""
    part = JobPart(node=request.node, stage=request.stage, failed_children=request.failed_children)
    async with services.ledgers.acquire() as ledger:
        return await retry(ledger, job_id, part, by=caller.name, reason=request.reason, is_dry_run=dry_run)
