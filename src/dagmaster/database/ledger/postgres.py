"""The ledger on PostgreSQL. Every statement is in `sql/`; this module passes values in and makes values of what comes back.

One object holds one connection and is used by one loop at a time; whoever must not wait for another (leases, beats) has an object
of its own. After a failure the connection is closed and the next call opens a fresh one: every call is safe to repeat.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

import orjson
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from dagmaster import faults
from dagmaster.database import pipeline
from dagmaster.database.connect import BY_KEY, Connection, connect, translate_errors
from dagmaster.database.ledger import payloads
from dagmaster.database.ledger.protocol import (
    OPENING_EVENTS,
    OVERRUN_GRACE_SECONDS,
    PAGE_BYTES,
    SMALL_BYTES,
    Advanced,
    Choose,
    Claim,
    Decide,
    Demand,
    Exchange,
    Held,
    LoadedJob,
    Look,
    NewJob,
    OrchestratorInfo,
    PendingWork,
    QueueChange,
    Report,
    Running,
    Tell,
    WorkerInfo,
    key_conflict,
    no_such_job,
    opening_nodes,
    too_large_for_a_template,
)
from dagmaster.database.notify.postgres import channel_of
from dagmaster.database.queries import query
from dagmaster.errors import NotFound
from dagmaster.jobs import fan, payload
from dagmaster.jobs.changes import Changes, NewEvent, NodeChange
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, DeadLetter, JobMessage, TaskMessage, task_id
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES, Encoded, Reference, by_reference
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.states import JobStatus, NodeStatus, Stop, TaskStatus
from dagmaster.jobs.updates import (
    Due,
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

RESULTS_PAGE = 500
DEFINITIONS_KEPT = 256
_Fields = tuple[tuple[str, Any], ...]
_NODE_FIELDS: _Fields = tuple((field.name, field.default) for field in fields(NodeChange))
_EVENT_FIELDS: _Fields = tuple((field.name, field.default) for field in fields(NewEvent))


class PostgresLedger:
    def __init__(self, dsn: str, role: str = "ledger") -> None:
        self._dsn = dsn
        self._role = role
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._limits: set[str] = set()  # queues that have one, as far as the last claims told
        self._definitions: dict[str, Workflow] = {}

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection, for one call. It is given up when the call did not end well."""
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._dsn, role=self._role, settings=BY_KEY)
            connection = self._connection
            try:
                with translate_errors():
                    yield connection
            except BaseException:
                self._connection = None
                await connection.close()
                raise

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """A transaction for one call."""
        async with self._connected() as connection:
            async with connection.transaction():
                yield connection
                faults.reach(f"{name}.before-commit")
            faults.reach(f"{name}.after-commit")

    async def _rows(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        faults.reach(f"{name}.before-commit")
        async with self._connected() as connection:
            rows = await (await connection.execute(query(name), values, prepare=True)).fetchall()
        faults.reach(f"{name}.after-commit")
        return rows

    # Submitting

    async def create_jobs(self, jobs: Sequence[NewJob]) -> list[UUID]:
        if not jobs:
            return []
        async with self._transaction("submit") as connection:
            return await _create(connection, jobs)

    async def create_once(self, job: NewJob, request_hash: str, *, force: bool = False) -> UUID:
        key = {
            "submitted_by": job.submitted_by or "",
            "idempotency_key": job.idempotency_key,
            "request_hash": request_hash,
            "job_id": job.job_id,
            "force": force,
        }
        async with self._transaction("submit_once") as connection:
            row = await (await connection.execute(query("reserve_key"), key, prepare=True)).fetchone()
            assert row is not None
            if row[1] != request_hash:
                raise key_conflict(job, row[0])
            if row[0] == job.job_id:
                await _create(connection, [job])
            return row[0]  # type: ignore[no-any-return]

    async def replay_dead_letter(self, dead_letter_id: UUID, queue: str) -> bool:
        return bool(await self._rows("replay_dead_letter", {"dead_letter_id": dead_letter_id, "queue": queue}))

    async def drop_dead_letter(self, dead_letter_id: UUID) -> None:
        await self._do("drop_dead_letter", {"dead_letter_id": dead_letter_id})

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool:
        values = {"message_id": message_id, "queue": queue, "body": Jsonb(body)}
        return bool(await self._rows("enqueue_message", values))

    async def take_messages(
        self, queue: str, limit: int, handle: Callable[[JobMessage], NewJob | DeadLetter]
    ) -> list[UUID | str]:
        if not await self._rows("has_messages", {"queue": queue}):
            return []
        async with self._transaction("take_messages") as connection:
            cursor = connection.cursor(row_factory=class_row(JobMessage))
            messages = await (await cursor.execute(query("take_messages"), {"queue": queue, "limit": limit})).fetchall()
            outcomes = [handle(message) for message in messages]
            jobs = [outcome for outcome in outcomes if isinstance(outcome, NewJob)]
            letters = [outcome for outcome in outcomes if isinstance(outcome, DeadLetter)]
            created = await _create(connection, jobs) if jobs else []
            if letters:
                await connection.execute(
                    query("insert_dead_letters"), {"letters": _json([letter.public() for letter in letters])}
                )
            return [*created, *(letter.message_id or "" for letter in letters)]

    # Operating

    async def rerun(self, job_id: UUID, choose: Choose, facts: Mapping[str, Any]) -> tuple[Rerun, int]:
        async with self._transaction("rerun") as connection:
            locked = await connection.execute(query("lock_ended_job"), {"job_id": job_id})
            if await locked.fetchone() is None:
                raise no_such_job(job_id)
            (job,) = await self._load(connection, [job_id])
            rerun = choose(job)
            values = {
                "job_id": job_id, "node_ids": list(rerun.nodes), "anew": list(rerun.anew),
                "fan_outs": list(rerun.children), "children": list(rerun.single),
                "facts": _json(facts), "timeout_seconds": rerun.timeout_seconds, "is_afresh": rerun.is_afresh,
            }  # fmt: skip
            row = await (await connection.execute(query("rerun"), values)).fetchone()
            assert row is not None
            return rerun, row[0]

    async def request_cancel(self, job_id: UUID, *, by: str | None, reason: str | None) -> tuple[JobStatus, bool]:
        rows = await self._rows("request_cancel", {"job_id": job_id, "by": by, "reason": reason})
        if not rows:
            raise no_such_job(job_id)
        return JobStatus(rows[0][0]), rows[0][1]

    # Orchestrators

    async def beat(self, orchestrator: OrchestratorInfo) -> None:
        values = {name: getattr(orchestrator, name) for name in ("owner_id", "host", "pid", "software_version")}
        await self._do("beat_orchestrator", {**values, "stats": Jsonb(orchestrator.stats)})

    async def _do(self, name: str, values: Mapping[str, Any]) -> None:
        faults.reach(f"{name}.before-commit")
        async with self._connected() as connection:
            await connection.execute(query(name), values)
        faults.reach(f"{name}.after-commit")

    async def claim_jobs(
        self, owner_id: UUID, *, limit: int, orphans: bool = True, orphan_after_seconds: float, patience_seconds: float
    ) -> list[Claim]:
        if orphans:
            await self._rows("end_stuck_owners", {"orphan_after": orphan_after_seconds})
        rows = await self._rows(
            "claim_jobs",
            {
                "owner_id": owner_id,
                "limit": limit,
                "orphans": orphans,
                "orphan_after": orphan_after_seconds,
                "patience": patience_seconds,
            },
        )
        if rows:
            faults.reach("orchestrator.claimed")
        return [Claim(*row) for row in rows]

    async def load_jobs(self, job_ids: Sequence[UUID]) -> list[LoadedJob]:
        async with self._connected() as connection:
            return await self._load(connection, job_ids)

    async def load_job(self, job_id: UUID) -> LoadedJob | None:
        return next(iter(await self.load_jobs([job_id])), None)

    async def _load(self, connection: Connection, job_ids: Sequence[UUID]) -> list[LoadedJob]:
        cursor = connection.cursor(row_factory=dict_row)
        jobs = await (await cursor.execute(query("load_jobs"), {"job_ids": list(job_ids)}, prepare=True)).fetchall()
        workflows = await self._definitions_of(connection, {job["definition_hash"] for job in jobs})
        nodes = await _load_nodes(connection, jobs, workflows)
        return [_loaded(job, workflows[job["definition_hash"]], nodes[job["job_id"]]) for job in jobs]

    async def _definitions_of(self, connection: Connection, hashes: Collection[str]) -> dict[str, Workflow]:
        """A definition is known by the hash of its content, so it never changes."""
        unknown = [digest for digest in hashes if digest not in self._definitions]
        if unknown:
            rows = await connection.execute(query("load_definitions"), {"hashes": unknown}, prepare=True)
            for digest, body in await rows.fetchall():
                self._definitions[digest] = Workflow.model_validate(body)
        found = {digest: self._definitions[digest] for digest in hashes}
        while len(self._definitions) > DEFINITIONS_KEPT:
            self._definitions.pop(next(iter(self._definitions)))
        return found

    async def load_outputs(self, job_id: UUID, node_ids: Sequence[str], *, resolve: bool = True) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        async with self._connected() as connection:
            rows = await (
                await connection.execute(query("load_outputs"), {"job_id": job_id, "node_ids": list(node_ids)})
            ).fetchall()
            for node_id, output, reference in rows:
                if reference is None:
                    outputs[node_id] = output
                elif resolve:
                    outputs[node_id] = await _resolve(connection, job_id, node_id, reference)
                else:
                    outputs[node_id] = by_reference(reference)
        return outputs

    async def pending_work(self, owner_id: UUID, *, sweep: bool, started_after_seconds: float = 0.2) -> PendingWork:
        if not sweep:
            return PendingWork(tuple(row[0] for row in await self._rows("reported_jobs", {"owner_id": owner_id})))
        rows = await self._rows(
            "sweep_jobs",
            {"owner_id": owner_id, "started_after": started_after_seconds, "overrun_grace": OVERRUN_GRACE_SECONDS},
        )
        return PendingWork(
            tuple(row[1] for row in rows if row[0] == "reported"),
            overdue=tuple({row[1] for row in rows if row[0] == "overdue"}),
            started=tuple(row[1] for row in rows if row[0] == "started"),
            next_due_seconds=next((row[2] for row in rows if row[0] == "next"), None),
            owned=next(int(row[2]) for row in rows if row[0] == "owned"),
        )

    async def advance(
        self, owner_id: UUID, claims: Sequence[Claim], look: Look, decide: Decide, *, tell: Tell | None = None
    ) -> Advanced:
        mine: dict[str, Any] = {
            "owner_id": owner_id,
            "job_ids": [claim.job_id for claim in claims],
            "tokens": [claim.token for claim in claims],
        }
        async with self._connected() as connection:
            held, has_more = await _open(connection, mine, look)
            faults.reach("orchestrator.fenced")
            changes = [change for change in decide(held) if not change.is_empty]
            await _store_payloads(connection, changes)
            faults.reach("orchestrator.before-commit")
            queues = await _commit(connection, changes, tell)
            faults.reach("orchestrator.after-commit")
        fenced = frozenset() if look.reported_only else frozenset(mine["job_ids"]).difference(held.epochs)
        return Advanced(fenced, has_more, queues)

    async def release_unknown(self, owner_id: UUID, known: Sequence[UUID]) -> int:
        return len(await self._rows("release_unknown_jobs", {"owner_id": owner_id, "known": list(known)}))

    async def retire(self, owner_id: UUID) -> int:
        return len(await self._rows("retire_orchestrator", {"owner_id": owner_id}))

    async def maintain(self) -> None:
        await self._do("forget_silent_instances", {})
        await self._do("make_event_partitions", {})

    # Workers

    async def beat_worker(self, worker: WorkerInfo) -> None:
        values = {
            name: getattr(worker, name) for name in ("worker_id", "host", "pid", "software_version", "worker_type")
        }
        lists = {"queues": list(worker.queues), "handlers": list(worker.handlers)}
        await self._do("beat_worker", {**values, **lists, "stats": Jsonb(worker.stats)})

    async def exchange(
        self,
        worker_id: UUID,
        reports: Sequence[Report],
        demand: Demand,
        *,
        lease_seconds: float,
        tell: Sequence[str] = (),
    ) -> Exchange:
        queues = list(dict.fromkeys(demand.queues))
        limited = [queue for queue in queues if queue in self._limits] if demand.total else []
        values = {
            "worker_id": worker_id,
            "reports": _json(reports),
            "queues": queues,
            "light_handlers": list(demand.light_handlers),
            "light": demand.light,
            "heavy_handlers": list(demand.heavy_handlers),
            "heavy": demand.heavy,
            "lease": lease_seconds,
            "budgets": limited,
        }
        names = _exchanging(reports, demand, limited)
        has_payloads = any(report.output_ref for report in reports)
        if has_payloads:
            rows = await self._exchange_payloads(names, limited, values, reports)
        else:
            rows = await self._exchange_at_once(names, limited, values, tell)
        accepted, claimed = (rows[0][3], rows[1:]) if reports else (0, rows)
        if closed := [row[6] for row in claimed if row[0] is None]:
            self._limits.update(closed)
            claimed = [row for row in claimed if row[0]] or await self._claim_closed(closed, values)
        late = () if accepted == len(reports) else await self._record_late(worker_id, reports)
        return Exchange(
            tuple(_message(row) for row in claimed), len(reports) - len(late), late, is_told=not has_payloads
        )

    async def _claim_closed(self, closed: list[str], values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Queues that we did not know to have a limit were closed to us: ask again, now with their budgets."""
        asked = {**values, "queues": closed, "budgets": closed}
        return await self._exchange_at_once(("claim_tasks",), closed, asked, ())

    def _note_limits(self, held: list[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """A budget that was not there to be held is no more."""
        self._limits.difference_update(set(held).difference(row[0] for row in rows))

    async def _exchange_at_once(
        self, names: Sequence[str], limited: list[str], values: dict[str, Any], tell: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """One round trip, whether or not the budgets of limited queues are to be held, and with the hint that follows."""
        steps: list[pipeline.Step] = [pipeline.Call(name, values) for name in names]
        if limited:
            steps = [pipeline.BEGIN, pipeline.Call("lock_budgets", {"queues": limited}), *steps, pipeline.COMMIT]
        async with self._connected() as connection:
            answers = await pipeline.execute(connection, [*steps, *_telling(tell)])
        self._note_limits(limited, answers.get("lock_budgets", ()))
        return [row for name in names for row in answers[name]]

    async def _exchange_payloads(
        self, names: Sequence[str], limited: list[str], values: dict[str, Any], reports: Sequence[Report]
    ) -> list[tuple[Any, ...]]:
        """The same exchange, of reports that refer to payloads: from its commit on these are in use."""
        rows: list[tuple[Any, ...]] = []
        async with self._transaction("report_payloads") as connection:
            if limited:
                held = await connection.execute(query("lock_budgets"), {"queues": limited}, prepare=True)
                self._note_limits(limited, await held.fetchall())
            for name in names:
                rows += await (await connection.execute(query(name), values, prepare=True)).fetchall()
            await _keep_payloads(connection, reports)
        return rows

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("take_stops", {"worker_id": worker_id}))

    async def set_queue(self, queue: str, **changes: Unpack[QueueChange]) -> None:
        values = {
            "queue": queue, "sets_limit": "max_running" in changes, "max_running": changes.get("max_running"),
            "is_paused": changes.get("is_paused"),
        }  # fmt: skip
        await self._do("set_queue", values)

    async def _record_late(self, worker_id: UUID, reports: Sequence[Report]) -> tuple[str, ...]:
        values = {"worker_id": worker_id, "reports": _json(reports)}
        async with self._transaction("record_late") as connection:
            rows = await (await connection.execute(query("record_late_reports"), values, prepare=True)).fetchall()
            await _keep_payloads(connection, reports)
        return tuple(task_id(*row) for row in rows)

    async def renew(self, worker_id: UUID, held: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        rows = await self._rows("renew_leases", {"worker_id": worker_id, "held": _json(held), "lease": lease_seconds})
        return frozenset(row[0] for row in rows)

    async def retire_worker(self, worker_id: UUID) -> None:
        await self._do("retire_worker", {"worker_id": worker_id})

    # Payloads

    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        reference = await asyncio.to_thread(payload.reference_to, encoded)
        async with self._transaction("store_payload") as connection:
            await payloads.store(connection, job_id, reference, encoded)
        return reference

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        async with self._connected() as connection:
            return await payloads.load(connection, job_id, reference)

    # Handlers

    async def read_results(
        self, job_id: UUID, node_id: str, offset: int, limit: int, *, decode: bool = True
    ) -> list[ChildResult]:
        async with self._connected() as connection:
            return await _read_results(connection, job_id, node_id, slice(offset, offset + limit), decode=decode)

    async def save_checkpoint(
        self, running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        key = {"job_id": running.job_id, "node_id": running.node_id, "attempt": running.attempt}
        kept = {"name": name, "data": Jsonb(data), "artifacts": Jsonb(artifacts) if artifacts else None}
        return bool(await self._rows("save_checkpoint", key | kept))

    async def load_checkpoints(self, job_id: UUID, node_id: str) -> list[Checkpoint]:
        async with self._connected() as connection:
            cursor = connection.cursor(row_factory=class_row(Checkpoint))
            await cursor.execute(query("load_checkpoints"), {"job_id": job_id, "node_id": node_id})
            return await cursor.fetchall()

    async def now(self) -> datetime:
        return (await self._rows("clock", {}))[0][0]  # type: ignore[no-any-return]


def _exchanging(reports: Sequence[Report], demand: Demand, limited: Sequence[str]) -> tuple[str, ...]:
    """Which statements make up an exchange. A limited queue's room is counted after the reports have made some."""
    if not reports:
        return ("claim_tasks",)
    if limited:
        return ("report_tasks", "claim_tasks")
    return ("exchange",) if demand.total and not demand.is_speculative else ("report_tasks",)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


async def _create(connection: Connection, jobs: Sequence[NewJob]) -> list[UUID]:
    workflows = {id(job.workflow): job.workflow for job in jobs}  # many jobs share one: it is worked out once
    definitions = {known: _definition(workflow) for known, workflow in workflows.items()}
    stored = {row["definition_hash"]: row for row in definitions.values()}
    await connection.execute(query("insert_definitions"), {"definitions": _json(list(stored.values()))}, prepare=True)
    openings = {known: _opening(workflow, definitions[known]) for known, workflow in workflows.items()}
    asked = [_new_row(job) | openings[id(job.workflow)] for job in jobs]
    rows = await connection.execute(query("create_jobs"), {"jobs": _json(asked)}, prepare=True)
    return [row[0] for row in await rows.fetchall()]


def _definition(workflow: Workflow) -> dict[str, Any]:
    return {
        "definition_hash": workflow.content_hash(), "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version, "body": workflow.body(),
    }  # fmt: skip


def _opening(workflow: Workflow, definition: dict[str, Any]) -> dict[str, Any]:
    """What every job of a workflow begins with."""
    columns = ("definition_hash", "workflow_id", "workflow_version")
    return {
        **{name: definition[name] for name in columns},
        "timeout_seconds": workflow.timeout_seconds,
        "nodes": orjson.Fragment(orjson.dumps(opening_nodes(workflow))),
    }


def _new_row(job: NewJob) -> dict[str, Any]:
    columns = (
        "job_id", "input_params", "priority", "correlation_id", "submitted_by", "callback_url", "idempotency_key",
        "message_id",
    )  # fmt: skip
    return {name: getattr(job, name) for name in columns}


async def _load_nodes(
    connection: Connection, jobs: Sequence[dict[str, Any]], workflows: Mapping[str, Workflow]
) -> dict[UUID, list[dict[str, Any]]]:
    """The rows of the definition's nodes. A job whose story has only begun needs none: every change comes with an event."""
    keys = [
        (job["job_id"], node_id)
        for job in jobs
        if job["last_sequence"] > OPENING_EVENTS
        for node_id in workflows[job["definition_hash"]].nodes
    ]
    nodes: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    if keys:
        values = {**_columns(("job_ids", "node_ids"), keys), "small": SMALL_BYTES}
        cursor = connection.cursor(row_factory=dict_row)
        for row in await (await cursor.execute(query("load_nodes"), values, prepare=True)).fetchall():
            nodes[row["job_id"]].append(row)
    return nodes


def _loaded(job: dict[str, Any], workflow: Workflow, rows: Sequence[dict[str, Any]]) -> LoadedJob:
    nodes = {row["node_id"]: NodeView.from_row(workflow.nodes[row["node_id"]], row) for row in rows}
    if job["last_sequence"] <= OPENING_EVENTS:
        nodes = {node["node_id"]: NodeView(node["status"]) for node in opening_nodes(workflow)}
    return LoadedJob(
        **{**job, "status": JobStatus(job["status"]), "stopping": Stop(job["stopping"]) if job["stopping"] else None},
        workflow=workflow,
        nodes=nodes,
        outputs={row["node_id"]: row["output"] for row in rows if row["has_output"]},
    )


async def _resolve(connection: Connection, job_id: UUID, node_id: str, reference: dict[str, Any]) -> Any:
    """Load an output that is kept by reference, if a template may hold that much."""
    if reference.get("bytes", 0) > LOADABLE_BYTES:
        raise too_large_for_a_template(node_id, reference["bytes"])
    if payload.is_payload(reference):
        return orjson.loads(await payloads.load(connection, job_id, reference))
    if "results_of" not in reference:
        raise NotFound(
            f"the output of '{node_id}' is kept by a reference that is not understood", code="output.unknown-reference"
        )
    return await _gather_again(connection, job_id, reference)


async def _gather_again(connection: Connection, job_id: UUID, reference: Reference) -> Any:
    """What a fan_in that is kept by reference stands for."""
    fan_out = reference["results_of"]
    row = await (await connection.execute(query("fan_out_total"), {"job_id": job_id, "node_id": fan_out})).fetchone()
    total = row[0] if row else 0
    children: list[ChildResult] = []
    while len(children) < total:
        first = len(children)
        rows = await _read_results(connection, job_id, fan_out, slice(first, min(first + RESULTS_PAGE, total)))
        if not rows:
            break
        children += rows
    return fan.aggregate(Aggregation(reference["aggregation"]), children)


async def _read_results(
    connection: Connection, job_id: UUID, node_id: str, place: slice, *, decode: bool = True
) -> list[ChildResult]:
    values = {
        "job_id": job_id, "node_id": node_id, "offset": place.start, "limit": place.stop - place.start,
        "most_bytes": PAGE_BYTES,
    }  # fmt: skip
    cursor = connection.cursor(row_factory=class_row(ChildResult))
    results: list[ChildResult] = []
    for row in await (await cursor.execute(query("read_results"), values, prepare=True)).fetchall():
        if row.output_ref is None:
            results.append(row)
            continue
        encoded = await payloads.load(connection, job_id, row.output_ref)
        output = orjson.loads(encoded) if decode else orjson.Fragment(bytes(encoded))
        results.append(replace(row, output=output, output_ref=None))
    return results


async def _keep_payloads(connection: Connection, reports: Sequence[Report]) -> None:
    """In the transaction that stores the results."""
    keys = [(report.job_id, report.node_id, report.attempt) for report in reports if report.output_ref]
    if not keys:
        return
    values = _columns(("job_ids", "node_ids", "attempts"), keys)
    for job_id, sha256 in await (await connection.execute(query("keep_payloads"), values)).fetchall():
        raise payload.missing(job_id, sha256)


async def _store_payloads(connection: Connection, changes: Sequence[Changes]) -> None:
    """What the changes refer to. In an order: whoever stores the same content for the same job waits."""
    for change in sorted(changes, key=lambda change: change.job_id):
        for sha256, encoded in sorted(change.payloads.items()):
            reference = {"sha256": sha256, "bytes": len(encoded)}
            await payloads.store(connection, change.job_id, reference, encoded, is_kept=True)


def _message(row: tuple[Any, ...]) -> TaskMessage:
    return TaskMessage.model_construct(
        task_id=row[0], job_id=row[1], node_id=row[2], attempt=row[3], handler=row[4], params=row[5] or {}, queue=row[6],
        timeout_seconds=row[7], retry_count=row[8], losses=row[9], params_ref=row[10],
    )  # fmt: skip


# What happened


async def _open(connection: Connection, mine: dict[str, Any], look: Look) -> tuple[Held, frozenset[UUID]]:
    """Begin the transaction with the fence and take the news."""
    per_job = max(50, look.limit // len(mine["job_ids"]))
    values = {**mine, "per_job": per_job, "small": SMALL_BYTES, "reported_only": look.reported_only}
    answers = await pipeline.execute(connection, [pipeline.BEGIN, pipeline.Call("open_jobs", values)])
    epochs: dict[UUID, int] = {}
    sequences: dict[UUID, int] = {}
    stops: dict[UUID, StopRequest] = {}
    news: dict[UUID, list[TaskUpdate]] = defaultdict(list)
    for row in answers["open_jobs"]:
        if row[1] is not None:
            news[row[0]].append(_reported(row))
            continue
        epochs[row[0]], sequences[row[0]] = row[3], row[4]
        if row[12] is not None:
            stops[row[0]] = StopRequest(Stop(row[12]["stop"]), row[12].get("by"), row[12].get("why"))
    has_more = {job_id for job_id, items in news.items() if len(items) >= per_job}
    for name, asked in _other_looks(set(epochs), look):
        cursor = connection.cursor(row_factory=dict_row)
        found = await (await cursor.execute(query(name), asked, prepare=True)).fetchall()
        for other in found:
            if other["kind"] != "asked":
                news[other["job_id"]].append(_other(other))
        if len(found) >= look.limit:
            has_more |= {other["job_id"] for other in found}
    return Held(epochs, sequences, news, stops), frozenset(has_more)


def _other_looks(mine: set[UUID], look: Look) -> list[tuple[str, dict[str, Any]]]:
    """The further statements this look needs. A job that is failing has its queued tasks and waits taken back."""
    failing = list(mine & look.withdraw)
    waiting = list(mine & (look.overdue | look.withdraw))
    looks: list[tuple[str, dict[str, Any]]] = []
    if mine & look.overdue:
        looks.append(("take_overdue", {"job_ids": list(mine & look.overdue), "overrun_grace": OVERRUN_GRACE_SECONDS}))
    if waiting:
        looks.append(("take_waiting", {"job_ids": waiting, "failing": failing}))
    if mine & look.started:
        looks.append(("take_started", {"job_ids": list(mine & look.started)}))
    if failing:
        looks.append(("withdraw_tasks", {"job_ids": failing}))
    if mine & look.stop_running:
        looks.append(("ask_to_stop", {"job_ids": list(mine & look.stop_running)}))
    if wake := [(*key, room) for key, room in look.wake.items() if key[0] in mine]:
        looks.append(("take_idle", _columns(("job_ids", "fan_outs", "rooms"), wake)))
    return [(name, {**values, "limit": look.limit}) for name, values in looks]


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _reported(row: tuple[Any, ...]) -> TaskUpdate:
    (_, node_id, parent, attempt, index, was, retries, losses, status, started, finished, worker, error, has_output,
     output) = row  # fmt: skip
    of_node = (node_id, attempt, parent, index, NodeStatus(was), retries, losses)
    match TaskStatus(status):
        case TaskStatus.SUCCEEDED:
            return Succeeded(*of_node, started, finished, worker, output, has_output)
        case TaskStatus.RETURNED | TaskStatus.CANCELLED:
            return Returned(*of_node, started, finished, worker)
        case _:
            return Failed(*of_node, started, finished, worker, error or {"message": "failed without saying why"})


def _other(row: dict[str, Any]) -> TaskUpdate:
    of_node = (
        row["node_id"], row["attempt"], row["parent"], row["index"], NodeStatus(row["was"]), row["retry_count"], row["loss_count"],
    )  # fmt: skip
    match row["kind"]:
        case "lost":
            return Lost(*of_node, row["started_at"], row["worker_id"])
        case "overran":
            return Overran(*of_node, row["started_at"], row["worker_id"], row["seconds"])
        case "due":
            return Due(*of_node)
        case "started":
            return Started(*of_node, row["started_at"], row["worker_id"])
        case "withdrawn":
            return Withdrawn(*of_node)
        case "idle":
            return Idle(*of_node)
        case kind:
            raise AssertionError(f"a statement gave news of kind {kind}")


# What was decided


async def _commit(connection: Connection, changes: list[Changes], tell: Tell | None) -> frozenset[str]:
    """Write the changes, commit, and tell who waits for it; answers the queues that got tasks and were not told of."""
    queues = sorted({task.queue for change in changes for task in change.tasks})
    topics = tell(queues) if tell and queues else ()
    answers = await pipeline.execute(connection, [*_applying(changes), pipeline.COMMIT, *_telling(topics)])
    again = {queue for _, named in answers.get("apply_changes", ()) for queue in named}
    return frozenset(again.difference(queues) if topics else again.union(queues))


def _telling(topics: Sequence[str]) -> list[pipeline.Step]:
    """A hint follows the commit in a transaction of its own: one that rings holds up all others that do, until it is on disk."""
    return (
        [pipeline.BREAK, pipeline.Call("tell", {"channels": [channel_of(topic) for topic in topics]})] if topics else []
    )


def _applying(changes: list[Changes]) -> list[pipeline.Step]:
    if not changes:
        return []
    steps: list[pipeline.Step] = []
    promoted = [(change.job_id, node_id) for change in changes for node_id in dict.fromkeys(change.promoted)]
    if promoted:
        steps.append(pipeline.Call("promote_nodes", _columns(("job_ids", "node_ids"), promoted)))
    rows = [_row(change) for change in changes]
    name = "apply_changes" if any(c.children or c.next_attempts or c.poisoned for c in changes) else "apply_steps"
    steps.append(pipeline.Call(name, {"changes": _json(rows), "counts": _counts(changes)}))
    gatherings = [
        {"job_id": change.job_id, "node_id": g.node_id, "fan_out": g.fan_out, "aggregation": g.aggregation}
        for change in changes
        for g in change.completed_fan_ins
    ]
    if gatherings:
        steps.append(pipeline.Call("gather_children", {"gatherings": _json(gatherings), "inline": INLINE_BYTES}))
    return steps


def _row(change: Changes) -> dict[str, Any]:
    """A job's changes as its statement reads them. What is not said is NULL there: less to write, to send and to parse."""
    row: dict[str, Any] = {
        "job_id": change.job_id, "epoch": change.epoch, "priority": change.priority, "sequence": change.sequence,
        "nodes": _sparse(_NODE_FIELDS, change.nodes), "events": _sparse(_EVENT_FIELDS, change.events),
    }  # fmt: skip
    for name in ("tasks", "children", "next_attempts", "poisoned", "job_moves", "stopping"):
        if value := getattr(change, name):
            row[name] = value
    return row


def _sparse(names: _Fields, rows: Sequence[NodeChange | NewEvent]) -> list[dict[str, Any]]:
    """Without what is as it would be anyway: None, False, 0."""
    return [{name: value for name, default in names if (value := getattr(row, name)) is not default} for row in rows]


def _counts(changes: list[Changes]) -> list[int]:
    """How many rows of each kind must be written. Anything else is a bug of ours, and nothing is committed."""
    return [
        sum(len(change.nodes) for change in changes),
        sum(len(family) for change in changes for family in change.children.values()),
        sum(len(change.tasks) + len(change.next_attempts) for change in changes),
        sum(len(change.events) for change in changes),
        len(changes),
    ]
