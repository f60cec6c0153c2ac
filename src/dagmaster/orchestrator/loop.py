"""The orchestrator's loop: claim jobs, find those with pending work, advance them.

    notification or poll ──▶ claim jobs without an owner and orphans
                         ──▶ find the jobs with pending work (results, expired leases, waits that are over)
                         ──▶ advance them (orchestrator/advance)

The loop owns no durable state: in memory it has views of rows that only it may write, as long as its claim tokens are
valid. After any doubt (a lost connection, a refused write) it discards a view and reads the rows again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.ledger.protocol import Claim, OrchestratorLedger
from dagmaster.database.notify.notifier import CALLBACKS, JOBS, RESULTS, WORKFLOWS, Notifier
from dagmaster.jobs.plan import Planner
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.observe.rates import RateMeter
from dagmaster.operations.submit import take_submissions
from dagmaster.orchestrator.advance import JobAdvancing
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.deferred import review_deferred
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.orchestrator.job_queue import JobQueue
from dagmaster.orchestrator.liveness import OrchestratorCounters
from dagmaster.orchestrator.owned import GraphCache, Owned
from dagmaster.orchestrator.relay import Relay
from dagmaster.orchestrator.reload import WorkflowReload
from dagmaster.orchestrator.slow_templates import SlowTemplates
from dagmaster.settings import Settings
from dagmaster.transports.transport import Transport

SWEEP_SECONDS = 0.2  # the shortest time between two sweeps for pending work, however many notifications arrive
SWEEP_SHARE = 0.05  # sweeps take at most this share of the time, but there is one at every poll
COUNT_SECONDS = 10.0  # how often an instance without jobs checks in the database whether it owns some
MAINTENANCE_SECONDS = 3600.0
MAINTENANCE_RETRY_SECONDS = 60.0  # after a failure, which ends the iteration
FEW_JOBS = 16  # up to this many jobs are opened without asking first which of them have reports
_log = log.get("orchestrator")


@dataclass
class Orchestrator(JobAdvancing):
    settings: Settings
    ledger: OrchestratorLedger
    beat_ledger: OrchestratorLedger  # a connection of its own, so that heartbeats are sent while the loop is busy
    notifier: Notifier
    transport: Transport
    planner: Planner
    library: WorkflowLibrary
    host: str = "localhost"
    pid: int = 0
    software_version: str = ""
    owner_id: UUID = field(default_factory=uuid4)  # new at every start
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    janitor: Janitor | None = None
    callbacks: CallbackSender | None = None
    reload: WorkflowReload | None = None
    external_copies: ExternalCopyChore | None = None
    relay: Relay | None = None  # with a message broker
    job_queue: JobQueue | None = None  # with a message broker

    def __post_init__(self) -> None:
        self.counters = OrchestratorCounters()
        self.enqueued = RateMeter()
        self._owned: dict[UUID, Owned] = {}
        self._dirty: set[UUID] = set()
        self._graphs = GraphCache()
        self._templates = SlowTemplates(self._note_rendered)
        self._is_woken = False
        self._is_stopping = asyncio.Event()
        self._waiting: asyncio.Future[frozenset[str]] | None = None
        self.started_at: float | None = None  # on the monotonic clock, which is the loop's
        self.heartbeat_at: float | None = None
        self.scanned_at: float | None = None
        self._progressed_at = 0.0
        self._next_sweep = 0.0
        self._next_count = 0.0
        self._next_poll = 0.0
        self._next_scan = 0.0
        self._next_maintenance = 0.0
        self._next_deferred_check = 0.0
        self._next_due: float | None = None
        self._overdue: frozenset[UUID] = frozenset()
        self._started: frozenset[UUID] = frozenset()

    # Start and stop

    async def run(self) -> None:
        """Run until `stop`; then release every job."""
        self._progressed_at = self.started_at = self._now()
        await self._send_first_heartbeat()
        background_tasks = [asyncio.create_task(self._beat(), name="orchestrator-beat")]
        if self.janitor is not None:
            self.janitor.owner_id = self.owner_id
            background_tasks.append(asyncio.create_task(self.janitor.run(), name="janitor"))
        if self.callbacks is not None:
            self.callbacks.owner_id = self.owner_id
            background_tasks.append(asyncio.create_task(self.callbacks.run(), name="callbacks"))
        if self.reload is not None:
            self.reload.owner_id, self.reload.library, self.reload.use = self.owner_id, self.library, self._use
            background_tasks.append(asyncio.create_task(self.reload.run(), name="workflow-reload"))
        if self.external_copies is not None:
            background_tasks.append(asyncio.create_task(self.external_copies.run(), name="external-copies"))
        if self.relay is not None:
            background_tasks.append(asyncio.create_task(self.relay.run(), name="relay"))
        if self.job_queue is not None:
            background_tasks.append(asyncio.create_task(self.job_queue.run(), name="job-queue"))
        try:
            while not self._is_stopping.is_set():
                topics = await self._pause()
                if not self._is_stopping.is_set():
                    await self._run_once_safely(topics)
        finally:
            await cancel_and_wait(*background_tasks)
            self._templates.close()
            await self._retire()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    async def _retire(self) -> None:
        """Release all jobs, so that other instances can claim them at once."""
        try:
            released = await self.ledger.retire(self.owner_id)
        except Exception as error:  # the process ends either way
            log.failure(_log, "the jobs could not be released; other instances will claim them as orphans", error)
            return
        _log.info("stopped", released=released)

    async def _pause(self) -> frozenset[str]:
        """Wait for a notification, the next poll or the end of a node's delay; not at all while work is left."""
        until = self._next_poll
        if self._next_due is not None:
            until = min(until, max(self._next_due, self._next_sweep))
        if self._dirty:  # jobs that were set aside wait until their time
            until = min(until, *(self._owned[job_id].set_aside_until for job_id in self._dirty))
        timeout = max(0.0, until - self._now())
        waiting = asyncio.ensure_future(self.notifier.wait(timeout))
        self._waiting = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._is_stopping.is_set() and not self._is_woken:
                raise
            return frozenset()
        finally:
            self._is_woken = False
            self._waiting = None
            waiting.cancel()

    # One iteration

    async def _run_once_safely(self, topics: frozenset[str]) -> None:
        try:
            await self._run_once(topics)
        except Exception as error:  # neither an outage nor a mistake in this software may end the loop
            log.failure(_log, "an iteration failed, trying again", error)
            await self._recover()
        self._progressed_at = self._now()

    async def _recover(self) -> None:
        self.counters.errors += 1
        self._next_count = 0.0  # the response to a claim may have been lost
        self._discard_views(self._owned)
        await self.sleep(min(1.0, self.settings.orchestrator_poll_interval))

    async def _run_once(self, topics: frozenset[str]) -> None:
        self.counters.cycles += 1
        if CALLBACKS in topics:
            self._wake_background_tasks()
        if WORKFLOWS in topics and self.reload is not None:
            self.reload.wake()
        is_poll = self._now() >= self._next_poll
        if is_poll:
            self._next_poll = self._now() + self.settings.orchestrator_poll_interval
        if is_poll or JOBS in topics:
            await self._take_messages()
            is_scan = self._is_scan_due()
            await self._claim(self.ledger.claim_orphans if is_scan else self.ledger.claim_jobs)
            if is_scan:
                self.scanned_at = self._now()
        is_sweep = self._is_sweep_due()
        if topics == {RESULTS} and not is_poll and not is_sweep and not self._dirty and len(self._owned) <= FEW_JOBS:
            await self._advance_safely(sorted(self._owned), self.ledger.open_reported_jobs)
        else:
            await self._find_pending_work(is_sweep=is_sweep)
            await self._advance_all()
        await self._review_deferred()
        await self._maintain()
        self._overdue = self._started = frozenset()

    async def _review_deferred(self) -> None:
        if (now := self._now()) < self._next_deferred_check:
            return
        self._next_deferred_check = now + self.settings.orchestrator_poll_interval
        released, overdue = await review_deferred(self.ledger, self._owned, self.settings, now)
        for job_id in released:
            self._owned.pop(job_id, None)
        self._dirty = (self._dirty | overdue) - released

    async def _maintain(self) -> None:
        if (now := self._now()) >= self._next_maintenance:
            self._next_maintenance = now + MAINTENANCE_RETRY_SECONDS
            await self.ledger.maintain()
            self._next_maintenance = now + MAINTENANCE_SECONDS

    def _is_sweep_due(self) -> bool:
        now = self._now()
        if now < self._next_sweep or (not self._owned and now < self._next_count):
            return False
        self._next_sweep = now + SWEEP_SECONDS
        self._next_count = now + COUNT_SECONDS
        return True

    def _use(self, library: WorkflowLibrary) -> None:
        """Use these workflows for new submissions. A job keeps the definition that it was submitted with."""
        self.library = library

    async def _take_messages(self) -> None:
        self.counters.messages += await take_submissions(
            self.ledger,
            self.library,
            self.settings.job_queue_name,
            unknown_after_seconds=self.settings.unknown_handler_timeout_sec,
        )

    def _is_scan_due(self) -> bool:
        now = self._now()
        if now < self._next_scan:
            return False
        self._next_scan = now + self.settings.orphan_scan_interval_sec
        return True

    async def _claim(self, claim_jobs: Callable[..., Awaitable[list[Claim]]]) -> None:
        """Claim free jobs in batches until none is left, so that the load spreads over the instances."""
        while (
            limit := min(self.settings.orchestrator_batch, self.settings.orchestrator_max_jobs - len(self._owned))
        ) > 0:
            claims = await claim_jobs(
                self.owner_id,
                limit=limit,
                orphan_after_seconds=self.settings.orphan_threshold_sec,
                unclaimed_after_seconds=2 * self.settings.orchestrator_poll_interval,
            )
            self.counters.claimed += len(claims)
            self.counters.reclaimed += sum(1 for claim in claims if claim.epoch > 1)
            for claim in claims:
                self._owned[claim.job_id] = Owned(claim, claimed_at=self._now())
                self._dirty.add(claim.job_id)
            self._progressed_at = self._now()
            if len(claims) < limit:
                return

    async def _find_pending_work(self, *, is_sweep: bool) -> None:
        if not self._owned and not is_sweep:
            self._next_due = None
            return
        if not is_sweep:
            reported = await self.ledger.reported_jobs(self.owner_id)
            self._dirty.update(job_id for job_id in reported if job_id in self._owned)
            return
        started = self._now()
        pending_work = await self.ledger.sweep_jobs(self.owner_id)
        self._dirty.update(job_id for job_id in pending_work.reported if job_id in self._owned)
        pause = min((self._now() - started) / SWEEP_SHARE, 0.9 * self.settings.orchestrator_poll_interval)
        self._next_sweep = max(self._next_sweep, started + pause)
        self._overdue = frozenset(pending_work.overdue)
        self._started = frozenset(pending_work.started)
        self._dirty.update(job_id for job_id in self._overdue | self._started if job_id in self._owned)
        wait = pending_work.next_due_seconds
        self._next_due = None if wait is None else self._now() + wait
        if pending_work.owned != len(self._owned):
            await self._compare_ownership()

    async def _compare_ownership(self) -> None:
        """According to the database, this instance owns more jobs than it knows of, or fewer.

        Fewer: others claimed some of them while this instance was paused or disconnected. All jobs are read again, and
        the fence shows which ones were lost. More: the response to a claim was lost. The unknown jobs are released,
        because no instance would ever advance them while their owner is alive.
        """
        self._discard_views(self._owned)
        released = await self.ledger.release_unknown(self.owner_id, list(self._owned))
        if released:
            _log.warning("released jobs that were claimed in a call whose response was lost", released=released)
