"""Handlers that list, copy and read blobs and documents."""

from pathlib import PurePosixPath

import orjson
from pydantic import AliasChoices, BaseModel, Field

from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.outputs import in_silver, megabytes
from dagmaster.handlers.raster.results import DocumentsResult, InventoryResult, ItemDocuments, MountResult
from dagmaster.handlers.raster.sources import SourceParams, find_source, unchanged
from dagmaster.storage.location import STAC_COLLECTION, Edition, Folder, Zone, intermediate


def blob_to_mount(ctx: SyncContext, params: SourceParams) -> MountResult:
    """Copy a source that cannot be read in place to the job's own folder; the copy is deleted with the job."""
    source = find_source(ctx.storage, params, ctx.job_id)
    target = in_silver(ctx.storage, intermediate(ctx.job_id, source.name))
    if source.location is None:
        raise UnfitData("only a blob can be copied", code="source.not-a-blob")
    with ctx.storage.scratch(ctx.job_id) as folder:
        with unchanged(ctx.storage, source, params.etag):
            ctx.storage.get_file(source.location, folder / "copy")
        stored = ctx.storage.put_file(target, folder / "copy", move=True)
    return MountResult(
        mounted_container=target.container, mounted_blob=target.blob, size_mb=megabytes(stored.size_bytes)
    )


class EditionParams(BaseModel):
    dataset_id: str
    version_ordinal: int = Field(0, ge=0)
    revision: int = Field(1, ge=1)


def stac_documents(ctx: SyncContext, params: EditionParams) -> DocumentsResult:
    """Read the collection that an earlier job stored, and list its item documents."""
    edition = Edition(params.dataset_id, params.version_ordinal, params.revision)
    collection = in_silver(ctx.storage, edition.stac(STAC_COLLECTION))
    if not ctx.storage.exists(collection):
        raise UnfitData(
            f"version {params.version_ordinal}, revision {params.revision} of dataset '{params.dataset_id}' "
            "has no STAC documents",
            code="stac.no-documents",
            hint="process the dataset first, or correct its id, version or revision",
        )
    folder = Folder(Zone.SILVER, collection.container, str(PurePosixPath(collection.blob).parent))
    names = sorted(item.location.blob for item in ctx.storage.list(folder) if item.location.name != STAC_COLLECTION)
    return DocumentsResult(collection=orjson.loads(ctx.storage.get(collection)), blobs=names, count=len(names))


class DocumentsParams(BaseModel):
    items: list[str]


def stac_read_items(ctx: SyncContext, params: DocumentsParams) -> ItemDocuments:
    """Read STAC items from the documents that an earlier job stored."""
    documents = (ctx.storage.get(in_silver(ctx.storage, blob)) for blob in params.items)
    return ItemDocuments(stac_item=[orjson.loads(document) for document in documents])


class InventoryParams(BaseModel):
    """`prefix` is a folder; `suffixes` are the endings of file names that are listed. More blobs than `limit` are an
    error. `most` is the former name of `limit`."""

    zone: Zone = Zone.BRONZE
    container_name: str | None = None
    prefix: str = ""
    suffixes: list[str] = [".tif", ".tiff"]
    limit: int = Field(100_000, ge=1, le=100_000, validation_alias=AliasChoices("limit", "most"))


def inventory(ctx: SyncContext, params: InventoryParams) -> InventoryResult:
    """List the blobs below a folder, sorted by name."""
    container = params.container_name or ctx.storage.containers[params.zone]
    folder = Folder(params.zone, container, params.prefix.strip("/"))
    suffixes = tuple(suffix.lower() for suffix in params.suffixes)
    blobs = sorted(
        (item.location.blob, item.size_bytes)
        for item in ctx.storage.list(folder)
        if item.location.blob.lower().endswith(suffixes)
    )
    if not blobs:
        raise NotFound(f"{folder} has no blob whose name ends with {', '.join(suffixes)}", code="inventory.empty")
    if len(blobs) > params.limit:
        raise InvalidRequest(
            f"{folder} has {len(blobs)} blobs, more than the limit of {params.limit}",
            code="inventory.too-many",
            hint="list a subfolder, or raise `limit`",
        )
    return InventoryResult(
        container_name=folder.container,
        blobs=[blob for blob, _ in blobs],
        count=len(blobs),
        size_mb=megabytes(sum(size_bytes for _, size_bytes in blobs)),
    )
