"""Claim jobs and advance them step by step: the OrchestratorLedger on PostgreSQL.

open_jobs     BEGIN, lock the jobs whose claims are valid, take their updates     one round trip
              (overdue, waiting, started, withdrawn, idle: one statement each, if requested)
step.commit   write the changes, COMMIT, NOTIFY                                   one round trip
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from dagmaster import faults
from dagmaster.database import pipeline
from dagmaster.database.connect import SUM_OUT_OF_RANGE, Connection
from dagmaster.database.ledger import payloads
from dagmaster.database.ledger.connection import columns_of, fetch, notification, to_json
from dagmaster.database.ledger.loading import JobLoading
from dagmaster.database.ledger.protocol import (
    EVERY_MESSAGE,
    OVERRUN_GRACE_SECONDS,
    SMALL_BYTES,
    Claim,
    DeferralReview,
    MessageScope,
    NewJob,
    OpenJob,
    OrchestratorInfo,
    PendingWork,
    StepScope,
    dead_letter_of_conflict,
)
from dagmaster.database.ledger.submission import insert_jobs, key_values
from dagmaster.database.notify.notifier import JOBS, Notifier
from dagmaster.database.queries import query
from dagmaster.database.reads.lenient import UnreadableJson
from dagmaster.jobs import fan
from dagmaster.jobs.changes import Changes, NewEvent, NodeChange
from dagmaster.jobs.model import DeadLetter, JobMessage
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.states import NodeStatus, Stop, TaskStatus
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

_NODE_FIELDS = tuple((field.name, field.default) for field in fields(NodeChange))


class PostgresOrchestration(JobLoading):
    """The OrchestratorLedger on PostgreSQL."""

    def __init__(
        self, dsn: str, role: str = "ledger", notifier: Notifier | None = None, *, writes_outbox: bool = False
    ) -> None:
        """With `writes_outbox`, new tasks are also written to the outbox, from which a message broker is fed."""
        super().__init__(dsn, role, notifier)
        self._writes_outbox = writes_outbox

    async def beat(self, orchestrator: OrchestratorInfo) -> None:
        values = {name: getattr(orchestrator, name) for name in ("owner_id", "host", "pid", "software_version")}
        names = {"handlers": list(orchestrator.handlers), "queues": list(orchestrator.queues)}
        await self._execute("beat_orchestrator", {**values, **names, "stats": Jsonb(orchestrator.stats)})

    async def take_messages(
        self,
        queue: str,
        limit: int,
        handle: Callable[[JobMessage], NewJob | DeadLetter],
        *,
        scope: MessageScope = EVERY_MESSAGE,
    ) -> list[UUID | str]:
        if not await self._fetch("has_messages", {"queue": queue}):
            return []
        values = {
            "queue": queue,
            "limit": limit,
            "workflow_ids": list(scope.workflow_ids),
            "unknown_after": scope.unknown_after_seconds,
        }
        async with self._transaction("take_messages") as connection:
            cursor = connection.cursor(row_factory=class_row(JobMessage))
            messages = await (await cursor.execute(query("take_messages"), values)).fetchall()
            # All orchestrators reserve keys in this order, so that they cannot deadlock on the same ones.
            handled = sorted(((message, handle(message)) for message in messages), key=_key_of)
            outcomes = [await _reserved(connection, message, outcome) for message, outcome in handled]
            jobs = [outcome for outcome in outcomes if isinstance(outcome, NewJob)]
            letters = [outcome for outcome in outcomes if isinstance(outcome, DeadLetter)]
            created = await insert_jobs(connection, jobs) if jobs else []
            if letters:
                refused = {"letters": to_json([letter.public() for letter in letters])}
                await connection.execute(query("insert_dead_letters"), refused)
            return [*created, *(letter.message_id or "" for letter in letters)]

    async def claim_jobs(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        times = {"orphan_after": orphan_after_seconds, "unclaimed_after": unclaimed_after_seconds}
        return await self._claim({"owner_id": owner_id, "limit": limit, "orphans": False, **times})

    async def claim_orphans(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        await self._fetch("end_stuck_owners", {"orphan_after": orphan_after_seconds})
        times = {"orphan_after": orphan_after_seconds, "unclaimed_after": unclaimed_after_seconds}
        return await self._claim({"owner_id": owner_id, "limit": limit, "orphans": True, **times})

    async def _claim(self, values: Mapping[str, Any]) -> list[Claim]:
        rows = await self._fetch("claim_jobs", values)
        if rows:
            faults.reach("orchestrator.claimed")
        return [Claim(row.job_id, row.token, row.epoch) for row in rows]

    async def reported_jobs(self, owner_id: UUID) -> tuple[UUID, ...]:
        return tuple(row.job_id for row in await self._fetch("reported_jobs", {"owner_id": owner_id}))

    async def sweep_jobs(self, owner_id: UUID, *, started_after_seconds: float = 0.2) -> PendingWork:
        values = {
            "owner_id": owner_id,
            "started_after": started_after_seconds,
            "overrun_grace": OVERRUN_GRACE_SECONDS,
        }
        by_kind: dict[str, list[Any]] = defaultdict(list)
        for row in await self._fetch("sweep_jobs", values):
            by_kind[row.kind].append(row)
        return PendingWork(
            tuple(row.job_id for row in by_kind["reported"]),
            overdue=tuple({row.job_id for row in by_kind["overdue"]}),
            started=tuple(row.job_id for row in by_kind["started"]),
            next_due_seconds=next((row.seconds for row in by_kind["next"]), None),
            owned=by_kind["owned"][0].jobs,
        )

    def open_jobs(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope
    ) -> AbstractAsyncContextManager["PostgresStep"]:
        return self._open(owner_id, claims, scope, reported_only=False)

    def open_reported_jobs(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope
    ) -> AbstractAsyncContextManager["PostgresStep"]:
        return self._open(owner_id, claims, scope, reported_only=True)

    @asynccontextmanager
    async def _open(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope, *, reported_only: bool
    ) -> AsyncIterator["PostgresStep"]:
        per_job = max(50, scope.limit // len(claims))
        values: dict[str, Any] = {
            "owner_id": owner_id,
            "job_ids": [claim.job_id for claim in claims],
            "tokens": [claim.token for claim in claims],
            "per_job": per_job,
            "small": SMALL_BYTES,
            "reported_only": reported_only,
        }
        async with self._connected() as connection:
            rows = await pipeline.execute(connection, [pipeline.BEGIN, pipeline.Call("open_jobs", values)])
            jobs = _opened(rows["open_jobs"])
            has_more = {job_id for job_id, job in jobs.items() if len(job.updates) >= per_job}
            has_more |= await _take_further_updates(connection, jobs, scope)
            faults.reach("orchestrator.fenced")
            fenced = frozenset() if reported_only else frozenset(values["job_ids"]).difference(jobs)
            step = PostgresStep(connection, jobs, fenced, frozenset(has_more), writes_outbox=self._writes_outbox)
            yield step
            if not step.is_committed:
                await pipeline.execute(connection, [pipeline.ROLLBACK])

    async def fail_job(self, owner_id: UUID, claim: Claim, error_message: str) -> bool:
        values = {"owner_id": owner_id, "job_id": claim.job_id, "token": claim.token, "error_message": error_message}
        async with self._transaction("fail_job") as connection:
            if not await fetch(connection, "lock_claimed_job", values):
                return False
            await connection.execute(query("cancel_tasks"), values)
            await connection.execute(query("fail_job"), values)
        return True

    async def review_deferred(
        self, claims: Sequence[Claim], *, alive_seconds: float, unknown_after_seconds: float
    ) -> DeferralReview:
        values = {
            "job_ids": [claim.job_id for claim in claims],
            "tokens": [claim.token for claim in claims],
            "alive": alive_seconds,
            "unknown_after": unknown_after_seconds,
        }
        rows = await self._fetch("review_deferred", values)
        released = frozenset(row.job_id for row in rows if row.is_released)
        unroutable: dict[UUID, set[DeferredWork]] = defaultdict(set)
        for row in rows:
            if row.is_unroutable and not row.is_released:
                unroutable[row.job_id].add(DeferredWork(row.handler, row.queue))
        if released:
            self._notify(JOBS)
        return DeferralReview(released, {job_id: frozenset(work) for job_id, work in unroutable.items()})

    async def release_unknown(self, owner_id: UUID, owned_ids: Sequence[UUID]) -> int:
        released = len(await self._fetch("release_unknown_jobs", {"owner_id": owner_id, "known": list(owned_ids)}))
        if released:
            self._notify(JOBS)
        return released

    async def retire(self, owner_id: UUID) -> int:
        released = len(await self._fetch("retire_orchestrator", {"owner_id": owner_id}))
        if released:
            self._notify(JOBS)
        return released

    async def maintain(self) -> None:
        await self._execute("forget_silent_instances", {})
        await self._execute("make_event_partitions", {})


@dataclass(slots=True)
class PostgresStep:
    """An open transaction that holds the locks of these jobs."""

    _connection: Connection
    jobs: Mapping[UUID, OpenJob]
    fenced: frozenset[UUID]
    has_more: frozenset[UUID]
    is_committed: bool = False
    writes_outbox: bool = False

    async def commit(self, changes: Sequence[Changes], *, notify: Sequence[str] = ()) -> frozenset[str]:
        changes = [change for change in changes if not change.is_empty]
        await _store_payloads(self._connection, changes)
        faults.reach("orchestrator.before-commit")
        statements = [*_writing(changes, self.writes_outbox), pipeline.COMMIT, *notification(notify)]
        try:
            rows = await pipeline.execute(self._connection, statements)
        except psycopg.Error as error:
            raise _refused_sum(error) or error from error
        self.is_committed = True
        faults.reach("orchestrator.after-commit")
        name = "apply_changes_with_outbox" if self.writes_outbox else "apply_changes"
        return frozenset(queue for row in rows.get(name, ()) for queue in row.queues)


# Messages


def _key_of(handled: tuple[JobMessage, NewJob | DeadLetter]) -> tuple[str, str]:
    outcome = handled[1]
    return (outcome.submitted_by or "", outcome.idempotency_key or "") if isinstance(outcome, NewJob) else ("", "")


async def _reserved(
    connection: Connection, message: JobMessage, outcome: NewJob | DeadLetter
) -> NewJob | DeadLetter | None:
    """Reserve the idempotency key of a job. None: the message is a repetition, and its job exists."""
    if isinstance(outcome, DeadLetter) or outcome.idempotency_key is None:
        return outcome
    if await fetch(connection, "job_of_message", {"message_id": message.message_id}):
        return None
    (reserved,) = await fetch(connection, "reserve_key", key_values(outcome, outcome.request_hash))
    if reserved.request_hash != outcome.request_hash:
        return dead_letter_of_conflict(message, outcome, reserved.job_id)
    return outcome if reserved.job_id == outcome.job_id else None


# Reading updates


def _opened(rows: Sequence[Any]) -> dict[UUID, OpenJob]:
    """The rows of jobs come first, then the reports of their tasks."""
    jobs: dict[UUID, OpenJob] = {}
    for row in rows:
        if row.node_id is None:
            stop = row.stop and StopRequest(Stop(row.stop["stop"]), row.stop.get("by"), row.stop.get("reason"))
            jobs[row.job_id] = OpenJob(row.epoch, row.last_sequence, stop)
    for row in rows:
        if row.node_id is not None:
            jobs[row.job_id].updates.append(_reported(row))
    return jobs


async def _take_further_updates(connection: Connection, jobs: Mapping[UUID, OpenJob], scope: StepScope) -> set[UUID]:
    """Add the updates that the scope asks for in addition to reports. Returns the jobs that have more of them."""
    has_more: set[UUID] = set()
    for name, values in _further_statements(set(jobs), scope):
        rows = await fetch(connection, name, {**values, "limit": scope.limit})
        if name != "ask_to_stop":
            for row in rows:
                jobs[row.job_id].updates.append(_further(row))
        if len(rows) >= scope.limit:
            has_more |= {row.job_id for row in rows}
    return has_more


def _further_statements(open_ids: set[UUID], scope: StepScope) -> list[tuple[str, dict[str, Any]]]:
    """The statements that a scope needs. The queued tasks and the waits of a failing job are withdrawn."""
    failing = list(open_ids & scope.withdraw)
    waiting = list(open_ids & (scope.overdue | scope.withdraw))
    statements: list[tuple[str, dict[str, Any]]] = []
    if overdue := list(open_ids & scope.overdue):
        statements.append(("take_overdue", {"job_ids": overdue, "overrun_grace": OVERRUN_GRACE_SECONDS}))
    if waiting:
        statements.append(("take_waiting", {"job_ids": waiting, "failing": failing}))
    if started := list(open_ids & scope.started):
        statements.append(("take_started", {"job_ids": started}))
    if failing:
        statements.append(("withdraw_tasks", {"job_ids": failing}))
    if ending := list(open_ids & scope.stop_running):
        statements.append(("ask_to_stop", {"job_ids": ending}))
    if wake := [(*key, count) for key, count in scope.wake.items() if key[0] in open_ids]:
        statements.append(("take_idle", columns_of(("job_ids", "fan_outs", "counts"), wake)))
    return statements


def _reported(row: Any) -> TaskUpdate:
    node = _node_of(row)
    match TaskStatus(row.task_status):
        case TaskStatus.SUCCEEDED:
            has_output = row.has_output and not isinstance(row.output, UnreadableJson)
            return Succeeded(*node, row.started_at, row.finished_at, row.worker_id, row.output, has_output)
        case TaskStatus.RETURNED | TaskStatus.CANCELLED:
            return Returned(*node, row.started_at, row.finished_at, row.worker_id)
        case _:
            error = row.error or {"message": "the task failed without an error message"}
            return Failed(*node, row.started_at, row.finished_at, row.worker_id, error)


def _further(row: Any) -> TaskUpdate:
    node = _node_of(row)
    match row.kind:
        case "lost":
            return Lost(*node, row.started_at, row.worker_id)
        case "overran":
            return Overran(*node, row.started_at, row.worker_id, row.seconds)
        case "expired":
            return Expired(*node, row.seconds)
        case "due":
            return Due(*node)
        case "started":
            return Started(*node, row.started_at, row.worker_id)
        case "withdrawn":
            return Withdrawn(*node)
        case "idle":
            return Idle(*node)
        case kind:
            raise AssertionError(f"a statement returned an update of the unknown kind {kind}")


def _node_of(row: Any) -> tuple[str, int, str | None, int | None, NodeStatus, int, int]:
    return (
        row.node_id,
        row.attempt,
        row.parent_node_id,
        row.fan_out_index,
        NodeStatus(row.status),
        row.retry_count,
        row.loss_count,
    )


# Writing changes


async def _store_payloads(connection: Connection, changes: Sequence[Changes]) -> None:
    """Store the payloads that the changes refer to. All processes use the same order, so that they cannot deadlock on
    the same payloads."""
    for change in sorted(changes, key=lambda change: change.job_id):
        for sha256, encoded in sorted(change.payloads.items()):
            reference = {"sha256": sha256, "bytes": len(encoded)}
            await payloads.store(connection, change.job_id, reference, encoded, is_kept=True)


def _writing(changes: Sequence[Changes], writes_outbox: bool) -> list[pipeline.PipelineStep]:
    if not changes:
        return []
    steps: list[pipeline.PipelineStep] = []
    promoted = [(change.job_id, node_id) for change in changes for node_id in dict.fromkeys(change.promoted)]
    if promoted:
        steps.append(pipeline.Call("promote_nodes", columns_of(("job_ids", "node_ids"), promoted)))
    rows = [_row(change) for change in changes]
    name = "apply_changes" if any(c.children or c.next_attempts or c.poisoned for c in changes) else "apply_steps"
    name = f"{name}_with_outbox" if writes_outbox else name
    steps.append(pipeline.Call(name, {"changes": to_json(rows), "counts": _counts(changes)}))
    gatherings = [
        {"job_id": change.job_id, "node_id": g.node_id, "fan_out": g.fan_out, "aggregation": g.aggregation}
        for change in changes
        for g in change.completed_fan_ins
    ]
    if gatherings:
        steps.append(pipeline.Call("gather_children", {"gatherings": to_json(gatherings), "inline": INLINE_BYTES}))
    return steps


def _refused_sum(error: psycopg.Error) -> fan.SumOutOfRange | None:
    """The error that the function `dagapp.checked_sum` raised, if it did."""
    if error.sqlstate != SUM_OUT_OF_RANGE:
        return None
    job_id, _, fan_out = (error.diag.message_detail or "").partition(" ")
    return fan.SumOutOfRange(error.diag.message_primary or "", job_id=UUID(job_id), fan_out=fan_out)


def _row(change: Changes) -> dict[str, Any]:
    """A job's changes as the statement reads them. A missing field is NULL there: less to write, send and parse."""
    row: dict[str, Any] = {
        "job_id": change.job_id,
        "epoch": change.epoch,
        "priority": change.priority,
        "sequence": change.sequence,
        "nodes": [_node_row(node) for node in change.nodes],
        "events": [_event_row(event) for event in change.events],
    }
    for name in ("tasks", "children", "next_attempts", "poisoned", "job_moves", "stopping", "traceparent"):
        if value := getattr(change, name):
            row[name] = value
    if change.deferred is not None:
        row["deferred"] = [{"node_id": node_id, **work._asdict()} for node_id, work in change.deferred.items()]
    return row


def _node_row(node: NodeChange) -> dict[str, Any]:
    """The fields of a node without those that have their default value: None, False, 0."""
    return {name: value for name, default in _NODE_FIELDS if (value := getattr(node, name)) is not default}


def _event_row(event: NewEvent) -> dict[str, Any]:
    sequence, type_, node_id, status, attempt, data, at = event
    row = {"sequence": sequence, "type": type_, "node_id": node_id, "status": status, "attempt": attempt}
    if data is not None:
        row["data"] = data
    if at is not None:
        row["at"] = at
    return row


def _counts(changes: Sequence[Changes]) -> list[int]:
    """How many rows of each kind must be written. A different count is a bug, and nothing is committed."""
    return [
        sum(len(change.nodes) for change in changes),
        sum(len(family) for change in changes for family in change.children.values()),
        sum(len(change.tasks) + len(change.next_attempts) for change in changes),
        sum(len(change.events) for change in changes),
        len(changes),
    ]
