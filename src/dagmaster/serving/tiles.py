"""The routes under `/tiles/{asset_id}`: TiTiler's factories with the dependencies and readers of this package.

    routes of TiTiler
      info    info.geojson    preview[.png|…]    point/{lon},{lat}    statistics
      bbox/{minx},{miny},{maxx},{maxy}[/{width}x{height}].{format}    POST feature[.png|…]    POST statistics
      tiles    tiles/{grid}    WMTSCapabilities.xml
    routes of this package
      tiles/{grid}/{z}/{x}/{y}[.png|.jpg|.webp]    {grid}/tilejson.json    map

This package has its own route for tiles, because tiles are requested most: the route has one dependency instead of
eighteen, and computes no mask for images that show none. It has its own route for TileJSON, because the tile URLs must
name the revision and the document describes the dataset, and its own map page, because TiTiler's page loads scripts
from other servers.
"""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

import numpy as np
import orjson
import rasterio
from attrs import define
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from morecantile import TileMatrixSet
from morecantile.defaults import TileMatrixSets
from rio_tiler.models import ImageData
from rio_tiler.utils import CRS_to_uri, render
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.templating import Jinja2Templates
from titiler.core.factory import TilerFactory, img_endpoint_params
from titiler.core.resources.enums import ImageType
from titiler.extensions.wmts import DEFAULT_TEMPLATES, wmtsExtension

from dagmaster.addresses import Addresses
from dagmaster.dataset_urls import GRID, TILES
from dagmaster.observe import traces
from dagmaster.serving import dependencies as deps
from dagmaster.serving.access import LATEST, revision_number
from dagmaster.serving.dependencies import FORMATS, AssetId, DatasetPath, Revision, TileOptions, VersionName
from dagmaster.serving.encoding import ENCODER, is_small
from dagmaster.serving.pages import page
from dagmaster.serving.readers import GDAL_ENVIRONMENT, open_for_display, open_for_values
from dagmaster.serving.rendering import legend_of
from dagmaster.serving.services import Services, services_of
from dagmaster.serving.sources import TileSource

PREFIX = TILES + "/{asset_id}"
_POINT = "/point/{lon},{lat}"
_CRS_URIS: dict[str | None, str | None] = {}
_FORMATS_WITHOUT_MASK = (ImageType.jpeg, ImageType.jpg)
_STATISTICS = "/statistics"
_FEATURES = ("/feature", "/feature.{format}", "/feature/{width}x{height}.{format}")
_BOXES = (
    "/bbox/{minx},{miny},{maxx},{maxy}.{format}",
    "/bbox/{minx},{miny},{maxx},{maxy}/{width}x{height}.{format}",
)
# TiTiler's POST routes that are served: they read, and their bodies are limited.
_POST_PATHS = frozenset([*_FEATURES, _STATISTICS])

Format = Annotated[ImageType, Path(alias="format", description=", ".join(FORMATS))]
TileSize = Annotated[int | None, Query(description="256, 512 or 1024; the default is 256")]
DatasetTileOptions = Annotated[TileOptions, Depends(deps.tile_options_of(deps.dataset_path))]


async def requested_grid(
    request: Request,
    grid: Annotated[str, Path(alias="tileMatrixSetId", description="A grid of `/tileMatrixSets`")] = GRID,
) -> TileMatrixSet:
    grids = services_of(request).grids
    if grid not in grids:
        reason = "the server does not have this grid; /tileMatrixSets lists the grids"
        raise RequestValidationError([{"loc": ("path", "tileMatrixSetId"), "msg": reason, "type": "enum"}])
    return grids[grid]


Grid = Annotated[TileMatrixSet, Depends(requested_grid)]


class _TemplateResponse(JSONResponse):
    """JSON with templates of URLs: TiTiler's models write their braces as percent codes, which clients cannot use."""

    def render(self, content: Any) -> bytes:
        return super().render(content).replace(b"%7B", b"{").replace(b"%7D", b"}")


@define(kw_only=True)
class ImageFactory(TilerFactory):
    """Routes that display a dataset, by default as the catalogue's `renders` say."""

    def register_routes(self) -> None:
        self.tile()
        self.tilejson()
        self.map_viewer()
        self.info()  # type: ignore[no-untyped-call]
        self.preview()  # type: ignore[no-untyped-call]
        self.part()  # type: ignore[no-untyped-call]
        self.tilesets()

    def tile(self) -> None:
        path = "/tiles/{tileMatrixSetId}/{z}/{x}/{y}"
        name = f"{self.operation_prefix}getTile"
        # TiTiler builds URLs of tiles by the name of the route.
        shared: dict[str, Any] = {**img_endpoint_params, "name": "tile"}
        self.router.add_api_route(f"{path}.{{format}}", get_tile_in_format, operation_id=f"{name}WithFormat", **shared)
        self.router.add_api_route(path, get_tile, operation_id=name, **shared)

    def tilejson(self) -> None:
        operation_id = f"{self.operation_prefix}getTileJSON"
        # FastAPI would check the response once more, in a thread.
        self.router.add_api_route(
            "/{tileMatrixSetId}/tilejson.json",
            get_tilejson,
            operation_id=operation_id,
            response_model=dict[str, Any],
        )

    def tilesets(self) -> None:
        before = set(map(id, self.router.routes))
        super().tilesets()  # type: ignore[no-untyped-call]
        for route in self.router.routes:
            if isinstance(route, APIRoute) and id(route) not in before:
                route.response_class = _TemplateResponse

    def map_viewer(self) -> None:
        self.router.add_api_route("/map", get_map, include_in_schema=False)
        self.router.add_api_route(f"/{GRID}/map.html", redirect_to_map, include_in_schema=False)


@define(kw_only=True)
class ValueFactory(TilerFactory):
    """Routes that return the values of a dataset, whatever the catalogue's `renders` say."""

    def register_routes(self) -> None:
        self.point()
        self.statistics()  # type: ignore[no-untyped-call]

    def point(self) -> None:
        super().point()  # type: ignore[no-untyped-call]
        (route,) = (route for route in self.router.routes if isinstance(route, APIRoute) and route.path == _POINT)
        route.operation_id = f"{self.operation_prefix}getPoint"  # the id of earlier releases


class _WmtsTemplates(Jinja2Templates):
    """Describe only the zoom levels that the dataset has: GDAL ignores the limits of a layer and opens the finest
    level."""

    def TemplateResponse(  # type: ignore[override] # noqa: N802
        self, request: Request, name: str, context: dict[str, Any], **options: Any
    ) -> Any:
        levels = {
            (layer["tms_identifier"], limit["tileMatrix"])
            for layer in context["layers"]
            for limit in layer["tms_limits"]
        }
        for grid in context["tileMatrixSets"]:
            grid["matrices"] = [matrix for matrix in grid["matrices"] if (grid["id"], matrix.id) in levels]
        return super().TemplateResponse(request, name, context, **options)


def router(grids: TileMatrixSets) -> APIRouter:
    router = APIRouter(tags=["tiles"])
    # TiTiler's types require classes; FastAPI accepts any callable.
    shared: dict[str, Any] = {
        "router": router,
        "router_prefix": PREFIX,
        "name": "tiles",
        "supported_tms": grids,
        "reader_dependency": deps.no_options,
        "path_dependency": deps.dataset_path,
        "process_dependency": deps.no_algorithm,
        "environment_dependency": deps.gdal_environment,
        "render_func": ENCODER.render,
    }
    images: dict[str, Any] = {
        "reader": open_for_display,
        "layer_dependency": deps.display_bands,
        "dataset_dependency": deps.dataset_params,
        "img_preview_dependency": deps.preview_size,
        "colormap_dependency": deps.colormap,
        "render_dependency": deps.rendering_params,
        "img_part_dependency": deps.crop_size,
        "add_viewer": False,
        "extensions": [
            wmtsExtension(
                templates=_WmtsTemplates(env=DEFAULT_TEMPLATES.env),
                tile_dependencies=[],
                layer_identifier_provider=lambda src_path: src_path.source.dataset_id,
            )
        ],
        "route_dependencies": [
            _limit("GET", _BOXES, deps.require_box),
            _limit("POST", _FEATURES, deps.require_areas),
        ],
    }
    values: dict[str, Any] = {
        "reader": open_for_values,
        "layer_dependency": deps.selected_bands,
        "dataset_dependency": deps.no_options,
        "img_preview_dependency": deps.statistics_size,
        "img_part_dependency": deps.area_statistics_size,
        "stats_dependency": deps.statistics_params,
        "histogram_dependency": deps.histogram_params,
        "route_dependencies": [
            _limit("GET", [_POINT], deps.require_degrees),
            _limit("POST", [_STATISTICS], deps.require_areas),
        ],
    }
    ImageFactory(**shared, **images)
    ValueFactory(**shared, **values)
    _serve_only_reads(router)
    return router


def _limit(method: str, paths: Iterable[str], check: Callable[..., Any]) -> tuple[list[dict[str, str]], list[Any]]:
    """A check of coordinates or bodies that TiTiler accepts without limits, for its `route_dependencies`."""
    return [{"path": path, "method": method} for path in paths], [Depends(check)]


def _serve_only_reads(router: APIRouter) -> None:
    """Remove all routes that do not read."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    reading = [route for route in routes if "GET" in (route.methods or ())]
    router.routes[:] = [*reading, *(route for route in routes if route not in reading and route.path in _POST_PATHS)]
    handle_head(router, reading)


def handle_head(router: APIRouter, routes: Iterable[APIRoute]) -> None:
    """Handle HEAD like GET; the server omits the body.

    HEAD has routes of its own, so that each operation is in the OpenAPI document once.
    """
    for route in routes:
        router.add_api_route(
            route.path,
            route.endpoint,
            methods=["HEAD"],
            dependencies=route.dependencies,
            response_model=route.response_model,
            response_model_exclude_none=route.response_model_exclude_none,
            response_class=route.response_class,
            include_in_schema=False,
        )


async def get_tile(
    options: DatasetTileOptions, *, grid: Grid, z: int, x: int, y: int, tilesize: TileSize = None
) -> Response:
    """A map tile: JPEG if it is opaque, PNG if it has transparent pixels."""
    return await run_in_threadpool(read_tile, options, grid, (x, y, z), tilesize, None)


async def get_tile_in_format(
    options: DatasetTileOptions, *, grid: Grid, z: int, x: int, y: int, kind: Format, tilesize: TileSize = None
) -> Response:
    """A map tile in the requested format."""
    return await run_in_threadpool(read_tile, options, grid, (x, y, z), tilesize, kind)


def read_tile(
    options: TileOptions, grid: TileMatrixSet, tile: tuple[int, int, int], tilesize: int | None, kind: ImageType | None
) -> Response:
    with (
        traces.span("read tile", needs_parent=True, zoom=tile[2]),
        rasterio.Env(**GDAL_ENVIRONMENT),
        open_for_display(options.src_path, grid) as reader,
    ):
        image = reader.tile(*tile, tilesize=tilesize, **options.reading)
        colormap = options.colormap or reader.colormap
    content, media_type = render_tile(image, kind, colormap, **options.rendering)
    headers = {"Content-Bbox": ",".join(map(str, image.bounds or ())), "Content-Crs": f"<{_crs_uri(grid)}>"}
    return Response(content, media_type=media_type, headers=headers)


def _crs_uri(grid: TileMatrixSet) -> str | None:
    """Computed once for each grid: it takes longer than encoding a tile."""
    if grid.id not in _CRS_URIS:
        _CRS_URIS[grid.id] = CRS_to_uri(grid.rasterio_crs)
    return _CRS_URIS[grid.id]


def render_tile(
    image: ImageData,
    kind: ImageType | None,
    colormap: Any,
    *,
    add_mask: bool = True,
    rescale: Sequence[Any] | None = None,
) -> tuple[bytes, str]:
    """The same bytes as TiTiler's `render_image`, without computing a mask for images that show none: most tiles."""
    with traces.span("render tile", needs_parent=True):
        if rescale:
            image.rescale(rescale)
        if kind is None and image.alpha_mask is None and not image.array.mask.any():
            kind = ImageType.jpeg
    with traces.span("encode tile", needs_parent=True, format=kind.value if kind else None):
        needs_mask = colormap or (add_mask and kind not in _FORMATS_WITHOUT_MASK)
        if kind is None or needs_mask or image.array.dtype != np.uint8 or not is_small(image, kind):
            return ENCODER.render(image, colormap, kind, add_mask)
        return render(image.array.data, img_format=kind.driver, **kind.profile), kind.mediatype


def get_tilejson(
    request: Request,
    src_path: DatasetPath,
    grid: Grid,
    tilesize: Annotated[int, Query(description="256, 512 or 1024")] = 512,
    tile_format: Annotated[
        str | None, Query(description="The default is JPEG for opaque tiles, PNG for others")
    ] = None,
) -> Response:
    """TileJSON 3.0 of one revision: the content behind its tile URLs never changes."""
    source = src_path.source
    rendering = deps.default_rendering(src_path)
    with rasterio.Env(**GDAL_ENVIRONMENT), open_for_display(src_path, grid) as reader:
        minzoom, maxzoom, info = reader.minzoom, reader.maxzoom, reader.info()
    document = {
        "tilejson": "3.0.0",
        "name": source.title or source.dataset_id,
        # Clients insert it as HTML.
        "attribution": html.escape(source.attribution or ""),
        "version": f"{source.ordinal}.{source.revision}.0",
        "scheme": "xyz",
        "tiles": [_tiles_url(request, source, tilesize, tile_format, grid.id or GRID)],
        "minzoom": minzoom,
        "maxzoom": maxzoom,
        "bounds": source.bounds.widened().as_list(),
        "center": [*source.bounds.centre, minzoom],
        "vector_layers": [],
        "raster_layers": [raster_layer(source, info, minzoom, maxzoom)],
        "dagmaster": {
            "asset_id": source.asset_id,
            "dataset_id": source.dataset_id,
            "version": source.ordinal,
            "revision": source.revision,
            "is_published": source.is_published,
            "kind": source.kind,
            "bbox": source.bounds.as_list(),
            "data_type": info.dtype,
            "bands": info.band_descriptions,
            "shown": list(rendering.bands),
            "rescale": rendering.rescale_for(None),
            "colormap_name": rendering.colormap_name,
            "is_palette": bool(rendering.colormap or getattr(info, "colormap", None)),
            "classes": legend_of(rendering, getattr(info, "colormap", None)),
        },
    }
    return Response(orjson.dumps(document), media_type="application/json")


def raster_layer(source: TileSource, info: Any, minzoom: int, maxzoom: int) -> dict[str, Any]:
    """The bands behind the tiles, described like `vector_layers` in TileJSON."""
    return {
        "id": source.dataset_id,
        "description": source.title or source.dataset_id,
        "minzoom": minzoom,
        "maxzoom": maxzoom,
        "data_type": info.dtype,
        "bands": [{"name": name, "description": text} for name, text in info.band_descriptions],
    }


async def get_map(
    request: Request, services: Services, asset_id: AssetId, version: VersionName = LATEST, rev: Revision = None
) -> Response:
    """The map page. It has no cache headers of the dataset: it changes with the software, not with the dataset."""
    deps.require_allowed(request)
    await services.access.readable(request, asset_id, version, revision_number(rev))
    return page("map.html")


async def redirect_to_map(request: Request, asset_id: AssetId) -> Response:
    """TiTiler's path of the map page."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"../map{query}")


def _tiles_url(request: Request, source: TileSource, tilesize: int, tile_format: str | None, grid: str) -> str:
    parameters = [
        (name, value)
        for name, value in request.query_params.multi_items()
        if name not in {"version", "rev", "tilesize", "tile_format"}
    ]
    query = urlencode(
        [*parameters, ("tilesize", tilesize), ("version", source.ordinal), ("rev", source.revision_tag)], safe=","
    )
    suffix = f".{tile_format}" if tile_format else ""
    return Addresses(str(request.base_url)).xyz(source.dataset_id, query, suffix=suffix, grid=grid)
