"""Live events: one follower for the whole process, any number of watchers.

    bell, or every half second ──▶ one look at how far all watched jobs have come
                               ──▶ of each that moved, the new events are read once ──▶ every watcher of that job
                               ──▶ what running attempts say of their progress      ──▶ at most once a second

A watcher has a cursor, the number of the last event it was given. Numbers of a job have no gaps, so nothing is missed or
given twice, whatever happens in between. One that is behind what is kept in memory reads the rest through the pool.
Progress is no event: it has no number, and of it only the latest counts.

A watcher may leave at any moment, which cancels its task. A question to the database is never cut off by that: its connection
would be lost to the pool.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.reads.jobs import EventEntry
from dagmaster.database.reads.pages import ApiReads, EventPosition, JobBrief, NodeProgress
from dagmaster.errors import Unavailable
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.observe import log

POLL_SECONDS = 0.5
MOST_WATCHERS = 1000
PROGRESS_SECONDS = 1.0  # between two tellings of a job
_PROGRESS_LOOK_SECONDS = 0.4
# A worker's ring comes before the orchestrator has written the event: look again soon, then less soon.
_AFTER_A_RING = (0.03, 0.06, 0.12, 0.25)
_BREATH_SECONDS = 0.02
_KEPT = 2000
_PAGE = 500
_TOLD_AT_ONCE = 100
_log = log.get("api")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the running attempts of a job are."""

    nodes: tuple[NodeProgress, ...]


News = Sequence[EventEntry] | Progress | None


class Channel:
    """A watched job. `head` and `status` are of one moment; `recent` are the last events up to it."""

    def __init__(self, brief: JobBrief) -> None:
        self.head = brief.last_sequence
        self.status: JobStatus = brief.status
        self.watchers = 0
        self.changed = asyncio.Event()
        self.progress = Progress(())
        self._progress_at = 0.0
        self._recent: deque[EventEntry] = deque(maxlen=_KEPT)

    def since(self, after: int) -> list[EventEntry] | None:
        """The events behind a number, or None where they are no longer at hand."""
        if not self._recent or self._recent[0].sequence > after + 1:
            return None
        return list(islice(self._recent, after + 1 - self._recent[0].sequence, None))

    def move(self, head: EventPosition, events: list[EventEntry]) -> None:
        if events and self._recent and events[0].sequence != self._recent[-1].sequence + 1:
            self._recent.clear()
        self._recent.extend(events)
        self.head, self.status = head.last_sequence, head.status
        self.wake()

    def tell(self, progress: Progress) -> None:
        """Pass progress on, if it is new and the last one was a while ago."""
        now = time.monotonic()
        if not progress.nodes:
            self.progress = progress
        elif progress != self.progress and now - self._progress_at >= PROGRESS_SECONDS:
            self.progress, self._progress_at = progress, now
            self.wake()

    def forget(self) -> None:
        self._recent.clear()

    def wake(self) -> None:
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()


class Follower:
    """`start` it inside a running loop. Without watchers it asks nothing."""

    def __init__(self, reads: ApiReads, notifier: Notifier) -> None:
        self._reads = reads
        self._notifier = notifier
        self._channels: dict[UUID, Channel] = {}
        self._wanted = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[Any]] = set()
        self._progress_looked_at = 0.0

    @property
    def watchers(self) -> int:
        return sum(channel.watchers for channel in self._channels.values())

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="api-follower")

    async def close(self) -> None:
        """End every stream; each may be taken up again elsewhere, where it stopped."""
        self._is_closing = True
        for channel in self._channels.values():
            channel.wake()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*self._reading, return_exceptions=True)

    def admit(self) -> None:
        """Refuse one watcher too many, before its stream has begun."""
        if self.watchers >= MOST_WATCHERS:
            raise Unavailable("too many streams are open", code="stream.too-many", hint="try again later")

    async def watch(self, job_id: UUID, brief: JobBrief, after: int, heartbeat_seconds: float) -> AsyncIterator[News]:
        """Events behind `after`, some at a time, and progress, until the job is over; None as a sign of life where nothing
        happens. Between two tellings the loop has its turn, or nobody would hear that the watcher has left."""
        with self._watching(job_id, brief) as channel:
            told = Progress(())
            while not self._is_closing:
                changed, head, status = channel.changed, channel.head, channel.status
                while after < head:
                    page = channel.since(after) or await self._page(job_id, after)
                    for first in range(0, len(page), _TOLD_AT_ONCE):
                        some = page[first : first + _TOLD_AT_ONCE]
                        yield some
                        after = some[-1].sequence
                        await asyncio.sleep(0)
                    if not page:
                        return  # not there to be read: whoever watches asks again
                if status in JOB_TERMINAL and after == head:
                    return
                if told is not channel.progress:
                    told = channel.progress
                    if told.nodes:
                        yield told
                        continue  # something may have happened meanwhile
                try:
                    async with asyncio.timeout(heartbeat_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    async def _page(self, job_id: UUID, after: int) -> list[EventEntry]:
        try:
            return await self._whole(self._reads.page_events(job_id, limit=_PAGE, after=after))
        except Unavailable as error:
            _log.warning("a stream ends, its events can't be read", job_id=str(job_id), error=error.message)
            return []

    async def _whole(self, reading: Coroutine[Any, Any, T]) -> T:
        """Read to the end, even if nobody waits for it any more."""
        task = asyncio.create_task(reading)
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return await asyncio.shield(task)

    @contextmanager
    def _watching(self, job_id: UUID, brief: JobBrief) -> Iterator[Channel]:
        channel = self._channels.setdefault(job_id, Channel(brief))
        channel.watchers += 1
        self._wanted.set()
        try:
            yield channel
        finally:
            channel.watchers -= 1
            if not channel.watchers:
                self._channels.pop(job_id, None)

    async def _run(self) -> None:
        soon: deque[float] = deque()
        while True:
            if not self._channels:
                self._wanted.clear()
                await self._wanted.wait()
            await self._look_safely()
            if await self._notifier.wait(soon.popleft() if soon else POLL_SECONDS):
                soon = deque(_AFTER_A_RING)
                await asyncio.sleep(_BREATH_SECONDS)

    async def _look_safely(self) -> None:
        try:
            await self._whole(self._look())
        except Unavailable as error:
            _log.warning("events can't be followed for now", error=error.message)
            await asyncio.sleep(1.0)
        except Exception as error:  # whatever it is, the streams of other jobs go on
            _log.error("following events failed, trying again", exc_info=error)
            await asyncio.sleep(1.0)

    async def _look(self) -> None:
        for head in await self._reads.heads(list(self._channels)):
            channel = self._channels.get(head.job_id)
            if channel is not None and head.last_sequence > channel.head:
                channel.move(head, await self._news(channel, head))
        if time.monotonic() - self._progress_looked_at >= _PROGRESS_LOOK_SECONDS:
            self._progress_looked_at = time.monotonic()
            await self._look_at_progress()

    async def _look_at_progress(self) -> None:
        found: dict[UUID, list[NodeProgress]] = defaultdict(list)
        for node in await self._reads.progress(list(self._channels)):
            found[node.job_id].append(node)
        for job_id, channel in self._channels.items():
            channel.tell(Progress(tuple(found[job_id])))

    async def _news(self, channel: Channel, head: EventPosition) -> list[EventEntry]:
        """What happened up to a moment. Of too much nothing is kept: watchers read it by themselves."""
        if head.last_sequence - channel.head > _KEPT:
            channel.forget()
            return []
        events: list[EventEntry] = []
        after = channel.head
        while after < head.last_sequence:
            limit = min(_PAGE, head.last_sequence - after)
            page = await self._reads.page_events(head.job_id, limit=limit, after=after)
            if not page:
                channel.forget()
                return []
            events += page
            after = page[-1].sequence
        return events
