"""Changes of the whole platform: one follower per process, any number of watchers.

    every half second, while there are watchers ──▶ one query each for jobs and assets that changed since the last poll
                                                ──▶ one batch with the latest state of each, kept with the last batches
                                                ──▶ each watcher takes the batches after its own position

A cursor is a time by the database's clock. Rows become visible when their transaction commits, which is later than the
time in them: each poll therefore reads a few seconds twice, a longer period from time to time, and drops what it has
sent already. A cursor is valid for every instance of the API.

Memory and traffic are limited: a fixed number of batches is kept, and the size of a batch is limited. A watcher that
has missed a batch, or that was away for too long, gets a `resync` instead: it must load its whole state again.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import UUID

import orjson

from dagmaster.api.follower import Follower
from dagmaster.client.models.changes import JobChange, ResyncReason
from dagmaster.database.reads.api import ApiReads
from dagmaster.database.reads.changes import ChangedAsset, ChangedJob, PlatformState
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.observe import log

POLL_SECONDS = 0.5
MAX_READ = 5000  # rows of one poll, including those that were sent before
MAX_CHANGES = 1000  # jobs or assets in one batch
KEPT_BATCHES = 64
MAX_AWAY_SECONDS = 600.0  # a watcher that was away for longer reads everything again
OVERLAP_SECONDS = 5.0
RESUME_OVERLAP_SECONDS = 10.0
LONG_OVERLAP_SECONDS = 60.0
_LONG_OVERLAP_EVERY = 30  # polls
_HINT_EVERY = 4  # polls
_RESYNC_SECONDS = 5.0  # between two batches that only report too many changes
_log = log.get("api")


@dataclass(frozen=True)
class Batch:
    """The changes of one poll. `until` is its cursor."""

    until: datetime
    jobs: tuple[JobChange, ...] = ()
    assets: tuple[ChangedAsset, ...] = ()
    are_queues_changed: bool = False
    are_instances_changed: bool = False
    resync: ResyncReason | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.assets or self.are_queues_changed or self.are_instances_changed or self.resync)

    @cached_property
    def jobs_json(self) -> bytes:
        """The jobs as JSON. It is the same for every watcher, so it is encoded once."""
        return orjson.dumps({"jobs": [job.model_dump() for job in self.jobs]}, option=orjson.OPT_UTC_Z)


def cursor_of(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1_000_000))


def moment_of(cursor: str) -> datetime:
    """The time of a cursor. It comes from a client, so it is checked."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 17):
        raise InvalidRequest(
            "this is not a cursor of the stream",
            code="stream.bad-cursor",
            hint="send the id of the last event, or none to start now",
        )
    return datetime.fromtimestamp(int(cursor) / 1_000_000, UTC)


class _RecentlySent:
    """The jobs and assets that were sent recently. Polls overlap, so a poll also reads rows that were sent before."""

    def __init__(self) -> None:
        self._jobs: dict[UUID, tuple[int, datetime]] = {}
        self._assets: dict[int, datetime] = {}

    def new_jobs(self, jobs: Sequence[ChangedJob]) -> list[ChangedJob]:
        return [job for job in jobs if job.job_id not in self._jobs or self._jobs[job.job_id][0] < job.version]

    def new_assets(self, assets: Sequence[ChangedAsset]) -> list[ChangedAsset]:
        return [asset for asset in assets if asset.change.event_id not in self._assets]

    def add(self, jobs: Sequence[ChangedJob], assets: Sequence[ChangedAsset], now: datetime) -> None:
        self._jobs.update((job.job_id, (job.version, now)) for job in jobs)
        self._assets.update((asset.change.event_id, now) for asset in assets)

    def forget_before(self, moment: datetime) -> None:
        self._jobs = {job_id: sent for job_id, sent in self._jobs.items() if sent[1] >= moment}
        self._assets = {event_id: at for event_id, at in self._assets.items() if at >= moment}


class ChangeFollower(Follower):
    subject = "changes"

    def __init__(self, reads: ApiReads, alive_within_seconds: float) -> None:
        super().__init__(reads)
        self._watchers = 0
        self._alive_within = alive_within_seconds
        self._batches: deque[Batch] = deque(maxlen=KEPT_BATCHES)
        self._count = 0  # batches so far
        self._until: datetime | None = None  # of the last poll
        self._state: PlatformState | None = None
        self._polls = 0
        self._sent = _RecentlySent()
        self._needs_resync = False
        self._resync_at = 0.0
        self._changed = asyncio.Event()

    @property
    def watchers(self) -> int:
        return self._watchers

    async def now(self) -> datetime:
        """A new watcher gets all changes after this time."""
        return (await self._complete(self._reads.platform_state(self._alive_within))).now

    async def watch(self, after: datetime | None, heartbeat_seconds: float) -> AsyncIterator[Batch]:
        """Changes in batches, until the follower is closed; an empty batch after each heartbeat interval without
        changes. `after` is the time of the last batch of an earlier watch: the changes since then come first. The event
        loop runs between two batches, so that it notices when the watcher has left."""
        with self._watching():
            position = self._count
            until = after
            if after is not None:
                missed = await self._missed(after)
                if missed is None:
                    return  # the changes cannot be read: the client reconnects
                until = missed.until
                yield missed
            while not self._is_closing:
                changed = self._changed
                if position == self._count:
                    try:
                        async with asyncio.timeout(heartbeat_seconds):
                            await changed.wait()
                    except TimeoutError:
                        until = max(filter(None, (until, self._until)), default=None)
                        if until is not None:
                            yield Batch(until)
                elif self._count - position > len(self._batches):
                    position = self._count
                    yield Batch(self._batches[-1].until, resync="slow")
                else:
                    batch = self._batches[position - self._count]
                    position += 1
                    yield batch
                    await asyncio.sleep(0)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        self._watcher_arrived.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def _missed(self, after: datetime) -> Batch | None:
        try:
            return await self._complete(self._batch_since(after))
        except Unavailable as error:
            _log.warning("a stream ends because changes cannot be read", error=error.message)
            return None

    async def _batch_since(self, after: datetime) -> Batch:
        """The changes between a time and now."""
        now = (await self._reads.platform_state(self._alive_within)).now
        if not -OVERLAP_SECONDS <= (now - after).total_seconds() <= MAX_AWAY_SECONDS:
            return Batch(now, resync="too_old")
        since = after - timedelta(seconds=RESUME_OVERLAP_SECONDS)
        jobs = await self._reads.changed_jobs(since, MAX_CHANGES + 1)
        assets = await self._reads.changed_assets(since, MAX_CHANGES + 1)
        if max(len(jobs), len(assets)) > MAX_CHANGES:
            return Batch(now, resync="too_many")
        changes = await self._reads.job_changes(jobs)
        return Batch(now, changes, tuple(assets), are_queues_changed=True, are_instances_changed=True)

    async def _run(self) -> None:
        while True:
            if not self._watchers:
                self._state, self._sent = None, _RecentlySent()
                self._watcher_arrived.clear()
                await self._watcher_arrived.wait()
            await self._poll_safely()
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        state, last = await self._reads.platform_state(self._alive_within), self._state
        self._polls += 1
        since = last.now if last else state.now
        if last is not None and self._polls % _HINT_EVERY:
            state = PlatformState(state.now, last.queues, last.instances)  # hints are compared less often
        jobs, assets, is_too_many = await self._new_since(since)
        if is_too_many:
            self._needs_resync = True
        batch = Batch(
            state.now,
            await self._reads.job_changes(jobs),
            tuple(assets),
            are_queues_changed=last is not None and last.queues != state.queues,
            are_instances_changed=last is not None and last.instances != state.instances,
            resync=self._due_resync(),
        )
        self._sent.add(jobs, assets, state.now)
        self._sent.forget_before(state.now - timedelta(seconds=2 * LONG_OVERLAP_SECONDS))
        self._state, self._until = state, state.now
        if not batch.is_empty:
            self._batches.append(batch)
            self._count += 1
            self._wake_all()

    async def _new_since(self, since: datetime) -> tuple[list[ChangedJob], list[ChangedAsset], bool]:
        """Changed jobs and assets that were not sent yet, and whether there are too many; both are empty then."""
        overlaps = [OVERLAP_SECONDS] if self._polls % _LONG_OVERLAP_EVERY else [LONG_OVERLAP_SECONDS, OVERLAP_SECONDS]
        for overlap in overlaps:
            begin = since - timedelta(seconds=overlap)
            all_jobs = await self._reads.changed_jobs(begin, MAX_READ + 1)
            all_assets = await self._reads.changed_assets(begin, MAX_READ + 1)
            if max(len(all_jobs), len(all_assets)) <= MAX_READ:
                jobs, assets = self._sent.new_jobs(all_jobs), self._sent.new_assets(all_assets)
                if max(len(jobs), len(assets)) <= MAX_CHANGES:
                    return jobs, assets, False
                self._sent.add(jobs, assets, since)
                return [], [], True
        return [], [], True

    def _due_resync(self) -> ResyncReason | None:
        if not self._needs_resync or time.monotonic() - self._resync_at < _RESYNC_SECONDS:
            return None
        self._needs_resync, self._resync_at = False, time.monotonic()
        return "too_many"

    def _wake_all(self) -> None:
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()
