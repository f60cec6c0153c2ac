"""The orchestrator's loop: claim jobs, find those with pending work, let the planner decide, write the decision.

    notification or poll ──▶ claim jobs without an owner and orphans
                         ──▶ find the jobs with pending work (results, expired leases, waits that are over)
                         ──▶ advance them, a batch in one transaction ──▶ notify workers and other orchestrators

The loop owns no durable state: in memory it has views of rows that only it may write, as long as its claim tokens are
valid. After any doubt (a lost connection, a refused write) it discards a view and reads the rows again. A job that
can't be advanced is set aside for a while, and the others are advanced.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from dagmaster import faults
from dagmaster.database.ledger.protocol import (
    NEWS_LIMIT,
    Claim,
    LoadedJob,
    OrchestratorInfo,
    OrchestratorLedger,
    Step,
    StepScope,
)
from dagmaster.database.notify.notifier import JOBS, RESULTS, Notifier
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.plan import Plan, Planner
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.jobs.task_params import ByteBudget
from dagmaster.jobs.view import JobView, is_ended, is_failing, rerunnable_children
from dagmaster.observe import log
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.operations.submit import take_submissions
from dagmaster.orchestrator.janitor import STUCK_AFTER, Janitor
from dagmaster.settings import Settings
from dagmaster.transports.transport import Ticket, Transport
from dagmaster.workflows.graph import Graph, build

SWEEP_SECONDS = 0.2  # at most this often, however many notifications arrive
SWEEP_SHARE = 0.05  # at most this share of the time, but one sweep at every poll
COUNT_SECONDS = 10.0  # how often an instance without jobs checks whether it has some by the rows
CHORES_SECONDS = 3600.0
FEW_JOBS = 16  # up to this many are opened without asking first which of them have reports
GRAPHS_KEPT = 256
# Cancelled by a timeout, waited too long for a lock, deadlock: one job's statement failed, not the server.
OF_ONE_STATEMENT = frozenset({"57014", "55P03", "40P01", "40001"})
_log = log.get("orchestrator")


class StaleViewError(Exception):
    """A commit whose answer was lost took effect after the job was read again: the view is outdated."""


@dataclass(slots=True)
class Owned:
    """A job that this instance owns, unless it was fenced in the meantime."""

    claim: Claim
    view: JobView | None = None  # None: to be read again before the next decision
    sequence: int = 0  # the last event in the view
    look_at_all: bool = True
    is_failing: bool = False
    failures: int = 0
    set_aside_until: float = 0.0
    queue: str | None = None  # the queue of its last task, if that step created one task


@dataclass(slots=True)
class OrchestratorCounters:
    cycles: int = 0
    claimed: int = 0
    advanced: int = 0
    fenced: int = 0
    finished: int = 0
    errors: int = 0
    messages: int = 0


@dataclass
class Orchestrator:
    settings: Settings
    ledger: OrchestratorLedger
    beat_ledger: OrchestratorLedger  # a connection of its own, so that a busy loop still shows that it lives
    notifier: Notifier
    transport: Transport
    planner: Planner
    catalog: WorkflowLibrary
    host: str = "localhost"
    pid: int = 0
    software_version: str = ""
    owner_id: UUID = field(default_factory=uuid4)  # fresh at every start
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    janitor: Janitor | None = None

    def __post_init__(self) -> None:
        self.counters = OrchestratorCounters()
        self._owned: dict[UUID, Owned] = {}
        self._dirty: set[UUID] = set()
        self._graphs: dict[str, Graph] = {}
        self._is_stopping = asyncio.Event()
        self._waiting: asyncio.Future[frozenset[str]] | None = None
        self.beaten_at: float | None = None  # on the monotonic clock, which is the loop's
        self._progressed_at = 0.0
        self._next_sweep = 0.0
        self._next_count = 0.0
        self._next_poll = 0.0
        self._next_scan = 0.0
        self._next_chores = 0.0
        self._next_due: float | None = None
        self._overdue: frozenset[UUID] = frozenset()
        self._started: frozenset[UUID] = frozenset()

    # Life

    async def run(self) -> None:
        """Run until `stop`; then release every job."""
        self._progressed_at = self._now()
        await self._send_first_heartbeat()
        background_tasks = [asyncio.create_task(self._beat(), name="orchestrator-beat")]
        if self.janitor is not None:
            self.janitor.owner_id = self.owner_id
            background_tasks.append(asyncio.create_task(self.janitor.run(), name="janitor"))
        try:
            while not self._is_stopping.is_set():
                heard = await self._pause()
                if not self._is_stopping.is_set():
                    await self._turn_safely(heard)
        finally:
            for task in background_tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await self._retire()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the loop last finished a turn. Also for other threads."""
        return time.monotonic() - self._progressed_at if self._progressed_at else 0.0

    @property
    def patience_seconds(self) -> float:
        """A loop that has been silent for longer sends no heartbeat any more."""
        return max(self.settings.orphan_threshold_sec / 2, 3 * self.settings.orchestrator_poll_interval)

    @property
    def hopeless_seconds(self) -> float:
        """After this time others may have claimed its jobs, and a restart is better than more waiting."""
        return self.patience_seconds + self.settings.orphan_threshold_sec

    async def _send_first_heartbeat(self) -> None:
        """The first heartbeat precedes the first claim, or other instances would claim our jobs as orphans."""
        while not self._is_stopping.is_set():
            try:
                await self.beat_ledger.beat(self.info())
                self.beaten_at = self._now()
                return
            except Exception as error:  # whatever it is, it may pass
                _log.warning("waiting for the database", error=str(error))
                await self.sleep(1.0)

    async def _beat(self) -> None:
        while True:
            await self.sleep(self.settings.heartbeat_interval_sec)
            silent = self._now() - self._progressed_at
            if silent > self.patience_seconds:
                _log.error("the loop is stuck, so no heartbeat is sent", seconds=round(silent, 1))
                continue
            try:
                await self.beat_ledger.beat(self.info())
                self._note_beat()
            except Exception as error:  # an instance that stops beating loses its jobs
                _log.warning("heartbeat failed", error=str(error))

    def _note_beat(self) -> None:
        """After an outage other instances may have been cut off too:
        they get time for a heartbeat before they count as dead."""
        now = self._now()
        if self.beaten_at is not None and now - self.beaten_at > self.settings.orphan_threshold_sec:
            self._next_scan = max(self._next_scan, now + self.settings.heartbeat_interval_sec)
        self.beaten_at = now

    def info(self) -> OrchestratorInfo:
        stats: dict[str, Any] = {
            name: getattr(self.counters, name) for name in OrchestratorCounters.__dataclass_fields__
        }
        stats["jobs"] = len(self._owned)
        if self.janitor is not None:
            stats["janitor"] = self.janitor.stats()
        return OrchestratorInfo(self.owner_id, self.host, self.pid, self.software_version, stats)

    async def _retire(self) -> None:
        """A clean stop: other instances may claim our jobs at once."""
        try:
            released = await self.ledger.retire(self.owner_id)
        except Exception as error:  # the process ends either way
            _log.warning("the jobs could not be released; other instances will claim them as orphans", error=str(error))
            return
        _log.info("stopped", released=released)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pause(self) -> frozenset[str]:
        """Wait for a notification, the next poll or the next due wait; not at all while work is left."""
        until = self._next_poll
        if self._next_due is not None:
            until = min(until, max(self._next_due, self._next_sweep))
        if self._dirty:  # those that were set aside may wait
            until = min(until, *(self._owned[job_id].set_aside_until for job_id in self._dirty))
        timeout = max(0.0, until - self._now())
        waiting = asyncio.ensure_future(self.notifier.wait(timeout))
        self._waiting = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._is_stopping.is_set():
                raise
            return frozenset()
        finally:
            self._waiting = None
            waiting.cancel()

    # One turn

    async def _turn_safely(self, heard: frozenset[str]) -> None:
        try:
            await self._turn(heard)
        except Unavailable as error:
            _log.warning("the database is not available, trying again", error=str(error))
            await self._recover()
        except Exception as error:  # a statement that fails for any other reason must not end the loop either
            _log.error("a turn failed, trying again", exc_info=error)
            await self._recover()
        self._progressed_at = self._now()

    async def _recover(self) -> None:
        self.counters.errors += 1
        self._next_count = 0.0  # the lost answer may be that of a claim
        self._distrust(self._owned)
        await self.sleep(min(1.0, self.settings.orchestrator_poll_interval))

    async def _turn(self, heard: frozenset[str]) -> None:
        self.counters.cycles += 1
        is_poll = self._now() >= self._next_poll
        if is_poll:
            self._next_poll = self._now() + self.settings.orchestrator_poll_interval
        if is_poll or JOBS in heard:
            await self._take_messages()
            await self._claim(orphans=self._is_scan_due())
        sweep = self._is_sweep_due()
        if heard == {RESULTS} and not is_poll and not sweep and not self._dirty and len(self._owned) <= FEW_JOBS:
            await self._advance_safely(sorted(self._owned), reported_only=True)
        else:
            await self._find_pending_work(sweep=sweep)
            await self._advance_all()
        await self._maintain()
        self._overdue = self._started = frozenset()

    async def _maintain(self) -> None:
        if self._now() >= self._next_chores:
            await self.ledger.maintain()
            self._next_chores = self._now() + CHORES_SECONDS

    def _is_sweep_due(self) -> bool:
        now = self._now()
        if now < self._next_sweep or (not self._owned and now < self._next_count):
            return False
        self._next_sweep = now + SWEEP_SECONDS
        self._next_count = now + COUNT_SECONDS
        return True

    async def _take_messages(self) -> None:
        self.counters.messages += await take_submissions(self.ledger, self.catalog, self.settings.job_queue_name)

    def _is_scan_due(self) -> bool:
        now = self._now()
        if now < self._next_scan:
            return False
        self._next_scan = now + self.settings.orphan_scan_interval_sec
        return True

    async def _claim(self, *, orphans: bool) -> None:
        """Claim free jobs in batches until none is left, so that the load spreads over the instances."""
        while (
            limit := min(self.settings.orchestrator_batch, self.settings.orchestrator_max_jobs - len(self._owned))
        ) > 0:
            claims = await self.ledger.claim_jobs(
                self.owner_id,
                limit=limit,
                orphans=orphans,
                orphan_after_seconds=self.settings.orphan_threshold_sec,
                patience_seconds=2 * self.settings.orchestrator_poll_interval,
            )
            self.counters.claimed += len(claims)
            for claim in claims:
                self._owned[claim.job_id] = Owned(claim)
                self._dirty.add(claim.job_id)
            self._progressed_at = self._now()
            if len(claims) < limit:
                return

    async def _find_pending_work(self, *, sweep: bool) -> None:
        if not self._owned and not sweep:
            self._next_due = None
            return
        if not sweep:
            reported = await self.ledger.reported_jobs(self.owner_id)
            self._dirty.update(job_id for job_id in reported if job_id in self._owned)
            return
        begun = self._now()
        pending_work = await self.ledger.sweep_jobs(self.owner_id)
        self._dirty.update(job_id for job_id in pending_work.reported if job_id in self._owned)
        pause = min((self._now() - begun) / SWEEP_SHARE, 0.9 * self.settings.orchestrator_poll_interval)
        self._next_sweep = max(self._next_sweep, begun + pause)
        self._overdue = frozenset(pending_work.overdue)
        self._started = frozenset(pending_work.started)
        self._dirty.update(job_id for job_id in self._overdue | self._started if job_id in self._owned)
        wait = pending_work.next_due_seconds
        self._next_due = None if wait is None else self._now() + wait
        if pending_work.owned != len(self._owned):
            await self._compare_ownership()

    async def _compare_ownership(self) -> None:
        """By the rows this instance owns more jobs than it knows of, or fewer.

        Fewer: others claimed them while this instance was paused or cut off. All jobs are read again, and the fence
        shows which. More: the answer to a claim was lost. No instance would ever advance those, because their owner is
        alive.
        """
        self._distrust(self._owned)
        released = await self.ledger.release_unknown(self.owner_id, list(self._owned))
        if released:
            _log.warning("released jobs whose claim was never answered", released=released)

    async def _advance_all(self) -> None:
        now = self._now()
        ready = sorted(job_id for job_id in self._dirty if self._owned[job_id].set_aside_until <= now)
        size = self.settings.orchestrator_batch
        for first in range(0, len(ready), size):
            await self._advance_safely(ready[first : first + size])
            self._progressed_at = self._now()

    async def _advance_safely(self, job_ids: Sequence[UUID], *, reported_only: bool = False) -> None:
        """Advance a batch of jobs; if that fails, each by itself, so that one bad job does not block the others."""
        try:
            await self._advance(job_ids, reported_only=reported_only)
        except StaleViewError:
            self._distrust(job_ids)
        except Exception as error:
            if isinstance(error, Unavailable) and error.facts.get("sqlstate") not in OF_ONE_STATEMENT:
                raise
            self._distrust(job_ids)
            if len(job_ids) == 1:
                self._set_aside(job_ids[0], error)
                return
            for job_id in job_ids:
                await self._advance_safely([job_id])

    def _set_aside(self, job_id: UUID, error: Exception) -> None:
        owned = self._owned.get(job_id)
        if owned is None:
            return
        owned.failures += 1
        self.counters.errors += 1
        if self.janitor is not None and owned.failures == STUCK_AFTER:
            self.janitor.report_stuck(owned.claim, error)
        seconds = min(60.0, 0.5 * 2**owned.failures)
        owned.set_aside_until = self._now() + seconds
        _log.error(
            "a job could not be advanced, trying again later", job_id=str(job_id), seconds=seconds, exc_info=error
        )

    def _distrust(self, job_ids: Iterable[UUID]) -> None:
        """The views of these jobs may be outdated: read the rows again before the next decision."""
        for job_id in list(job_ids):
            owned = self._owned.get(job_id)
            if owned is not None:
                owned.view = None
                self._dirty.add(job_id)

    async def _advance(self, job_ids: Sequence[UUID], *, reported_only: bool = False) -> None:
        """One step: lock and read, decide, write, commit, notify."""
        await self._read_views(job_ids)
        batch = [self._owned[job_id] for job_id in job_ids if job_id in self._owned]
        if not batch:
            return
        open_jobs = self.ledger.open_reported_jobs if reported_only else self.ledger.open_jobs
        async with open_jobs(self.owner_id, [owned.claim for owned in batch], self._scope(batch)) as step:
            plans = self._decide(batch, step)
            changes = [plan.changes for plan in plans.values()]
            queues = {task.queue for change in changes for task in change.tasks}
            topics = self.transport.topics(self._tickets(queues, plans, step))
            repeated_queues = await step.commit(changes, notify=topics)
        self._dirty.difference_update(job_ids)
        for job_id in step.fenced:
            self._drop_fenced(job_id)
        await self._publish(repeated_queues - queues if topics else repeated_queues | queues)
        if queues or repeated_queues:
            faults.reach("orchestrator.after-publish")
        await self._keep(plans)
        self._dirty.update(job_id for job_id in step.has_more if job_id in self._owned)
        self.counters.advanced += len(plans)

    def _decide(self, batch: Sequence[Owned], step: Step) -> dict[UUID, Plan]:
        plans: dict[UUID, Plan] = {}
        budget = ByteBudget()
        for owned in batch:
            job_id = owned.claim.job_id
            job = step.jobs.get(job_id)
            if job is None or owned.view is None:
                continue
            if job.sequence != owned.sequence:
                raise StaleViewError
            plans[job_id] = self.planner.decide(
                owned.view,
                job.news,
                epoch=job.epoch,
                sequence=job.sequence,
                look_at_all=owned.look_at_all,
                stop=job.stop,
                budget=budget,
            )
        return plans

    def _tickets(self, queues: Iterable[str], plans: Mapping[UUID, Plan], step: Step) -> list[Ticket]:
        """One ticket for each queue that gets tasks, first for the worker that reported the task before."""
        if not queues:
            return []
        near = _last_worker(step) if self._is_next_task(plans) else None
        return [Ticket(queue, near=near) for queue in sorted(queues)]

    async def _publish(self, queues: Collection[str]) -> None:
        """Announce the queues that the commit did not notify."""
        if queues:
            await self.transport.publish([Ticket(queue) for queue in sorted(queues)])

    def _is_next_task(self, plans: Mapping[UUID, Plan]) -> bool:
        """Whether the step creates one task only, in the queue of the task before: the same worker can run it."""
        is_next = False
        for job_id, plan in plans.items():
            owned, tasks = self._owned[job_id], plan.changes.tasks
            queue = tasks[0].queue if len(tasks) == 1 else None
            is_next = len(plans) == 1 and queue is not None and queue == owned.queue
            owned.queue = queue
        return is_next

    def _scope(self, batch: Sequence[Owned]) -> StepScope:
        failing, ending, wake = set[UUID](), set[UUID](), dict[tuple[UUID, str], int]()
        for owned in batch:
            job_id, view = owned.claim.job_id, owned.view
            if view is None:
                continue
            if owned.is_failing:
                failing.add(job_id)
                if view.stopping or view.graph.workflow.fail_fast:
                    ending.add(job_id)
            counts = rerunnable_children(view, NEWS_LIMIT, unlimited=owned.is_failing)
            wake |= {(job_id, fan_out): count for fan_out, count in counts.items()}
        return StepScope(
            self._overdue, self._started, withdraw=frozenset(failing), stop_running=frozenset(ending), wake=wake
        )

    def _drop_fenced(self, job_id: UUID) -> None:
        """The job has another owner, or has ended: drop it."""
        self._owned.pop(job_id, None)
        self._dirty.discard(job_id)
        self.counters.fenced += 1
        _log.warning("fenced: a job is no longer ours", job_id=str(job_id))

    async def _keep(self, plans: dict[UUID, Plan]) -> None:
        """The step is committed: the planned views are the present state."""
        for job_id, plan in plans.items():
            owned = self._owned[job_id]
            owned.view, owned.look_at_all, owned.failures = plan.view, plan.is_unfinished, 0
            owned.sequence = plan.changes.sequence
            self._note_waits(plan.changes)
            if plan.view.status in JOB_TERMINAL:
                del self._owned[job_id]
                self.counters.finished += 1
                continue
            if plan.is_unfinished or (plan.is_failing and not owned.is_failing):
                self._dirty.add(job_id)
            owned.is_failing = plan.is_failing
            if plan.wanted:
                await self._load_outputs(owned, plan.view, sorted(plan.wanted))

    def _note_waits(self, changes: Changes) -> None:
        waits = [row.wait_seconds for row in changes.nodes if row.wait_seconds is not None]
        if waits:
            due = self._now() + min(waits)
            self._next_due = due if self._next_due is None else min(self._next_due, due)

    async def _load_outputs(self, owned: Owned, view: JobView, node_ids: list[str]) -> None:
        """Templates need the values; the default result of a job contains references to large outputs."""
        outputs, unloadable = dict(view.outputs), dict(view.unloadable)
        has_templates = view.graph.outputs is not None or not is_ended(view)
        load = self.ledger.load_outputs if has_templates else self.ledger.load_output_references
        for node_id in node_ids:
            try:
                outputs |= await load(view.job_id, [node_id])
            except Unavailable:
                raise
            except DagmasterError as error:
                unloadable[node_id] = error
        owned.view = replace(view, outputs=outputs, unloadable=unloadable)
        owned.look_at_all = True
        self._dirty.add(view.job_id)

    # Views

    async def _read_views(self, job_ids: Sequence[UUID]) -> None:
        missing = [self._owned[job_id].claim for job_id in job_ids if self._owned[job_id].view is None]
        if not missing:
            return
        loaded = {job.job_id: job for job in await self.ledger.load_jobs([claim.job_id for claim in missing])}
        for claim in missing:
            if claim.job_id not in loaded:
                self._drop_fenced(claim.job_id)
                continue
            owned = self._owned[claim.job_id]
            owned.view = loaded[claim.job_id].view(self._graph(loaded[claim.job_id]))
            owned.sequence = loaded[claim.job_id].last_sequence
            owned.look_at_all = True
            owned.is_failing = is_failing(owned.view)

    def _graph(self, job: LoadedJob) -> Graph:
        graph = self._graphs.get(job.definition_hash)
        if graph is None:
            if len(self._graphs) >= GRAPHS_KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            graph = self._graphs[job.definition_hash] = build(job.workflow)
        return graph


def _last_worker(step: Step) -> str | None:
    """The worker of the first report that names one."""
    workers = (getattr(item, "worker_id", None) for job in step.jobs.values() for item in job.news)
    return next((worker for worker in workers if worker), None)
