"""MosaicJSON 0.0.3: the index of which COG covers which part of the map.

The index lists, for every quadkey (a square of the web map at `quadkey_zoom`), each COG whose outline overlaps it: the
true shape, even if it is rotated, curved or on both sides of the antimeridian. Names are relative, so that a mosaic
does not contain internal locations; `asset_prefix` is where the COGs are published. The same COGs give the same bytes.

    assets = [mosaic_asset(path, name=path.name) for path in tiles]
    document = mosaic(assets, asset_prefix="https://data.example.org/cogs/roads/v1/r1/")
    encode(document)

Choices
- `maxzoom` is that of rio-tiler for the finest COG. (At a pole or the antimeridian, rio-tiler's value is far too low.)
- `minzoom` is that of rio-tiler for one raster of all COGs, increased until no tile needs more than `assets_per_tile`.
- `quadkey_zoom` is the finest zoom at which the index has at most eight entries per COG on average. At about this zoom
  a COG is one or two squares wide: with larger squares the index would list COGs that are not needed, with smaller ones
  only more entries.
- `bounds` are -180 to 180 if the mosaic crosses the antimeridian, because maps do not accept a west greater than the
  east.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import shapely
from rasterio.crs import CRS
from rasterio.warp import calculate_default_transform
from shapely.geometry import box, shape

from dagmaster.bbox import BBox
from dagmaster.data_types import DATA_TYPE_NAMES, data_type_name
from dagmaster.errors import InvalidRequest
from dagmaster.raster.analysis.footprint import degrees_of_a_pixel, outline
from dagmaster.raster.source.reading import open_raster
from dagmaster.web_mercator import EQUATOR_METRES, position, quadkey

VERSION = "0.0.3"
ENTRIES_PER_ASSET = 8
MAX_ZOOM = 24
_TILE_PIXELS = 256
_MAX_LATITUDE = 85.06  # degrees; the web map ends there in the north and south
_RELATIVE = re.compile(r"(?!/)(?!.*//)[\w.@+=,~ /-]+")

MapTile: TypeAlias = tuple[int, int]  # column, row


@dataclass(frozen=True, slots=True)
class MosaicAsset:
    """The facts about one COG that a mosaic needs. Plain values, which can be passed as JSON."""

    name: str
    geometry: Mapping[str, Any]  # its outline, GeoJSON in degrees, split at the antimeridian
    bbox: BBox
    resolution: float  # metres per pixel on the web map
    data_type: str


def mosaic_asset(path: str | PurePath, *, name: str) -> MosaicAsset:
    """From the header of a COG; `name` is its name in the mosaic."""
    _refuse_internal_name(name)
    with open_raster(path) as dataset:
        area = outline(path)
        resolution = _resolution(dataset, area.bbox)
        data_type = data_type_name(dataset.dtypes[0])
    return MosaicAsset(name, area.geometry, area.bbox, resolution, data_type)


def mosaic(
    assets: Iterable[MosaicAsset],
    *,
    name: str | None = None,
    description: str | None = None,
    attribution: str | None = None,
    asset_prefix: str | None = None,
    palette: Mapping[int, Sequence[int]] | None = None,
    assets_per_tile: int = 32,
) -> dict[str, Any]:
    """The mosaic of these COGs as a MosaicJSON document."""
    assets = sorted(assets, key=lambda asset: asset.name)
    _refuse_bad_assets(assets, asset_prefix)
    maxzoom = max(_zoom(asset.resolution) for asset in assets)
    quadkey_zoom = _quadkey_zoom(assets, maxzoom)
    tiles = _index(assets, quadkey_zoom)
    bounds = BBox.shortest_union(BBox.of(asset.bbox) for asset in assets)  # assets read from JSON have lists
    minzoom = _minzoom(assets, bounds, tiles, maxzoom, assets_per_tile)
    document: dict[str, Any] = {
        "mosaicjson": VERSION,
        "name": name,
        "description": description,
        "version": "1.0.0",
        "attribution": attribution,
        "minzoom": minzoom,
        "maxzoom": maxzoom,
        "quadkey_zoom": quadkey_zoom,
        "bounds": bounds.widened().as_list(),
        "center": [*(float(np.round(degrees, 7)) for degrees in bounds.centre), minzoom],
        "asset_type": "COG",
        "asset_prefix": asset_prefix,
        "data_type": _common_type(assets),
        "colormap": palette and {str(value): list(colour) for value, colour in sorted(palette.items())},
        "tiles": tiles,
    }
    return {key: value for key, value in document.items() if value is not None}


def encode(document: Mapping[str, Any]) -> bytes:
    """The document as bytes: always the same for the same mosaic."""
    return (json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()


def assets_at(document: Mapping[str, Any], longitude: float, latitude: float) -> list[str]:
    """The COGs that the index lists at a point, with their prefix: all that contain it, and perhaps neighbours."""
    zoom = document["quadkey_zoom"]
    column, row = (math.floor(number) for number in _tile_position(longitude, latitude, zoom))
    last = 2**zoom - 1
    key = quadkey(min(max(column, 0), last), min(max(row, 0), last), zoom)
    return [document.get("asset_prefix", "") + name for name in document["tiles"].get(key, [])]


# The index


def _index(assets: Sequence[MosaicAsset], zoom: int) -> dict[str, list[str]]:
    names_by_quadkey: dict[str, list[str]] = defaultdict(list)
    for asset in assets:
        for column, row in sorted(_tiles_of(asset, zoom)):
            names_by_quadkey[quadkey(column, row, zoom)].append(asset.name)
    return dict(sorted(names_by_quadkey.items()))


def _tiles_of(asset: MosaicAsset, zoom: int) -> set[MapTile]:
    """Every tile that the outline overlaps; a common edge is not an overlap."""
    tiles: set[MapTile] = set()
    for part in _parts(asset.geometry):
        candidates = list(_tiles_around(part.bounds, zoom))
        if part.equals(box(*part.bounds)):
            tiles.update(candidates)
            continue
        squares = [box(*_bounds(column, row, zoom)) for column, row in candidates]
        shapely.prepare(part)
        overlaps = shapely.intersects(part, squares) & ~shapely.touches(part, squares)
        tiles.update(tile for tile, overlap in zip(candidates, overlaps, strict=True) if overlap)
    return tiles


def _tiles_around(bounds: Sequence[float], zoom: int) -> Iterator[MapTile]:
    (left, right), (top, bottom) = _ranges(bounds, zoom)
    return ((column, row) for row in range(top, bottom + 1) for column in range(left, right + 1))


def _ranges(bounds: Sequence[float], zoom: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last column, first and last row. The last rows include everything beyond the ends of the web map."""
    west, south, east, north = bounds
    left, top = _tile_position(west, north, zoom)
    right, bottom = _tile_position(east, south, zoom)
    return _range(left, right, 2**zoom), _range(top, bottom, 2**zoom)


def _range(low: float, high: float, number: int) -> tuple[int, int]:
    first = min(max(math.floor(low), 0), number - 1)
    return first, min(max(math.ceil(high) - 1, first), number - 1)


def _tile_position(longitude: float, latitude: float, zoom: int) -> tuple[float, float]:
    """The position on the web map, in tiles from its north-western corner."""
    x, y = position(longitude, latitude, limit=89.99)
    return x * 2**zoom, y * 2**zoom


def _bounds(column: int, row: int, zoom: int) -> BBox:
    """A tile in degrees; the first and last row extend to the poles, as in the index."""
    number = 2**zoom

    def latitude(edge: int) -> float:
        if edge in (0, number):
            return 90.0 if edge == 0 else -90.0
        return math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * edge / number))))

    return BBox(column / number * 360 - 180, latitude(row + 1), (column + 1) / number * 360 - 180, latitude(row))


def _parts(geometry: Mapping[str, Any]) -> list[Any]:
    polygons = shape(geometry)
    return list(polygons.geoms) if hasattr(polygons, "geoms") else [polygons]


# Zooms


def _quadkey_zoom(assets: Sequence[MosaicAsset], maxzoom: int) -> int:
    boxes = [part.bounds for asset in assets for part in _parts(asset.geometry)]
    for zoom in range(maxzoom, 1, -1):
        if sum(_number_of_tiles(bounds, zoom) for bounds in boxes) <= ENTRIES_PER_ASSET * len(assets):
            return zoom
    return 1  # at zoom 0 a quadkey would have no digit


def _number_of_tiles(bounds: Sequence[float], zoom: int) -> int:
    (left, right), (top, bottom) = _ranges(bounds, zoom)
    return (right - left + 1) * (bottom - top + 1)


def _minzoom(
    assets: Sequence[MosaicAsset], bounds: BBox, tiles: Mapping[str, Sequence[str]], maxzoom: int, assets_per_tile: int
) -> int:
    finest = min(asset.resolution for asset in assets)
    lowest = min(_zoom(finest * 2 ** _overviews(bounds, finest)), maxzoom)
    for zoom in range(lowest, maxzoom):
        if _max_assets(tiles, zoom) <= assets_per_tile:
            return zoom
    return maxzoom


def _overviews(bounds: BBox, resolution: float) -> int:
    """How often a raster with these bounds is halved until its shorter side fits into a tile."""
    west, south, east, north = bounds.unrolled()
    left, top = _tile_position(west, min(north, _MAX_LATITUDE), 0)
    right, bottom = _tile_position(east, max(south, -_MAX_LATITUDE), 0)
    side = round(min(right - left, bottom - top) * EQUATOR_METRES / resolution)
    halvings = 0
    while side >> halvings > _TILE_PIXELS:
        halvings += 1
    return halvings


def _max_assets(tiles: Mapping[str, Sequence[str]], zoom: int) -> int:
    """The largest number of assets that a tile of this zoom can need."""
    needed: dict[str, set[str]] = defaultdict(set)
    for key, names in tiles.items():
        needed[key[:zoom]].update(names)
    return max(map(len, needed.values()))


def _zoom(resolution: float) -> int:
    """The nearest zoom, as in GDAL and rio-tiler."""
    exact = math.log2(EQUATOR_METRES / _TILE_PIXELS / resolution)
    return min(max(math.ceil(exact - 0.5), 0), MAX_ZOOM)


def _resolution(dataset: Any, bounds: BBox) -> float:
    """Metres per pixel on the web map, as in GDAL."""
    web_map = CRS.from_epsg(3857)
    if dataset.crs == web_map:
        return float(max(abs(dataset.transform.a), abs(dataset.transform.e)))
    _, south, _, north = bounds
    if not bounds.crosses_antimeridian and south > -_MAX_LATITUDE and north < _MAX_LATITUDE:
        transform, *_ = calculate_default_transform(
            dataset.crs, web_map, dataset.width, dataset.height, *dataset.bounds
        )
        return float(max(abs(transform.a), abs(transform.e)))
    # GDAL would use the whole width of the map, or its infinite height, as the extent: use the centre instead.
    middle = (max(south, -_MAX_LATITUDE) + min(north, _MAX_LATITUDE)) / 2
    return degrees_of_a_pixel(dataset) / 360 * EQUATOR_METRES / math.cos(math.radians(middle))


def _common_type(assets: Sequence[MosaicAsset]) -> str:
    types = {asset.data_type for asset in assets}
    return types.pop() if len(types) == 1 and types <= DATA_TYPE_NAMES else "other"


# Checks before publication


def _refuse_bad_assets(assets: Sequence[MosaicAsset], prefix: str | None) -> None:
    if not assets:
        raise InvalidRequest("a mosaic needs at least one COG", code="mosaic.empty")
    names = [asset.name for asset in assets]
    if len(set(names)) < len(names):
        raise InvalidRequest("two COGs of a mosaic have the same name", code="mosaic.name-twice")
    for name in names:
        _refuse_internal_name(name)
    if prefix is not None:
        _refuse_internal_prefix(prefix)


def _refuse_internal_name(name: str) -> None:
    if not _RELATIVE.fullmatch(name) or ".." in PurePath(name).parts:
        raise InvalidRequest(
            "a COG of a mosaic needs a relative name",
            code="mosaic.name-not-relative",
            hint="put the common beginning of all names into `asset_prefix`",
        )


def _refuse_internal_prefix(prefix: str) -> None:
    """Refuse a prefix that is neither a public address nor a relative path, or does not end in a slash."""
    address = urlsplit(prefix)
    is_public = (
        address.scheme in ("http", "https")
        and address.hostname
        and not (address.username or address.query or address.fragment)
    )
    if not prefix.endswith("/") or not (is_public or _RELATIVE.fullmatch(prefix)):
        raise InvalidRequest(
            "`asset_prefix` must be a public http(s) address or a relative path, and end in a slash",
            code="mosaic.prefix-not-public",
        )
