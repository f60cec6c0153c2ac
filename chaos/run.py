"""One run: load and faults for a while, quiet, then everything is looked at."""

import asyncio
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.engine.processes import ENDS

from chaos import audit
from chaos.effects import Effects
from chaos.figures import Outcome, recoveries
from chaos.load import Acknowledged, Load, Wishes
from chaos.nemesis import BROKER_DECK, DECK, Nemesis, draw, moments
from chaos.stage import FAST_PROFILE, Stage, settle, staged

TELL_SECONDS = 5.0
LOOK_SECONDS = 0.5
FENCED = "fenced: a job is no longer ours"


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
    step_seconds: tuple[float, ...] = (0, 0.2, 1, 3)  # of chains: the longer, the more jobs there are to lose
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
class Pulse:
    """What can be seen from outside while it runs."""

    attempts: int = 0
    open_tasks: int = 0
    open_jobs: int = 0


async def perform(options: Options) -> Outcome:
    began = time.monotonic()
    async with staged(
        options.settings,
        orchestrators=options.orchestrators,
        workers=options.workers,
        has_catalog=options.has_rasters,
        has_broker=options.transport == "servicebus",
    ) as stage:
        print(
            f"{options.orchestrators} orchestrators and {options.workers} workers run; seed {options.seed}", flush=True
        )
        try:
            outcome = await Performance(stage, options, began).play()
        finally:
            if options.logs:
                _keep_logs(stage, options.logs)
    outcome.seconds = time.monotonic() - began
    return outcome


def _keep_logs(stage: Stage, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for process in stage.cast.processes:
        shutil.copy(process.log, folder)
    shutil.copy(stage.cluster.log, folder)


class Performance:
    def __init__(self, stage: Stage, options: Options, began: float) -> None:
        self.stage, self.options, self.began = stage, options, began
        self.effects = stage.folder / "effects"
        self.pulse = Pulse()
        self.load = Load(
            stage.submitter,
            stage.folder / "storage",
            stage.folder / "submitted",
            Wishes(options.seed, self.effects, step_seconds=options.step_seconds),
            options.tasks_per_second,
            most_open=1500,
            has_rasters=options.has_rasters,
            open_tasks=lambda: self.pulse.open_tasks,
        )
        self.nemesis = Nemesis(stage, self.load, self.effects, options.seed, options.settings)

    async def play(self) -> Outcome:
        watching = [asyncio.create_task(self._feel_pulse()), asyncio.create_task(self._tell())]
        streaming = asyncio.create_task(self.load.stream())
        try:
            await self._faults(streaming)
            calm_since = time.monotonic()
            tending = asyncio.create_task(self.nemesis.tend())
            ended = await self._quiet()
            quiet_seconds = time.monotonic() - calm_since if ended else None
            await settle([tending])
        finally:
            await settle([streaming, *watching])
        print("looking at everything that was written …", flush=True)
        return await self._judge(quiet_seconds)

    async def _faults(self, streaming: asyncio.Task[None]) -> None:
        options = self.options
        deck = DECK | BROKER_DECK if options.transport == "servicebus" else DECK
        kinds = draw(options.seed, options.faults, options.only, deck)
        happening = asyncio.create_task(self.nemesis.run(kinds, moments(options.seed, options.faults, options.seconds)))
        await asyncio.wait([happening, streaming], return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            happening.cancel()
            await streaming
        await happening
        await self.nemesis.stop()
        await settle([streaming])

    async def _quiet(self) -> bool:
        deadline = time.monotonic() + self.options.quiet_seconds
        while time.monotonic() < deadline:
            with suppress(psycopg.Error):
                await self._sample()
                if not self.pulse.open_jobs:
                    return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    # Watching

    async def _sample(self) -> None:
        (row,) = await self.stage.cast.rows("""
            SELECT (SELECT count(*) FROM dagapp.dag_tasks) AS attempts,
                   (SELECT count(*) FROM dagapp.dag_tasks WHERE status IN ('queued', 'running')) AS open_tasks,
                   (SELECT count(*) FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')) AS open_jobs""")
        self.pulse = Pulse(**row)

    async def _feel_pulse(self) -> None:
        while True:
            with suppress(psycopg.Error):  # the server is away: what was seen last stands
                await self._sample()
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self) -> None:
        attempts = 0
        while True:
            await asyncio.sleep(TELL_SECONDS)
            pulse = self.pulse
            rate = (pulse.attempts - attempts) / TELL_SECONDS
            attempts = pulse.attempts
            print(
                f"{time.monotonic() - self.began:4.0f} s  {len(self.nemesis.faults):3} faults  {attempts:6,} attempts"
                f"  {rate:4.0f}/s  {len(self.load.acknowledged):5,} jobs, {pulse.open_jobs:3} open"
                f"  last: {self.nemesis.last}",
                flush=True,
            )

    # The end

    async def _judge(self, quiet_seconds: float | None) -> Outcome:
        options, nemesis = self.options, self.nemesis
        effects = Effects.read(self.effects)
        findings, report = await audit.examine(self.stage.cast.dsn, effects, options.max_losses)
        rows = await self.stage.cast.rows(
            "SELECT job_id, idempotency_key, status, result_data, error_message FROM dagapp.dag_jobs"
        )
        jobs = {row["job_id"]: row for row in rows}
        (late,) = await self.stage.cast.rows("SELECT count(*) AS n FROM chaos.results WHERE NOT accepted")
        known = list(self.load.acknowledged.values())
        return Outcome(
            seed=options.seed,
            quiet_seconds=quiet_seconds,
            recoveries=recoveries((fault.kind, fault.recovery_seconds) for fault in nemesis.faults),
            faults=len(nemesis.faults),
            log=[
                (fault.kind, fault.victim, round(fault.began - self.began, 2), fault.recovery_seconds)
                for fault in nemesis.faults
            ],
            jobs=Counter(one.wish.kind for one in known),
            ends=Counter(row["status"] for row in rows),
            attempts=report.tasks_checked,
            executions=sum(effects.executed.values()),
            done_again=effects.done_again(),
            fenced=self.stage.cast.said(FENCED),
            late_reports=late["n"],
            resets_at_commit=sum(link.counts.resets_at_commit for link in self.stage.proxy.links.values()),
            events=report.events_checked,
            wanted_faults=options.wanted_faults,
            wanted_attempts=options.wanted_attempts,
            zeros={
                "jobs lost": _lost(known, jobs),
                "tasks lost": findings.tasks_lost,
                "duplicate published effects": findings.duplicate_effects + await self._doubled_tiles(known, jobs),
                "stale writes accepted": findings.stale_writes,
                "findings of verify-history": findings.history,
                "jobs with another outcome": [wrong for one in known if (wrong := _wrong(one, jobs.get(one.job_id)))],
                "roles that ended by themselves": nemesis.unexpected_ends,
                "faults that went wrong": nemesis.broken,
            },
        )

    async def _doubled_tiles(self, known: list[Acknowledged], jobs: dict[Any, Any]) -> list[Any]:
        """Of a dataset there are as many files and STAC items as it has tiles."""
        wrong = []
        for one in known:
            if one.wish.kind != "raster" or jobs[one.job_id]["status"] != "completed":
                continue
            result = jobs[one.job_id]["result_data"]
            name, tiles = result["dataset_id"], result["total_tiles"]
            files = len(list(self._silver(name).glob("*.tif")))
            count = "SELECT count(*) AS n FROM dagapp.stac_documents WHERE dataset_id = %s AND document_id <> ''"
            (items,) = await self.stage.cast.rows(count, name)
            if not tiles == files == items["n"]:
                wrong.append({"dataset": name, "tiles": tiles, "files": files, "items": items["n"]})
        return wrong

    def _silver(self, dataset: str) -> Path:
        return self.stage.folder / "storage" / "silver" / "silver" / "cogs" / dataset / "v0" / "r1"


def _lost(known: list[Acknowledged], jobs: dict[Any, dict[str, Any]]) -> list[Any]:
    """What was acknowledged and is not there, is there twice, or never ended."""
    keys = Counter(row["idempotency_key"] for row in jobs.values())
    lost = [{"job": str(one.job_id), "is": "gone"} for one in known if one.job_id not in jobs]
    twice = [{"key": key, "jobs": count} for key, count in keys.items() if count > 1]
    stuck = [{"job": str(job_id), "is": row["status"]} for job_id, row in jobs.items() if row["status"] not in ENDS]
    return [*lost, *twice, *stuck]


def _wrong(one: Acknowledged, job: dict[str, Any] | None) -> dict[str, Any] | None:
    if job is None or job["status"] not in ENDS:
        return None  # lost, and reported as lost
    facts = {"job": str(one.job_id), "kind": one.wish.kind, "is": job["status"], "error": job["error_message"]}
    if job["status"] not in one.wish.ends:
        return facts
    if job["status"] == "completed" and one.wish.result is not None:
        value = (job["result_data"] or {}).get("value")
        return None if value == one.wish.result else {**facts, "result": value, "expected": one.wish.result}
    return None
