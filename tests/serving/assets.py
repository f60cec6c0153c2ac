"""Assets for the map server: inserted as processed by SQL statements, and reviewed by the operations of the API."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from dagmaster.access.caller import Caller, Scope
from dagmaster.assets.identity import asset_id_of
from dagmaster.assets.states import Clearance, Exposure
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets import approve, clear, delete, expose, reject, unpublish

Json = Mapping[str, Any]
REVIEWER = Caller("bob", frozenset({Scope.REVIEWER}))


def asset_id(dataset: str, platform: str = "local") -> str:
    return asset_id_of(platform, {"dataset": dataset})


class Assets:
    """Creates, reviews and removes assets in a database."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def publish(
        self, collection: Json, items: Iterable[Json], *, clearance: str = "public", exposure: str = "all-versions"
    ) -> None:
        """Create an asset with an approved revision of each version that the items belong to."""
        items, dataset = list(items), collection["id"]
        for number, ordinal in enumerate(sorted({_ordinal(item) for item in items})):
            own = [item for item in items if _ordinal(item) == ordinal]
            revision = own[0]["properties"]["dagmaster:revision"]
            self.submit(dataset, [collection, *own], ordinal=ordinal, revision=revision)
            if number == 0 and exposure == "all-versions":
                self.expose(dataset, exposure)
            self.approve(dataset, ordinal, None if number else clearance)

    def submit(
        self,
        dataset: str,
        documents: Iterable[Json],
        *,
        ordinal: int = 0,
        revision: int = 1,
        platform: str = "local",
        state: str = "completed",
    ) -> None:
        """Insert a processed revision that waits for its review; create its asset and version if they do not exist."""
        values = {
            "asset_id": asset_id(dataset, platform),
            "platform": platform,
            "refs": Jsonb({"dataset": dataset}),
            "dataset": dataset,
            "ordinal": ordinal,
            "revision": revision,
            "state": state,
        }
        with psycopg.connect(self.dsn) as connection:
            for statement in _SUBMIT:
                connection.execute(statement, values)
            _write_documents(connection, dataset, ordinal, revision, documents)

    def write_documents(self, dataset: str, ordinal: int, revision: int, documents: Iterable[Json]) -> None:
        with psycopg.connect(self.dsn) as connection:
            _write_documents(connection, dataset, ordinal, revision, documents)

    def approve(self, dataset: str, ordinal: int = 0, clearance: str | None = None) -> None:
        level = Clearance(clearance) if clearance else None
        self._act(lambda store: approve.approve(store, dataset, ordinal, caller=REVIEWER, clearance=level))

    def reject(self, dataset: str, ordinal: int = 0) -> None:
        self._act(lambda store: reject.reject(store, dataset, ordinal, caller=REVIEWER, reason="blurred"))

    def clear(self, dataset: str, clearance: str) -> None:
        self._act(lambda store: clear.clear(store, dataset, Clearance(clearance), caller=REVIEWER))

    def expose(self, dataset: str, exposure: str) -> None:
        self._act(lambda store: expose.expose(store, dataset, Exposure(exposure), caller=REVIEWER))

    def unpublish(self, dataset: str, ordinal: int | None = None) -> None:
        self._act(lambda store: unpublish.unpublish(store, dataset, ordinal, caller=REVIEWER))

    def delete(self, dataset: str, ordinal: int | None = None) -> None:
        self._act(lambda store: delete.delete(store, dataset, ordinal, caller=REVIEWER))

    def remove(self, dataset: str) -> None:
        """Remove the asset completely, including its documents."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET search_path = pgstac, public")
            connection.execute("SELECT pgstac.delete_collection(id) FROM collections WHERE id = %s", [dataset])
            connection.execute("DELETE FROM dagapp.stac_documents WHERE dataset_id = %s", [dataset])
            connection.execute("DELETE FROM dagapp.geospatial_assets WHERE dataset_id = %s", [dataset])

    def _act(self, act: Callable[[AssetStore], Awaitable[Any]]) -> None:
        async def acted() -> None:
            async with AssetStore(self.dsn) as store:
                await act(store)

        asyncio.run(acted())


_SUBMIT = (
    """
    INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id)
    VALUES (%(asset_id)s, %(platform)s, %(refs)s, %(dataset)s)
        ON CONFLICT (asset_id) DO NOTHING
    """,
    """
    INSERT INTO dagapp.asset_versions
           (asset_id, version_ordinal, version_label, platform_refs, revision, approval_state, processing_state)
    VALUES (%(asset_id)s, %(ordinal)s, %(ordinal)s::text, '{}', %(revision)s, 'pending_review', %(state)s)
        ON CONFLICT (asset_id, version_ordinal) DO UPDATE
       SET revision = EXCLUDED.revision,
           approval_state = 'pending_review',
           processing_state = EXCLUDED.processing_state
    """,
    """
    INSERT INTO dagapp.asset_revisions
           (asset_id, version_ordinal, revision, parameters, source, processing_state, outputs)
    VALUES (%(asset_id)s, %(ordinal)s, %(revision)s, '{}', '{}', %(state)s, '{}')
    """,
)
_DOCUMENT = """
    INSERT INTO dagapp.stac_documents (dataset_id, version_ordinal, revision, document_id, content)
    VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (dataset_id, version_ordinal, revision, document_id) DO UPDATE
       SET content = EXCLUDED.content
    """


def _write_documents(
    connection: psycopg.Connection, dataset: str, ordinal: int, revision: int, documents: Iterable[Json]
) -> None:
    for document in documents:
        document_id = document["id"] if document["type"] == "Feature" else ""
        connection.execute(_DOCUMENT, [dataset, ordinal, revision, document_id, Jsonb(document)])


def _ordinal(item: Json) -> int:
    return int(item["properties"]["dagmaster:version_ordinal"])
