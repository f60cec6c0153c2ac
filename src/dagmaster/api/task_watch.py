"""Notify waiting workers of tasks: one query of the database for all of them.

    worker ──▶ wait(queues, handlers) ─┐
    worker ──▶ wait(queues, handlers) ─┼─▶ a notification of a queue, or the poll interval ──▶ one query
    worker ──▶ wait(queues, handlers) ─┘     └─▶ a few of the workers that can run what is queued ──▶ they claim

The query returns the handlers that have queued tasks on queues which are neither paused nor full. So a task that no
waiting worker can run wakes no worker. Only a few workers are woken at once; the others follow while tasks are left. An
idle platform runs one query in each poll interval, however many workers wait.

The result is a hint, like a notification: the worker claims in the ledger, and may find no task.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.reads.remote_workers import ClaimableHandler
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.observe import log

MAX_WAITING = 5000
WOKEN_AT_ONCE = 8
NEXT_QUERY_SECONDS = 0.02  # until the next query, if more workers can be woken
MIN_PAUSE_SECONDS = 0.005  # between two queries
_log = log.get("api")


class ClaimableReads(Protocol):
    async def claimable_handlers(self, queues: Collection[str]) -> list[ClaimableHandler]: ...


@dataclass(eq=False, slots=True)
class _Waiting:
    queues: frozenset[str]
    handlers: frozenset[str]
    woken: "asyncio.Future[frozenset[str]]"

    def served(self, claimable: Collection[ClaimableHandler]) -> frozenset[str]:
        """The queues that have tasks for this worker."""
        return frozenset(
            each.queue for each in claimable if each.queue in self.queues and each.handler in self.handlers
        )


class TaskWatch:
    """`topics` are the notifications of queues. `open_notifier` is called when the first worker waits: without such
    workers, no connection is opened."""

    def __init__(
        self,
        reads: ClaimableReads,
        topics: Mapping[str, str],
        open_notifier: Callable[[], Notifier],
        poll_seconds: float,
    ) -> None:
        self._reads = reads
        self._topics = topics
        self._open_notifier = open_notifier
        self._poll_seconds = poll_seconds
        self._notifier: Notifier | None = None
        self._waiting: dict[_Waiting, None] = {}  # in the order of their arrival
        self._claimable: Collection[ClaimableHandler] = ()  # at the last query
        self._query_is_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def wait(self, queues: Collection[str], handlers: Collection[str], seconds: float) -> frozenset[str]:
        """The queues that have tasks which these handlers can run; empty after `seconds`, and when the server stops."""
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable("too many workers wait for tasks", code="worker.too-many", hint="try again later")
        if self._is_closing or not handlers:
            return frozenset()
        self._start()
        waiting = _Waiting(frozenset(queues), frozenset(handlers), asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        if len(self._waiting) == 1 or waiting.served(self._claimable):
            self._query_is_due.set()  # the result of the last query may be outdated
        try:
            async with asyncio.timeout(seconds):
                return await waiting.woken
        except TimeoutError:
            return frozenset()
        finally:
            self._waiting.pop(waiting, None)

    async def close(self) -> None:
        """Let all calls of `wait` return. The workers continue at another instance."""
        self._is_closing = True
        for waiting in tuple(self._waiting):
            self._wake(waiting, frozenset())
        await cancel_and_wait(*self._tasks)
        if self._notifier is not None:
            notifier, self._notifier = self._notifier, None
            await notifier.close()

    def _start(self) -> None:
        if not self._tasks:
            self._notifier = notifier = self._open_notifier()
            self._tasks = [
                asyncio.create_task(self._listen(notifier), name="task-watch-listen"),
                asyncio.create_task(self._run(), name="task-watch"),
            ]

    async def _listen(self, notifier: Notifier) -> None:
        while True:
            topics = await notifier.wait(3600.0)
            queues = {self._topics[topic] for topic in topics & self._topics.keys()}
            if any(queues & waiting.queues for waiting in self._waiting):
                self._query_is_due.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._query_is_due.wait()
            self._query_is_due.clear()
            if not self._waiting:
                self._claimable = ()
                continue
            try:
                await self._wake_some()
            except DagmasterError as error:
                _log.warning("waiting workers cannot be notified of tasks, trying again", error=error.message)
                await asyncio.sleep(self._poll_seconds)
            except Exception as error:  # workers also poll without being woken, but rarely
                _log.error("watching queues failed, trying again", exc_info=error)
                await asyncio.sleep(self._poll_seconds)
            await asyncio.sleep(MIN_PAUSE_SECONDS)

    async def _wake_some(self) -> None:
        queues = {queue for waiting in self._waiting for queue in waiting.queues}
        self._claimable = await self._reads.claimable_handlers(queues)
        woken = 0
        for waiting in tuple(self._waiting):
            if served := waiting.served(self._claimable):
                if woken == WOKEN_AT_ONCE:
                    asyncio.get_running_loop().call_later(NEXT_QUERY_SECONDS, self._query_is_due.set)
                    return
                self._wake(waiting, served)
                woken += 1

    def _wake(self, waiting: _Waiting, queues: frozenset[str]) -> None:
        self._waiting.pop(waiting, None)
        if not waiting.woken.done():
            waiting.woken.set_result(queues)
