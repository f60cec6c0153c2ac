"""Metrics of an orchestrator with the API, for Prometheus: its loop, its requests, the queues and the database.

Values from the database are the same for all orchestrators. They are read at most every few seconds, however many
clients scrape, so they may be slightly outdated.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import Response

from dagmaster.access.permissions import Permission
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.operations import QueueSummary
from dagmaster.database.reads.queues import DatabaseFacts, OutboxFacts
from dagmaster.errors import DagmasterError
from dagmaster.observe.metrics import gauge, gauges
from dagmaster.orchestrator.health import OrchestratorHealth
from dagmaster.web.authentication import requires
from dagmaster.web.metrics import RequestMetrics

TIMEOUT_SECONDS = 3.0
CACHED_SECONDS = 5.0
router = APIRouter(include_in_schema=False, dependencies=[requires(Permission.METRICS_READ)])


@router.get("/metrics")
async def get_metrics(request: Request, services: Services) -> Response:
    """Values from the memory of this process and, if the database responds, values of the queues and of the database,
    which may be a few seconds old."""
    platform: PlatformMetrics = request.app.state.platform_metrics
    await platform.refresh(services)
    metrics: RequestMetrics = request.app.state.request_metrics
    return metrics.response()


@dataclass(frozen=True, slots=True)
class ScrapedState:
    queues: Sequence[QueueSummary]
    database: DatabaseFacts
    outbox: Sequence[OutboxFacts]


class PlatformMetrics:
    """Values read from the database, which all scrapes within a few seconds share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state: ScrapedState | None = None
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def refresh(self, services: ApiServices) -> None:
        """Read the values again if they are older than a few seconds. Requests that arrive meanwhile wait for the same
        result."""
        async with self._reading:
            if self._read_at is not None and self._clock() - self._read_at < CACHED_SECONDS:
                return
            self._state = await _scraped_state(services)
            self._read_at = self._clock()

    def metrics(self) -> Iterable[Metric]:
        state = self._state
        yield gauge("dagmaster_database_up", "1 if the database responded", state is not None)
        if state is not None:
            yield from _queue_metrics(state.queues)
            yield from _outbox_metrics(state.outbox, [queue.queue for queue in state.queues])
            yield from _database_metrics(state.database)


async def _scraped_state(services: ApiServices) -> ScrapedState | None:
    settings = services.settings
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            queues = await services.reads.queues(
                settings.known_queues, settings.job_queue_name, within_seconds=services.alive_within
            )
            return ScrapedState(queues, await services.reads.database_facts(), await services.reads.outbox_facts())
    except (TimeoutError, DagmasterError):
        return None


def orchestrator_metrics(services: ApiServices) -> Iterable[Metric]:
    if services.orchestrator:
        yield from OrchestratorHealth(services.orchestrator).metrics()


_VALUES: tuple[tuple[str, str, Callable[[QueueSummary], float | None]], ...] = (
    ("depth", "Messages or tasks that wait", lambda queue: queue.depth),
    (
        "oldest_seconds",
        "Age of the message or task that has waited longest",
        lambda queue: queue.oldest_age_seconds or 0.0,
    ),
    ("running", "Tasks that run", lambda queue: queue.running_count),
    ("workers", "Live workers", lambda queue: queue.live_workers),
    ("paused", "1 if the queue is paused, so that none of its tasks is started", lambda queue: queue.is_paused),
    ("enqueued_per_minute", "Tasks written in the last minute", lambda queue: queue.enqueued_per_minute),
    ("started_per_minute", "Tasks started in the last minute", lambda queue: queue.started_per_minute),
    ("finished_per_minute", "Tasks finished in the last minute", lambda queue: queue.finished_per_minute),
)


def _queue_metrics(queues: Iterable[QueueSummary]) -> Iterable[Metric]:
    for name, meaning, value in _VALUES:
        samples: dict[tuple[str, ...], float] = {(queue.queue,): float(value(queue) or 0) for queue in queues}
        yield gauges(f"dagmaster_queue_{name}", f"{meaning}, by queue", ("queue",), samples)


_OUTBOX_VALUES: tuple[tuple[str, str, Callable[[OutboxFacts], float]], ...] = (
    (
        "messages",
        "Ids of tasks that are not sent to the message broker yet, 100,000 at most",
        lambda facts: facts.messages,
    ),
    (
        "postponed",
        "Ids of tasks that the message broker has not accepted and that will be sent again",
        lambda facts: facts.postponed,
    ),
    ("oldest_seconds", "Age of the id that has waited longest", lambda facts: facts.oldest_seconds),
)


def _outbox_metrics(outbox: Iterable[OutboxFacts], queues: Iterable[str]) -> Iterable[Metric]:
    """All values are zero with the transport `postgres`, which does not use the outbox."""
    for name, meaning, value in _OUTBOX_VALUES:
        samples: dict[tuple[str, ...], float] = {(queue,): 0.0 for queue in queues}
        samples |= {(facts.queue,): float(value(facts)) for facts in outbox}
        yield gauges(f"dagmaster_outbox_{name}", f"{meaning}, by queue", ("queue",), samples)


def _database_metrics(facts: DatabaseFacts) -> Iterable[Metric]:
    yield gauge("dagmaster_database_size_bytes", "Size of the database", facts.size_bytes)
    yield gauge("dagmaster_database_connections", "Connections of all clients", facts.connections)
    yield gauge("dagmaster_database_max_connections", "Connections that the server allows", facts.max_connections)
    yield gauge(
        "dagmaster_database_oldest_transaction_seconds",
        "Age of the oldest open transaction; VACUUM cannot remove rows deleted since then",
        facts.oldest_transaction_seconds,
    )
    tables = sorted(facts.rows_by_table.items())
    for name, meaning, samples in (
        ("live_rows", "Rows", {(table,): float(rows.live) for table, rows in tables}),
        ("dead_rows", "Rows to be removed by VACUUM", {(table,): float(rows.dead) for table, rows in tables}),
    ):
        yield gauges(f"dagmaster_database_{name}", f"{meaning}, as PostgreSQL estimates", ("table",), samples)
    yield gauge("dagmaster_callbacks_pending", "Callbacks that are not delivered yet", facts.pending_callbacks)
    yield gauge(
        "dagmaster_callbacks_overdue_seconds",
        "Seconds since the oldest callback that is due should have been sent",
        facts.callback_overdue_seconds,
    )
    yield gauge("dagmaster_jobs_active", "Jobs that have not ended", facts.active_jobs)
    yield gauge("dagmaster_dead_letters", "Stored dead letters", facts.dead_letters)
