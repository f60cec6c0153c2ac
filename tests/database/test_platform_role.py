"""Orchestrators whose role does not own the schema: what they may do, and what others cannot make them do."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.conftest import administrator, fresh_database

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance import server as facts
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.schema import deploy, platform_role
from dagmaster.database.schema.platform_role import grant_to_platform
from dagmaster.local.embedded import Cluster

pytestmark = pytest.mark.requirement("M2", "D2")

FUTURE, AFTERWARDS = "2032-05-15T00:00:00Z", "2033-01-01T00:00:00Z"
NEW_PARTITIONS = ["dag_job_events_2032_05", "dag_job_events_2032_06", "dag_job_events_2032_07"]
DAY = 86400.0


@dataclass(frozen=True)
class Database:
    """A database as three roles see it: the owner of the schema, the role of orchestrators, and another role."""

    owner: str
    platform: str
    other: str


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    roles = ("schema_owner", "schema_platform", "schema_other")
    with administrator(cluster) as connection:
        for role in roles:
            connection.execute(f"CREATE ROLE {role} LOGIN")
    with fresh_database(cluster, "template0") as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {connection.info.dbname} OWNER TO schema_owner")
        each = Database(*(make_conninfo(dsn, user=role) for role in roles))
        deploy.deploy(each.owner)
        grant_to_platform(each.owner, "schema_platform")
        with psycopg.connect(each.owner, autocommit=True) as connection:
            connection.execute("GRANT USAGE ON SCHEMA dagapp TO schema_other")
        yield each
    with administrator(cluster) as connection:
        connection.execute(f"DROP ROLE {', '.join(roles)}")


def at(dsn: str, moment: str) -> str:
    """The same address, with the database's clock at this moment."""
    return make_conninfo(dsn, options=f"-c dagapp.fake_now={moment}")


def partitions(dsn: str, pattern: str = "dag_job_events_20%") -> dict[str, tuple[object, ...]]:
    """The partitions of events, with their owner, the rights of roles, and their storage options."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT relname, relowner::regrole::text, relacl::text, reloptions::text FROM pg_class "
            "WHERE relispartition AND relkind = 'r' AND relname LIKE %s ORDER BY 1",
            [pattern],
        )
        return {name: tuple(others) for name, *others in rows}


def test_orchestrators_create_the_partitions_of_the_next_months(database: Database):
    deployed = partitions(database.owner)

    async def maintain() -> None:
        ledger = PostgresLedger(at(database.platform, FUTURE))
        await ledger.maintain()
        await ledger.close()

    asyncio.run(maintain())

    created = partitions(database.owner, "dag_job_events_2032%")
    assert list(created) == NEW_PARTITIONS
    assert set(created.values()) == set(deployed.values())
    assert {owner for owner, *_ in created.values()} == {"schema_owner"}
    with psycopg.connect(at(database.platform, FUTURE)) as connection:
        connection.execute(
            "INSERT INTO dagapp.dag_job_events (job_id, event_type) "
            "VALUES (dagapp.first_uuid_at(dagapp.clock()), 'job_created')"
        )
        table = connection.execute("SELECT tableoid::regclass::text FROM dagapp.dag_job_events").fetchone()
        connection.execute("DELETE FROM dagapp.dag_job_events")
    assert table == ("dagapp.dag_job_events_2032_05",)


def test_orchestrators_move_events_out_of_the_default_partition(database: Database):
    with psycopg.connect(at(database.platform, FUTURE)) as connection:
        connection.execute(
            "INSERT INTO dagapp.dag_job_events (job_id, event_type, node_id) "
            "VALUES (dagapp.first_uuid_at(dagapp.clock()), 'node_ready', 'kept')"
        )
        connection.execute("SELECT dagapp.ensure_event_partitions()")
        moved = connection.execute("SELECT tableoid::regclass::text, node_id FROM dagapp.dag_job_events").fetchall()

    assert moved == [("dagapp.dag_job_events_2032_05", "kept")]


def test_orchestrators_drop_the_partitions_of_months_that_are_over(database: Database):
    with psycopg.connect(at(database.owner, FUTURE), autocommit=True) as connection:
        connection.execute("SELECT dagapp.ensure_event_partitions()")
        connection.execute(
            "INSERT INTO dagapp.dag_workflow_definitions (definition_hash, workflow_id, workflow_version, body) "
            "VALUES ('x', 'unused', '1', '{}')"
        )

    async def prune() -> list[str]:
        retention = PostgresRetention(at(database.platform, AFTERWARDS))
        pruned = [await retention.prune_without_job(DAY, 10) for _ in range(9)]
        await retention.close()
        assert pruned[0].definitions == 1
        return [name for each in pruned for name in each.partitions]

    dropped = asyncio.run(prune())

    assert dropped[-3:] == NEW_PARTITIONS
    assert partitions(database.owner) == {}


def test_no_other_role_may_create_or_drop_partitions(database: Database):
    for call in ("ensure_event_partitions()", "drop_event_partition(now())"):
        with (
            psycopg.connect(database.other) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for function"),
        ):
            connection.execute(f"SELECT dagapp.{call}".encode())
    missing = facts.rows(database.other, "doctor_rights", schema="dagapp")
    assert [right.name for right in missing if right.kind == "function"] == [
        "drop_event_partition",
        "ensure_event_partitions",
    ]
    assert facts.rows(database.platform, "doctor_rights", schema="dagapp") == []


def test_neither_objects_nor_arguments_of_a_caller_take_effect(database: Database):
    """The functions run with the rights of the owner: the caller's functions must not run with these rights too."""
    before = partitions(database.owner)
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA hostile AUTHORIZATION CURRENT_USER")
        connection.execute("GRANT CREATE, USAGE ON SCHEMA hostile TO schema_platform")
    with psycopg.connect(database.platform, autocommit=True) as connection:
        for arguments in ("text", "timestamp, text", "text, uuid, uuid", "text, text", "uuid, uuid"):
            for name in ("hashtext", "to_char", "format", "to_regclass"):
                connection.execute(
                    f"CREATE FUNCTION hostile.{name}({arguments}) RETURNS text LANGUAGE plpgsql "
                    "AS $$ BEGIN RAISE EXCEPTION 'as %', current_user; END $$".encode()
                )
        connection.execute("CREATE TEMPORARY TABLE pg_inherits (inhrelid oid, inhparent oid)")
        connection.execute("SET search_path = pg_temp, hostile, pg_catalog")

        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SELECT dagapp.ensure_event_partitions(25)")
        early = connection.execute("SELECT dagapp.drop_event_partition('infinity')").fetchone()
        none = connection.execute("SELECT dagapp.drop_event_partition(NULL)").fetchone()
        assert partitions(database.owner) == before
        connection.execute("SET dagapp.fake_now = '2032-05-15T00:00:00Z'")
        created = connection.execute("SELECT dagapp.ensure_event_partitions(0)").fetchone()
        dropped = connection.execute("SELECT dagapp.drop_event_partition('infinity')").fetchone()

    assert (early, none, created, dropped) == ((None,), (None,), (1,), (min(before),))


def test_a_role_that_was_granted_tables_by_hand_can_still_maintain_partitions_after_an_upgrade(database: Database):
    """Before these functions ran as the owner, every role could call them."""
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("GRANT USAGE ON SCHEMA dagapp TO schema_other")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dagapp TO schema_other")
        connection.execute("UPDATE dagapp.schema_info SET fingerprint = 'of an earlier release'")

    deploy.deploy(database.owner)

    with psycopg.connect(at(database.other, FUTURE), autocommit=True) as connection:
        created = connection.execute("SELECT dagapp.ensure_event_partitions()").fetchone()
    assert created == (3,)


def test_rights_are_given_on_a_restored_database_without_the_roles_of_the_catalogue(database: Database, monkeypatch):
    """A dump has the schema of pgSTAC, but not its roles, which belong to the server."""
    monkeypatch.setattr(platform_role, "_CATALOG_ROLE", "schema_not_restored")
    with psycopg.connect(database.owner, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA pgstac")
        connection.execute("REVOKE USAGE ON SCHEMA dagapp FROM schema_platform")

    grant_to_platform(database.owner, "schema_platform")

    with psycopg.connect(database.platform) as connection:
        assert connection.execute("SELECT count(*) FROM dagapp.dag_jobs").fetchone() == (0,)
