"""What the upkeep of assets reads and writes: purged revisions, notified reviewers, old history, expired uploads."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from dagmaster.assets.states import AssetRevisionKey
from dagmaster.database.catalog.pgstac import lock_collection, set_limits
from dagmaster.database.catalog.publish import PREPARE_LOCK_SECONDS, is_deployed
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import Session, dicts

STATEMENT_SECONDS: Final = 30.0
LOCK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StoredRevision(AssetRevisionKey):
    """A revision, with the dataset id that is in the names of its objects."""

    dataset_id: str


@dataclass(frozen=True, slots=True)
class DueReview:
    """A revision that reviewers were not notified of; it needs a review if it `is_waiting`."""

    asset_id: str
    dataset_id: str
    title: str | None
    platform_id: str
    version_ordinal: int
    version_label: str
    revision: int
    is_partial: bool
    submitted_by: str | None
    processed_at: datetime | None
    is_waiting: bool


class PostgresAssetUpkeep(Session):
    def __init__(self, dsn: str, role: str = "asset-upkeep") -> None:
        super().__init__(dsn, role, statement_timeout_seconds=STATEMENT_SECONDS, lock_timeout_seconds=LOCK_SECONDS)

    async def begin_purge(self, age_seconds: float, limit: int) -> int:
        """Mark revisions for their purge. Returns how many."""
        async with self._transaction("asset_upkeep") as connection:
            return len(await dicts(connection, "asset_purge_begin", {"age": age_seconds, "limit": limit}))

    async def pending_purges(self, limit: int) -> list[StoredRevision]:
        """Revisions that were marked, also by a process that has ended since."""
        async with self._connected() as connection:
            return models(StoredRevision, await dicts(connection, "asset_purge_pending", {"limit": limit}))

    async def end_purge(self, revision: StoredRevision, objects: int) -> bool:
        """Record that the objects are removed, and remove the documents. False if another process has done it."""
        values = revision.values(dataset_id=revision.dataset_id, objects=objects)
        async with self._transaction("asset_upkeep") as connection:
            return bool(await dicts(connection, "asset_purge_end", values))

    async def expired_uploads(self, limit: int) -> list[UUID]:
        """Uploads that are not finished, and whose time is over."""
        async with self._connected() as connection:
            return [row["upload_id"] for row in await dicts(connection, "uploads_expired", {"limit": limit})]

    async def remove_expired(self, upload_id: UUID) -> bool:
        """Forget an upload. False if bytes have arrived meanwhile, or if another process has done it."""
        async with self._transaction("asset_upkeep") as connection:
            return bool(await dicts(connection, "upload_remove", {"upload_id": upload_id, "is_expired": True}))

    async def open_uploads(self, upload_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these uploads exist and are not finished."""
        async with self._connected() as connection:
            rows = await dicts(connection, "uploads_open_among", {"upload_ids": list(upload_ids)})
            return {row["upload_id"] for row in rows}

    async def withdrawn(self, grace_seconds: float, limit: int) -> list[StoredRevision]:
        """Some revisions whose external copies were removed a while ago."""
        async with self._connected() as connection:
            values = {"grace": grace_seconds, "limit": limit}
            return models(StoredRevision, await dicts(connection, "copies_withdrawn", values))

    async def withdraw_again(self, revision: AssetRevisionKey) -> bool:
        """Make the withdrawal of a revision due again. False if it was exported or withdrawn meanwhile."""
        async with self._transaction("asset_upkeep") as connection:
            return bool(await dicts(connection, "copies_left", revision.values()))

    async def collections_left(self, limit: int) -> list[str]:
        """Datasets of deleted assets whose data is purged, but whose collection is still in the catalogue."""
        async with self._connected() as connection:
            return await _collections_left(connection, limit) if await is_deployed(connection) else []

    async def remove_collection(self, dataset_id: str) -> bool:
        """Remove such a collection; false if the asset has data again. Searches wait, so the lock timeout is short."""
        async with self._transaction("asset_upkeep") as connection:
            # In the same order as reviews: first the asset, then its collection.
            await connection.execute(query("asset_lock"), {"key": dataset_id})
            await lock_collection(connection, dataset_id, creates_partitions=True)
            await set_limits(connection, lock_seconds=PREPARE_LOCK_SECONDS)
            if not await _collections_left(connection, 1, dataset_id):
                return False
            await connection.execute(query("catalog_remove_collection"), {"collection": dataset_id})
            return True

    @asynccontextmanager
    async def notifying(self) -> AsyncIterator[bool]:
        """Whether this process notifies reviewers now; no other does within the block."""
        async with self._connected() as connection:
            (lock,) = await dicts(connection, "asset_upkeep_lock", {})
        try:
            yield bool(lock["is_acquired"])
        finally:
            if lock["is_acquired"]:
                async with self._connected() as connection:
                    await connection.execute(query("asset_upkeep_unlock"))

    async def due_reviews(self, limit: int) -> list[DueReview]:
        async with self._connected() as connection:
            return models(DueReview, await dicts(connection, "asset_reviews_due", {"limit": limit}))

    async def reviews_notified(self, reviews: Sequence[DueReview]) -> None:
        values: dict[str, Any] = {
            "asset_ids": [review.asset_id for review in reviews],
            "ordinals": [review.version_ordinal for review in reviews],
            "revisions": [review.revision for review in reviews],
        }
        async with self._transaction("asset_upkeep") as connection:
            await connection.execute(query("asset_reviews_notified"), values)

    async def forget_events(self, age_seconds: float, limit: int) -> int:
        async with self._transaction("asset_upkeep") as connection:
            return len(await dicts(connection, "asset_forget_events", {"age": age_seconds, "limit": limit}))


async def _collections_left(connection: Connection, limit: int, dataset_id: str | None = None) -> list[str]:
    rows = await dicts(connection, "catalog_left_collections", {"limit": limit, "collection": dataset_id})
    return [row["dataset_id"] for row in rows]
