"""The invariants, checked after every commit and once more at the end.

The rules of the ledger are implemented here a second time, on the rows that its calls have written: who may claim, who
may write, what a lease protects. Which check verifies which invariant:

    each submission makes one job                        `_submissions`
    events have no gaps, transitions are allowed         the history check, `_events`
    the events rebuild every row                         the history check
    a node has one live attempt                          `_new_task`, `_claimed`
    each result counts once                              the history check, `_accepted`
    only the owner writes to a job                       the history check, `_job`, `_claim`
    no node starts before what it waits for              the history check
    fan_ins, skips and outcomes follow from the nodes    the history check
    retries and waits follow the policy                  the history check, `_node`
    nothing starts in a job that has ended               the history check, `_task`
    each effect is published once                        `_accepted`, `_published`
    every job ends after the last fault                  `World.run` in liveness mode, `_leftovers`
    a dead letter has its reason                         `_dead_letters`
    a queued task is in the outbox, or was sent          `after` (with a broker)
    payloads and definitions are what was stored         the history check

Not verified here: the janitor's log and callbacks. They are SQL and have no in-memory counterpart.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from dagmaster.database.ledger.protocol import OVERRUN_GRACE_SECONDS, Claim, Exchange
from dagmaster.jobs.model import Job, NodeState, Task, TaskResult
from dagmaster.jobs.states import JOB_TERMINAL, NODE_LIVE, NodeStatus, TaskStatus
from dagmaster.testing.history import audit, findings_of
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryStep, TaskKey
from dagmaster.workflows.model import FanOutNode, work_of
from tests.simulation.faults import snapshot

LIVE = (TaskStatus.QUEUED, TaskStatus.RUNNING)
CLAIMS = ("claim_jobs", "claim_orphans")
_SETTLED_SECONDS = 16.0  # after the last fault; by then every older lease was renewed, or its loss was detected
_REPORT_SECONDS = 8.0  # without faults, a worker reports a finished task within this time
_MAX_REFUSALS = 4  # of the same claim
_AUDITED = 0.02  # the fraction of commits after which the whole history is checked


@dataclass
class RunCounters:
    """How often a run had events that are allowed but rare. What is not allowed is a violation."""

    commits: int = 0
    fenced: int = 0  # writes of owners that were replaced
    late_reports: int = 0
    refused_renewals: int = 0
    refused_checkpoints: int = 0
    losses: int = 0
    attempts: int = 0
    doubled_executions: int = 0  # executed attempts of a node in addition to the accepted one
    audits: int = 0

    def add(self, other: "RunCounters") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class InvariantChecker:
    def __init__(self, world: Any) -> None:
        self._world = world
        self.counters = RunCounters()
        self._beats: dict[UUID, float] = {}  # the time of the last heartbeat of each orchestrator
        self._claims: dict[UUID, Claim] = {}  # the valid claim of each job
        self._claimed: Counter[TaskKey] = Counter()
        self._accepted_by: Counter[TaskKey] = Counter()
        self._published: Counter[tuple[UUID, str, int]] = Counter()
        self._refused: Counter[UUID] = Counter()  # by token: how often a stale claim was refused
        self._lost: set[str] = set()  # tasks that a worker has lost to another one

    @property
    def _db(self) -> MemoryDatabase:
        db: MemoryDatabase = self._world.database
        return db

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self._world.report_violation(what)

    # After every commit

    def before(self, name: str) -> MemoryDatabase:
        return self._db if name == "beat" else snapshot(self._db)

    def after(self, name: str, arguments: Any, before: MemoryDatabase, answer: Any) -> None:
        db, self.name, self.arguments = self._db, name, arguments
        self.counters.commits += 1
        match name:
            case "beat":
                self._beats[arguments[0].owner_id] = self._world.loop.now
                return
            case "retire":
                self._beats.pop(arguments[0], None)
        for key, task in db.tasks.items():
            if (old := before.tasks.get(key)) is not task:
                self._task(key, old, task)
            if self._world.has_broker and task.status is TaskStatus.QUEUED:
                is_kept = key in db.outbox or task.task_id in self._world.sent
                self._require(is_kept, f"{task.task_id} is queued, but its message is neither in the outbox nor sent")
        for key, result in db.results.items():
            if (was := before.results.get(key)) is not result:
                self._result(key, was, result, before.tasks.get(key))
        changed = [job_id for job_id, job in db.jobs.items() if before.jobs.get(job_id) is not job]
        for job_id in changed:
            self._job(before.jobs.get(job_id), db.jobs[job_id])
            self._events(job_id, len(before.events.get(job_id, ())))
            for node_id, node in db.nodes[job_id].items():
                if (state := before.nodes[job_id].get(node_id)) is not node:
                    self._node(state, node)
        self._require(not before.jobs.keys() - db.jobs.keys(), "a job has disappeared")
        self._require(not before.tasks.keys() - db.tasks.keys(), "a task has disappeared")
        self._require(not before.results.keys() - db.results.keys(), "a result has disappeared")
        self._answer(answer)
        if changed and self._world.random.random() < _AUDITED:
            self._audit(changed[0])

    def _answer(self, answer: Any) -> None:
        match answer:
            case MemoryStep():
                self.counters.fenced += len(answer.fenced)
                for claim in (claim for claim in self.arguments[1] if claim.job_id in answer.fenced):
                    self._refused[claim.token] += 1
                    self._require(
                        self._refused[claim.token] <= _MAX_REFUSALS, f"an owner does not give up job {claim.job_id}"
                    )
            case Exchange():
                self.counters.late_reports += len(answer.late)
                self._limits({task.queue for task in answer.claimed})
            case True if self.name == "save_checkpoint":
                held = self.arguments[0]
                task = self._db.tasks[held.job_id, held.node_id, held.attempt]
                self._require(
                    task.status is TaskStatus.RUNNING, f"{task.task_id} is {task.status}, but saved a checkpoint"
                )
            case False if self.name == "save_checkpoint":
                self.counters.refused_checkpoints += 1
            case frozenset() if self.name == "renew":
                self.counters.refused_renewals += len(answer)
                self._lost |= answer

    def _audit(self, job_id: UUID) -> None:
        self.counters.audits += 1
        for finding in audit(self._db, job_id, self._world.settings.max_losses):
            self._world.report_violation(f"while the job runs: {finding}")

    # Jobs

    def _job(self, old: Job | None, job: Job) -> None:
        if old is None:
            self._require(self.name in ("create_jobs", "create_once", "take_messages"), f"{self.name} created a job")
            return
        self._require(job.epoch >= old.epoch, f"the epoch of {job.job_id} went back")
        self._require(job.epoch == old.epoch or self.name in CLAIMS, f"{self.name} raised an epoch")
        is_over = old.status in JOB_TERMINAL and self.name != "rerun"
        self._require(not is_over, f"{self.name} changed a job that was {old.status}")
        match self.name:
            case "claim_jobs" | "claim_orphans":
                self._claim(old, job)
            case "advance":
                self._fence(old)
            case "release_unknown" if old.job_id in self.arguments[1]:
                self._require(False, f"job {old.job_id} was released, although its owner knows it")
            case "retire" | "release_unknown":
                self._require(old.owner_id == self.arguments[0], f"{self.name} released a job of {old.owner_id}")
        if job.owner_id is None:
            self._claims.pop(job.job_id, None)

    def _claim(self, old: Job, job: Job) -> None:
        """By the clock of the server, the old owner must have been silent for too long, and the new owner must not."""
        if old.owner_id is not None:
            silent, most = self._silence(old.owner_id), self._world.settings.orphan_threshold_sec
            self._require(silent >= most - 1e-3, f"a job was taken from an owner that was silent for {silent} s only")
            own = self._silence(self.arguments[0])
            self._require(own < most, f"a job was taken by an orchestrator that was silent for {own} s")
        self._require(job.epoch == old.epoch + 1, f"a claim went from epoch {old.epoch} to {job.epoch}")
        self._require(job.owner_id == self.arguments[0], "a claim names another owner than the row of the job")
        assert job.claim_token
        self._claims[job.job_id] = Claim(job.job_id, job.claim_token, job.epoch)

    def _silence(self, owner_id: UUID) -> float:
        return self._world.loop.now - self._beats.get(owner_id, float("-inf"))

    def _fence(self, old: Job) -> None:
        """Only the last claim may write, and only its owner."""
        given = next((claim for claim in self.arguments[1] if claim.job_id == old.job_id), None)
        self._require(given is not None, f"job {old.job_id} was changed without a claim")
        self._require(given == self._claims.get(old.job_id), f"a stale owner has written to job {old.job_id}")
        self._require(
            old.owner_id == self.arguments[0], f"job {old.job_id} was written by an orchestrator that does not own it"
        )

    def _events(self, job_id: UUID, known: int) -> None:
        job, events = self._db.jobs[job_id], self._db.events[job_id]
        self._require(len(events) >= known, f"events of job {job_id} have disappeared")
        self._require(
            len(events) == job.last_sequence, f"job {job_id} has {len(events)} events, its row says {job.last_sequence}"
        )
        for number, event in enumerate(events[known:], known + 1):
            self._require(event.sequence == number, f"event {event.sequence} of job {job_id} is number {number}")
            self._require(event.epoch == job.epoch, f"event {number} of job {job_id} is of another epoch")

    def _node(self, old: NodeState | None, node: NodeState) -> None:
        if old is None or old.not_before is None:
            return
        early = (old.not_before - self._db.clock()).total_seconds()
        self._require(node.status not in NODE_LIVE or early <= 1e-3, f"'{node.node_id}' started {early} s too early")

    # Tasks

    def _task(self, key: TaskKey, old: Task | None, task: Task) -> None:
        if old is None:
            self._new_task(key, task)
            return
        if old.status is task.status:
            return
        move = f"task {task.task_id} went from {old.status} to {task.status} by {self.name}"
        self._require(old.status in LIVE, move)
        match self.name, task.status:
            case "exchange", TaskStatus.RUNNING:
                self._claimed[key] += 1
                self._require(old.status is TaskStatus.QUEUED and self._claimed[key] == 1, f"{move}, again")
                job = self._db.jobs[task.job_id]
                self._require(job.status not in JOB_TERMINAL, f"{move}, although its job is {job.status}")
            case "exchange", _:
                is_own = old.status is TaskStatus.RUNNING and old.worker_id == self.arguments[0]
                self._require(is_own, f"{move}, by a worker that didn't hold it")
            case "advance", TaskStatus.LOST:
                self.counters.losses += 1
                lease = old.lease_until
                self._require(lease is not None and lease < self._db.clock(), f"{move}, although its lease is valid")
                calm, worker = self._world.calm_seconds, self._world.name_of(old.worker_id)
                self._require(
                    calm < _SETTLED_SECONDS or worker not in self._world.alive_names(),
                    f"{move}, although {worker} is alive",
                )
            case "advance", TaskStatus.FAILED:
                self._require(self._has_overrun(old), f"{move}, although its timeout is not over")
            case "advance", TaskStatus.CANCELLED:
                self._require(old.status is TaskStatus.QUEUED, f"{move}, although a worker runs it")
            case _:
                self._require(False, move)

    def _has_overrun(self, task: Task) -> bool:
        limit = timedelta(seconds=task.timeout_seconds + OVERRUN_GRACE_SECONDS)
        return task.started_at is not None and task.started_at + limit < self._db.clock()

    def _new_task(self, key: TaskKey, task: Task) -> None:
        self.counters.attempts += 1
        job_id, node_id, attempt = key
        others = [row for row in self._db.tasks_of(job_id) if row.node_id == node_id and row.attempt != attempt]
        live = [row.attempt for row in others if row.status in LIVE]
        self._require(not live, f"{task.task_id} was dispatched while attempts {live} are live")
        self._require(attempt == len(others) + 1, f"{task.task_id} comes after {len(others)} attempts")
        self._require(self.name == "advance", f"{self.name} created a task")

    def _limits(self, queues: set[str]) -> None:
        for queue in queues:
            settings = self._db.queues.get(queue)
            running = sum(t.status is TaskStatus.RUNNING and t.queue == queue for t in self._db.tasks.values())
            if settings is not None:
                most = running if settings.max_running is None else settings.max_running
                self._require(running <= most, f"{running} tasks of {queue} run, of at most {most}")
                self._require(not settings.is_paused, f"a task of the paused queue {queue} was claimed")

    # Results

    def _result(self, key: TaskKey, old: TaskResult | None, result: TaskResult, task: Task | None) -> None:
        if old is None:
            self._require(self.name == "exchange", f"{self.name} created a result")
            if result.accepted:
                self._accepted(key, result, task)
            return
        self._require(self.name == "advance", f"{self.name} changed a result")
        self._require(
            result.processed and not old.processed,
            f"the result of {result.task_id} was processed again, or marked as unprocessed",
        )
        self._require(old.accepted, f"the result of {result.task_id} was processed, although it came too late")
        same = {"processed": None}
        self._require(
            old.model_copy(update=same) == result.model_copy(update=same), f"the result of {result.task_id} has changed"
        )

    def _accepted(self, key: TaskKey, result: TaskResult, task: Task | None) -> None:
        self._accepted_by[key] += 1
        self._require(self._accepted_by[key] == 1, f"two results of {result.task_id} were accepted")
        held = task is not None and task.status is TaskStatus.RUNNING and task.worker_id == result.worker_id
        self._require(held, f"a result of {result.task_id} was accepted from a worker that didn't hold it")
        if result.status is not TaskStatus.SUCCEEDED:
            return
        run = self._db.nodes[key[0]][key[1]].run
        self._published[key[0], key[1], run] += 1
        self._require(self._published[key[0], key[1], run] == 1, f"'{key[1]}' has published twice in its run {run}")
        effects = self._world.handlers.effects
        if isinstance(result.output, dict):
            effect = f"{result.task_id}@{self._world.name_of(result.worker_id)}"
            self._require(
                result.output["effect"] == effect, f"{result.task_id} was accepted with the effect of another attempt"
            )
            self._require(effect in effects.finished, f"{result.task_id} was accepted without an effect")

    # At the end

    def at_the_end(self, *, is_quiet: bool) -> None:
        """`is_quiet`: everything should have ended."""
        for finding in findings_of(self._db, max_losses=self._world.settings.max_losses):
            self._world.report_violation(str(finding))
        self._submissions(is_quiet=is_quiet)
        self._dead_letters()
        executed = self._world.handlers.effects.executed
        for task_id, times in executed.items():
            self._require(times == 1, f"attempt {task_id} was executed {times} times")
        if is_quiet:
            self._leftovers()
            self._reports()
            self._count_repeated_executions()

    def _submissions(self, *, is_quiet: bool) -> None:
        jobs = Counter(job.idempotency_key or job.message_id for job in self._db.jobs.values())
        for name, job_id in self._world.acknowledged.items():
            is_waiting = name in self._db.messages and not is_quiet
            self._require(
                jobs[name] == 1 or (jobs[name] == 0 and is_waiting),
                f"'{name}' was submitted once, but has {jobs[name]} jobs",
            )
            self._require(job_id is None or job_id in self._db.jobs, f"the job of '{name}' is lost")
        self._require(all(count == 1 for count in jobs.values()), f"submissions with several jobs: {jobs}")

    def _dead_letters(self) -> None:
        for letter in self._db.dead_letters:
            is_explained = letter.reason == "PoisonTask" and letter.description and letter.body
            self._require(bool(is_explained), f"a dead letter has no reason: {letter}")

    def _leftovers(self) -> None:
        live = [task.task_id for task in self._db.tasks.values() if task.status in LIVE]
        self._require(not live, f"these tasks never ended: {live}")
        for job_id, job in self._db.jobs.items():
            nodes = self._db.definitions[job.definition_hash].nodes
            for node_id, row in self._db.nodes[job_id].items():
                own = nodes[row.parent_node_id or node_id]
                is_work = row.parent_node_id is not None or (
                    work_of(own) is not None and not isinstance(own, FanOutNode)
                )
                if is_work and row.status is NodeStatus.COMPLETED:
                    count = self._published[job_id, node_id, row.run]
                    self._require(count == 1, f"'{node_id}' has completed, but has published {count} times")

    def _reports(self) -> None:
        """A live worker reports everything that it has finished, unless it has lost the task."""
        now, alive = self._world.loop.now, self._world.alive_names()
        reported = {result.task_id for result in self._db.results.values()}
        if self._world.calm_seconds > _REPORT_SECONDS:
            for task_id, (name, ended_at) in self._world.handlers.effects.ended.items():
                is_accounted = task_id in reported or task_id in self._lost or now - ended_at < _REPORT_SECONDS
                self._require(is_accounted or name not in alive, f"{name} never reported the end of {task_id}")

    def _count_repeated_executions(self) -> None:
        executed = self._world.handlers.effects.executed
        self.counters.doubled_executions = len(executed) - len(self._published)
