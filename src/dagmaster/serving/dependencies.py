"""The parameters of the tile routes, as FastAPI dependencies that TiTiler's factories accept.

TiTiler accepts many parameters. `PARAMETERS` lists those that are allowed here, with the values they may have. Where a
request does not set one, the `renders` of the catalogue supply it.

The dependencies are coroutines although none of them waits: FastAPI would run a plain function in a thread.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from pydantic import Field
from rio_tiler.colormap import cmap, parse_color
from titiler.core.dependencies import (
    BidxParams,
    DatasetParams,
    DefaultDependency,
    HistogramParams,
    ImageRenderingParams,
    PreviewParams,
    StatisticsParams,
)

from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.caching import set_cache_headers
from dagmaster.serving.readers import GDAL_ENVIRONMENT, ReaderInput
from dagmaster.serving.services import Services
from dagmaster.serving.sources import LATEST

FORMATS = ("png", "jpg", "jpeg", "webp")
MAX_IMAGE_SIZE = 2048

_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_NUMBER = r"[+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?"
_BOOLEAN = "true|false|1|0"
_SIZE = r"[1-9]\d{0,3}"
_MAX_PARAMETERS = 40
# All parameters. TiTiler's others (expressions, algorithms, colour formulas, CRSs, buffers) are code or have no limit.
PARAMETERS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "version": rf"{LATEST}|\d{{1,9}}",
        "rev": r"\d{1,9}(?:-[0-9a-f]{1,16})?",
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
    }.items()
}


def require_allowed(request: Request) -> None:
    """Refuse a parameter that is not in the table: ignoring it would return the wrong image."""
    parameters = request.query_params.multi_items()
    if len(parameters) > _MAX_PARAMETERS:
        raise InvalidRequest(f"the request has more than {_MAX_PARAMETERS} parameters", code="request.invalid")
    for name, value in parameters:
        if name not in PARAMETERS:
            hint = f"allowed are {', '.join(sorted(PARAMETERS))}"
            raise InvalidRequest(f"unknown parameter {name[:40]!r}", code="tiles.no-parameter", hint=hint)
        if not PARAMETERS[name].fullmatch(value):
            raise InvalidRequest(f"the value of {name} is not allowed", code="tiles.bad-parameter")
    if request.path_params.get("format") not in (None, *FORMATS):
        raise InvalidRequest("unknown image format", code="tiles.no-format", hint=f"use {', '.join(FORMATS)}")


AssetId = Annotated[str, Path(pattern=_ID, description="Id of the dataset, which is also the id of its collection")]
Version = Annotated[str, Query(description="`latest`, or the ordinal of a version")]
Revision = Annotated[str | None, Query(description="The revision, as in the TileJSON")]
Bands = Annotated[list[int] | None, Query(alias="bidx", max_length=4, description="Bands to use; the first is 1")]
Nodata = Annotated[str | None, Query(description="Value that is transparent")]
Rescale = Annotated[list[str] | None, Query(max_length=4, description="`low,high`, once or for each band")]
ColormapName = Annotated[str | None, Query(description="A colour map of rio-tiler, for a single band")]
Resampling = Annotated[str | None, Query(pattern="^(nearest|bilinear|cubic|cubic_spline|lanczos|average|mode)$")]


async def dataset_path(
    request: Request, services: Services, asset_id: AssetId, version: Version = LATEST, rev: Revision = None
) -> ReaderInput:
    require_allowed(request)
    source = await services.resolver.resolve(asset_id, version, rev)
    if rev is not None and rev.partition("-")[0] != str(source.revision):
        raise NotFound("the revision was replaced", code="version.replaced", hint="request the TileJSON again")
    set_cache_headers(request, tag=source.tag, is_pinned=version != LATEST and rev == source.revision_tag)
    return ReaderInput(source, services.storage, services.mosaics, services.datasets)


DatasetPath = Annotated[ReaderInput, Depends(dataset_path)]


async def display_bands(src_path: DatasetPath, bidx: Bands = None) -> BidxParams:
    return BidxParams(indexes=bidx or list(src_path.source.rendering.bands) or None)


async def selected_bands(bidx: Bands = None) -> BidxParams:
    return BidxParams(indexes=bidx)


async def dataset_params(
    src_path: DatasetPath, nodata: Nodata = None, unscale: bool | None = None, resampling: Resampling = None
) -> DatasetParams:
    default = src_path.source.rendering
    method: Any = resampling or default.resampling
    params = DatasetParams(unscale=unscale, resampling_method=method, reproject_method=method)
    params.nodata = default.nodata if nodata is None else float(nodata)
    return params


async def rendering_params(
    src_path: DatasetPath, bidx: Bands = None, rescale: Rescale = None, return_mask: bool = True
) -> ImageRenderingParams:
    ranges: Any = [_range(text) for text in rescale] if rescale else src_path.source.rendering.rescale_for(bidx)
    params = ImageRenderingParams(add_mask=return_mask)
    params.rescale = ranges
    return params


async def colormap(src_path: DatasetPath, bidx: Bands = None, colormap_name: ColormapName = None) -> Any:
    default = src_path.source.rendering
    if colormap_name is None and bidx is None and default.colormap:
        return _parse_colormap(default.colormap)
    name = colormap_name or (default.colormap_name if bidx is None or len(bidx) == 1 else None)
    if name is None:
        return None
    if name not in cmap.list():
        raise InvalidRequest("unknown colour map", code="tiles.no-colormap", hint="for example viridis or terrain")
    return cmap.get(name)


@dataclass(frozen=True, slots=True)
class TileOptions:
    """What a tile is read from, and how it is read and rendered."""

    src_path: ReaderInput
    reading: Mapping[str, Any]
    rendering: Mapping[str, Any]
    colormap: Any


async def tile_options(
    src_path: DatasetPath,
    *,
    bidx: Bands = None,
    nodata: Nodata = None,
    unscale: bool | None = None,
    resampling: Resampling = None,
    rescale: Rescale = None,
    return_mask: bool = True,
    colormap_name: ColormapName = None,
) -> TileOptions:
    """The dependencies above as one: FastAPI resolves the dependencies of each dependency again, which takes time."""
    bands = await display_bands(src_path, bidx)
    dataset = await dataset_params(src_path, nodata, unscale, resampling)
    rendering = await rendering_params(src_path, bidx, rescale, return_mask)
    colors = await colormap(src_path, bidx, colormap_name)
    return TileOptions(src_path, bands.as_dict() | dataset.as_dict(), rendering.as_dict(), colors)


async def preview_size(
    max_size: Annotated[int, Field(gt=0, le=MAX_IMAGE_SIZE, description="Pixels of the longer side")] = 1024,
    width: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
    height: Annotated[int | None, Field(gt=0, le=MAX_IMAGE_SIZE)] = None,
) -> PreviewParams:
    return PreviewParams(max_size=max_size, width=width, height=height)


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


def _parse_colormap(colors: Mapping[str, Any] | Sequence[Any]) -> Any:
    """A colour map of STAC's `renders`: colours by value, or by interval."""
    if isinstance(colors, Mapping):
        return {int(value): parse_color(color) for value, color in colors.items()}
    return [((float(low), float(high)), parse_color(color)) for (low, high), color in colors]
