"""Handlers that write to the STAC catalogue. They are given ready STAC objects: what a dataset is like is known elsewhere.

Each may run twice, and at the same time as others: ids come from what is described, and what is there is replaced.
"""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, Field

from dagmaster.database.catalog.pgstac import BATCH_ITEMS, Catalog
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers.context import Context
from dagmaster.jobs.states import NodeStatus
from dagmaster.stac.versions import joined

Json = dict[str, Any]

NAMED_AT_MOST = 10
_IDS_AT_ONCE = 5_000


class CollectionParams(BaseModel):
    collection: Json


async def ensure_collection(ctx: Context, params: CollectionParams) -> Json:
    """Create a STAC collection, or bring it up to date: its extent stays that of its items, and older versions stay servable."""
    is_new = await Catalog(ctx.database).ensure_collection(params.collection, joined)
    return {"stac_collection_id": params.collection["id"], "is_new": is_new}


class ItemParams(BaseModel):
    item: Json


async def register_item(ctx: Context, params: ItemParams) -> Json:
    """Add one STAC item to its collection, or replace it."""
    await Catalog(ctx.database).upsert_items([params.item])
    return {"stac_item_id": params.item["id"], "stac_collection_id": params.item["collection"]}


class Promises(BaseModel):
    """Where items are told: here, or in the outputs of a fan_out's children, under `item_field`, one or a list of them."""

    results_of: Json | None = None
    item_field: str = "stac_item"


class ItemsParams(Promises):
    items: list[Json] | None = None


async def register_items(ctx: Context, params: ItemsParams) -> Json:
    """Add many STAC items of one collection, or replace them, in batches."""
    catalog = Catalog(ctx.database)
    count, collections = 0, set[Any]()
    async for batch in _batches(_items(ctx, params), BATCH_ITEMS):
        collections |= {item.get("collection") for item in batch}
        if len(collections) > 1:
            raise UnfitData("items that are registered together name one collection", code="stac.many-collections")
        count += await catalog.upsert_items(batch)
        ctx.progress(message="registering items", items=count)
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
    return {"stac_collection_id": next(iter(collections), None), "item_count": count}


class FinalizeParams(Promises):
    """`version_ordinal` and `revision`: items that earlier revisions left of this version are removed."""

    collection_id: str
    item_ids: list[str] | None = None
    expected_count: int | None = Field(None, ge=0)
    version_ordinal: int | None = Field(None, ge=0)
    revision: int | None = Field(None, ge=1)


async def finalize(ctx: Context, params: FinalizeParams) -> Json:
    """See that every promised item is in the catalogue, remove those of earlier revisions, and make the extent true."""
    catalog = Catalog(ctx.database)
    promised = await _promised_ids(ctx, params)
    await _require_all(catalog, params.collection_id, promised)
    removed: list[str] = []
    if params.version_ordinal is not None and params.revision is not None:
        removed = await catalog.delete_older(
            params.collection_id, ordinal=params.version_ordinal, revision=params.revision
        )
    extent = await catalog.refresh_extent(params.collection_id)
    return {
        "stac_collection_id": params.collection_id, "item_count": len(promised), "removed_count": len(removed),
        "collection_item_count": await catalog.count_items(params.collection_id), "extent": extent,
    }  # fmt: skip


async def _promised_ids(ctx: Context, params: FinalizeParams) -> list[str]:
    given = params.item_ids
    ids = given if given is not None else [item["id"] async for item in _told(ctx, params.item_field)]
    # Two tiles of one name would each be found, and one of them be lost.
    if doubled := [item_id for item_id, times in Counter(ids).items() if times > 1]:
        raise UnfitData(f"items were promised twice: {_named(doubled)}", code="stac.duplicate-items")
    if params.expected_count not in (None, len(ids)):
        raise HandlerFailed(
            f"{params.expected_count} items were expected and {len(ids)} are promised", code="stac.wrong-count"
        )
    return ids


async def _require_all(catalog: Catalog, collection_id: str, item_ids: list[str]) -> None:
    missing: list[str] = []
    for start in range(0, len(item_ids), _IDS_AT_ONCE):
        missing += await catalog.missing_items(collection_id, item_ids[start : start + _IDS_AT_ONCE])
    if missing:
        raise HandlerFailed(
            f"{len(missing)} of {len(item_ids)} items are not in collection '{collection_id}': {_named(missing)}",
            code="stac.items-missing",
            hint="resume the job from where they are registered",
        )


def _named(item_ids: list[str]) -> str:
    more = len(item_ids) - NAMED_AT_MOST
    return ", ".join(item_ids[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


async def _items(ctx: Context, params: ItemsParams) -> AsyncIterator[Json]:
    if params.items is None:
        async for item in _told(ctx, params.item_field):
            yield item
    else:
        for item in params.items:
            yield item


async def _told(ctx: Context, field: str) -> AsyncIterator[Json]:
    """The items in the outputs of children that completed. One that says null has none: its tile was empty."""
    async for result in ctx.results():
        if result.status != NodeStatus.COMPLETED:
            continue
        if not isinstance(result.output, dict) or field not in result.output:
            raise UnfitData(f"{result.node_id} tells no {field}", code="stac.no-item", node_id=result.node_id)
        told = result.output[field]
        for item in told if isinstance(told, list) else [told]:
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
