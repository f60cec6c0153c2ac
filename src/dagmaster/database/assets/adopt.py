"""Turn datasets of earlier releases into assets. This can be repeated, and interrupted at any point."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagmaster.assets.identity import asset_id_of
from dagmaster.assets.states import VersionRevision
from dagmaster.database.assets import rows
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.catalog.publish import CollectionWriter, is_deployed
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.session import dicts


@dataclass(frozen=True, slots=True)
class UnadoptedCollection:
    """A collection without an asset. `is_dataset`: an earlier release wrote it."""

    collection_id: str
    is_dataset: bool


class AdoptedAssets(AssetStore):
    async def published_datasets(self) -> list[str]:
        """Datasets that an earlier release published."""
        async with self._connected() as connection:
            if not await is_deployed(connection):
                return []
            return [row["dataset_id"] for row in await dicts(connection, "catalog_adopt_published", {})]

    async def unadopted_collections(self) -> list[UnadoptedCollection]:
        async with self._connected() as connection:
            if not await is_deployed(connection):
                return []
            return [UnadoptedCollection(**row) for row in await dicts(connection, "catalog_adopt_refused", {})]

    async def processed_datasets(self) -> list[str]:
        """Datasets of jobs that an earlier release created and that have ended since the upgrade."""
        return [row["dataset_id"] for row in await self._dicts("asset_adopt_processed", {})]

    async def copy_items(self, dataset_id: str) -> None:
        """Store the published items as documents."""
        async with self._connected() as connection:
            await connection.execute(query("catalog_adopt_items"), {"dataset_id": dataset_id})

    async def adopt(self, dataset_id: str, writer: CollectionWriter) -> bool:
        """Create the asset, and publish its documents. False if it exists, or if there are no documents."""
        edition_rows = await self._dicts("asset_adopt_editions", {"dataset_id": dataset_id})
        editions = [(row["ordinal"], row["revision"]) for row in edition_rows]
        labels = [row["label"] for row in edition_rows]
        if not editions:
            return False
        await self.prepare(writer, editions)

        async def act(connection: Connection) -> bool:
            return await _adopt(connection, dataset_id, editions, labels, writer)

        return await self._transaction("adopt_dataset", act)


async def _adopt(
    connection: Connection,
    dataset_id: str,
    editions: Sequence[VersionRevision],
    labels: Sequence[str],
    writer: CollectionWriter,
) -> bool:
    asset_id = asset_id_of("local", {"dataset": dataset_id})
    values = {
        "asset_id": asset_id,
        "dataset_id": dataset_id,
        "ordinals": [ordinal for ordinal, _ in editions],
        "revisions": [revision for _, revision in editions],
        "labels": list(labels),
    }
    if not await dicts(connection, "asset_adopt", values):
        return False
    await writer.publish(connection, [], editions)
    decision = Decision("adopted", "dagmaster", "it was published by an earlier release")
    await rows.add_event(connection, decision, asset_id=asset_id)
    return True
