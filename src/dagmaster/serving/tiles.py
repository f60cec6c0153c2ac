"""The routes under `/tiles/{asset_id}`: TiTiler's factories with the dependencies and readers of this package.

    info    info.geojson    preview[.png|…]    point/{lon},{lat}    statistics                            TiTiler's
    tiles/WebMercatorQuad/{z}/{x}/{y}[.png|.jpg|.webp]    WebMercatorQuad/tilejson.json    map            ours

Tiles have our own route because they are requested most: one dependency instead of eighteen, and no mask where none is
shown. TileJSON is ours because its tile URLs name the revision and it describes the dataset; the map page because
TiTiler's loads scripts from other servers.
"""

import html
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import numpy as np
import rasterio
from attrs import define
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.routing import APIRoute
from morecantile import tms as all_grids
from morecantile.defaults import TileMatrixSets
from rio_tiler.constants import WEB_MERCATOR_TMS
from rio_tiler.models import ImageData
from rio_tiler.utils import CRS_to_uri, render
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from titiler.core.factory import TilerFactory, img_endpoint_params
from titiler.core.resources.enums import ImageType
from titiler.core.utils import render_image

from dagmaster.addresses import GRID, TILES, Addresses
from dagmaster.serving import dependencies as deps
from dagmaster.serving.dependencies import FORMATS, AssetId, DatasetPath, TileOptions, Version
from dagmaster.serving.pages import page
from dagmaster.serving.readers import GDAL_ENVIRONMENT, open_for_display, open_for_values
from dagmaster.serving.services import Services
from dagmaster.serving.sources import LATEST, TileSource

PREFIX = TILES + "/{asset_id}"
_POINT = "/point/{lon},{lat}"
_FORMATS_WITHOUT_MASK = (ImageType.jpeg, ImageType.jpg)
_CRS = f"<{CRS_to_uri(WEB_MERCATOR_TMS.rasterio_crs)}>"

GridId = Annotated[Literal["WebMercatorQuad"], Path(alias="tileMatrixSetId", description="The only supported grid")]
Format = Annotated[ImageType, Path(alias="format", description=", ".join(FORMATS))]
TileSize = Annotated[int | None, Query(description="256, 512 or 1024; the default is 256")]
Options = Annotated[TileOptions, Depends(deps.tile_options)]


@define(kw_only=True)
class ImageFactory(TilerFactory):
    """Routes that display a dataset, by default as the catalogue's `renders` say."""

    def register_routes(self) -> None:
        self.tile()
        self.tilejson()
        self.map_viewer()
        self.info()  # type: ignore[no-untyped-call]
        self.preview()  # type: ignore[no-untyped-call]

    def tile(self) -> None:
        path = "/tiles/{tileMatrixSetId}/{z}/{x}/{y}"
        name = f"{self.operation_prefix}getTile"
        self.router.add_api_route(
            f"{path}.{{format}}", get_tile_in_format, operation_id=f"{name}WithFormat", **img_endpoint_params
        )
        self.router.add_api_route(path, get_tile, operation_id=name, **img_endpoint_params)

    def tilejson(self) -> None:
        operation_id = f"{self.operation_prefix}getTileJSON"
        self.router.add_api_route(f"/{GRID}/tilejson.json", get_tilejson, operation_id=operation_id)

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


def router() -> APIRouter:
    router = APIRouter(tags=["tiles"])
    # TiTiler's types require classes; FastAPI accepts any callable.
    shared: dict[str, Any] = {
        "router": router,
        "router_prefix": PREFIX,
        "name": "tiles",
        "supported_tms": TileMatrixSets({GRID: all_grids.get(GRID)}),
        "reader_dependency": deps.no_options,
        "path_dependency": deps.dataset_path,
        "process_dependency": deps.no_algorithm,
        "environment_dependency": deps.gdal_environment,
    }
    images: dict[str, Any] = {
        "reader": open_for_display,
        "layer_dependency": deps.display_bands,
        "dataset_dependency": deps.dataset_params,
        "img_preview_dependency": deps.preview_size,
        "colormap_dependency": deps.colormap,
        "render_dependency": deps.rendering_params,
    }
    values: dict[str, Any] = {
        "reader": open_for_values,
        "layer_dependency": deps.selected_bands,
        "dataset_dependency": deps.no_options,
        "img_preview_dependency": deps.statistics_size,
        "stats_dependency": deps.statistics_params,
        "histogram_dependency": deps.histogram_params,
        "route_dependencies": [([{"path": _POINT, "method": "GET"}], [Depends(deps.require_degrees)])],
    }
    ImageFactory(**shared, **images)
    ValueFactory(**shared, **values)
    _serve_only_reads(router)
    return router


def _serve_only_reads(router: APIRouter) -> None:
    """Remove TiTiler's POST routes, and answer HEAD like GET; the server omits the body.

    HEAD has routes of its own, so that each operation is in the OpenAPI document once.
    """
    routes = [route for route in router.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]
    router.routes[:] = routes
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


async def get_tile(options: Options, *, grid: GridId, z: int, x: int, y: int, tilesize: TileSize = None) -> Response:
    """A map tile: JPEG if it is opaque, PNG if it has transparent pixels."""
    return await run_in_threadpool(_read_tile, options, (x, y, z), tilesize, None)


async def get_tile_in_format(
    options: Options, *, grid: GridId, z: int, x: int, y: int, kind: Format, tilesize: TileSize = None
) -> Response:
    """A map tile in the requested format."""
    return await run_in_threadpool(_read_tile, options, (x, y, z), tilesize, kind)


def _read_tile(
    options: TileOptions, tile: tuple[int, int, int], tilesize: int | None, kind: ImageType | None
) -> Response:
    with rasterio.Env(**GDAL_ENVIRONMENT), open_for_display(options.src_path) as reader:
        image = reader.tile(*tile, tilesize=tilesize, **options.reading)
        colormap = options.colormap or reader.colormap
    content, media_type = render_tile(image, kind, colormap, **options.rendering)
    headers = {"Content-Bbox": ",".join(map(str, image.bounds or ())), "Content-Crs": _CRS}
    return Response(content, media_type=media_type, headers=headers)


def render_tile(
    image: ImageData,
    kind: ImageType | None,
    colormap: Any,
    *,
    add_mask: bool = True,
    rescale: Sequence[Any] | None = None,
) -> tuple[bytes, str]:
    """The same bytes as TiTiler's `render_image`, without computing a mask for images that show none: most tiles."""
    if rescale:
        image.rescale(rescale)
    if kind is None and image.alpha_mask is None and not image.array.mask.any():
        kind = ImageType.jpeg
    needs_mask = colormap or (add_mask and kind not in _FORMATS_WITHOUT_MASK)
    if kind is None or needs_mask or image.array.dtype != np.uint8:
        return render_image(image, colormap, kind, add_mask)
    return render(image.array.data, img_format=kind.driver, **kind.profile), kind.mediatype


def get_tilejson(
    request: Request,
    src_path: DatasetPath,
    tilesize: Annotated[int, Query(description="256, 512 or 1024")] = 512,
    tile_format: Annotated[
        str | None, Query(description="The default is JPEG for opaque tiles, PNG for others")
    ] = None,
) -> dict[str, Any]:
    """TileJSON 3.0 of one revision: the content behind its tile URLs never changes."""
    source = src_path.source
    rendering = source.rendering
    with rasterio.Env(**GDAL_ENVIRONMENT), open_for_display(src_path) as reader:
        minzoom, maxzoom, info = reader.minzoom, reader.maxzoom, reader.info()
    return {
        "tilejson": "3.0.0",
        "name": source.title or source.asset_id,
        # Clients insert it as HTML.
        "attribution": html.escape(source.attribution or ""),
        "version": f"{source.ordinal}.{source.revision}.0",
        "scheme": "xyz",
        "tiles": [_tiles_url(request, source, tilesize, tile_format)],
        "minzoom": minzoom,
        "maxzoom": maxzoom,
        "bounds": source.bounds.widened().as_list(),
        "center": [*source.bounds.centre, minzoom],
        "vector_layers": [],
        "dagmaster": {
            "asset_id": source.asset_id,
            "version": source.ordinal,
            "revision": source.revision,
            "kind": source.kind,
            "bbox": source.bounds.as_list(),
            "data_type": info.dtype,
            "bands": info.band_descriptions,
            "shown": list(rendering.bands),
            "rescale": rendering.rescale_for(None),
            "colormap_name": rendering.colormap_name,
            "is_palette": bool(rendering.colormap or getattr(info, "colormap", None)),
        },
    }


async def get_map(request: Request, services: Services, asset_id: AssetId, version: Version = LATEST) -> Response:
    """The map page. It has no cache headers of the dataset: it changes with the software, not with the dataset."""
    deps.require_allowed(request)
    await services.resolver.resolve(asset_id, version)
    return page("map.html")


async def redirect_to_map(request: Request, asset_id: AssetId) -> Response:
    """TiTiler's path of the map page."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"../map{query}")


def _tiles_url(request: Request, source: TileSource, tilesize: int, tile_format: str | None) -> str:
    kept = [
        (name, value)
        for name, value in request.query_params.multi_items()
        if name not in {"version", "rev", "tilesize", "tile_format"}
    ]
    query = urlencode(
        [*kept, ("tilesize", tilesize), ("version", source.ordinal), ("rev", source.revision_tag)], safe=","
    )
    suffix = f".{tile_format}" if tile_format else ""
    return Addresses(str(request.base_url)).xyz(source.asset_id, query, suffix=suffix)
