"""One job with the real planner and the in-memory ledger, on a virtual clock, with all kinds of faults.

Orchestrators are small copies of the loop's decisive part: they read only when work is pending, keep their view only
after a commit, and read it again whenever it may be outdated. Workers follow the scripts of a case. A seeded Random
decides what happens next, so that a seed repeats its run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from dagmaster.database.ledger.protocol import (
    UPDATES_LIMIT,
    Claim,
    Demand,
    NewJob,
    OrchestratorInfo,
    Report,
    Running,
    StepScope,
)
from dagmaster.jobs.model import TaskMessage, new_job_id
from dagmaster.jobs.plan import Plan, Planner
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.routing import Route
from dagmaster.jobs.states import JOB_TERMINAL, NODE_TERMINAL, TaskStatus
from dagmaster.jobs.view import JobView, is_failing, rerunnable_children
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.plain import at_once
from dagmaster.workflows.graph import build
from dagmaster.workflows.model import Work
from tests.jobs.random_workflows import Case

LEASE_SECONDS = 60.0
TIMEOUT_SECONDS = 100_000.0
MAX_LOSSES = 2
QUEUE = "work"


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class OneQueue:
    def route(self, work: Work) -> Route:
        return Route(QUEUE, TIMEOUT_SECONDS)


class Crash(Exception):
    pass


@dataclass
class Owner:
    """An orchestrator that owns the job, as far as it knows."""

    owner_id: UUID
    claim: Claim
    view: JobView | None = None
    checks_all_nodes: bool = True
    is_failing: bool = False
    is_dirty: bool = True


class Simulation:
    def __init__(self, case: Case, handlers: tuple[str, ...] = ("work", "child", "gather")) -> None:
        self.case = case
        self.handlers = handlers
        self.random = Random(case.seed)
        self.clock = Clock()
        self.database = MemoryDatabase(self.clock)
        self.ledger = MemoryLedger(self.database)
        self.planner = Planner(OneQueue(), Random(case.seed), max_losses=MAX_LOSSES, chunk=case.chunk)
        self.graph = build(case.workflow)
        self.worker_id = self._uuid()
        self.held: list[TaskMessage] = []
        self.sent: list[tuple[UUID, Report]] = []
        self.fenced = 0
        self.cancels = 0  # the weight of a cancel among the random steps
        self.job_id = new_job_id(0, self.random.randbytes(10))
        at_once(self.ledger.create_jobs([NewJob(self.job_id, case.workflow, {})]))
        self._remove_deadline()
        self.owner = self._claim()

    def _remove_deadline(self) -> None:
        """Remove the deadline of the job: days of virtual time pass, and only the timeouts of tasks are tested."""
        job = self.database.jobs[self.job_id]
        self.database.jobs[self.job_id] = job.model_copy(update={"deadline_at": None})

    def _uuid(self) -> UUID:
        return UUID(bytes=self.random.randbytes(16), version=4)

    @property
    def is_over(self) -> bool:
        return self.database.jobs[self.job_id].status in JOB_TERMINAL

    # Running

    def run(self, disorder: int = 60) -> None:
        """Random steps and faults, then the remaining steps without faults: the job must end."""
        actions = [self.run_once] * 5 + [self.claim_tasks] * 3 + [self.report_one] * 5 + [self.pass_time] * 2
        actions += [self.replace_owner, self.lose_response, self.crash, self.repeat_a_report, self.stop_on_request]
        actions += [self.cancel] * self.cancels
        for _ in range(disorder):
            if self.is_over:
                break
            self.random.choice(actions)()
        for _ in range(1000):
            if self.is_over:
                break
            self.run_all_steps()
        assert self.is_over, "the job did not end"
        self.repeat_a_report()

    def run_all_steps(self) -> None:
        """Do everything that can be done now; if nothing can be done, let time pass."""
        before = self._progress()
        self.run_once()
        self.stop_on_request()
        self.claim_tasks()
        for task in list(self.held):
            if self.script(task) not in ("lost", "overran"):
                self.report(task)
        self.run_once()
        if self._progress() == before and not self.is_over:
            self.wait()

    def _progress(self) -> tuple[int, int, int]:
        results = self.database.results.values()
        return len(self.database.events[self.job_id]), len(results), sum(result.processed for result in results)

    def wait(self) -> None:
        """Let time pass until the next delay is over, a lease expires, or a task exceeds its timeout."""
        waits = [node.not_before for node in self.database.nodes[self.job_id].values() if node.not_before]
        self.held = [task for task in self.held if self._is_held(task)]
        scripts = {self.script(task) for task in self.held}
        if waits:
            self.advance(max(0.0, (min(waits) - self.clock.now).total_seconds()) + 0.01)
        elif "lost" in scripts:
            self.advance(LEASE_SECONDS + 1)
        elif "overran" in scripts:
            self.advance(TIMEOUT_SECONDS + 20)
        else:
            raise AssertionError(f"deadlock: {self.describe()}")

    def describe(self) -> str:
        return ", ".join(f"{name} {node.status}" for name, node in self.database.nodes[self.job_id].items())

    def advance(self, seconds: float) -> None:
        """Let time pass. The worker renews its leases, except for those of tasks that shall be lost."""
        self.clock.advance(seconds)
        running = [Running(t.job_id, t.node_id, t.attempt) for t in self.held if self.script(t) != "lost"]
        lost = at_once(self.ledger.renew(self.worker_id, running, lease_seconds=LEASE_SECONDS))
        self.held = [task for task in self.held if task.task_id not in lost]

    def pass_time(self) -> None:
        self.advance(self.random.choice([0.1, 1.0, 4.0, 30.0, LEASE_SECONDS + 1]))

    # Orchestrators

    def _claim(self) -> Owner:
        owner_id = self._uuid()
        at_once(self.ledger.beat(OrchestratorInfo(owner_id, "host", 1, "test")))
        claims = at_once(
            self.ledger.claim_orphans(owner_id, limit=9, orphan_after_seconds=60, unclaimed_after_seconds=0)
        )
        assert [claim.job_id for claim in claims] == [self.job_id]
        return Owner(owner_id, claims[0])

    def run_once(self) -> None:
        owner = self.owner
        self._stay_alive()
        pending = at_once(self.ledger.sweep_jobs(owner.owner_id, started_after_seconds=0.5))
        if owner.is_dirty or self.job_id in (*pending.reported, *pending.overdue, *pending.started):
            self._advance(owner, frozenset(pending.overdue), frozenset(pending.started))

    def _stay_alive(self) -> None:
        at_once(self.ledger.beat(OrchestratorInfo(self.owner.owner_id, "host", 1, "test")))

    def _advance(
        self, owner: Owner, overdue: frozenset[UUID], started: frozenset[UUID], crashing: bool = False
    ) -> None:
        self._read_view(owner)
        scope = self._scope(owner, overdue, started)
        for plan in at_once(self._step(owner, scope, crashing)):
            self._keep_plan(owner, plan)

    async def _step(self, owner: Owner, scope: StepScope, crashing: bool) -> list[Plan]:
        async with self.ledger.open_jobs(owner.owner_id, [owner.claim], scope) as step:
            assert owner.view is not None
            plans = [
                self.planner.decide(
                    owner.view,
                    job.updates,
                    epoch=job.epoch,
                    sequence=job.sequence,
                    checks_all_nodes=owner.checks_all_nodes,
                    stop=job.stop,
                )
                for job in step.jobs.values()
            ]
            if crashing:
                raise Crash
            await step.commit([plan.changes for plan in plans])
        self.fenced += len(step.fenced)
        return plans

    def _scope(self, owner: Owner, overdue: frozenset[UUID], started: frozenset[UUID]) -> StepScope:
        assert owner.view is not None
        failing = frozenset({self.job_id} if owner.is_failing else ())
        is_ending = owner.view.stopping or self.case.workflow.fail_fast
        wake = rerunnable_children(owner.view, UPDATES_LIMIT, unlimited=owner.is_failing)
        return StepScope(
            overdue,
            started,
            withdraw=failing,
            stop_running=failing if is_ending else frozenset(),
            wake={(self.job_id, fan_out): count for fan_out, count in wake.items()},
        )

    def _read_view(self, owner: Owner) -> None:
        if owner.view is not None:
            return
        (job,) = at_once(self.ledger.load_jobs([owner.claim.job_id]))
        owner.view = job.view(self.graph)
        owner.checks_all_nodes = True
        owner.is_failing = is_failing(owner.view)

    def _keep_plan(self, owner: Owner, plan: Plan) -> None:
        owner.view, owner.checks_all_nodes = plan.view, plan.is_unfinished
        owner.is_dirty = plan.is_unfinished or (plan.is_failing and not owner.is_failing) or bool(plan.missing_outputs)
        owner.is_failing = plan.is_failing
        if plan.missing_outputs:
            loaded = at_once(self.ledger.load_outputs(self.job_id, sorted(plan.missing_outputs)))
            owner.view = replace(plan.view, outputs={**plan.view.outputs, **loaded})
            owner.checks_all_nodes = True

    def replace_owner(self) -> None:
        """Another instance takes over; the old one comes back and must not be able to write."""
        old = self.owner
        if self.random.random() < 0.5:
            at_once(self.ledger.retire(old.owner_id))
        else:
            del self.database.orchestrators[old.owner_id]
        self.owner = self._claim()
        before, fenced = self._progress(), self.fenced
        self._advance(old, frozenset({self.job_id}), frozenset({self.job_id}))
        assert self._progress() == before
        assert self.fenced == fenced + 1

    def cancel(self) -> None:
        at_once(self.ledger.request_cancel(self.job_id, by="ana", reason=None))

    def rerun(self, choose: Callable[[JobView], Rerun]) -> Rerun:
        """Run a job that has ended again; an orchestrator claims it."""
        rerun, _ = at_once(self.ledger.rerun(self.job_id, lambda job: choose(job.view()), {}))
        self._remove_deadline()
        self.held = []
        self.owner = self._claim()
        return rerun

    def stop_on_request(self) -> None:
        """A worker that is asked to stop gives its tasks back, or finishes before it gets the request."""
        stops = at_once(self.ledger.take_stops(self.worker_id))
        for task in [task for task in self.held if task.task_id in stops and self.random.random() < 0.8]:
            key = (task.job_id, task.node_id, task.attempt)
            report = Report(*key, TaskStatus.RETURNED)
            at_once(self.ledger.exchange(self.worker_id, [report], Demand((QUEUE,)), lease_seconds=1))
            self.held.remove(task)
            self.sent.append((self.worker_id, report))

    def lose_response(self) -> None:
        """The response to the last commit was lost: the view may be outdated and is read again."""
        self.owner.view, self.owner.is_dirty = None, True

    def crash(self) -> None:
        """The transaction is not committed."""
        before = self._progress()
        try:
            self._advance(self.owner, frozenset({self.job_id}), frozenset(), crashing=True)
        except Crash:
            self.lose_response()
        assert self._progress() == before

    # Workers

    def script(self, task: TaskMessage) -> str:
        script = self.case.scripts.get(task.node_id, [])
        return script[task.attempt - 1] if task.attempt <= len(script) else "succeed"

    def claim_tasks(self) -> None:
        demand = Demand((QUEUE,), self.handlers, self.random.randint(1, 4))
        exchange = at_once(self.ledger.exchange(self.worker_id, [], demand, lease_seconds=LEASE_SECONDS))
        self.held += exchange.claimed

    def report_one(self) -> None:
        able = [task for task in self.held if self.script(task) not in ("lost", "overran")]
        if able:
            self.report(self.random.choice(able))

    def report(self, task: TaskMessage) -> None:
        report, held = self._report(task), self._is_held(task)
        exchange = at_once(self.ledger.exchange(self.worker_id, [report], Demand((QUEUE,)), lease_seconds=1))
        assert exchange.accepted == held
        self.held.remove(task)
        self.sent.append((self.worker_id, report))

    def _is_held(self, task: TaskMessage) -> bool:
        return self.database.tasks[task.job_id, task.node_id, task.attempt].status is TaskStatus.RUNNING

    def _report(self, task: TaskMessage) -> Report:
        key = (task.job_id, task.node_id, task.attempt)
        match self.script(task):
            case "succeed" | "lost" | "overran":
                value = self.case.values.get(task.node_id, task.attempt)
                return Report(*key, TaskStatus.SUCCEEDED, {"v": value, "items": list(range(value))})
            case "returned":
                return Report(*key, TaskStatus.RETURNED)
            case blame:
                return Report(*key, TaskStatus.FAILED, error={"message": f"{blame} failed", "blame": blame})

    def repeat_a_report(self) -> None:
        """Report a task a second time, after it was lost, or as another worker: nothing changes."""
        lost_reports = [(self.worker_id, self._report(task)) for task in self.held if not self._is_held(task)]
        if not (late := self.sent + lost_reports):
            return
        worker_id, report = self.random.choice(late)
        key = (report.job_id, report.node_id, report.attempt)
        before = self.database.tasks[key], self.database.results.get(key)
        if worker_id is self.worker_id and self.random.random() < 0.3:
            worker_id = self._uuid()
        at_once(self.ledger.exchange(worker_id, [report], Demand((QUEUE,)), lease_seconds=1))
        assert self.database.tasks[key] is before[0]
        after = self.database.results.get(key)
        assert after is before[1] or (after is not None and not after.accepted and after.processed)

    # Results

    def states(self) -> dict[str, tuple[str, str | None]]:
        return {name: (node.status, node.reason) for name, node in self.database.nodes[self.job_id].items()}

    def all_ended(self) -> bool:
        return all(node.status in NODE_TERMINAL for node in self.database.nodes[self.job_id].values())
