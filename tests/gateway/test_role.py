"""The database role of the gateway can read its views, and can do nothing else."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.database.schema import gateway_role
from dagmaster.database.schema.gateway_role import VIEWS, ensure_gateway_role, role_of
from dagmaster.local.embedded import Cluster
from dagmaster.operations.schema import rebuild_schema
from tests.database.test_embedded import IS_ROOT, a_name

pytestmark = pytest.mark.requirement("G3")


@pytest.fixture
def protected_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster as users have it. The clusters of other tests require a password only from gateways."""
    cluster = Cluster.at(None if IS_ROOT else tmp_path, a_name())
    yield cluster
    cluster.remove()


@pytest.fixture
def role(catalog_database: str) -> str:
    return ensure_gateway_role(catalog_database, with_password=True)


def views(database: str) -> set[str]:
    text = "SELECT table_name FROM information_schema.views WHERE table_schema = %s"
    with psycopg.connect(database) as connection:
        return {name for (name,) in connection.execute(text, [VIEWS])}


def test_the_role_can_read_every_view(catalog_database: str, role: str):
    with psycopg.connect(role) as connection:
        for view in views(catalog_database):
            connection.execute(f"SELECT * FROM {VIEWS}.{view} LIMIT 1")

    assert {"keys", "requests", "assets", "versions", "jobs", "nodes", "events", "platforms"} <= {
        *views(catalog_database)
    }


def test_the_role_can_read_every_view_after_the_schema_was_rebuilt(database: str):
    role = ensure_gateway_role(database, with_password=True)

    rebuilt = rebuild_schema(database)

    assert (rebuilt.is_current, rebuilt.pending) == (True, [])
    with psycopg.connect(role) as connection:
        for view in views(database):
            connection.execute(f"SELECT * FROM {VIEWS}.{view} LIMIT 1")


def test_the_role_can_read_no_table_of_any_schema(catalog_database: str, role: str):
    with psycopg.connect(catalog_database) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p', 'v', 'm') AND n.nspname IN ('dagapp', 'pgstac')"
        ).fetchall()
    readable = []
    with psycopg.connect(role, autocommit=True) as connection:
        for (table,) in tables:
            try:
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
                readable.append(table)
            except psycopg.errors.InsufficientPrivilege:
                pass

    assert len(tables) > 30
    assert readable == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO dagapp_gateway.platforms (platform_id) VALUES ('x')",
        "UPDATE dagapp_gateway.jobs SET status = 'failed'",
        "DELETE FROM dagapp_gateway.requests",
        "UPDATE dagapp.dag_jobs SET status = 'failed'",
        "CREATE TABLE public.mine (a int)",
        "CREATE TABLE dagapp_gateway.mine (a int)",
        "CREATE TEMPORARY TABLE mine (a int)",
        "CREATE SCHEMA mine",
        "CREATE ROLE mine",
        "ALTER ROLE postgres PASSWORD 'mine'",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT nextval('dagapp.dag_event_id')",
        "SELECT dagapp.clock()",
        "SELECT secret_hash FROM dagapp.api_keys",
        "SELECT pg_read_file('/etc/passwd')",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "CREATE EXTENSION dblink",
        "SELECT pgstac.create_collection('{}')",
        "TRUNCATE dagapp.dag_jobs",
    ],
)
def test_the_role_can_neither_write_nor_become_another_role(role: str, statement: str):
    with psycopg.connect(role, autocommit=True) as connection:
        connection.execute(
            "SET default_transaction_read_only = off"
        )  # the role may change this setting, which only protects against mistakes

        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)):
            connection.execute(statement)


def test_views_hide_columns_that_partners_and_operators_do_not_need(catalog_database: str, role: str):
    with psycopg.connect(catalog_database) as connection:
        columns = connection.execute(
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = %s", [VIEWS]
        ).fetchall()
    names = {row[0] for row in columns}

    hidden = ("input", "output", "result", "payload", "token", "callback_url", "secret", "event_data", "params")
    assert {name for name in names if any(word in name.partition(".")[2] for word in hidden)} == {"keys.secret_hash"}
    assert not {name for name in names if name.startswith("requests.") and "job" in name}


def test_a_wrong_or_missing_password_is_refused(role: str):
    parts = conninfo_to_dict(role)

    for password in ("wrong", None):
        given = {name: value for name, value in parts.items() if name != "password"}
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(make_conninfo(**given, **({"password": password} if password else {})))


def test_a_new_password_replaces_the_previous_one(catalog_database: str, role: str):
    ensure_gateway_role(catalog_database, with_password=True)

    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(role)


def test_another_database_of_the_server_may_create_the_group_at_the_same_time(
    database: str, empty_database: str, monkeypatch: pytest.MonkeyPatch
):
    group = f"group_of_{conninfo_to_dict(database)['dbname']}"
    monkeypatch.setattr(gateway_role, "GROUP", group)
    waiting = """SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                  WHERE NOT l.granted AND l.locktype = 'transactionid' AND a.datname = %s"""
    deadline = time.monotonic() + 20
    with (
        ThreadPoolExecutor() as threads,
        psycopg.connect(database, autocommit=True) as watching,
        psycopg.connect(empty_database) as other,
    ):
        other.execute(f"CREATE ROLE {group}")
        ensured = threads.submit(ensure_gateway_role, database, with_password=True)
        while not watching.execute(waiting, [watching.info.dbname]).rowcount:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other.commit()

        with psycopg.connect(ensured.result(20)) as gateway:
            assert gateway.execute("SELECT pg_has_role(%s, 'MEMBER')", [group]).fetchone() == (True,)


def test_the_name_of_the_role_contains_the_name_of_the_database():
    assert role_of("dagmaster") == "dagmaster_gateway"
    assert len(role_of("d" * 63)) <= 63
    assert role_of("d" * 63) != role_of("d" * 62)


def test_the_superuser_of_the_embedded_server_needs_a_password(protected_cluster: Cluster):
    """The gateway does not know the file with the password of the superuser."""
    with protected_cluster as cluster:
        psycopg.connect(cluster.dsn).close()
        without = cluster.dsn.partition("&passfile=")[0]
        with pytest.raises(psycopg.OperationalError, match=r"no password supplied|password authentication failed"):
            psycopg.connect(f"{without}&passfile=/nonexistent")


def test_a_server_of_an_earlier_release_gets_passwords_at_its_next_start(protected_cluster: Cluster):
    with protected_cluster as cluster:
        cluster.stop()
        (cluster.folder / "pgpass").unlink()  # as an earlier release left it: without a password
        again = Cluster(cluster.folder, cluster.socket_folder, cluster.user)
        again.start()

        psycopg.connect(again.dsn).close()
        without = again.dsn.partition("&passfile=")[0]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{without}&passfile=/nonexistent")
        again.stop()
