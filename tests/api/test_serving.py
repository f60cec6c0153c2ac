"""The API in the process of an orchestrator: it listens on loopback, stops with it, and reports a port in use."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from httpx2 import Client, ConnectError

from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.listen import bind
from dagmaster.observe import log
from dagmaster.roles.orchestrator import _api_socket
from dagmaster.settings import Settings
from tests.api.serving import V1, app_of, served
from tests.engine.harness import until


@pytest.mark.requirement("X1")
def test_only_loopback_is_listened_on_unless_configured():
    with pytest.raises(InvalidRequest) as refused:
        bind("0.0.0.0", 0)
    with bind("0.0.0.0", 0, may_expose=True) as on_all_addresses, bind("localhost", 0) as on_loopback:
        ports = [bound.getsockname()[1] for bound in (on_all_addresses, on_loopback)]

    assert refused.value.code == "api.not-loopback"
    assert "API_INSECURE" in (refused.value.hint or "")
    assert all(ports)


def test_the_error_for_a_port_in_use_is_a_conflict():
    with bind("127.0.0.1", 0) as first, pytest.raises(Conflict) as refused:
        bind("127.0.0.1", first.getsockname()[1])

    assert refused.value.code == "api.port-taken"
    assert "--port" in (refused.value.hint or "")


async def test_a_stopped_server_releases_its_port(shared_database):
    async with served(app_of(shared_database)) as server:
        port = int(server.url.rpartition(":")[2])

    with bind("127.0.0.1", port) as taken:
        assert taken.getsockname()[1] == port


@contextmanager
def orchestrator(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", "orchestrator", *arguments],
        env={**environment, "DATABASE_URL": dsn, "LOG_FORMAT": "json", "ORCHESTRATOR_POLL_INTERVAL": "0.2"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and json.loads(line)["event"] == "the API listens":
            return str(json.loads(line)["url"])
    raise AssertionError("the orchestrator ended before the API listened")


async def test_an_orchestrator_serves_the_api_until_it_stops(database):
    with orchestrator(database, "--port", "0") as process:
        url = await asyncio.to_thread(url_of, process)
        with Client(base_url=url, timeout=10) as client:
            ready = await asyncio.to_thread(_ready, client)
            submitted = client.post(f"{V1}/jobs", json={"workflow_id": "hello_world"})
            path = f"{V1}/jobs/{submitted.json()['job_id']}"
            deadline = time.monotonic() + 10
            while client.get(path).json()["job"]["owner_id"] is None and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            claimed = client.get(path).json()
            instances = client.get(f"{V1}/orchestrators").json()["items"]
        with orchestrator(database, "--port", url.rpartition(":")[2]) as second:
            _, complaint = await asyncio.to_thread(second.communicate, timeout=20)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, 20)

    assert ready
    assert claimed["job"]["owner_id"] == instances[0]["owner_id"]
    assert second.returncode == 4
    assert "already in use" in complaint
    assert code == 0
    with pytest.raises(ConnectError), Client(base_url=url) as client:
        client.get("/livez")


def _ready(client: Client) -> bool:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if client.get("/readyz").status_code == 200:
            return True
        time.sleep(0.05)
    return False


async def test_an_orchestrator_may_serve_no_api(database):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with orchestrator(database, "--no-api", "--port", str(taken.getsockname()[1])) as process:
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:

                async def has_begun():
                    return await (await connection.execute("SELECT 1 FROM dagapp.orchestrators")).fetchall()

                await until(has_begun, 20)
            process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(process.wait, 20)

    assert code == 0


def test_a_second_orchestrator_takes_a_free_port_unless_one_is_chosen(capsys):
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        default = Settings()
        default.__dict__["api_port"] = port  # in use, but it is only the default
        log.configure("warning", "json")

        with _api_socket(default), pytest.raises(Conflict) as refused:
            _api_socket(Settings(API_PORT=port))
        record = json.loads(capsys.readouterr().err)

        assert refused.value.code == "api.port-taken"
        assert record["event"] == f"port {port} is in use; the API listens on a free port"
        assert record["url"].startswith("http://127.0.0.1:")
        assert not record["url"].endswith(f":{port}")
