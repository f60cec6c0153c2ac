"""The capacity of one database: tasks and jobs per second, and connections, by orchestrators and workers.

For each number of orchestrators (processes) and workers (whole workers, several in a process) it measures
  tasks   10 jobs with a fan_out each, no-op tasks, from submission until all jobs are completed
  jobs    jobs of three steps, submitted at once
and samples what the sessions of PostgreSQL wait for. The CPU time of PostgreSQL, orchestrators and workers shows
what limits the rate: the machine, if all cores are used; otherwise the event that the sessions wait for.

    python bench/capacity.py --orchestrators 1,3,10 --workers 4,50,200
"""

import argparse
import asyncio
import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

import ours
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.local import embedded
from server import Server, Spent, private_server
from simulated_workers import simulated_workers

DATABASE = "capacity"
FANS = 10
SAMPLE_SECONDS = 0.1
ACTIVE = """
    SELECT coalesce(wait_event_type || ':' || wait_event, 'CPU') AS waits_for, count(*) AS sessions
      FROM pg_stat_activity
     WHERE datname = %s AND state = 'active' AND pid <> pg_backend_pid()
     GROUP BY 1
"""
SESSIONS = "SELECT count(*) AS connections FROM pg_stat_activity WHERE datname = %s"


@dataclass
class Samples:
    """What active sessions waited for, and the most connections at one time."""

    waits: Counter[str] = field(default_factory=Counter)
    count: int = 0
    connections: int = 0

    def shares(self) -> dict[str, float]:
        """The average number of active sessions for each of the four most frequent wait events."""
        return {name: round(times / max(1, self.count), 2) for name, times in self.waits.most_common(4)}


@contextmanager
def sampled(server: Server) -> Iterator[Samples]:
    samples, is_over = Samples(), threading.Event()

    def sample() -> None:
        dsn = server.cluster.dsn_of("postgres")
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
            while not is_over.wait(SAMPLE_SECONDS):
                active = connection.execute(ACTIVE, [DATABASE]).fetchall()
                samples.waits.update({row["waits_for"]: row["sessions"] for row in active})
                (row,) = connection.execute(SESSIONS, [DATABASE]).fetchall()
                samples.connections = max(samples.connections, row["connections"])
                samples.count += 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


async def main() -> None:
    options = _options()
    # Each simulated worker has the connections of a real one.
    embedded._SETTINGS["max_connections"] = str(200 + 8 * max(options.workers) + 20 * max(options.orchestrators))
    rows = []
    with private_server() as server:
        for orchestrators in options.orchestrators:
            for workers in options.workers:
                rows.append(await measured(server, orchestrators, workers, options))
                print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orchestrators", type=_numbers, default=[1, 3])
    parser.add_argument("--workers", type=_numbers, default=[4, 50])
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


async def measured(server: Server, orchestrators: int, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    ours.new_database(server, DATABASE)
    dsn = server.cluster.dsn_of(DATABASE)
    try:
        with ours.roles(dsn, orchestrators, 0, api=False) as pids, simulated_workers(dsn, workers) as simulated:
            async with connected(dsn, pids | simulated) as platform:
                await platform.run("chain1")
                await platform.run("fan", jobs=FANS, count=20)
                await _wait_for_workers(platform, workers)
                tasks = await _rate(server, platform, options.tasks, "fan", jobs=FANS, count=options.tasks // FANS)
                jobs = await _rate(server, platform, options.jobs, f"chain{ours.JOB_STEPS}", jobs=options.jobs)
    finally:
        server.drop(DATABASE)
    return {"orchestrators": orchestrators, "workers": workers, "tasks": tasks, "jobs": jobs}


@asynccontextmanager
async def connected(dsn: str, pids: dict[str, int]) -> AsyncIterator[ours.Platform]:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    notifier = PostgresNotifier(dsn)
    ledger = PostgresLedger(dsn, "bench", notifier)
    notifier.start()
    try:
        yield ours.Platform(dsn, ledger, notifier, connection, pids, database=DATABASE)
    finally:
        for close in (notifier.close, ledger.close, connection.close):
            with contextlib.suppress(psycopg.Error):
                await close()


async def _wait_for_workers(platform: ours.Platform, count: int) -> None:
    await platform.until("SELECT count(*) >= %s /* bench query */ FROM dagapp.workers", count)


async def _rate(server: Server, platform: ours.Platform, units: int, workflow: str, **inputs: Any) -> dict[str, Any]:
    with server.metered(DATABASE, platform.pids) as spent, sampled(server) as samples:
        started = time.perf_counter()
        await platform.run(workflow, **inputs)
        seconds = time.perf_counter() - started
    return {
        "per second": round(units / seconds, 1),
        "seconds": round(seconds, 2),
        "connections": samples.connections,
        **_cores(spent, seconds),
        "commits per unit": round(spent.commits / units, 3),
        "WAL bytes per unit": round(spent.wal_bytes / units),
        "PostgreSQL CPU ms per unit": round(1000 * spent.postgres_seconds / units, 3),
        "active sessions": samples.shares(),
        "slowest statements": [
            [statement.query.split("\n")[0][:60], round(statement.milliseconds)] for statement in spent.top[:3]
        ],
    }


def _cores(spent: Spent, seconds: float) -> dict[str, float]:
    kinds = {"orchestrators": "orchestrator", "workers": "workers"}
    used = {
        name: sum(value for process, value in spent.process_seconds.items() if process.startswith(prefix)) / seconds
        for name, prefix in kinds.items()
    }
    used["PostgreSQL"] = spent.postgres_seconds / seconds
    return {f"cores of {name}": round(value, 2) for name, value in used.items()}


if __name__ == "__main__":
    asyncio.run(main())
