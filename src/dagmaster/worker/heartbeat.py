"""Renews the leases of running tasks and sends the worker's heartbeat.

It uses its own connection, so that a long exchange never delays a renewal. When renewals fail, no task is stopped: the
database decides whether a late report counts, and the outage may end before another worker claims the task.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dagmaster.database.ledger.protocol import Running, WorkerInfo, WorkerLedger
from dagmaster.observe import log

PROGRESS_SECONDS = 0.5  # how long progress and requests to stop may wait

_log = log.get("worker")


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The worker as the lease keeper sees it: callables that return its current state, or react to a renewal."""

    all_tasks: Callable[[], Collection[Running]]
    with_updates: Callable[[], Collection[Running]]  # tasks with new progress or log lines
    info: Callable[[], WorkerInfo]
    on_lost: Callable[[Iterable[str]], None]  # called with tasks that another worker holds now
    on_stop: Callable[[Iterable[str]], None]  # called with tasks that are requested to stop


class LeaseKeeper:
    """Renews every lease at the configured interval; leases of tasks with new progress are renewed earlier."""

    def __init__(
        self,
        ledger: WorkerLedger,
        held_tasks: HeldTasks,
        *,
        lease_seconds: float,
        renew_seconds: float,
        progress_seconds: float = PROGRESS_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self._ledger = ledger
        self._held_tasks = held_tasks
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._progress_seconds = progress_seconds
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._is_failing = False
        self.renewed_at: float | None = None  # on the monotonic clock

    async def run(self) -> None:
        """Send a heartbeat at once, then renew until cancelled."""
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            started = loop.time()
            is_due = started >= due_at
            if await self._attempt(is_due) and is_due:
                due_at = started + self._renew_seconds
            await asyncio.sleep(self._sleep_seconds(due_at - loop.time()))

    def _sleep_seconds(self, until_due: float) -> float:
        interval = min(self._renew_seconds, self._progress_seconds)
        if self._is_failing:
            # An outage ends for all workers at the same time; jitter keeps them from retrying in step.
            return interval * self._rng.uniform(0.5, 1.0)
        return max(0.0, min(interval, until_due))

    async def _attempt(self, is_due: bool) -> bool:
        """Renew the leases that are due. Returns False if that failed."""
        try:
            async with asyncio.timeout(self._lease_seconds):
                await self._renew(is_due)
        except Exception as error:  # a lease keeper that ends would lose every task
            if not self._is_failing:
                log.failure(_log, "leases could not be renewed; trying again", error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def _renew(self, is_due: bool) -> None:
        info = self._held_tasks.info()
        running = self._held_tasks.all_tasks() if is_due else self._held_tasks.with_updates()
        if running:
            lost_ids = await self._ledger.renew(info.worker_id, list(running), lease_seconds=self._lease_seconds)
            if lost_ids:
                self._held_tasks.on_lost(lost_ids)
        if self._held_tasks.all_tasks() and (stop_ids := await self._ledger.take_stops(info.worker_id)):
            self._held_tasks.on_stop(stop_ids)
        if is_due:
            await self._ledger.beat_worker(info)
            self.renewed_at = time.monotonic()
