"""The bell: hints between processes that something may have changed. Never data, never needed for correctness.

The first ring goes out at once; rings that follow within `COALESCE_SECONDS` are gathered into one. (Gathering for longer slows
chains of short tasks down: each step rings soon after the one before.) Whoever
listens must look by itself after connecting, and now and then anyway.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

COALESCE_SECONDS = 0.002

JOBS = "jobs"  # a job was created or given back
RESULTS = "results"  # a worker reported, or a task has run for a while


def tasks_topic(queue: str, worker_id: str | None = None) -> str:
    """A queue has tasks; or it has one that this worker should take."""
    return f"tasks:{queue}" if worker_id is None else f"tasks:{queue}@{worker_id}"


class Notifier(Protocol):
    def notify(self, *topics: str) -> None:
        """Tell the others, soon; never waits, never fails."""
        ...

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        """The topics that rang since the last call; empty after the timeout."""
        ...

    async def close(self) -> None: ...


class MemoryExchange:
    """What the bells of one process, or of a simulation, are connected by."""

    def __init__(self) -> None:
        self.notifiers: list[MemoryNotifier] = []

    def notifier(self, *topics: str) -> "MemoryNotifier":
        notifier = MemoryNotifier(self, frozenset(topics))
        self.notifiers.append(notifier)
        return notifier


class MemoryNotifier:
    """The bell's twin in memory."""

    def __init__(self, exchange: MemoryExchange, topics: frozenset[str]) -> None:
        self._exchange = exchange
        self._topics = topics
        self._heard: set[str] = set()
        self._wake = asyncio.Event()

    def notify(self, *topics: str) -> None:
        for notifier in self._exchange.notifiers:
            notifier.hear(topics)

    def hear(self, topics: Iterable[str]) -> None:
        heard = self._topics.intersection(topics)
        if heard:
            self._heard |= heard
            self._wake.set()

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wake.wait()
        except TimeoutError:
            return frozenset()
        heard, self._heard = frozenset(self._heard), set()
        self._wake.clear()
        return heard

    async def close(self) -> None:
        self._exchange.notifiers.remove(self)
