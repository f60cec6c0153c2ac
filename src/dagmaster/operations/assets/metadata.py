"""Layer metadata: edit it, publish it into STAC and the layer catalogue, and withdraw it."""

from typing import Any

from dagmaster.access.caller import Caller
from dagmaster.client.models.commands import ReindexResult
from dagmaster.client.models.layers import LayerMetadataChange, LayerMetadataInfo, LayerMetadataRequest
from dagmaster.database.assets.layer_store import LayerChange, LayerStore
from dagmaster.database.assets.layers import FIELDS, Metadata
from dagmaster.database.assets.rows import Decision
from dagmaster.operations.assets.change import writer_of
from dagmaster.stac.layers import check_metadata

EDITED = "metadata_edited"


async def edit_metadata(
    store: LayerStore,
    key: str,
    layer: str,
    *,
    request: LayerMetadataRequest,
    caller: Caller,
    if_match: str | None = None,
) -> LayerMetadataInfo:
    """Replace the metadata of a layer; with a `LayerMetadataChange`, fields that it leaves out are not changed. Nothing
    that is published changes."""
    changes = request.model_dump(exclude_none=True, mode="json")
    check_metadata(changes)

    def change(info: LayerMetadataInfo) -> Metadata:
        if not isinstance(request, LayerMetadataChange):
            return changes
        unchanged: dict[str, Any] = {name: getattr(info, name) for name in FIELDS}
        return {**unchanged, **{name: changes.get(name) for name in request.model_fields_set}}

    return await store.edit(key, layer, change, Decision(EDITED, caller.name), if_match=if_match)


async def publish_metadata(
    store: LayerStore, key: str, layer: str, decision: Decision, *, is_external: bool = False
) -> LayerChange:
    return await store.publish_layer(key, layer, decision, writer_of, is_external=is_external)


async def withdraw_metadata(store: LayerStore, key: str, layer: str, decision: Decision) -> LayerChange:
    return await store.withdraw_layer(key, layer, decision, writer_of)


async def reindex(store: LayerStore, key: str, decision: Decision) -> ReindexResult:
    """Rebuild the STAC collection and items of an asset from the documents of its approved revisions."""
    return await store.rebuild_items(key, decision, writer_of)
