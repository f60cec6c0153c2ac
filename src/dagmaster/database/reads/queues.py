"""Queues: how full they are, their settings, and the messages that could not be processed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from dagmaster.client.models.operations import DeadLetterSummary, QueueSummary, TaskCount
from dagmaster.database.reads.session import ReadSession
from dagmaster.errors import NotFound
from dagmaster.jobs.model import QueueSettings

_COUNTABLE_BYTES = 64 * 1024 * 1024


# The tables whose rows change most. Tables of events are only appended to.
_BUSY_TABLES = (
    "dag_jobs",
    "dag_node_states",
    "dag_tasks",
    "dag_task_results",
    "orchestrators",
    "workers",
    "callback_events",
)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Estimated numbers of live and dead rows."""

    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What metrics show about the database."""

    size_bytes: int
    connections: int
    max_connections: int
    oldest_transaction_seconds: float
    rows_by_table: dict[str, TableRows]
    pending_callbacks: int
    callback_overdue_seconds: float
    active_jobs: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """Ids of tasks of one queue that are not sent to the message broker yet; the broker refused `postponed` of them."""

    queue: str
    messages: int
    postponed: int
    oldest_seconds: float
    error: str | None


class QueueReads(ReadSession):
    async def queues(
        self, queue_names: Sequence[str], job_queue: str, *, within_seconds: float, only: str | None = None
    ) -> list[QueueSummary]:
        values = {"known": list(queue_names), "job_queue": job_queue, "within": within_seconds, "only": only}
        return await self._many("api_queues", values, QueueSummary)

    async def database_facts(self) -> DatabaseFacts:
        (facts,) = await self._many("metrics_database", {"tables": list(_BUSY_TABLES)}, DatabaseFacts)
        return facts

    async def outbox_facts(self) -> list[OutboxFacts]:
        """Only for queues that have unsent ids."""
        return await self._many("outbox_facts", {}, OutboxFacts)

    async def queue_settings(self) -> dict[str, QueueSettings]:
        return {settings.queue: settings for settings in await self._many("api_queue_settings", {}, QueueSettings)}

    async def running_in(self, queues: Sequence[str]) -> dict[str, int]:
        rows = await self._dicts("api_queue_running", {"queues": list(queues)})
        return {row["queue"]: row["count"] for row in rows}

    async def task_counts(self, tasks_bytes: int) -> tuple[list[TaskCount], bool]:
        """Tasks by queue and status, and whether all are counted:
        in a large table only queued and running tasks are."""
        is_all = tasks_bytes <= _COUNTABLE_BYTES
        return await self._many("api_task_counts" if is_all else "api_live_task_counts", {}, TaskCount), is_all

    async def dead_letters(
        self, job_queue: str, *, limit: int, after: tuple[datetime, UUID] | None = None, reason: str | None = None
    ) -> list[DeadLetterSummary]:
        after_at, after_id = after or (None, None)
        values = {"job_queue": job_queue, "limit": limit, "after_at": after_at, "after_id": after_id, "reason": reason}
        return await self._many("api_dead_letters", values, DeadLetterSummary)

    async def dead_letter(self, job_queue: str, dead_letter_id: UUID) -> DeadLetterSummary:
        values = {"job_queue": job_queue, "dead_letter_id": dead_letter_id}
        letter = await self._first("api_dead_letter", values, DeadLetterSummary)
        if letter is None:
            raise NotFound(f"no dead letter has the id {dead_letter_id}", code="dead-letter.not-found")
        return letter
