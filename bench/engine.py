"""How fast the engine is, beside what the same PostgreSQL does by itself in the same run.

Starts a private cluster with default durability, one orchestrator and two workers as they ship, and measures
  W1  prepare, a fan-out of N no-op tasks, a fan-in          W2  a chain of 20 steps
  W3  200 three-step jobs submitted at once                  reference: pgbench, insert + update, 2 clients
Prints figures, ratios and whether each target holds; verify-history runs over everything at the end. Absolute times depend on
the machine: only the ratios are judged.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from dagmaster.database.bell import JOBS
from dagmaster.database.bell_postgres import PostgresBell
from dagmaster.database.deploy import deploy
from dagmaster.database.embedded import Cluster, find_binaries
from dagmaster.database.history import verify
from dagmaster.database.postgres import PostgresLedger
from dagmaster.jobs.model import Submission
from dagmaster.operations.catalog import Catalog
from dagmaster.operations.submit import prepare
from dagmaster.workflows.load import read

CHAINS = 9  # in a row; one takes a fifth of a second, so a single one shows little
FAN_OUT = """
    workflow_id: fan
    inputs: {count: {type: integer, required: true}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: noop, params: {number: "{{ item }}"}}
        next: join
      join: {type: fan_in, next: end}
      end: {type: end}
"""
PGBENCH = """
\\set id random(1, 1000000000)
BEGIN;
INSERT INTO bench_rows (id, value) VALUES (:id, 'x') ON CONFLICT DO NOTHING;
UPDATE bench_rows SET value = 'y' WHERE id = :id;
COMMIT;
"""


def chain(length: int) -> str:
    steps = [f"  s{n}: {{handler: noop, next: {f's{n + 1}' if n < length - 1 else 'end'}}}" for n in range(length)]
    return "\n".join(
        [f"workflow_id: chain{length}", "nodes:", "  start: {type: start, next: s0}", *steps, "  end: {type: end}"]
    )


WORKFLOWS = Catalog(
    {w.workflow_id: w for w in (read(textwrap.dedent(text), "bench") for text in (FAN_OUT, chain(20), chain(3)))}
)


@dataclass(frozen=True)
class Measured:
    """One run of some jobs. Statements, commits and bytes of WAL are the whole server's."""

    seconds: float
    statements: int
    commits: int
    wal_bytes: int
    database_ms: float


@dataclass
class Bench:
    cluster: Cluster
    dsn: str
    ledger: PostgresLedger
    bell: PostgresBell
    connection: psycopg.AsyncConnection[Any]

    async def one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        row = await (await self.connection.execute(sql, values)).fetchone()
        assert row is not None
        return row

    async def run(self, workflow_id: str, jobs: int = 1, **inputs: Any) -> Measured:
        asked = [prepare(WORKFLOWS, Submission(workflow_id=workflow_id, input_params=inputs)) for _ in range(jobs)]
        await asyncio.sleep(1.1)  # the server's statistics of what came before
        await self.connection.execute("SELECT pg_stat_statements_reset()")
        commits, wal = await self._counters()
        began = time.perf_counter()
        ids = await self.ledger.create_jobs(asked)
        self.bell.ring(JOBS)
        looks = await self._wait(ids)
        seconds = time.perf_counter() - began
        await asyncio.sleep(1.1)
        statements, milliseconds = await self.one(
            "SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements WHERE query !~ 'bench look'"
        )
        after = await self._counters()
        return Measured(seconds, int(statements), after[0] - commits - looks, int(after[1] - wal), float(milliseconds))

    async def _counters(self) -> tuple[int, Any]:
        return await self.one(  # type: ignore[return-value]
            "SELECT xact_commit, pg_current_wal_lsn() - '0/0'::pg_lsn FROM pg_stat_database WHERE datname = current_database()"
        )

    async def _wait(self, ids: list[Any]) -> int:
        looks = 0
        while True:
            looks += 1
            (left,) = await self.one(
                "SELECT count(*) /* bench look */ FROM dagapp.dag_jobs WHERE job_id = ANY (%s) AND completed_at IS NULL",
                ids,
            )
            if not left:
                break
            await asyncio.sleep(0.01)
        (good,) = await self.one(
            "SELECT count(*) FROM dagapp.dag_jobs WHERE job_id = ANY (%s) AND status = 'completed'", ids
        )
        if good != len(ids):
            raise SystemExit(f"{len(ids) - good} of {len(ids)} jobs did not complete")
        return looks

    async def chain(self) -> float:
        """Milliseconds from creation to end of one chain by itself, as the server's clock has it."""
        ids = await self.ledger.create_jobs([prepare(WORKFLOWS, Submission(workflow_id="chain20"))])
        self.bell.ring(JOBS)
        await self._wait(ids)
        (milliseconds,) = await self.one(
            "SELECT extract(epoch FROM completed_at - created_at)::float8 * 1000 FROM dagapp.dag_jobs WHERE job_id = ANY (%s)",
            ids,
        )
        return float(milliseconds)

    def pgbench(self, seconds: int) -> float:
        """Transactions per second of two clients, insert + update."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.sql")
            script.write_text(PGBENCH)
            command = [
                find_binaries() / "pgbench",
                "-n",
                "-c",
                "2",
                "-j",
                "2",
                "-T",
                str(seconds),
                "-f",
                script,
                self.dsn,
            ]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"tps = ([0-9.]+)", answer.stdout)
        assert found, answer.stdout
        return float(found[1])


@contextmanager
def roles(dsn: str, workers: int) -> Iterator[dict[str, int]]:
    """One orchestrator and some workers as they ship; yields their pids."""
    environment = {**os.environ, "DATABASE_URL": dsn, "LOG_LEVEL": "warning", "API_ENABLED": "false"}
    names = ["orchestrator", *["worker"] * workers]
    running = [subprocess.Popen([sys.executable, "-m", "dagmaster", name], env=environment) for name in names]
    try:
        yield {f"{name} {n}": process.pid for n, (name, process) in enumerate(zip(names, running, strict=True))}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def peak_megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


@asynccontextmanager
async def bench_of(cluster: Cluster) -> AsyncIterator[Bench]:
    with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
        connection.execute("CREATE DATABASE bench")
    dsn = cluster.dsn_of("bench")
    deploy(dsn)
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    await connection.execute("CREATE TABLE bench_rows (id bigint PRIMARY KEY, value text)")
    ledger, bell = PostgresLedger(dsn, "bench"), PostgresBell(dsn)
    bell.start()
    try:
        yield Bench(cluster, dsn, ledger, bell, connection)
    finally:
        await bell.close()
        await ledger.close()
        await connection.close()


async def measure(bench: Bench, repeat: int, pids: dict[str, int]) -> dict[str, list[float] | float]:
    await bench.run("fan", count=200)  # warm: plans, caches, pages
    figures: dict[str, list[float]] = {}

    def keep(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    for round_ in range(repeat):
        print(f"round {round_ + 1} of {repeat} …", flush=True)
        keep("pgbench tps", bench.pgbench(3))
        small = await bench.run("fan", count=1000)
        large = await bench.run("fan", count=10_000)
        keep("W1 tasks/s N=1,000", 1000 / small.seconds)
        keep("W1 tasks/s N=10,000", 10_000 / large.seconds)
        keep("W1 cost per task, 10,000 / 1,000", (large.seconds / 10_000) / (small.seconds / 1000))
        keep("W1 statements/task N=10,000", large.statements / 10_000)
        keep("W1 commits/task N=10,000", large.commits / 10_000)
        keep("W1 WAL bytes/task N=10,000", large.wal_bytes / 10_000)
        keep("W1 database ms/task N=10,000", large.database_ms / 10_000)
        keep("W2 ms/step", statistics.median([await bench.chain() / 20 for _ in range(CHAINS)]))
        keep("W3 jobs/s", 200 / (await bench.run("chain3", jobs=200)).seconds)
    keep("orchestrator MB", peak_megabytes(next(iter(pids.values()))))
    keep("worker MB", max(peak_megabytes(pid) for name, pid in pids.items() if name.startswith("worker")))
    return dict(figures)


@dataclass(frozen=True)
class Target:
    what: str
    value: float
    limit: float
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def targets(middle: dict[str, float]) -> list[Target]:
    return [
        Target(
            "W1 N=10,000 tasks/s over pgbench tps", middle["W1 tasks/s N=10,000"] / middle["pgbench tps"], 1.0, True
        ),
        Target("W1 cost per task, N=10,000 over N=1,000", middle["W1 cost per task, 10,000 / 1,000"], 1.3, False),
        Target("W1 statements per task", middle["W1 statements/task N=10,000"], 0.3, False),
        Target("W1 commits per task", middle["W1 commits/task N=10,000"], 0.1, False),
        Target("W2 ms per step", middle["W2 ms/step"], 10.0, False),
        Target("W3 jobs/s", middle["W3 jobs/s"], 200.0, True),
        Target("orchestrator MB", middle["orchestrator MB"], 150.0, False),
    ]


def show(figures: dict[str, Any], judged: list[Target]) -> None:
    print(f"\n{'figure':42} {'median':>10} {'lowest':>10} {'highest':>10}")
    for name, values in figures.items():
        print(f"{name:42} {statistics.median(values):10.3f} {min(values):10.3f} {max(values):10.3f}")
    print(f"\n{'target':42} {'measured':>10} {'limit':>10}")
    for target in judged:
        sign = ">=" if target.at_least else "<="
        print(
            f"{target.what:42} {target.value:10.3f} {sign} {target.limit:7.2f}  {'holds' if target.holds else 'MISSED'}"
        )


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    cluster = Cluster.at(None, name=f"bench-{os.getpid()}")
    print(
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, default durability",
        flush=True,
    )
    try:
        cluster.start()
        async with bench_of(cluster) as bench:
            with roles(bench.dsn, arguments.workers) as pids:
                await asyncio.sleep(2)
                figures = await measure(bench, arguments.repeat, pids)
            report = await verify(bench.dsn)
    finally:
        cluster.remove()
    middle = {name: statistics.median(values) for name, values in figures.items()}  # type: ignore[arg-type]
    judged = targets(middle)
    show(figures, judged)
    print(
        f"\nverify-history: {report.jobs_checked} jobs, {report.events_checked} events, {len(report.findings)} findings"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": figures, "targets": [asdict(t) for t in judged]}, indent=2))
    return 0 if all(target.holds for target in judged) and report.is_clean else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
