"""Recovery times, measured for one fault at a time, with default settings and with those of `dagmaster up`.

orchestrator killed     from the kill until another owner has written to each of its jobs
worker killed           from the kill until each task that it ran has ended elsewhere
orchestrator stopped    from SIGTERM until another owner has written to each of its jobs
PostgreSQL killed       from the moment it responds again until any process has written to a job
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from tests.engine.processes import Process

from chaos.figures import percentile
from chaos.testbed import AS_IT_SHIPS, FAST_PROFILE, Testbed, running_testbed, scalar
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.history import verify
from dagmaster.errors import Conflict
from dagmaster.operations.cancel import cancel

ORCHESTRATORS, WORKERS = 3, 3
JOBS = 30
STEPS = """
    workflow_id: steps
    nodes:
      start: {type: start, next: split}
      split:
        type: fan_out
        source: "{{ range_items }}"
        max_parallel: 1
        task: {handler: sleep, params: {seconds: 0.5}}
        next: join
      join: {type: fan_in, next: end}
      end: {type: end}
    """
LONG = """
    workflow_id: long_once
    nodes:
      start: {type: start, next: work}
      work: {handler: chaos.long_once, next: end}
      end: {type: end}
    """
BOUNDS = {
    "default": {
        "orchestrator killed": 80.0,
        "worker killed": 75.0,
        "orchestrator stopped": 2.0,
        "PostgreSQL killed": 10.0,
    },
    "fast": {
        "orchestrator killed": 10.0,
        "worker killed": 10.0,
        "orchestrator stopped": 2.0,
        "PostgreSQL killed": 10.0,
    },
}
PROFILES = {"fast": FAST_PROFILE, "default": AS_IT_SHIPS}


def steps(count: int = 1000) -> str:
    """A long job of short steps: its owner has to act after each of them."""
    return STEPS.replace('"{{ range_items }}"', str(list(range(count))))


@dataclass
class Measured:
    """`shares` has the number of jobs of each orchestrator after all were claimed."""

    profile: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    shares: list[int] = field(default_factory=list)
    findings: int = 0

    def problems(self) -> list[str]:
        problems = [
            f"{self.profile}: {what}: {max(self.seconds[what]):.1f} s, more than {bound:g} s"
            for what, bound in BOUNDS[self.profile].items()
            if max(self.seconds[what]) > bound
        ]
        if max(self.shares) - min(self.shares) > 1:
            problems.append(f"{self.profile}: jobs are spread unevenly: {self.shares}")
        if self.findings:
            problems.append(f"{self.profile}: {self.findings} findings of verify-history")
        return problems


async def measure(times: int) -> list[Measured]:
    results = []
    for name, settings in PROFILES.items():
        async with running_testbed(settings, orchestrators=ORCHESTRATORS, workers=WORKERS) as testbed:
            print(f"{name}: {ORCHESTRATORS} orchestrators and {WORKERS} workers run", flush=True)
            results.append(await _Trial(testbed, name).run(times))
    return results


class _Trial:
    def __init__(self, testbed: Testbed, profile: str) -> None:
        self.testbed, self.fleet = testbed, testbed.fleet
        self.measured = Measured(profile, {what: [] for what in BOUNDS[profile]})

    async def run(self, times: int) -> Measured:
        self.jobs = await self.fleet.submit(steps(), JOBS)
        self.measured.shares = await self._shares()
        for _ in range(times):
            await self._keep("orchestrator stopped", self._orchestrator(Process.signal, signal.SIGTERM))
            await self._keep("PostgreSQL killed", self._postgres())
            await self._keep("orchestrator killed", self._orchestrator(Process.signal, signal.SIGKILL))
            await self._keep("worker killed", self._worker())
        report = await verify(self.fleet.dsn)
        self.measured.findings = len(report.findings)
        return self.measured

    async def _keep(self, what: str, measuring: Awaitable[float]) -> None:
        seconds = await measuring
        self.measured.seconds[what].append(seconds)
        print(f"  {what:22}{seconds:8.2f} s", flush=True)

    async def _shares(self) -> list[int]:
        async def all_claimed() -> list[int]:
            rows = await self.fleet.rows("SELECT owner_id FROM dagapp.dag_jobs WHERE owner_id IS NOT NULL")
            return sorted(Counter(row["owner_id"] for row in rows).values()) if len(rows) == JOBS else []

        shares: list[int] = await self.fleet.until(all_claimed, 30, "all jobs to be claimed")
        return shares

    async def _orchestrator(self, act: Callable[..., None], which: signal.Signals) -> float:
        victim, jobs = await self._busiest()
        started = time.monotonic()
        act(victim, which)
        await self._until(lambda: self._written_by_others(jobs), 120)
        seconds = time.monotonic() - started
        await victim.ended(60)
        victim.start()
        await self.fleet.ready([victim], 60)
        return seconds

    async def _busiest(self) -> tuple[Process, list[tuple[UUID, int]]]:
        rows = await self.fleet.until(self._owners, 60, "all jobs to have owners")
        (victim,) = [process for process in self.fleet.processes if process.pid == rows[0]["pid"]]
        return victim, list(zip(rows[0]["jobs"], rows[0]["epochs"], strict=True))

    async def _owners(self) -> list[dict[str, Any]]:
        """The owners of the jobs, the busiest first; empty until each job has an owner."""
        rows = await self.fleet.rows(
            """SELECT o.pid, array_agg(j.job_id) AS jobs, array_agg(j.epoch) AS epochs
                 FROM dagapp.dag_jobs j JOIN dagapp.orchestrators o USING (owner_id)
                WHERE j.status = 'running' AND j.job_id = ANY (%s) GROUP BY 1 ORDER BY count(*) DESC""",
            self.jobs,
        )
        return rows if sum(len(row["jobs"]) for row in rows) == len(self.jobs) else []

    async def _written_by_others(self, jobs: list[tuple[UUID, int]]) -> bool:
        left = await scalar(
            self.fleet.dsn,
            """SELECT count(*) FROM unnest(%s::uuid[], %s::bigint[]) AS was (job_id, epoch)
                WHERE NOT EXISTS (SELECT 1 FROM dagapp.dag_job_events e
                                   WHERE e.job_id = was.job_id AND e.epoch > was.epoch)""",
            [job for job, _ in jobs],
            [epoch for _, epoch in jobs],
        )
        return int(left) == 0

    async def _worker(self) -> float:
        """Kill a worker whose tasks would run for an hour; their next attempts take no time."""
        jobs = await self.fleet.submit(LONG, 3 * WORKERS)
        pid, tasks = await self.fleet.until(lambda: self._busiest_worker(jobs), 60, "tasks to run")
        (victim,) = [process for process in self.fleet.processes if process.pid == pid]
        started = time.monotonic()
        victim.kill()
        await self._until(lambda: self._have_ended(tasks), 120)
        seconds = time.monotonic() - started
        victim.start()
        await self.fleet.ready([victim], 60)
        await self._cancel(jobs)
        return seconds

    async def _busiest_worker(self, jobs: list[UUID]) -> tuple[int, list[UUID]] | None:
        """The busiest worker; None until all jobs run."""
        rows = await self.fleet.rows(
            """SELECT w.pid, array_agg(t.job_id) AS jobs FROM dagapp.dag_tasks t JOIN dagapp.workers w USING (worker_id)
                WHERE t.status = 'running' AND t.job_id = ANY (%s) GROUP BY 1 ORDER BY count(*) DESC""",
            jobs,
        )
        return (rows[0]["pid"], rows[0]["jobs"]) if sum(len(row["jobs"]) for row in rows) == len(jobs) else None

    async def _have_ended(self, jobs: list[UUID]) -> bool:
        left = "SELECT count(*) FROM dagapp.dag_jobs WHERE job_id = ANY (%s) AND status IN ('pending', 'running')"
        return int(await scalar(self.fleet.dsn, left, jobs)) == 0

    async def _cancel(self, jobs: list[UUID]) -> None:
        ledger = PostgresLedger(self.fleet.dsn, "chaos")
        for job_id in jobs:
            with suppress(Conflict):
                await cancel(ledger, job_id)
        await ledger.close()
        await self.fleet.wait(jobs, 60)

    async def _postgres(self) -> float:
        self.testbed.kill_server()
        self.testbed.cluster.start()
        started = time.monotonic()
        since = await scalar(self.fleet.dsn, "SELECT clock_timestamp()")
        query = "SELECT EXISTS (SELECT 1 FROM chaos.events WHERE at > %s)"
        await self._until(lambda: scalar(self.fleet.dsn, query, since), 120)
        return time.monotonic() - started

    async def _until(self, check: Callable[[], Awaitable[Any]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if await check():
                    return
            except psycopg.OperationalError:
                pass
            await asyncio.sleep(0.02)


def report_text(all_measured: list[Measured]) -> str:
    lines = [f"\n{'settings':14}{'recovery from':24}{'times':>6}{'p50':>9}{'worst':>9}{'bound':>9}"]
    for measured in all_measured:
        for what, bound in BOUNDS[measured.profile].items():
            times = measured.seconds[what]
            row = f"{measured.profile:14}{what:24}{len(times):6}{percentile(times, 0.5):7.2f} s{max(times):7.2f} s"
            lines.append(f"{row}{bound:7.0f} s")
        lines.append(f"{measured.profile:14}{'jobs of each orchestrator':24} {', '.join(map(str, measured.shares))}")
    problems = [problem for measured in all_measured for problem in measured.problems()]
    lines.append(f"\n{'BAD' if problems else 'good'}: {'; '.join(problems) or 'all times are within their bounds'}")
    return "\n".join(lines)
