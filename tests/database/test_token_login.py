"""Login with tokens of a managed identity, on a real server with TLS whose role has the newest token as its password.

This is the difference to Azure: there the server verifies the token, here it compares it with the password.
"""

import asyncio
import shutil
import threading
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.database.tcp_server import TcpServer, certificates, running, server_folder
from tests.engine.processes import fleet
from tests.object_stores.servers import IdentityService

from dagmaster.cli.direct_schema import DirectSchema
from dagmaster.database import token_login
from dagmaster.database.connect import connect, pool
from dagmaster.database.maintenance import server as facts
from dagmaster.database.schema import deploy
from dagmaster.database.schema.platform_role import grant_to_platform
from dagmaster.database.token_login import RESOURCE, TokenBlockingConnection, enable, with_password
from dagmaster.errors import DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import Settings, load

pytestmark = pytest.mark.requirement("M2")

ONLY_TLS = """
hostssl all all 127.0.0.1/32 password
hostssl all all ::1/128 password
hostnossl all all 0.0.0.0/0 reject
"""


NAPS = """
    workflow_id: naps
    nodes:
      start: {type: start, next: nap}
      nap: {handler: sleep, params: {seconds: 0.05}, next: end}
      end: {type: end}
    """


class RotatingIdentity(IdentityService):
    """Each token that it issues becomes the password of the roles on the server; earlier tokens are refused."""

    def __init__(self, server: TcpServer) -> None:
        super().__init__()
        self._server = server
        self._lock = threading.Lock()  # PostgreSQL refuses to alter a role twice at the same time
        self.issued: list[str] = []

    def token(self, now: int) -> str:
        with self._lock:
            token = f"{super().token(now)}{len(self.issued)}"
            self._server.execute(
                *(f"ALTER ROLE {role} PASSWORD '{token}'" for role in ("platform", "administrator")),
                database="postgres",
            )
            self.issued.append(token)
            return token


@pytest.fixture(scope="module")
def certificate_folder():
    with server_folder("certificates") as folder:
        yield folder


@pytest.fixture(scope="module")
def server(certificate_folder):
    settings = {**certificates(certificate_folder), "password_encryption": "md5"}
    with running("tls", ONLY_TLS, settings) as started:
        started.execute(
            "CREATE ROLE platform LOGIN",
            "CREATE ROLE administrator LOGIN SUPERUSER",
            "GRANT CREATE ON DATABASE dagmaster TO platform",
            "GRANT CREATE ON SCHEMA public TO platform",
        )
        yield started


@pytest.fixture
def identity(server):
    service = RotatingIdentity(server)
    yield service
    service.close()
    token_login._logins.clear()


def settings_of(server: TcpServer, identity: IdentityService, **others: object) -> Settings:
    chosen = {"database_url": server.dsn("platform"), "use_managed_identity": True, "identity_endpoint": identity.url}
    return Settings(**{**chosen, **others})


async def user_of(dsn: str) -> str:
    connection = await connect(dsn, role="test")
    try:
        row = await (await connection.execute("SELECT current_user")).fetchone()
        assert row
        return str(row[0])
    finally:
        await connection.close()


def test_all_connections_of_a_process_share_one_token(server, identity):
    settings = settings_of(server, identity, managed_identity_client_id="platform-id")
    enable(settings)
    dsn = str(settings.dsn())

    async def through_a_pool() -> str:
        async with pool(dsn, "test", 0, 2) as connections, connections.connection() as connection:
            row = await (await connection.execute("SELECT current_user")).fetchone()
            assert row
            return str(row[0])

    async def through_asyncpg() -> str:
        import asyncpg

        from dagmaster.serving.stac_connections import connected

        class App:
            class state:  # noqa: N801
                readpool: asyncpg.Pool

        asyncpg_user = ""
        async with connected(App, dsn):
            pool_of_app = App.state.readpool
            connection = await asyncpg.connect(*pool_of_app._connect_args, **pool_of_app._connect_kwargs)
            asyncpg_user = await connection.fetchval("SELECT current_user")
            await connection.close()
        return asyncpg_user

    with TokenBlockingConnection.connect(dsn) as connection:
        blocking = connection.execute("SELECT current_user, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert blocking.fetchone() == ("platform", True)
    with psycopg.connect(with_password(dsn)) as connection:  # as the child process of a worker connects
        assert connection.info.user == "platform"
    assert asyncio.run(user_of(dsn)) == "platform"
    assert asyncio.run(through_a_pool()) == "platform"
    assert asyncio.run(through_asyncpg()) == "platform"
    assert len(identity.requests) == 1
    assert f"resource={RESOURCE.replace(':', '%3A').replace('/', '%2F')}" in identity.requests[0]
    assert "client_id=platform-id" in identity.requests[0]


def test_a_token_is_renewed_before_it_expires_and_open_connections_stay(server, identity):
    now = 1_000_000.0
    identity.lifetime_seconds = 3600
    dsn = server.dsn("platform")
    clock = ManagedIdentity(IdentityEndpoint(identity.url, {"resource": RESOURCE}, {"Metadata": "true"}), lambda: now)
    login = token_login.TokenLogin(clock)
    clock._clock = lambda: now
    token_login._logins[token_login._key_of(conninfo_to_dict(dsn))] = login

    async def act() -> None:
        nonlocal now
        import time

        now = time.time()
        first = await connect(dsn, role="test")
        now += 3600 - 200  # within the last five minutes
        assert await user_of(dsn) == "platform"
        assert len(identity.issued) == 2
        assert await (await first.execute("SELECT 1")).fetchone() == (1,)
        await first.close()

    asyncio.run(act())


def test_a_refused_token_is_replaced_immediately(server, identity):
    enable(settings_of(server, identity))
    dsn = server.dsn("platform")
    assert asyncio.run(user_of(dsn)) == "platform"

    server.execute("ALTER ROLE platform PASSWORD 'another'")
    assert asyncio.run(user_of(dsn)) == "platform"
    server.execute("ALTER ROLE platform PASSWORD 'yet another'")
    with TokenBlockingConnection.connect(dsn) as connection:
        assert connection.info.user == "platform"
    assert len(identity.issued) == 3


def test_a_login_that_stays_refused_is_reported_without_the_token(server, identity):
    enable(settings_of(server, identity, database_url=server.dsn("unknown_role")))

    with pytest.raises(NotAllowed) as refused:
        asyncio.run(user_of(server.dsn("unknown_role")))

    assert "password authentication failed" in refused.value.message
    assert not any(token in str(refused.value) for token in identity.issued)


def test_an_identity_service_that_does_not_respond_is_an_outage_only_after_the_token_expires(server, identity):
    import time

    now = time.time()
    dsn = server.dsn("platform")
    managed = ManagedIdentity(IdentityEndpoint(identity.url, {}, {"Metadata": "true"}), lambda: now)
    token_login._logins[token_login._key_of(conninfo_to_dict(dsn))] = token_login.TokenLogin(managed)
    assert asyncio.run(user_of(dsn)) == "platform"
    identity.close()

    now += 3600 - 100
    assert asyncio.run(user_of(dsn)) == "platform"
    now += 101
    with pytest.raises(Unavailable) as outage:
        asyncio.run(user_of(dsn))
    assert outage.value.code == "azure.no-token"


def test_not_every_connection_waits_for_an_identity_service_that_fails():
    attempts, now = [], 1000.0

    def answer(request: httpx2.Request) -> httpx2.Response:
        attempts.append(now)
        return httpx2.Response(200, json={"access_token": f"token-{len(attempts)}", "expires_on": "4600"})

    def fail(request: httpx2.Request) -> httpx2.Response:
        attempts.append(now)
        raise httpx2.ReadTimeout("silent", request=request)

    managed = ManagedIdentity(IdentityEndpoint("http://identity.test/", {}, {}), lambda: now)
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        managed.token_blocking(http)
    with httpx2.Client(transport=httpx2.MockTransport(fail)) as http:
        for later in (4350.0, 4351.0, 4352.0, 4370.0, 4371.0):
            now = later
            assert managed.token_blocking(http)[0] == "token-1"
        now = 4601.0
        with pytest.raises(Unavailable):
            managed.token_blocking(http)

    assert attempts == [1000.0, 4350.0, 4370.0, 4601.0]


@pytest.mark.parametrize(
    ("dsn", "problem"),
    [
        ("postgresql://platform@db.example/x?sslmode=disable", "sslmode=disable allows connections without TLS"),
        ("postgresql://platform@db.example/x?sslmode=prefer", "sslmode=prefer allows connections without TLS"),
        ("postgresql://platform@/x?host=/run/postgresql", "it has no host name"),
    ],
)
def test_a_token_is_never_sent_without_tls(dsn, problem):
    with pytest.raises(InvalidRequest) as refused:
        enable(Settings(database_url=dsn, use_managed_identity=True))

    assert problem in refused.value.message
    assert refused.value.code == "database.insecure"


def test_a_server_without_tls_gets_no_token(identity, server):
    """This server would accept a connection without a password."""
    with running("plain", "host all all 127.0.0.1/32 trust\nhost all all ::1/128 trust") as plain:
        plain.execute("CREATE ROLE platform LOGIN")
        enable(settings_of(plain, identity))
        with pytest.raises(DagmasterError, match="server does not support SSL"):
            asyncio.run(user_of(plain.dsn("platform")))


def test_the_name_of_the_server_is_verified_with_verify_full(server, identity, certificate_folder, tmp_path):
    authority = shutil.copy(certificate_folder / "ca.pem", tmp_path / "ca.pem")
    verified = server.dsn("platform", sslmode="verify-full", sslrootcert=str(authority))
    by_address = verified.replace("localhost", "127.0.0.1")
    enable(settings_of(server, identity, database_url=verified))
    enable(settings_of(server, identity, database_url=by_address))

    assert asyncio.run(user_of(verified)) == "platform"
    with pytest.raises(DagmasterError, match="does not match host name"):
        asyncio.run(user_of(by_address))


def test_pgsslmode_cannot_disable_tls(monkeypatch):
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert token_login.secure_mode({"host": "db.example"}) == "verify-full"
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert token_login.secure_mode({"host": "db.example"}) == "require"


def test_the_schema_is_deployed_with_the_identity_of_the_administrator(server, identity):
    settings = settings_of(
        server,
        identity,
        managed_identity_client_id="platform-id",
        db_admin_managed_identity_client_id="admin-id",
        db_admin_user="administrator",
        catalog_enabled=False,
    )
    enable(settings)

    DirectSchema(token_login.administrator(settings, str(settings.dsn())), settings).deploy()

    owners = server.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'dagapp'")
    assert owners == [("administrator",)]
    assert ["client_id=admin-id" in request for request in identity.requests] == [True]
    assert facts.rows(str(settings.dsn()), "doctor_rights", schema="dagapp") == []
    assert "client_id=platform-id" in identity.requests[-1]

    (rights,) = server.execute(
        "SET ROLE administrator",
        "CREATE TABLE dagapp.of_the_next_release (id bigserial)",
        "SELECT has_table_privilege('platform', 'dagapp.of_the_next_release', 'INSERT'), "
        "has_sequence_privilege('platform', 'dagapp.of_the_next_release_id_seq', 'USAGE')",
    )
    assert rights == (True, True)


@pytest.mark.parametrize("host", ["/var/run/postgresql", "db.example,/tmp", "@dagmaster", "db.example,", ""])
def test_a_token_is_not_sent_over_a_socket_of_this_machine(host):
    with pytest.raises(InvalidRequest, match="needs TLS"):
        token_login.secure_mode({"host": host, "sslmode": "require"})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"database_url": "postgresql://me:secret-word@db/x"}, "remove the password"),
        ({"postgres_host": "db", "postgres_password": "secret-word"}, "remove the password"),
        ({"db_admin_user": "administrator"}, "requires DB_ADMIN_USER, and the other way round"),
    ],
)
def test_contradictory_settings_are_refused(settings, problem):
    with pytest.raises(InvalidRequest, match=problem) as refused:
        load(use_managed_identity=True, **settings)

    assert "secret-word" not in str(refused.value)


async def test_jobs_continue_while_tokens_change(server, identity, tmp_path: Path):
    """Tokens expire after seconds, and sessions are terminated meanwhile."""
    identity.lifetime_seconds = 1
    owner = f"postgresql://postgres@/dagmaster?host={server.folder}&port={server.port}"
    deploy.deploy(owner)
    grant_to_platform(owner, "platform")
    async with fleet(owner, tmp_path) as running_fleet:
        own_login = {"DATABASE_URL": server.dsn("platform"), "IDENTITY_ENDPOINT": identity.url}
        for role in ("orchestrator", "worker"):
            process = running_fleet.process(role)
            process.environment |= {**own_login, "USE_MANAGED_IDENTITY": "true"}
            process.start()
            # One after the other: the server accepts only the newest token, and a process that is refused at its start
            # does not try again.
            await running_fleet.ready([process])
        for _ in range(3):
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform'")
            jobs = await running_fleet.submit(NAPS, count=3)
            assert set(await running_fleet.wait(jobs)) == {"completed"}
    assert len(identity.issued) >= 2
