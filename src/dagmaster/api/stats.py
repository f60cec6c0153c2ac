"""Statistics of the platform."""

from fastapi import APIRouter

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.operations import Stats
from dagmaster.jobs.states import JobStatus
from dagmaster.web.authentication import requires

router = APIRouter(tags=["operations"], dependencies=[requires(Permission.PLATFORM_READ)])

RECENT_HOURS = 24


@router.get("/stats", operation_id="get_stats", summary="Get statistics of the platform", responses=responses())
async def get_stats(services: Services) -> Stats:
    sizes = await services.reads.sizes()
    jobs = await services.reads.jobs_by_status()
    tasks, is_complete = await services.reads.task_counts(sizes.tasks_bytes)
    return Stats(
        jobs={status: jobs.get(status, 0) for status in JobStatus},
        tasks=tasks,
        are_tasks_complete=is_complete,
        events=sizes.events_estimate,
        dead_letters=sizes.dead_letters,
        watchers=services.events.watchers,
        database_bytes=sizes.database_bytes,
        recent_hours=RECENT_HOURS,
        recent=await services.reads.recent_workflows(RECENT_HOURS),
    )
