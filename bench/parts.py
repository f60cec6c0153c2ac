"""The parts of the benchmark that measure dagmaster alone. Each returns figures: a list of values for each name."""

import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx2

from dagmaster.database.queries import all_queries
from ours import PATIENCE_SECONDS, QUEUE, UNSERVED, Platform, new_database, platform, verified
from server import Server, Spent, peak_megabytes

Figures = dict[str, list[float]]
ROLES = {  # the modules that each role imports, and those of a command of the client and of the help
    "orchestrator": ("cli.roles", "roles.orchestrator", "api.app", "api.server"),
    "worker": ("cli.roles", "roles.worker", "handlers.shipped"),
    "serving": ("cli.roles", "roles.serving", "serving.app", "serving.server"),
    "client": ("cli.main", "cli.submit", "client.json_client"),
    "help": ("cli.main",),
}


async def large(server: Server, scale: float) -> Figures:
    """large_fan_out: the time per child with 100,000 and with 1,000 children, and the memory of the processes."""
    many, few = int(100_000 * scale), int(1_000 * scale)
    new_database(server, "large")
    async with platform(server, "large") as ours:
        await ours.fan(few)
        small = statistics.median([await ours.fan(few) for _ in range(3)])
        seconds = await ours.fan(many)
        figures = {
            "large_fan_out tasks/s": [many / seconds],
            "large_fan_out cost per task over that at 1,000": [(seconds / many) / (small / few)],
            "large_fan_out orchestrator MB": [peak_megabytes(pid) for pid in ours.pid("orchestrator")],
            "large_fan_out worker MB": [peak_megabytes(pid) for pid in ours.pid("worker")],
        }
    figures["findings"] = [(await verified(server, "large"))["findings"]]
    server.drop("large")
    return figures


async def orchestrators(server: Server, scale: float, rounds: int) -> Figures:
    """orchestrators: 20 jobs of 1,000 children, by one orchestrator and by three, in turn."""
    jobs, children = 20, int(1_000 * scale)
    speed: dict[int, list[float]] = {1: [], 3: []}
    new_database(server, "many")
    for _ in range(rounds):
        for count, speeds in speed.items():
            async with platform(server, "many", orchestrators=count) as ours:
                await ours.run("fan", jobs=4, count=100)
                speeds.append(jobs * children / await ours.run("fan", jobs=jobs, count=children))
            server.settle("many")
    findings = (await verified(server, "many"))["findings"]
    server.drop("many")
    return {
        "orchestrators=1 tasks/s": speed[1],
        "orchestrators=3 tasks/s": speed[3],
        "orchestrators, three over one": [three / one for one, three in zip(speed[1], speed[3], strict=True)],
        "findings": [findings],
    }


async def idle(server: Server, scale: float, seconds: float) -> Figures:
    """idle: a platform with its API and nothing to do, before any job and after 10,000."""
    figures: Figures = {}
    new_database(server, "idle")
    async with platform(server, "idle", api=True) as ours:
        await _measure_idle(server, ours, seconds, figures, "empty")
        left = int(10_000 * scale)
        while left > 0:
            await ours.run("chain1", jobs=min(1_000, left))
            left -= 1_000
        server.settle("idle")
        await _measure_idle(server, ours, seconds, figures, "after 10,000 jobs")
    figures["findings"] = [(await verified(server, "idle"))["findings"]]
    server.drop("idle")
    return figures


async def _measure_idle(server: Server, ours: Platform, seconds: float, figures: Figures, when: str) -> None:
    await asyncio.sleep(3)  # wait for work that follows the last job
    with server.metered(ours.database, ours.pids) as spent:
        await asyncio.sleep(seconds)
    figures[f"idle {when}, % of a core, our processes"] = [100 * sum(spent.process_seconds.values()) / seconds]
    figures[f"idle {when}, % of a core, PostgreSQL"] = [100 * spent.postgres_seconds / seconds]
    figures[f"idle {when}, queries/s"] = [spent.statements / seconds]


BACKLOGS = {
    "empty": "empty tables",
    "finished": "100,000 finished tasks",
    "stuck": "100,000 tasks that no worker can run",
}


async def backlog(server: Server, scale: float, rounds: int) -> Figures:
    """fan_out with 100,000 older tasks in the table, finished ones and ones that no worker can run, compared with
    fan_out on empty tables."""
    many, count = int(100_000 * scale), int(10_000 * scale)
    speed: dict[str, list[float]] = {}
    for what in BACKLOGS:
        new_database(server, what)
        async with platform(server, what) as ours:
            if what == "finished":
                await ours.fan(many)
            if what == "stuck":
                await _strand(ours, many)
        server.settle(what)
    for _ in range(rounds):
        for what in BACKLOGS:
            async with platform(server, what) as ours:
                await ours.fan(200)
                speed.setdefault(what, []).append(count / await ours.fan(count))
    findings = sum([(await verified(server, what))["findings"] for what in speed])
    for what in speed:
        server.drop(what)
    figures = {f"fan_out tasks/s, {BACKLOGS[what]}": values for what, values in speed.items()}
    for what in ("finished", "stuck"):
        ratios = [rate / empty for rate, empty in zip(speed[what], speed["empty"], strict=True)]
        figures[f"fan_out with {BACKLOGS[what]}, over empty tables"] = ratios
    return {**figures, "findings": [findings]}


async def _strand(ours: Platform, count: int) -> None:
    """Queue tasks that stay queued: first in a queue without workers, then before all others in the queue of the
    benchmark, with a handler that no worker has."""
    await ours.submit("stuck", count=count)
    await ours.until("SELECT count(*) >= %s FROM dagapp.dag_tasks WHERE queue = %s", count, UNSERVED)
    await ours.connection.execute(
        "UPDATE dagapp.dag_tasks SET queue = %s, handler = 'no_worker_has_this' WHERE queue = %s", [QUEUE, UNSERVED]
    )


async def steady(server: Server, minutes: float) -> Figures:
    """Eight jobs of 200 children run at all times: tasks per second in each tenth of the time, and the ratio of the
    last third to the first."""
    children, window = 200, minutes * 6
    speeds: list[float] = []
    new_database(server, "steady")
    async with platform(server, "steady") as ours:
        under_way = deque([await ours.submit("fan", count=children) for _ in range(8)])
        for _ in range(10):
            started, done = time.perf_counter(), 0
            while time.perf_counter() - started < window:
                await ours.finished(under_way.popleft())
                under_way.append(await ours.submit("fan", count=children))
                done += children
            speeds.append(done / (time.perf_counter() - started))
            print(f"  {len(speeds)}0 % of the time: {speeds[-1]:,.0f} tasks/s", flush=True)
        for ids in under_way:
            await ours.finished(ids)
    findings = (await verified(server, "steady"))["findings"]
    server.drop("steady")
    decay = statistics.mean(speeds[-3:]) / statistics.mean(speeds[:3])
    return {"steady tasks/s": speeds, "steady, last third over first": [decay], "findings": [findings]}


async def start_up(repeat: int) -> Figures:
    """`dagmaster up` until a job is accepted, with new and with existing data; and the time of imports."""
    figures: Figures = {}
    _import_seconds([module for modules in ROLES.values() for module in modules], 1)  # so that all modules are compiled
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            for what in ("new data", "existing data"):
                accepted, ready = await _up(Path(folder))
                figures.setdefault(f"up with {what}: a job is accepted, s", []).append(accepted)
                figures.setdefault(f"up with {what}: all processes are ready, s", []).append(ready)
            _remove_cluster(Path(folder))
    bare = _import_seconds([], repeat)
    for role, modules in ROLES.items():
        figures[f"import, {role}, s"] = [seconds - min(bare) for seconds in _import_seconds(modules, repeat)]
    return figures


async def _up(folder: Path) -> tuple[float, float]:
    """Seconds until a job is accepted, and until `up` says that it is ready."""
    port = _free_port()
    environment = {**os.environ, "API_PORT": str(port), "LOG_LEVEL": "error"}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", "up", "--json", "--data", folder], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    announced = asyncio.create_task(asyncio.to_thread(_line_at, process.stdout))
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            while not await _accepted(client):
                if process.poll() is not None or time.perf_counter() - started > PATIENCE_SECONDS:
                    raise SystemExit("bench: `dagmaster up` accepts no job")
                await asyncio.sleep(0.02)
        accepted = time.perf_counter()
        return accepted - started, max(accepted, await announced) - started
    finally:
        process.terminate()
        process.wait(60)


def _line_at(stream: IO[bytes]) -> float:
    stream.readline()
    return time.perf_counter()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _accepted(client: httpx2.AsyncClient) -> bool:
    try:
        response = await client.post("/api/v1/jobs", json={"workflow_id": "hello_world"})
    except httpx2.TransportError:
        return False
    return response.is_success


def _remove_cluster(folder: Path) -> None:
    from dagmaster.local.embedded import Cluster

    Cluster.at(folder).remove()


def _import_seconds(modules: Sequence[str], repeat: int) -> list[float]:
    timed = []
    for _ in range(repeat):
        started = time.perf_counter()
        text = "".join(f"import dagmaster.{module}\n" for module in modules)
        subprocess.run([sys.executable, "-c", text], check=True)
        timed.append(time.perf_counter() - started)
    return timed


async def profile(server: Server, scale: float) -> dict[str, Any]:
    """Where the time is spent: CPU of each process per task (step, job), and the statements that use most of the
    server's time."""
    count = int(10_000 * scale)
    new_database(server, "profile")
    measured: dict[str, Any] = {}
    async with platform(server, "profile") as ours:
        await ours.fan(200)
        for what, work, each in (
            (f"fan_out, {count:,} tasks", ours.fan(count), count),
            ("chain, 10 chains of 20 steps", _chains(ours, 10), 200),
            ("small_jobs, 200 jobs of 3 steps", ours.jobs(200), 200),
        ):
            with server.metered(ours.database, ours.pids) as spent:
                seconds = await work
            measured[what] = {"seconds": seconds, **_shares(spent, each)}
        measured["orchestrator imports"] = ours.raster_code()
    server.drop("profile")
    return measured


async def _chains(ours: Platform, count: int) -> float:
    return sum([await ours.chain() for _ in range(count)])


def _shares(spent: Spent, each: int) -> dict[str, Any]:
    named = {_shape(text): name for name, text in all_queries().items()}
    cpu = {"PostgreSQL": spent.postgres_seconds}
    for name, seconds in spent.process_seconds.items():
        cpu[name.split()[0]] = cpu.get(name.split()[0], 0.0) + seconds
    return {
        "cpu ms": {name: 1000 * seconds / each for name, seconds in cpu.items()},
        "statements": [
            {
                "name": named.get(_shape(top.query), " ".join(_without_comments(top.query).split())[:60]),
                "calls": top.calls,
                "ms a call": top.milliseconds / top.calls,
                "rows": top.rows,
                "ms": top.milliseconds / each,
            }
            for top in spent.top
        ],
    }


def _shape(query: str) -> str:
    """A statement without its parameters and layout, to recognise it in pg_stat_statements."""
    plain = re.sub(r"^PREPARE (\w+).*? AS ", "", _without_comments(query))
    plain = re.sub(r"%\(\w+\)s|\$\d+", "?", plain)
    plain = re.sub(r"'[^']*'|\b(\d+|NULL|true|false)\b", "?", plain)
    return "".join(plain.split())


def _without_comments(query: str) -> str:
    return re.sub(r"--[^\n]*", "", query)
