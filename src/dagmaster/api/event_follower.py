"""Live events: one follower per process, any number of watchers.

    a notification, or every half second ──▶ one query for the last sequence number of all watched jobs
                                         ──▶ new events are read once per job  ──▶ every watcher of that job
                                         ──▶ the progress of running attempts  ──▶ at most once per second

A watcher has a cursor: the sequence number of the last event it received. The numbers of a job have no gaps, so no
event is missed or repeated. A watcher that needs events that are no longer in memory reads them through the pool.
Progress is not an event: it has no number, and only the latest progress is sent.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from dagmaster.api.follower import Follower
from dagmaster.client.models.jobs import EventEntry
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.reads.api import ApiReads
from dagmaster.database.reads.jobs import EventPosition, JobBrief
from dagmaster.database.reads.nodes import ReportedProgress
from dagmaster.errors import Unavailable
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.observe import log

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 1.0  # between two progress updates of a job
_PROGRESS_POLL_SECONDS = 0.4
# A worker notifies before the orchestrator has written the event: poll soon, then at longer intervals.
_AFTER_NOTIFICATION = (0.03, 0.06, 0.12, 0.25)
_SETTLE_SECONDS = 0.02
_KEPT_EVENTS = 2000
_PAGE = 500
_BATCH = 100
_log = log.get("api")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of the running attempts of a job."""

    nodes: tuple[ReportedProgress, ...]


WatchedUpdate = Sequence[EventEntry] | JobProgress | None  # None keeps the connection open


class WatchedJob:
    """A job with watchers. `head` and `status` were read together; `_recent` are the last events up to `head`."""

    def __init__(self, brief: JobBrief) -> None:
        self.head = brief.last_sequence
        self.status: JobStatus = brief.status
        self.watchers = 0
        self.changed = asyncio.Event()
        self.progress = JobProgress(())
        self._progress_at = 0.0
        self._recent: deque[EventEntry] = deque(maxlen=_KEPT_EVENTS)

    def since(self, after: int) -> list[EventEntry] | None:
        """The events after a sequence number, or None if they are not in memory."""
        if not self._recent or self._recent[0].sequence > after + 1:
            return None
        return list(islice(self._recent, after + 1 - self._recent[0].sequence, None))

    def advance(self, head: EventPosition, events: list[EventEntry]) -> None:
        if events and self._recent and events[0].sequence != self._recent[-1].sequence + 1:
            self._recent.clear()
        self._recent.extend(events)
        self.head, self.status = head.last_sequence, head.status
        self.wake()

    def report(self, progress: JobProgress) -> None:
        """Pass progress on to the watchers, if it is new and the last update was long enough ago."""
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


class EventFollower(Follower):
    subject = "events"

    def __init__(self, reads: ApiReads, notifier: Notifier) -> None:
        super().__init__(reads)
        self._notifier = notifier
        self._jobs: dict[UUID, WatchedJob] = {}
        self._progress_polled_at = 0.0

    @property
    def watchers(self) -> int:
        return sum(job.watchers for job in self._jobs.values())

    def _wake_all(self) -> None:
        for job in self._jobs.values():
            job.wake()

    async def watch(
        self, job_id: UUID, brief: JobBrief, after: int, heartbeat_seconds: float
    ) -> AsyncIterator[WatchedUpdate]:
        """Events after a sequence number, in batches, and progress, until the job has ended. None after each heartbeat
        interval without an update. The event loop runs between two batches, so that it notices when the watcher has
        left."""
        with self._watching(job_id, brief) as job:
            sent = JobProgress(())
            while not self._is_closing:
                changed, head, status = job.changed, job.head, job.status
                while after < head:
                    page = job.since(after) or await self._page(job_id, after)
                    if page is None:
                        return  # the events cannot be read: the client reconnects
                    for first in range(0, len(page), _BATCH):
                        batch = page[first : first + _BATCH]
                        yield batch
                        after = batch[-1].sequence
                        await asyncio.sleep(0)
                    if not page:
                        after = head  # the events were deleted
                if status in JOB_TERMINAL and after >= head:
                    return
                if sent is not job.progress:
                    sent = job.progress
                    if sent.nodes:
                        yield sent
                        continue  # there may be new events
                try:
                    async with asyncio.timeout(heartbeat_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    async def _page(self, job_id: UUID, after: int) -> list[EventEntry] | None:
        try:
            return await self._complete(self._reads.page_events(job_id, limit=_PAGE, after=after))
        except Unavailable as error:
            _log.warning("a stream ends because its events cannot be read", job_id=str(job_id), error=error.message)
            return None

    @contextmanager
    def _watching(self, job_id: UUID, brief: JobBrief) -> Iterator[WatchedJob]:
        job = self._jobs.setdefault(job_id, WatchedJob(brief))
        job.watchers += 1
        self._watcher_arrived.set()
        try:
            yield job
        finally:
            job.watchers -= 1
            if not job.watchers:
                self._jobs.pop(job_id, None)

    async def _run(self) -> None:
        pauses: deque[float] = deque()
        while True:
            if not self._jobs:
                self._watcher_arrived.clear()
                await self._watcher_arrived.wait()
            await self._poll_safely()
            if await self._notifier.wait(pauses.popleft() if pauses else POLL_SECONDS):
                pauses = deque(_AFTER_NOTIFICATION)
                await asyncio.sleep(_SETTLE_SECONDS)

    async def _poll(self) -> None:
        for head in await self._reads.heads(list(self._jobs)):
            job = self._jobs.get(head.job_id)
            if job is not None and head.last_sequence > job.head:
                job.advance(head, await self._new_events(job, head))
        if time.monotonic() - self._progress_polled_at >= _PROGRESS_POLL_SECONDS:
            self._progress_polled_at = time.monotonic()
            await self._poll_progress()

    async def _poll_progress(self) -> None:
        progress: dict[UUID, list[ReportedProgress]] = defaultdict(list)
        for node in await self._reads.progress(list(self._jobs)):
            progress[node.job_id].append(node)
        for job_id, job in self._jobs.items():
            job.report(JobProgress(tuple(progress[job_id])))

    async def _new_events(self, job: WatchedJob, head: EventPosition) -> list[EventEntry]:
        """The events up to `head`. If there are too many to keep in memory, none: watchers read them from the
        database."""
        if head.last_sequence - job.head > _KEPT_EVENTS:
            job.forget()
            return []
        events: list[EventEntry] = []
        after = job.head
        while after < head.last_sequence:
            limit = min(_PAGE, head.last_sequence - after)
            page = await self._reads.page_events(head.job_id, limit=limit, after=after)
            if not page:
                job.forget()
                return []
            events += page
            after = page[-1].sequence
        return events
