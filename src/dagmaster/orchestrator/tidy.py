"""Delete the files that jobs leave in storage.

    every JANITOR_INTERVAL_SEC
      ──▶ list the folders of jobs: scratch folders, intermediate blobs, datasets that belong to no asset
      ──▶ ask the database which of these jobs ended long enough ago, and lock them, so that none is resumed meanwhile
      ──▶ remove their files and record that
      ──▶ free the space, which may take long and blocks no job

It runs as a task of its own: a disk that hangs must not block the janitor. Only folders whose name is exactly a job id,
or that of a job's own dataset, are read. If the storage is a folder of another machine, it finds none.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final
from uuid import UUID, uuid4

from dagmaster.database.maintenance.janitor import (
    JobFiles,
    PostgresJanitor,
    RemovedFiles,
    StorageRetention,
    SweepResult,
)
from dagmaster.errors import DagmasterError
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.storage import Storage, open_storage

DAY_SECONDS: Final = 86_400.0
SCRATCH_GRACE_SECONDS: Final = 300.0  # an attempt that was given up may still run; later it fails, which does no harm
JOBS_AT_ONCE: Final = 20
FOLDERS_AT_ONCE: Final = 10_000
REMOVING_SECONDS: Final = 4.0  # jobs are locked meanwhile, and their session may not be idle for longer than 10 s
_log = log.get("tidy")


@dataclass
class Tidy:
    settings: Settings
    store: PostgresJanitor
    storage: Storage
    random: Random = field(default_factory=Random)
    tidied_jobs: int = 0
    errors: int = 0

    async def run(self) -> None:
        """Run until cancelled. The first pause is random: instances started together run at different times."""
        pause = self.settings.janitor_interval_sec * self.random.random()
        while True:
            await asyncio.sleep(pause)
            swept = await self.run_once(uuid4())
            has_more = len(swept.actions) >= JOBS_AT_ONCE
            pause = self.settings.janitor_interval_sec * (0.02 if has_more else 1.0)

    async def run_once(self, run_id: UUID, *, is_dry: bool = False) -> SweepResult:
        """Remove the files of a bounded number of jobs. A dry run only reports them. Failures are tried again next
        time."""
        try:
            swept = await self._remove_leftovers(run_id, is_dry)
            if not is_dry:
                await asyncio.to_thread(self.storage.remove_leftovers)
        except Exception as error:
            self._note_failure(error)
            return SweepResult((), ())
        return swept

    async def _remove_leftovers(self, run_id: UUID, is_dry: bool) -> SweepResult:
        folders = await asyncio.to_thread(_list_folders, self.storage)
        if not folders:
            return SweepResult((), ())

        async def remove(ended_jobs: Sequence[JobFiles]) -> list[RemovedFiles]:
            return await asyncio.to_thread(self._remove, ended_jobs, is_dry)

        checked = folders if len(folders) <= FOLDERS_AT_ONCE else self.random.sample(folders, FOLDERS_AT_ONCE)
        swept = await self.store.tidy(run_id, checked, graces_of(self.settings), JOBS_AT_ONCE, remove, is_dry=is_dry)
        if swept.actions and not is_dry:
            self.tidied_jobs += len(swept.actions)
            _log.info("files of jobs that have ended were removed", jobs=len(swept.actions), run_id=str(run_id))
        return swept

    def _remove(self, ended_jobs: Sequence[JobFiles], is_dry: bool) -> list[RemovedFiles]:
        """Remove files. In a folder store they are only renamed, which is fast. A job whose files cannot be removed
        does not block the others."""
        until = time.monotonic() + REMOVING_SECONDS
        with_scratch = set(self.storage.scratch_jobs())
        removed = []
        for leftovers in ended_jobs:
            if time.monotonic() > until:
                break
            try:
                removed_files = _remove_files_of(self.storage, leftovers, leftovers.job_id in with_scratch, is_dry)
                if removed_files.objects or removed_files.files.has_scratch:
                    removed.append(removed_files)
            except (DagmasterError, OSError) as error:
                self._note_failure(error, job_id=str(leftovers.job_id))
        return removed

    def _note_failure(self, error: Exception, **facts: str) -> None:
        self.errors += 1
        log.failure(_log, "files of jobs could not be removed, trying again later", error, **facts)


def tidy_of(settings: Settings, dsn: str, role: str = "tidy") -> Tidy | None:
    """The background task, or None if TIDY_ENABLED is false."""
    return Tidy(settings, PostgresJanitor(dsn, role), open_storage(settings)) if settings.tidy_enabled else None


def graces_of(settings: Settings) -> StorageRetention:
    return StorageRetention(
        scratch=SCRATCH_GRACE_SECONDS,
        completed=settings.intermediate_grace_sec,
        failed=settings.intermediate_failed_days * DAY_SECONDS or None,
        deleted=settings.retention_days * DAY_SECONDS or None,
    )


def _list_folders(storage: Storage) -> list[JobFiles]:
    with_scratch, with_blobs = set(storage.scratch_jobs()), set(storage.intermediate_jobs())
    with_outputs = set(storage.output_jobs())
    return [
        JobFiles(job_id, job_id in with_scratch, job_id in with_blobs, job_id in with_outputs)
        for job_id in with_scratch | with_blobs | with_outputs
    ]


def _remove_files_of(storage: Storage, leftovers: JobFiles, has_scratch: bool, is_dry: bool) -> RemovedFiles:
    """Remove the files of one job, and folders without objects. Returns what still existed: another orchestrator may
    have removed files since they were listed."""
    job_id = leftovers.job_id
    blobs = [blob.size_bytes for blob in storage.intermediate_blobs(job_id)] if leftovers.has_blobs else []
    outputs = [blob.size_bytes for blob in storage.output_blobs(job_id)] if leftovers.has_outputs else []
    if leftovers.has_blobs and not is_dry:
        storage.clear_intermediate(job_id)
    if leftovers.has_outputs and not is_dry:
        storage.clear_outputs(job_id)
    if leftovers.has_scratch and not is_dry:
        storage.clear_scratch(job_id)
    files = replace(
        leftovers,
        has_scratch=leftovers.has_scratch and has_scratch,
        has_blobs=bool(blobs),
        has_outputs=bool(outputs),
    )
    return RemovedFiles(files, objects=len(blobs) + len(outputs), size_bytes=sum(blobs) + sum(outputs))
