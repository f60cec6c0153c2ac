"""`make soak`: constant load with retention, for an hour or as long as `--minutes` says, to detect growth.

Measured every minute: memory and open files of each role (orchestrators, workers and the map server) and the memory of
the largest child process of each, dead rows and the size of all tables and indexes, how long a task waited for a worker
(claim), and how long a job waited for its next step after a result (step). Samples begin when retention deletes as many
jobs as are created; the medians of the first and the last third are compared.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from chaos.__main__ import run
from chaos.load import JobRequests, Load
from chaos.maps import MapClients, start_map_server
from chaos.testbed import AS_IT_SHIPS, Testbed, cancel_all, running_testbed
from dagmaster.database.maintenance.history import verify
from dagmaster.observe import log

DAY_SECONDS = 86_400
SAMPLES_AT_LEAST = 24
LATENCIES = """
    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) * 1000,
           percentile_cont(0.99) WITHIN GROUP (ORDER BY seconds) * 1000
      FROM ({}) AS waits"""
CLAIMS = """
    SELECT extract(epoch FROM started_at - available_at) AS seconds FROM dagapp.dag_tasks
     WHERE started_at > dagapp.clock() - make_interval(secs => %(window)s)"""
STEPS = """
    SELECT extract(epoch FROM n.dispatched_at - r.reported_at) AS seconds
      FROM dagapp.dag_jobs j
      JOIN dagapp.dag_task_results r USING (job_id)
      JOIN dagapp.dag_node_states n
        ON n.job_id = j.job_id AND n.node_id = 's' || (substr(r.node_id, 2)::int + 1)
     WHERE j.workflow_id = 'chaos_chain6' AND r.reported_at > dagapp.clock() - make_interval(secs => %(window)s)
       AND r.node_id ~ '^s[0-9]+$' AND n.dispatched_at IS NOT NULL"""
DEAD = "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE schemaname = 'dagapp'"
SIZES = """
    SELECT sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind IN ('r', 't'))::bigint / 1048576.0,
           sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind = 'i')::bigint / 1048576.0
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'dagapp'"""
JOBS = "SELECT count(*) FROM dagapp.dag_jobs"


@dataclass(frozen=True)
class Allowance:
    """The growth that is allowed: by the factor `times` or by the amount `plus`, whichever is more."""

    times: float
    plus: float


ALLOWANCES = {
    "MB": Allowance(1.2, 15),
    "files": Allowance(1.2, 8),
    "dead rows": Allowance(1.5, 10_000),
    "table MB": Allowance(1.3, 20),
    "index MB": Allowance(1.3, 20),
    "jobs kept": Allowance(1.3, 100),
    "claim p50 ms": Allowance(1.5, 20),
    "claim p99 ms": Allowance(2, 200),
    "step p50 ms": Allowance(1.5, 20),
    "step p99 ms": Allowance(2, 200),
}


@dataclass(frozen=True)
class Trend:
    name: str
    first: float
    last: float

    @property
    def is_flat(self) -> bool:
        allowed = next(what for end, what in ALLOWANCES.items() if self.name.endswith(end))
        return self.last <= max(self.first * allowed.times, self.first + allowed.plus)


def trends(samples: Sequence[dict[str, float]]) -> list[Trend]:
    """The medians of the first and of the last third of the samples, for each figure."""
    third = max(1, len(samples) // 3)
    names = list(samples[-1])

    def middle(part: Sequence[dict[str, float]], name: str) -> float:
        return statistics.median([sample[name] for sample in part if name in sample])

    return [Trend(name, middle(samples[:third], name), middle(samples[-third:], name)) for name in names]


@dataclass
class Soak:
    testbed: Testbed
    window: float
    samples: list[dict[str, float]] = field(default_factory=list)

    async def sample(self) -> None:
        sample = {}
        for process in self.testbed.fleet.processes:
            sample[f"{process.name} MB"] = resident_megabytes(process.pid)
            sample[f"{process.name} largest child MB"] = max(
                map(resident_megabytes, descendants(process.pid)), default=0.0
            )
            sample[f"{process.name} files"] = float(len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
        sample |= await self._of_database()
        self.samples.append(sample)

    async def _of_database(self) -> dict[str, float]:
        async with await psycopg.AsyncConnection.connect(self.testbed.fleet.dsn, autocommit=True) as connection:

            async def row(query: Any) -> tuple[Any, ...]:
                fetched = await (await connection.execute(query, {"window": self.window})).fetchone()
                return fetched or ()

            (dead,), (jobs,), (tables, indexes) = await row(DEAD), await row(JOBS), await row(SIZES)
            claim, step = await row(LATENCIES.format(CLAIMS)), await row(LATENCIES.format(STEPS))
        values = {"dead rows": dead, "table MB": tables, "index MB": indexes, "jobs kept": jobs}
        values |= {"claim p50 ms": claim[0], "claim p99 ms": claim[1], "step p50 ms": step[0], "step p99 ms": step[1]}
        return {name: float(value) for name, value in values.items() if value is not None}

    def line(self) -> str:
        now = self.samples[-1]
        roles = [f"{process.name} MB" for process in self.testbed.fleet.processes]
        largest = " ".join(f"{now[name]:.0f}" for name in roles)
        numbers = "  ".join(f"{name} {now.get(name, 0):,.0f}" for name in ALLOWANCES if name not in ("MB", "files"))
        return f"roles {largest} MB  {numbers}"


def resident_megabytes(pid: int) -> float:
    """The resident memory of a process; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    match = re.search(r"VmRSS:\s+(\d+)", status)
    return int(match[1]) / 1024 if match else 0.0


def descendants(pid: int) -> list[int]:
    """The child processes of a process, and their child processes."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [each for child in children for each in (child, *descendants(child))]


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=60, help="tasks per second")
    parser.add_argument("--orchestrators", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--map-rate", type=float, default=10, help="requests per second to the map server; 0: none")
    parser.add_argument("--seed", type=int, help="seed of the load; by default a random one")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    return parser.parse_args(arguments)


async def main(arguments: argparse.Namespace) -> int:
    log.configure("error")
    seconds = arguments.minutes * 60
    window = min(60.0, seconds / SAMPLES_AT_LEAST)
    kept = min(120.0, seconds / 8)
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    settings = AS_IT_SHIPS | {"retention_days": kept / DAY_SECONDS, "janitor_interval_sec": max(2.0, kept / 12)}
    print(f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, default durability")
    async with running_testbed(
        settings,
        orchestrators=arguments.orchestrators,
        workers=arguments.workers,
        has_catalog=arguments.map_rate > 0,
        has_audit=False,
    ) as testbed:
        print(f"steady load for {arguments.minutes:g} minutes; jobs are kept for {kept:.0f} s; seed {seed}", flush=True)
        soak = Soak(testbed, window)
        load = _load(testbed, JobRequests(seed, testbed.folder / "effects"), arguments.rate)
        streams = [load.stream()]
        if arguments.map_rate:
            maps = MapClients(await start_map_server(testbed), arguments.map_rate, seed)
            streams.append(maps.stream())
        await _soaked(soak, streams, lambda: f"{len(load.acknowledged):6,} jobs", seconds, 2 * kept)
        report = await verify(testbed.fleet.dsn)
    trend_list = trends(soak.samples)
    print(report_text(trend_list, len(load.acknowledged), len(report.findings)))
    if arguments.map_rate:
        print(f"{maps.expected:,} expected responses of the map server; unexpected ones: {dict(maps.unexpected) or 0}")
    if arguments.json:
        arguments.json.write_text(json.dumps(soak.samples, indent=2))
    has_unexpected_responses = bool(arguments.map_rate and maps.unexpected)
    return 0 if all(trend.is_flat for trend in trend_list) and report.is_clean and not has_unexpected_responses else 1


def _load(testbed: Testbed, requests: JobRequests, rate: float) -> Load:
    folder = testbed.folder
    return Load(testbed.submitter, folder / "storage", folder / "submitted", requests, rate, 1500, has_rasters=False)


async def _soaked(
    soak: Soak,
    streams: Iterable[Coroutine[Any, Any, None]],
    describe: Callable[[], str],
    seconds: float,
    warm_up: float,
) -> None:
    """Samples are taken once retention deletes as many jobs as are created."""
    streaming = [asyncio.create_task(stream) for stream in streams]
    started = time.monotonic()
    try:
        while (passed := time.monotonic() - started) < seconds:
            ended, _ = await asyncio.wait(streaming, timeout=soak.window, return_when=asyncio.FIRST_COMPLETED)
            for stream in ended:
                await stream
            if passed < warm_up:
                continue
            await soak.sample()
            print(f"{time.monotonic() - started:5.0f} s  {describe()}  {soak.line()}", flush=True)
    finally:
        await cancel_all(streaming)


def report_text(trend_list: Sequence[Trend], jobs: int, findings: int) -> str:
    lines = [f"\n{'figure':34}{'first':>12}{'last':>12}"]
    lines += [
        f"{trend.name:34}{trend.first:12,.1f}{trend.last:12,.1f}{'' if trend.is_flat else '  GROWS'}"
        for trend in trend_list
    ]
    growing = [trend.name for trend in trend_list if not trend.is_flat]
    verdict = f"BAD: these grow: {', '.join(growing)}" if growing else "good: nothing grows"
    lines.append(f"\n{verdict}; {jobs:,} jobs, {findings} findings of verify-history")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run(main(parsed(sys.argv[1:]))))
