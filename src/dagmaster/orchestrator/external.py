"""Keep the external zone in line with the decisions on assets: start the jobs that copy revisions there or remove them.

    notification or poll ──▶ read revisions whose copies are due (database/assets/external)
                         ──▶ for each, in one transaction: lock it, decide (assets/external), create the job, record it

It runs as a task in each orchestrator's process; any number of them share the work, and one of them starts each job.
A trigger records the end of a job in its revision. Revisions that an earlier release has marked are processed too.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from dagmaster.assets.external import ExternalStep
from dagmaster.database.assets.external import ExternalKey, PostgresExternalCopies
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.operations.assets.export import job_of
from dagmaster.orchestrator.pause import pause
from dagmaster.settings import Settings

AT_ONCE: Final = 50
IDLE_POLLS: Final = 5  # the time between polls is this many times that of the orchestrator
MIN_INTERVAL_SECONDS: Final = 0.2  # the shortest time between two runs, however many jobs end
_log = log.get("external")


@dataclass
class ExternalCopyChore:
    settings: Settings
    store: PostgresExternalCopies
    library: WorkflowLibrary
    random: Random = field(default_factory=Random)
    started: int = 0
    errors: int = 0

    def __post_init__(self) -> None:
        self._is_run_requested = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Instances that were started together spread out."""
        while True:
            interval = IDLE_POLLS * self.settings.orchestrator_poll_interval
            has_more = await self._run_once_safely()
            await self._pause(interval * (0.02 if has_more else self.random.uniform(0.7, 1.0)))

    async def close(self) -> None:
        await self.store.close()

    def wake(self) -> None:
        """Run soon: there may be copies to make or remove."""
        self._is_run_requested.set()

    async def run_once(self) -> bool:
        """Start the jobs that are due for a bounded number of revisions. Returns whether more may be due."""
        due = await self.store.due(AT_ONCE)
        for key in due:
            await self._carry_out(key)
        return len(due) == AT_ONCE

    async def _carry_out(self, key: ExternalKey) -> None:
        step = await self.store.carry_out(key, partial(job_of, self.library))
        if step in (ExternalStep.EXPORT, ExternalStep.WITHDRAW):
            self.started += 1
            _log.info(
                "a job for external copies is started",
                step=step,
                asset_id=key.asset_id,
                version_ordinal=key.version_ordinal,
                revision=key.revision,
            )

    async def _run_once_safely(self) -> bool:
        try:
            return await self.run_once()
        except Exception as error:  # no failure may end the chore
            self.errors += 1
            log.failure(_log, "jobs for external copies cannot be started; trying again", error)
            return False

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(min(MIN_INTERVAL_SECONDS, seconds))
        await pause(self._is_run_requested, seconds)
