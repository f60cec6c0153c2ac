"""The short reads of the API through pgbouncer in transaction mode, and the connections that refuse a pooler."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dagmaster.database.reads.api import ApiReads
from dagmaster.database.reads.installation import InstallationReads
from dagmaster.errors import Unavailable
from dagmaster.local.embedded import Cluster
from tests.api.serving import V1, api, ok
from tests.database.tcp_server import free_port, server_folder
from tests.engine.fork_server import die_with
from tests.engine.harness import engine

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = [
    pytest.mark.requirement("M2"),
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed: scripts/setup installs it by apt"),
]
SERVER_CONNECTIONS = 2


@contextlib.contextmanager
def pgbouncer(dsn: str, name: str, **settings: str) -> Iterator[str]:
    """The URL of a pooler in front of a database, which has fewer connections than its clients."""
    given = conninfo_to_dict(dsn)
    port = free_port()
    target = f"host={given['host']} port=5432 dbname={given['dbname']} user={given['user']}"
    with server_folder(f"pgbouncer-{name}") as folder:
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": str(SERVER_CONNECTIONS),
            "logfile": str(folder / "log"),
            **settings,
        }
        config = folder / "pgbouncer.ini"
        text = "\n".join(f"{key} = {value}" for key, value in lines.items())
        config.write_text(f"[databases]\npooled = {target}\n[pgbouncer]\n{text}\n")
        config.chmod(0o644)
        user = Cluster.at(None, "tcp").user
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
        process = subprocess.Popen(
            [str(PGBOUNCER), str(config)],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  only a system call in the child
            **options,
        )
        try:
            _wait_for(port, process)
            yield f"postgresql://{given['user']}@127.0.0.1:{port}/pooled"
        finally:
            process.kill()
            process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        assert process.poll() is None, "pgbouncer has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_the_reads_of_the_api_are_the_same_through_a_pooler(database):
    async with engine(database) as running:
        job = await running.run("demo", count=3)
    job_id = job["job_id"]
    paths = [
        "/jobs",
        "/jobs?status=completed",
        "/jobs?q=demo",
        f"/jobs/{job_id}",
        f"/jobs/{job_id}/nodes",
        f"/jobs/{job_id}/events",
        "/queues",
        "/workflows",
    ]
    with pgbouncer(database, "reads") as pooled:
        async with api(database) as direct, api(database, database_pooler_url=pooled) as client:
            expected = [await ok(direct.get(f"{V1}{path}")) for path in paths]
            rounds = await asyncio.gather(*(ok(client.get(f"{V1}{path}")) for _ in range(8) for path in paths))
            with psycopg.connect(database) as connection:
                sessions = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    "   AND application_name = 'dagmaster-api' AND client_addr IS NULL"
                ).fetchone()

    for number, response in enumerate(rounds):
        path = paths[number % len(paths)]
        assert _without_ages(response) == _without_ages(expected[number % len(paths)]), path
    assert sessions
    # One connection of the direct API, and at most all connections of the pooler.
    assert sessions[0] <= 1 + SERVER_CONNECTIONS


def _without_ages(value: object) -> object:
    """Ages in seconds differ between two calls."""
    if isinstance(value, dict):
        return {key: _without_ages(part) for key, part in value.items() if not key.endswith(("seconds", "now"))}
    return [_without_ages(part) for part in value] if isinstance(value, list) else value


async def test_settings_apply_to_one_transaction_on_a_pooler(shared_database):
    with pgbouncer(shared_database, "settings") as pooled:
        reads = ApiReads(shared_database, pooler_dsn=pooled)
        await reads.open()
        async with reads._connected() as connection:
            inside = await (await connection.execute("SHOW enable_seqscan")).fetchone()
            timeout = await (await connection.execute("SHOW statement_timeout")).fetchone()
        await reads.close()
        with psycopg.connect(pooled, autocommit=True) as connection:
            outside = connection.execute("SHOW enable_seqscan").fetchone()

    assert (inside, timeout, outside) == (("off",), ("15s",), ("on",))


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("strict", {}, "unsupported startup parameter"),
        ("lenient", {"ignore_startup_parameters": "options"}, "is not the one announced at login"),
        (
            "session",
            {"ignore_startup_parameters": "options", "pool_mode": "session"},
            "is not the one announced at login",
        ),
    ],
)
async def test_a_role_whose_database_url_is_a_pooler_refuses_to_start(shared_database, name, settings, problem):
    with pgbouncer(shared_database, name, **settings) as pooled:
        async with InstallationReads(pooled, "test") as reads:
            with pytest.raises(Unavailable, match=problem) as refused:
                await reads.require_schema()

    assert refused.value.code == "database.pooler"
    assert "DATABASE_POOLER_URL" in str(refused.value.hint)
