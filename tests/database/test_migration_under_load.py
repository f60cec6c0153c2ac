"""A release that adds a column and an index migrates a live database while it is in use."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import psycopg
import pytest
from httpx2 import AsyncClient
from tests.api.serving import V1, api
from tests.engine.harness import Engine, engine, until

from dagmaster.database.schema import deploy
from dagmaster.database.schema.records import RECORDS
from dagmaster.errors import Conflict, Unavailable
from dagmaster.jobs.model import (
    Job,
    JobEvent,
    JobMessage,
    NodeState,
    Submission,
    Task,
    TaskResult,
    WorkerRecord,
)
from dagmaster.records import Index, Record, Table

pytestmark = pytest.mark.requirement("D4")

# The engine's statements give up on a lock after this long.
ENGINE_LOCK_SECONDS = 3.0
# Even on a busy machine no process counts as dead with these: every error that is counted comes from the migration.
LONG_INTERVALS = {"orphan_threshold_sec": 60, "task_lease_sec": 60, "lease_renew_sec": 5}


def with_column(record: type[Record], **table: Any) -> type[Record]:
    """The record of the next release: it has one more nullable column, and these changes of its table."""
    changed = replace(record.table, **table)
    namespace = {"table": changed, "region": None, "__annotations__": {"table": ClassVar[Table], "region": str | None}}
    return type(f"Newer{record.__name__}", (record,), {**namespace, "__module__": __name__})


def with_index(record: type[Record], *columns: str) -> tuple[Index, ...]:
    return (*record.table.indexes, Index(f"{record.table.name}_by_region", (*columns, "region")))


CHANGED = {
    record: with_column(record, indexes=with_index(record, "job_id"))
    for record in (Job, NodeState, Task, TaskResult, JobEvent)
} | {WorkerRecord: with_column(WorkerRecord), JobMessage: with_column(JobMessage)}
NEWER = tuple(CHANGED.get(record, record) for record in RECORDS)
NEW_INDEXES = {f"{record.table.name}_by_region" for record in (Job, NodeState, Task, TaskResult, JobEvent)}


@dataclass
class Load:
    """The jobs that were submitted, one after the other, until the block ended."""

    job_ids: list[UUID] = field(default_factory=list)
    slowest_seconds: float = 0.0


@asynccontextmanager
async def load(running: Engine) -> AsyncIterator[Load]:
    measured = Load()
    is_over = asyncio.Event()

    async def submit() -> None:
        while not is_over.is_set():
            started = time.monotonic()
            measured.job_ids += await running.submit_all(
                [Submission(workflow_id="hello_world"), Submission(workflow_id="fan_out_test")]
            )
            measured.slowest_seconds = max(measured.slowest_seconds, time.monotonic() - started)
            await asyncio.sleep(0.05)

    submitting = asyncio.create_task(submit())
    await until(lambda: _are_done(running, 10))
    try:
        yield measured
    finally:
        is_over.set()
        await submitting
    for job_id in measured.job_ids:
        assert (await running.wait(job_id))["status"] == "completed"


@asynccontextmanager
async def readers(client: AsyncClient, measured: Load) -> AsyncIterator[set[int]]:
    """A client that reads continuously; yields the statuses of the responses."""
    responses: set[int] = set()
    is_over = asyncio.Event()

    async def read() -> None:
        while not is_over.is_set():
            job = f"{V1}/jobs/{measured.job_ids[-1]}"
            for path in (
                f"{V1}/jobs",
                job,
                f"{job}/nodes",
                f"{job}/events",
                f"{job}/waiting",
                f"{V1}/workers",
                f"{V1}/queues",
            ):
                responses.add((await client.get(path)).status_code)
            await asyncio.sleep(0.02)

    reading = asyncio.create_task(read())
    try:
        yield responses
    finally:
        is_over.set()
        await reading


async def _are_done(running: Engine, count: int) -> bool:
    return await running.value("SELECT count(*) >= %s FROM dagapp.dag_jobs WHERE status = 'completed'", count)


def errors_of(running: Engine) -> list[int]:
    orchestrators = [o.counters.errors + o.counters.fenced for o in running.orchestrators]
    workers = [w.counters.outages + w.counters.refused_reports + w.counters.late_reports for w in running.workers]
    return [*orchestrators, *workers, *(w.counters.lost_tasks for w in running.workers)]


def indexes_of(dsn: str) -> dict[str, bool]:
    """Every index of the schema, and whether it is valid."""
    with psycopg.connect(dsn) as connection:
        return dict(
            connection.execute(
                "SELECT i.relname, x.indisvalid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
                "WHERE i.relnamespace = 'dagapp'::regnamespace"
            ).fetchall()
        )


async def test_a_migration_adds_columns_and_indexes_while_the_engine_works(database):
    """Statements that were prepared before the change still work after it, and no session waits long for a lock."""
    async with (
        engine(database, orchestrators=2, workers=2, **LONG_INTERVALS) as running,
        api(database, running) as client,
    ):
        async with load(running) as measured, readers(client, measured) as responses:
            before = len(measured.job_ids)
            done = await asyncio.to_thread(deploy.migrate, database, NEWER)
            await until(lambda: _are_done(running, before + 10), 30)
        errors = errors_of(running)

    assert not [line for line in done if line.startswith("change by hand")]
    assert len(done) == len(CHANGED) + len(NEW_INDEXES)
    assert errors == [0] * len(errors)
    assert responses == {200}
    assert measured.slowest_seconds < ENGINE_LOCK_SECONDS
    assert deploy.status(database, NEWER).is_current
    assert all(indexes_of(database).values())


@contextmanager
def locked_table(dsn: str, table: str) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction of another session that has written to a table."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"LOCK TABLE dagapp.{table} IN ROW EXCLUSIVE MODE")
        yield connection


async def test_a_locked_table_is_retried_so_that_no_other_session_waits_behind_the_migration(database):
    """If the migration waited for its lock, all other sessions would wait behind it."""
    migrating: threading.Thread
    async with engine(database, **LONG_INTERVALS) as running:
        async with load(running) as measured:
            with locked_table(database, "dag_jobs"):
                migrating = threading.Thread(target=deploy.migrate, args=(database, NEWER))
                migrating.start()
                await asyncio.sleep(4.0)
                was_waiting = migrating.is_alive()
            await asyncio.to_thread(migrating.join, 30)
        errors = errors_of(running)

    assert was_waiting
    assert errors == [0] * len(errors)
    assert measured.slowest_seconds < ENGINE_LOCK_SECONDS
    assert deploy.status(database, NEWER).is_current


def test_a_table_that_stays_locked_ends_the_migration_with_a_reason(database):
    with locked_table(database, "dag_jobs"), pytest.raises(Conflict) as refused:
        deploy.migrate(database, NEWER, wait_seconds=0.2)
    finished = deploy.migrate(database, NEWER)

    assert refused.value.code == "database.locked"
    assert "pg_stat_activity" in (refused.value.hint or "")
    assert finished
    assert deploy.status(database, NEWER).is_current


class IndexedJob(Job):
    table: ClassVar[Table] = replace(Job.table, indexes=(*Job.table.indexes, Index("dag_jobs_by_asset", ("asset_id",))))


class IndexedEvent(JobEvent):
    table: ClassVar[Table] = replace(
        JobEvent.table, indexes=(*JobEvent.table.indexes, Index("dag_job_events_by_node", ("job_id", "node_id")))
    )


@pytest.mark.parametrize(
    ("changed", "held_table"), [({Job: IndexedJob}, "dag_jobs"), ({JobEvent: IndexedEvent}, "dag_job_events_default")]
)
async def test_an_index_that_a_killed_migration_left_incomplete_is_rebuilt(database, changed, held_table):
    """Events are in partitions: those of the months have a complete index by then, the default one has not."""
    newer = tuple(changed.get(record, record) for record in RECORDS)
    with locked_table(database, held_table):
        killed = await asyncio.to_thread(_migrate_and_kill, database, newer)
    left = [name for name, is_valid in indexes_of(database).items() if not is_valid]

    async with engine(database, **LONG_INTERVALS) as running:
        async with load(running):
            done = await asyncio.to_thread(deploy.migrate, database, newer)
        errors = errors_of(running)

    (record,) = changed.values()
    name = record.table.indexes[-1].name
    assert isinstance(killed, Unavailable)
    assert name in left
    assert done == [f"rebuild index {name}"]
    assert all(indexes_of(database).values())
    assert deploy.status(database, newer).is_current
    assert errors == [0] * len(errors)


def _migrate_and_kill(dsn: str, records: deploy.Records) -> Exception | None:
    """End a migration's session while it builds an index and waits for the open transaction of another session."""
    raised: list[Exception] = []

    def migrate() -> None:
        try:
            deploy.migrate(dsn, records)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=migrate)
    thread.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + 20
        while not (building := connection.execute(_BUILDING).fetchone()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert building, "the migration did not start to build the index"
        connection.execute("SELECT pg_terminate_backend(%s)", [building[0]])
    thread.join(20)
    return raised[0] if raised else None


_BUILDING = """
SELECT pid
  FROM pg_stat_progress_create_index
 WHERE datname = current_database() AND phase LIKE 'waiting for writers%' AND current_locker_pid > 0
"""


def test_concurrent_migrations_and_rebuilds_run_one_after_the_other(database):
    """None of them sees a schema that another one has changed partly."""
    calls = [deploy.migrate, deploy.rebuild, deploy.migrate, deploy.deploy]
    raised: list[Exception] = []

    def call(function: Any) -> None:
        try:
            function(database, NEWER)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert raised == []
    assert deploy.status(database, NEWER).is_current


def test_a_rebuild_waits_for_a_running_deployment_and_then_reports_it(database):
    with psycopg.connect(database) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('dagapp.deploy'))")
        with pytest.raises(Conflict) as refused:
            deploy.rebuild(database, wait_seconds=0.2)

    assert refused.value.code == "database.deploying"
    assert deploy.status(database).is_current


def test_a_column_with_a_computed_default_needs_a_manual_step_if_the_table_has_rows(database):
    class Stamped(JobMessage):
        table: ClassVar[Table] = replace(
            JobMessage.table, defaults={**JobMessage.table.defaults, "seen_at": "dagapp.clock()"}
        )
        seen_at: datetime

    records = tuple(Stamped if record is JobMessage else record for record in RECORDS)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO dagapp.dag_job_messages (message_id, queue, body) VALUES ('m', 'q', '{}')")
    refused = deploy.migrate(database, records)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM dagapp.dag_job_messages")
    done = deploy.migrate(database, records)

    assert refused == [
        "change by hand: column dag_job_messages.seen_at is missing, "
        "and adding it would rewrite each row with the table locked"
    ]
    assert done == ["add column dag_job_messages.seen_at"]
