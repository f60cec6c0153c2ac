"""A day of jobs in a few minutes, with retention.

Jobs arrive along the curve of a working day: few at night, many in the morning and in the afternoon. Each has a fan_out
of 100 tasks. Time is compressed: with `--minutes 2`, a minute of the run is twelve hours of the day. `--tasks` is the
number of tasks in the run; the rates in the run are those of a day with 1440 / minutes times as many tasks. Finished
jobs are deleted after a third of the day. The sizing guide uses the figures per task.

    python bench/simulated_day.py --tasks 20000 --minutes 2
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import ours
from capacity import DATABASE, connected, sampled
from server import Server, private_server
from simulated_workers import simulated_workers

# Share of the jobs in each hour, in percent.
CURVE = (1, 1, 1, 1, 1, 2, 3, 5, 7, 9, 9, 8, 6, 7, 8, 8, 7, 5, 3, 2, 2, 2, 1, 1)
CHILDREN = 100
KEPT_SHARE = 1 / 3
SIZE = "SELECT pg_database_size(current_database()), (SELECT count(*) FROM dagapp.dag_jobs) /* bench query */"
LATENCIES = """
    SELECT job_id, extract(epoch FROM completed_at - created_at)::float /* bench query */
      FROM dagapp.dag_jobs
     WHERE completed_at IS NOT NULL
"""
BACKLOG = "SELECT count(*) /* bench query */ FROM dagapp.dag_tasks WHERE status = 'queued'"


async def main() -> None:
    options = _options()
    day_seconds = 60 * options.minutes
    environment = {
        "RETENTION_DAYS": str(KEPT_SHARE * day_seconds / 86_400),
        "JANITOR_INTERVAL_SEC": str(max(1.0, day_seconds / 60)),
        "TIDY_ENABLED": "false",
    }
    os.environ |= environment
    with private_server() as server:
        figures = await simulated(server, day_seconds, options)
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--orchestrators", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


async def simulated(server: Server, day_seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    ours.new_database(server, DATABASE)
    dsn = server.cluster.dsn_of(DATABASE)
    with (
        ours.roles(dsn, options.orchestrators, 0, api=False) as pids,
        simulated_workers(dsn, options.workers) as workers,
    ):
        async with connected(dsn, pids | workers) as platform:
            await platform.run("fan", count=CHILDREN)
            with server.metered(DATABASE, platform.pids) as spent, sampled(server) as samples:
                started = time.perf_counter()
                observer = Observer(platform, day_seconds)
                observing = asyncio.create_task(observer.run())
                submitted = await _submit_the_day(platform, day_seconds, options.tasks // CHILDREN)
                await platform.until("SELECT count(*) = 0 FROM dagapp.dag_jobs WHERE completed_at IS NULL")
                seconds = time.perf_counter() - started
                observing.cancel()
    tasks = submitted * (CHILDREN + 1)
    process_seconds = spent.process_seconds.items()
    orchestrators = sum(value for name, value in process_seconds if name.startswith("orchestrator"))
    return {
        "tasks": tasks,
        "jobs": submitted,
        "seconds": round(seconds, 1),
        "tasks of a day at these rates": round(tasks * 86_400 / day_seconds),
        "connections": samples.connections,
        "CPU ms per task": {
            "PostgreSQL": round(1000 * spent.postgres_seconds / tasks, 3),
            "orchestrators": round(1000 * orchestrators / tasks, 3),
            "workers": round(1000 * (sum(spent.process_seconds.values()) - orchestrators) / tasks, 3),
        },
        "WAL bytes per task": round(spent.wal_bytes / tasks),
        **observer.figures(),
    }


async def _submit_the_day(platform: ours.Platform, day_seconds: float, jobs: int) -> int:
    """Submit jobs along the curve, evenly within each hour."""
    started, submitted = time.perf_counter(), 0
    for hour, percent in enumerate(CURVE):
        count = round(jobs * percent / sum(CURVE))
        for number in range(count):
            due = started + day_seconds * (hour + number / count) / len(CURVE)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await platform.submit("fan", count=CHILDREN)
            submitted += 1
    await asyncio.sleep(max(0.0, started + day_seconds - time.perf_counter()))
    return submitted


class Observer:
    """Size, backlog and latencies over the day. Rows of jobs are read before they are deleted."""

    def __init__(self, platform: ours.Platform, day_seconds: float) -> None:
        self._platform = platform
        self._pause = day_seconds / 48
        self.sizes: list[tuple[int, int]] = []
        self.backlogs: list[int] = []
        self.latencies: dict[UUID, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            size, jobs = await self._platform.row(SIZE)
            self.sizes.append((size, jobs))
            self.backlogs.append((await self._platform.row(BACKLOG))[0])
            rows = await (await self._platform.connection.execute(LATENCIES)).fetchall()
            self.latencies.update(dict(rows))

    def figures(self) -> dict[str, Any]:
        ordered = sorted(self.latencies.values())
        half = len(self.sizes) // 2
        return {
            "most tasks waiting": max(self.backlogs),
            "seconds of a job": {
                "median": round(statistics.median(ordered), 2),
                "95 %": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
            },
            "most jobs kept": max(jobs for _, jobs in self.sizes),
            "jobs kept at the end": self.sizes[-1][1],
            "MB of the database": {
                "at the start": round(self.sizes[0][0] / 1e6, 1),
                "at noon": round(self.sizes[half][0] / 1e6, 1),
                "at the end": round(self.sizes[-1][0] / 1e6, 1),
            },
        }


if __name__ == "__main__":
    asyncio.run(main())
