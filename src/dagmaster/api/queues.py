"""Queues: their length and age; limit and pause them."""

from typing import Annotated

from fastapi import APIRouter, Path

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.operations import QueueLimits, QueueSummary
from dagmaster.client.models.pages import Page
from dagmaster.database.ledger.protocol import QueueChange
from dagmaster.errors import Conflict, NotFound
from dagmaster.web.authentication import requires

router = APIRouter(prefix="/queues", tags=["queues"])
_WRITES = [requires(Permission.QUEUES_OPERATE)]

QueueName = Annotated[str, Path(max_length=200, examples=["container-tasks"])]


@router.get(
    "",
    operation_id="list_queues",
    summary="List queues, with their length, age and limits",
    responses=responses(),
    dependencies=[requires(Permission.METRICS_READ)],
)
async def list_queues(services: Services) -> Page[QueueSummary]:
    """All queues are on one page."""
    return Page(items=await _queues(services), next=None)


async def _queues(services: ApiServices, only: str | None = None) -> list[QueueSummary]:
    settings = services.settings
    return await services.reads.queues(
        settings.known_queues, settings.job_queue_name, within_seconds=services.alive_within, only=only
    )


@router.put(
    "/{queue}",
    operation_id="set_queue",
    summary="Limit, pause or resume a queue",
    responses=responses(404, 409),
    dependencies=_WRITES,
)
async def set_queue(services: Services, queue: QueueName, limits: QueueLimits) -> QueueSummary:
    """The limits apply to all workers, from the next task on. A limit that is left out is removed."""
    return await _set_queue(services, queue, QueueChange(max_running=limits.max_running, is_paused=limits.is_paused))


@router.patch(
    "/{queue}",
    operation_id="change_queue",
    summary="Change some limits of a queue",
    responses=responses(404, 409),
    dependencies=_WRITES,
)
async def change_queue(services: Services, queue: QueueName, limits: QueueLimits) -> QueueSummary:
    """Like PUT, but a limit that is left out stays as it is."""
    changes = QueueChange()
    if "max_running" in limits.model_fields_set:
        changes["max_running"] = limits.max_running
    if "is_paused" in limits.model_fields_set:
        changes["is_paused"] = limits.is_paused
    return await _set_queue(services, queue, changes)


async def _set_queue(services: ApiServices, queue: str, changes: QueueChange) -> QueueSummary:
    queue_names = ", ".join(services.settings.known_queues)
    if queue == services.settings.job_queue_name:
        raise Conflict(
            f"queue '{queue}' cannot be paused or limited: orchestrators take new jobs from it",
            code="queue.of-submissions",
            hint=f"queues that can be paused and limited: {queue_names}",
            queue=queue,
        )
    if not await _queues(services, only=queue):
        raise NotFound(
            f"no queue is named '{queue}'", code="queue.not-found", hint=f"known queues: {queue_names}", queue=queue
        )
    async with services.ledgers.acquire() as ledger:
        await ledger.set_queue(queue, **changes)
    (summary,) = await _queues(services, only=queue)
    return summary
