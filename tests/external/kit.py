"""Public datasets with real files and documents. The files are not rasters, because nothing here reads pixels."""

import hashlib
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from dagmaster.client.models.assets import AssetSubmissionResult, ExternalCopiesInfo
from dagmaster.storage import Zone
from dagmaster.storage.location import Edition
from tests.operations.kit import Kit

WORKFLOWS = ("external_export", "adf_export", "unpublish")


async def processed(kit: Kit, dataset: str = "dem", *, tiles: int = 3, **options: Any) -> AssetSubmissionResult:
    """A dataset that is processed and not approved: files of 10 kB in silver, with their checksums in the documents."""
    submitted = await kit.submit(dataset, **options)
    await kit.write_documents(dataset, submitted.version_ordinal, submitted.revision, tiles=tiles)
    edition = Edition(dataset, submitted.version_ordinal, submitted.revision)
    for number in range(tiles):
        content = random.Random(f"{edition}{number}").randbytes(10_000)
        kit.storage.put(kit.storage.location(edition.cog(f"x-t{number}.tif"), zone=Zone.SILVER), content)
        checksum = Jsonb(f"1220{hashlib.sha256(content).hexdigest()}")
        await kit.execute(
            "UPDATE dagapp.stac_documents SET content = jsonb_set(content, '{assets,data,file:checksum}', %s) "
            "WHERE dataset_id = %s AND revision = %s AND document_id LIKE %s",
            checksum,
            dataset,
            submitted.revision,
            f"%-t{number}",
        )
    mosaic = f'{{"mosaicjson": "0.0.3", "tiles": {{"0": ["x-t{tiles - 1}.tif"]}}}}'
    kit.storage.put(kit.storage.location(edition.mosaic(), zone=Zone.SILVER), mosaic.encode())
    await kit.end_job(submitted.job_id, blob_path=edition.mosaic(), content_hash="ab" * 32)
    return submitted


async def copies(kit: Kit, dataset: str = "dem", ordinal: int = 0, revision: int = 1) -> ExternalCopiesInfo:
    asset = await kit.store.asset(dataset)
    return next(each.external for each in asset.versions[ordinal].revisions if each.revision == revision)


async def jobs(kit: Kit, *workflows: str) -> list[Mapping[str, Any]]:
    text = "SELECT * FROM dagapp.dag_jobs WHERE workflow_id = ANY (%s) ORDER BY created_at, job_id"
    return await kit.rows(text, list(workflows or WORKFLOWS))


async def end(kit: Kit, job_id: UUID | None, status: str = "completed") -> None:
    """End a job as an orchestrator does."""
    result = {
        "external_blob_path": "external/x",
        "external_stac_path": "external/y",
        "external_manifest_path": "external/z",
    }
    await kit.end_job(job_id, status, **result)


def external_files(folder: Path) -> dict[str, str]:
    """The hash of every object in the external zone, by its name."""
    root = folder / "external" / "external"
    files = [Path(parent, name) for parent, _, names in os.walk(root) for name in names]
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
