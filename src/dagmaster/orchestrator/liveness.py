"""The heartbeat of an orchestrator, and how long its loop has been silent.

A loop that is stuck sends no heartbeat, so that other instances claim its jobs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dagmaster.database.ledger.protocol import OrchestratorInfo, OrchestratorLedger
from dagmaster.jobs.plan import Planner
from dagmaster.observe import log
from dagmaster.observe.rates import RateMeter
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.orchestrator.job_queue import JobQueue
from dagmaster.orchestrator.owned import Owned
from dagmaster.orchestrator.relay import Relay
from dagmaster.settings import Settings

_log = log.get("orchestrator")


@dataclass(slots=True)
class OrchestratorCounters:
    cycles: int = 0
    claimed: int = 0
    reclaimed: int = 0
    advanced: int = 0
    fenced: int = 0
    finished: int = 0
    dispatched: int = 0
    results: int = 0
    errors: int = 0
    messages: int = 0


class OrchestratorLiveness:
    """The part of an `Orchestrator` that sends its heartbeat."""

    settings: Settings
    beat_ledger: OrchestratorLedger
    sleep: Callable[[float], Awaitable[None]]
    started_at: float | None
    heartbeat_at: float | None
    scanned_at: float | None
    counters: OrchestratorCounters
    enqueued: RateMeter  # tasks by queue
    planner: Planner
    janitor: Janitor | None
    callbacks: CallbackSender | None
    relay: Relay | None
    job_queue: JobQueue | None
    host: str
    pid: int
    software_version: str
    owner_id: UUID
    _owned: dict[UUID, Owned]
    _is_stopping: asyncio.Event
    _progressed_at: float
    _next_scan: float

    def info(self) -> OrchestratorInfo:
        stats: dict[str, Any] = {
            name: getattr(self.counters, name) for name in OrchestratorCounters.__dataclass_fields__
        }
        stats["jobs"] = len(self._owned)
        stats["enqueued_per_minute"] = self.enqueued.per_minute()
        if self.janitor is not None:
            stats["janitor"] = self.janitor.stats()
        if self.callbacks is not None:
            stats["callbacks"] = self.callbacks.stats()
        if self.relay is not None:
            stats["relay"] = self.relay.stats()
        if self.job_queue is not None:
            stats["job_queue"] = self.job_queue.stats()
        router = self.planner.router
        return OrchestratorInfo(
            self.owner_id,
            self.host,
            self.pid,
            self.software_version,
            stats,
            router.routable_handlers(),
            sorted(router.queues),
        )

    @property
    def owned_count(self) -> int:
        """The number of jobs that it owns. Other threads may read it."""
        return len(self._owned)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the loop last made progress. Other threads may read it."""
        return time.monotonic() - self._progressed_at if self._progressed_at else 0.0

    @property
    def stuck_after_seconds(self) -> float:
        """A loop that has been silent for longer sends no more heartbeats."""
        return max(self.settings.orphan_threshold_sec / 2, 3 * self.settings.orchestrator_poll_interval)

    @property
    def restart_after_seconds(self) -> float:
        """After this time others may have claimed its jobs, and a restart is better than more waiting."""
        return self.stuck_after_seconds + self.settings.orphan_threshold_sec

    async def _send_first_heartbeat(self) -> None:
        """The first heartbeat precedes the first claim, or other instances would claim our jobs as orphans."""
        while not self._is_stopping.is_set():
            try:
                await self.beat_ledger.beat(self.info())
                self.heartbeat_at = self._now()
                return
            except Exception as error:  # the next heartbeat may succeed
                log.failure(_log, "waiting for the database", error)
                await self.sleep(1.0)

    async def _beat(self) -> None:
        while True:
            await self.sleep(self.settings.heartbeat_interval_sec)
            silent = self._now() - self._progressed_at
            if silent > self.stuck_after_seconds:
                _log.error("the loop is stuck, so no heartbeat is sent", seconds=round(silent, 1))
                continue
            try:
                await self.beat_ledger.beat(self.info())
                self._note_beat()
            except Exception as error:  # an instance without heartbeats loses its jobs
                log.failure(_log, "heartbeat failed", error)

    def _note_beat(self) -> None:
        """After an outage, other instances may have been disconnected too: they get time for a heartbeat before they
        count as dead."""
        now = self._now()
        if self.heartbeat_at is not None and now - self.heartbeat_at > self.settings.orphan_threshold_sec:
            self._next_scan = max(self._next_scan, now + self.settings.heartbeat_interval_sec)
        self.heartbeat_at = now
