"""Advance the jobs of an orchestrator, a batch in one transaction.

    lock and read ──▶ decide (jobs/plan, which is pure) ──▶ write, commit, notify ──▶ keep the planned views

A job that cannot be advanced is set aside for a while, and the others are advanced; after several attempts it fails.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from uuid import UUID

from dagmaster import faults
from dagmaster.database.ledger.protocol import Claim, OrchestratorLedger, Step, StepScope
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.fan import SumOutOfRange
from dagmaster.jobs.plan import Plan
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.jobs.task_params import ByteBudget
from dagmaster.jobs.updates import Failed, Returned, Succeeded
from dagmaster.jobs.view import JobView, is_ended
from dagmaster.observe import log, traces
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.orchestrator.janitor import STUCK_AFTER
from dagmaster.orchestrator.liveness import OrchestratorLiveness
from dagmaster.orchestrator.owned import FENCED, GraphCache, Owned, failure_of, scope_of
from dagmaster.orchestrator.slow_templates import SlowTemplates
from dagmaster.orchestrator.step_spans import StepSpans
from dagmaster.transports.transport import Announcement, Transport

# Statement timeout, lock timeout, deadlock, serialization failure: the statement of one job failed, not the server.
STATEMENT_ERRORS = frozenset({"57014", "55P03", "40P01", "40001"})
# The type of `open_jobs` and `open_reported_jobs` of the ledger.
OpenJobs = Callable[[UUID, Sequence[Claim], StepScope], AbstractAsyncContextManager[Step]]
_REPORTS = (Succeeded, Failed, Returned)
_log = log.get("orchestrator")


class StaleViewError(Exception):
    """A commit whose response was lost took effect after the job was read again: the view is outdated."""


class JobAdvancing(OrchestratorLiveness):
    """The part of an `Orchestrator` that advances its jobs."""

    ledger: OrchestratorLedger
    transport: Transport
    callbacks: CallbackSender | None
    external_copies: ExternalCopyChore | None
    _dirty: set[UUID]  # owned jobs to advance in this iteration, or in the next one
    _graphs: GraphCache
    _templates: SlowTemplates
    _is_woken: bool  # the pause was cancelled because there is work, not because the loop ends
    _waiting: "asyncio.Future[frozenset[str]] | None"  # the pause between two iterations
    _next_deferred_check: float
    _next_due: float | None  # when the first delay of an owned job is over
    _overdue: frozenset[UUID]  # jobs with a task whose lease, timeout or queue time is over
    _started: frozenset[UUID]  # jobs with a task that runs, and whose node is still shown as dispatched

    async def _advance_all(self) -> None:
        now = self._now()
        ready = sorted(job_id for job_id in self._dirty if self._owned[job_id].set_aside_until <= now)
        size = self.settings.orchestrator_batch
        for first in range(0, len(ready), size):
            await self._advance_safely(ready[first : first + size], self.ledger.open_jobs)
            self._progressed_at = self._now()

    async def _advance_safely(self, job_ids: Sequence[UUID], open_jobs: OpenJobs) -> None:
        """Advance a batch of jobs; if that fails, advance each separately, so that a bad job does not block others."""
        try:
            await self._advance(job_ids, open_jobs)
        except StaleViewError:
            self._discard_views(job_ids)
        except SumOutOfRange as error:  # of a fan_in; the next decision fails that node
            self._owned[error.facts["job_id"]].refused_sums[error.facts["fan_out"]] = error
            self._discard_views(job_ids)
        except Exception as error:
            if isinstance(error, Unavailable) and error.facts.get("sqlstate") not in STATEMENT_ERRORS:
                raise  # an outage, not a failure of one job: the loop discards all views and tries again
            self._discard_views(job_ids)
            if len(job_ids) == 1:
                await self._set_aside(job_ids[0], error)
                return
            for job_id in job_ids:
                await self._advance_safely([job_id], self.ledger.open_jobs)

    async def _advance(self, job_ids: Sequence[UUID], open_jobs: OpenJobs) -> None:
        """One step: lock and read, decide, write, commit, notify. `open_jobs` begins the transaction, locks the rows
        whose claim is still ours (the fence) and reads their updates; `commit` writes, commits and notifies."""
        await self._read_views(job_ids)
        batch = [self._owned[job_id] for job_id in job_ids if job_id in self._owned]
        if not batch:
            return
        spans = StepSpans(self.settings.traces_fan_out_limit) if traces.is_on() else None
        async with open_jobs(
            self.owner_id, [owned.claim for owned in batch], scope_of(batch, self._overdue, self._started)
        ) as step:
            plans = self._decide(batch, step)
            if spans is not None:
                spans.begin(self._owned, plans)
            changes = [plan.changes for plan in plans.values()]
            queues = {task.queue for change in changes for task in change.tasks}
            topics = self.transport.topics(self._announcements(queues, plans, step))
            retry_queues = await step.commit(changes, notify=topics)
        if spans is not None:
            spans.end()
        for queue, count in Counter(task.queue for change in changes for task in change.tasks).items():
            self.enqueued.add(queue, count)
            self.counters.dispatched += count
        self.counters.results += sum(
            1 for job in step.jobs.values() for item in job.updates if isinstance(item, _REPORTS)
        )
        self._dirty.difference_update(job_ids)
        for job_id in step.fenced:
            self._drop_fenced(job_id)
        # With topics, the commit has notified the queues of new tasks; those of retries were not known before it.
        await self._announce(retry_queues - queues if topics else retry_queues | queues)
        if queues or retry_queues:
            faults.reach("orchestrator.after-publish")
        await self._keep(plans)
        self._dirty.update(job_id for job_id in step.has_more if job_id in self._owned)
        self.counters.advanced += len(plans)

    async def _read_views(self, job_ids: Sequence[UUID]) -> None:
        missing = [self._owned[job_id].claim for job_id in job_ids if self._owned[job_id].view is None]
        if not missing:
            return
        loaded = {job.job_id: job for job in await self.ledger.load_jobs([claim.job_id for claim in missing])}
        for claim in missing:
            if claim.job_id not in loaded:
                self._drop_fenced(claim.job_id)
                continue
            job = loaded[claim.job_id]
            self._owned[claim.job_id].keep(job, self._graphs.of(job))

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
                job.updates,
                epoch=job.epoch,
                sequence=job.sequence,
                checks_all_nodes=owned.checks_all_nodes,
                stop=job.stop,
                budget=budget,
                unroutable=owned.unroutable,
                rendered=owned.rendered,
            )
        return plans

    def _announcements(self, queues: Collection[str], plans: Mapping[UUID, Plan], step: Step) -> list[Announcement]:
        """One for each queue that gets tasks. If possible, it names the worker that ran the previous task."""
        if not queues:
            return []
        first_worker = _last_worker(step) if self._note_queues(plans) else None
        return [Announcement(queue, first_worker=first_worker) for queue in sorted(queues)]

    def _note_queues(self, plans: Mapping[UUID, Plan]) -> bool:
        """Note the queue of each job for the next step. True if the step creates one task only, in the queue of the
        previous one: the same worker can run it."""
        is_next = False
        for job_id, plan in plans.items():
            owned, tasks = self._owned[job_id], plan.changes.tasks
            queue = tasks[0].queue if len(tasks) == 1 else None
            is_next = len(plans) == 1 and queue is not None and queue == owned.queue
            owned.queue = queue
        return is_next

    async def _announce(self, queues: Collection[str]) -> None:
        """Announce the queues that the commit did not notify."""
        if queues:
            await self.transport.publish([Announcement(queue) for queue in sorted(queues)])

    async def _keep(self, plans: dict[UUID, Plan]) -> None:
        """Make the planned views the current ones, after the step was committed."""
        for job_id, plan in plans.items():
            owned = self._owned[job_id]
            owned.view, owned.checks_all_nodes, owned.failures = plan.view, plan.is_unfinished, 0
            owned.sequence = plan.changes.sequence
            if plan.changes.deferred:
                self._note_deferred(plan.view)
            self._note_waits(plan.changes)
            if plan.view.status in JOB_TERMINAL:
                del self._owned[job_id]
                self.counters.finished += 1
                self._wake_background_tasks()
                continue
            if plan.slow:
                self._templates.render(owned, plan.slow.values())
            else:
                owned.rendered.clear()
            if (plan.is_unfinished and not plan.slow) or (plan.is_failing and not owned.is_failing):
                self._dirty.add(job_id)
            owned.is_failing = plan.is_failing
            if plan.missing_outputs:
                await self._load_outputs(owned, plan.view, sorted(plan.missing_outputs))

    async def _load_outputs(self, owned: Owned, view: JobView, node_ids: list[str]) -> None:
        """Load values if templates are left to render; the default result of a job needs only references."""
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
        owned.checks_all_nodes = True
        self._dirty.add(view.job_id)

    def _wake_background_tasks(self) -> None:
        """Wake the tasks for callbacks and for external copies: they may have something to do."""
        if self.callbacks is not None:
            self.callbacks.wake()
        if self.external_copies is not None:
            self.external_copies.wake()

    def _note_deferred(self, view: JobView) -> None:
        self._next_deferred_check = 0.0
        for node_id, work in view.deferred.items():
            _log.warning(
                "a node waits for an orchestrator that knows its handler and queue",
                job_id=str(view.job_id),
                node_id=node_id,
                handler=work.handler,
                queue=work.queue,
            )

    def _note_waits(self, changes: Changes) -> None:
        waits = [row.wait_seconds for row in changes.nodes if row.wait_seconds is not None]
        if waits:
            due = self._now() + min(waits)
            self._next_due = due if self._next_due is None else min(self._next_due, due)

    def _note_rendered(self, owned: Owned) -> None:
        """A slow template was rendered: decide again, now with its outcome."""
        job_id = owned.claim.job_id
        if self._owned.get(job_id) is owned:
            owned.checks_all_nodes = True
            self._dirty.add(job_id)
            if self._waiting is not None:
                self._is_woken = True
                self._waiting.cancel()

    async def _set_aside(self, job_id: UUID, error: Exception) -> None:
        """Let a job that could not be advanced wait; after several attempts it fails."""
        owned = self._owned.get(job_id)
        if owned is None:
            return
        owned.failures += 1
        self.counters.errors += 1
        seconds = min(60.0, 0.5 * 2 ** min(owned.failures, 10))
        owned.set_aside_until = self._now() + seconds
        _log.error("a job could not be advanced", job_id=str(job_id), attempt=owned.failures, exc_info=error)
        if owned.is_last_attempt(error):
            await self._fail(owned, error)
        elif self.janitor is not None and owned.failures == STUCK_AFTER:
            self.janitor.report_stuck(owned.claim, error)

    async def _fail(self, owned: Owned, error: Exception) -> None:
        """Fail a job that cannot be advanced, so that it ends with a reason."""
        job_id = owned.claim.job_id
        try:
            is_failed = await self.ledger.fail_job(self.owner_id, owned.claim, failure_of(error))
        except Exception as failure:  # it is tried again when the job is no longer set aside
            _log.error("a job that cannot be advanced could not be ended", job_id=str(job_id), exc_info=failure)
            return
        if not is_failed:
            self._drop_fenced(job_id)
            return
        del self._owned[job_id]
        self._dirty.discard(job_id)
        self.counters.finished += 1
        self._wake_background_tasks()
        _log.error("a job that cannot be advanced has failed", job_id=str(job_id))

    def _discard_views(self, job_ids: Iterable[UUID]) -> None:
        """The views of these jobs may be outdated: read the rows again before the next decision."""
        for job_id in list(job_ids):
            owned = self._owned.get(job_id)
            if owned is not None:
                owned.view = None
                self._dirty.add(job_id)

    def _drop_fenced(self, job_id: UUID) -> None:
        """The job has another owner, or has ended: drop it."""
        self._owned.pop(job_id, None)
        self._dirty.discard(job_id)
        self.counters.fenced += 1
        _log.warning(FENCED, job_id=str(job_id))


def _last_worker(step: Step) -> str | None:
    """The worker of the first report that names one."""
    workers = (getattr(item, "worker_id", None) for job in step.jobs.values() for item in job.updates)
    return next((worker for worker in workers if worker), None)
