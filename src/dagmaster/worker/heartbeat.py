"""Keeps the leases of running tasks, and shows that the worker lives.

On a connection of its own, so that a long exchange never costs a lease. When renewals fail nothing is stopped: whether
a late report counts is decided by the database, and the outage may be over before anyone else has claimed the task.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dagmaster.database.ledger.protocol import Ledger, Running, WorkerInfo
from dagmaster.observe import log

PROGRESS_SECONDS = 0.5  # people see progress, and handlers hear that they are to stop, about as soon

_log = log.get("worker")


@dataclass(frozen=True, slots=True)
class Held:
    """What the keeper needs to know of the worker, at the moment it asks."""

    everything: Callable[[], Collection[Running]]
    with_news: Callable[[], Collection[Running]]  # those that have progress to tell
    info: Callable[[], WorkerInfo]
    lost: Callable[[Iterable[str]], None]  # these are someone else's now: stop them
    to_stop: Callable[[Iterable[str]], None]  # these are ours, and shall end


class LeaseKeeper:
    """Renews every lease at the set rate, and sooner those of tasks that have progress to tell."""

    def __init__(
        self,
        ledger: Ledger,
        held: Held,
        *,
        lease_seconds: float,
        renew_seconds: float,
        progress_seconds: float = PROGRESS_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self._ledger = ledger
        self._held = held
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._progress_seconds = progress_seconds
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._is_failing = False
        self.renewed_at: float | None = None  # on the monotonic clock

    async def run(self) -> None:
        """Beat at once, then go on until cancelled."""
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            started = loop.time()
            is_due = started >= due_at
            if await self._attempt(is_due) and is_due:
                due_at = started + self._renew_seconds
            await asyncio.sleep(self._nap_seconds(due_at - loop.time()))

    def _nap_seconds(self, until_due: float) -> float:
        nap = min(self._renew_seconds, self._progress_seconds)
        if self._is_failing:
            # An outage ends for all workers at once: they shall not come back in step.
            return nap * self._rng.uniform(0.5, 1.0)
        return max(0.0, min(nap, until_due))

    async def _attempt(self, is_due: bool) -> bool:
        """Renew what is due; False when it could not be done."""
        try:
            async with asyncio.timeout(self._lease_seconds):
                await self._renew(is_due)
        except Exception as error:  # whatever it is: a keeper that ends loses every task
            if not self._is_failing:
                _log.warning("leases can't be renewed for now", error=str(error) or type(error).__name__)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def _renew(self, is_due: bool) -> None:
        info = self._held.info()
        running = self._held.everything() if is_due else self._held.with_news()
        if running:
            gone = await self._ledger.renew(info.worker_id, list(running), lease_seconds=self._lease_seconds)
            if gone:
                self._held.lost(gone)
        if self._held.everything() and (asked := await self._ledger.take_stops(info.worker_id)):
            self._held.to_stop(asked)
        if is_due:
            await self._ledger.beat_worker(info)
            self.renewed_at = time.monotonic()
