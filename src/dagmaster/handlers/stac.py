"""Handlers that write STAC documents for the revision that a job processes. Only its approval publishes them.

The params contain complete documents. Each handler may run twice, and at the same time as others: a document replaces
the one with the same id.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field

from dagmaster.database.assets.documents import BATCH_ITEMS, RevisionDocuments
from dagmaster.dataset_ids import RevisionKey
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers.context import Context
from dagmaster.handlers.frozen import FrozenModel
from dagmaster.jobs.states import NodeStatus
from dagmaster.stac.validate import refuse_unpublishable

Json = dict[str, Any]

MAX_NAMED = 10
_IDS_PER_QUERY = 5_000


class EnsureCollectionParams(FrozenModel):
    collection: Json


class CollectionResult(FrozenModel):
    stac_collection_id: str
    is_new: bool


async def ensure_collection(ctx: Context, params: EnsureCollectionParams) -> CollectionResult:
    """Store the STAC collection of a revision, or replace it."""
    await _require_publishable(ctx, [params.collection])
    key = _key_of(params.collection)
    is_new = await _documents(ctx, key).put_collection(params.collection)
    return CollectionResult(stac_collection_id=key.dataset_id, is_new=is_new)


class ItemParams(FrozenModel):
    item: Json


class ItemResult(FrozenModel):
    stac_item_id: str
    stac_collection_id: str


async def register_item(ctx: Context, params: ItemParams) -> ItemResult:
    """Store one STAC item of a revision, or replace it."""
    await _require_publishable(ctx, [params.item])
    key = _key_of(params.item)
    await _documents(ctx, key).put_items([params.item])
    return ItemResult(stac_item_id=params.item["id"], stac_collection_id=key.dataset_id)


def _documents(ctx: Context, key: RevisionKey) -> RevisionDocuments:
    return RevisionDocuments(ctx.database, key, ctx.job_id)


def _key_of(document: Json) -> RevisionKey:
    """The revision that a document belongs to. A document of other software belongs to revision 1 of version 0."""
    is_item = document.get("type") == "Feature"
    fields = document["properties"] if is_item else document
    dataset_id = str((document.get("collection") if is_item else document["id"]) or "")
    ordinal, revision = fields.get("dagmaster:version_ordinal", 0), fields.get("dagmaster:revision", 1)
    are_numbers = type(ordinal) is type(revision) is int
    if not dataset_id or not are_numbers or not 0 <= ordinal < 2**31 or not 1 <= revision < 2**31:
        raise UnfitData(
            f"'{str(document.get('id'))[:200]}' has no valid collection, version or revision",
            code="stac.no-revision",
            hint="`dagmaster:version_ordinal` counts from 0, `dagmaster:revision` from 1",
        )
    return RevisionKey(dataset_id, ordinal, revision)


async def _require_publishable(ctx: Context, documents: list[Json]) -> None:
    """Refuse documents that are not valid or have links that are not allowed. In a thread: 1,000 take a second."""
    addresses = ctx.addresses

    def check() -> None:
        for document in documents:
            collection_url = addresses.collection(str(document.get("collection")))
            refuse_unpublishable(document, addresses.allows, addresses.serves, collection_url)

    await asyncio.to_thread(check)


class ItemSource(FrozenModel):
    """Items may be in the params, or in the outputs of a fan_out's children: `item_field` holds one item or a list."""

    results_of: Json | None = None
    item_field: str = "stac_item"


class ItemsParams(ItemSource):
    items: list[Json] | None = None


class ItemsResult(FrozenModel):
    stac_collection_id: str | None
    item_count: int


async def register_items(ctx: Context, params: ItemsParams) -> ItemsResult:
    """Store many STAC items of a revision, or replace them, in batches."""
    count, keys = 0, set[RevisionKey]()
    async for batch in _batches(_items(ctx, params), BATCH_ITEMS):
        await _require_publishable(ctx, batch)
        keys |= {_key_of(item) for item in batch}
        if len(keys) > 1:
            raise UnfitData(
                "items that are registered together must be of one revision of one collection",
                code="stac.many-collections",
            )
        count += await _documents(ctx, next(iter(keys))).put_items(batch)
        ctx.progress(message="registering items", items=count)
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
    return ItemsResult(stac_collection_id=next((key.dataset_id for key in keys), None), item_count=count)


class FinalizeParams(ItemSource):
    """`version_ordinal` and `revision` default to those of the items in `results_of`, else to 0 and 1."""

    collection_id: str
    item_ids: list[str] | None = None
    expected_count: int | None = Field(None, ge=0)
    version_ordinal: int | None = Field(None, ge=0)
    revision: int | None = Field(None, ge=1)


class FinalizeResult(FrozenModel):
    """`collection_item_count` is the number of items of the revision."""

    stac_collection_id: str
    item_count: int
    removed_count: int
    collection_item_count: int
    extent: Json | None


async def finalize(ctx: Context, params: FinalizeParams) -> FinalizeResult:
    """Verify that all expected items of a revision are stored, remove other items, and set its collection's extent."""
    key, item_ids = await _expected(ctx, params)
    documents = _documents(ctx, key)
    await _require_all(documents, params.collection_id, item_ids)
    removed, extent = await documents.finish(item_ids)
    return FinalizeResult(
        stac_collection_id=params.collection_id,
        item_count=len(item_ids),
        removed_count=removed,
        collection_item_count=len(item_ids),
        extent=extent,
    )


async def _expected(ctx: Context, params: FinalizeParams) -> tuple[RevisionKey, list[str]]:
    """The revision, and the ids of all its items."""
    ordinal, revision, ids = params.version_ordinal, params.revision, params.item_ids
    if ids is None:
        ids = []
        async for item in _items_of_children(ctx, params.item_field):
            ids.append(item["id"])
            key = _key_of(item)
            ordinal, revision = ordinal if ordinal is not None else key.ordinal, revision or key.revision
    # If two tiles had the same id, only one of them would be in the catalogue.
    if repeated := [item_id for item_id, times in Counter(ids).items() if times > 1]:
        raise UnfitData(f"several items have the same id: {_named(repeated)}", code="stac.duplicate-items")
    if params.expected_count not in (None, len(ids)):
        raise HandlerFailed(
            f"{params.expected_count} items were expected, but the results have {len(ids)}", code="stac.wrong-count"
        )
    return RevisionKey(params.collection_id, ordinal or 0, revision or 1), ids


async def _require_all(documents: RevisionDocuments, collection_id: str, item_ids: list[str]) -> None:
    missing: list[str] = []
    for start in range(0, len(item_ids), _IDS_PER_QUERY):
        missing += await documents.missing(item_ids[start : start + _IDS_PER_QUERY])
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
