"""One run: load and faults for a while, then a time without faults, then a check of everything that was written."""

import asyncio
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.engine.processes import END_STATES

from chaos import audit
from chaos.effects import Effects
from chaos.figures import ChaosOutcome, recoveries
from chaos.load import Acknowledged, JobRequests, Load
from chaos.nemesis import BROKER_FAULT_COUNTS, FAULT_COUNTS, Nemesis, draw, moments
from chaos.testbed import FAST_PROFILE, Testbed, cancel_all, running_testbed
from dagmaster.orchestrator.owned import FENCED

PRINT_SECONDS = 5.0
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    seed: int
    seconds: float = 400.0
    faults: int = 115
    wanted_faults: int = 100
    wanted_attempts: int = 20_000
    only: tuple[str, ...] = ()
    orchestrators: int = 3
    workers: int = 4
    tasks_per_second: float = 75.0
    step_seconds: tuple[float, ...] = (0, 0.2, 1, 3)  # of chains; longer steps keep more jobs active
    has_rasters: bool = True
    transport: str = "postgres"
    quiet_seconds: float = 120.0  # the bound within which everything must have ended
    max_losses: int = 5
    logs: Path | None = None  # where the roles' logs are kept

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **FAST_PROFILE,
            "max_losses": self.max_losses,
            "janitor_interval_sec": 10,
            "worker_processes": 2,
        }


@dataclass
class OpenWork:
    """Numbers of attempts, open tasks and open jobs, sampled during the run."""

    attempts: int = 0
    open_tasks: int = 0
    open_jobs: int = 0


async def run_chaos(options: Options) -> ChaosOutcome:
    started = time.monotonic()
    async with running_testbed(
        options.settings,
        orchestrators=options.orchestrators,
        workers=options.workers,
        has_catalog=options.has_rasters,
        has_broker=options.transport == "servicebus",
    ) as testbed:
        print(
            f"{options.orchestrators} orchestrators and {options.workers} workers run; seed {options.seed}", flush=True
        )
        try:
            outcome = await ChaosRun(testbed, options, started).execute()
        finally:
            if options.logs:
                _keep_logs(testbed, options.logs)
    outcome.seconds = time.monotonic() - started
    return outcome


def _keep_logs(testbed: Testbed, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for process in testbed.fleet.processes:
        shutil.copy(process.log, folder)
    shutil.copy(testbed.cluster.log, folder)


class ChaosRun:
    def __init__(self, testbed: Testbed, options: Options, started: float) -> None:
        self.testbed, self.options, self.started = testbed, options, started
        self.effects = testbed.folder / "effects"
        self.open_work = OpenWork()
        self.load = Load(
            testbed.submitter,
            testbed.folder / "storage",
            testbed.folder / "submitted",
            JobRequests(options.seed, self.effects, step_seconds=options.step_seconds),
            options.tasks_per_second,
            max_open_tasks=1500,
            has_rasters=options.has_rasters,
            open_tasks=lambda: self.open_work.open_tasks,
        )
        self.nemesis = Nemesis(testbed, self.load, self.effects, options.seed, options.settings)

    async def execute(self) -> ChaosOutcome:
        watching = [asyncio.create_task(self._keep_sampling()), asyncio.create_task(self._print_progress())]
        streaming = asyncio.create_task(self.load.stream())
        try:
            await self._faults(streaming)
            faults_ended_at = time.monotonic()
            restarting = asyncio.create_task(self.nemesis.restart_ended())
            ended = await self._quiet()
            quiet_seconds = time.monotonic() - faults_ended_at if ended else None
            await cancel_all([restarting])
        finally:
            await cancel_all([streaming, *watching])
        print("checking everything that was written …", flush=True)
        return await self._judge(quiet_seconds)

    async def _faults(self, streaming: asyncio.Task[None]) -> None:
        options = self.options
        counts = FAULT_COUNTS | BROKER_FAULT_COUNTS if options.transport == "servicebus" else FAULT_COUNTS
        kinds = draw(options.seed, options.faults, options.only, counts)
        injecting = asyncio.create_task(self.nemesis.run(kinds, moments(options.seed, options.faults, options.seconds)))
        await asyncio.wait([injecting, streaming], return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            injecting.cancel()
            await streaming
        await injecting
        await self.nemesis.stop()
        await cancel_all([streaming])

    async def _quiet(self) -> bool:
        deadline = time.monotonic() + self.options.quiet_seconds
        while time.monotonic() < deadline:
            with suppress(psycopg.Error):
                await self._sample()
                if not self.open_work.open_jobs:
                    return True
            await asyncio.sleep(SAMPLE_SECONDS)
        return False

    # Watching

    async def _sample(self) -> None:
        (row,) = await self.testbed.fleet.rows("""
            SELECT (SELECT count(*) FROM dagapp.dag_tasks) AS attempts,
                   (SELECT count(*) FROM dagapp.dag_tasks WHERE status IN ('queued', 'running')) AS open_tasks,
                   (SELECT count(*) FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')) AS open_jobs""")
        self.open_work = OpenWork(**row)

    async def _keep_sampling(self) -> None:
        while True:
            with suppress(psycopg.Error):  # the server is down: keep the last sample
                await self._sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _print_progress(self) -> None:
        attempts = 0
        while True:
            await asyncio.sleep(PRINT_SECONDS)
            open_work = self.open_work
            rate = (open_work.attempts - attempts) / PRINT_SECONDS
            attempts = open_work.attempts
            print(
                f"{time.monotonic() - self.started:4.0f} s  {len(self.nemesis.faults):3} faults  {attempts:6,} attempts"
                f"  {rate:4.0f}/s  {len(self.load.acknowledged):5,} jobs, {open_work.open_jobs:3} open"
                f"  last: {self.nemesis.last}",
                flush=True,
            )

    # The end

    async def _judge(self, quiet_seconds: float | None) -> ChaosOutcome:
        options, nemesis = self.options, self.nemesis
        effects = Effects.read(self.effects)
        findings, report = await audit.examine(self.testbed.fleet.dsn, effects, options.max_losses)
        rows = await self.testbed.fleet.rows(
            "SELECT job_id, idempotency_key, status, result_data, error_message FROM dagapp.dag_jobs"
        )
        jobs = {row["job_id"]: row for row in rows}
        (late,) = await self.testbed.fleet.rows("SELECT count(*) AS n FROM chaos.results WHERE NOT accepted")
        acknowledged = list(self.load.acknowledged.values())
        return ChaosOutcome(
            seed=options.seed,
            quiet_seconds=quiet_seconds,
            recoveries=recoveries((fault.kind, fault.recovery_seconds) for fault in nemesis.faults),
            faults=len(nemesis.faults),
            log=[
                (fault.kind, fault.victim, round(fault.started - self.started, 2), fault.recovery_seconds)
                for fault in nemesis.faults
            ],
            jobs=Counter(each.request.kind for each in acknowledged),
            ends=Counter(row["status"] for row in rows),
            attempts=report.tasks_checked,
            executions=sum(effects.executed.values()),
            done_again=effects.done_again(),
            fenced=self.testbed.fleet.count_logged(FENCED),
            late_reports=late["n"],
            resets_at_commit=sum(link.counts.resets_at_commit for link in self.testbed.proxy.links.values()),
            events=report.events_checked,
            wanted_faults=options.wanted_faults,
            wanted_attempts=options.wanted_attempts,
            zeros={
                "jobs lost": _lost(acknowledged, jobs),
                "tasks lost": findings.tasks_lost,
                "duplicate published effects": findings.duplicate_effects
                + await self._doubled_tiles(acknowledged, jobs),
                "stale writes accepted": findings.stale_writes,
                "findings of verify-history": findings.history,
                "jobs with an unexpected outcome": [
                    wrong for each in acknowledged if (wrong := _wrong(each, jobs.get(each.job_id)))
                ],
                "roles that ended by themselves": nemesis.unexpected_ends,
                "faults not injected correctly": nemesis.broken,
            },
        )

    async def _doubled_tiles(self, acknowledged: list[Acknowledged], jobs: dict[Any, Any]) -> list[Any]:
        """A dataset must have as many files and STAC items as tiles."""
        wrong = []
        for each in acknowledged:
            if each.request.kind != "raster" or jobs[each.job_id]["status"] != "completed":
                continue
            result = jobs[each.job_id]["result_data"]
            name, tiles = result["dataset_id"], result["total_tiles"]
            files = len(list(self._silver(name).glob("*.tif")))
            count = "SELECT count(*) AS n FROM dagapp.stac_documents WHERE dataset_id = %s AND document_id <> ''"
            (items,) = await self.testbed.fleet.rows(count, name)
            if not tiles == files == items["n"]:
                wrong.append({"dataset": name, "tiles": tiles, "files": files, "items": items["n"]})
        return wrong

    def _silver(self, dataset: str) -> Path:
        return self.testbed.folder / "storage" / "silver" / "silver" / "cogs" / dataset / "v0" / "r1"


def _lost(acknowledged: list[Acknowledged], jobs: dict[Any, dict[str, Any]]) -> list[Any]:
    """Acknowledged jobs that do not exist, exist twice, or never ended."""
    keys = Counter(row["idempotency_key"] for row in jobs.values())
    lost = [{"job": str(each.job_id), "is": "missing"} for each in acknowledged if each.job_id not in jobs]
    twice = [{"key": key, "jobs": count} for key, count in keys.items() if count > 1]
    stuck = [
        {"job": str(job_id), "is": row["status"]} for job_id, row in jobs.items() if row["status"] not in END_STATES
    ]
    return [*lost, *twice, *stuck]


def _wrong(each: Acknowledged, job: dict[str, Any] | None) -> dict[str, Any] | None:
    if job is None or job["status"] not in END_STATES:
        return None  # lost, and reported as lost
    facts = {"job": str(each.job_id), "kind": each.request.kind, "is": job["status"], "error": job["error_message"]}
    if job["status"] not in each.request.ends:
        return facts
    if job["status"] == "completed" and each.request.result is not None:
        value = (job["result_data"] or {}).get("value")
        return None if value == each.request.result else {**facts, "result": value, "expected": each.request.result}
    return None
