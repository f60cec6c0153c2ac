"""The outbox: ids of tasks that are not yet sent to a message broker.

The statements that write tasks also write them here (`apply_steps_with_outbox`), in the same transaction. Relays claim
messages, send them, and delete those that the broker has acknowledged.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from dagmaster.database.ledger.connection import columns_of, fetch, to_json
from dagmaster.database.ledger.protocol import ClaimedMessage, Report
from dagmaster.database.ledger.queued import QueuedTaskReads
from dagmaster.database.notify.notifier import RESULTS
from dagmaster.database.queries import query
from dagmaster.jobs.states import TaskStatus

MAX_ERROR_LENGTH = 500


class PostgresOutbox(QueuedTaskReads):
    """The Outbox on PostgreSQL."""

    async def claim_messages(
        self,
        limit: int,
        *,
        lease_seconds: float,
        limits: Mapping[str, int] | None = None,
        newest: Collection[str] = (),
        newest_limit: int = 0,
    ) -> list[ClaimedMessage]:
        limits = limits or {}
        values = {
            "limit": limit,
            "lease": lease_seconds,
            "queues": list(limits),
            "limits": list(limits.values()),
            "newest": list(newest),
            "newest_limit": newest_limit,
        }
        return [ClaimedMessage(**row._asdict()) for row in await self._fetch("outbox_claim", values)]

    async def forget_messages(self, limit: int) -> int:
        return len(await self._fetch("outbox_forget", {"limit": limit}))

    async def count_workers(self, alive_seconds: float) -> Mapping[str, int]:
        return {row.queue: row.workers for row in await self._fetch("outbox_workers", {"alive": alive_seconds})}

    async def delete_messages(self, messages: Sequence[ClaimedMessage]) -> None:
        await self._execute("outbox_delete", _keys(messages))

    async def postpone_messages(self, messages: Sequence[ClaimedMessage], *, delay_seconds: float, error: str) -> None:
        await self._execute(
            "outbox_postpone", {**_keys(messages), "delay": delay_seconds, "error": error[:MAX_ERROR_LENGTH]}
        )

    async def fail_tasks(self, messages: Sequence[ClaimedMessage], relay_id: UUID, error: Mapping[str, Any]) -> int:
        """Claim the tasks and report them as failed, as a worker would: only a running task can fail."""
        async with self._transaction("fail_tasks") as connection:
            rows = await fetch(connection, "outbox_take_tasks", {**_keys(messages), "worker_id": relay_id})
            reports = [
                Report(row.job_id, row.node_id, row.attempt, TaskStatus.FAILED, error=dict(error)) for row in rows
            ]
            await fetch(connection, "report_tasks", {"reports": to_json(reports), "worker_id": relay_id})
            await connection.execute(query("outbox_delete"), _keys(messages))
        self._notify(RESULTS)
        return len(rows)

    async def facts(self) -> list[dict[str, Any]]:
        """The messages that wait in the outbox: numbers and ages, by queue."""
        return [row._asdict() for row in await self._fetch("outbox_facts", {})]


def _keys(messages: Sequence[ClaimedMessage]) -> dict[str, list[Any]]:
    keys = [(message.job_id, message.node_id, message.attempt) for message in messages]
    return columns_of(("job_ids", "node_ids", "attempts"), keys)
