"""Changes of layers, each in one transaction with its event: edit, publish, withdraw; and rebuild the catalogue."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagmaster.assets.layers import LAYERS
from dagmaster.assets.states import Clearance, VersionRevision
from dagmaster.client.models.commands import ReindexResult
from dagmaster.client.models.layers import LayerInfo, LayerMetadataInfo
from dagmaster.database.assets import layers, rows
from dagmaster.database.assets.layers import Metadata
from dagmaster.database.assets.rows import Decision, LoadedAsset
from dagmaster.database.assets.store import AssetStore, seen_number
from dagmaster.database.catalog.publish import CollectionWriter
from dagmaster.database.connect import Connection
from dagmaster.database.notify.notifier import WORKFLOWS
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, NotFound

CollectionWriterOf = Callable[[str], CollectionWriter]
Change = Callable[[LayerMetadataInfo], Metadata]


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer after a command, and whether the command changed anything."""

    info: LayerMetadataInfo
    is_changed: bool


class LayerStore(AssetStore):
    """`async with LayerStore(dsn) as store`."""

    async def layer_metadata(self, asset_id: str) -> list[LayerMetadataInfo]:
        async with self._connected() as connection:
            return await layers.read_metadata(connection, asset_id, LAYERS)

    async def layer(self, asset_id: str, layer: str) -> LayerMetadataInfo:
        async with self._connected() as connection:
            return await _read(connection, asset_id, layer)

    async def layers(
        self,
        *,
        clearances: Iterable[Clearance],
        limit: int,
        after: tuple[str, str] = ("", ""),
        platform_id: str | None = None,
        keyword: str | None = None,
    ) -> list[LayerInfo]:
        """Published layers, by dataset id and name. `after` has both of the last layer of the previous page."""
        values = {
            "clearances": sorted(clearances),
            "limit": limit,
            "after_dataset": after[0],
            "after_layer": after[1],
            "platform_id": platform_id,
            "keyword": keyword,
        }
        return models(LayerInfo, await self._dicts("layer_catalog_page", values))

    async def edit(
        self, key: str, layer: str, change: Change, decision: Decision, *, if_match: str | None = None
    ) -> LayerMetadataInfo:
        """Write the metadata that `change` returns. If nothing changes, no event is recorded."""
        seen = seen_number(if_match, "layer")

        async def act(connection: Connection) -> LayerMetadataInfo:
            asset = await self._lock(connection, key, [])
            _require_present(asset)
            current = await _read(connection, asset.asset_id, layer)
            if seen not in (None, int(current.etag)):
                raise _changed(current)
            metadata = change(current)
            before = layers.edited(current)
            differing = sorted(
                name for name in layers.FIELDS if (before.get(name) or None) != (metadata.get(name) or None)
            )
            if not differing:
                return current
            await layers.write_metadata(connection, asset.asset_id, layer, metadata, decision.actor)
            detail = {**decision.detail, "layer": layer, "fields": differing}
            await rows.add_event(connection, replace(decision, detail=detail), asset_id=asset.asset_id)
            return await _read(connection, asset.asset_id, layer)

        return await self._transaction("edit_layer", act)

    async def publish_layer(
        self, key: str, layer: str, decision: Decision, writer: CollectionWriterOf, *, is_external: bool = False
    ) -> LayerChange:
        """Publish the metadata of a layer of a published asset; with `is_external`, record that the external database
        must have it too."""

        async def act(connection: Connection) -> LayerChange:
            asset = await self._lock(connection, key, [])
            _require_published(asset, is_external=is_external)
            info = await _read(connection, asset.asset_id, layer)
            is_changed = await layers.put_layer(connection, info, decision.actor)
            await writer(asset.dataset_id).publish_metadata(connection, asset.state.published)
            if is_external:
                is_changed = is_changed or info.external != "published"
                await layers.publish_externally(connection, asset.asset_id, layer, decision.actor)
            elif is_changed:
                await layers.make_due_externally(connection, asset.asset_id)
            await _record(connection, decision, asset, layer, is_changed=is_changed)
            return LayerChange(await _read(connection, asset.asset_id, layer), is_changed)

        return await self._transaction("publish_layer", act)

    async def withdraw_layer(self, key: str, layer: str, decision: Decision, writer: CollectionWriterOf) -> LayerChange:
        """Remove a layer from the catalogue and its metadata from the collection, and record that the external database
        must not have it."""

        async def act(connection: Connection) -> LayerChange:
            asset = await self._lock(connection, key, [])
            await _read(connection, asset.asset_id, layer)
            is_removed = await layers.remove_layer(connection, asset.asset_id, layer)
            if is_removed:
                await writer(asset.dataset_id).publish_metadata(connection, asset.state.published)
            is_due = await layers.withdraw_externally(connection, asset.asset_id, layer, decision.actor)
            is_changed = is_removed or is_due
            await _record(connection, decision, asset, layer, is_changed=is_changed)
            return LayerChange(await _read(connection, asset.asset_id, layer), is_changed)

        return await self._transaction("publish_layer", act)

    async def rebuild_items(self, key: str, decision: Decision, writer: CollectionWriterOf) -> ReindexResult:
        """Write the collection and all items of a published asset again, from the stored documents."""
        current = await self.state(key)
        if current is not None and current.state.published:
            await self.prepare(writer(current.dataset_id), current.state.published)

        async def act(connection: Connection) -> ReindexResult:
            asset = await self._lock(connection, key, [])
            editions = asset.state.published
            await writer(asset.dataset_id).publish(connection, [], editions)
            items = await _count(connection, asset.dataset_id, editions)
            detail = {**decision.detail, "items": items, "versions": len(editions)}
            await rows.add_event(connection, replace(decision, detail=detail), asset_id=asset.asset_id)
            return ReindexResult(
                asset_id=asset.asset_id, dataset_id=asset.dataset_id, versions=len(editions), items=items
            )

        return await self._transaction("publish_layer", act)

    async def invalidate_workflows(self, decision: Decision) -> int:
        """Make all orchestrators read their workflows again. Returns the new generation."""

        async def act(connection: Connection) -> int:
            (row,) = await dicts(connection, "cache_invalidate", {"actor": decision.actor})
            generation = int(row["generation"])
            detail = {**decision.detail, "generation": generation}
            await rows.add_event(connection, replace(decision, detail=detail))
            return generation

        generation = await self._transaction("invalidate_cache", act)
        self._notify(WORKFLOWS)
        return generation


async def _read(connection: Connection, asset_id: str, layer: str) -> LayerMetadataInfo:
    if layer in LAYERS:
        for info in await layers.read_metadata(connection, asset_id, [layer]):
            return info
    raise NotFound(
        f"the asset has no layer '{layer}'", code="layer.not-found", hint=f"its layers are: {', '.join(LAYERS)}"
    )


async def _count(connection: Connection, dataset_id: str, editions: Sequence[VersionRevision]) -> int:
    if not editions:
        return 0
    (row,) = await dicts(connection, "catalog_count", {"collection": dataset_id})
    return int(row["items"])


async def _record(connection: Connection, decision: Decision, asset: LoadedAsset, layer: str, **detail: Any) -> None:
    recorded = replace(decision, detail={**decision.detail, "layer": layer, **detail})
    await rows.add_event(connection, recorded, asset_id=asset.asset_id)


def _require_present(asset: LoadedAsset) -> None:
    if asset.state.is_deleted:
        raise Conflict("the asset is deleted", code="asset.deleted", hint="submit it again to restore it")


def _require_published(asset: LoadedAsset, *, is_external: bool) -> None:
    _require_present(asset)
    if not asset.state.published:
        raise Conflict(
            f"no version of '{asset.dataset_id}' is published",
            code="layer.not-published",
            hint="approve a version with a clearance, then publish the metadata",
        )
    if is_external and asset.state.clearance != Clearance.PUBLIC:
        raise Conflict(
            f"the clearance of '{asset.dataset_id}' is '{asset.state.clearance}': only public data may be exported",
            code="layer.not-public",
            hint="clear the asset as public, then publish the metadata externally",
        )


def _changed(info: LayerMetadataInfo) -> Conflict:
    return Conflict(
        "the metadata has changed since the ETag in If-Match was read",
        code="layer.changed",
        hint="read it again, and repeat the request with its new ETag",
        etag=info.etag,
        metadata=info.model_dump(mode="json"),
    )
