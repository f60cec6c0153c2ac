"""Deleting what ended long ago: whole jobs, oldest first, a bounded number in each short transaction.

A job goes with everything that belongs to it or stays as it is: at no time is there half of one. Nothing waits long here: rows
that someone holds are skipped, and a lock on a table that is not there at once is asked for again next time.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.session import OwnSession, dicts
from dagmaster.errors import Unavailable

STATEMENT_SECONDS: Final = 60.0  # a job of 100,000 children goes whole
LOCK_SECONDS: Final = 0.5
BATCH_EVENTS: Final = 20_000  # a batch ends with the job that goes beyond
COUNTED_AT_MOST: Final = 10_000
_LOCKED = frozenset({"55P03", "40P01"})
# The order matters, see the statements.
_PARTS = ("keys", "tasks", "results", "payloads", "checkpoints", "events", "nodes", "jobs")


@dataclass(frozen=True, slots=True)
class PrunedRows:
    """What went besides jobs."""

    letters: int = 0
    actions: int = 0
    definitions: int = 0
    partitions: tuple[str, ...] = ()


class PostgresRetention(OwnSession):
    def __init__(self, dsn: str, role: str = "retention") -> None:
        super().__init__(dsn, role, "retention", statement_seconds=STATEMENT_SECONDS, lock_seconds=LOCK_SECONDS)

    async def prune_jobs(self, age_seconds: float, batch: int) -> int:
        """Delete one batch; answers how many jobs that were. None at all where another instance is at it."""
        try:
            async with self._transaction() as connection:
                return await _prune(connection, age_seconds, batch) if await _is_ours(connection) else 0
        except Unavailable as error:
            if error.facts.get("sqlstate") in _LOCKED:
                return 0
            raise

    async def prune_rest(self, age_seconds: float, batch: int) -> PrunedRows:
        """What is left over once jobs are gone, each kind in a transaction of its own."""
        return PrunedRows(
            letters=await self._delete("retention_letters", age_seconds, batch),
            actions=await self._delete("retention_actions", age_seconds, batch),
            definitions=await self._whole_table("retention_definitions", "gone", age_seconds) or 0,
            partitions=tuple(filter(None, [await self._whole_table("retention_partition", "name", age_seconds)])),
        )

    async def count(self, age_seconds: float) -> int:
        async with self._transaction() as connection:
            (row,) = await dicts(connection, "retention_count", {"age": age_seconds, "limit": COUNTED_AT_MOST})
            return int(row["jobs"])

    async def _delete(self, name: str, age_seconds: float, batch: int) -> int:
        async with self._transaction() as connection:
            return len(await dicts(connection, name, {"age": age_seconds, "limit": batch}))

    async def _whole_table(self, name: str, column: str, age_seconds: float) -> Any:
        """Needs a lock on a table; where others are at it for long, nothing is done this time."""
        try:
            async with self._transaction() as connection:
                if not await _is_ours(connection):
                    return None
                (row,) = await dicts(connection, name, {"age": age_seconds})
                return row[column]
        except Unavailable as error:
            if error.facts.get("sqlstate") in _LOCKED:
                return None
            raise


async def _is_ours(connection: Connection) -> bool:
    (lock,) = await dicts(connection, "retention_lock", {})
    return bool(lock["is_ours"])


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
