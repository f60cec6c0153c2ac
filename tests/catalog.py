"""Reads documents from pgSTAC with its own functions, like its users."""

from dataclasses import dataclass
from typing import Any

import psycopg


@dataclass(frozen=True, slots=True)
class CatalogReader:
    dsn: str

    async def get_item(self, collection_id: str, item_id: str) -> dict[str, Any] | None:
        item: dict[str, Any] | None = await self._value("SELECT pgstac.get_item(%s, %s)", item_id, collection_id)
        if item:
            # pgSTAC drops nulls; an item with an interval must have a `datetime` of null.
            item["properties"].setdefault("datetime", None)
        return item

    async def get_collection(self, collection_id: str) -> dict[str, Any] | None:
        collection: dict[str, Any] | None = await self._value("SELECT pgstac.get_collection(%s)", collection_id)
        return collection

    async def item_ids(self, collection_id: str) -> list[str]:
        ids = "SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM pgstac.items WHERE collection = %s"
        return list(await self._value(ids, collection_id))

    async def count_items(self, collection_id: str) -> int:
        return len(await self.item_ids(collection_id))

    async def _value(self, text: str, *values: Any) -> Any:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            row = await (await connection.execute(text.encode(), values)).fetchone()
        return row and row[0]
