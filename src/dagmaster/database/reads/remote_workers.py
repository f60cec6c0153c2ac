"""Reads for workers without database access."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dagmaster.database.reads.session import ReadSession
from dagmaster.jobs.payload import Reference


@dataclass(frozen=True, slots=True)
class TaskReferences:
    """The payload and results that a task of a worker refers to."""

    queue: str
    params_ref: Reference | None
    results_of: Any


@dataclass(frozen=True, slots=True)
class ClaimableHandler:
    """A handler that has queued tasks on a queue."""

    queue: str
    handler: str


class RemoteWorkerReads(ReadSession):
    async def held_task(self, worker_id: UUID, job_id: UUID, node_id: str, attempt: int) -> TaskReferences | None:
        """None if this worker does not hold the task."""
        values = {"worker_id": worker_id, "job_id": job_id, "node_id": node_id, "attempt": attempt}
        return await self._first("held_task", values, TaskReferences)

    async def claimable_handlers(self, queues: Collection[str]) -> list[ClaimableHandler]:
        """Handlers that have queued tasks on these queues."""
        return await self._many("claimable_handlers", {"queues": sorted(queues)}, ClaimableHandler)
