"""Which layers the external database must contain, and whether it does. This is recorded in our own database, in the
transaction of the change that causes it."""

from dataclasses import dataclass
from typing import Any

from psycopg import IsolationLevel

from dagmaster.client.models.layers import LayerInfo
from dagmaster.database.assets import rows
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import Session, dicts

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DueLayer:
    asset_id: str
    layer: str
    dataset_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class PublishedContent:
    """A layer with its published documents: the collection, and all items."""

    layer: LayerInfo
    collection: Json
    items: list[Json]


class PostgresExternalLayers(Session):
    async def due(self, limit: int, asset_id: str | None = None) -> list[DueLayer]:
        async with self._connected() as connection:
            return models(
                DueLayer, await dicts(connection, "layer_external_due", {"limit": limit, "asset_id": asset_id})
            )

    async def content(self, due: DueLayer) -> PublishedContent | None:
        """The content for the external database, read in one snapshot; None if it must not have the layer."""
        key = {"asset_id": due.asset_id, "layer": due.layer, "generation": due.generation}
        async with self._connected() as connection:
            await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            try:
                async with connection.transaction():
                    return await _content(connection, due, key)
            finally:
                await connection.set_isolation_level(None)

    async def done(self, due: DueLayer) -> bool:
        """Record that the layer was written. False if it has changed meanwhile: then it is due again."""
        async with self._transaction("external_layers") as connection:
            key = {"asset_id": due.asset_id, "layer": due.layer, "generation": due.generation}
            return bool(await dicts(connection, "layer_external_done", key))

    async def failed(self, due: DueLayer, error: str) -> None:
        async with self._transaction("external_layers") as connection:
            key = {"asset_id": due.asset_id, "layer": due.layer, "generation": due.generation}
            await connection.execute(query("layer_external_failed"), {**key, "error": error[:1000]})


async def _content(connection: Connection, due: DueLayer, key: dict[str, Any]) -> PublishedContent | None:
    for layer in models(LayerInfo, await dicts(connection, "layer_external_content", key)):
        collection = await dicts(connection, "catalog_known", {"collection": due.dataset_id})
        items = await _items(connection, due.asset_id, due.dataset_id)
        return PublishedContent(layer, dict(collection[0]["content"]), items)
    return None


async def _items(connection: Connection, asset_id: str, dataset_id: str) -> list[Json]:
    """The items of the editions that are published."""
    (row,) = await dicts(connection, "asset_find", {"key": asset_id})
    asset = await rows.load(connection, row)
    editions = asset.state.published
    values = {
        "collection": dataset_id,
        "ordinals": [ordinal for ordinal, _ in editions],
        "revisions": [revision for _, revision in editions],
    }
    return [row["content"] for row in await dicts(connection, "catalog_edition_items", values)]
