"""Handlers that write STAC documents to the catalogue. The documents are complete when they arrive.

Each handler may run twice, and at the same time as others: a document replaces the one with the same id.
"""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.database.catalog.pgstac import BATCH_ITEMS, StacCatalog
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers.context import Context
from dagmaster.jobs.states import NodeStatus
from dagmaster.stac.versions import joined

Json = dict[str, Any]

MAX_NAMED = 10
_IDS_PER_QUERY = 5_000


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class EnsureCollectionParams(_Frozen):
    collection: Json


class CollectionResult(_Frozen):
    stac_collection_id: str
    is_new: bool


async def ensure_collection(ctx: Context, params: EnsureCollectionParams) -> CollectionResult:
    """Create or update a STAC collection. Its extent remains that of its items, and earlier versions stay in it."""
    is_new = await StacCatalog(ctx.database).ensure_collection(params.collection, joined)
    return CollectionResult(stac_collection_id=params.collection["id"], is_new=is_new)


class ItemParams(_Frozen):
    item: Json


class ItemResult(_Frozen):
    stac_item_id: str
    stac_collection_id: str


async def register_item(ctx: Context, params: ItemParams) -> ItemResult:
    """Add one STAC item to its collection, or replace it."""
    await StacCatalog(ctx.database).upsert_items([params.item])
    return ItemResult(stac_item_id=params.item["id"], stac_collection_id=params.item["collection"])


class ItemSource(_Frozen):
    """Items may be in the params, or in the outputs of a fan_out's children: `item_field` holds one item or a list."""

    results_of: Json | None = None
    item_field: str = "stac_item"


class ItemsParams(ItemSource):
    items: list[Json] | None = None


class ItemsResult(_Frozen):
    stac_collection_id: str | None
    item_count: int


async def register_items(ctx: Context, params: ItemsParams) -> ItemsResult:
    """Add many STAC items to one collection, or replace them, in batches."""
    catalog = StacCatalog(ctx.database)
    count, collections = 0, set[Any]()
    async for batch in _batches(_items(ctx, params), BATCH_ITEMS):
        collections |= {item.get("collection") for item in batch}
        if len(collections) > 1:
            raise UnfitData(
                "items that are registered together must be of one collection", code="stac.many-collections"
            )
        count += await catalog.upsert_items(batch)
        ctx.progress(message="registering items", items=count)
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
    return ItemsResult(stac_collection_id=next(iter(collections), None), item_count=count)


class FinalizeParams(ItemSource):
    """With `version_ordinal` and `revision`, items of earlier revisions of this version are removed."""

    collection_id: str
    item_ids: list[str] | None = None
    expected_count: int | None = Field(None, ge=0)
    version_ordinal: int | None = Field(None, ge=0)
    revision: int | None = Field(None, ge=1)


class FinalizeResult(_Frozen):
    stac_collection_id: str
    item_count: int
    removed_count: int
    collection_item_count: int
    extent: Json | None


async def finalize(ctx: Context, params: FinalizeParams) -> FinalizeResult:
    """Verify that all items are in the catalogue, remove those of earlier revisions, and update the extent."""
    catalog = StacCatalog(ctx.database)
    item_ids = await _expected_ids(ctx, params)
    await _require_all(catalog, params.collection_id, item_ids)
    removed: list[str] = []
    if params.version_ordinal is not None and params.revision is not None:
        removed = await catalog.delete_older(
            params.collection_id, ordinal=params.version_ordinal, revision=params.revision
        )
    extent = await catalog.refresh_extent(params.collection_id)
    return FinalizeResult(
        stac_collection_id=params.collection_id,
        item_count=len(item_ids),
        removed_count=len(removed),
        collection_item_count=await catalog.count_items(params.collection_id),
        extent=extent,
    )


async def _expected_ids(ctx: Context, params: FinalizeParams) -> list[str]:
    ids = params.item_ids
    if ids is None:
        ids = [item["id"] async for item in _items_of_children(ctx, params.item_field)]
    # Of two tiles with the same id only one would be in the catalogue.
    if repeated := [item_id for item_id, times in Counter(ids).items() if times > 1]:
        raise UnfitData(f"several items have the same id: {_named(repeated)}", code="stac.duplicate-items")
    if params.expected_count not in (None, len(ids)):
        raise HandlerFailed(
            f"{params.expected_count} items were expected, but the results have {len(ids)}", code="stac.wrong-count"
        )
    return ids


async def _require_all(catalog: StacCatalog, collection_id: str, item_ids: list[str]) -> None:
    missing: list[str] = []
    for start in range(0, len(item_ids), _IDS_PER_QUERY):
        missing += await catalog.missing_items(collection_id, item_ids[start : start + _IDS_PER_QUERY])
    if missing:
        raise HandlerFailed(
            f"{len(missing)} of {len(item_ids)} items are not in collection '{collection_id}': {_named(missing)}",
            code="stac.items-missing",
            hint="resume the job from the node that registers them",
        )


def _named(item_ids: list[str]) -> str:
    more = len(item_ids) - MAX_NAMED
    return ", ".join(item_ids[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


async def _items(ctx: Context, params: ItemsParams) -> AsyncIterator[Json]:
    if params.items is None:
        async for item in _items_of_children(ctx, params.item_field):
            yield item
    else:
        for item in params.items:
            yield item


async def _items_of_children(ctx: Context, field: str) -> AsyncIterator[Json]:
    """The items in the outputs of children that completed. Null stands for a tile without data, which has no item."""
    async for result in ctx.results():
        if result.status != NodeStatus.COMPLETED:
            continue
        if not isinstance(result.output, dict) or field not in result.output:
            raise UnfitData(
                f"the output of {result.node_id} has no `{field}`", code="stac.no-item", node_id=result.node_id
            )
        value = result.output[field]
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                yield item


async def _batches(items: AsyncIterator[Json], size: int) -> AsyncIterator[list[Json]]:
    batch: list[Json] = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
