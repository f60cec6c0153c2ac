"""Several processes: a request may be sent to any of them, and each reports its health.

No process polls within the time that is measured: what takes effect within a second was notified.
"""

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from httpx2 import AsyncClient, ConnectError

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import Demand
from dagmaster.local.embedded import Cluster
from tests.api.serving import V1, ok
from tests.conftest import administrator
from tests.engine.processes import Fleet, Process, fleet

SLOW = {"orchestrator_poll_interval": 30, "orphan_scan_interval_sec": 30, "worker_poll_interval": 30}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def serve(running: Fleet, **settings: Any) -> tuple[Process, AsyncClient]:
    """An orchestrator whose API is ready, and a client of it."""
    port = free_port()
    process = await running.start_one("orchestrator", api_enabled=True, api_port=port, **settings)
    client = AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10)
    await running.until(lambda: _answers(client), 20, "the API")
    return process, client


async def _answers(client: AsyncClient, path: str = "/readyz") -> bool:
    try:
        return (await client.get(path)).status_code == 200
    except ConnectError:
        return False


async def seconds_until(running: Fleet, holds: Callable[[], Awaitable[Any]], what: str) -> float:
    started = time.monotonic()
    await running.until(holds, 20, what)
    return time.monotonic() - started


@pytest.mark.requirement("E7")
async def test_requests_to_an_instance_that_does_not_own_the_job_take_effect_within_a_second(
    database: str, tmp_path: Path
) -> None:
    """One instance has its maximum of jobs, so the other one claims the job that is submitted to the first."""
    took: dict[str, float] = {}
    ledger, worker_id = PostgresLedger(database, "test"), uuid4()
    async with fleet(database, tmp_path, **SLOW) as running:
        full, full_client = await serve(running, orchestrator_max_jobs=1)
        filler = UUID((await ok(full_client.post(f"{V1}/jobs", json={"workflow_id": "demo"}), 202))["job_id"])
        await running.until(lambda: running.owner_of(filler), 10, "the first job's owner")
        owner, owner_client = await serve(running)

        submitted = await ok(full_client.post(f"{V1}/jobs", json={"workflow_id": "hello_world"}), 202)
        job_id = UUID(submitted["job_id"])

        async def is_queued() -> list[Any]:
            return [task for task in await running.tasks(job_id) if task["status"] == "queued"]

        took["submission"] = await seconds_until(running, is_queued, "the job's first task")
        owners = [await running.owner_of(filler), await running.owner_of(job_id)]

        for step in ("greet", "repeat"):
            claimed = await running.until(lambda: _claimed(ledger, worker_id, job_id), 10, f"the task of {step}")
            report = {
                "task_id": claimed,
                "worker_id": str(worker_id),
                "status": "succeeded",
                "output": {"message": "hello"},
            }
            receipt = await ok(full_client.post(f"{V1}/callbacks/task-result", json=report))

            async def is_done(step: str = step) -> bool:
                return (await running.nodes(job_id))[step]["status"] == "completed"

            took[f"result of {step}"] = await seconds_until(running, is_done, f"{step} to complete")
            assert receipt == {"accepted": True}
        states = await running.wait(job_id)

        await ok(full_client.put(f"{V1}/queues/functionapp-tasks", json={"is_paused": True}))
        await running.start_one("worker")
        shown = await ok(owner_client.get(f"{V1}/queues"))
        still_queued = [task["status"] for task in await running.tasks(filler)]
        await ok(owner_client.put(f"{V1}/queues/functionapp-tasks", json={"is_paused": False}))

        async def is_claimed() -> bool:
            return any(task["worker_id"] for task in await running.tasks(filler))

        took["opening a queue"] = await seconds_until(running, is_claimed, "the worker to claim a task")
        for client in (full_client, owner_client):
            await client.aclose()
    await ledger.close()

    assert owners == [full, owner]
    assert states == ["completed"]
    assert [queue["is_paused"] for queue in shown["items"] if queue["queue"] == "functionapp-tasks"] == [True]
    assert set(still_queued) == {"queued"}
    assert {what: seconds for what, seconds in took.items() if seconds > 1.0} == {}


async def _claimed(ledger: PostgresLedger, worker_id: UUID, job_id: UUID) -> str | None:
    """Claim a task of this job and return its id, if there is one."""
    demand = Demand(("functionapp-tasks",), ("hello_world", "echo"), 10)
    response = await ledger.exchange(worker_id, [], demand, lease_seconds=60)
    return next((task.task_id for task in response.claimed if task.job_id == job_id), None)


@pytest.mark.requirement("H4")
async def test_several_processes_with_the_same_health_port_report_their_health_on_different_ports(
    database: str, tmp_path: Path
) -> None:
    """All have the same setting of the port: those that start later use a free port and log it."""
    port = free_port()
    async with (
        fleet(database, tmp_path, health_port=port, orphan_threshold_sec=30) as running,
        AsyncClient(timeout=10) as client,
    ):
        workers = await running.start("worker", 2)
        orchestrator = await running.start_one("orchestrator")
        urls = {process.name: await _health_url(running, process) for process in [*workers, orchestrator]}
        health = {name: (await ok(client.get(f"{url}/health"))) for name, url in urls.items()}
        ready = {name: (await client.get(f"{url}/readyz")).status_code for name, url in urls.items()}
        metrics = (await client.get(f"{urls[orchestrator.name]}/metrics")).text
        stats = [(await running.stats(process))["health_url"] for process in workers]

        orchestrator.freeze()
        frozen = asyncio.create_task(_answers(client, f"{urls[orchestrator.name]}/livez"))
        _, still_waiting = await asyncio.wait([frozen], timeout=0.5)
        orchestrator.thaw()
        is_alive_again = await frozen

    assert len(set(urls.values())) == 3
    assert f"http://127.0.0.1:{port}" in urls.values()
    assert {name: body["pid"] for name, body in health.items()} == {p.name: p.pid for p in [*workers, orchestrator]}
    assert set(ready.values()) == {200}
    assert "dagmaster_orchestrator_cycles_total" in metrics
    assert stats == [urls[process.name] for process in workers]
    assert still_waiting
    assert is_alive_again


async def _health_url(running: Fleet, process: Process) -> str:
    async def url_in_log() -> str | None:
        match = re.search(r"health endpoint started.*url=(\S+)", process.log.read_text())
        return match[1] if match else None

    return str(await running.until(url_in_log, 10, f"the address of {process.name}"))


@pytest.mark.requirement("H4")
async def test_without_a_database_all_processes_are_alive_and_none_is_ready(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """A restart would not help, so they stay alive; they are ready again when the database is available again."""
    async with fleet(database, tmp_path, health_port=0) as running, AsyncClient(timeout=10) as client:
        processes = [*await running.start("worker"), *await running.start("orchestrator")]
        urls = [await _health_url(running, process) for process in processes]

        async def statuses(path: str) -> set[int]:
            return {(await client.get(f"{url}{path}")).status_code for url in urls}

        async def are_ready() -> bool:
            return await statuses("/readyz") == {200}

        async def is_none_ready() -> bool:
            return await statuses("/readyz") == {503}

        await running.until(are_ready, 10, "all to be ready")
        with administrator(cluster) as connection, taken_away(connection, database):
            await running.until(is_none_ready, 10, "none to be ready")
            alive = await statuses("/livez")
        await running.until(are_ready, 20, "all to be ready again")

    assert alive == {200}


@contextmanager
def taken_away(connection: psycopg.Connection[Any], dsn: str) -> Iterator[None]:
    """Close all connections to this database and accept none during the block."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        yield
    finally:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
