"""Caches of all processes: the current generation, and which processes have read it."""

from dataclasses import dataclass
from uuid import UUID

from dagmaster.client.models.commands import CacheReader
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import Session, dicts


@dataclass(frozen=True, slots=True)
class CacheState:
    """`recorded` is the generation that the process has recorded as read; None if it has recorded none."""

    generation: int
    recorded: int | None


class PostgresCaches(Session):
    async def state(self, owner_id: UUID) -> CacheState:
        async with self._connected() as connection:
            (state,) = models(CacheState, await dicts(connection, "cache_state", {"owner_id": owner_id}))
            return state

    async def record(self, owner_id: UUID, generation: int, *, workflow_count: int, refused: int) -> None:
        """Record that the process has read the workflows of this generation."""
        values = {
            "owner_id": owner_id,
            "generation": generation,
            "workflow_count": workflow_count,
            "refused": refused,
        }
        async with self._transaction("invalidate_cache") as connection:
            await connection.execute(query("cache_read"), values)

    async def readers(self, generation: int, alive_seconds: float) -> list[CacheReader]:
        async with self._connected() as connection:
            values = {"generation": generation, "alive": alive_seconds}
            return models(CacheReader, await dicts(connection, "cache_readers", values))
