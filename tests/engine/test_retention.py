"""Jobs that ended long ago are deleted completely, in small batches, while the engine runs; other jobs are kept."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.database.connect import connect
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import NewJob, Running
from dagmaster.database.ledger.submission import insert_jobs
from dagmaster.database.maintenance.history import verify
from dagmaster.database.maintenance.janitor import PostgresJanitor
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.jobs.model import RECORDS, Submission, new_job_id
from dagmaster.operations import rerun
from dagmaster.operations.submit import submit_once
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.testing.memory_notifier import MemoryExchange
from tests.engine.harness import Engine, engine, fast_settings, open_gate, until, workflow

pytestmark = pytest.mark.requirement("D5")

DAY = 86_400.0
LINKED = sorted(record.table.name for record in RECORDS if "job_id" in record.model_fields)
GIVING = workflow("""
    workflow_id: giving
    version: 1
    inputs: {fail: {type: boolean, default: false}}
    nodes:
      start: {type: start, next: [one, two]}
      one: {handler: give, params: {value: 1}, next: end}
      two: {handler: give, params: {fail: "{{ inputs.fail }}"}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
""")
WAITING = workflow("""
    workflow_id: waiting
    version: 1
    nodes:
      start: {type: start, next: [gate, other]}
      gate: {handler: gate, next: end}
      other: {handler: give, params: {value: 1}, next: end}
      end: {type: end}
""")


def in_days(dsn: str, days: float) -> str:
    """A connection string with which the clock of the database is some days ahead."""
    given = conninfo_to_dict(dsn)
    then = (datetime.now(UTC) + timedelta(days=days)).isoformat().replace("+00:00", "Z")
    return make_conninfo(**{**given, "options": f"{given.get('options') or ''} -c dagapp.fake_now={then}".strip()})


@pytest.fixture
async def later(database: str) -> Any:
    """Retention on a clock that is two days ahead."""
    retention = PostgresRetention(in_days(database, 2))
    yield retention
    await retention.close()


async def rows_of(running: Engine, job_ids: list[UUID]) -> dict[str, int]:
    counts = {}
    for table in LINKED:
        counts[table] = await running.value(
            f"SELECT count(*) FROM dagapp.{table} WHERE job_id = ANY (%s)",
            job_ids,
        )
    return counts


async def test_a_job_is_deleted_with_everything_that_belongs_to_it(database, later):
    async with engine(database) as running:
        running.add(GIVING)
        one = Submission(workflow_id="giving", submitted_by="hub", idempotency_key="k")
        deleted_id = (await submit_once(running.ledger, running.library, one)).job_id
        running.notifier.notify("jobs")
        await running.wait(deleted_id)
        kept = await running.submit(WAITING)
        # Wait until the node runs, because until then more events would be written.
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_node_states WHERE status = 'running'"))
        await running.ledger.save_checkpoint(Running(kept, "gate", 1), "phase", {})
        await running.rows("INSERT INTO dagapp.dag_checkpoints VALUES (%s, 'one', 'phase', 1, '1')", deleted_id)
        unsent = "INSERT INTO dagapp.dag_outbox (job_id, node_id, attempt, queue) VALUES (%s, 'one', 1, 'q')"
        for job_id in (deleted_id, kept):
            await running.rows(unsent, job_id)
        for job_id in (deleted_id, kept):
            await running.ledger.store_payload(job_id, b'"large"')
        letter = "INSERT INTO dagapp.dag_dead_letters (queue, reason, description, body) VALUES ('q', %s, '', %s)"
        await running.rows(letter, "PoisonTask", f'{{"job_id": "{deleted_id}"}}')
        await running.rows(letter, "PoisonTask", f'{{"job_id": "{kept}"}}')
        await running.rows(letter, "Malformed", "{}")
        document = "INSERT INTO dagapp.stac_documents VALUES (%s, 0, 1, %s, '{}')"
        for dataset in (f"job-{deleted_id}", f"job-{kept}", "dem"):
            await running.rows(document, dataset, "")
            await running.rows(document, dataset, "item")
        assert min((await rows_of(running, [deleted_id])).values()) > 0
        before = await rows_of(running, [kept])

        assert await later.count(DAY) == 1
        assert await later.prune_jobs(DAY, 100) == 1
        forgotten = await later.prune_without_job(DAY, 100)

        assert set((await rows_of(running, [deleted_id])).values()) == {0}
        assert await rows_of(running, [kept]) == before
        assert (forgotten.letters, forgotten.definitions, forgotten.partitions) == (1, 1, ())
        datasets = await running.value("SELECT array_agg(DISTINCT dataset_id) FROM dagapp.stac_documents")
        assert set(datasets) == {f"job-{kept}", "dem"}, "only documents that the job made without an asset are deleted"
        assert await running.value("SELECT array_agg(workflow_id) FROM dagapp.dag_workflow_definitions") == ["waiting"]
        assert await running.value("SELECT count(*) FROM dagapp.dag_dead_letters") == 2
        open_gate(kept)
        assert (await running.wait(kept))["status"] == "completed"
        assert (await running.run(GIVING))["status"] == "completed"


async def test_a_submission_creates_a_new_job_if_the_old_one_is_deleted_meanwhile(database, later):
    class PruningLedger(PostgresLedger):
        async def create_once(self, *given: Any, **more: Any) -> UUID:
            known = await super().create_once(*given, **more)
            await later.prune_jobs(DAY, 10)
            return known

    ledger = PruningLedger(database)
    async with engine(database) as running:
        running.add(GIVING)
        again = Submission(workflow_id="giving", idempotency_key="k")
        old = (await submit_once(running.ledger, running.library, again)).job_id
        running.notifier.notify("jobs")
        await running.wait(old)

        response = await submit_once(ledger, running.library, again)

        assert response.status == "accepted"
        assert response.job_id != old
        await ledger.close()


async def test_every_table_with_rows_of_jobs_is_known_to_retention():
    pruned = {
        "dag_jobs",
        "dag_node_states",
        "dag_tasks",
        "dag_task_results",
        "dag_job_events",
        "dag_checkpoints",
        "dag_idempotency_keys",
        "dag_payloads",
        "dag_payload_parts",
        "dag_job_search",
        "dag_outbox",
    }

    assert set(LINKED) == pruned


async def test_jobs_that_are_young_resumed_or_locked_are_kept(database, later):
    async with engine(database) as running:
        running.add(GIVING)
        failed = [(await running.run("giving", fail=True))["job_id"] for _ in range(3)]
        young = PostgresRetention(in_days(database, 0.5))

        assert await young.prune_jobs(DAY, 100) == 0
        await young.close()
        await running.rows(
            "UPDATE dagapp.dag_workflow_definitions SET created_at = created_at"
        )  # an update without changes is allowed
        for orchestrator in running.orchestrators:
            orchestrator.stop()
        await rerun.resume(running.ledger, failed[0], reason=None)
        async with await psycopg.AsyncConnection.connect(database) as other_session:
            await other_session.execute(
                "SELECT 1 FROM dagapp.dag_jobs WHERE job_id = %s FOR NO KEY UPDATE", [failed[1]]
            )
            assert await later.prune_jobs(DAY, 100) == 1

        left = await running.rows("SELECT job_id FROM dagapp.dag_jobs ORDER BY job_id")
        assert [row["job_id"] for row in left] == failed[:2]
        assert await later.prune_jobs(DAY, 100) == 1
        await running.start_orchestrator()
        assert (await running.wait(failed[0]))["status"] == "failed"


async def test_the_oldest_jobs_are_deleted_first_in_batches_of_limited_size(database, later, monkeypatch):
    async with engine(database) as running:
        job_ids = [(await running.run(GIVING))["job_id"] for _ in range(6)]

        assert await later.prune_jobs(DAY, 2) == 2
        monkeypatch.setattr("dagmaster.database.maintenance.retention.BATCH_EVENTS", 1)
        assert await later.prune_jobs(DAY, 2) == 1

        left = await running.rows("SELECT job_id FROM dagapp.dag_jobs ORDER BY job_id")
        assert [row["job_id"] for row in left] == job_ids[3:]


async def test_a_definition_is_kept_for_a_submission_that_is_in_progress(database, later):
    async with engine(database) as running:
        await running.run(GIVING)
        assert await later.prune_jobs(DAY, 10) == 1
        job = NewJob(new_job_id(time.time_ns() // 1_000_000), GIVING, {})
        async with await connect(database, role="test") as connection, connection.transaction():
            # This lock is that of a submission that has found the definition and not yet created its job.
            await connection.execute("DELETE FROM dagapp.dag_workflow_definitions WHERE false")

            assert (await later.prune_without_job(DAY, 10)).definitions == 0

            assert await insert_jobs(connection, [job]) == [job.job_id]
        assert (await later.prune_without_job(DAY, 10)).definitions == 0
        running.notifier.notify("jobs")
        await running.wait(job.job_id)
        assert await later.prune_jobs(DAY, 10) == 1
        assert (await later.prune_without_job(DAY, 10)).definitions == 1


async def test_two_concurrent_retentions_delete_each_job_once(database):
    retentions = [PostgresRetention(in_days(database, 2)) for _ in range(2)]
    async with engine(database) as running:
        job_ids = await running.submit_all([Submission(workflow_id="hello_world")] * 30)
        for job_id in job_ids:
            await running.wait(job_id)

        async def work(retention: PostgresRetention) -> int:
            pruned = 0
            while await retention.count(DAY):
                pruned += await retention.prune_jobs(DAY, 3)
            return pruned

        assert sum(await asyncio.gather(*map(work, retentions))) == 30
        assert await running.value("SELECT count(*) FROM dagapp.dag_jobs") == 0
    for retention in retentions:
        await retention.close()


async def test_a_month_of_events_is_dropped_when_it_has_no_job(database):
    now = datetime.now(UTC)
    next_month = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
    retention = PostgresRetention(in_days(database, (next_month - now).days + 3))
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'dagapp.dag_job_events'::regclass"
    async with engine(database) as running:
        before = await running.value(partitions)
        kept = await running.submit(WAITING)
        await running.run(GIVING)
        assert await retention.prune_jobs(DAY, 100) == 1
        assert (await retention.prune_without_job(DAY, 100)).partitions == ()

        open_gate(kept)
        await running.wait(kept)
        assert await retention.prune_jobs(DAY, 100) == 1
        async with await psycopg.AsyncConnection.connect(database) as reader:
            await reader.execute("SELECT 1 FROM dagapp.dag_job_events")
            assert (await retention.prune_without_job(DAY, 100)).partitions == ()
        (name,) = (await retention.prune_without_job(DAY, 100)).partitions

        assert name == f"dag_job_events_{datetime.now(UTC):%Y_%m}"
        assert await running.value(partitions) == before - 1
        assert (await running.run(GIVING))["status"] == "completed"
        await running.ledger.maintain()
        assert await running.value(partitions) == before
    await retention.close()


@pytest.mark.alone
async def test_under_load_only_ended_jobs_are_deleted(database, later):
    """Jobs are deleted as soon as they end, while others with the same definitions run, fail and are submitted."""
    done = asyncio.Event()

    async def prune() -> int:
        pruned = 0
        while not done.is_set():
            pruned += await later.prune_jobs(DAY, 7)
            await later.prune_without_job(DAY, 100)
            await asyncio.sleep(0)
        return pruned

    async with engine(database, orchestrators=2, workers=2) as running:
        running.add(GIVING, WAITING)
        waiting = await running.submit_all([Submission(workflow_id="waiting")] * 10)
        pruning = asyncio.create_task(prune())
        kinds = ("giving", "hello_world", "fan_out_test")
        for number in range(30):
            fails = {"input_params": {"fail": number % 2 == 0}}
            await running.submit_all(
                [Submission(workflow_id=kind, **(fails if kind == "giving" else {})) for kind in kinds] * 2
            )

        async def all_deleted() -> bool:
            assert not pruning.done(), pruning
            return await running.value("SELECT count(*) FROM dagapp.dag_jobs") == len(waiting)

        await until(all_deleted, 90)
        report = await verify(database)
        assert report.is_clean, report.findings[:5]
        assert report.jobs_checked == len(waiting)
        counts = await rows_of(running, waiting)
        assert (counts["dag_node_states"], counts["dag_tasks"]) == (40, 20)
        done.set()
        assert await pruning == 180
        for job_id in waiting:
            open_gate(job_id)
        assert {(await running.wait(job_id))["status"] for job_id in waiting} == {"completed"}
        assert await running.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


async def test_the_janitor_deletes_jobs_only_if_retention_is_configured(database):
    dsn = in_days(database, 2)
    async with engine(database) as running:
        await running.run(GIVING)
        for days, left in ((0, 1), (3, 1), (1, 0)):
            notifier = MemoryExchange().notifier()
            janitor = Janitor(
                fast_settings(retention_days=days), PostgresJanitor(dsn), PostgresRetention(dsn), notifier, uuid4()
            )

            assert await janitor._run_once_safely()

            assert janitor.counters.errors == 0
            assert await running.value("SELECT count(*) FROM dagapp.dag_jobs") == left
            await janitor.close()


@pytest.mark.slow
async def test_ten_thousand_jobs_are_deleted_in_short_transactions(database, later):
    jobs = 10_000
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute("INSERT INTO dagapp.dag_workflow_definitions VALUES ('h', 'w', '1', '{}')")
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, input_params,"
            " completed_at, last_sequence) SELECT dagapp.first_uuid_at(now() - make_interval(secs => i * 0.001)),"
            " 'w', '1', 'h', 'completed', '{}', now(), 40 FROM generate_series(1, %s) AS i",
            [jobs],
        )
        await connection.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, output, attempt)"
            " SELECT job_id, 'n' || i, 'completed', '{\"a\": 1}', 1 FROM dagapp.dag_jobs, generate_series(1, 10) AS i"
        )
        await connection.execute(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, timeout_seconds)"
            " SELECT job_id, node_id, 1, 'q', 'h', 0, 'succeeded', 60 FROM dagapp.dag_node_states"
        )
        await connection.execute(
            "INSERT INTO dagapp.dag_task_results (job_id, node_id, attempt, status, worker_id)"
            " SELECT job_id, node_id, 1, 'succeeded', gen_random_uuid() FROM dagapp.dag_node_states"
        )
        await connection.execute(
            "INSERT INTO dagapp.dag_job_events (job_id, sequence, event_type, event_status)"
            " SELECT job_id, i, 'node_ready', 'ready' FROM dagapp.dag_jobs, generate_series(1, 40) AS i"
        )
    run_started, took = time.monotonic(), []
    while True:
        started = time.monotonic()
        if not await later.prune_jobs(DAY, 100):
            break
        took.append(time.monotonic() - started)

    seconds = time.monotonic() - run_started
    print(f"{jobs / seconds:.0f} jobs/s, longest transaction {max(took) * 1000:.0f} ms")
    assert max(took) < 5
    assert jobs / seconds > 100
