"""Assets on a real database, without workers: SQL statements end the jobs, and the documents are made up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from dagmaster.access.caller import Caller, Scope
from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SourceReference
from dagmaster.database.assets.layer_store import LayerStore
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.submit import submit_asset
from dagmaster.settings import Settings
from dagmaster.storage import Storage, Zone, open_storage
from tests.workflow_library import library_of

ADA = Caller("ada", frozenset({Scope.OPERATOR}))
BOB = Caller("bob", frozenset({Scope.REVIEWER}))
START = "2024-01-01T00:00:00Z"


@dataclass
class Kit:
    dsn: str
    store: LayerStore
    storage: Storage
    library: WorkflowLibrary

    async def submit(self, dataset: str = "dem", content: bytes = b"pixels", **options: Any) -> AssetSubmissionResult:
        """Put a file into the bronze zone and submit it for the platform `local`."""
        caller = options.pop("caller", ADA)
        blob = options.pop("blob", f"{dataset}.tif")
        self.put(blob, content)
        given = {
            "platform_id": "local",
            "platform_refs": {"dataset": dataset},
            "source": SourceReference(blob=blob),
            **options,
        }
        request = AssetSubmissionRequest(**given)
        return await submit_asset(self.store, self.library, self.storage, request=request, caller=caller)

    def put(self, blob: str, content: bytes) -> None:
        location = self.storage.location(blob, zone=Zone.BRONZE)
        if not self.storage.exists(location) or self.storage.get(location) != content:
            self.storage.put(location, content)

    async def process(self, submitted: AssetSubmissionResult, *, tiles: int = 0, status: str = "completed") -> None:
        """Write the documents of a revision, and end its job."""
        await self.write_documents(submitted.dataset_id, submitted.version_ordinal, submitted.revision, tiles=tiles)
        await self.end_job(submitted.job_id, status)

    async def publish(self, dataset: str = "dem", **options: Any) -> AssetSubmissionResult:
        """Submit, process and approve."""
        tiles, clearance = options.pop("tiles", 0), options.pop("clearance", "ouo")
        submitted = await self.submit(dataset, **options)
        await self.process(submitted, tiles=tiles)
        level = Clearance(clearance) if clearance else None
        await approve(self.store, submitted.asset_id, submitted.version_ordinal, caller=BOB, clearance=level)
        return submitted

    async def write_documents(self, dataset_id: str, ordinal: int, revision: int, *, tiles: int = 0) -> None:
        parts = [f"-t{number}" for number in range(tiles)] or [""]
        documents = [collection(dataset_id, ordinal, revision, is_tiled=tiles > 0)]
        documents += [item(dataset_id, ordinal, revision, part) for part in parts]
        for document in documents:
            document_id = "" if document["type"] == "Collection" else document["id"]
            await self.execute(
                "INSERT INTO dagapp.stac_documents (dataset_id, version_ordinal, revision, document_id, content) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (dataset_id, version_ordinal, revision, document_id) "
                "DO UPDATE SET content = excluded.content",
                dataset_id,
                ordinal,
                revision,
                document_id,
                Jsonb(document),
            )

    async def end_job(self, job_id: UUID | None, status: str = "completed", **result: Any) -> None:
        begin = "UPDATE dagapp.dag_jobs SET status = 'running', started_at = now() WHERE job_id = %s"
        await self.execute(begin, job_id)
        await self.execute(
            "UPDATE dagapp.dag_jobs SET status = %s, completed_at = now(), result_data = %s, error_message = %s "
            "WHERE job_id = %s",
            status,
            Jsonb(result or {"blob_path": "cogs/x", "content_hash": sha256(str(job_id).encode()).hexdigest()}),
            "it broke" if status == "failed" else None,
            job_id,
        )

    async def execute(self, text: str, *values: Any) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(text, values)

    async def rows(self, text: str, *values: Any) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return await (await cursor.execute(text, values)).fetchall()

    async def items(self, dataset_id: str = "dem") -> dict[str, tuple[int, int]]:
        """The items of a collection in pgSTAC, with their ordinals and revisions."""
        text = "SELECT id, content -> 'properties' AS p FROM pgstac.items WHERE collection = %s"
        rows = await self.rows(text, dataset_id)
        return {row["id"]: (row["p"]["dagmaster:version_ordinal"], row["p"]["dagmaster:revision"]) for row in rows}

    async def collection(self, dataset_id: str = "dem") -> dict[str, Any] | None:
        rows = await self.rows("SELECT content FROM pgstac.collections WHERE id = %s", dataset_id)
        return rows[0]["content"] if rows else None


@asynccontextmanager
async def opened(dsn: str, folder: Path) -> AsyncIterator[Kit]:
    storage = open_storage(Settings(storage_folder=folder))
    library = library_of(Settings(), installed())
    async with LayerStore(dsn) as store:
        yield Kit(dsn, store, storage, library)


def collection(dataset_id: str, ordinal: int, revision: int, *, is_tiled: bool) -> dict[str, Any]:
    mosaic = {"href": f"/files/silver/silver/mosaics/{dataset_id}/v{ordinal}/r{revision}/mosaic.json"}
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": dataset_id,
        "title": f"Title of version {ordinal}",
        "description": f"revision {revision}",
        "license": "other",
        "links": [],
        "assets": {"mosaic": mosaic} if is_tiled else {},
        "renders": {"default": {"assets": ["mosaic"]}} if is_tiled else {},
        "item_assets": {"data": {"type": "image/tiff", "roles": ["data"]}},
        "summaries": {"version": [str(ordinal)]},
        "extent": {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}},
        "dagmaster:version_ordinal": ordinal,
        "dagmaster:revision": revision,
    }


def item(dataset_id: str, ordinal: int, revision: int, part: str = "") -> dict[str, Any]:
    west = 10.0 + ordinal
    ring = [[west, 46.0], [west + 0.5, 46.0], [west + 0.5, 46.5], [west, 46.5], [west, 46.0]]
    item_id = f"{dataset_id}-v{ordinal}{part}"
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": dataset_id,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, 46.0, west + 0.5, 46.5],
        "properties": {
            "datetime": START,
            "version": str(ordinal),
            "dagmaster:version_ordinal": ordinal,
            "dagmaster:revision": revision,
        },
        "links": [{"rel": "self", "href": f"/stac/collections/{dataset_id}/items/{item_id}"}],
        "assets": {
            "data": {
                "href": f"/files/silver/silver/cogs/{dataset_id}/v{ordinal}/r{revision}/x{part}.tif",
                "type": "image/tiff",
                "roles": ["data"],
                "file:size": 1000,
            }
        },
    }
