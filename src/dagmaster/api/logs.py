"""The log lines of a job's attempts."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.api.jobs import JobId
from dagmaster.api.pages import LONGEST_NAME, Cursor, Limit, Page, joined, name_and_numbers, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.reads.pages import JobLogLine

router = APIRouter(prefix="/jobs", tags=["jobs"])


@router.get("/{job_id}/logs", operation_id="list_log_lines", summary="Read a job's log lines", responses=responses(404))
async def list_log_lines(
    *,
    services: Services,
    job_id: JobId,
    node_id: Annotated[
        str | None, Query(max_length=LONGEST_NAME, description="Only lines of this node; of a fan_out, of its children")
    ] = None,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only lines of this attempt")] = None,
    running: Annotated[bool, Query(description="Only lines of attempts that run now")] = False,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[JobLogLine]:
    """By node, attempt and number. The last 100 lines of an attempt are kept; of one that runs, or whose worker was lost, the last
    20 that its worker told, about a second ago."""
    if node_id is None:
        await services.reads.brief(job_id)
    else:
        await services.reads.node(job_id, node_id)
    found = await services.reads.log_lines(
        job_id, limit=limit + 1, after=name_and_numbers(after), node_id=node_id, attempt=attempt, is_running=running
    )
    return page_of(found, limit, lambda line: joined(joined(line.node_id, line.attempt), line.number))
