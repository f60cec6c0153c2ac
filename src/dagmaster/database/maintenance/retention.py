"""Delete jobs that ended long ago, oldest first, a bounded number in each short transaction.

A job is deleted with all its rows in one transaction. Locked rows are skipped, and if the lock on a table is not free,
the next run tries again.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.session import Session, dicts
from dagmaster.errors import Unavailable

STATEMENT_SECONDS: Final = 60.0  # a job of 100,000 children is deleted in one transaction
LOCK_SECONDS: Final = 0.5
BATCH_EVENTS: Final = 20_000  # a batch ends with the job that exceeds this
COUNTED_AT_MOST: Final = 10_000
_LOCKED = frozenset({"55P03", "40P01"})
# The order matters: see the comments of the statements.
_PARTS = (
    "keys",
    "outbox",
    "tasks",
    "results",
    "payloads",
    "checkpoints",
    "documents",
    "events",
    "nodes",
    "subscribers",
    "search",
    "jobs",
)


@dataclass(frozen=True, slots=True)
class PrunedRows:
    """How many rows that belong to no job were deleted, by kind, and the names of dropped partitions."""

    letters: int = 0
    actions: int = 0
    callbacks: int = 0
    definitions: int = 0
    partitions: tuple[str, ...] = ()


class PostgresRetention(Session):
    def __init__(self, dsn: str, role: str = "retention") -> None:
        super().__init__(dsn, role, statement_timeout_seconds=STATEMENT_SECONDS, lock_timeout_seconds=LOCK_SECONDS)

    async def prune_jobs(self, age_seconds: float, batch: int) -> int:
        """Delete one batch and return the number of jobs; 0 if another instance is deleting."""
        try:
            async with self._transaction("retention") as connection:
                return await _prune(connection, age_seconds, batch) if await _has_lock(connection) else 0
        except Unavailable as error:
            if error.facts.get("sqlstate") in _LOCKED:
                return 0
            raise

    async def prune_without_job(self, age_seconds: float, batch: int) -> PrunedRows:
        """Delete rows that belong to no job, each kind in a transaction of its own."""
        return PrunedRows(
            letters=await self._delete("retention_letters", age_seconds, batch),
            actions=await self._delete("retention_actions", age_seconds, batch),
            callbacks=await self._delete("retention_callbacks", age_seconds, batch),
            definitions=await self._whole_table("retention_definitions", "deleted", age_seconds) or 0,
            partitions=tuple(filter(None, [await self._whole_table("retention_partition", "name", age_seconds)])),
        )

    async def count(self, age_seconds: float) -> int:
        async with self._transaction("retention") as connection:
            (row,) = await dicts(connection, "retention_count", {"age": age_seconds, "limit": COUNTED_AT_MOST})
            return int(row["jobs"])

    async def _delete(self, name: str, age_seconds: float, batch: int) -> int:
        async with self._transaction("retention") as connection:
            return len(await dicts(connection, name, {"age": age_seconds, "limit": batch}))

    async def _whole_table(self, name: str, column: str, age_seconds: float) -> Any:
        """Needs a lock on a whole table; if it is not granted soon, this run does nothing."""
        try:
            async with self._transaction("retention") as connection:
                if not await _has_lock(connection):
                    return None
                (row,) = await dicts(connection, name, {"age": age_seconds})
                return row[column]
        except Unavailable as error:
            if error.facts.get("sqlstate") in _LOCKED:
                return None
            raise


async def _has_lock(connection: Connection) -> bool:
    (lock,) = await dicts(connection, "retention_lock", {})
    return bool(lock["is_acquired"])


async def _prune(connection: Connection, age_seconds: float, batch: int) -> int:
    job_ids: list[UUID] = []
    events = 0
    for row in await dicts(connection, "retention_pick", {"age": age_seconds, "limit": batch}):
        job_ids.append(row["job_id"])
        events += row["last_sequence"]
        if events >= BATCH_EVENTS:
            break
    if job_ids:
        for part in _PARTS:
            await connection.execute(query(f"retention_{part}"), {"job_ids": job_ids})
    return len(job_ids)
