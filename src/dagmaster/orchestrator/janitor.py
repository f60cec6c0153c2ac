"""The janitor: finds jobs, tasks and sessions that are stuck, and deletes jobs that ended long ago.

    every JANITOR_INTERVAL_SEC, or at once when the loop cannot advance a job
      ──▶ record jobs that could not be advanced
      ──▶ find what is stuck (database/maintenance/janitor), act, log, call the webhook
      ──▶ delete jobs after their retention (database/maintenance/retention), for a bounded time

It runs as a task in each orchestrator's process, with connections of its own. For a stuck job it only ends the claim:
the next owner decides what happens to the job. The orchestrator's stats show the last run, so that a stuck janitor can
be seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID, uuid4

from dagmaster.database.ledger.protocol import Claim
from dagmaster.database.maintenance.janitor import JanitorThresholds, PostgresJanitor, SweepResult
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.jobs.model import JanitorAction
from dagmaster.observe import log
from dagmaster.observe.redaction import redact
from dagmaster.orchestrator import webhook
from dagmaster.orchestrator.asset_upkeep import AssetUpkeep
from dagmaster.orchestrator.pause import pause
from dagmaster.orchestrator.tidy import DAY_SECONDS, Tidy
from dagmaster.settings import Settings

STUCK_AFTER: Final = 5  # after this many failures in a row to advance a job, it is reported as stuck
PRUNING_SECONDS: Final = 20.0  # the time for deleting jobs in one run; if more are left, the next run follows soon
_log = log.get("janitor")

Post = Callable[..., Awaitable[None]]


@dataclass(slots=True)
class JanitorCounters:
    runs: int = 0
    actions: int = 0
    errors: int = 0
    pruned_jobs: int = 0


@dataclass
class Janitor:
    settings: Settings
    store: PostgresJanitor
    retention: PostgresRetention
    owner_id: UUID = field(default_factory=uuid4)  # the id of the orchestrator, which sets it
    post: Post = webhook.post
    random: Random = field(default_factory=Random)
    tidy: Tidy | None = None
    upkeep: AssetUpkeep | None = None

    def __post_init__(self) -> None:
        self.counters = JanitorCounters()
        self._stuck: dict[UUID, tuple[Claim, str]] = {}
        self._is_run_requested = asyncio.Event()
        self._ran_at: float | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep_forever())
            if self.tidy:
                tasks.create_task(self.tidy.run())
            if self.upkeep:
                tasks.create_task(self.upkeep.run())

    async def _sweep_forever(self) -> None:
        """The first pause is random: instances started together run at different times."""
        self._ran_at = time.monotonic()
        seconds = self.settings.janitor_interval_sec * self.random.random()
        while True:
            await pause(self._is_run_requested, seconds)
            is_done = await self._run_once_safely()
            seconds = self.settings.janitor_interval_sec * (1.0 if is_done else 0.02)

    async def close(self) -> None:
        await self.store.close()
        await self.retention.close()
        if self.tidy:
            await self.tidy.store.close()
        if self.upkeep:
            await self.upkeep.close()

    def report_stuck(self, claim: Claim, error: Exception) -> None:
        """The loop has failed to advance this job several times: record it soon, so that people see it."""
        self._stuck[claim.job_id] = (claim, redact(f"{type(error).__name__}: {error}"))
        self._is_run_requested.set()

    def stats(self) -> dict[str, Any]:
        """`silent_seconds` far above the interval means that the janitor is stuck. Other threads may call this."""
        silent = None if self._ran_at is None else round(time.monotonic() - self._ran_at, 1)
        counted = {name: getattr(self.counters, name) for name in JanitorCounters.__dataclass_fields__}
        tidied = {"tidied_jobs": self.tidy.tidied_jobs, "tidy_errors": self.tidy.errors} if self.tidy else {}
        upkeep = {"purged_revisions": self.upkeep.purged, "upkeep_errors": self.upkeep.errors} if self.upkeep else {}
        return {**counted, **tidied, **upkeep, "silent_seconds": silent}

    async def _run_once_safely(self) -> bool:
        """Returns whether nothing is left to do before the next interval."""
        try:
            await self.sweep()
            is_done = await self._prune()
        except Exception as error:  # no failure may end the janitor
            self.counters.errors += 1
            log.failure(_log, "a run of the janitor failed; it is tried again later", error)
            return True
        self.counters.runs += 1
        self._ran_at = time.monotonic()
        return is_done

    async def sweep(self, *, is_dry: bool = False) -> tuple[UUID, SweepResult]:
        """One run. A dry run changes nothing and sends no notification."""
        run_id = uuid4()
        stuck_jobs = [] if is_dry else await self._note_stuck(run_id)
        result = await self.store.sweep(run_id, thresholds_of(self.settings), is_dry=is_dry)
        if not is_dry:
            await self._report(run_id, (*stuck_jobs, *result.actions))
        return run_id, result

    async def _note_stuck(self, run_id: UUID) -> list[JanitorAction]:
        actions: list[JanitorAction] = []
        for job_id, (claim, error) in list(self._stuck.items()):
            actions += await self.store.note_stuck(run_id, self.owner_id, claim, error)
            self._stuck.pop(job_id, None)
        return actions

    async def _report(self, run_id: UUID, actions: tuple[JanitorAction, ...]) -> None:
        if not actions:
            return
        self.counters.actions += len(actions)
        for action in actions:
            _log.error(
                action.reason,
                action=action.action_type,
                target=action.target_type,
                target_id=action.target_id,
                run_id=str(run_id),
            )
        if self.settings.janitor_webhook_url:
            await self._call_webhook(run_id, actions)

    async def _call_webhook(self, run_id: UUID, actions: tuple[JanitorAction, ...]) -> None:
        content = {"run_id": str(run_id), "actions": [action.public() for action in actions]}
        try:
            await self.post(
                self.settings.janitor_webhook_url, content, allow_private=self.settings.allow_private_webhooks
            )
        except Exception as error:  # the actions are done and logged, whether or not the webhook responds
            log.failure(_log, "the webhook of the janitor could not be called", error)

    async def _prune(self) -> bool:
        age = self.settings.retention_days * DAY_SECONDS
        if not age:
            return True
        until = time.monotonic() + PRUNING_SECONDS
        while pruned := await self.retention.prune_jobs(age, self.settings.retention_batch):
            self.counters.pruned_jobs += pruned
            if time.monotonic() > until:
                return False
        forgotten = await self.retention.prune_without_job(age, self.settings.retention_batch)
        if forgotten.partitions:
            _log.info("partitions of events were deleted", partitions=list(forgotten.partitions))
        return True


def thresholds_of(settings: Settings) -> JanitorThresholds:
    return JanitorThresholds(
        settings.orphan_threshold_sec,
        settings.janitor_patience_sec,
        settings.janitor_queued_sec,
        settings.payload_grace_sec,
    )
