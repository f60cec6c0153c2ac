"""Metrics of an orchestrator with the API, for Prometheus: its loop, its requests, and the queues of the platform."""

import asyncio
from collections.abc import Callable, Iterable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dagmaster.access.permissions import Permission
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.operations import QueueSummary
from dagmaster.errors import DagmasterError
from dagmaster.observe.probes import Metric, one
from dagmaster.orchestrator.health import OrchestratorHealth
from dagmaster.web.authentication import requires
from dagmaster.web.metrics import metrics_response

TIMEOUT_SECONDS = 3.0
router = APIRouter(include_in_schema=False, dependencies=[requires(Permission.PLATFORM_READ)])


@router.get("/metrics")
async def get_metrics(request: Request, services: Services) -> Response:
    """Values from the memory of this process; the queues are read from the database, if it responds in time."""
    queues = await _queues(services)
    metrics = [
        *(OrchestratorHealth(services.orchestrator).metrics() if services.orchestrator else ()),
        *request.app.state.request_metrics.metrics(),
        one("dagmaster_database_up", "gauge", "1 if the database responded to this request", queues is not None),
        *_queue_metrics(queues or ()),
    ]
    if services.orchestrator:
        silent = services.orchestrator.silent_seconds
        metrics.append(one("dagmaster_orchestrator_silent_seconds", "gauge", "Seconds since its loop advanced", silent))
    return metrics_response(metrics)


async def _queues(services: ApiServices) -> list[QueueSummary] | None:
    settings = services.settings
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await services.reads.queues(
                settings.known_queues, settings.job_queue_name, within_seconds=services.alive_within
            )
    except (TimeoutError, DagmasterError):
        return None


_VALUES: tuple[tuple[str, str, Callable[[QueueSummary], float]], ...] = (
    ("depth", "Messages or tasks that wait", lambda queue: queue.depth),
    ("oldest_seconds", "Age of the one that waits longest", lambda queue: queue.oldest_age_seconds or 0.0),
    ("running", "Tasks that run", lambda queue: queue.running_count),
    ("workers", "Live workers", lambda queue: queue.live_workers),
    ("paused", "1 if no task of it is started", lambda queue: queue.is_paused),
)


def _queue_metrics(queues: Iterable[QueueSummary]) -> Iterable[Metric]:
    for name, meaning, value in _VALUES:
        samples: dict[tuple[tuple[str, str], ...], float] = {
            (("queue", queue.queue),): float(value(queue)) for queue in queues
        }
        yield Metric(f"dagmaster_queue_{name}", "gauge", f"{meaning}, by queue", samples)
