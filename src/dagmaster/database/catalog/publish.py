"""Bring pgSTAC in line with what an asset publishes, in the transaction that decides it.

The documents are rows of the same database, so the server copies them, and no process reads thousands of items.
Creating a partition blocks all searches until the end of the transaction, so it is done before, in a short transaction:
`prepare`. Until something is published, the collection has only its id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from dagmaster.assets.states import VersionRevision
from dagmaster.database.catalog.pgstac import (
    RetryableConflict,
    blaming_data,
    dumped,
    link_versions,
    lock_collection,
    not_deployed,
    put_collection,
    refresh_extent,
    set_limits,
)
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, UnfitData

Json = dict[str, Any]
Join = Callable[[Json, Json], Json]
Describe = Callable[[Json, Mapping[str, Json]], Json]

PREPARE_LOCK_SECONDS: Final = 1.0  # searches that begin in this time have to wait


@dataclass(frozen=True, slots=True)
class CollectionWriter:
    """`join` adds a newer version to the document of a collection. Links between items begin with `items_url`.
    `describe` adds the published metadata of its layers, by their names."""

    dataset_id: str
    join: Join
    items_url: str
    describe: Describe

    async def prepare(self, connection: Connection, editions: Sequence[VersionRevision]) -> None:
        """Create the collection and the partitions that these editions need. That does not publish them."""
        await _require_deployed(connection)
        await lock_collection(connection, self.dataset_id, creates_partitions=True)
        await set_limits(connection, lock_seconds=PREPARE_LOCK_SECONDS)
        values = {"collection": self.dataset_id, "content": dumped(_unpublished(self.dataset_id))}
        await connection.execute(query("catalog_open_collection"), values)
        await self._partitions(connection, editions)

    async def publish(
        self, connection: Connection, before: Sequence[VersionRevision], after: Sequence[VersionRevision]
    ) -> None:
        """Give the collection the items of the editions in `after`, and no others. Those that are also in `before` are
        assumed to be complete: documents of a reviewed revision never change."""
        if not after and not await is_deployed(connection):
            return
        await _require_deployed(connection)
        await lock_collection(connection, self.dataset_id)
        if not after:
            await self._withdraw(connection, after)
            await connection.execute(query("catalog_empty_collection"), {"collection": self.dataset_id})
            return
        documents = await self._documents(connection, after)
        await put_collection(connection, await self._described(connection, documents))
        await self._put(connection, [edition for edition in after if edition not in before])
        await self._withdraw(connection, after)
        await self._require_all(connection, sum(document["items"] for document in documents))
        await link_versions(connection, self.dataset_id, self.items_url)
        await refresh_extent(connection, self.dataset_id)
        await connection.execute(query("catalog_refresh_layers"), {"collection": self.dataset_id})

    async def publish_metadata(self, connection: Connection, editions: Sequence[VersionRevision]) -> None:
        """Bring the collection in line with the published metadata of its layers. Its items stay."""
        await _require_deployed(connection)
        await lock_collection(connection, self.dataset_id)
        documents = await self._documents(connection, editions)
        await put_collection(connection, await self._described(connection, documents))
        await connection.execute(query("catalog_refresh_layers"), {"collection": self.dataset_id})

    async def _described(self, connection: Connection, documents: Sequence[dict[str, Any]]) -> Json:
        layers = await dicts(connection, "layer_catalog_metadata", {"dataset_id": self.dataset_id})
        return self.describe(self._joined(documents), {layer["layer"]: layer["metadata"] for layer in layers})

    async def _documents(self, connection: Connection, editions: Sequence[VersionRevision]) -> list[dict[str, Any]]:
        documents = await dicts(connection, "catalog_documents", self._values(editions))
        for document in documents:
            if document["content"] is None or not document["items"]:
                raise Conflict(
                    f"version {document['ordinal']}, revision {document['revision']} has no STAC documents",
                    code="version.no-documents",
                    hint="submit it again with a workflow that registers its results",
                )
        return documents

    def _joined(self, documents: Sequence[dict[str, Any]]) -> Json:
        joined: Json = documents[0]["content"]
        for document in documents[1:]:
            joined = self.join(joined, document["content"])
        return {**joined, "id": self.dataset_id}

    async def _put(self, connection: Connection, editions: Sequence[VersionRevision]) -> None:
        if not editions:
            return
        await self._partitions(connection, editions)
        with blaming_data(f"items of collection '{self.dataset_id}'"):
            await connection.execute(query("catalog_publish_items"), self._values(editions))

    async def _partitions(self, connection: Connection, editions: Sequence[VersionRevision]) -> None:
        try:
            with blaming_data(f"items of collection '{self.dataset_id}'"):
                await connection.execute(query("catalog_publish_partitions"), self._values(editions))
        except psycopg.errors.UndefinedTable as error:
            # pgSTAC ignores the error if it cannot lock the table to create a partition: then the partition is missing.
            raise RetryableConflict(error.diag.message_primary) from error

    async def _withdraw(self, connection: Connection, editions: Sequence[VersionRevision]) -> None:
        await connection.execute(query("catalog_withdraw_items"), self._values(editions))

    async def _require_all(self, connection: Connection, expected: int) -> None:
        (row,) = await dicts(connection, "catalog_count", {"collection": self.dataset_id})
        if row["items"] > expected:
            raise UnfitData("two versions have items with the same id", code="catalog.duplicate-item")
        if row["items"] < expected:
            raise RetryableConflict(f"{expected - row['items']} of {expected} items were not stored")

    def _values(self, editions: Sequence[VersionRevision]) -> dict[str, Any]:
        return {
            "collection": self.dataset_id,
            "ordinals": [ordinal for ordinal, _ in editions],
            "revisions": [revision for _, revision in editions],
        }


async def is_deployed(connection: Connection) -> bool:
    (row,) = await dicts(connection, "catalog_is_deployed", {})
    return bool(row["is_deployed"])


async def _require_deployed(connection: Connection) -> None:
    if not await is_deployed(connection):
        raise not_deployed()


def _unpublished(dataset_id: str) -> Json:
    return {
        "id": dataset_id,
        "type": "Collection",
        "stac_version": "1.1.0",
        "description": "Not published",
        "license": "other",
        "links": [],
        "extent": {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}},
    }
