"""Every pair of the engine's write transactions, in every possible order of their statements.

The state is small and has rows for every transaction; each call is that of the ledger, on a connection that stops
before every statement and commit (`isolation.py`). After each interleaving there must be no deadlock and no error, and
all invariants must hold.
"""

import asyncio
import hashlib
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations_with_replacement
from random import Random
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest
from tests.database.isolation import WRITING, GatedConnection, Interleaver, IsStep, Run, Session, execute_step_by_step

from dagmaster.database import pipeline
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import (
    Claim,
    Demand,
    NewJob,
    OrchestratorInfo,
    Report,
    Running,
    Step,
    StepScope,
    WorkerInfo,
)
from dagmaster.database.maintenance.history import verify
from dagmaster.database.maintenance.janitor import RULES, JanitorThresholds, PostgresJanitor
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import JOBS
from dagmaster.errors import Conflict, NotFound
from dagmaster.handlers.registry import installed
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.model import DeadLetter, JobMessage, new_job_id
from dagmaster.jobs.payload import reference_to
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.rerun import Rerun, resume, retry
from dagmaster.jobs.states import TaskStatus
from dagmaster.jobs.view import JobView, is_failing
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.records import SCHEMA
from dagmaster.settings import DEFAULT_QUEUES
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.load import WorkflowLimits, read

pytestmark = pytest.mark.requirement("E6", "E7")

QUEUE, LIMITED = DEFAULT_QUEUES[:2]
KEYED = "keyed"  # a queue of submissions with idempotency keys
HANDLERS = ("echo", "noop", "sleep")
NOW = time.time_ns() // 1_000_000
LIMITS = WorkflowLimits()
ROUTER = RegistryRouter(installed(), DEFAULT_QUEUES, QUEUE)


def _workflow(nodes: str) -> Any:
    text = f"workflow_id: played\nversion: 1\nnodes:\n{nodes}"
    return read(text, "played.yaml", limits=LIMITS, handlers=None, queues=None)


WIDE = _workflow("""
  start: {type: start, next: [each, lone]}
  lone: {handler: noop, retry: {max_attempts: 2, initial_delay_seconds: 60}, next: end}
  each: {type: fan_out, source: [0, 1, 2, 3, 4], task: {handler: echo}, next: all}
  all: {type: fan_in, next: last}
  last: {handler: echo, next: end}
  end: {type: end}
""")
FAILING = _workflow("""
  start: {type: start, next: [bad, busy, waiting, queued]}
  bad: {handler: noop, retry: {max_attempts: 0}, next: end}
  busy: {handler: echo, next: end}
  waiting: {handler: sleep, retry: {max_attempts: 2, initial_delay_seconds: 60}, next: end}
  queued: {handler: echo, next: end}
  end: {type: end}
""")
SHORT = _workflow("""
  start: {type: start, next: only}
  only: {handler: echo, next: end}
  end: {type: end}
""")
UNSTORED = _workflow("""
  start: {type: start, next: other}
  other: {handler: echo, next: end}
  end: {type: end}
""")


def _id(number: int) -> UUID:
    return new_job_id(NOW + number, number.to_bytes(10, "big"))


ENDING = _workflow("""
  start: {type: start, next: only}
  only: {handler: noop, retry: {max_attempts: 0}, next: end}
  end: {type: end}
""")
OPEN, FAILED, GATHERING, FREE, ORPHAN, NEW = (_id(n) for n in range(1, 7))
ENDED = _id(9)
FRESH_OUTPUT, OLD_OUTPUT, NEW_OUTPUT = (orjson.dumps(name * 100_000) for name in ("fresh", "old", "new"))
ONE, TWO, SILENT, DEREGISTERED = (UUID(int=n) for n in range(101, 105))  # orchestrators
WORKER, SLOW, OTHER, LOST = (UUID(int=n) for n in range(201, 205))


# --- the state -------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The prepared database: the claims and views that owners have in memory, and how to restore it."""

    dsn: str
    ledger: PostgresLedger
    claims: dict[UUID, Claim] = field(default_factory=dict)
    views: dict[UUID, JobView] = field(default_factory=dict)
    connection: psycopg.AsyncConnection[Any] | None = None
    replica: psycopg.AsyncConnection[Any] | None = None  # the connection that restores the state
    clean: set[str] = field(default_factory=set)  # end states that the history checker has found to be clean
    steps: set[str] = field(default_factory=set)
    interleavings: int = 0
    restored: int = 0
    needs_partitions: bool = False

    async def advance(
        self, ledger: PostgresLedger, owner: UUID, claims: Sequence[Claim], scope: StepScope, views: dict[UUID, JobView]
    ) -> frozenset[UUID]:
        """Returns the jobs that were fenced."""
        async with ledger.open_jobs(owner, claims, scope) as step:
            await step.commit(_decide(step, views))
        return step.fenced

    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        assert self.connection is not None
        cursor = await self.connection.execute(sql, values or None)
        return await cursor.fetchall() if cursor.description else []


def _decide(step: Step, views: dict[UUID, JobView]) -> list[Changes]:
    planner = Planner(ROUTER, Random(1))
    return [
        planner.decide(
            views[job_id], job.updates, epoch=job.epoch, sequence=job.sequence, checks_all_nodes=True, stop=job.stop
        ).changes
        for job_id, job in step.jobs.items()
    ]


_GRAPHS: dict[str, Graph] = {}


async def _load(ledger: PostgresLedger, claims: Sequence[Claim]) -> dict[UUID, JobView]:
    views = {}
    for job in await ledger.load_jobs([claim.job_id for claim in claims]):
        graph = _GRAPHS.get(job.definition_hash) or _GRAPHS.setdefault(job.definition_hash, build(job.workflow))
        views[job.job_id] = job.view(graph)
    return views


async def _take(stage: Stage, worker: UUID, handlers: Sequence[str], count: int) -> list[Any]:
    demand = Demand((QUEUE,), light_handlers=tuple(handlers), light=count)
    return list((await stage.ledger.exchange(worker, (), demand, lease_seconds=86_400)).claimed)


async def _report(stage: Stage, worker: UUID, tasks: Sequence[Any], error: dict[str, Any] | None = None) -> None:
    status = TaskStatus.FAILED if error else TaskStatus.SUCCEEDED
    reports = [Report(t.job_id, t.node_id, t.attempt, status, None if error else t.node_id, error) for t in tasks]
    response = await stage.ledger.exchange(worker, reports, Demand(()), lease_seconds=86_400)
    assert not response.late


async def _start(stage: Stage, job_id: UUID, workflow: Any, owner: UUID) -> None:
    """Create a job, claim it, and dispatch its first tasks."""
    await stage.ledger.create_jobs([NewJob(job_id, workflow, {})])
    (claim,) = await stage.ledger.claim_orphans(owner, limit=1, orphan_after_seconds=1e6, unclaimed_after_seconds=0)
    assert claim.job_id == job_id
    stage.claims[job_id] = claim
    await _advance(stage, owner, job_id)


async def _advance(stage: Stage, owner: UUID, job_id: UUID) -> None:
    views = await _load(stage.ledger, [stage.claims[job_id]])
    await stage.advance(stage.ledger, owner, [stage.claims[job_id]], StepScope(), views)


async def _prepare(stage: Stage) -> None:
    """Create jobs in the middle of their work.

    OPEN       each__0 runs, each__1 has reported, each__2's lease has expired, each__3 and each__4 wait in the queue,
               lone's wait for its next attempt is over
    FAILED     a critical node has failed; one task runs, one is queued, one waits for its retry
    GATHERING  the last child has just reported, so its fan_in is due
    FREE       has no owner
    ORPHAN     belongs to an orchestrator without heartbeats; a result waits
    ENDED      has failed
    OPEN has an output that was stored a moment ago, FAILED one that was stored long ago,
    and neither was reported. Two idempotency keys name ENDED, whose messages were sent again; TWO knows a handler
    that OPEN is waiting for.
    """
    no = {"message": "no", "blame": "handler", "code": "handler.failed"}
    for owner in (ONE, TWO, SILENT, DEREGISTERED):
        await stage.ledger.beat(OrchestratorInfo(owner, "host", 1, "0"))
    for worker in (WORKER, SLOW, OTHER, LOST):
        await stage.ledger.beat_worker(WorkerInfo(worker, "host", 1, "0", "general", (QUEUE,), HANDLERS))

    await _start(stage, ENDED, ENDING, ONE)
    await _report(stage, WORKER, await _take(stage, WORKER, ["noop"], 1), no)
    await _advance(stage, ONE, ENDED)
    del stage.claims[ENDED]
    # As if OTHER had held the task too: a late report is stored only if its worker has held the task.
    await stage.rows("UPDATE dagapp.dag_tasks SET worker_id = %s WHERE job_id = %s", OTHER, ENDED)

    await _start(stage, OPEN, WIDE, ONE)
    await _report(stage, WORKER, await _take(stage, WORKER, ["noop"], 1), no)
    await _advance(stage, ONE, OPEN)
    await _take(stage, WORKER, ["echo"], 1)
    await _report(stage, WORKER, await _take(stage, WORKER, ["echo"], 1))
    await _take(stage, SLOW, ["echo"], 1)

    await stage.rows("UPDATE dagapp.dag_tasks SET queue = 'aside' WHERE status = 'queued'")
    await _start(stage, FAILED, FAILING, ONE)
    await _report(stage, WORKER, await _take(stage, WORKER, ["sleep"], 1), no)
    await _advance(stage, ONE, FAILED)
    await _take(stage, WORKER, ["echo"], 1)
    await _report(stage, WORKER, await _take(stage, WORKER, ["noop"], 1), no)
    await _advance(stage, ONE, FAILED)

    await stage.rows("UPDATE dagapp.dag_tasks SET queue = 'aside' WHERE status = 'queued'")
    await _start(stage, GATHERING, WIDE, ONE)
    await _report(stage, WORKER, await _take(stage, WORKER, ["noop"], 1) + await _take(stage, WORKER, ["echo"], 4))
    await _advance(stage, ONE, GATHERING)
    await _report(stage, WORKER, await _take(stage, WORKER, ["echo"], 1))

    await _start(stage, ORPHAN, SHORT, SILENT)
    await _report(stage, WORKER, await _take(stage, WORKER, HANDLERS, 5))
    await stage.ledger.create_jobs([NewJob(FREE, SHORT, {})])
    await stage.ledger.enqueue_message("good", JOBS, {})
    await stage.ledger.enqueue_message("bad", JOBS, {})
    for key in ("key_b", "key", "key_a"):
        await stage.ledger.enqueue_message(key, KEYED, {})
    await stage.rows(
        "INSERT INTO dagapp.dag_idempotency_keys (submitted_by, idempotency_key, request_hash, job_id)"
        " VALUES ('hub', 'key_b', 'same', %(job)s), ('hub', 'key_a', 'same', %(job)s)".replace("%(job)s", f"'{ENDED}'")
    )

    for job_id, output in ((OPEN, FRESH_OUTPUT), (FAILED, OLD_OUTPUT), (ENDED, OLD_OUTPUT)):
        await stage.ledger.store_payload(job_id, output)
    await stage.rows(f"UPDATE dagapp.dag_tasks SET queue = '{QUEUE}' WHERE queue = 'aside'")
    await stage.ledger.set_queue(LIMITED, max_running=1, is_paused=False)
    await stage.rows(
        "UPDATE dagapp.dag_tasks SET queue = %s WHERE node_id IN ('each__4', 'queued') AND status = 'queued'", LIMITED
    )
    await stage.rows(
        "INSERT INTO dagapp.dag_dead_letters (dead_letter_id, queue, message_id, reason, description, body)"
        " VALUES (%s, %s, 'old', 'Malformed', '', '{}'), (%s, %s, 'task', 'PoisonTask', '', '{}')",
        _id(8),
        JOBS,
        _id(10),
        QUEUE,
    )
    await _set_times(stage)
    stage.views = await _load(stage.ledger, list(stage.claims.values()))
    assert is_failing(stage.views[FAILED])


async def _set_times(stage: Stage) -> None:
    await stage.rows(
        "UPDATE dagapp.dag_payloads SET stored_at = clock_timestamp() - interval '2 days' WHERE job_id = %s", FAILED
    )
    await stage.rows(
        "UPDATE dagapp.dag_tasks SET lease_until = clock_timestamp() - interval '1 hour'"
        " WHERE worker_id = %s AND status = 'running'",
        SLOW,
    )
    await stage.rows(
        "UPDATE dagapp.dag_node_states SET not_before = clock_timestamp() WHERE node_id = 'lone' "
        "AND not_before IS NOT NULL"
    )
    await stage.rows(
        "UPDATE dagapp.dag_jobs SET owner_heartbeat_at = clock_timestamp() - interval '1 hour' WHERE job_id = %s", OPEN
    )
    await stage.rows(
        "INSERT INTO dagapp.dag_job_messages (message_id, queue, body, enqueued_at)"
        " VALUES ('unread', 'elsewhere', '{}', '2001-01-01')"
    )
    await stage.rows(
        "UPDATE dagapp.dag_jobs SET deferred_work = '[{"
        '"node_id": "lone", "handler": "rare", "queue": null, "known_at": "2001-01-01T00:00:00Z"'
        "}]' WHERE job_id = %s",
        OPEN,
    )
    await stage.rows("UPDATE dagapp.orchestrators SET handlers = '{rare}' WHERE owner_id = %s", TWO)
    beats = "UPDATE dagapp.{} SET heartbeat_at = clock_timestamp() + %s::interval WHERE {} = ANY (%s)"
    await stage.rows(beats.format("orchestrators", "owner_id"), "1 day", [ONE, TWO])
    await stage.rows(beats.format("orchestrators", "owner_id"), "-1 hour", [SILENT])
    await stage.rows(beats.format("orchestrators", "owner_id"), "-2 days", [DEREGISTERED])
    await stage.rows(beats.format("workers", "worker_id"), "-2 days", [LOST])


async def _save(stage: Stage) -> None:
    """Create a copy of every table, a function that restores the tables that were changed, and one that moves all
    times of the copies forward, as if they were prepared now."""
    tables = await stage.rows(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition AND c.relname <> 'schema_info'",
        SCHEMA,
    )
    await stage.rows("CREATE SCHEMA saved")
    await stage.rows("CREATE TABLE saved.versions (table_name text PRIMARY KEY, written_by xid)")
    await stage.rows("CREATE TABLE saved.prepared AS SELECT clock_timestamp() AS prepared_at")
    puts, moves = [], []
    for (table,) in sorted(tables):
        ((columns, times),) = await stage.rows(
            "SELECT string_agg(quote_ident(attname), ', '),"
            " string_agg(format('%%1$I = %%1$I + elapsed', attname), ', ')"
            " FILTER (WHERE atttypid = 'timestamptz'::regtype) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            f"{SCHEMA}.{table}",
        )
        await stage.rows(f"CREATE TABLE saved.{table} AS SELECT {columns} FROM {SCHEMA}.{table}")
        await stage.rows("INSERT INTO saved.versions VALUES (%s)", table)
        ((count,),) = await stage.rows(f"SELECT count(*) FROM saved.{table}")
        puts.append(f"""
            SELECT written_by INTO restored_by FROM saved.versions WHERE table_name = '{table}';
            IF (SELECT count(*) <> {count} OR bool_or(xmin IS DISTINCT FROM restored_by) FROM {SCHEMA}.{table}) THEN
                DELETE FROM {SCHEMA}.{table};
                INSERT INTO {SCHEMA}.{table} ({columns}) SELECT * FROM saved.{table};
                UPDATE saved.versions SET written_by = pg_current_xact_id()::xid WHERE table_name = '{table}';
            END IF;""")
        if times and count:
            moves.append(f"UPDATE saved.{table} SET {times};")
    await stage.rows(
        "CREATE FUNCTION saved.restore() RETURNS void LANGUAGE plpgsql"
        f" AS $$ DECLARE restored_by xid; BEGIN {OLD_PARTITION} {' '.join(puts)} END $$"
    )
    await stage.rows(f"""
        CREATE FUNCTION saved.move_times() RETURNS void LANGUAGE plpgsql AS $$
        DECLARE elapsed interval;
        BEGIN
            SELECT clock_timestamp() - prepared_at INTO elapsed FROM saved.prepared;
            UPDATE saved.prepared SET prepared_at = prepared_at + elapsed;
            UPDATE saved.versions SET written_by = NULL;
            {" ".join(moves)}
        END $$""")


async def _restore(stage: Stage, *, needs_partitions: bool = False) -> None:
    """Restore the prepared state. With `needs_partitions`, all events are in the default partition, as if no partition
    had been created for months."""
    if needs_partitions:
        await stage.rows(DROP_PARTITIONS)
    elif stage.needs_partitions:
        await stage.rows("SELECT dagapp.ensure_event_partitions()")
    stage.needs_partitions = needs_partitions
    stage.restored += 1
    if stage.restored % 50 == 0:
        await stage.rows("VACUUM")  # otherwise each query would read dead rows
    assert stage.replica is not None
    await stage.replica.execute("SELECT saved.restore()")


DROP_PARTITIONS = """
    DO $$
    DECLARE name text;
    BEGIN
        FOR name IN
            SELECT relname FROM pg_class WHERE relispartition AND relname ~ '^dag_job_events_[0-9]+_[0-9]+$'
        LOOP
            EXECUTE format('DROP TABLE dagapp.%I', name);
        END LOOP;
    END $$
    """


# A partition of a month without jobs, which retention drops.
OLD_PARTITION = """
    IF to_regclass('dagapp.dag_job_events_2001_01') IS NULL THEN
        CREATE TABLE dagapp.dag_job_events_2001_01 PARTITION OF dagapp.dag_job_events
        FOR VALUES FROM (dagapp.first_uuid_at('2001-01-01 00:00Z')) TO (dagapp.first_uuid_at('2001-02-01 00:00Z'));
    END IF;
    """


# --- the transactions ------------------------------------------------------------------------------------------------


Call = Callable[[Stage, PostgresLedger], Awaitable[Any]]


@dataclass(frozen=True)
class Transaction:
    name: str
    call: Call
    is_long: bool = False
    needs_partitions: bool = False  # it creates partitions

    def session(self, stage: Stage) -> Session:
        async def play(connection: GatedConnection) -> Any:
            ledger = PostgresLedger("nowhere")
            ledger._connection = connection  # type: ignore[assignment]
            return await self.call(stage, ledger)

        return play


def _new(job_id: UUID, message_id: str | None = None) -> NewJob:
    """A new job whose definition is not stored yet."""
    return NewJob(job_id, UNSTORED, {}, message_id=message_id)


def _creating_once(job_id: UUID) -> Call:
    job = NewJob(job_id, UNSTORED, {}, submitted_by="hub", idempotency_key="key")
    return lambda _, ledger: ledger.create_once(job, "same")


def _handle(message: JobMessage) -> NewJob | DeadLetter:
    if message.message_id == "good":
        return _new(_id(7), "good")
    return DeadLetter.model_construct(
        dead_letter_id=_id(8),
        queue=message.queue,
        message_id=message.message_id,
        reason="Malformed",
        description="",
        body={},
        created_at=message.enqueued_at,
    )


def _handle_keyed(message: JobMessage) -> NewJob:
    number = ("key", "key_a", "key_b").index(message.message_id)
    return NewJob(
        _id(12 + number),
        UNSTORED,
        {},
        submitted_by="hub",
        idempotency_key=message.message_id,
        request_hash="same",
        message_id=message.message_id,
    )


def _reviewing(stage: Stage, ledger: PostgresLedger) -> Awaitable[Any]:
    return ledger.review_deferred([stage.claims[OPEN]], alive_seconds=60, unknown_after_seconds=600)


def _claiming(owner: UUID) -> Call:
    return lambda _, ledger: ledger.claim_orphans(owner, limit=10, orphan_after_seconds=600, unclaimed_after_seconds=0)


def _advancing(job_id: UUID, scope_of: Callable[[frozenset[UUID]], StepScope], owner: UUID = ONE) -> Call:
    return lambda stage, ledger: stage.advance(
        ledger, owner, [stage.claims[job_id]], scope_of(frozenset({job_id})), stage.views
    )


async def _as_zombie(stage: Stage, ledger: PostgresLedger) -> frozenset[UUID]:
    """An owner that was replaced long ago."""
    claims = [replace(stage.claims[job_id], token=UUID(int=9)) for job_id in (OPEN, GATHERING)]
    scope = StepScope(overdue=frozenset({OPEN}), started=frozenset({OPEN}))
    return await stage.advance(ledger, ONE, claims, scope, stage.views)


async def _take_over(stage: Stage, ledger: PostgresLedger) -> list[Claim]:
    claims = await ledger.claim_orphans(TWO, limit=10, orphan_after_seconds=600, unclaimed_after_seconds=0)
    if claims:
        await stage.advance(ledger, TWO, claims, StepScope(), await _load(ledger, claims))
    return claims


def _exchanging(
    worker: UUID, reported: Sequence[tuple[UUID, str]], light: int, queues: Sequence[str] = (QUEUE,)
) -> Call:
    reports = [Report(job_id, node_id, 1, TaskStatus.SUCCEEDED, node_id) for job_id, node_id in reported]
    demand = Demand(tuple(queues), light_handlers=HANDLERS, light=light)

    def exchange(_: Stage, ledger: PostgresLedger) -> Awaitable[Any]:
        ledger._limits.update(
            queue for queue in queues if queue == LIMITED
        )  # as if an earlier claim had returned the limit
        return ledger.exchange(worker, reports, demand, lease_seconds=60)

    return exchange


async def _reporting(ledger: PostgresLedger, job_id: UUID, node_id: str, output: bytes) -> Any:
    """Report a stored output, which may have been deleted meanwhile."""
    report = Report(job_id, node_id, 1, TaskStatus.SUCCEEDED, output_ref=reference_to(output))
    try:
        return await ledger.exchange(WORKER, [report], Demand((QUEUE,)), lease_seconds=60)
    except NotFound as refused:
        return refused.code


async def _advancing_with_payload(stage: Stage, ledger: PostgresLedger) -> None:
    """A decision with the same payload that a worker stores for the same job."""
    scope = StepScope(overdue=frozenset({OPEN}))
    async with ledger.open_jobs(ONE, [stage.claims[OPEN]], scope) as step:
        decisions = _decide(step, stage.views)
        for changes in decisions:
            changes.payloads[reference_to(FRESH_OUTPUT)["sha256"]] = FRESH_OUTPUT
        await step.commit(decisions)


def _renewing(worker: UUID, node_id: str) -> Call:
    held = [Running(OPEN, node_id, 1, {"fraction": 0.5}), Running(FAILED, "busy", 1)]
    return lambda _, ledger: ledger.renew(worker, held, lease_seconds=60)


def _saving(node_id: str) -> Call:
    return lambda _, ledger: ledger.save_checkpoint(Running(OPEN, node_id, 1), "phase_1", {"done": 1})


async def _rerun(ledger: PostgresLedger, choose: Callable[[JobView], Rerun]) -> Any:
    """Rerun the ended job. A concurrent rerun may have reopened it, and retention may have deleted it."""
    try:
        return await ledger.rerun(ENDED, lambda job: choose(job.view()), {"by": "ana"})
    except (Conflict, NotFound) as refused:
        return refused.code


def _on(ledger: PostgresLedger, other: Any) -> Any:
    """Let another store use the connection of the ledger."""
    other._connection = ledger._connection
    return other


def _sweeping(kind: str) -> Call:
    """ONE has not advanced OPEN for an hour, and a lease expired that long ago. A queue without readers has a
    message."""
    thresholds = JanitorThresholds(orphan_after=600, neglected=1800, queued=1e8, unused=86_400)
    return lambda _, ledger: _on(ledger, PostgresJanitor("nowhere"))._apply(
        kind, RULES[kind], UUID(int=7), thresholds, is_dry=False
    )


def _noting_stuck(stage: Stage, ledger: PostgresLedger) -> Awaitable[Any]:
    janitor = _on(ledger, PostgresJanitor("nowhere"))
    return janitor.note_stuck(UUID(int=7), ONE, stage.claims[OPEN], "boom")  # type: ignore[no-any-return]


MINIMUM_AGE = 1e-3  # seconds; everything that has ended is older


def _pruning(ledger: PostgresLedger) -> Awaitable[Any]:
    return _on(ledger, PostgresRetention("nowhere")).prune_jobs(MINIMUM_AGE, 10)  # type: ignore[no-any-return]


async def _forgetting(ledger: PostgresLedger) -> list[int]:
    retention = _on(ledger, PostgresRetention("nowhere"))
    return [await retention._delete(name, MINIMUM_AGE, 10) for name in ("retention_letters", "retention_actions")]


async def _forgetting_tables(ledger: PostgresLedger) -> list[Any]:
    retention = _on(ledger, PostgresRetention("nowhere"))
    return [
        await retention._whole_table("retention_definitions", "deleted", MINIMUM_AGE),
        await retention._whole_table("retention_partition", "name", MINIMUM_AGE),
    ]


TRANSACTIONS: tuple[Transaction, ...] = (
    Transaction("create", lambda _, ledger: ledger.create_jobs([_new(NEW), _new(_id(9), "good")])),
    Transaction("create_once", _creating_once(_id(10))),
    Transaction("create_once_too", _creating_once(_id(11))),
    Transaction("replay", lambda _, ledger: ledger.replay_dead_letter(_id(8), JOBS)),
    Transaction("enqueue", lambda _, ledger: ledger.enqueue_message("late", JOBS, {})),
    Transaction("take_messages", lambda _, ledger: ledger.take_messages(JOBS, 10, _handle), is_long=True),
    Transaction("take_keyed", lambda _, ledger: ledger.take_messages(KEYED, 10, _handle_keyed), is_long=True),
    Transaction("beat", lambda _, ledger: ledger.beat(OrchestratorInfo(ONE, "host", 1, "0"))),
    Transaction("claim", _claiming(TWO)),
    Transaction("claim_by_another", _claiming(ONE)),
    Transaction("take_over", _take_over, is_long=True),
    Transaction("advance_results", _advancing(GATHERING, lambda _: StepScope()), is_long=True),
    Transaction("advance_overdue", _advancing(OPEN, lambda ids: StepScope(overdue=ids, started=ids)), is_long=True),
    Transaction("advance_failing", _advancing(FAILED, lambda ids: StepScope(withdraw=ids)), is_long=True),
    Transaction(
        "advance_fail_fast", _advancing(FAILED, lambda ids: StepScope(withdraw=ids, stop_running=ids)), is_long=True
    ),
    Transaction("advance_half_dead", _advancing(ORPHAN, lambda _: StepScope(), SILENT), is_long=True),
    Transaction("zombie", _as_zombie),
    Transaction("fail_job", lambda stage, ledger: ledger.fail_job(ONE, stage.claims[OPEN], "boom"), is_long=True),
    Transaction("review_deferred", _reviewing),
    Transaction("request_cancel", lambda _, ledger: ledger.request_cancel(OPEN, by="ana", reason=None)),
    Transaction("take_stops", lambda _, ledger: ledger.take_stops(WORKER)),
    Transaction("rerun", lambda _, ledger: _rerun(ledger, resume)),
    Transaction("rerun_from_scratch", lambda _, ledger: _rerun(ledger, lambda view: retry(view, node="only"))),
    Transaction("drop_letter", lambda _, ledger: ledger.drop_dead_letter(_id(10))),
    Transaction("release_unknown", lambda _, ledger: ledger.release_unknown(ONE, [OPEN])),
    Transaction("retire", lambda _, ledger: ledger.retire(ONE)),
    Transaction("maintain", lambda _, ledger: ledger.maintain(), needs_partitions=True),
    Transaction("exchange", _exchanging(WORKER, [(OPEN, "each__0"), (FAILED, "busy")], 2)),
    Transaction("exchange_late", _exchanging(SLOW, [(OPEN, "each__2")], 0)),
    Transaction("exchange_claim", _exchanging(OTHER, [], 10)),
    Transaction("exchange_limited", _exchanging(OTHER, [], 10, (LIMITED, QUEUE))),
    Transaction("exchange_limited_too", _exchanging(WORKER, [(FAILED, "busy")], 10, (QUEUE, LIMITED))),
    Transaction("set_queue", lambda _, ledger: ledger.set_queue(LIMITED, max_running=2, is_paused=False)),
    Transaction("renew", _renewing(WORKER, "each__0")),
    Transaction("renew_late", _renewing(SLOW, "each__2")),
    Transaction("checkpoint", _saving("each__0")),
    Transaction("checkpoint_late", _saving("each__2")),
    Transaction(
        "beat_worker",
        lambda _, ledger: ledger.beat_worker(WorkerInfo(WORKER, "host", 1, "0", "general", (QUEUE,), HANDLERS)),
    ),
    Transaction("retire_worker", lambda _, ledger: ledger.retire_worker(WORKER)),
    Transaction("report_to_ended", _exchanging(OTHER, [(ENDED, "only")], 0)),
    Transaction("store", lambda _, ledger: ledger.store_payload(OPEN, FRESH_OUTPUT)),
    Transaction("store_new", lambda _, ledger: ledger.store_payload(OPEN, NEW_OUTPUT)),
    Transaction("store_old", lambda _, ledger: ledger.store_payload(FAILED, OLD_OUTPUT)),
    Transaction("store_for_ended", lambda _, ledger: ledger.store_payload(ENDED, OLD_OUTPUT)),
    Transaction("report_stored", lambda _, ledger: _reporting(ledger, OPEN, "each__0", FRESH_OUTPUT)),
    Transaction("report_old", lambda _, ledger: _reporting(ledger, FAILED, "busy", OLD_OUTPUT)),
    Transaction("advance_with_payload", _advancing_with_payload, is_long=True),
    Transaction("collect_unused", _sweeping("unused")),
    Transaction("janitor", _sweeping("neglected")),
    Transaction("janitor_reports", _sweeping("unread")),
    Transaction("note_stuck", _noting_stuck),
    Transaction("prune", lambda _, ledger: _pruning(ledger), is_long=True),
    Transaction("forget", lambda _, ledger: _forgetting(ledger)),
    Transaction("forget_tables", lambda _, ledger: _forgetting_tables(ledger), is_long=True),
)
BY_NAME = {transaction.name: transaction for transaction in TRANSACTIONS}
PAIRS = list(combinations_with_replacement(TRANSACTIONS, 2))
# These statements are one step with the statement before them: they follow without waiting for its response, or they
# read only rows that the fence protects.
CONTINUATIONS = frozenset(
    {
        "take_waiting",
        "take_started",
        "gather_children",
        "insert_dead_letters",
        "retention_results",
        "retention_payloads",
        "retention_checkpoints",
        "retention_documents",
        "retention_events",
        "retention_nodes",
        "retention_search",
        "store_payload_part",
    }
)
CONTINUED_PAIRS = frozenset(
    {("promote_nodes", "apply_changes"), ("promote_nodes", "apply_steps"), ("insert_definitions", "create_jobs")}
)


def _is_step(before: str, name: str) -> bool:
    return name not in CONTINUATIONS and (before, name) not in CONTINUED_PAIRS


def _is_coarse_step(before: str, name: str) -> bool:
    """For two long transactions: only the first read, the writes and the commit are steps."""
    return _is_step(before, name) and not (name.startswith(("take_", "withdraw_")) and before)


# Transactions that share no row with those of orchestrators.
INDEPENDENT = frozenset({"enqueue", "replay", "beat", "beat_worker", "retire_worker", "set_queue"})


def _steps(first: "Transaction", second: "Transaction", plays_all: bool) -> IsStep | None:
    if plays_all:
        return None
    is_coarse = (first.is_long and second.is_long) or {first.name, second.name} & INDEPENDENT
    return _is_coarse_step if is_coarse else _is_step


# Variants of another transaction, and those that share rows with few others: each is paired only with these.
PARTNERS = {
    "create_once_too": {"create_once"},
    "take_keyed": {"take_keyed", "create_once", "prune"},
    "claim_by_another": {"claim", "take_over", "release_unknown", "retire", "advance_half_dead", "review_deferred"},
    "review_deferred": {
        "review_deferred",
        "claim",
        "claim_by_another",
        "take_over",
        "retire",
        "release_unknown",
        "request_cancel",
        "advance_overdue",
        "fail_job",
        "janitor",
    },
    "request_cancel": {
        "review_deferred",
        "request_cancel",
        "claim",
        "take_over",
        "retire",
        "release_unknown",
        "advance_overdue",
        "advance_half_dead",
        "janitor",
    },
    "fail_job": {
        "review_deferred",
        "fail_job",
        "claim",
        "take_over",
        "retire",
        "release_unknown",
        "request_cancel",
        "advance_overdue",
        "exchange",
        "exchange_late",
        "exchange_claim",
        "exchange_limited",
        "renew",
        "report_stored",
        "take_stops",
        "checkpoint",
        "janitor",
    },
    "take_stops": {"take_stops", "exchange", "renew", "advance_fail_fast", "advance_overdue", "exchange_limited_too"},
    "rerun": {
        "rerun",
        "rerun_from_scratch",
        "claim",
        "take_over",
        "retire",
        "create_once",
        "maintain",
        "prune",
        "forget_tables",
        "report_to_ended",
    },
    "rerun_from_scratch": {"rerun", "rerun_from_scratch", "prune"},
    "drop_letter": {"replay", "drop_letter", "forget"},
    "report_to_ended": {"prune", "rerun"},
    "janitor": {
        "review_deferred",
        "janitor",
        "claim",
        "take_over",
        "retire",
        "release_unknown",
        "request_cancel",
        "advance_overdue",
        "exchange_late",
        "renew_late",
        "note_stuck",
    },
    "janitor_reports": {"janitor_reports", "forget", "note_stuck"},
    "note_stuck": {"note_stuck", "janitor", "janitor_reports", "retire", "forget"},
    "prune": {
        "prune",
        "forget_tables",
        "create",
        "create_once",
        "rerun",
        "rerun_from_scratch",
        "claim",
        "take_messages",
        "take_keyed",
        "report_to_ended",
        "maintain",
    },
    "forget": {"forget", "drop_letter", "replay", "note_stuck", "janitor_reports"},
    "forget_tables": {
        "prune",
        "forget_tables",
        "create",
        "create_once",
        "rerun",
        "take_messages",
        "advance_results",
        "maintain",
    },
    "store": {"store", "report_stored", "advance_with_payload"},
    "store_new": {"store_new"},
    "store_old": {"store_old", "report_old", "collect_unused"},
    "store_for_ended": {"prune"},
    "report_stored": {"store", "report_stored", "advance_with_payload", "advance_overdue", "exchange", "renew"},
    "report_old": {"store_old", "report_old", "collect_unused", "exchange", "advance_failing"},
    "advance_with_payload": {"store", "report_stored"},
    "collect_unused": {"collect_unused", "store_old", "report_old", "prune"},
    "exchange_limited_too": {"exchange_limited", "exchange_claim", "set_queue", "advance_failing", "advance_fail_fast"},
}
# An owner makes one call at a time; a second one can only be a repetition after a lost connection, see below.
NEVER_TOGETHER = {("advance_failing", "advance_fail_fast")}


def _is_played(first: Transaction, second: Transaction) -> bool:
    names = (first.name, second.name)
    if "zombie" in names:  # it has its own test, with more checks
        return False
    for double, other in (names, names[::-1]):
        if double in PARTNERS and other not in PARTNERS[double]:
            return False
    return names not in NEVER_TOGETHER and not (first is second and first.name.startswith("advance_"))


def _is_in_sample(first: Transaction, second: Transaction) -> bool:
    """Always the same sixth of the pairs, half of those in PARTNERS, and those with which a mutant is detected."""
    names = {first.name, second.name}
    share = 2 if names & PARTNERS.keys() else 6
    return "report_to_ended" in names or zlib.crc32(f"{first.name} {second.name}".encode()) % share == 0


# --- what must hold --------------------------------------------------------------------------------------------------


BROKEN = """
    SELECT 'two live tasks', node_id FROM dagapp.dag_tasks
     WHERE status IN ('queued', 'running') GROUP BY job_id, node_id HAVING count(*) > 1
     UNION ALL
    SELECT 'an owner without a token, or the reverse', job_id::text FROM dagapp.dag_jobs
     WHERE (owner_id IS NULL) <> (claim_token IS NULL)
        OR status NOT IN ('pending', 'running') AND owner_id IS NOT NULL
     UNION ALL
    SELECT 'remaining', p.node_id FROM dagapp.dag_node_states p
     WHERE p.total IS NOT NULL
       AND p.remaining <> p.total - (SELECT count(*) FROM dagapp.dag_node_states c
                                      WHERE c.job_id = p.job_id AND c.parent_node_id = p.node_id
                                        AND c.status IN ('completed', 'failed', 'skipped', 'cancelled'))
     UNION ALL
    SELECT 'an attempt ended twice', node_id FROM dagapp.dag_job_events
     WHERE event_type IN ('node_completed', 'node_failed') AND attempt IS NOT NULL
     GROUP BY job_id, node_id, attempt HAVING count(*) > 1
     UNION ALL
    SELECT 'events have gaps', j.job_id::text FROM dagapp.dag_jobs j
     WHERE (SELECT (count(*), count(DISTINCT e.sequence), max(e.sequence)) FROM dagapp.dag_job_events e
             WHERE e.job_id = j.job_id) IS DISTINCT FROM (j.last_sequence, j.last_sequence, j.last_sequence)
     UNION ALL
    SELECT 'an event of a future epoch', j.job_id::text FROM dagapp.dag_jobs j
      JOIN dagapp.dag_job_events e ON e.job_id = j.job_id AND e.epoch > j.epoch
     UNION ALL
    SELECT 'node and task disagree', n.node_id
      FROM dagapp.dag_node_states n
      LEFT JOIN dagapp.dag_tasks t ON t.job_id = n.job_id AND t.node_id = n.node_id AND t.attempt = n.attempt
      LEFT JOIN dagapp.dag_task_results r
        ON r.job_id = n.job_id AND r.node_id = n.node_id AND r.attempt = n.attempt AND NOT r.processed
     WHERE (n.status IN ('dispatched', 'running'))
           IS DISTINCT FROM (coalesce(t.status IN ('queued', 'running'), false) OR r.job_id IS NOT NULL)
     UNION ALL
    SELECT 'a live task without a node', t.node_id
      FROM dagapp.dag_tasks t
      LEFT JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id AND n.attempt = t.attempt
     WHERE t.status IN ('queued', 'running')
       AND n.status IS DISTINCT FROM 'dispatched' AND n.status IS DISTINCT FROM 'running'
     UNION ALL
    SELECT 'a running task without a worker', node_id FROM dagapp.dag_tasks
     WHERE status = 'running' AND (worker_id IS NULL OR lease_until IS NULL OR started_at IS NULL)
     UNION ALL
    SELECT 'more running tasks than the limit of the queue', t.queue
      FROM dagapp.dag_tasks t
      JOIN dagapp.dag_queues q USING (queue)
     WHERE t.status = 'running' GROUP BY t.queue, q.max_running HAVING count(*) > q.max_running
     UNION ALL
    SELECT 'several jobs for one key', idempotency_key FROM dagapp.dag_jobs
     WHERE idempotency_key IS NOT NULL GROUP BY submitted_by, idempotency_key HAVING count(*) > 1
     UNION ALL
    SELECT 'a message in two places or none', m.id
      FROM unnest(ARRAY['good', 'bad', 'old']) AS m (id)
     WHERE (SELECT count(*) FROM dagapp.dag_job_messages q WHERE q.message_id = m.id)
         + (SELECT count(*) FROM dagapp.dag_dead_letters d WHERE d.message_id = m.id) > 1
        OR (SELECT count(*) FROM dagapp.dag_jobs j WHERE j.message_id = m.id) > 1
        OR NOT EXISTS (SELECT 1 FROM dagapp.dag_job_messages q WHERE q.message_id = m.id)
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_dead_letters d WHERE d.message_id = m.id)
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.message_id = m.id)
    """
# Payloads: a row of dag_payloads has all its parts, a part has its row, and a payload of a result is kept.
BROKEN += """
     UNION ALL
    SELECT 'a payload without all of its parts', p.sha256 FROM dagapp.dag_payloads p
     WHERE p.size_bytes IS DISTINCT FROM (SELECT sum(octet_length(d.data)) FROM dagapp.dag_payload_parts d
                                           WHERE d.job_id = p.job_id AND d.sha256 = p.sha256)
     UNION ALL
    SELECT 'a part without a payload', d.sha256 FROM dagapp.dag_payload_parts d
     WHERE NOT EXISTS (SELECT 1 FROM dagapp.dag_payloads p WHERE p.job_id = d.job_id AND p.sha256 = d.sha256)
     UNION ALL
    SELECT 'a reference to a payload that is not kept', r.node_id FROM dagapp.dag_task_results r
     WHERE r.output_ref IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_payloads p
                        WHERE p.job_id = r.job_id AND p.sha256 = r.output_ref ->> 'sha256' AND p.is_kept)
    """
# Everything that does not depend on times or random values, and everything that BROKEN reads.
FINGERPRINT = """
    SELECT string_agg(line, E'\\n' ORDER BY line)
      FROM (SELECT ROW('job', job_id, status, epoch, owner_id, claim_token IS NULL, last_sequence, submitted_by,
                       idempotency_key, message_id)::text AS line FROM dagapp.dag_jobs
             UNION ALL
            SELECT ROW('node', job_id, node_id, parent_node_id, status, attempt, retry_count, loss_count, total,
                       expanded, remaining, failed_count, cancelled_count, output, reason)::text
              FROM dagapp.dag_node_states
             UNION ALL
            SELECT ROW('task', job_id, node_id, attempt, status, queue, worker_id, lease_until IS NULL,
                       started_at IS NULL)::text FROM dagapp.dag_tasks
             UNION ALL
            SELECT ROW('queue', queue, max_running)::text FROM dagapp.dag_queues
             UNION ALL
            SELECT ROW('result', job_id, node_id, attempt, status, processed, accepted, output_ref ->> 'sha256')::text
              FROM dagapp.dag_task_results
             UNION ALL
            SELECT ROW('event', job_id, sequence, node_id, event_type, attempt, epoch)::text
              FROM dagapp.dag_job_events
             UNION ALL
            SELECT ROW('payload', job_id, sha256, size_bytes, is_kept)::text FROM dagapp.dag_payloads
             UNION ALL
            SELECT ROW('part', job_id, sha256, octet_length(data))::text FROM dagapp.dag_payload_parts
             UNION ALL
            SELECT ROW('message', message_id)::text FROM dagapp.dag_job_messages
             UNION ALL
            SELECT ROW('letter', message_id)::text FROM dagapp.dag_dead_letters) AS lines
    """


async def _fingerprint(stage: Stage) -> str:
    ((text,),) = await stage.rows(FINGERPRINT)
    return hashlib.sha256(text.encode()).hexdigest()


async def _check(stage: Stage, pair: str, run: Run) -> str:
    stage.interleavings += 1
    stage.steps |= {step.split(":")[1].removesuffix(" (waits)") for step in run.steps}
    assert not run.deadlocks, f"{pair}: deadlock\n{run}"
    assert not run.errors, f"{pair}: {run.errors!r}\n{run}"
    state = await _fingerprint(stage)
    if state not in stage.clean:
        broken = await stage.rows(BROKEN)
        assert broken == [], f"{pair}: {broken}\n{run}"
        report = await verify(stage.dsn)
        assert report.is_clean, f"{pair}: {[str(finding) for finding in report.findings]}\n{run}"
        stage.clean.add(state)
    return state


@pytest.fixture(autouse=True)
def _by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "execute", execute_step_by_step)


@pytest.fixture(scope="module")
def prepared(shared_database: str) -> Stage:
    return asyncio.run(_prepared(shared_database))


async def _prepared(dsn: str) -> Stage:
    prepared = Stage(dsn, PostgresLedger(dsn, "stage"))
    async with _connected(prepared):
        await _prepare(prepared)
        await _save(prepared)
    return prepared


@asynccontextmanager
async def _connected(stage: Stage) -> AsyncIterator[None]:
    connect = partial(psycopg.AsyncConnection.connect, stage.dsn, autocommit=True, prepare_threshold=0)
    async with await connect() as stage.connection, await connect() as stage.replica:
        # A replica checks neither guards nor foreign keys, which must not prevent restoring. This is set only once,
        # because each change of this setting makes PostgreSQL plan all statements again.
        await stage.replica.execute("SET session_replication_role = replica")
        try:
            yield
        finally:
            await stage.ledger.close()


@pytest.fixture
async def stage(prepared: Stage) -> AsyncIterator[Stage]:
    """The state as it was prepared; end states that earlier tests have found to be clean are not checked again."""
    prepared.ledger, prepared.steps, prepared.interleavings = PostgresLedger(prepared.dsn, "stage"), set(), 0
    async with _connected(prepared):
        await prepared.rows("SELECT saved.move_times()")
        await _restore(prepared)
        prepared.views = await _load(prepared.ledger, list(prepared.claims.values()))
        yield prepared


_TOTAL: dict[str, int] = {}


@pytest.mark.parametrize("first", [transaction.name for transaction in TRANSACTIONS if transaction.name != "zombie"])
async def test_every_pair_of_transactions_in_every_order_keeps_the_invariants(stage, request, first):
    """`first` is paired with itself and all transactions after it; without --slow, only a sample of the pairs runs."""
    plays_all = request.config.getoption("--slow")
    partners = [(a, b) for a, b in PAIRS if a.name == first and _is_played(a, b) and (plays_all or _is_in_sample(a, b))]

    async with Interleaver.on(stage.dsn) as tester:
        for a, b in partners:
            pair, needs_partitions = f"{a.name} + {b.name}", a.needs_partitions or b.needs_partitions

            async def reset(needs_partitions=needs_partitions):
                await _restore(stage, needs_partitions=needs_partitions)

            async def check(run, pair=pair):
                await _check(stage, pair, run)

            is_step = _steps(a, b, plays_all)
            played = await tester.explore([a.session(stage), b.session(stage)], reset, check, is_step)
            _TOTAL[pair] = played

    print(f"{first}: {stage.interleavings} interleavings of {len(partners)} pairs, {len(stage.clean)} end states")
    print(f"so far: {sum(_TOTAL.values())} interleavings of {len(_TOTAL)} pairs")


async def test_every_writing_statement_is_part_of_an_interleaving(stage):
    async with Interleaver.on(stage.dsn) as tester:
        for transaction in TRANSACTIONS:

            async def reset(transaction=transaction):
                await _restore(stage, needs_partitions=transaction.needs_partitions)

            async def check(run, transaction=transaction):
                await _check(stage, transaction.name, run)

            await tester.explore([transaction.session(stage)], reset, check)

    # `job_of_message` is reached only after another transaction, as in the pairs. `janitor_leftovers` locks only rows
    # that no other transaction has locked, never waits, and is tested in tests/engine/test_tidy.py. Variants with the
    # outbox lock the same rows as those without it, and insert rows that are not visible before the commit.
    with_outbox = {"apply_changes_with_outbox", "apply_steps_with_outbox"}
    assert WRITING - stage.steps <= {"job_of_message", "janitor_leftovers"} | with_outbox


async def test_the_prepared_state_is_restored_after_each_transaction(stage):
    """Otherwise the next interleaving would start from another state."""
    changed = set()
    async with Interleaver.on(stage.dsn) as tester:
        for name in ("create", "advance_results", "exchange", "store_new", "prune", "maintain", "set_queue"):

            async def reset(needs_partitions=BY_NAME[name].needs_partitions):
                await _restore(stage, needs_partitions=needs_partitions)

            async def note(_run):
                changed.update(await _differences(stage))

            await tester.explore([BY_NAME[name].session(stage)], reset, note)
            await _restore(stage)
            assert await _differences(stage) == set(), name
    assert {"dag_jobs", "dag_node_states", "dag_job_events", "dag_tasks", "dag_payloads", "dag_queues"} <= changed


async def _differences(stage: Stage) -> set[str]:
    """The tables whose rows differ from the saved ones."""
    saved = await stage.rows(
        "SELECT c.relname, string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_class c"
        " JOIN saved.versions v ON v.table_name = c.relname JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0"
        " WHERE c.relnamespace = 'saved'::regnamespace GROUP BY c.relname"
    )
    different = set()
    for table, columns in saved:
        ours = f"SELECT t::text FROM (SELECT {columns} FROM {SCHEMA}.{table}) t"
        theirs = f"SELECT t::text FROM saved.{table} t"
        if await stage.rows(f"({ours} EXCEPT ALL {theirs}) UNION ALL ({theirs} EXCEPT ALL {ours})"):
            different.add(table)
    return different


async def test_a_zombie_changes_nothing_in_any_interleaving(stage):
    zombie = BY_NAME["zombie"]

    async with Interleaver.on(stage.dsn) as tester:
        for other in TRANSACTIONS:
            if other.needs_partitions or other is zombie:
                continue
            alone: set[str] = set()

            async def reset():
                await _restore(stage)

            async def note(run, other=other, alone=alone):
                alone.add(await _check(stage, other.name, run))

            async def compare(run, other=other, alone=alone):
                state = await _check(stage, f"{other.name} + zombie", run)
                assert state in alone, f"{other.name}: the zombie changed something\n{run}"
                assert run.results[1] == {OPEN, GATHERING}

            await tester.explore([other.session(stage)], reset, note)
            await tester.explore([other.session(stage), zombie.session(stage)], reset, compare, _is_step)


@pytest.mark.parametrize("name", ["advance_results", "advance_overdue", "advance_failing"])
async def test_a_call_that_is_repeated_before_the_first_has_committed_keeps_the_invariants(stage, name):
    """An owner lost its connection, reads its job again and repeats its call; the first call commits after that."""
    first = BY_NAME[name]

    async def reset():
        await _restore(stage)

    async def check(run):
        run.errors = [error for error in run.errors if isinstance(error, psycopg.errors.DeadlockDetected)]
        await _check(stage, f"{name} twice", run)

    async with Interleaver.on(stage.dsn) as tester:
        await tester.explore([first.session(stage), first.session(stage)], reset, check)


def test_every_pair_runs_except_for_those_that_are_listed():
    left_out = {(a.name, b.name) for a, b in PAIRS if not _is_played(a, b)}

    unexplained = {
        (a, b)
        for a, b in left_out - NEVER_TOGETHER
        if "zombie" not in (a, b) and not {a, b} & PARTNERS.keys() and not (a == b and a.startswith("advance_"))
    }
    assert len(PAIRS) == len(TRANSACTIONS) * (len(TRANSACTIONS) + 1) // 2
    assert unexplained == set()
