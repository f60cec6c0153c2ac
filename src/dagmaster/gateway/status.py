"""Jobs, for operators: their states, nodes and events, without inputs and results."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.client.models.gateway import GatewayEvent, GatewayJob, GatewayNode, JobStats, Lookup
from dagmaster.client.models.pages import Page
from dagmaster.errors import NotFound
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Cursor, Limit, bad_cursor, page_of
from dagmaster.web.validation import responses

router = APIRouter(prefix="/api/status", tags=["status"], dependencies=[requires(Permission.JOBS_READ)])

_MAX_MATCHES = 20


@router.get("/jobs", operation_id="status_jobs", summary="List jobs, newest first", responses=responses(429))
async def list_jobs(
    *,
    services: Services,
    status: Annotated[list[str] | None, Query(description="Only jobs with one of these states")] = None,
    workflow_id: Annotated[str | None, Query(max_length=64)] = None,
    correlation_id: Annotated[str | None, Query(max_length=64)] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[GatewayJob]:
    rows = await services.reads.jobs(
        limit=limit + 1,
        status=status,
        workflow_id=workflow_id,
        correlation_id=correlation_id,
        after=_job_cursor(after),
    )
    return page_of(rows, limit, lambda job: job.job_id)


@router.get("/job/{job_id}", operation_id="status_job", summary="Get a job", responses=responses(404, 429))
async def get_job(services: Services, job_id: UUID) -> GatewayJob:
    return await _job(services, job_id)


@router.get(
    "/job/{job_id}/nodes", operation_id="status_nodes", summary="List the nodes of a job", responses=responses(404, 429)
)
async def list_nodes(services: Services, job_id: UUID, after: Cursor = None, limit: Limit = 50) -> Page[GatewayNode]:
    await _job(services, job_id)
    return page_of(await services.reads.nodes(job_id, limit=limit + 1, after=after), limit, lambda node: node.node_id)


@router.get(
    "/job/{job_id}/events",
    operation_id="status_events",
    summary="List the events of a job, oldest first",
    responses=responses(404, 429),
)
async def list_events(
    services: Services,
    job_id: UUID,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="`next` of the previous page")] = 0,
    limit: Limit = 50,
) -> Page[GatewayEvent]:
    await _job(services, job_id)
    rows = await services.reads.events(job_id, limit=limit + 1, after=after)
    return page_of(rows, limit, lambda event: event.sequence)


@router.get("/stats", operation_id="status_stats", summary="Count jobs by their states", responses=responses(429))
async def get_stats(services: Services) -> JobStats:
    return JobStats(jobs={count.status: count.jobs for count in await services.reads.stats()})


@router.get(
    "/lookup", operation_id="status_lookup", summary="Look up what an id belongs to", responses=responses(404, 429)
)
async def lookup(
    services: Services,
    id: Annotated[str, Query(min_length=1, max_length=64)],  # noqa: A002 - the parameter's name
) -> Lookup:
    """`id` is a request id, a correlation id, a job id, an asset id or a dataset id."""
    request = next(iter(await services.reads.requests(id, None)), None)
    jobs = await services.reads.jobs(limit=_MAX_MATCHES, correlation_id=id)
    if job_id := _uuid(id):
        jobs += await services.reads.jobs(limit=1, job_id=job_id)
    asset = await services.reads.asset(id, None)
    if request is None and not jobs and asset is None:
        raise NotFound("no request, job or asset has this id", code="lookup.not-found")
    return Lookup(request=request, jobs=jobs, asset=asset)


async def _job(services: GatewayServices, job_id: UUID) -> GatewayJob:
    for job in await services.reads.jobs(limit=1, job_id=job_id):
        return job
    raise NotFound(f"there is no job {job_id}", code="job.not-found")


def _job_cursor(after: str | None) -> UUID | None:
    if after is None:
        return None
    if (job_id := _uuid(after)) is None:
        raise bad_cursor(after)
    return job_id


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
