"""Results that are kept for a while, and loaded once for all requests that wait for them."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")
_MAX_KEPT = 1024


class SharedTasks(Generic[V]):
    """Results by key. Those that were used least recently are dropped first; errors are not kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_kept: int = _MAX_KEPT) -> None:
        self._clock = clock
        self._max_kept = max_kept
        self._tasks: OrderedDict[Hashable, tuple[asyncio.Task[V], float]] = OrderedDict()

    async def get(self, key: Hashable, load: Callable[[], Awaitable[V]], seconds: float = math.inf) -> V:
        """The result for a key, loaded now if there is none, and then kept for this many seconds."""
        task, expires_at = self._tasks.get(key, (None, 0.0))
        if task is None or self._clock() >= expires_at or _has_failed(task):
            task = asyncio.ensure_future(_awaited(load))
            # Retrieve the error: otherwise asyncio logs "never retrieved" if every waiting request was cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._tasks[key] = task, self._clock() + seconds
        self._tasks.move_to_end(key)
        while len(self._tasks) > self._max_kept:
            self._tasks.popitem(last=False)
        # Shielded: a request that is cancelled does not cancel the task that others wait for.
        return await asyncio.shield(task)

    def clear(self) -> None:
        self._tasks.clear()


async def _awaited(load: Callable[[], Awaitable[V]]) -> V:
    return await load()


def _has_failed(task: "asyncio.Task[V]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
