"""Cancel, resume or retry many jobs: by their ids or by a filter, with a preview."""

import asyncio
from collections import Counter
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.job_lists import filters_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.bulk import MAX_JOBS, BulkAction, BulkReport, BulkRequest, BulkResult
from dagmaster.client.models.jobs import JobSummary
from dagmaster.database.assets.rows import Decision
from dagmaster.operations.bulk import CHANGEABLE, act_on
from dagmaster.web.authentication import needs

router = APIRouter(prefix="/jobs", tags=["jobs"])

AUDIT_ACTIONS: dict[BulkAction, str] = {"cancel": "jobs_cancelled", "resume": "jobs_resumed", "retry": "jobs_retried"}
_AT_ONCE = 2  # connections that one request uses; the API has only a few that write
_MAX_LISTED_IDS = 100  # job ids in an entry of the audit log


@router.post("/bulk", operation_id="change_jobs", summary="Cancel, resume or retry many jobs", responses=responses())
async def change_jobs(
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.JOBS_OPERATE))],
    request: BulkRequest,
) -> BulkReport:
    """Each job has its own result; a job that is refused does not affect the others. With `preview` nothing is changed.
    To change exactly the jobs that a preview accepts, send their `job_ids`. A request changes up to 1,000 jobs. It is
    recorded in the audit log, and each change is an event of its job."""
    jobs, is_complete = await _jobs_of(services, request)
    if not request.preview and jobs:
        await services.assets.record(_decision(request, list(jobs), caller))
    free = asyncio.Semaphore(_AT_ONCE)

    async def result_of(job_id: UUID, job: JobSummary | None) -> BulkResult:
        async with free, services.ledgers.acquire() as ledger:
            return await act_on(
                ledger,
                job_id,
                job,
                request.action,
                part=request.part,
                by=caller.name,
                reason=request.reason,
                is_preview=request.preview,
            )

    results = await asyncio.gather(*(result_of(job_id, job) for job_id, job in jobs.items()))
    outcomes = Counter(result.outcome for result in results)
    return BulkReport(
        action=request.action,
        is_preview=request.preview,
        is_complete=is_complete,
        accepted=outcomes["accepted"],
        unchanged=outcomes["unchanged"],
        refused=outcomes["refused"],
        results=results,
    )


async def _jobs_of(services: ApiServices, request: BulkRequest) -> tuple[dict[UUID, JobSummary | None], bool]:
    """The jobs of the request, and whether these are all that match the filter."""
    if request.job_ids is not None:
        listed = {each.job.job_id: each.job for each in await services.reads.jobs_by_id(request.job_ids)}
        return {job_id: listed.get(job_id) for job_id in request.job_ids}, True
    assert request.filter is not None
    filters = await filters_of(
        status=request.filter.status or list(CHANGEABLE[request.action]),
        workflow_id=request.filter.workflow_id,
        submitted_by=request.filter.submitted_by,
        correlation_id=request.filter.correlation_id,
        q=request.filter.q,
        since=request.filter.since,
        until=request.filter.until,
    )
    jobs = await services.reads.jobs(filters, limit=MAX_JOBS + 1)
    return {each.job.job_id: each.job for each in jobs[:MAX_JOBS]}, len(jobs) <= MAX_JOBS


def _decision(request: BulkRequest, job_ids: list[UUID], caller: Caller) -> Decision:
    detail: dict[str, Any] = {"count": len(job_ids), "job_ids": [str(job_id) for job_id in job_ids[:_MAX_LISTED_IDS]]}
    if request.filter is not None:
        detail["filter"] = request.filter.model_dump(mode="json", exclude_none=True)
    if request.part is not None:
        detail["part"] = request.part.model_dump(exclude_none=True)
    return Decision(AUDIT_ACTIONS[request.action], caller.name, request.reason, detail=detail)
