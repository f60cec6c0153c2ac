"""The tables come from the records, the guards from the state tables, and a migrated database equals a new one."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from importlib import resources
from itertools import product
from typing import ClassVar
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dagmaster.database.connect import connect, pool, translate_errors
from dagmaster.database.schema import compare, deploy, guards
from dagmaster.database.schema.records import RECORDS
from dagmaster.database.schema.tables import metadata_of
from dagmaster.errors import Conflict, InvalidRequest, Unavailable
from dagmaster.jobs.model import Job, JobEvent, NodeState, Task, WorkerRecord, WorkflowDefinition, new_job_id
from dagmaster.jobs.states import EventType
from dagmaster.local.platform import complete_schema, ensure_schema
from dagmaster.records import Index, Record, Table

GUARDED = pytest.mark.parametrize("cycle", guards.GUARDED_TABLES, ids=lambda cycle: cycle.record.table.name)


# ---------------------------------------------------------------------------------------------------- tables


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.table.name)
def test_the_database_has_the_columns_of_every_record(shared_database, record):
    with psycopg.connect(shared_database) as connection:
        columns = connection.execute(f"SELECT * FROM dagapp.{record.table.name}").description

    assert tuple(column.name for column in columns or ()) == tuple(record.model_fields)


@pytest.mark.requirement("D1")
def test_annotations_become_types_and_optional_columns_are_nullable(database):
    columns = columns_of(database, "dag_tasks") | columns_of(database, "workers")

    assert columns["job_id"] == "uuid NOT NULL"
    assert columns["status"] == "text NOT NULL"
    assert columns["attempt"] == "integer NOT NULL"
    assert columns["position"] == "bigint NOT NULL"
    assert columns["timeout_seconds"] == "double precision NOT NULL"
    assert columns["lease_until"] == "timestamp with time zone"
    assert columns["params"] == "jsonb"
    assert columns["queues"] == "text[] NOT NULL"
    assert columns["task_id"].startswith("text AS ")


@pytest.mark.requirement("D1")
def test_bounded_and_enumerated_text_is_checked(database):
    with psycopg.connect(database, autocommit=True) as connection:
        an_event = "INSERT INTO dagapp.dag_job_events (event_type) VALUES (%s)"
        connection.execute(an_event, ["job_created"])

        with pytest.raises(psycopg.errors.CheckViolation, match="dag_job_events_event_type"):
            connection.execute(an_event, ["job_exploded"])
        with pytest.raises(psycopg.errors.CheckViolation, match="dag_jobs_correlation_id_length"):
            insert_job(connection, correlation_id="x" * 65)


@pytest.mark.requirement("D1")
def test_an_unknown_type_is_reported_at_once():
    class Unsupported(Record):
        table: ClassVar[Table] = Table("unsupported", key=("value",))
        value: complex

    with pytest.raises(TypeError, match="complex"):
        metadata_of([Unsupported])


@pytest.mark.requirement("D3")
def test_the_clock_is_that_of_the_server_and_can_be_set_in_a_test(database):
    with psycopg.connect(database) as connection:
        early, late = connection.execute("SELECT clock_timestamp(), dagapp.clock()").fetchone() or ()
        connection.execute("SET dagapp.fake_now = '2030-02-01T12:00:00Z'")
        faked = connection.execute("SELECT dagapp.clock()").fetchone()
        connection.execute("RESET dagapp.fake_now")
        again = connection.execute("SELECT dagapp.clock() - clock_timestamp() < interval '1 minute'").fetchone()

    assert early <= late
    assert faked == (datetime(2030, 2, 1, 12, tzinfo=UTC),)
    assert again == (True,)


# ---------------------------------------------------------------------------------------------------- guards


@pytest.mark.requirement("E1")
@GUARDED
def test_the_database_refuses_every_transition_that_is_not_in_the_tables(database, cycle):
    """Every pair of states is tested, with and without a raised counter."""
    with psycopg.connect(database, autocommit=True) as connection:
        pairs = product(cycle.moves, cycle.moves, (False, True))
        passed = {pair for pair in pairs if is_accepted(connection, cycle, *pair)}

    assert passed == allowed_moves(cycle)


@pytest.mark.requirement("E1")
@GUARDED
def test_the_database_refuses_new_rows_in_other_than_initial_states(database, cycle):
    with psycopg.connect(database, autocommit=True) as connection:
        passed = {state for state in cycle.moves if can_begin(connection, cycle, state)}

    assert passed == set(cycle.initial)


@pytest.mark.requirement("E1")
def test_a_refusal_names_table_key_and_states(database):
    cycle = guards.GUARDED_TABLES[1]
    with psycopg.connect(database, autocommit=True) as connection:
        job_id = insert(connection, cycle, "completed")

        with pytest.raises(psycopg.DatabaseError) as refusal:
            connection.execute("UPDATE dagapp.dag_node_states SET status = 'running'")

    assert refusal.value.sqlstate == guards.ILLEGAL_TRANSITION
    assert f"dag_node_states job_id={job_id}, node_id=a: completed may not become running" in str(refusal.value)


@pytest.mark.requirement("E1")
def test_a_rerun_raises_the_run_by_exactly_one(database):
    with psycopg.connect(database, autocommit=True) as connection:
        insert(connection, guards.GUARDED_TABLES[1], "completed")

        for step in (0, 2, -1):
            with pytest.raises(psycopg.DatabaseError, match="may not become pending"):
                connection.execute("UPDATE dagapp.dag_node_states SET status = 'pending', run = run + %s", [step])


@pytest.mark.requirement("E1")
def test_a_node_has_one_live_task(database):
    """This holds even if two orchestrators believe that they own the job."""
    (tasks,) = (cycle for cycle in guards.GUARDED_TABLES if cycle.record is Task)
    with psycopg.connect(database, autocommit=True) as connection:
        job_id = uuid4()
        insert_row(connection, "dag_tasks", a_row(tasks, job_id, "queued"))
        with pytest.raises(psycopg.errors.UniqueViolation, match="dag_tasks_one_live"):
            insert_row(connection, "dag_tasks", a_row(tasks, job_id, "queued") | {"attempt": 2})
        connection.execute("UPDATE dagapp.dag_tasks SET status = 'cancelled' WHERE job_id = %s", [job_id])
        insert_row(connection, "dag_tasks", a_row(tasks, job_id, "queued") | {"attempt": 2})


@pytest.mark.requirement("E1")
def test_workflow_definitions_never_change(database):
    with psycopg.connect(database, autocommit=True) as connection:
        insert_job(connection)

        with pytest.raises(psycopg.DatabaseError, match="never change") as refusal:
            connection.execute("UPDATE dagapp.dag_workflow_definitions SET workflow_version = '2'")
        connection.execute("UPDATE dagapp.dag_workflow_definitions SET workflow_version = workflow_version")

    assert refusal.value.sqlstate == guards.IMMUTABLE_ROW


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("job_id", [None, UUID(int=1), new_job_id(int(datetime.now(UTC).timestamp() * 1000))])
def test_events_can_only_be_added_and_deleted(database, job_id):
    with psycopg.connect(database, autocommit=True) as connection:
        add_event(connection, job_id)

        with pytest.raises(psycopg.DatabaseError, match="never change") as refusal:
            connection.execute("UPDATE dagapp.dag_job_events SET node_id = 'other'")
        pruned = connection.execute("DELETE FROM dagapp.dag_job_events").rowcount

    assert refusal.value.sqlstate == guards.IMMUTABLE_ROW
    assert pruned == 1


# ---------------------------------------------------------------------------------------------------- partitions


@pytest.mark.requirement("D2")
def test_events_are_in_the_partition_of_the_month_in_which_their_job_was_created(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET dagapp.fake_now = '2031-01-31T23:59:59.999Z'")
        connection.execute("SELECT dagapp.ensure_event_partitions(1)")

        assert partition_of(connection, "2031-01-01T00:00:00Z") == "dag_job_events_2031_01"
        assert partition_of(connection, "2031-01-31T23:59:59.999Z") == "dag_job_events_2031_01"
        assert partition_of(connection, "2031-02-01T00:00:00Z") == "dag_job_events_2031_02"
        assert partition_of(connection, "2031-03-01T00:00:00Z") == "dag_job_events_default"


@pytest.mark.requirement("D2")
def test_partitions_are_created_once_in_any_time_zone(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET dagapp.fake_now = '2031-01-01T00:30:00Z'")
        first = connection.execute("SELECT dagapp.ensure_event_partitions(2)").fetchone()
        connection.execute("SET TimeZone = 'America/Los_Angeles'")
        second = connection.execute("SELECT dagapp.ensure_event_partitions(2)").fetchone()

    assert (first, second) == ((3,), (0,))


@pytest.mark.requirement("D2")
def test_events_that_are_older_than_their_partition_are_moved_into_it(database):
    with psycopg.connect(database, autocommit=True) as connection:
        assert partition_of(connection, "2032-05-05T00:00:00Z") == "dag_job_events_default"

        connection.execute("SET dagapp.fake_now = '2032-05-01T00:00:00Z'")
        connection.execute("SELECT dagapp.ensure_event_partitions(0)")
        partitions = connection.execute("SELECT tableoid::regclass::text FROM dagapp.dag_job_events").fetchall()

        assert partitions == [("dagapp.dag_job_events_2032_05",)]
        with pytest.raises(psycopg.DatabaseError, match="never change"):
            connection.execute("UPDATE dagapp.dag_job_events SET node_id = 'other'")


@pytest.mark.requirement("D2")
def test_partitions_can_be_created_concurrently(database):
    def ensure() -> None:
        with psycopg.connect(database) as connection:
            connection.execute("SET dagapp.fake_now = '2033-01-01T00:00:00Z'")
            connection.execute("SELECT dagapp.ensure_event_partitions(6)")

    assert run_concurrently(ensure, times=4) == []


# ---------------------------------------------------------------------------------------------------- deploy


@pytest.mark.requirement("D4")
def test_a_second_deployment_changes_nothing(empty_database):
    deploy.deploy(empty_database)
    before = schema_objects(empty_database)

    deploy.deploy(empty_database)

    assert schema_objects(empty_database) == before
    assert deploy.status(empty_database).is_current


@pytest.mark.requirement("D4")
def test_a_deployment_returns_the_state_that_it_found(empty_database):
    results = [deploy.deploy(empty_database), deploy.deploy(empty_database)]
    with psycopg.connect(empty_database) as connection:
        connection.execute("UPDATE dagapp.schema_info SET fingerprint = 'older'")
    results += [deploy.deploy(empty_database), deploy.deploy(empty_database)]

    assert results == ["absent", "current", "outdated", "current"]


@pytest.mark.requirement("D4")
def test_nothing_is_pending_after_a_deployment_to_an_empty_database(empty_database):
    """So other processes do not have to compare the schema."""
    deploy.deploy(empty_database)

    assert deploy.pending(empty_database) == []


@pytest.mark.requirement("D4")
def test_a_starting_platform_restores_dropped_objects(database):
    messages = []
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE dagapp.dag_jobs DROP COLUMN deadline_at CASCADE")

    assert ensure_schema(database, messages.append) == "current"
    complete_schema(database, messages.append)

    assert deploy.status(database).is_current
    assert any("deadline_at" in line for line in messages)


@pytest.mark.requirement("D4")
def test_concurrent_deployments_are_safe(empty_database):
    assert run_concurrently(lambda: deploy.deploy(empty_database), times=3) == []

    assert deploy.status(empty_database).is_current


@pytest.mark.requirement("D4")
def test_a_second_deployment_does_not_wait_for_writers(database):
    """Existing triggers are not replaced, because that would need exclusive locks on their tables."""
    with psycopg.connect(database) as writer:
        insert_row(writer, "dag_node_states", a_row(guards.GUARDED_TABLES[1], insert_job(writer), "pending"))
        add_event(writer, None)

        state = deploy.deploy(database, wait_seconds=5)

        assert state is deploy.SchemaState.CURRENT
        assert writer.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS


@pytest.mark.requirement("D4")
def test_a_deployment_that_fails_leaves_no_objects(empty_database):
    class Broken(WorkerRecord):
        table: ClassVar[Table] = replace(WorkerRecord.table, checks={"broken": "no_such_column > 0"})

    with pytest.raises(psycopg.errors.UndefinedColumn):
        deploy.deploy(empty_database, (WorkflowDefinition, Broken))

    assert not deploy.status(empty_database).deployed


@pytest.mark.requirement("D4")
def test_the_preview_is_what_a_deployment_runs(cluster, empty_database, database):
    with psycopg.connect(empty_database) as connection:
        connection.execute(deploy.ddl().encode())

    built, deployed = schema_objects(empty_database), schema_objects(database)
    assert built == deployed


@pytest.mark.requirement("D4")
def test_status_reports_what_is_deployed(database, empty_database):
    with psycopg.connect(database) as connection:
        insert_job(connection)

    status, empty = deploy.status(database), deploy.status(empty_database)

    assert status.is_current
    assert status.tables["dag_jobs"] == 1
    assert status.tables["dag_job_events"] == 0
    assert int(status.server_version.split(".")[0]) >= 15
    assert "plpgsql" in status.extensions
    assert (empty.deployed, empty.pending, empty.tables) == (False, ["deploy the schema"], {})


@pytest.mark.requirement("D4")
def test_status_changes_nothing(database):
    before = schema_objects(database)

    deploy.status(database)

    with psycopg.connect(database) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dagapp%'").fetchall()
    assert sorted(schemas) == [("dagapp",), ("dagapp_gateway",)]
    assert schema_objects(database) == before


@pytest.mark.requirement("D4")
def test_a_deployment_waits_for_another_one_and_then_reports_it(database):
    with psycopg.connect(database) as other:
        other.execute("SELECT pg_advisory_lock(hashtext('dagapp.deploy'))")

        with pytest.raises(Conflict, match="under way"):
            deploy.deploy(database, wait_seconds=0.2)
        assert deploy.status(database).pending == ["another deployment is under way"]


@pytest.mark.requirement("D4")
def test_an_unreachable_server_is_reported_without_its_password():
    with pytest.raises(Unavailable) as error:
        deploy.deploy("postgresql://someone:hunter2@127.0.0.1:1/nowhere")

    assert "hunter2" not in f"{error.value} {error.value.facts}"


@pytest.mark.requirement("D4")
def test_a_role_without_rights_to_deploy_is_reported(cluster, empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN")

    with pytest.raises(InvalidRequest, match="permission denied"):
        deploy.deploy(empty_database.replace("postgres@", "reader@"))


# ---------------------------------------------------------------------------------------------------- migrate


class JobSize(StrEnum):
    SMALL = "small"
    LARGE = "large"


class NewerJob(Job):
    """The job of the next release, with new columns, an index, a check, a default and storage parameters."""

    table: ClassVar[Table] = replace(
        Job.table,
        indexes=(
            *Job.table.indexes,
            Index("dag_jobs_by_region", ("region", "created_at DESC"), where="region LIKE 'n%' AND status = 'running'"),
        ),
        checks={**Job.table.checks, "weight": "weight >= 0"},
        defaults={**Job.table.defaults, "priority": "5"},
        storage={**Job.table.storage, "fillfactor": 65},
    )
    region: str | None = None
    weight: int = 0
    job_size: JobSize = JobSize.SMALL


class NewerEvent(JobEvent):
    table: ClassVar[Table] = replace(
        JobEvent.table, indexes=(*JobEvent.table.indexes, Index("dag_job_events_by_node", ("job_id", "node_id")))
    )
    note: str | None = None


class Extra(Record):
    table: ClassVar[Table] = Table("extra", key=("name",), indexes=(Index("extra_by_size", ("size",)),))
    name: str
    size: int


NEWER = (*({Job: NewerJob, JobEvent: NewerEvent}.get(record, record) for record in RECORDS), Extra)


@pytest.mark.requirement("D4")
def test_a_migrated_database_equals_one_built_from_scratch(database, empty_database):
    with psycopg.connect(database) as connection:
        insert_job(connection)
        add_event(connection, None)

    done = deploy.migrate(database, NEWER)
    deploy.deploy(empty_database, NEWER)

    assert not [line for line in done if line.startswith("change by hand")]
    assert schema_objects(database) == schema_objects(empty_database)
    assert deploy.status(database, NEWER).is_current
    assert deploy.migrate(database, NEWER) == []


@pytest.mark.requirement("D4")
def test_dropped_objects_are_restored(database, empty_database):
    with psycopg.connect(database) as connection:
        connection.execute(
            """
            ALTER TABLE dagapp.dag_jobs DROP COLUMN deadline_at CASCADE, DROP CONSTRAINT dag_jobs_priority,
                DROP CONSTRAINT dag_jobs_definition_hash_fkey, ALTER COLUMN epoch DROP DEFAULT;
            ALTER TABLE dagapp.dag_tasks RESET (fillfactor);
            DROP INDEX dagapp.dag_tasks_one_live, dagapp.dag_tasks_waiting, dagapp.dag_job_events_sequence;
            DROP TABLE dagapp.dag_dead_letters;
            DROP TRIGGER dag_tasks_moves ON dagapp.dag_tasks
            """
        )

    pending = deploy.status(database).pending
    done = deploy.migrate(database)
    deploy.deploy(empty_database)

    assert done == pending
    assert schema_objects(database) == schema_objects(empty_database)


@pytest.mark.requirement("D4")
def test_new_values_are_added_to_the_check_of_an_enumeration(database, empty_database):
    with psycopg.connect(database) as connection:
        fewer = ", ".join(f"'{member}'" for member in list(EventType)[:5])
        connection.execute(
            "ALTER TABLE dagapp.dag_job_events DROP CONSTRAINT dag_job_events_event_type, "
            f"ADD CONSTRAINT dag_job_events_event_type CHECK (event_type IN ({fewer}))"
        )

    done = deploy.migrate(database)

    assert done == ["allow more values in dag_job_events_event_type"]
    assert deploy.status(database).is_current


@pytest.mark.requirement("D4")
def test_a_replaced_index_is_dropped_after_its_successor_was_created(database, empty_database):
    with psycopg.connect(database) as connection:
        connection.execute(
            """
            DROP INDEX dagapp.dag_tasks_waiting;
            CREATE INDEX dag_tasks_queued ON dagapp.dag_tasks (queue, priority DESC, position) WHERE status = 'queued'
            """
        )

    pending = deploy.status(database).pending
    done = deploy.migrate(database)
    deploy.deploy(empty_database)

    assert done == pending == ["create index dag_tasks_waiting", "drop index dag_tasks_queued"]
    assert schema_objects(database) == schema_objects(empty_database)


@pytest.mark.requirement("D4")
def test_an_interrupted_index_is_rebuilt(database):
    with psycopg.connect(database, autocommit=True) as connection:
        interrupted = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass"
        connection.execute(interrupted, ["dagapp.dag_jobs_active"])

    done = deploy.migrate(database)

    assert done == ["rebuild index dag_jobs_active"]
    assert deploy.status(database).is_current


@pytest.mark.requirement("D4")
def test_a_change_that_would_drop_or_rewrite_needs_a_manual_step(database):
    with psycopg.connect(database) as connection:
        connection.execute(
            """
            DROP VIEW dagapp_gateway.jobs;
            ALTER TABLE dagapp.dag_jobs ADD COLUMN old_thing text, ADD CONSTRAINT dag_jobs_old CHECK (epoch < 10),
                ALTER COLUMN version_ordinal TYPE integer, DROP CONSTRAINT dag_jobs_priority,
                ADD CONSTRAINT dag_jobs_priority CHECK (priority < 3);
            DROP INDEX dagapp.dag_jobs_active;
            CREATE INDEX dag_jobs_active ON dagapp.dag_jobs (owner_id) WHERE status = 'running';
            CREATE INDEX dag_jobs_old ON dagapp.dag_jobs (asset_id)
            """
        )
    before = schema_objects(database)

    done = deploy.migrate(database)

    assert all(line.startswith("change by hand: ") for line in done)
    assert sorted({" ".join(line.removeprefix("change by hand: ").split()[:2]) for line in done}) == [
        "column dag_jobs.old_thing",
        "column version_ordinal",
        "constraint dag_jobs_old",
        "constraint dag_jobs_priority",
        "index dag_jobs_active",
        "index dag_jobs_old",
    ]
    assert schema_objects(database) == before


@pytest.mark.requirement("D4")
def test_a_column_without_a_value_for_old_rows_needs_a_manual_step(database):
    class NewerWorker(WorkerRecord):
        region: str

    done = deploy.migrate(database, tuple(NewerWorker if record is WorkerRecord else record for record in RECORDS))

    assert done == ["change by hand: column workers.region is missing, and existing rows would have no value for it"]


@pytest.mark.requirement("D4")
def test_rows_that_violate_a_new_constraint_are_reported_and_kept(database):
    class CheckedJob(Job):
        table: ClassVar[Table] = replace(Job.table, checks={**Job.table.checks, "workflow": "workflow_id <> 'w'"})

    with psycopg.connect(database) as connection:
        insert_job(connection)

    records = tuple(CheckedJob if record is Job else record for record in RECORDS)
    (done,) = deploy.migrate(database, records)

    assert done.startswith("change by hand: add constraint dag_jobs_workflow: existing rows violate it")
    assert deploy.status(database, records).pending == ["validate constraint dag_jobs_workflow"]
    with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.CheckViolation):
        insert_job(connection)


@pytest.mark.requirement("D4")
def test_concurrent_migrations_are_safe(database):
    assert run_concurrently(lambda: deploy.migrate(database, NEWER), times=2) == []

    assert deploy.status(database, NEWER).is_current


@pytest.mark.requirement("D4")
def test_each_of_several_concurrent_migrations_reports_what_it_did(database):
    """One of them made the changes, and the others report that another process did. None sees a partial state."""
    reports: list[deploy.Migration] = []

    assert run_concurrently(lambda: reports.append(deploy.run_migration(database, NEWER)), times=4) == []

    changed = [report for report in reports if report.changes]
    assert len(changed) == 1
    assert not changed[0].done_by_another
    assert all(report.is_current and report.pending == [] for report in reports)
    # A migration that started after the first had ended found nothing to do and did not wait.
    assert deploy.run_migration(database, NEWER) == deploy.Migration([], [], is_current=True, done_by_another=False)


@pytest.mark.requirement("D4")
def test_a_migration_that_waited_reports_that_another_one_migrated(database):
    with deploy._exclusive(database, 5) as first:
        reports: list[deploy.Migration] = []
        second = threading.Thread(target=lambda: reports.append(deploy.run_migration(database, NEWER)))
        second.start()
        while not second_waits(database):
            time.sleep(0.01)
        deploy._migrate(first, NEWER, 5)
    second.join()

    assert reports == [deploy.Migration([], [], is_current=True, done_by_another=True)]


def second_waits(dsn: str) -> bool:
    """Whether another deployment has asked for the lock."""
    with psycopg.connect(dsn) as connection:
        statement = (
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' AND pid <> pg_backend_pid()"
        )
        rows = connection.execute(f"{statement} AND datname = current_database()").fetchall()
    return len(rows) > 0


@pytest.mark.requirement("D4")
def test_a_migration_reports_functions_that_it_renewed(database):
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE dagapp.schema_info SET fingerprint = 'of-another-version'")

    report = deploy.run_migration(database)

    assert report == deploy.Migration(["renewed functions and triggers"], [], is_current=True, done_by_another=False)


@pytest.mark.requirement("D4")
def test_partitions_survive_a_migration(database):
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'dagapp.dag_job_events'::regclass"
    with psycopg.connect(database) as connection:
        before = connection.execute(partitions).fetchone()

    deploy.migrate(database, NEWER)

    with psycopg.connect(database) as connection:
        assert connection.execute(partitions).fetchone() == before


# ---------------------------------------------------------------------------------------------------- connections


async def test_a_connection_is_set_up_for_its_role(database):
    async with await connect(database, role="worker", statement_timeout_seconds=0.5) as connection:
        shown = [
            (await (await connection.execute(f"SHOW {name}")).fetchone() or ("",))[0]
            for name in ("application_name", "TimeZone", "statement_timeout", "lock_timeout", "jit")
        ]
        sent = Jsonb({"at": datetime(2030, 1, 1, tzinfo=UTC)})
        echo = await (await connection.execute("SELECT %s::jsonb", [sent])).fetchone()

    assert shown == ["dagmaster-worker", "UTC", "500ms", "3s", "off"]
    assert echo == ({"at": "2030-01-01T00:00:00+00:00"},)


async def test_a_pool_opens_on_request(database):
    async with pool(database, "orchestrator", 1, 2) as connections, connections.connection() as connection:
        name = await (await connection.execute("SHOW application_name")).fetchone()

    assert name == ("dagmaster-orchestrator",)


async def test_a_server_that_goes_away_is_unavailable(database):
    async with await connect(database, role="victim") as connection:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

        with pytest.raises(Unavailable), translate_errors():
            await connection.execute("SELECT 1")
        with pytest.raises(Unavailable), translate_errors():
            await connection.execute("SELECT 1")


async def test_a_statement_that_takes_too_long_is_unavailable(database):
    async with await connect(database, role="slow", statement_timeout_seconds=0.05) as connection:
        with pytest.raises(Unavailable, match="statement timeout"), translate_errors():
            await connection.execute("SELECT pg_sleep(5)")


async def test_an_error_in_sql_is_not_reported_as_an_outage(database):
    async with await connect(database, role="wrong") as connection:
        with pytest.raises(psycopg.errors.UndefinedTable), translate_errors():
            await connection.execute("SELECT * FROM nowhere")


# ---------------------------------------------------------------------------------------------------- builders


def insert_job(connection, **columns) -> UUID:
    values = {
        "job_id": uuid4(),
        "workflow_id": "w",
        "workflow_version": "1",
        "definition_hash": "h",
        "status": "pending",
        "input_params": Jsonb({}),
        **columns,
    }
    connection.execute(
        "INSERT INTO dagapp.dag_workflow_definitions (definition_hash, workflow_id, workflow_version, body) "
        "VALUES ('h', 'w', '1', '{}') ON CONFLICT DO NOTHING"
    )
    insert_row(connection, "dag_jobs", values)
    return values["job_id"]


def insert(connection, cycle, status) -> UUID:
    """Insert a row in any state, as replication would: without triggers."""
    connection.execute("SET session_replication_role = replica")
    job_id = uuid4()
    insert_row(connection, cycle.record.table.name, a_row(cycle, job_id, status))
    connection.execute("SET session_replication_role = origin")
    return job_id


def a_row(cycle, job_id, status) -> dict[str, object]:
    match cycle.record.table.name:
        case "dag_jobs":
            more = {"workflow_id": "w", "workflow_version": "1", "definition_hash": "h", "input_params": Jsonb({})}
        case "dag_node_states":
            more = {"node_id": "a"}
        case _:
            more = {"node_id": "a", "attempt": 1, "queue": "q", "handler": "h", "priority": 0, "timeout_seconds": 1.0}
    return {"job_id": job_id, "status": status, **more}


def insert_row(connection, table, values) -> None:
    places = ", ".join(["%s"] * len(values))
    connection.execute(f"INSERT INTO dagapp.{table} ({', '.join(values)}) VALUES ({places})", list(values.values()))


def is_accepted(connection, cycle, old, new, is_raised) -> bool:
    job_id = insert(connection, cycle, old)
    raised = f", {cycle.counter} = {cycle.counter} + 1" if is_raised and cycle.counter else ""
    table = cycle.record.table.name
    with refusal_caught() as refused:
        connection.execute(f"UPDATE dagapp.{table} SET status = %s{raised} WHERE job_id = %s", [new, job_id])
    return not refused


def can_begin(connection, cycle, status) -> bool:
    with refusal_caught() as refused:
        job_id = insert_job(connection) if cycle.record is NodeState else uuid4()
        if cycle.record is Job:
            insert_job(connection, status=status)
        else:
            insert_row(connection, cycle.record.table.name, a_row(cycle, job_id, status))
    return not refused


@contextmanager
def refusal_caught() -> Iterator[list[str]]:
    refused: list[str] = []
    try:
        yield refused
    except psycopg.DatabaseError as error:
        if error.sqlstate != guards.ILLEGAL_TRANSITION:
            raise
        refused.append(str(error))


def allowed_moves(cycle) -> set[tuple[str, str, bool]]:
    staying = {(state, state, raised) for state in cycle.moves for raised in (False, True)}
    moving = {(old, new, raised) for old, targets in cycle.moves.items() for new in targets for raised in (False, True)}
    rerunning = {(old, new, True) for old, targets in cycle.reruns.items() for new in targets}
    return staying | moving | rerunning


def add_event(connection, job_id) -> None:
    connection.execute(
        "INSERT INTO dagapp.dag_job_events (job_id, sequence, event_type) VALUES (%s, 1, 'job_created')", [job_id]
    )


def partition_of(connection, moment: str) -> str:
    milliseconds = round(datetime.fromisoformat(moment).timestamp() * 1000)
    row = connection.execute(
        "INSERT INTO dagapp.dag_job_events (job_id, sequence, event_type) VALUES (%s, 1, 'job_created') "
        "RETURNING tableoid::regclass::text",
        [new_job_id(milliseconds, bytes(10))],
    ).fetchone()
    return row[0].removeprefix("dagapp.")


def run_concurrently(act, times: int) -> list[BaseException]:
    """Call a function in several threads at the same time. Returns the exceptions."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def columns_of(dsn: str, table: str) -> dict[str, str]:
    with deploy._connected(dsn) as connection:
        facts = compare.facts(connection, "dagapp", [table])
    return {subject.name: text for subject, text in facts.items() if subject.kind == "column"}


def schema_objects(dsn: str) -> dict[object, object]:
    """The definitions of all tables, bounds of partitions, triggers, functions with their rights, and sequences of our
    schema."""
    with deploy._connected(dsn) as connection:
        names = [
            row[0]
            for row in connection.exec_driver_sql(
                "SELECT relname FROM pg_class WHERE relnamespace = 'dagapp'::regnamespace AND relkind IN ('r', 'p') "
                "AND NOT relispartition"
            )
        ]
        objects: dict[object, object] = dict(compare.facts(connection, "dagapp", names))
        for query in (
            "SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger "
            "WHERE NOT tgisinternal",
            "SELECT 'function', '', proname, pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc "
            "WHERE pronamespace = 'dagapp'::regnamespace",
            "SELECT 'sequence', '', sequencename, cache_size FROM pg_sequences WHERE schemaname = 'dagapp'",
            "SELECT 'partition', '', relname, pg_get_expr(relpartbound, oid) FROM pg_class "
            "WHERE relispartition AND relkind = 'r' AND relnamespace = 'dagapp'::regnamespace",
        ):
            objects |= {(kind, table, name): text for kind, table, name, text in connection.exec_driver_sql(query)}
    return objects


def test_the_stored_fingerprint_of_the_schema_is_up_to_date():
    written = resources.files("dagmaster.database.schema").joinpath("fingerprint.txt").read_text()

    assert written.strip() == deploy.fingerprint(), "run `make docs` to update it"


def test_the_schema_files_are_read_as_utf_8_whatever_the_locale_is():
    """A statement has a literal that is not ASCII: in another encoding it would be another one."""
    strict = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning:dagmaster.database.schema.deploy")
    script = "from dagmaster.database.schema import deploy; print(deploy.fingerprint())"

    shown = subprocess.run([sys.executable, *strict, "-c", script], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == deploy.fingerprint()


def test_a_comment_in_a_schema_file_does_not_change_the_fingerprint_but_a_statement_does(monkeypatch):
    before, read = deploy.fingerprint(), deploy._files

    def fingerprint_with(line: str) -> str:
        monkeypatch.setattr(deploy, "_files", lambda **options: [f"{text}\n{line}\n" for text in read(**options)])
        return deploy.fingerprint()

    assert fingerprint_with("  -- why the statement above is needed") == fingerprint_with("-- another reason")
    assert fingerprint_with("SELECT 1; -- a statement") not in (before, fingerprint_with("SELECT 2; -- a statement"))


def test_deploying_over_the_tables_of_an_earlier_release_changes_nothing_and_does_not_fail(database):
    """`up` deploys before it migrates. Columns that a statement of the schema reads may not exist yet."""
    later = {
        "asset_revisions": ["findings", "external_copies", "external_job_id", "exported_at"],
        "platforms": ["b2b_may_approve"],
        "orchestrators": ["workflow_generation"],
    }
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA dagapp_gateway CASCADE")
        for table, columns in later.items():
            for column in columns:
                connection.execute(f"ALTER TABLE dagapp.{table} DROP COLUMN {column} CASCADE")

    deploy.deploy(database)

    assert any("findings" in change for change in deploy.migrate(database))
    assert deploy.migrate(database) == []
