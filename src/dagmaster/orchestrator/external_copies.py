"""Keep the external zone in line with the decisions on assets: start the jobs that copy revisions there or remove them.

    notification or poll ──▶ read revisions whose copies are due (database/assets)
                         ──▶ for each, in one transaction: lock it, decide (assets), create the job, record it

It runs as a task in each orchestrator's process; any number of them share the work, and one of them starts each job.
A trigger records the end of a job in its revision. Revisions that an earlier release has marked are processed too.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Final

from dagmaster.assets.external_copies import ExternalCopyStep
from dagmaster.assets.states import AssetRevisionKey
from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.errors import Unavailable
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.operations.assets.export import job_of
from dagmaster.orchestrator.pause import pause
from dagmaster.settings import Settings

AT_ONCE: Final = 50
PAUSES_SECONDS: Final = (5.0, 600.0)  # the first and the longest, after a failure for a revision
IDLE_POLLS: Final = 5  # the time between polls is this many times that of the orchestrator
MIN_INTERVAL_SECONDS: Final = 0.2  # the shortest time between two runs, however many jobs end
_log = log.get("external")


@dataclass(frozen=True, slots=True)
class Postponed:
    """A revision whose step has failed `failures` times in a row, and is not tried again before `until`."""

    failures: int
    until: float


@dataclass
class ExternalCopyChore:
    settings: Settings
    store: PostgresExternalCopies
    library: WorkflowLibrary
    random: Random = field(default_factory=Random)
    clock: Callable[[], float] = time.monotonic
    started: int = 0
    errors: int = 0

    def __post_init__(self) -> None:
        self._is_run_requested = asyncio.Event()
        self._postponed: dict[AssetRevisionKey, Postponed] = {}

    async def run(self) -> None:
        """Run until cancelled. Pauses are random: instances started together run at different times."""
        while True:
            interval = IDLE_POLLS * self.settings.orchestrator_poll_interval
            has_more = await self._run_once_safely()
            seconds = interval * (0.02 if has_more else self.random.uniform(0.7, 1.0))
            await pause(self._is_run_requested, seconds, min_seconds=MIN_INTERVAL_SECONDS)

    async def close(self) -> None:
        await self.store.close()

    def wake(self) -> None:
        """Run soon: there may be copies to make or remove."""
        self._is_run_requested.set()

    async def run_once(self) -> bool:
        """Start the jobs that are due for a bounded number of revisions. Returns whether more may be due."""
        due = await self._due()
        for key in due:
            await self._carry_out_safely(key)
        return len(due) == AT_ONCE

    async def _due(self) -> list[AssetRevisionKey]:
        """The revisions that are due and not postponed."""
        keys = await self.store.due(AT_ONCE + len(self._postponed))
        self._postponed = {key: self._postponed[key] for key in keys if key in self._postponed}
        now = self.clock()
        return [key for key in keys if key not in self._postponed or self._postponed[key].until <= now][:AT_ONCE]

    async def _carry_out_safely(self, key: AssetRevisionKey) -> None:
        """Postpone a revision whose step fails, so that it does not block the others."""
        try:
            await self._carry_out(key)
        except Exception as error:
            self._postpone(key)
            if isinstance(error, Unavailable):  # probably an outage: end this run
                raise
            self.errors += 1
            log.failure(_log, "a job for external copies cannot be started; trying again later", error, **asdict(key))
        else:
            self._postponed.pop(key, None)

    def _postpone(self, key: AssetRevisionKey) -> None:
        failures = self._postponed[key].failures if key in self._postponed else 0
        first, longest = PAUSES_SECONDS
        seconds = min(longest, first * 2 ** min(failures, 10)) * self.random.uniform(0.7, 1.0)
        self._postponed[key] = Postponed(failures + 1, self.clock() + seconds)

    async def _carry_out(self, key: AssetRevisionKey) -> None:
        step = await self.store.carry_out(key, partial(job_of, self.library))
        if step in (ExternalCopyStep.EXPORT, ExternalCopyStep.WITHDRAW):
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
