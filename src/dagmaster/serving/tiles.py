"""Tiles of a dataset: TiTiler's routes under `/tiles/{asset_id}`, on what the catalogue says that the dataset is.

    tiles/WebMercatorQuad/{z}/{x}/{y}[.png|.jpg|.webp]    WebMercatorQuad/tilejson.json    map
    preview[.png|…]    point/{lon},{lat}    statistics    info

TiTiler takes many parameters; here a table says which, and how large they may be. Where a request says nothing, the catalogue's
`renders` decide how the dataset looks.

Dependencies are coroutines although none of them waits: each plain function would be a trip to another thread.
"""

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import numpy as np
import rasterio
from attrs import define
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.routing import APIRoute
from morecantile import tms as all_grids
from morecantile.defaults import TileMatrixSets
from pydantic import Field
from rio_tiler.colormap import cmap, parse_color
from rio_tiler.constants import WEB_MERCATOR_TMS
from rio_tiler.models import ImageData
from rio_tiler.utils import CRS_to_uri, render
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from titiler.core.dependencies import BidxParams, DatasetParams, DefaultDependency, ImageRenderingParams, PreviewParams
from titiler.core.factory import TilerFactory, img_endpoint_params
from titiler.core.models.responses import Point, Statistics
from titiler.core.resources.enums import ImageType
from titiler.core.resources.responses import JSONResponse
from titiler.core.utils import render_image

from dagmaster.addresses import GRID, TILES, Addresses
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.caching import mark
from dagmaster.serving.pages import page
from dagmaster.serving.readers import GDAL_ENVIRONMENT, Readable, open_source
from dagmaster.serving.services import Services
from dagmaster.serving.sources import LATEST, Source

PREFIX = TILES + "/{asset_id}"
FORMATS = ("png", "jpg", "jpeg", "webp")
LARGEST_PREVIEW = 2048
_WITHOUT_MASK = (ImageType.jpeg, ImageType.jpg)
_CRS = f"<{CRS_to_uri(WEB_MERCATOR_TMS.rasterio_crs)}>"

_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_NUMBER = r"[+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?"
_YES_OR_NO = "true|false|1|0"
_SIZE = r"[1-9]\d{0,3}"
_MOST_PARAMETERS = 40
# Every parameter there is. TiTiler's others (expressions, algorithms, colour formulas, CRSs, buffers) are code or have no bound.
PARAMETERS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "version": rf"{LATEST}|\d{{1,9}}",
        "rev": r"\d{1,9}(?:-[0-9a-f]{1,16})?",
        "bidx": r"\d{1,4}",
        "rescale": rf"{_NUMBER},{_NUMBER}",
        "colormap_name": r"[a-z0-9_]{1,40}",
        "nodata": rf"nan|{_NUMBER}",
        "unscale": _YES_OR_NO,
        "return_mask": _YES_OR_NO,
        "resampling": r"[a-z_]{1,20}",
        "tilesize": "256|512|1024",
        "tile_format": "|".join(FORMATS),
        "max_size": _SIZE,
        "width": _SIZE,
        "height": _SIZE,
        "p": r"\d{1,2}|100",
        "histogram_bins": r"[1-9]\d{0,2}",
    }.items()
}
Resampling = Annotated[str | None, Query(pattern="^(nearest|bilinear|cubic|cubic_spline|lanczos|average|mode)$")]


def require_allowed(request: Request) -> None:
    """Refuse what is not in the table, rather than leave it out: a picture without it would be the wrong one."""
    given = request.query_params.multi_items()
    if len(given) > _MOST_PARAMETERS:
        raise InvalidRequest(f"more than {_MOST_PARAMETERS} parameters", code="request.invalid")
    for name, value in given:
        if name not in PARAMETERS:
            hint = f"there are {', '.join(sorted(PARAMETERS))}"
            raise InvalidRequest(f"there is no parameter {name[:40]!r}", code="tiles.no-parameter", hint=hint)
        if not PARAMETERS[name].fullmatch(value):
            raise InvalidRequest(f"{name} has a value that is not allowed", code="tiles.bad-parameter")
    if request.path_params.get("format") not in (None, *FORMATS):
        raise InvalidRequest("there is no such format", code="tiles.no-format", hint=f"take {', '.join(FORMATS)}")


AssetId = Annotated[str, Path(pattern=_ID, description="Id of the dataset, which is its collection's")]
Version = Annotated[str, Query(description="`latest`, or the ordinal of a version")]


async def find(
    request: Request,
    services: Services,
    asset_id: AssetId,
    version: Version = LATEST,
    rev: Annotated[str | None, Query(description="The revision that is meant, as TileJSON has it")] = None,
) -> Readable:
    require_allowed(request)
    source = await services.sources.resolve(asset_id, version, rev)
    if rev is not None and rev.partition("-")[0] != str(source.revision):
        raise NotFound("the revision was replaced", code="version.replaced", hint="ask for the TileJSON again")
    mark(request, tag=source.tag, is_pinned=version != LATEST and rev == source.revision_tag)
    return Readable(source, services.storage, services.mosaics, services.handles)


Found = Annotated[Readable, Depends(find)]
Bands = Annotated[list[int] | None, Query(alias="bidx", max_length=4, description="Bands to show, from 1")]
Nodata = Annotated[str | None, Query(description="Value that is seen through")]
Rescale = Annotated[list[str] | None, Query(max_length=4, description="`low,high`, once or for each band")]
ColormapName = Annotated[str | None, Query(description="One of rio-tiler's, for a single band")]


async def bands(found: Found, bidx: Bands = None) -> BidxParams:
    return BidxParams(indexes=bidx or list(found.source.rendering.bands) or None)


async def reading(
    found: Found,
    nodata: Nodata = None,
    unscale: bool | None = None,
    resampling: Resampling = None,
) -> DatasetParams:
    default = found.source.rendering
    chosen: Any = resampling or default.resampling
    params = DatasetParams(unscale=unscale, resampling_method=chosen, reproject_method=chosen)
    params.nodata = default.nodata if nodata is None else float(nodata)
    return params


async def stretching(
    found: Found,
    bidx: Bands = None,
    rescale: Rescale = None,
    return_mask: bool = True,
) -> ImageRenderingParams:
    ranges: Any = [_range(text) for text in rescale] if rescale else found.source.rendering.rescale_for(bidx)
    params = ImageRenderingParams(add_mask=return_mask)
    params.rescale = ranges
    return params


async def colouring(
    found: Found,
    bidx: Bands = None,
    colormap_name: ColormapName = None,
) -> Any:
    default = found.source.rendering
    if colormap_name is None and bidx is None and default.colormap:
        return _parsed(default.colormap)
    name = colormap_name or (default.colormap_name if bidx is None or len(bidx) == 1 else None)
    if name is None:
        return None
    if name not in cmap.list():
        raise InvalidRequest("there is no such colormap", code="tiles.no-colormap", hint="such as viridis or terrain")
    return cmap.get(name)


@dataclass(frozen=True, slots=True)
class Look:
    """How a tile shall be made, of what."""

    found: Readable
    reading: Mapping[str, Any]
    rendering: Mapping[str, Any]
    colormap: Any


async def look(
    found: Found,
    *,
    bidx: Bands = None,
    nodata: Nodata = None,
    unscale: bool | None = None,
    resampling: Resampling = None,
    rescale: Rescale = None,
    return_mask: bool = True,
    colormap_name: ColormapName = None,
) -> Look:
    """All that TiTiler asks for one by one: FastAPI goes through what each of several dependencies depends on anew."""
    chosen = await bands(found, bidx)
    params = await reading(found, nodata, unscale, resampling)
    rendering = await stretching(found, bidx, rescale, return_mask)
    colormap = await colouring(found, bidx, colormap_name)
    return Look(found, chosen.as_dict() | params.as_dict(), rendering.as_dict(), colormap)


Looks = Annotated[Look, Depends(look)]
GridId = Annotated[Literal["WebMercatorQuad"], Path(alias="tileMatrixSetId", description="The only grid there is")]
Format = Annotated[ImageType, Path(alias="format", description=", ".join(FORMATS))]
TileSize = Annotated[int | None, Query(description="256, 512 or 1024; 256 where nothing is said")]


async def preview_size(
    max_size: Annotated[int, Field(gt=0, le=LARGEST_PREVIEW, description="Of the longer side")] = 1024,
    width: Annotated[int | None, Field(gt=0, le=LARGEST_PREVIEW)] = None,
    height: Annotated[int | None, Field(gt=0, le=LARGEST_PREVIEW)] = None,
) -> PreviewParams:
    return PreviewParams(max_size=max_size, width=width, height=height)


async def _nothing() -> DefaultDependency:
    return DefaultDependency()


async def _no_algorithm() -> None:
    return None


async def _environment() -> Mapping[str, Any]:
    return GDAL_ENVIRONMENT


@define(kw_only=True)
class Tiles(TilerFactory):
    """TiTiler's previews and info; tiles, TileJSON, points, statistics and the page are ours."""

    def register_routes(self) -> None:
        self.router.include_router(_ours())
        for register in (self.info, self.preview):
            register()  # type: ignore[no-untyped-call]


def router() -> APIRouter:
    # TiTiler's types ask for classes; any dependency of FastAPI's does.
    dependencies: dict[str, Any] = {
        "reader": open_source,
        "reader_dependency": _nothing,
        "path_dependency": find,
        "layer_dependency": bands,
        "dataset_dependency": reading,
        "img_preview_dependency": preview_size,
        "process_dependency": _no_algorithm,
        "colormap_dependency": colouring,
        "render_dependency": stretching,
        "environment_dependency": _environment,
    }
    grids = TileMatrixSets({GRID: all_grids.get(GRID)})
    made: APIRouter = Tiles(
        router=APIRouter(tags=["tiles"]), router_prefix=PREFIX, name="tiles", supported_tms=grids, **dependencies
    ).router
    _answer_heads(made)
    return made


def _answer_heads(router: APIRouter) -> None:
    """HEAD as GET; the server leaves out the body. Routes of their own, so that the description names each but once."""
    for route in [route for route in router.routes if isinstance(route, APIRoute)]:
        router.add_api_route(
            route.path, route.endpoint, methods=["HEAD"], response_model=route.response_model,
            response_class=route.response_class, include_in_schema=False,
        )  # fmt: skip


def _ours() -> APIRouter:
    router = APIRouter()
    place = "/tiles/{tileMatrixSetId}/{z}/{x}/{y}"
    router.add_api_route(
        f"{place}.{{format}}", get_tile_in_format, operation_id="tiles.getTileWithFormat", **img_endpoint_params
    )
    router.add_api_route(place, get_tile, operation_id="tiles.getTile", **img_endpoint_params)
    router.add_api_route(f"/{GRID}/tilejson.json", get_tilejson, operation_id="tiles.getTileJSON")
    router.add_api_route(
        "/point/{lon},{lat}",
        get_point,
        response_model=Point,
        response_class=JSONResponse,
        operation_id="tiles.getPoint",
    )
    router.add_api_route(
        "/statistics", get_statistics, response_model=Statistics, response_class=JSONResponse,
        operation_id="tiles.getStatistics",
    )  # fmt: skip
    router.add_api_route("/map", get_map, include_in_schema=False)
    router.add_api_route(f"/{GRID}/map.html", get_map_elsewhere, include_in_schema=False)
    _answer_heads(router)
    return router


async def get_tile(look: Looks, *, grid: GridId, z: int, x: int, y: int, tilesize: TileSize = None) -> Response:
    """A tile of the map: a JPEG where nothing is seen through, a PNG where it is."""
    return await run_in_threadpool(_make_tile, look, (x, y, z), tilesize, None)


async def get_tile_in_format(
    look: Looks, *, grid: GridId, z: int, x: int, y: int, kind: Format, tilesize: TileSize = None
) -> Response:
    """A tile of the map in a format of one's choice."""
    return await run_in_threadpool(_make_tile, look, (x, y, z), tilesize, kind)


def _make_tile(look: Look, tile: tuple[int, int, int], tilesize: int | None, kind: ImageType | None) -> Response:
    with rasterio.Env(**GDAL_ENVIRONMENT), open_source(look.found) as opened:
        image = opened.tile(*tile, tilesize=tilesize, **look.reading)
        colormap = look.colormap or opened.colormap
    content, media_type = picture(image, kind, colormap, **look.rendering)
    headers = {"Content-Bbox": ",".join(map(str, image.bounds or ())), "Content-Crs": _CRS}
    return Response(content, media_type=media_type, headers=headers)


def picture(image: ImageData, kind: ImageType | None, colormap: Any, *, add_mask: bool = True,
            rescale: Sequence[Any] | None = None) -> tuple[bytes, str]:  # fmt: skip
    """As TiTiler renders it, but without a mask, and copies, of what is shown without one: most tiles."""
    if rescale:
        image.rescale(rescale)
    if kind is None and image.alpha_mask is None and not image.array.mask.any():
        kind = ImageType.jpeg
    needs_mask = colormap or (add_mask and kind not in _WITHOUT_MASK)
    if kind is None or needs_mask or image.array.dtype != np.uint8:
        return render_image(image, colormap, kind, add_mask)
    return render(image.array.data, img_format=kind.driver, **kind.profile), kind.mediatype


def get_tilejson(
    request: Request,
    found: Found,
    tilesize: Annotated[int, Query(description="256, 512 or 1024")] = 512,
    tile_format: Annotated[
        str | None, Query(description="Else JPEG where nothing is seen through, PNG where it is")
    ] = None,
) -> dict[str, Any]:
    """TileJSON 3.0 of one revision: its tiles have addresses that never change their meaning."""
    source = found.source
    with rasterio.Env(**GDAL_ENVIRONMENT), open_source(found) as opened:
        minzoom, maxzoom, info = opened.minzoom, opened.maxzoom, opened.info()
    return {
        "tilejson": "3.0.0",
        "name": source.title or source.asset_id,
        # Clients set it as HTML.
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
            "asset_id": source.asset_id, "version": source.ordinal, "revision": source.revision, "kind": source.kind,
            "bbox": source.bounds.as_list(),
            "data_type": info.dtype, "bands": info.band_descriptions, "shown": list(source.rendering.bands),
            "rescale": source.rendering.rescale_for(None), "colormap_name": source.rendering.colormap_name,
            "is_palette": bool(source.rendering.colormap or getattr(info, "colormap", None)),
        },
    }  # fmt: skip


def get_point(
    found: Found,
    lon: Annotated[float, Path(ge=-180, le=180, allow_inf_nan=False)],
    lat: Annotated[float, Path(ge=-90, le=90, allow_inf_nan=False)],
    bidx: Bands = None,
) -> dict[str, Any]:
    """Values of all bands at a place; null where there is no data."""
    with rasterio.Env(**GDAL_ENVIRONMENT), open_source(found) as opened:
        read = opened.point(lon, lat, indexes=bidx)
    return {
        "coordinates": [lon, lat],
        # Masked values become None by themselves.
        "values": [None if isinstance(v, float) and not math.isfinite(v) else v for v in read.array.tolist()],
        "band_names": read.band_names,
        "band_descriptions": read.band_descriptions,
    }


def get_statistics(
    found: Found,
    bidx: Bands = None,
    max_size: Annotated[int, Query(gt=0, le=LARGEST_PREVIEW, description="Of the picture they are taken from")] = 1024,
    p: Annotated[list[int] | None, Query(max_length=20, description="Percentiles")] = None,
    histogram_bins: Annotated[int, Query(gt=0, le=256)] = 10,
) -> Any:
    """Of each band, from an overview."""
    with rasterio.Env(**GDAL_ENVIRONMENT), open_source(found) as opened:
        return opened.statistics(
            indexes=bidx, max_size=max_size, percentiles=p or [2, 98], hist_options={"bins": histogram_bins}
        )


async def get_map(request: Request, services: Services, asset_id: AssetId, version: Version = LATEST) -> Response:
    """A page to look at the dataset with. It changes with this software, not with the dataset."""
    require_allowed(request)
    await services.sources.resolve(asset_id, version)
    return page("map.html")


async def get_map_elsewhere(request: Request, asset_id: AssetId) -> Response:
    """Where TiTiler has it."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"../map{query}")


def _tiles_url(request: Request, source: Source, tilesize: int, tile_format: str | None) -> str:
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


def _range(text: str) -> tuple[float, float]:
    low, high = (float(part) for part in text.split(","))
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        raise InvalidRequest("rescale needs two different numbers", code="tiles.bad-parameter")
    return low, high


def _parsed(colormap: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Of STAC's `renders`: colours by value, or by interval."""
    if isinstance(colormap, Mapping):
        return {int(value): parse_color(color) for value, color in colormap.items()}
    return [((float(low), float(high)), parse_color(color)) for (low, high), color in colormap]
