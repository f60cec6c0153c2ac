"""Log lines of the attempts of a job."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.nodes import JobLogLine
from dagmaster.client.models.pages import Page
from dagmaster.web.authentication import requires
from dagmaster.web.pages import MAX_NAME_LENGTH, Cursor, Limit, joined, name_and_numbers, page_of

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[requires(Permission.JOBS_READ)])


@router.get(
    "/{job_id}/logs", operation_id="list_log_lines", summary="List the log lines of a job", responses=responses(404)
)
async def list_log_lines(
    *,
    services: Services,
    job_id: JobId,
    node_id: Annotated[
        str | None,
        Query(max_length=MAX_NAME_LENGTH, description="Only lines of this node, or of the children of this fan_out"),
    ] = None,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only lines of this attempt")] = None,
    running: Annotated[bool, Query(description="Only lines of running attempts")] = False,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[JobLogLine]:
    """Ordered by node, attempt and number. The last 100 lines of an attempt are stored. While an attempt runs, and if
    its worker is lost, only the last 20 lines are stored; they arrive about a second after they were logged, from
    workers over HTTP after two to three."""
    if node_id is None:
        await services.reads.brief(job_id)
    else:
        await services.reads.node(job_id, node_id)
    rows = await services.reads.log_lines(
        job_id, limit=limit + 1, after=name_and_numbers(after), node_id=node_id, attempt=attempt, is_running=running
    )
    return page_of(rows, limit, lambda line: joined(joined(line.node_id, line.attempt), line.number))
