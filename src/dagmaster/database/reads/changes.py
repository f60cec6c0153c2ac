"""What changed since a time: jobs with their progress, assets, queues and instances."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dagmaster.client.models.changes import AssetChange, JobChange
from dagmaster.client.models.nodes import ProgressCounts
from dagmaster.database.reads.jobs import JobReads
from dagmaster.database.reads.session import models
from dagmaster.errors import NotFound


@dataclass(frozen=True, slots=True)
class PlatformState:
    """`queues` and `instances` are texts that change whenever the queues or the instances do."""

    now: datetime
    queues: str
    instances: str


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """A job that has changed, as its row was read."""

    job_id: UUID
    version: int
    definition_hash: str
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChangedAsset:
    """A change of an asset, with the facts that decide who may see it."""

    change: AssetChange
    clearance: str
    is_published: bool


class ChangeReads(JobReads):
    async def platform_state(self, within_seconds: float) -> PlatformState:
        (state,) = await self._many("stream_platform", {"within": within_seconds}, PlatformState)
        return state

    async def changed_jobs(self, since: datetime, limit: int) -> list[ChangedJob]:
        """Jobs that changed after a time. Most of them may have been read before, so they are not validated yet."""
        rows = await self._dicts("stream_jobs", {"since": since, "limit": limit})
        return [ChangedJob(row["job_id"], row["version"], row.pop("definition_hash"), row) for row in rows]

    async def job_changes(self, jobs: Sequence[ChangedJob]) -> tuple[JobChange, ...]:
        """Changed jobs with their progress."""
        progress = await self.progress_of_jobs((job.job_id, job.definition_hash) for job in jobs)
        return tuple(models(JobChange, [{**job.row, "progress": progress.get(job.job_id)} for job in jobs]))

    async def changed_assets(self, since: datetime, limit: int) -> list[ChangedAsset]:
        rows = await self._dicts("stream_assets", {"since": since, "limit": limit})
        facts = [(row.pop("clearance"), row.pop("is_published")) for row in rows]
        changes = models(AssetChange, rows)
        return [ChangedAsset(change, *each) for change, each in zip(changes, facts, strict=True)]

    async def progress_of_jobs(self, jobs: Iterable[tuple[UUID, str]]) -> dict[UUID, ProgressCounts]:
        """The progress of jobs, given with the hashes of their definitions. One whose definition cannot be read is
        left out."""
        job_ids: list[UUID] = []
        node_ids: list[str] = []
        for job_id, definition_hash in jobs:
            try:
                graph = await self.graph(definition_hash)
            except NotFound:
                continue
            job_ids += [job_id] * len(graph.order)
            node_ids += graph.order
        if not job_ids:
            return {}
        rows: list[dict[str, Any]] = await self._dicts("job_progress", {"job_ids": job_ids, "node_ids": node_ids})
        ids = [row.pop("job_id") for row in rows]
        return dict(zip(ids, models(ProgressCounts, rows), strict=True))
