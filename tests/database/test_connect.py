"""A refusal of the database becomes an error that says what it means and what to do about it."""

import asyncio

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from tests.conftest import administrator

from dagmaster.database import connect as connecting
from dagmaster.database.connect import connect, conninfo, pool, pool_on_pooler
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import WorkerInfo
from dagmaster.database.maintenance.history import verify
from dagmaster.database.reads.installation import InstallationReads
from dagmaster.database.schema import deploy
from dagmaster.errors import DagmasterError, InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.gateway.services import database_of
from dagmaster.jobs.model import new_job_id
from dagmaster.settings import Settings


def refusal(dsn: str) -> DagmasterError:
    with pytest.raises(DagmasterError) as refused:
        asyncio.run(connect(dsn, role="test"))
    return refused.value


@pytest.mark.requirement("M2")
@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        ("garbage", "neither postgresql://… nor host=… dbname=…"),
        ("postgresql//me:hunter2@host", "neither postgresql://… nor host=… dbname=…"),
        ("mysql://me:hunter2@host/db", "it begins with mysql:, not with postgresql://"),
        ("http://me:hunter2@host/db", "it begins with http:, not with postgresql://"),
        ("postgresql://me:hunter2@[::1/db", "brackets of its IPv6 address"),
        ("postgresql://me:hunter2@host:abc/db", "its port is not a number from 1 to 65535"),
        ("postgresql://me:hunter2@host:99999/db", "its port is not a number from 1 to 65535"),
        ("postgresql://me:hunter2@host:0/db", "its port is not a number from 1 to 65535"),
        ("postgresql://me:pass/hunter2@host/db", "a / in its password"),
        ("postgresql://me:pass@hunter2@host/db", "write an @ in its password as %40"),
        ("postgresql://me:hunter2%zz@host/db", "a % in it must be written as %25"),
        ("postgresql://me:hunter2@host/db?sllmode=require", "there is no parameter sllmode"),
        ("postgresql://me:hunter2@host/db?connect_timeout=soon", "connect_timeout is not a whole number"),
        ("postgresql://me:hunter2@127.0.0.1:1/db?sslmode=maybe", "sslmode value is not valid"),
        ("postgresql://me:hunter2@127.0.0.1:1/db?target_session_attrs=x", "target_session_attrs value is not valid"),
        ("postgresql://me:hunter2@host/db\0", "NUL"),
        ("host=h password=hunter2 port=abc", "its port is not a number"),
    ],
)
def test_the_error_about_a_malformed_address_contains_no_secret(dsn, message):
    error = refusal(dsn)

    assert isinstance(error, InvalidRequest)
    assert error.code == "database.bad-address"
    assert message in error.message
    assert "hunter2" not in str(error)


@pytest.mark.requirement("M2")
def test_a_malformed_address_is_reported_with_the_name_of_its_variable():
    gateway = Settings(gateway_database_url="mysql://host/db", orchestrator_urls=["http://127.0.0.1:1"])
    with pytest.raises(InvalidRequest) as of_gateway:
        database_of(gateway)
    with pytest.raises(InvalidRequest) as of_pooler:
        pool_on_pooler("mysql://host/db", "api", 1)

    assert of_gateway.value.message.startswith("GATEWAY_DATABASE_URL is not the address of a database: ")
    assert of_pooler.value.message.startswith("DATABASE_POOLER_URL is not the address of a database: ")


@pytest.mark.requirement("M2")
def test_pools_and_deployments_refuse_a_malformed_address():
    for act in (lambda: pool("mysql://h/db", "x", 0, 1), lambda: deploy.status("mysql://h/db")):
        with pytest.raises(InvalidRequest, match="begins with mysql"):
            act()


@pytest.mark.requirement("M2")
def test_several_hosts_and_sockets_are_valid_addresses():
    assert "port=5432,5433" in conninfo("postgresql://me@a:5432,b:5433/db", "x", 1, 1, 1)
    assert "/run/x" in conninfo("postgresql://me@/db?host=/run/x", "x", 1, 1, 1)


@pytest.mark.requirement("M3")
def test_a_server_that_does_not_exist_is_unavailable():
    error = refusal("postgresql://me:hunter2@127.0.0.1:1/db")

    assert isinstance(error, Unavailable)
    assert error.code == "database.unavailable"
    assert "Connection refused" in error.message


@pytest.mark.requirement("M3")
def test_an_unknown_host_is_reported_as_unknown():
    error = refusal("postgresql://me@nowhere.invalid/db")

    assert (error.code, error.hint) == ("database.unavailable", "check the name of the host in DATABASE_URL")


@pytest.mark.requirement("M3")
def test_an_unknown_database_is_reported_as_not_found(cluster):
    error = refusal(cluster.dsn_of("nothing_here"))

    assert isinstance(error, NotFound)
    assert 'database "nothing_here" does not exist' in error.message
    assert "createdb" in error.hint


@pytest.fixture(scope="module")
def guarded(cluster):
    """A role that needs a password; other roles do not."""
    rules = cluster.folder / "pg_hba.conf"
    rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
    with administrator(cluster) as connection:
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE shut_out NOLOGIN")
        connection.execute("SELECT pg_reload_conf()")
    return cluster


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("guarded:wrong", 'password authentication failed for user "guarded"'),
        ("guarded", "no password supplied"),
        ("unknown_role", 'role "unknown_role" does not exist'),
        ("shut_out", "is not permitted to log in"),
    ],
)
def test_a_refused_login_is_reported(guarded, user, message):
    error = refusal(guarded.dsn_of("postgres").replace("postgres@", f"{user}@"))

    assert isinstance(error, NotAllowed)
    assert error.code == "database.not-allowed"
    assert message in error.message
    assert "DATABASE_URL" in error.hint
    assert "wrong" not in str(error)


WORKER = WorkerInfo(new_job_id(1), "host", 1, "0", "general", ("q",), ("noop",), {})
ACTS = {
    "reads": lambda dsn: InstallationReads(dsn).live_instances(),
    "ledger": lambda dsn: PostgresLedger(dsn).beat_worker(WORKER),
    "history": verify,
}


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_without_the_schema_the_error_says_to_deploy_it(empty_database, act):
    with pytest.raises(Unavailable, match="no dagmaster schema") as refused:
        await act(empty_database)

    assert refused.value.code == "database.not-deployed"
    assert refused.value.hint == "run `dagmaster db deploy`"


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_missing_rights_are_reported(cluster, database, act):
    with administrator(cluster) as connection:
        connection.execute("DROP ROLE IF EXISTS plain")
        connection.execute("CREATE ROLE plain LOGIN")

    with pytest.raises(NotAllowed, match="permission denied for schema dagapp") as refused:
        await act(database.replace("postgres@", "plain@"))

    assert refused.value.code == "database.not-allowed"


@pytest.mark.requirement("M3")
async def test_missing_rights_to_deploy_are_reported(cluster, empty_database):
    with administrator(cluster) as connection:
        connection.execute("DROP ROLE IF EXISTS plain")
        connection.execute("CREATE ROLE plain LOGIN")

    with pytest.raises(NotAllowed, match="permission denied"):
        deploy.deploy(empty_database.replace("postgres@", "plain@"))


@pytest.mark.requirement("M3")
async def test_with_an_older_schema_the_error_says_to_migrate_it(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE dagapp.workers DROP COLUMN worker_type")

    with pytest.raises(Unavailable) as refused:
        await PostgresLedger(database).beat_worker(WORKER)

    assert (refused.value.code, refused.value.hint) == ("database.outdated", "run `dagmaster db migrate`")


@pytest.mark.requirement("M3")
async def test_a_read_only_server_is_reported_as_read_only(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")

    with pytest.raises(Unavailable) as refused:
        await PostgresLedger(database).beat_worker(WORKER)
    with pytest.raises(Unavailable) as deploying:
        deploy.deploy(database)

    assert refused.value.code == deploying.value.code == "database.read-only"
    assert "standby" in refused.value.hint


@pytest.mark.requirement("M3")
async def test_an_old_server_is_refused(database, monkeypatch):
    monkeypatch.setattr(connecting, "OLDEST_MAJOR", 99)

    with pytest.raises(Unavailable, match=r"the server is PostgreSQL \d+, but 99 or newer is required"):
        await connect(database, role="test")
    with pytest.raises(Unavailable, match="99 or newer"):
        deploy.status(database)


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("connection failed: FATAL:  unsupported startup parameter: options", "database.pooler"),
        ("connection failed: FATAL:  sorry, too many clients already", "database.unavailable"),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "1.2.3.4"', "database.not-allowed"),
        ("connection failed: FATAL:  the database system is starting up", "database.unavailable"),
    ],
)
def test_rare_refusals_are_recognised_by_their_messages(message, code):
    with pytest.raises(DagmasterError) as refused, connecting.translate_errors():
        raise psycopg.OperationalError(message)

    assert refused.value.code == code
    assert refused.value.hint


@pytest.mark.requirement("C3")
async def test_a_live_connection_is_reused_without_a_query(database, monkeypatch):
    async def refuse(_connection: object) -> None:
        raise AssertionError("an unnecessary round trip")

    reader = pool(database, "test", 0, 1)
    await reader.open()
    async with reader.connection() as connection:
        first = connection.info.backend_pid
    monkeypatch.setattr(AsyncConnectionPool, "check_connection", refuse)

    async with reader.connection() as connection:
        second = connection.info.backend_pid

    assert first == second
    await reader.close()


@pytest.mark.requirement("C3")
async def test_a_connection_that_the_server_ended_is_replaced(database, cluster):
    reader = pool(database, "test", 0, 1)
    await reader.open()
    async with reader.connection() as connection:
        first = connection.info.backend_pid
    with administrator(cluster) as superuser:
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [first])

    async with reader.connection() as connection:
        (response,) = await (await connection.execute("SELECT 1")).fetchone()

    assert response == 1
    assert connection.info.backend_pid != first
    await reader.close()
