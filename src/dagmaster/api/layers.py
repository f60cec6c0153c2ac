"""Layers: the metadata that people write about them, and the catalogue of published layers.

Edits are not visible until the command `metadata.publish` publishes them.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Response

from dagmaster.access.caller import Caller
from dagmaster.access.decision import may_preview, own_platform_of, readable_clearances
from dagmaster.access.permissions import Permission
from dagmaster.api.assets import AssetName, read_asset, with_etag
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.assets import AssetInfo
from dagmaster.client.models.layers import LayerInfo, LayerMetadataChange, LayerMetadataInfo, LayerMetadataRequest
from dagmaster.client.models.pages import Page
from dagmaster.database.assets.reads import no_such_asset
from dagmaster.operations.assets.metadata import edit_metadata
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Cursor, Limit, joined, page_of

router = APIRouter(tags=["layers"])

Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]
Editor = Annotated[Caller, Depends(needs(Permission.METADATA_WRITE))]
LayerName = Annotated[str, Path(max_length=128, description="The layer; `raster` for a raster", examples=["raster"])]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=200, description="The ETag of the metadata that the caller has seen"),
]


@router.get("/layers", operation_id="list_layers", summary="List published layers", responses=responses())
async def list_layers(
    *,
    services: Services,
    caller: Reader,
    platform_id: Annotated[str | None, Query(max_length=64, description="Only layers of this platform")] = None,
    keyword: Annotated[str | None, Query(max_length=80, description="Only layers with this keyword")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[LayerInfo]:
    """Ordered by dataset. Callers see the layers of the data that they may read."""
    dataset_id, _, layer = (after or "~").rpartition("~")
    rows = await services.assets.layers(
        clearances=readable_clearances(caller),
        limit=limit + 1,
        after=(dataset_id, layer),
        platform_id=platform_id,
        keyword=keyword,
    )
    return page_of(rows, limit, lambda row: joined(row.dataset_id, row.layer))


@router.get(
    "/assets/{asset_id}/layers",
    operation_id="list_asset_layers",
    summary="List the layers of an asset with their metadata",
    responses=responses(404),
)
async def list_asset_layers(services: Services, caller: Reader, asset_id: AssetName) -> Page[LayerMetadataInfo]:
    """The metadata as it was edited, whether published or not. Only for reviewers, operators, administrators and the
    platform of the asset."""
    asset = await _asset_with_edits(services, caller, asset_id)
    layers = await services.assets.layer_metadata(asset.asset_id)
    return Page[LayerMetadataInfo](items=[_visible(caller, info) for info in layers], next=None)


@router.get(
    "/assets/{asset_id}/layers/{layer}/metadata",
    operation_id="get_layer_metadata",
    summary="Get the metadata of a layer",
    responses={**with_etag(), **responses(404)},
)
async def get_layer_metadata(
    services: Services, caller: Reader, response: Response, asset_id: AssetName, layer: LayerName
) -> LayerMetadataInfo:
    asset = await _asset_with_edits(services, caller, asset_id)
    return _tagged(response, _visible(caller, await services.assets.layer(asset.asset_id, layer)))


@router.put(
    "/assets/{asset_id}/layers/{layer}/metadata",
    operation_id="put_layer_metadata",
    summary="Replace the metadata of a layer",
    responses={**with_etag(), **responses(404, 409, 412)},
)
async def put_layer_metadata(
    *,
    services: Services,
    caller: Editor,
    response: Response,
    asset_id: AssetName,
    layer: LayerName,
    metadata: LayerMetadataRequest,
    if_match: IfMatch = None,
) -> LayerMetadataInfo:
    """A field that is left out is removed. The change is not published until `metadata.publish` is run."""
    edited = await edit_metadata(services.assets, asset_id, layer, request=metadata, caller=caller, if_match=if_match)
    return _tagged(response, edited)


@router.patch(
    "/assets/{asset_id}/layers/{layer}/metadata",
    operation_id="change_layer_metadata",
    summary="Change some of the metadata of a layer",
    responses={**with_etag(), **responses(404, 409, 412)},
)
async def change_layer_metadata(
    *,
    services: Services,
    caller: Editor,
    response: Response,
    asset_id: AssetName,
    layer: LayerName,
    change: LayerMetadataChange,
    if_match: IfMatch = None,
) -> LayerMetadataInfo:
    """A field that is left out is not changed; null removes it."""
    edited = await edit_metadata(services.assets, asset_id, layer, request=change, caller=caller, if_match=if_match)
    return _tagged(response, edited)


async def _asset_with_edits(services: ApiServices, caller: Caller, name: str) -> AssetInfo:
    """Only callers who may see the asset before its publication see edits that are not published."""
    asset = await read_asset(services, caller, name)
    if not may_preview(caller) and asset.platform_id != own_platform_of(caller):
        raise no_such_asset(name)
    return asset


def _visible(caller: Caller, info: LayerMetadataInfo) -> LayerMetadataInfo:
    """Partners do not see who edited or published the metadata."""
    return info if may_preview(caller) else info.model_copy(update={"updated_by": None, "published_by": None})


def _tagged(response: Response, info: LayerMetadataInfo) -> LayerMetadataInfo:
    response.headers["ETag"] = f'"{info.etag}"'
    return info
