"""The base class of followers. A follower polls the database while there are watchers, and passes changes to them; a
process has one of each kind.

A watcher may leave at any time, which cancels its task. A running query is not cancelled by that, because the pool
would lose its connection.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.reads.api import ApiReads
from dagmaster.errors import Unavailable
from dagmaster.observe import log

MAX_WATCHERS = 1000
_RETRY_SECONDS = 1.0
T = TypeVar("T")
_log = log.get("api")


class Follower(ABC):
    """Call `start` inside a running event loop. Without watchers it runs no queries. `subject` names what it reads, for
    messages."""

    subject: ClassVar[str]

    def __init__(self, reads: ApiReads) -> None:
        self._reads = reads
        self._watcher_arrived = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[Any]] = set()

    @property
    @abstractmethod
    def watchers(self) -> int: ...

    @abstractmethod
    async def _run(self) -> None:
        """Poll until cancelled, whenever there are watchers."""

    @abstractmethod
    async def _poll(self) -> None:
        """Read what is new, and wake the watchers that it concerns."""

    @abstractmethod
    def _wake_all(self) -> None: ...

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"api-follower-of-{self.subject}")

    async def close(self) -> None:
        """End every stream. Clients may continue them at another instance."""
        self._is_closing = True
        self._wake_all()
        if self._task is not None:
            await cancel_and_wait(self._task)
        await asyncio.gather(*self._reading, return_exceptions=True)

    def admit(self) -> None:
        """Raise an error if there are too many watchers. Called before a stream begins."""
        if self.watchers >= MAX_WATCHERS:
            raise Unavailable(
                f"too many streams of {self.subject} are open", code="stream.too-many", hint="try again later"
            )

    async def _poll_safely(self) -> None:
        try:
            await self._complete(self._poll())
        except Exception as error:  # the streams must continue
            log.failure(_log, f"{self.subject} cannot be read, trying again", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _complete(self, reading: Coroutine[Any, Any, T]) -> T:
        """Complete a query even if its watcher has left."""
        task = asyncio.create_task(reading)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return await asyncio.shield(task)
