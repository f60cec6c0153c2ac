"""The parameters of the tile routes, as FastAPI dependencies that TiTiler's factories accept.

TiTiler accepts many parameters. `PARAMETERS` lists those that are allowed here, with the values they may have. Where a
request does not set one, the `renders` of the catalogue supply it.

The dependencies are coroutines although none of them waits: FastAPI would run a plain function in a thread.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Path, Query, Request
from pydantic import Field
from rio_tiler.colormap import cmap
from titiler.core.dependencies import (
    BidxExprParams,
    DatasetParams,
    DefaultDependency,
    HistogramParams,
    ImageRenderingParams,
    PartFeatureParams,
    PreviewParams,
    StatisticsParams,
)

from dagmaster.access.links import MAX_TOKEN_LENGTH, PARAMETER
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.serving.access import LATEST, REVISION, VERSION, revision_number
from dagmaster.serving.caching import set_cache_headers
from dagmaster.serving.expressions import MAX_CHARACTERS, require_expression
from dagmaster.serving.filters import MAX_VERTICES
from dagmaster.serving.readers import GDAL_ENVIRONMENT, ReaderInput
from dagmaster.serving.rendering import RESAMPLINGS, Rendering, parse_colormap
from dagmaster.serving.services import services_of

FORMATS = ("png", "jpg", "jpeg", "webp")
MAX_IMAGE_SIZE = 2048
MAX_AREAS = 10

_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_NUMBER = r"[+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?"
_BOOLEAN = "true|false|1|0"
_SIZE = r"[1-9]\d{0,3}"
_MAX_PARAMETERS = 40
_WORD = r"[A-Za-z0-9_.,/-]{0,60}"
# All allowed parameters. TiTiler's other parameters (algorithms, colour formulas, CRSs, buffers) run code or have no
# limit.
PARAMETERS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "version": VERSION.pattern,
        "rev": REVISION.pattern,
        PARAMETER: rf".{{1,{MAX_TOKEN_LENGTH}}}",
        "bidx": r"\d{1,4}",
        "rescale": rf"{_NUMBER},{_NUMBER}",
        "colormap_name": r"[a-z0-9_]{1,40}",
        "nodata": rf"nan|{_NUMBER}",
        "unscale": _BOOLEAN,
        "return_mask": _BOOLEAN,
        "resampling": r"[a-z_]{1,20}",
        "tilesize": "256|512|1024",
        "tile_format": "|".join(FORMATS),
        "max_size": _SIZE,
        "width": _SIZE,
        "height": _SIZE,
        "p": r"\d{1,2}|100",
        "histogram_bins": r"[1-9]\d{0,2}",
        "expression": rf".{{1,{MAX_CHARACTERS}}}",
        "colormap": r"(?s).{1,20000}",
        "f": "json",
        "use_epsg": _BOOLEAN,
        # Programs append these to the URL of a WMTS.
        **dict.fromkeys(("SERVICE", "service", "REQUEST", "request", "VERSION", "acceptversions"), _WORD),
    }.items()
}


# The parameters of mosaics of searches, which have neither versions nor a WMTS. `assets` is required by titiler-pgstac.
SEARCH_PARAMETERS: Mapping[str, re.Pattern[str]] = {
    "assets": re.compile("data"),
    **{
        name: PARAMETERS[name]
        for name in (
            *("bidx", "rescale", "colormap_name", "nodata", "unscale", "return_mask", "resampling"),
            *("tilesize", "tile_format", "expression", "colormap"),
        )
    },
}


def require_allowed(request: Request, allowed: Mapping[str, re.Pattern[str]] = PARAMETERS) -> None:
    """Refuse a parameter that is not in the table: ignoring it would return the wrong image."""
    parameters = request.query_params.multi_items()
    if len(parameters) > _MAX_PARAMETERS:
        raise InvalidRequest(f"the request has more than {_MAX_PARAMETERS} parameters", code="request.invalid")
    for name, value in parameters:
        if name not in allowed:
            hint = f"allowed parameters: {', '.join(sorted(allowed))}"
            raise InvalidRequest(f"unknown parameter {name[:40]!r}", code="tiles.no-parameter", hint=hint)
        if not allowed[name].fullmatch(value):
            raise InvalidRequest(f"the value of {name} is not allowed", code="tiles.bad-parameter")
    if request.path_params.get("format") not in (None, *FORMATS):
        raise InvalidRequest("unknown image format", code="tiles.no-format", hint=f"use {', '.join(FORMATS)}")


AssetId = Annotated[
    str, Path(pattern=_ID, description="Id of the asset, or of its dataset, which is also the id of its collection")
]
VersionName = Annotated[str, Query(description="`latest`, or the ordinal of a version")]
Revision = Annotated[str | None, Query(description="The revision, as in the TileJSON")]
BandIndexes = Annotated[list[int] | None, Query(alias="bidx", max_length=4, description="Bands to use; the first is 1")]
Nodata = Annotated[str | None, Query(description="Pixels with this value are transparent")]
Rescale = Annotated[list[str] | None, Query(max_length=4, description="`low,high`, once or for each band")]
ColormapName = Annotated[str | None, Query(description="A colour map of rio-tiler, for a single band")]
Expression = Annotated[str | None, Query(description="Arithmetic on bands, such as (b4-b1)/(b4+b1)")]
ColormapJson = Annotated[str | None, Query(description="Colours by value, or intervals and colours, as JSON")]
Resampling = Annotated[str | None, Query(pattern=f"^({'|'.join(RESAMPLINGS)})$")]


async def dataset_path(
    request: Request, asset_id: AssetId, version: VersionName = LATEST, rev: Revision = None
) -> ReaderInput:
    require_allowed(request)
    services = services_of(request)
    readable = await services.access.readable(request, asset_id, version, revision_number(rev))
    source = await services.resolver.resolve(readable)
    is_pinned = version != LATEST and rev == source.revision_tag
    is_known = set_cache_headers(request, tag=source.tag, is_pinned=is_pinned, is_public=readable.is_public)
    return ReaderInput(source, services.storage, services.mosaics, services.datasets, is_known=is_known)


DatasetPath = Annotated[ReaderInput, Depends(dataset_path)]


def default_rendering(src_path: ReaderInput) -> Rendering:
    """The default rendering; refused if the catalogue's `renders` are invalid."""
    rendering = src_path.source.rendering
    if rendering.error:
        raise UnfitData(
            f"the catalogue's render settings of this version are invalid: {rendering.error}",
            code="tiles.bad-renders",
            hint="register the item again with valid `renders`; points and statistics do not need them",
        )
    return rendering


async def display_bands(
    src_path: DatasetPath, bidx: BandIndexes = None, expression: Expression = None
) -> BidxExprParams:
    if expression is not None:
        return _expression_params(bidx, expression)
    return BidxExprParams(indexes=bidx or list(default_rendering(src_path).bands) or None)


async def selected_bands(bidx: BandIndexes = None, expression: Expression = None) -> BidxExprParams:
    return BidxExprParams(indexes=bidx) if expression is None else _expression_params(bidx, expression)


def _expression_params(bidx: list[int] | None, expression: str) -> BidxExprParams:
    if bidx:
        raise InvalidRequest("bidx and expression cannot be combined", code="tiles.bad-parameter")
    return BidxExprParams(expression=require_expression(expression))


async def dataset_params(
    src_path: DatasetPath, nodata: Nodata = None, unscale: bool | None = None, resampling: Resampling = None
) -> DatasetParams:
    default = default_rendering(src_path)
    method: Any = resampling or default.resampling
    params = DatasetParams(unscale=unscale, resampling_method=method, reproject_method=method)
    params.nodata = default.nodata if nodata is None else float(nodata)
    return params


async def rendering_params(
    src_path: DatasetPath,
    bidx: BandIndexes = None,
    rescale: Rescale = None,
    return_mask: bool = True,
    expression: Expression = None,
) -> ImageRenderingParams:
    default = None if expression else default_rendering(src_path).rescale_for(bidx)
    ranges: Any = [_range(text) for text in rescale] if rescale else default
    params = ImageRenderingParams(add_mask=return_mask)
    params.rescale = ranges
    return params


async def colormap(
    src_path: DatasetPath,
    bidx: BandIndexes = None,
    colormap_name: ColormapName = None,
    colormap: ColormapJson = None,
    expression: Expression = None,
) -> Any:
    if colormap is not None:
        return _given_colormap(colormap, colormap_name)
    default = Rendering() if expression else default_rendering(src_path)
    if colormap_name is None and bidx is None and default.colormap:
        return default.colormap
    name = colormap_name or (default.colormap_name if bidx is None or len(bidx) == 1 else None)
    if name is None:
        return None
    if name not in cmap.list():
        raise InvalidRequest("unknown colour map", code="tiles.no-colormap", hint="for example viridis or terrain")
    return cmap.get(name)


def _given_colormap(text: str, name: str | None) -> Any:
    if name is not None:
        raise InvalidRequest("colormap and colormap_name cannot be combined", code="tiles.bad-parameter")
    try:
        return parse_colormap(orjson.loads(text))
    except ValueError as error:
        reason = "colormap is not JSON" if isinstance(error, orjson.JSONDecodeError) else str(error)
        raise InvalidRequest(reason, code="tiles.no-colormap", hint='for example {"1": "#ff0000"}') from None


@dataclass(frozen=True, slots=True)
class TileOptions:
    """What a tile is read from, and how it is read and rendered."""

    src_path: ReaderInput
    reading: Mapping[str, Any]
    rendering: Mapping[str, Any]
    colormap: Any


def tile_options_of(path: Callable[..., Any]) -> Callable[..., Any]:
    """A dependency with the options of a tile. `path` is the dependency that finds the source of the tile.

    It combines the dependencies above, because FastAPI resolves the dependencies of each dependency again, which takes
    time.
    """

    async def tile_options(
        src_path: Annotated[ReaderInput, Depends(path)],
        *,
        bidx: BandIndexes = None,
        nodata: Nodata = None,
        unscale: bool | None = None,
        resampling: Resampling = None,
        rescale: Rescale = None,
        return_mask: bool = True,
        colormap_name: ColormapName = None,
        colormap_json: Annotated[str | None, Query(alias="colormap")] = None,
        expression: Expression = None,
    ) -> TileOptions:
        bands = await display_bands(src_path, bidx, expression)
        dataset = await dataset_params(src_path, nodata, unscale, resampling)
        rendering = await rendering_params(src_path, bidx, rescale, return_mask, expression)
        colors = await colormap(src_path, bidx, colormap_name, colormap_json, expression)
        return TileOptions(src_path, bands.as_dict() | dataset.as_dict(), rendering.as_dict(), colors)

    return tile_options


async def preview_size(
    max_size: Annotated[int, Field(gt=0, le=MAX_IMAGE_SIZE, description="Pixels of the longer side")] = 1024,
    width: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
    height: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
) -> PreviewParams:
    return PreviewParams(max_size=max_size, width=width, height=height)


async def crop_size(
    max_size: Annotated[int, Field(gt=0, le=MAX_IMAGE_SIZE, description="Pixels of the longer side")] = 1024,
    width: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
    height: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
) -> PartFeatureParams:
    return PartFeatureParams(max_size=max_size, width=width, height=height)


async def area_statistics_size(
    max_size: Annotated[
        int, Query(gt=0, le=MAX_IMAGE_SIZE // 2, description="Pixels of the longer side of each area that is read")
    ] = 512,
) -> PartFeatureParams:
    return PartFeatureParams(max_size=max_size)


async def require_box(
    minx: Annotated[float, Path(ge=-180, le=180, allow_inf_nan=False)],
    miny: Annotated[float, Path(ge=-90, le=90, allow_inf_nan=False)],
    maxx: Annotated[float, Path(ge=-180, le=180, allow_inf_nan=False)],
    maxy: Annotated[float, Path(ge=-90, le=90, allow_inf_nan=False)],
) -> None:
    """Refuse a box that is not west, south, east, north in degrees."""
    if not (minx < maxx and miny < maxy):
        raise InvalidRequest("a box must be west,south,east,north", code="tiles.bad-parameter")


async def require_areas(request: Request) -> None:
    """Refuse GeoJSON with other shapes than polygons, or with too many features or vertices, which take time."""
    try:
        document = orjson.loads(await request.body())
        features = document["features"] if document["type"] == "FeatureCollection" else [document]
        areas = [_positions(feature["geometry"]) for feature in features]
        positions = [position for area in areas for position in area]
        is_valid = all(map(_has_extent, areas))
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        is_valid, features, positions = False, [], []
    if not is_valid or not positions:
        raise InvalidRequest(
            "the body must be GeoJSON: a feature, or for statistics a collection of features, with polygons in degrees",
            code="tiles.bad-geometry",
        )
    if len(features) > MAX_AREAS or len(positions) > MAX_VERTICES:
        raise InvalidRequest(
            f"the body may have at most {MAX_AREAS} features and {MAX_VERTICES:,} vertices",
            code="tiles.bad-geometry",
            hint="simplify the polygons, or send several requests",
        )


def _has_extent(positions: list[Any]) -> bool:
    """Whether positions are in degrees and not on one meridian or parallel."""
    if not all(len(p) in (2, 3) and abs(p[0]) <= 180 and abs(p[1]) <= 90 for p in positions):
        return False
    return all(len({p[axis] for p in positions}) > 1 for axis in (0, 1))


def _positions(geometry: Mapping[str, Any]) -> list[Any]:
    if geometry["type"] not in ("Polygon", "MultiPolygon"):
        raise ValueError
    polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
    if not all(polygon and all(len(ring) >= 4 for ring in polygon) for polygon in polygons):
        raise ValueError  # GDAL cannot read an empty polygon
    return [position for polygon in polygons for ring in polygon for position in ring]


async def statistics_size(
    max_size: Annotated[
        int, Query(gt=0, le=MAX_IMAGE_SIZE, description="Pixels of the longer side of the overview that is read")
    ] = 1024,
) -> PreviewParams:
    return PreviewParams(max_size=max_size)


async def statistics_params(
    p: Annotated[list[int] | None, Query(max_length=20, description="Percentiles")] = None,
) -> StatisticsParams:
    return StatisticsParams(percentiles=p)


async def histogram_params(histogram_bins: Annotated[int, Query(gt=0, le=256)] = 10) -> HistogramParams:
    return HistogramParams(bins=str(histogram_bins))


async def require_degrees(
    lon: Annotated[float, Path(ge=-180, le=180, allow_inf_nan=False)],
    lat: Annotated[float, Path(ge=-90, le=90, allow_inf_nan=False)],
) -> None:
    """Refuse coordinates that are not longitude and latitude."""


async def no_options() -> DefaultDependency:
    return DefaultDependency()


async def no_algorithm() -> None:
    return None


async def gdal_environment() -> Mapping[str, Any]:
    return GDAL_ENVIRONMENT


def _range(text: str) -> tuple[float, float]:
    low, high = (float(part) for part in text.split(","))
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        raise InvalidRequest("rescale needs two different numbers", code="tiles.bad-parameter")
    return low, high
