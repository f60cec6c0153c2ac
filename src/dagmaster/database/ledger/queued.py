"""Which tasks are still queued: read by relays, and by workers that receive the ids of tasks from a message broker."""

from collections.abc import Sequence

from dagmaster.database.ledger.connection import LedgerConnection, columns_of
from dagmaster.jobs.model import task_key


class QueuedTaskReads(LedgerConnection):
    async def queued_tasks(self, task_ids: Sequence[str]) -> frozenset[str]:
        """Which of these tasks are still queued."""
        keys = [(task_id, *task_key(task_id)) for task_id in task_ids]
        values = columns_of(("task_ids", "job_ids", "node_ids", "attempts"), keys)
        return frozenset(row.task_id for row in await self._fetch("queued_tasks", values))
