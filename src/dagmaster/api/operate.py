"""What operators look at: orchestrators, workers, queues and numbers; and the valves of queues."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from dagmaster.api.pages import Limit, Page, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.database.ledger.protocol import QueueChange
from dagmaster.database.notify.notifier import tasks_topic
from dagmaster.database.reads.pages import (
    OrchestratorSummary,
    QueueSummary,
    TaskCount,
    WorkerSummary,
    WorkflowStatistics,
)
from dagmaster.errors import Conflict, NotFound
from dagmaster.jobs.states import JobStatus

router = APIRouter()

RECENT_HOURS = 24
QueueName = Annotated[str, Path(max_length=200, examples=["container-tasks"])]
After = Annotated[UUID | None, Query(description="`next` of the page before")]


class QueueLimits(BaseModel):
    """How much of a queue may run at once, over all workers."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"max_running": 4, "is_paused": False}]})

    max_running: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(None, description="Empty: no limit")
    is_paused: bool = Field(False, description="Nothing of it is started; what runs goes on")


class Stats(BaseModel):
    """The platform in numbers."""

    jobs: dict[JobStatus, int]
    tasks: list[TaskCount]
    are_tasks_complete: bool = Field(description="False where there are so many that only live ones were counted")
    events: int = Field(description="How many events are kept; PostgreSQL's estimate")
    dead_letters: int
    watchers: int = Field(description="Event streams open at this instance")
    database_bytes: int
    recent_hours: int
    recent: list[WorkflowStatistics] = Field(description="How the jobs of the last hours went, by workflow")


@router.get(
    "/orchestrators",
    operation_id="list_orchestrators",
    summary="List orchestrators",
    tags=["operations"],
    responses=responses(),
)
async def list_orchestrators(services: Services, after: After = None, limit: Limit = 50) -> Page[OrchestratorSummary]:
    found = await services.reads.orchestrators(limit=limit + 1, within_seconds=services.alive_within, after=after)
    return page_of(found, limit, lambda orchestrator: orchestrator.owner_id)


@router.get(
    "/workers",
    operation_id="list_workers",
    summary="List workers, what they offer and what they run",
    tags=["operations"],
    responses=responses(),
)
async def list_workers(services: Services, after: After = None, limit: Limit = 50) -> Page[WorkerSummary]:
    found = await services.reads.workers(limit=limit + 1, within_seconds=services.alive_within, after=after)
    return page_of(found, limit, lambda worker: worker.worker_id)


@router.get(
    "/queues",
    operation_id="list_queues",
    summary="List queues: how full, how old, how limited",
    tags=["queues"],
    responses=responses(),
)
async def list_queues(services: Services) -> Page[QueueSummary]:
    """All of them: there are few."""
    return Page(items=await _queues(services), next=None)


async def _queues(services: ApiServices, only: str | None = None) -> list[QueueSummary]:
    settings = services.settings
    return await services.reads.queues(
        settings.known_queues, settings.job_queue_name, within_seconds=services.alive_within, only=only
    )


@router.put(
    "/queues/{queue}",
    operation_id="set_queue",
    summary="Limit, pause or open a queue",
    tags=["queues"],
    responses=responses(404, 409),
)
async def set_queue(services: Services, queue: QueueName, limits: QueueLimits) -> QueueSummary:
    """It holds for all workers, from the next task on. What is left out is as without limits."""
    return await _set_queue(services, queue, QueueChange(max_running=limits.max_running, is_paused=limits.is_paused))


@router.patch(
    "/queues/{queue}",
    operation_id="change_queue",
    summary="Change one thing about a queue",
    tags=["queues"],
    responses=responses(404, 409),
)
async def change_queue(services: Services, queue: QueueName, limits: QueueLimits) -> QueueSummary:
    """The same, and what is left out stays: nobody undoes what another one did meanwhile."""
    changes = QueueChange()
    if "max_running" in limits.model_fields_set:
        changes["max_running"] = limits.max_running
    if "is_paused" in limits.model_fields_set:
        changes["is_paused"] = limits.is_paused
    return await _set_queue(services, queue, changes)


async def _set_queue(services: ApiServices, queue: str, changes: QueueChange) -> QueueSummary:
    if queue == services.settings.job_queue_name:
        raise Conflict(
            f"'{queue}' holds submissions, which orchestrators take at once: it can't be paused or limited",
            code="queue.of-submissions",
            hint=f"queues of tasks can be: {', '.join(services.settings.known_queues)}",
            queue=queue,
        )
    if not await _queues(services, only=queue):
        known = ", ".join(services.settings.known_queues)
        raise NotFound(f"no queue is named '{queue}'", code="queue.not-found", hint=f"known: {known}", queue=queue)
    async with services.ledgers.one() as ledger:
        await ledger.set_queue(queue, **changes)
    services.notifier.notify(tasks_topic(queue))
    (line,) = await _queues(services, only=queue)
    return line


@router.get(
    "/stats", operation_id="get_stats", summary="The platform in numbers", tags=["operations"], responses=responses()
)
async def get_stats(services: Services) -> Stats:
    sizes = await services.reads.sizes()
    jobs = await services.reads.jobs_by_status()
    tasks, is_all = await services.reads.task_counts(sizes)
    return Stats(
        jobs={status: jobs.get(status, 0) for status in JobStatus},
        tasks=tasks,
        are_tasks_complete=is_all,
        events=sizes.events_estimate,
        dead_letters=sizes.dead_letters,
        watchers=services.follower.watchers,
        database_bytes=sizes.database_bytes,
        recent_hours=RECENT_HOURS,
        recent=await services.reads.recent_workflows(RECENT_HOURS),
    )
