"""The ledger in memory: the same semantics on plain dictionaries and a clock that is passed in.

For simulations and for tests of handlers. It passes the same conformance suite as the one on PostgreSQL. Each call
happens at one instant, as a transaction does; a step must not wait between its begin and its commit. `MemoryDatabase`
is the state that several ledgers (processes) share.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Unpack
from uuid import UUID, uuid4

import orjson

from dagmaster.database.ledger.protocol import (
    EVERY_MESSAGE,
    OVERRUN_GRACE_SECONDS,
    PAGE_BYTES,
    SMALL_BYTES,
    ChooseRerun,
    Claim,
    ClaimedMessage,
    DeferralReview,
    Demand,
    Exchange,
    LoadedJob,
    MessageScope,
    NewJob,
    OpenJob,
    OrchestratorInfo,
    PendingWork,
    QueueChange,
    Report,
    Running,
    StepScope,
    WorkerInfo,
    dead_letter_of_conflict,
    key_conflict,
    no_such_job,
    opening_nodes,
    too_large_for_a_template,
)
from dagmaster.database.notify.notifier import JOBS, RESULTS, Notifier, WithNotifier, tasks_topic
from dagmaster.jobs import fan, payload
from dagmaster.jobs.changes import Changes, NodeChange, PoisonedTask
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import (
    Checkpoint,
    DeadLetter,
    Job,
    JobEvent,
    JobMessage,
    NodeState,
    OutboxMessage,
    Payload,
    QueueSettings,
    Task,
    TaskMessage,
    TaskResult,
    task_id,
    task_key,
)
from dagmaster.jobs.payload import LOADABLE_BYTES, Encoded, Reference, by_reference
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.states import (
    JOB_MOVES,
    JOB_RERUNS,
    NODE_LIVE,
    NODE_MOVES,
    NODE_RERUNS,
    NODE_TERMINAL,
    NOT_ADVANCED,
    TASK_MOVES,
    EventType,
    JobStatus,
    NodeStatus,
    Stop,
    TaskStatus,
)
from dagmaster.jobs.updates import (
    Due,
    Expired,
    Failed,
    Idle,
    Lost,
    Overran,
    Returned,
    Started,
    StopRequest,
    Succeeded,
    TaskUpdate,
    Withdrawn,
)
from dagmaster.jobs.view import NodeView
from dagmaster.workflows.model import Aggregation, Workflow

TaskKey = tuple[UUID, str, int]
NodeColumns = tuple[str, int, str | None, int | None, NodeStatus, int, int]
_ACTIVE = (JobStatus.PENDING, JobStatus.RUNNING)


@dataclass
class MemoryDatabase:
    """The tables. Rows are frozen records; a change replaces the row."""

    clock: Callable[[], datetime]
    definitions: dict[str, Workflow] = field(default_factory=dict)
    jobs: dict[UUID, Job] = field(default_factory=dict)
    nodes: dict[UUID, dict[str, NodeState]] = field(default_factory=lambda: defaultdict(dict))
    tasks: dict[TaskKey, Task] = field(default_factory=dict)
    results: dict[TaskKey, TaskResult] = field(default_factory=dict)
    events: dict[UUID, list[JobEvent]] = field(default_factory=lambda: defaultdict(list))
    orchestrators: dict[UUID, datetime] = field(default_factory=dict)
    routers: dict[UUID, OrchestratorInfo] = field(default_factory=dict)  # which work each orchestrator can route
    workers: dict[UUID, WorkerInfo] = field(default_factory=dict)
    worker_beats: dict[UUID, datetime] = field(default_factory=dict)
    checkpoints: dict[tuple[UUID, str], dict[str, Checkpoint]] = field(default_factory=lambda: defaultdict(dict))
    messages: dict[str, JobMessage] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    keys: dict[tuple[str, str], tuple[UUID, str]] = field(default_factory=dict)
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    payloads: dict[tuple[UUID, str], Payload] = field(default_factory=dict)
    payload_parts: dict[tuple[UUID, str], bytes] = field(default_factory=dict)  # each in one part
    outbox: dict[TaskKey, OutboxMessage] = field(default_factory=dict)
    writes_outbox: bool = False
    position: int = 0
    event_id: int = 0

    def move_task(self, key: TaskKey, to: TaskStatus, **columns: Any) -> Task:
        row = self.tasks[key]
        _require(to in TASK_MOVES[row.status], f"task {row.task_id}: {row.status} may not become {to}")
        self.tasks[key] = row.model_copy(update={"status": to, **columns})
        return self.tasks[key]

    def move_node(self, job_id: UUID, node_id: str, to: NodeStatus, **columns: Any) -> NodeState:
        row = self.nodes[job_id][node_id]
        _require(to is row.status or to in NODE_MOVES[row.status], f"node {node_id}: {row.status} may not become {to}")
        updated = row.model_copy(update={"status": to, "version": row.version + 1, **columns})
        _require((updated.remaining or 0) >= 0, f"node {node_id}: remaining below zero")
        _require((updated.expanded or 0) <= (updated.total or 0), f"node {node_id}: more children than planned")
        _require(updated.not_before is None or to is NodeStatus.READY, f"node {node_id}: waits, but is {to}")
        self.nodes[job_id][node_id] = updated
        return updated

    def add_task(self, job_id: UUID, node_id: str, attempt: int, **columns: Any) -> None:
        key = (job_id, node_id, attempt)
        live = [
            t
            for t in self.tasks_of(job_id)
            if t.node_id == node_id and t.status in (TaskStatus.QUEUED, TaskStatus.RUNNING)
        ]
        _require(key not in self.tasks and not live, f"node {node_id} has a live task")
        self.position += 1
        self.tasks[key] = Task.model_construct(
            job_id=job_id,
            node_id=node_id,
            attempt=attempt,
            task_id=task_id(job_id, node_id, attempt),
            position=self.position,
            status=TaskStatus.QUEUED,
            available_at=self.clock(),
            worker_id=None,
            lease_until=None,
            started_at=None,
            finished_at=None,
            progress=None,
            stop_requested_at=None,
            stop_seen_at=None,
            **{"params_ref": None, "traceparent": None, **columns},
        )
        if self.writes_outbox:
            now = self.clock()
            self.outbox[key] = OutboxMessage(
                job_id=job_id,
                node_id=node_id,
                attempt=attempt,
                queue=columns["queue"],
                not_before=now,
                written_at=now,
            )

    def add_payload(self, job_id: UUID, reference: Reference, encoded: Encoded, *, is_kept: bool = False) -> None:
        key = (job_id, reference["sha256"])
        stored = self.payloads.get(key)
        self.payload_parts.setdefault(key, bytes(encoded))
        self.payloads[key] = Payload(
            job_id=job_id,
            sha256=reference["sha256"],
            size_bytes=reference["bytes"],
            stored_at=self.clock(),
            is_kept=is_kept or (stored is not None and stored.is_kept),
        )

    def keep_payload(self, job_id: UUID, reference: Reference) -> None:
        key = (job_id, reference["sha256"])
        if key not in self.payloads:
            raise payload.missing(job_id, reference["sha256"])
        self.payloads[key] = self.payloads[key].model_copy(update={"is_kept": True})

    def payload(self, job_id: UUID, reference: Reference) -> bytes:
        encoded = self.payload_parts.get((job_id, reference["sha256"]))
        if encoded is None:
            raise payload.missing(job_id, reference["sha256"])
        payload.check(job_id, reference, payload.reference_to(encoded))
        return encoded

    def tasks_of(self, job_id: UUID) -> list[Task]:
        return [task for key, task in self.tasks.items() if key[0] == job_id]

    def add_event(self, job_id: UUID, sequence: int, type_: EventType, **columns: Any) -> None:
        _require(len(self.events[job_id]) + 1 == sequence, f"event {sequence} of job {job_id} is out of order")
        self.event_id += 1
        at = columns.pop("created_at", None) or self.clock()
        self.events[job_id].append(
            JobEvent(
                event_id=self.event_id, job_id=job_id, sequence=sequence, event_type=type_, created_at=at, **columns
            )
        )


class RefusedByGuard(AssertionError):
    """The guards of the database would refuse this change."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RefusedByGuard(message)


class MemoryLedger(WithNotifier):
    def __init__(self, database: MemoryDatabase, notifier: Notifier | None = None) -> None:
        self.db = database
        self._notifier = notifier

    # Submission

    async def create_jobs(self, jobs: Sequence[NewJob]) -> list[UUID]:
        created = [job.job_id for job in jobs if self._create(job)]
        self._notify(JOBS)
        return created

    def _create(self, new: NewJob) -> bool:
        db, now = self.db, self.db.clock()
        known_message = new.message_id and any(job.message_id == new.message_id for job in db.jobs.values())
        if new.job_id in db.jobs or known_message:
            return False
        db.definitions.setdefault(new.definition_hash, new.workflow)
        db.jobs[new.job_id] = Job(
            job_id=new.job_id,
            workflow_id=new.workflow.workflow_id,
            workflow_version=new.workflow.version,
            definition_hash=new.definition_hash,
            status=JobStatus.PENDING,
            input_params=_json_copy(new.input_params),
            priority=new.priority,
            correlation_id=new.correlation_id,
            submitted_by=new.submitted_by,
            callback_url=new.callback_url,
            idempotency_key=new.idempotency_key,
            message_id=new.message_id,
            traceparent=new.traceparent,
            asset_id=new.asset_id,
            version_ordinal=new.version_ordinal,
            deadline_at=now + timedelta(seconds=new.workflow.timeout_seconds),
            last_sequence=2,
            created_at=now,
            updated_at=now,
        )
        opening = opening_nodes(new.workflow)
        for row in opening:
            db.nodes[new.job_id][row["node_id"]] = NodeState(job_id=new.job_id, **row)
        data = {
            "workflow_id": new.workflow.workflow_id,
            "definition_hash": new.definition_hash,
            "nodes": [row["node_id"] for row in opening],
        }
        db.add_event(new.job_id, 1, EventType.JOB_CREATED, event_status="pending", epoch=0, event_data=data)
        start = next(row["node_id"] for row in opening if row["status"] == NodeStatus.READY)
        db.add_event(new.job_id, 2, EventType.NODE_READY, node_id=start, event_status="ready", epoch=0)
        return True

    async def create_once(self, job: NewJob, request_hash: str, *, force: bool = False) -> UUID:
        key = (job.submitted_by or "", job.idempotency_key or "")
        existing = self.db.keys.get(key)
        if existing is not None and existing[1] != request_hash:
            raise key_conflict(job, existing[0])
        if existing is not None and not force:
            return existing[0]
        self.db.keys[key] = (job.job_id, request_hash)
        self._create(job)
        self._notify(JOBS)
        return job.job_id

    async def replay_dead_letter(self, dead_letter_id: UUID, queue: str) -> bool:
        letters = self.db.dead_letters
        letter = next((x for x in letters if x.dead_letter_id == dead_letter_id and x.queue == queue), None)
        if letter is None:
            return False
        letters.remove(letter)
        await self.enqueue_message(letter.message_id or str(dead_letter_id), queue, letter.body)
        return True

    async def set_queue(self, queue: str, **changes: Unpack[QueueChange]) -> None:
        now = self.db.clock()
        before = self.db.queues.get(queue) or QueueSettings(queue=queue, updated_at=now)
        self.db.queues[queue] = before.model_copy(update={**changes, "updated_at": now})
        self._notify(tasks_topic(queue))

    def _is_limited(self, queue: str) -> bool:
        settings = self.db.queues.get(queue)
        return settings is not None and settings.max_running is not None

    def _free_capacity(self, queue: str) -> int | None:
        """How many more tasks of a queue may run; None if there is no limit."""
        settings = self.db.queues.get(queue)
        if settings is None or (settings.max_running is None and not settings.is_paused):
            return None
        running = sum(task.status is TaskStatus.RUNNING and task.queue == queue for task in self.db.tasks.values())
        return 0 if settings.is_paused else max(0, (settings.max_running or 0) - running)

    async def drop_dead_letter(self, dead_letter_id: UUID) -> None:
        self.db.dead_letters = [letter for letter in self.db.dead_letters if letter.dead_letter_id != dead_letter_id]

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool:
        if message_id in self.db.messages:
            return False
        self.db.messages[message_id] = JobMessage(
            message_id=message_id, queue=queue, body=_json_copy(body), enqueued_at=self.db.clock()
        )
        self._notify(JOBS)
        return True

    async def has_message(self, message_id: str, queue: str) -> bool:
        has_job = any(job.message_id == message_id for job in self.db.jobs.values())
        has_letter = any((x.queue, x.message_id) == (queue, message_id) for x in self.db.dead_letters)
        return message_id in self.db.messages or has_job or has_letter

    async def take_messages(
        self,
        queue: str,
        limit: int,
        handle: Callable[[JobMessage], NewJob | DeadLetter],
        *,
        scope: MessageScope = EVERY_MESSAGE,
    ) -> list[UUID | str]:
        late = self.db.clock() - timedelta(seconds=scope.unknown_after_seconds)
        queued = [m for m in self.db.messages.values() if m.queue == queue]
        due = [m for m in queued if m.enqueued_at <= late or _is_known(m, scope)]
        waiting = sorted(due, key=lambda m: m.enqueued_at)[:limit]
        keys = dict(self.db.keys)
        try:
            outcomes = [self._reserved(message, handle(message)) for message in waiting]
        except BaseException:
            self.db.keys = keys
            raise
        for message in waiting:
            del self.db.messages[message.message_id]
        created = [job.job_id for job in outcomes if isinstance(job, NewJob) and self._create(job)]
        letters = [letter for letter in outcomes if isinstance(letter, DeadLetter)]
        known = [(letter.queue, letter.message_id, letter.body) for letter in self.db.dead_letters]
        self.db.dead_letters.extend(x for x in letters if (x.queue, x.message_id, x.body) not in known)
        return [*created, *(letter.message_id or "" for letter in letters)]

    # Operations

    def _reserved(self, message: JobMessage, outcome: NewJob | DeadLetter) -> NewJob | DeadLetter | None:
        """Reserve the idempotency key of a job. Returns None if the message is a repetition, and its job exists."""
        if isinstance(outcome, DeadLetter) or outcome.idempotency_key is None:
            return outcome
        if any(job.message_id == message.message_id for job in self.db.jobs.values()):
            return None
        key = (outcome.submitted_by or "", outcome.idempotency_key)
        existing_id, request = self.db.keys.setdefault(key, (outcome.job_id, outcome.request_hash))
        if request != outcome.request_hash:
            return dead_letter_of_conflict(message, outcome, existing_id)
        return outcome if existing_id == outcome.job_id else None

    async def rerun(self, job_id: UUID, choose: ChooseRerun, event_data: Mapping[str, Any]) -> tuple[Rerun, int]:
        db, job = self.db, self.db.jobs.get(job_id)
        if job is None:
            raise no_such_job(job_id)
        rerun = choose(self._load(job))
        _require(JobStatus.RUNNING in JOB_RERUNS.get(job.status, ()), f"job {job_id}: {job.status} may not run again")
        sequence = job.last_sequence + 1
        db.add_event(
            job_id,
            sequence,
            EventType.JOB_RESUMED,
            event_status=JobStatus.RUNNING,
            epoch=job.epoch,
            event_data=dict(event_data),
        )
        children = self._children_to_rerun(job_id, rerun)
        stale = {child.node_id for child in children if self._is_of_earlier_run(child, rerun)}
        for node_id in (*rerun.nodes, *(child.node_id for child in children)):
            sequence += 1
            self._reset(job_id, db.nodes[job_id][node_id], is_child=node_id not in rerun.nodes)
            if rerun.discards_checkpoints:
                db.checkpoints.pop((job_id, node_id), None)
            db.add_event(
                job_id,
                sequence,
                EventType.NODE_RESET,
                node_id=node_id,
                event_status=NodeStatus.PENDING,
                epoch=job.epoch,
                event_data={"is_reexpanded": True, "anew": True} if node_id in rerun.reexpanded else None,
            )
        for fan_out in {child.parent_node_id for child in children} | set(rerun.reexpanded):
            self._recount(job_id, fan_out or "", children, stale, is_reexpanded=fan_out in rerun.reexpanded)
        now, seconds = db.clock(), rerun.timeout_seconds
        cleared = dict.fromkeys(
            (
                "owner_id",
                "claim_token",
                "completed_at",
                "result_data",
                "error_message",
                "cancel_requested_at",
                "cancel_requested_by",
                "cancel_reason",
                "stopping",
            )
        )
        db.jobs[job_id] = job.model_copy(
            update={
                **cleared,
                "status": JobStatus.RUNNING,
                "resume_count": job.resume_count + 1,
                "last_sequence": sequence,
                "deadline_at": None if seconds is None else now + timedelta(seconds=seconds),
                "updated_at": now,
                "version": job.version + 1,
            }
        )
        self._notify(JOBS)
        return rerun, job.resume_count + 1

    def _children_to_rerun(self, job_id: UUID, rerun: Rerun) -> list[NodeState]:
        unsuccessful = (NodeStatus.FAILED, NodeStatus.CANCELLED)
        chosen = [
            n
            for n in self.db.nodes[job_id].values()
            if n.parent_node_id in rerun.reexpanded
            or (n.parent_node_id in rerun.children and n.status in unsuccessful)
            or n.node_id in rerun.single
        ]
        return sorted(chosen, key=lambda n: (n.parent_node_id or "", n.fan_out_index or 0))

    def _is_of_earlier_run(self, child: NodeState, rerun: Rerun) -> bool:
        parent = self.db.nodes[child.job_id][child.parent_node_id or ""]
        return child.parent_node_id in rerun.reexpanded or (child.fan_out_index or 0) >= (parent.expanded or 0)

    def _recount(
        self, job_id: UUID, fan_out: str, children: Sequence[NodeState], stale: Collection[str], *, is_reexpanded: bool
    ) -> None:
        state = self.db.nodes[job_id][fan_out]
        own_children = [child for child in children if child.parent_node_id == fan_out]
        idle = [child for child in own_children if child.node_id not in stale]
        columns: dict[str, Any] = {"stale_count": len(own_children) - len(idle) or state.stale_count}
        if is_reexpanded:
            counters = ("total", "expanded", "remaining", "failed_count", "cancelled_count", "idle_count")
            columns |= dict.fromkeys(counters)
        else:
            columns |= {
                "remaining": None if state.remaining is None else state.remaining + len(idle),
                "failed_count": (state.failed_count or 0) - sum(c.status is NodeStatus.FAILED for c in idle),
                "cancelled_count": (state.cancelled_count or 0) - sum(c.status is NodeStatus.CANCELLED for c in idle),
                "idle_count": len(idle) or state.idle_count,
            }
        self.db.nodes[job_id][fan_out] = state.model_copy(update=columns)

    def _reset(self, job_id: UUID, row: NodeState, *, is_child: bool) -> None:
        _require(
            NodeStatus.PENDING in NODE_RERUNS.get(row.status, ()), f"node {row.node_id}: {row.status} cannot be reset"
        )
        cleared = dict.fromkeys(
            ("reason", "error", "error_message", "output", "output_ref", "started_at", "completed_at")
        )
        columns = {"status": NodeStatus.PENDING, "run": row.run + 1, "retry_count": 0, "loss_count": 0}
        columns |= {"is_idle": True} if is_child else {}
        self.db.nodes[job_id][row.node_id] = row.model_copy(update={**cleared, **columns, "version": row.version + 1})

    async def request_cancel(self, job_id: UUID, *, by: str | None, reason: str | None) -> tuple[JobStatus, bool]:
        job = self.db.jobs.get(job_id)
        if job is None:
            raise no_such_job(job_id)
        is_new = job.status in _ACTIVE and job.cancel_requested_at is None
        if is_new:
            now = self.db.clock()
            request = {
                "cancel_requested_at": now,
                "cancel_requested_by": by,
                "cancel_reason": reason,
                "updated_at": now,
            }
            self.db.jobs[job_id] = job.model_copy(update={**request, "version": job.version + 1})
        self._notify(RESULTS)
        return job.status, is_new

    # Orchestrators

    async def beat(self, orchestrator: OrchestratorInfo) -> None:
        self.db.orchestrators[orchestrator.owner_id] = self.db.clock()
        self.db.routers[orchestrator.owner_id] = orchestrator

    async def claim_jobs(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        return self._claim_free(owner_id, limit, orphan_after_seconds, unclaimed_after_seconds, with_orphans=False)

    async def claim_orphans(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        return self._claim_free(owner_id, limit, orphan_after_seconds, unclaimed_after_seconds, with_orphans=True)

    def _claim_free(
        self,
        owner_id: UUID,
        limit: int,
        orphan_after_seconds: float,
        unclaimed_after_seconds: float,
        *,
        with_orphans: bool,
    ) -> list[Claim]:
        db, now = self.db, self.db.clock()
        alive = {
            owner for owner, beat in db.orchestrators.items() if beat > now - timedelta(seconds=orphan_after_seconds)
        }
        active = [job for job in db.jobs.values() if job.status in _ACTIVE]
        owned = sum(job.owner_id == owner_id for job in active)
        capacity = max(0, min(limit, ceil(len(active) / max(1, len(alive))) - owned))
        may_claim_orphans = with_orphans and owner_id in alive
        free = [job for job in active if job.owner_id is None or (may_claim_orphans and job.owner_id not in alive)]
        free = [job for job in free if self._may_route(job, owner_id, alive)]
        if capacity == 0:
            free = [job for job in free if job.updated_at < now - timedelta(seconds=unclaimed_after_seconds)]
        free.sort(key=lambda job: (-job.priority, job.job_id))
        return [self._claim(job, owner_id, now) for job in free[: capacity or limit]]

    def _may_route(self, job: Job, owner_id: UUID, alive: set[UUID]) -> bool:
        """Deferred work waits for an orchestrator that can route it, as long as such an orchestrator is alive."""
        routers = {
            owner
            for owner in alive & self.db.routers.keys()
            if any(_is_known_to(work, [self.db.routers[owner]]) for work in job.deferred_work or ())
        }
        return not routers or owner_id in routers

    def _claim(self, job: Job, owner_id: UUID, now: datetime) -> Claim:
        token = uuid4()
        self.db.jobs[job.job_id] = job.model_copy(
            update={
                "owner_id": owner_id,
                "claim_token": token,
                "epoch": job.epoch + 1,
                "owner_heartbeat_at": now,
                "updated_at": now,
                "version": job.version + 1,
            }
        )
        return Claim(job.job_id, token, job.epoch + 1)

    async def load_jobs(self, job_ids: Sequence[UUID]) -> list[LoadedJob]:
        return [self._load(self.db.jobs[job_id]) for job_id in job_ids if job_id in self.db.jobs]

    async def load_job(self, job_id: UUID) -> LoadedJob | None:
        return next(iter(await self.load_jobs([job_id])), None)

    def _load(self, job: Job) -> LoadedJob:
        workflow = self.db.definitions[job.definition_hash]
        nodes = [self.db.nodes[job.job_id][node_id] for node_id in workflow.nodes]
        outputs = {
            node.node_id: copy.deepcopy(node.output)
            for node in nodes
            if node.status is NodeStatus.COMPLETED
            and node.output_ref is None
            and fan.size_bytes(node.output) <= SMALL_BYTES
        }
        views = {node.node_id: NodeView.from_row(workflow.nodes[node.node_id], dict(node)) for node in nodes}
        return LoadedJob(
            job.job_id,
            job.status,
            job.definition_hash,
            workflow,
            copy.deepcopy(job.input_params),
            job.priority,
            job.correlation_id,
            job.submitted_by,
            views,
            outputs,
            job.result_data,
            job.error_message,
            job.last_sequence,
            job.stopping,
            job.resume_count,
            job.deferred_work,
            job.traceparent,
        )

    async def load_outputs(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        return self._load_outputs(job_id, node_ids, lambda node: self._resolve(job_id, node))

    async def load_output_references(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        return self._load_outputs(job_id, node_ids, lambda node: by_reference(node.output_ref or {}))

    def _load_outputs(
        self, job_id: UUID, node_ids: Sequence[str], resolve: Callable[[NodeState], Any]
    ) -> dict[str, Any]:
        outputs = {}
        for node_id in node_ids:
            node = self.db.nodes[job_id][node_id]
            if node.status is not NodeStatus.COMPLETED:
                continue
            if node.output_ref is None:
                outputs[node_id] = copy.deepcopy(node.output)
            else:
                outputs[node_id] = resolve(node)
        return outputs

    def _resolve(self, job_id: UUID, node: NodeState) -> Any:
        reference = node.output_ref or {}
        if reference["bytes"] > LOADABLE_BYTES:
            raise too_large_for_a_template(node.node_id, reference["bytes"])
        if payload.is_payload(reference):
            return orjson.loads(self.db.payload(job_id, reference))
        return self._gathered(job_id, reference["results_of"], Aggregation(reference["aggregation"]))

    async def reported_jobs(self, owner_id: UUID) -> tuple[UUID, ...]:
        return tuple(job_id for job_id in self._owned_by(owner_id) if self._has_reports(job_id))

    def _owned_by(self, owner_id: UUID) -> set[UUID]:
        return {job.job_id for job in self.db.jobs.values() if job.owner_id == owner_id and job.status in _ACTIVE}

    async def sweep_jobs(self, owner_id: UUID, *, started_after_seconds: float = 0.2) -> PendingWork:
        owned = self._owned_by(owner_id)
        reported = await self.reported_jobs(owner_id)
        now = self.db.clock()
        late = {task.job_id for task in self.db.tasks.values() if task.job_id in owned and self._is_late(task, now)}
        waits = [
            (job_id, n.not_before)
            for job_id in owned
            for n in self.db.nodes[job_id].values()
            if n.not_before is not None
        ]
        old = now - timedelta(seconds=started_after_seconds)
        started = {
            t.job_id for job_id in owned for t in self._started_tasks(job_id) if t.started_at and t.started_at < old
        }
        coming = [(at - now).total_seconds() for _, at in waits if at > now]
        overdue = late | {job_id for job_id, at in waits if at <= now}
        overdue |= {job_id for job_id in owned if self._stop_of(job_id)}
        return PendingWork(reported, tuple(overdue), tuple(started), min(coming, default=None), len(owned))

    def _is_late(self, task: Task, now: datetime) -> bool:
        if task.status is TaskStatus.QUEUED:
            return task.expires_at is not None and task.expires_at < now
        return task.status is TaskStatus.RUNNING and (self._is_lease_expired(task, now) or self._has_overrun(task, now))

    def _is_lease_expired(self, task: Task, now: datetime) -> bool:
        return task.lease_until is not None and task.lease_until < now

    def _has_overrun(self, task: Task, now: datetime) -> bool:
        limit = timedelta(seconds=task.timeout_seconds + OVERRUN_GRACE_SECONDS)
        return task.started_at is not None and task.started_at + limit < now

    def _started_tasks(self, job_id: UUID) -> list[Task]:
        return [
            task
            for task in self.db.tasks_of(job_id)
            if task.status is TaskStatus.RUNNING and self.db.nodes[job_id][task.node_id].status is NodeStatus.DISPATCHED
        ]

    def open_jobs(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope
    ) -> AbstractAsyncContextManager["MemoryStep"]:
        return self._open(owner_id, claims, scope, fenced=self._fenced(owner_id, claims))

    def open_reported_jobs(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope
    ) -> AbstractAsyncContextManager["MemoryStep"]:
        reported = [claim for claim in claims if self._has_reports(claim.job_id)]
        return self._open(owner_id, reported, scope, fenced=frozenset())

    def _fenced(self, owner_id: UUID, claims: Sequence[Claim]) -> frozenset[UUID]:
        return frozenset(claim.job_id for claim in claims if not self._holds(owner_id, claim))

    @asynccontextmanager
    async def _open(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope, *, fenced: frozenset[UUID]
    ) -> AsyncIterator["MemoryStep"]:
        job_ids = sorted(claim.job_id for claim in claims if self._holds(owner_id, claim))
        saved = self._snapshot(job_ids)
        step = None
        try:
            sequences = {job_id: self.db.jobs[job_id].last_sequence for job_id in job_ids}
            stops = {job_id: self._stop_of(job_id) for job_id in job_ids}
            updates, has_more = self._take_updates(job_ids, scope)
            jobs = {
                job_id: OpenJob(self.db.jobs[job_id].epoch, sequences[job_id], stops[job_id], updates[job_id])
                for job_id in job_ids
            }
            step = MemoryStep(self, jobs, fenced, has_more)
            yield step
        finally:
            if step is None or not step.is_committed:
                self._restore(saved)

    def _has_reports(self, job_id: UUID) -> bool:
        job = self.db.jobs[job_id]
        if job.cancel_requested_at is not None and job.stopping is None:
            return True
        return any(result.job_id == job_id and not result.processed for result in self.db.results.values())

    def _stop_of(self, job_id: UUID) -> StopRequest | None:
        job = self.db.jobs[job_id]
        if job.stopping is not None:
            return None
        if job.cancel_requested_at is not None:
            return StopRequest(Stop.CANCELLED, job.cancel_requested_by, job.cancel_reason)
        is_late = job.deadline_at is not None and job.deadline_at < self.db.clock()
        return StopRequest(Stop.DEADLINE) if is_late else None

    def _holds(self, owner_id: UUID, claim: Claim) -> bool:
        job = self.db.jobs.get(claim.job_id)
        return job is not None and job.owner_id == owner_id and job.claim_token == claim.token and job.status in _ACTIVE

    def _snapshot(self, job_ids: Iterable[UUID]) -> list[tuple[UUID, Any]]:
        """Rows are frozen, so a transaction's undo log is a shallow copy of the jobs' rows."""
        db = self.db
        return [
            (
                job_id,
                (
                    db.jobs[job_id],
                    dict(db.nodes[job_id]),
                    {key: row for key, row in db.tasks.items() if key[0] == job_id},
                    {key: row for key, row in db.results.items() if key[0] == job_id},
                    list(db.events[job_id]),
                    {key: row for key, row in db.payloads.items() if key[0] == job_id},
                ),
            )
            for job_id in job_ids
        ]

    def _restore(self, saved: list[tuple[UUID, Any]]) -> None:
        db = self.db
        for job_id, (job, nodes, tasks, results, events, payloads) in saved:
            tables: tuple[tuple[dict[Any, Any], dict[Any, Any]], ...] = (
                (db.tasks, tasks),
                (db.results, results),
                (db.payloads, payloads),
            )
            for table, rows in tables:
                for key in [key for key in table if key[0] == job_id]:
                    del table[key]
                table.update(rows)
            for key in [key for key in db.outbox if key[0] == job_id and key not in tasks]:
                del db.outbox[key]
            db.jobs[job_id], db.nodes[job_id], db.events[job_id] = job, nodes, events

    def _take_updates(
        self, job_ids: list[UUID], scope: StepScope
    ) -> tuple[dict[UUID, list[TaskUpdate]], frozenset[UUID]]:
        updates: dict[UUID, list[TaskUpdate]] = {job_id: [] for job_id in job_ids}
        has_more = set()
        per_job = max(50, scope.limit // max(1, len(job_ids)))
        for job_id in job_ids:
            waiting = [r for r in self.db.results.values() if r.job_id == job_id and not r.processed]
            updates[job_id].extend(self._take_result(result) for result in waiting[:per_job])
            if len(waiting) >= per_job:
                has_more.add(job_id)
            if job_id in scope.overdue:
                updates[job_id].extend(self._take_overdue(job_id))
            if job_id in scope.overdue | scope.withdraw:
                updates[job_id].extend(self._take_waiting(job_id, everything=job_id in scope.withdraw))
            if job_id in scope.started:
                updates[job_id].extend(
                    Started(*self._node_columns(t), t.started_at, str(t.worker_id))
                    for t in self._started_tasks(job_id)
                    if t.started_at
                )
            if job_id in scope.withdraw:
                updates[job_id].extend(self._withdraw(job_id))
            if job_id in scope.stop_running:
                self._ask_to_stop(job_id)
            for fan_out, count in ((key[1], count) for key, count in scope.wake.items() if key[0] == job_id):
                updates[job_id].extend(self._take_idle(job_id, fan_out)[:count])
        return updates, frozenset(has_more)

    def _node_columns(self, row: Task | TaskResult) -> NodeColumns:
        node = self.db.nodes[row.job_id][row.node_id]
        return (
            node.node_id,
            row.attempt,
            node.parent_node_id,
            node.fan_out_index,
            node.status,
            node.retry_count,
            node.loss_count,
        )

    def _take_result(self, result: TaskResult) -> TaskUpdate:
        key = (result.job_id, result.node_id, result.attempt)
        self.db.results[key] = result.model_copy(update={"processed": True})
        node_columns = self._node_columns(result)
        worker = str(result.worker_id)
        match result.status:
            case TaskStatus.SUCCEEDED:
                has_output = (
                    node_columns[2] is None
                    and result.output_ref is None
                    and fan.size_bytes(result.output) <= SMALL_BYTES
                )
                output = copy.deepcopy(result.output) if has_output else None
                return Succeeded(*node_columns, result.started_at, result.reported_at, worker, output, has_output)
            case TaskStatus.RETURNED | TaskStatus.CANCELLED:
                return Returned(*node_columns, result.started_at, result.reported_at, worker)
            case _:
                error = result.error or {"message": "the task failed without an error message"}
                return Failed(*node_columns, result.started_at, result.reported_at, worker, error)

    def _take_overdue(self, job_id: UUID) -> list[TaskUpdate]:
        now = self.db.clock()
        updates: list[TaskUpdate] = []
        for task in self.db.tasks_of(job_id):
            if not self._is_late(task, now):
                continue
            key = (job_id, task.node_id, task.attempt)
            node_columns = self._node_columns(task)
            ended: dict[str, Any] = {"finished_at": now, "lease_until": None}
            if task.status is TaskStatus.QUEUED and task.expires_at:
                self.db.move_task(key, TaskStatus.CANCELLED, **ended)
                updates.append(Expired(*node_columns, (task.expires_at - task.available_at).total_seconds()))
            elif self._is_lease_expired(task, now):
                self.db.move_task(key, TaskStatus.LOST, **ended)
                updates.append(Lost(*node_columns, task.started_at, str(task.worker_id)))
            else:
                self.db.move_task(key, TaskStatus.FAILED, **ended)
                updates.append(Overran(*node_columns, task.started_at, str(task.worker_id), task.timeout_seconds))
        return updates

    def _take_waiting(self, job_id: UUID, *, everything: bool) -> list[TaskUpdate]:
        now = self.db.clock()
        return [
            Due(n.node_id, n.attempt, n.parent_node_id, n.fan_out_index, n.status, n.retry_count, n.loss_count)
            for n in self.db.nodes[job_id].values()
            if n.not_before is not None and (everything or n.not_before <= now)
        ]

    def _ask_to_stop(self, job_id: UUID) -> None:
        for task in self.db.tasks_of(job_id):
            if task.status is TaskStatus.RUNNING and task.stop_requested_at is None:
                stopping = task.model_copy(update={"stop_requested_at": self.db.clock()})
                self.db.tasks[job_id, task.node_id, task.attempt] = stopping

    def _take_idle(self, job_id: UUID, fan_out: str) -> list[TaskUpdate]:
        idle = [n for n in self.db.nodes[job_id].values() if n.parent_node_id == fan_out and n.is_idle]
        return [
            Idle(n.node_id, n.attempt, n.parent_node_id, n.fan_out_index, n.status, n.retry_count, n.loss_count)
            for n in sorted(idle, key=lambda n: n.fan_out_index or 0)
        ]

    def _withdraw(self, job_id: UUID) -> list[TaskUpdate]:
        updates: list[TaskUpdate] = []
        for task in self.db.tasks_of(job_id):
            if task.status is TaskStatus.QUEUED:
                key = (job_id, task.node_id, task.attempt)
                self.db.move_task(key, TaskStatus.CANCELLED, finished_at=self.db.clock(), lease_until=None)
                updates.append(Withdrawn(*self._node_columns(task)))
        return updates

    def apply(self, change: Changes) -> set[str]:
        """Write the changes of a step. Returns the queues of tasks that are retried."""
        db, job_id = self.db, change.job_id
        for sha256, encoded in change.payloads.items():
            db.add_payload(job_id, {"sha256": sha256, "bytes": len(encoded)}, encoded, is_kept=True)
        for node_id in dict.fromkeys(change.promoted):
            if db.nodes[job_id][node_id].status is not NodeStatus.READY:
                db.move_node(job_id, node_id, NodeStatus.READY, not_before=None)
        for row in change.nodes:
            self._write_node(job_id, row)
        for parent, children in change.children.items():
            for child in children:
                _require(child.node_id not in db.nodes[job_id], f"child {child.node_id} exists")
                db.nodes[job_id][child.node_id] = NodeState(
                    job_id=job_id,
                    node_id=child.node_id,
                    status=NodeStatus.DISPATCHED,
                    parent_node_id=parent,
                    fan_out_index=child.index,
                    label=child.label,
                    attempt=1,
                    max_retries=child.max_retries,
                    dispatched_at=db.clock(),
                )
        queues = self._write_tasks(change)
        db.dead_letters.extend(self._poisoned(job_id, poisoned) for poisoned in change.poisoned)
        for event in change.events:
            db.add_event(
                job_id,
                event.sequence,
                event.type,
                node_id=event.node_id,
                event_status=event.status,
                attempt=event.attempt,
                epoch=change.epoch,
                event_data=copy.deepcopy(event.data),
                created_at=event.at,
            )
        self._write_job(change)
        for gathering in change.completed_fan_ins:
            self._gather(job_id, gathering.node_id, gathering.fan_out, gathering.aggregation)
        return queues

    def _poisoned(self, job_id: UUID, poisoned: PoisonedTask) -> DeadLetter:
        task = self.db.tasks[job_id, poisoned.node_id, poisoned.attempt]
        body = {
            "task_id": task.task_id,
            "job_id": str(job_id),
            "node_id": task.node_id,
            "handler": task.handler,
            "attempt": task.attempt,
            "params": task.params,
            **({} if task.params_ref is None else {"params_ref": task.params_ref}),
        }
        return DeadLetter(
            dead_letter_id=uuid4(),
            queue=task.queue,
            message_id=task.task_id,
            reason="PoisonTask",
            description=poisoned.description,
            body=body,
            created_at=self.db.clock(),
        )

    def _write_node(self, job_id: UUID, row: NodeChange) -> None:
        db, now = self.db, self.db.clock()
        old = db.nodes[job_id][row.node_id]
        names = (
            "attempt",
            "retry_count",
            "loss_count",
            "max_retries",
            "input_params",
            "total",
            "expanded",
            "started_at",
        )
        columns: dict[str, Any] = {name: _coalesce(getattr(row, name), getattr(old, name)) for name in names}
        # A fan_out that failed or was cancelled still counts its children down: that is not a transition.
        is_move = row.status is not old.status
        columns["reason"] = row.reason if is_move else _coalesce(row.reason, old.reason)
        columns["error"] = row.error if is_move else _coalesce(row.error, old.error)
        columns["error_message"] = (columns["error"] or {}).get("message")
        if row.takes_result:
            result = self.db.results[job_id, row.node_id, columns["attempt"]]
            columns |= {"output": result.output, "output_ref": result.output_ref}
        elif row.output is not None:
            columns["output"] = _json_copy(row.output)
        columns["not_before"] = None if row.wait_seconds is None else now + timedelta(seconds=row.wait_seconds)
        if columns["total"] is not None:
            remaining = row.total if row.total is not None else old.remaining or 0
            columns["remaining"] = remaining - row.ended
            columns["failed_count"] = (old.failed_count or 0) + row.ended_failed
            columns["cancelled_count"] = (old.cancelled_count or 0) + row.ended_cancelled
            columns["idle_count"] = None if old.idle_count is None else old.idle_count - row.woken
        columns["stale_count"] = None if old.stale_count is None else old.stale_count - row.settled_stale
        columns["label"] = _coalesce(row.label, old.label)
        columns["is_idle"] = old.is_idle if row.status is NodeStatus.PENDING else None
        if row.status is NodeStatus.DISPATCHED:
            columns["dispatched_at"] = now
        columns["completed_at"] = (row.finished_at or old.completed_at or now) if row.status in NODE_TERMINAL else None
        db.move_node(job_id, row.node_id, row.status, **columns)

    def _write_tasks(self, change: Changes) -> set[str]:
        now, queues = self.db.clock(), set()
        for task in change.tasks:
            expires = (
                None if task.queue_timeout_seconds is None else now + timedelta(seconds=task.queue_timeout_seconds)
            )
            self.db.add_task(
                change.job_id,
                task.node_id,
                task.attempt,
                queue=task.queue,
                handler=task.handler,
                priority=change.priority,
                params=_json_copy(task.params),
                params_ref=task.params_ref,
                timeout_seconds=task.timeout_seconds,
                retry_count=task.retry_count,
                expires_at=expires,
                traceparent=change.traceparent,
            )
        for retry in change.next_attempts:
            before = self.db.tasks[change.job_id, retry.node_id, retry.attempt - 1]
            expires = None if before.expires_at is None else now + (before.expires_at - before.available_at)
            self.db.add_task(
                change.job_id,
                retry.node_id,
                retry.attempt,
                queue=before.queue,
                handler=before.handler,
                priority=before.priority,
                params=before.params,
                params_ref=before.params_ref,
                timeout_seconds=before.timeout_seconds,
                retry_count=retry.retry_count,
                expires_at=expires,
                traceparent=before.traceparent,
            )
            queues.add(before.queue)
        return queues

    def _write_job(self, change: Changes) -> None:
        db, now = self.db, self.db.clock()
        job = db.jobs[change.job_id]
        columns: dict[str, Any] = {
            "last_sequence": change.sequence,
            "owner_heartbeat_at": now,
            "updated_at": now,
            "version": job.version + 1,
        }
        if change.stopping is not None:
            columns["stopping"] = change.stopping
        if change.deferred is not None:
            known_at = {(row["handler"], row["queue"]): row["known_at"] for row in job.deferred_work or ()}
            columns["deferred_work"] = [
                {"node_id": node_id, **work._asdict(), "known_at": known_at.get(work, now)}
                for node_id, work in change.deferred.items()
            ] or None
        for move in change.job_moves:
            _require(
                move.status in JOB_MOVES[job.status], f"job {job.job_id}: {job.status} may not become {move.status}"
            )
            columns["status"] = move.status
            if move.status is JobStatus.RUNNING:
                columns["started_at"] = now
            else:
                columns |= {"completed_at": now, "owner_id": None, "claim_token": None}
                columns |= {"result_data": _json_copy(move.result_data), "error_message": move.error_message}
        db.jobs[change.job_id] = job.model_copy(update=columns)

    def _gathered(self, job_id: UUID, fan_out: str, aggregation: Aggregation) -> Any:
        children = sorted(
            (
                n
                for n in self.db.nodes[job_id].values()
                if n.parent_node_id == fan_out and (n.fan_out_index or 0) < (self.db.nodes[job_id][fan_out].total or 0)
            ),
            key=lambda n: n.fan_out_index or 0,
        )
        return fan.aggregate(
            aggregation,
            [
                ChildResult(n.fan_out_index or 0, n.node_id, n.status, self._output(n), n.error_message)
                for n in children
            ],
        )

    def _output(self, node: NodeState, decode: Callable[[bytes], Any] = orjson.loads) -> Any:
        if node.output_ref is None:
            return copy.deepcopy(node.output)
        return decode(self.db.payload(node.job_id, node.output_ref))

    def _gather(self, job_id: UUID, node_id: str, fan_out: str, aggregation: Aggregation) -> None:
        try:
            output = self._gathered(job_id, fan_out, aggregation)
        except fan.SumOutOfRange as error:
            raise fan.SumOutOfRange(error.message, job_id=job_id, fan_out=fan_out) from None
        referred = self._referred_bytes(job_id, fan_out, aggregation)
        size = max(fan.size_bytes(output), referred)
        columns: dict[str, Any] = {"output": output}
        if size > payload.INLINE_BYTES or referred:
            columns = {"output_ref": {"results_of": fan_out, "aggregation": aggregation.value, "bytes": size}}
        self.db.move_node(job_id, node_id, NodeStatus.COMPLETED, **columns)

    def _referred_bytes(self, job_id: UUID, fan_out: str, aggregation: Aggregation) -> int:
        """The bytes of the aggregated outputs that are kept by reference."""
        children = (n for n in self.db.nodes[job_id].values() if n.parent_node_id == fan_out)
        completed = [n for n in children if n.status is NodeStatus.COMPLETED]
        completed.sort(key=lambda n: n.fan_out_index or 0)
        used = {Aggregation.FIRST: completed[:1], Aggregation.LAST: completed[-1:]}.get(aggregation, completed)
        return sum(n.output_ref["bytes"] for n in used if n.output_ref is not None)

    async def fail_job(self, owner_id: UUID, claim: Claim, error_message: str) -> bool:
        if not self._holds(owner_id, claim):
            return False
        db, job_id, now = self.db, claim.job_id, self.db.clock()
        for task in db.tasks_of(job_id):
            if task.status in (TaskStatus.QUEUED, TaskStatus.RUNNING):
                key = (job_id, task.node_id, task.attempt)
                db.move_task(key, TaskStatus.CANCELLED, finished_at=now, lease_until=None)
        for key, result in list(db.results.items()):
            if key[0] == job_id:
                db.results[key] = result.model_copy(update={"processed": True})
        job = db.jobs[job_id]
        sequence = job.last_sequence
        for node in [node for node in db.nodes[job_id].values() if node.status not in NODE_TERMINAL]:
            sequence += 1
            attempt = node.attempt if node.status in NODE_LIVE else None
            self._cancel(node)
            facts = {"event_status": NodeStatus.CANCELLED, "attempt": attempt, "event_data": {"reason": NOT_ADVANCED}}
            db.add_event(job_id, sequence, EventType.NODE_CANCELLED, node_id=node.node_id, epoch=job.epoch, **facts)
        data = {"error_message": error_message, "reason": NOT_ADVANCED}
        event = {"event_status": JobStatus.FAILED, "epoch": job.epoch, "event_data": data}
        db.add_event(job_id, sequence + 1, EventType.JOB_FAILED, **event)
        ended = {"status": JobStatus.FAILED, "completed_at": now, "owner_id": None, "claim_token": None}
        columns = {
            **ended,
            "deferred_work": None,
            "error_message": error_message,
            "last_sequence": sequence + 1,
            "updated_at": now,
        }
        db.jobs[job_id] = job.model_copy(update={**columns, "version": job.version + 1})
        return True

    def _cancel(self, node: NodeState) -> None:
        """Cancel a node of a job that cannot be advanced; its fan_out counts it."""
        columns = {"reason": NOT_ADVANCED, "completed_at": self.db.clock(), "is_idle": None, "not_before": None}
        self.db.move_node(node.job_id, node.node_id, NodeStatus.CANCELLED, **columns)
        if node.parent_node_id is None:
            return
        parent = self.db.nodes[node.job_id][node.parent_node_id]
        if node.is_idle and (node.fan_out_index or 0) >= (parent.expanded or 0):
            counts: dict[str, int | None] = {"stale_count": (parent.stale_count or 0) - 1}
        else:
            counts = {
                "remaining": (parent.remaining or 0) - 1,
                "cancelled_count": (parent.cancelled_count or 0) + 1,
                "idle_count": None if parent.idle_count is None else parent.idle_count - bool(node.is_idle),
            }
        self.db.move_node(node.job_id, parent.node_id, parent.status, **counts)

    async def review_deferred(
        self, claims: Sequence[Claim], *, alive_seconds: float, unknown_after_seconds: float
    ) -> DeferralReview:
        db, now = self.db, self.db.clock()
        horizon = now - timedelta(seconds=alive_seconds)
        routers = [
            db.routers[owner] for owner, beat in db.orchestrators.items() if beat > horizon and owner in db.routers
        ]
        workers = [db.workers[worker] for worker, beat in db.worker_beats.items() if beat > horizon]
        released: list[Job] = []
        unroutable: dict[UUID, frozenset[DeferredWork]] = {}
        for job in [db.jobs[claim.job_id] for claim in claims if claim.job_id in db.jobs]:
            if not any(claim.token == job.claim_token for claim in claims) or not job.deferred_work:
                continue
            is_handler_known = [_is_known_to(row, routers) or _is_known_to(row, workers) for row in job.deferred_work]
            rows = [
                {**row, "known_at": now if k else row["known_at"]}
                for row, k in zip(job.deferred_work, is_handler_known, strict=True)
            ]
            db.jobs[job.job_id] = job.model_copy(update={"deferred_work": rows, "version": job.version + 1})
            if any(_is_known_to(row, routers) for row in rows):
                released.append(db.jobs[job.job_id])
                continue
            late = now - timedelta(seconds=unknown_after_seconds)
            unroutable[job.job_id] = frozenset(
                DeferredWork(row["handler"], row["queue"]) for row in rows if row["known_at"] < late
            )
        self._release(released)
        return DeferralReview(
            frozenset(job.job_id for job in released), {job_id: work for job_id, work in unroutable.items() if work}
        )

    async def release_unknown(self, owner_id: UUID, owned_ids: Sequence[UUID]) -> int:
        owned = [job for job in self.db.jobs.values() if job.owner_id == owner_id and job.status in _ACTIVE]
        unknown = [job for job in owned if job.job_id not in owned_ids]
        self._release(unknown)
        return len(unknown)

    async def retire(self, owner_id: UUID) -> int:
        self.db.orchestrators.pop(owner_id, None)
        owned = [job for job in self.db.jobs.values() if job.owner_id == owner_id and job.status in _ACTIVE]
        self._release(owned)
        return len(owned)

    async def maintain(self) -> None:
        long_ago = self.db.clock() - timedelta(days=1)
        owners = {job.owner_id for job in self.db.jobs.values()}
        for owner_id, beat in list(self.db.orchestrators.items()):
            if beat < long_ago and owner_id not in owners:
                del self.db.orchestrators[owner_id]

    def _release(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            columns = {"owner_id": None, "claim_token": None, "updated_at": self.db.clock(), "version": job.version + 1}
            self.db.jobs[job.job_id] = job.model_copy(update=columns)
        if jobs:
            self._notify(JOBS)

    # Workers

    async def beat_worker(self, worker: WorkerInfo) -> None:
        self.db.workers[worker.worker_id] = worker
        self.db.worker_beats[worker.worker_id] = self.db.clock()

    async def exchange(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        late = self._take_reports(worker_id, reports)
        free_slots = dict(demand.free_slots)
        light = self._claim_tasks(
            worker_id, demand.queues, demand.light_handlers, demand.light, lease_seconds, free_slots=free_slots
        )
        heavy = self._claim_tasks(
            worker_id, demand.queues, demand.heavy_handlers, demand.heavy, lease_seconds, free_slots=free_slots
        )
        return Exchange((*light, *heavy), len(reports) - len(late), late)

    async def report(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        if any(self._is_limited(queue) for queue in demand.queues):
            return await self.exchange(worker_id, reports, demand, lease_seconds=lease_seconds)
        late = self._take_reports(worker_id, reports)
        return Exchange((), len(reports) - len(late), late)

    def _take_reports(self, worker_id: UUID, reports: Sequence[Report]) -> tuple[str, ...]:
        """Process the reports. Returns the ids of tasks whose report came too late."""
        for report in reports:
            self._keep_payload(report)
        late = [report for report in reports if not self._accept(worker_id, report)]
        if reports:
            self._notify(RESULTS)
        return tuple(task_id(report.job_id, report.node_id, report.attempt) for report in late)

    def _keep_payload(self, report: Report) -> None:
        if report.output_ref and (report.job_id, report.node_id, report.attempt) in self.db.tasks:
            self.db.keep_payload(report.job_id, report.output_ref)

    def _accept(self, worker_id: UUID, report: Report) -> bool:
        db, key, now = self.db, (report.job_id, report.node_id, report.attempt), self.db.clock()
        task = db.tasks.get(key)
        accepted = task is not None and task.status is TaskStatus.RUNNING and task.worker_id == worker_id
        if task is not None and accepted:
            lines = None if "log" in (report.metrics or {}) else task.log
            db.move_task(key, report.status, finished_at=now, lease_until=None, log=lines)
        earlier = db.results.get(key)
        if earlier is not None and earlier.accepted and earlier.worker_id == worker_id:
            return True  # reported before, and the response was lost
        has_ended = task is not None and db.tasks[key].status not in (TaskStatus.QUEUED, TaskStatus.RUNNING)
        if task is not None and has_ended and task.worker_id == worker_id and key not in db.results:
            db.results[key] = TaskResult(
                job_id=report.job_id,
                node_id=report.node_id,
                attempt=report.attempt,
                task_id=task.task_id,
                status=report.status,
                output=_json_copy(report.output),
                output_ref=report.output_ref,
                error=_json_copy(report.error),
                error_message=(report.error or {}).get("message"),
                metrics=_json_copy(report.metrics),
                worker_id=worker_id,
                started_at=task.started_at if accepted else None,
                reported_at=now,
                processed=not accepted,
                accepted=accepted,
            )
        return accepted

    def _claim_tasks(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        handlers: Sequence[str],
        limit: int,
        lease_seconds: float,
        *,
        free_slots: dict[str, int],
    ) -> list[TaskMessage]:
        """`free_slots` has the worker's free slots for some queues; they are reduced by the number of claimed tasks."""
        now = self.db.clock()
        claimed: list[TaskMessage] = []
        for queue in queues:
            waiting = _in_claim_order(
                t
                for t in self.db.tasks.values()
                if t.status is TaskStatus.QUEUED and t.queue == queue and t.handler in handlers
            )
            capacities = (self._free_capacity(queue), free_slots.get(queue))
            capacity = min((each for each in capacities if each is not None), default=limit)
            chosen = waiting[: max(0, min(capacity, limit - len(claimed)))]
            if queue in free_slots:
                free_slots[queue] -= len(chosen)
            for task in chosen:
                key = (task.job_id, task.node_id, task.attempt)
                lease = now + timedelta(seconds=lease_seconds)
                self.db.move_task(key, TaskStatus.RUNNING, worker_id=worker_id, started_at=now, lease_until=lease)
                claimed.append(
                    TaskMessage(
                        task_id=task.task_id,
                        job_id=task.job_id,
                        node_id=task.node_id,
                        attempt=task.attempt,
                        handler=task.handler,
                        params=copy.deepcopy(task.params or {}),
                        queue=task.queue,
                        timeout_seconds=task.timeout_seconds,
                        retry_count=task.retry_count,
                        losses=self._losses(task) if task.attempt - task.retry_count > 2 else 0,
                        params_ref=task.params_ref,
                        traceparent=task.traceparent,
                    )
                )
        return claimed

    def _losses(self, task: Task) -> int:
        earlier = (self.db.tasks.get((task.job_id, task.node_id, attempt)) for attempt in range(1, task.attempt))
        return sum(1 for each in earlier if each is not None and each.status is TaskStatus.LOST)

    async def renew(self, worker_id: UUID, running: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        lost = set()
        for each in running:
            key = (each.job_id, each.node_id, each.attempt)
            task = self.db.tasks.get(key)
            if task is None or task.status is not TaskStatus.RUNNING or task.worker_id != worker_id:
                lost.add(task_id(*key))
                continue
            lease = self.db.clock() + timedelta(seconds=lease_seconds)
            progress = each.progress if each.progress is not None else task.progress
            lines = each.log if each.log is not None else task.log
            started = task.started_at
            if each.run_seconds is not None and started is not None:
                started = max(started, self.db.clock() - timedelta(seconds=each.run_seconds))
            renewed = {"lease_until": lease, "progress": progress, "log": lines, "started_at": started}
            self.db.tasks[key] = task.model_copy(update=renewed)
        return frozenset(lost)

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        to_stop = [
            task
            for task in self.db.tasks.values()
            if task.worker_id == worker_id and task.status is TaskStatus.RUNNING and task.stop_requested_at is not None
        ]
        for task in (each for each in to_stop if each.stop_seen_at is None):
            marked = task.model_copy(update={"stop_seen_at": self.db.clock()})
            self.db.tasks[task.job_id, task.node_id, task.attempt] = marked
        return frozenset(task.task_id for task in to_stop)

    async def queued_tasks(self, task_ids: Sequence[str]) -> frozenset[str]:
        return frozenset(each for each in task_ids if self._is_queued(task_key(each)))

    def _is_queued(self, key: TaskKey) -> bool:
        task = self.db.tasks.get(key)
        return task is not None and task.status is TaskStatus.QUEUED

    # The outbox

    async def claim_messages(
        self,
        limit: int,
        *,
        lease_seconds: float,
        limits: Mapping[str, int] | None = None,
        newest: Collection[str] = (),
        newest_limit: int = 0,
    ) -> list[ClaimedMessage]:
        db, now = self.db, self.db.clock()
        due = sorted((row.not_before, key) for key, row in db.outbox.items() if row.not_before <= now)
        chosen = [
            *_first_of_each_queue(db.outbox, (key for _, key in due), dict(limits or {}), limit),
            *_first_of_each_queue(db.outbox, (key for _, key in reversed(due)), dict.fromkeys(newest, newest_limit), 0),
        ]
        claimed: list[ClaimedMessage] = []
        for key in chosen:
            row = db.outbox[key]
            until = now + timedelta(seconds=lease_seconds)
            db.outbox[key] = row.model_copy(update={"not_before": until, "tries": row.tries + 1})
            claimed.append(ClaimedMessage(*key, row.queue, row.tries + 1, self._is_queued(key)))
        return claimed

    async def count_workers(self, alive_seconds: float) -> Mapping[str, int]:
        horizon = self.db.clock() - timedelta(seconds=alive_seconds)
        alive = [worker for worker_id, worker in self.db.workers.items() if self.db.worker_beats[worker_id] > horizon]
        return Counter(queue for worker in alive for queue in worker.queues)

    async def forget_messages(self, _limit: int) -> int:
        unneeded = [key for key in self.db.outbox if not self._is_queued(key)]
        for key in unneeded:
            del self.db.outbox[key]
        return len(unneeded)

    async def delete_messages(self, messages: Sequence[ClaimedMessage]) -> None:
        for message in messages:
            self.db.outbox.pop((message.job_id, message.node_id, message.attempt), None)

    async def postpone_messages(self, messages: Sequence[ClaimedMessage], *, delay_seconds: float, error: str) -> None:
        until = self.db.clock() + timedelta(seconds=delay_seconds)
        for message in messages:
            key = (message.job_id, message.node_id, message.attempt)
            if row := self.db.outbox.get(key):
                self.db.outbox[key] = row.model_copy(update={"not_before": until, "error": error})

    async def fail_tasks(self, messages: Sequence[ClaimedMessage], relay_id: UUID, error: Mapping[str, Any]) -> int:
        failed = 0
        for message in messages:
            key = (message.job_id, message.node_id, message.attempt)
            if self._is_queued(key):
                self.db.move_task(key, TaskStatus.RUNNING, worker_id=relay_id, started_at=self.db.clock())
                failed += self._accept(relay_id, Report(*key, TaskStatus.FAILED, error=dict(error)))
        await self.delete_messages(messages)
        self._notify(RESULTS)
        return failed

    async def retire_worker(self, worker_id: UUID) -> None:
        self.db.workers.pop(worker_id, None)
        self.db.worker_beats.pop(worker_id, None)

    # Payloads

    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        reference = payload.reference_to(encoded)
        self.db.add_payload(job_id, reference, encoded)
        return reference

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        return self.db.payload(job_id, reference)

    # Handlers

    async def read_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        return self._read_results(job_id, node_id, offset, limit, orjson.loads)

    async def read_encoded_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        return self._read_results(job_id, node_id, offset, limit, orjson.Fragment)

    def _read_results(
        self, job_id: UUID, node_id: str, offset: int, limit: int, decode: Callable[[bytes], Any]
    ) -> list[ChildResult]:
        children = (self.db.nodes[job_id].get(f"{node_id}__{index}") for index in range(offset, offset + limit))
        results: list[ChildResult] = []
        size = 0
        for n in (child for child in children if child is not None):
            size += n.output_ref["bytes"] if n.output_ref else fan.size_bytes(n.output)
            if results and size > PAGE_BYTES:
                break
            output = self._output(n, decode)
            results.append(ChildResult(n.fan_out_index or 0, n.node_id, n.status, output, n.error_message))
        return results

    async def save_checkpoint(
        self, running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        task = self.db.tasks.get((running.job_id, running.node_id, running.attempt))
        if task is None or task.status is not TaskStatus.RUNNING:
            return False
        self.db.checkpoints[running.job_id, running.node_id][name] = Checkpoint(
            job_id=running.job_id,
            node_id=running.node_id,
            name=name,
            attempt=running.attempt,
            data=_json_copy(data),
            saved_at=self.db.clock(),
            artifacts=_json_copy(artifacts) or None,
        )
        return True

    async def load_checkpoints(self, job_id: UUID, node_id: str) -> list[Checkpoint]:
        return sorted(self.db.checkpoints[job_id, node_id].values(), key=lambda c: (c.attempt, c.saved_at, c.name))

    async def now(self) -> datetime:
        return self.db.clock()


@dataclass
class MemoryStep:
    _ledger: MemoryLedger
    jobs: Mapping[UUID, OpenJob]
    fenced: frozenset[UUID]
    has_more: frozenset[UUID]
    is_committed: bool = False

    async def commit(self, changes: Sequence[Changes], *, notify: Sequence[str] = ()) -> frozenset[str]:
        repeated = [self._ledger.apply(change) for change in changes if not change.is_empty]
        self.is_committed = True
        self._ledger._notify(*notify)
        return frozenset(queue for queues in repeated for queue in queues)


def _is_known_to(work: Mapping[str, Any], processes: Iterable[OrchestratorInfo | WorkerInfo]) -> bool:
    handler, queue = work["handler"], work["queue"]
    return any(handler in process.handlers and (queue is None or queue in process.queues) for process in processes)


def _is_known(message: JobMessage, scope: MessageScope) -> bool:
    """Whether this orchestrator can process a message: it knows the workflow, or the message names none."""
    named = message.body.get("workflow_id") if isinstance(message.body, dict) else None
    return not isinstance(named, str) or named in scope.workflow_ids


def _coalesce(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _json_copy(value: Any) -> Any:
    """A value as it is read after it was stored as JSON."""
    return orjson.loads(orjson.dumps(value))


def _in_claim_order(tasks: Iterable[Task]) -> list[Task]:
    """Sort tasks by priority, then by handler in the order of their oldest tasks, then by age."""
    oldest: dict[tuple[int, str], int] = {}
    tasks = list(tasks)
    for task in tasks:
        kind = (task.priority, task.handler)
        oldest[kind] = min(task.position, oldest.get(kind, task.position))
    return sorted(tasks, key=lambda task: (-task.priority, oldest[task.priority, task.handler], task.position))


def _first_of_each_queue(
    outbox: Mapping[TaskKey, OutboxMessage], keys: Iterable[TaskKey], limits: Mapping[str, int], limit: int
) -> Iterator[TaskKey]:
    """`limit` applies to queues that are not in `limits`."""
    counts = Counter[str]()
    for key in keys:
        queue = outbox[key].queue
        counts[queue] += 1
        if counts[queue] <= limits.get(queue, limit):
            yield key
