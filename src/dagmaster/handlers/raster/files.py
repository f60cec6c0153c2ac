"""Blobs and documents: what there is, copied or read again."""

from pathlib import PurePosixPath

import orjson
from pydantic import BaseModel, Field

from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import Json
from dagmaster.handlers.raster.workplace import COLLECTION, SourceParams, megabytes, place_of_work
from dagmaster.storage.location import Edition, Folder, Zone, intermediate


class MountParams(SourceParams):
    pass


def blob_to_mount(ctx: SyncContext, params: MountParams) -> Json:
    """Copy a source that can't be read where it is to the job's own folder; it goes away with the job."""
    place = place_of_work()
    source = place.source(params)
    target = place.silver(intermediate(ctx.job_id, source.name))
    if source.location is None:
        raise UnfitData("only a blob can be copied", code="source.not-a-blob")
    with place.storage.scratch(ctx.job_id) as folder:
        place.storage.get_file(source.location, folder / "copy")
        stored = place.storage.put_file(target, folder / "copy", move=True)
    return {
        "mounted_container": target.container,
        "mounted_blob": target.blob,
        "size_mb": megabytes(stored.size_bytes),
    }


class EditionParams(BaseModel):
    dataset_id: str
    version_ordinal: int = Field(0, ge=0)
    revision: int = Field(1, ge=1)


def stac_documents(_ctx: SyncContext, params: EditionParams) -> Json:
    """The collection that an earlier job described, and the names of its items' documents."""
    place = place_of_work()
    edition = Edition(params.dataset_id, params.version_ordinal, params.revision)
    collection = place.silver(edition.stac(COLLECTION))
    if not place.storage.exists(collection):
        raise UnfitData(
            f"no job has described '{params.dataset_id}', version {params.version_ordinal}, revision {params.revision}",
            code="stac.no-documents",
            hint="process the dataset first, or correct what names it",
        )
    folder = Folder(Zone.SILVER, collection.container, str(PurePosixPath(collection.blob).parent))
    blobs = sorted(found.location.blob for found in place.storage.list(folder) if found.location.name != COLLECTION)
    return {"collection": orjson.loads(place.storage.get(collection)), "blobs": blobs, "count": len(blobs)}


class DocumentsParams(BaseModel):
    items: list[str]


def stac_read_items(_ctx: SyncContext, params: DocumentsParams) -> Json:
    """The items in these documents."""
    place = place_of_work()
    return {"stac_item": [orjson.loads(place.storage.get(place.silver(blob))) for blob in params.items]}


class InventoryParams(BaseModel):
    """`prefix` is a folder; `suffixes` are endings of names."""

    zone: Zone = Zone.BRONZE
    container_name: str | None = None
    prefix: str = ""
    suffixes: list[str] = [".tif", ".tiff"]
    most: int = Field(100_000, ge=1, le=100_000)


def inventory(_ctx: SyncContext, params: InventoryParams) -> Json:
    """Which blobs there are below a folder, in the order of their names."""
    storage = place_of_work().storage
    folder = Folder(params.zone, params.container_name or storage.containers[params.zone], params.prefix.strip("/"))
    endings = tuple(ending.lower() for ending in params.suffixes)
    found = sorted(
        (each.location.blob, each.size_bytes)
        for each in storage.list(folder)
        if each.location.blob.lower().endswith(endings)
    )
    if not found:
        raise NotFound(f"nothing that ends with {', '.join(endings)} is in {folder}", code="inventory.empty")
    if len(found) > params.most:
        raise InvalidRequest(f"{len(found)} blobs are more than {params.most}", code="inventory.too-many")
    return {
        "container_name": folder.container,
        "blobs": [blob for blob, _ in found],
        "count": len(found),
        "size_mb": megabytes(sum(size for _, size in found)),
    }
