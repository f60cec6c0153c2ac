"""Assets: a partner sees those of its own platform; reviewers, operators and administrators see all. Changes are
forwarded."""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.decision import may_preview, own_platform_of, readable_clearances
from dagmaster.access.permissions import Permission
from dagmaster.assets.states import Clearance
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.gateway import GatewayAsset, PartnerStatus
from dagmaster.client.models.layers import LayerInfo, LayerMetadataInfo
from dagmaster.client.models.pages import Page
from dagmaster.errors import NotFound
from dagmaster.gateway.forward import ForwardedRequest, headers_of, passed_back
from dagmaster.gateway.platform import partner_problem
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_id, page_of
from dagmaster.web.validation import responses

router = APIRouter(prefix="/api/assets", tags=["assets"])
layers = APIRouter(prefix="/api/layers", tags=["assets"])

Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]
Reviewer = Annotated[Caller, Depends(needs(Permission.ASSETS_REVIEW))]
Decider = Annotated[Caller, Depends(needs(Permission.ASSETS_DECIDE))]
Editor = Annotated[Caller, Depends(needs(Permission.METADATA_WRITE))]
Remover = Annotated[Caller, Depends(needs(Permission.ASSETS_DELETE))]
LayerName = Annotated[str, Path(max_length=128, description="The layer; `raster` for a raster")]
AssetName = Annotated[str, Path(max_length=200, description="The id of the asset, or of its dataset")]
Ordinal = Annotated[int, Path(ge=0, le=2**31 - 1, description="The number of the version, from 0")]

_REF = "ref."
_MAX_REQUESTS = 100


@router.get("", operation_id="gateway_assets", summary="List assets, newest first", responses=responses(429))
async def list_assets(
    *,
    services: Services,
    caller: Reader,
    request: Request,
    platform_id: Annotated[str | None, Query(max_length=64, description="Only assets of this platform")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[GatewayAsset]:
    """`ref.NAME=value` selects assets by their references."""
    _require_preview(caller)
    own_platform_id = own_platform_of(caller)
    if own_platform_id is not None and platform_id not in (None, own_platform_id):
        return Page[GatewayAsset](items=[], next=None)
    refs = {name.removeprefix(_REF): value for name, value in request.query_params.items() if name.startswith(_REF)}
    rows = await services.reads.assets(
        own_platform_id or platform_id, limit=limit + 1, after=moment_and_id(after), refs=refs
    )
    return page_of(rows, limit, lambda asset: joined(asset.created_at.isoformat(), asset.asset_id))


@router.get(
    "/{asset_id}", operation_id="gateway_asset", summary="Get an asset with its versions", responses=responses(404, 429)
)
async def get_asset(services: Services, caller: Reader, asset_id: AssetName) -> GatewayAsset:
    return await _asset(services, caller, asset_id)


@router.get(
    "/{asset_id}/versions/{version_ordinal}/requests",
    operation_id="gateway_requests",
    summary="List the requests that led to a version",
    responses=responses(404, 429),
)
async def list_requests(
    services: Services, caller: Reader, asset_id: AssetName, version_ordinal: Ordinal
) -> list[PartnerStatus]:
    asset = await _asset(services, caller, asset_id)
    own_platform_id = own_platform_of(caller)
    return await services.reads.requests_of_version(asset.asset_id, version_ordinal, own_platform_id, _MAX_REQUESTS)


@router.get(
    "/{asset_id}/layers",
    operation_id="gateway_asset_layers",
    summary="List the layers of an asset with their metadata",
    responses=responses(404, 429),
)
async def list_layers_of_asset(services: Services, caller: Reader, asset_id: AssetName) -> Page[LayerMetadataInfo]:
    asset = await _asset(services, caller, asset_id)
    layers = await services.reads.layer_metadata(asset.asset_id)
    return Page[LayerMetadataInfo](items=layers, next=None)


@router.get(
    "/{asset_id}/layers/{layer}/metadata",
    operation_id="gateway_layer_metadata",
    summary="Get the metadata of a layer",
    responses=responses(404, 429),
)
async def get_layer_metadata(
    services: Services, caller: Reader, response: Response, asset_id: AssetName, layer: LayerName
) -> LayerMetadataInfo:
    """The response has an ETag, for the `If-Match` header of a change at the same URL."""
    asset = await _asset(services, caller, asset_id)
    for metadata in await services.reads.layer_metadata(asset.asset_id):
        if metadata.layer == layer:
            response.headers["ETag"] = f'"{metadata.etag}"'
            return metadata
    raise NotFound("the asset has no such layer", code="layer.not-found")


async def _change_layer_metadata(
    services: Services, caller: Editor, request: Request, asset_id: AssetName, layer: LayerName
) -> Response:
    """The body is the same as for the API of the orchestrator. `If-Match` is supported."""
    asset = await _asset(services, caller, asset_id)
    return await _forward(
        services, caller, request, f"/assets/{asset.asset_id}/layers/{quote(layer, safe='')}/metadata"
    )


for _method, _summary in (("PUT", "Replace the metadata of a layer"), ("PATCH", "Change the metadata of a layer")):
    router.add_api_route(
        "/{asset_id}/layers/{layer}/metadata",
        _change_layer_metadata,
        methods=[_method],
        operation_id=f"gateway_{_method.lower()}_layer_metadata",
        summary=_summary,
        responses=responses(404, 409, 412, 429, 504),
    )


@router.delete(
    "/{asset_id}/versions/{version_ordinal}",
    operation_id="gateway_delete_version",
    summary="Delete a version",
    responses=responses(404, 409, 412, 429, 504),
)
async def delete_version(
    services: Services, caller: Remover, request: Request, asset_id: AssetName, version_ordinal: Ordinal
) -> Response:
    asset = await _asset(services, caller, asset_id)
    return await _forward(services, caller, request, f"/assets/{asset.asset_id}/versions/{version_ordinal}")


@router.delete(
    "/{asset_id}",
    operation_id="gateway_delete_asset",
    summary="Delete an asset",
    responses=responses(404, 409, 412, 429, 504),
)
async def delete_asset(services: Services, caller: Remover, request: Request, asset_id: AssetName) -> Response:
    asset = await _asset(services, caller, asset_id)
    return await _forward(services, caller, request, f"/assets/{asset.asset_id}")


@router.post(
    "/{asset_id}/versions/{version_ordinal}/{action}",
    operation_id="gateway_change_version",
    summary="Approve, reject, unpublish or export a version",
    responses=responses(404, 409, 412, 429, 504),
)
async def change_version(
    *,
    services: Services,
    caller: Decider,
    request: Request,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    action: Literal["approve", "reject", "unpublish", "export"],
) -> Response:
    """The body is the same as for the API of the orchestrator."""
    asset = await _asset(services, caller, asset_id)
    return await _forward(services, caller, request, f"/assets/{asset.asset_id}/versions/{version_ordinal}/{action}")


@router.post(
    "/{asset_id}/{action}",
    operation_id="gateway_change_asset",
    summary="Clear, expose or unpublish an asset",
    responses=responses(404, 409, 412, 429, 504),
)
async def change_asset(
    services: Services,
    caller: Reviewer,
    request: Request,
    asset_id: AssetName,
    action: Literal["clear", "expose", "unpublish"],
) -> Response:
    """The body is the same as for the API of the orchestrator."""
    asset = await _asset(services, caller, asset_id)
    return await _forward(services, caller, request, f"/assets/{quote(asset.asset_id, safe='')}/{action}")


@layers.get("", operation_id="gateway_layers", summary="List published layers", responses=responses(429))
async def list_layers(services: Services, caller: Reader, after: Cursor = None, limit: Limit = 50) -> Page[LayerInfo]:
    """Ordered by dataset. A partner sees the layers of its own platform."""
    dataset_id, _, layer = (after or "~").rpartition("~")
    own_platform_id = own_platform_of(caller)
    all_clearances = frozenset({Clearance.OUO, Clearance.PUBLIC})
    clearances = readable_clearances(caller) if own_platform_id is None else all_clearances
    rows = await services.reads.layers(clearances, own_platform_id, limit=limit + 1, after=(dataset_id, layer))
    return page_of(rows, limit, lambda row: joined(row.dataset_id, row.layer))


async def _asset(services: GatewayServices, caller: Caller, name: str) -> GatewayAsset:
    _require_preview(caller)
    asset = await services.reads.asset(name, own_platform_of(caller))
    if asset is None:
        raise NotFound("there is no such asset", code="asset.not-found")
    return asset


def _require_preview(caller: Caller) -> None:
    """Viewers read published assets from the map server; the gateway would also show assets that are not published."""
    if not caller.has(Scope.B2B) and not may_preview(caller):
        raise NotFound("there is no such asset", code="asset.not-found", hint="the map server lists published assets")


async def _forward(services: GatewayServices, caller: Caller, request: Request, path: str) -> Response:
    forwarded = ForwardedRequest(
        request.method, f"{PREFIX}{path}", headers_of(request), request.url.query, await request.body()
    )
    response = await services.forwarder.send(forwarded)
    if not response.is_success and own_platform_of(caller) is not None:
        return partner_problem(response, request)
    return passed_back(response)
