"""The output grid: where every pixel of a dataset's outputs lies, and the tiles it is cut into.

One grid serves all tiles of a dataset, and its pixels are counted from a fixed origin of the CRS, so that neighbours (and files
of one dataset at one resolution) agree to the pixel.

    fixed origin of the CRS
      └ grid: origin, resolution, width × height
          └ sections: one; two where a geographic grid crosses the antimeridian, which lies between them
              └ tiles: windows of the grid, starting at multiples of 512 pixels of their section; neighbours share `overlap`
                  └ blocks: 512 × 512, the unit of warping and of the COG

A grid that crosses the antimeridian has continuous longitudes (170 … 190); what lies beyond 180 is georeferenced one turn less, so
that every COG is within -180 … 180. So it is in web Mercator, with metres.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.warp import calculate_default_transform

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.source.crs import name_crs, parse_crs
from dagmaster.raster.source.extent import Bounds, geographic_bounds
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.raster.source.points import Points, apply_affine, project
from dagmaster.raster.source.window import BLOCK, Window

_SLACK = 1e-6  # of a pixel: what rounding of a transform may leave


@dataclass(frozen=True, slots=True)
class OutputGrid:
    """`origin` is the upper left corner; `resolution` is positive in both directions."""

    crs: str
    origin: tuple[float, float]
    resolution: tuple[float, float]
    width: int
    height: int

    @property
    def transform(self) -> Affine:
        return Affine(self.resolution[0], 0, self.origin[0], 0, -self.resolution[1], self.origin[1])

    @property
    def window(self) -> Window:
        return Window(0, 0, self.width, self.height)

    @property
    def turn(self) -> float | None:
        """Once around the Earth, eastwards, where that leads back to the same place of the CRS."""
        return _turn(self.crs)

    @property
    def sections(self) -> tuple[tuple[int, int], ...]:
        """The ranges of columns that tiles stay within: two where the antimeridian lies inside, on an edge of pixels."""
        if self.turn is None:
            return ((0, self.width),)
        edge = (self.turn / 2 - self.origin[0]) / self.resolution[0]
        column = round(edge)
        if 0 < column < self.width and abs(edge - column) < 0.01:
            return ((0, column), (column, self.width))
        return ((0, self.width),)

    def transform_of(self, window: Window) -> Affine:
        """Where a window's pixels lie; beyond the antimeridian one turn less."""
        west = self.origin[0] + window.col * self.resolution[0]
        north = self.origin[1] - window.row * self.resolution[1]
        if self.turn is not None and west + self.resolution[0] / 2 > self.turn / 2:
            west -= self.turn
        return Affine(self.resolution[0], 0, west, 0, -self.resolution[1], north)

    def bounds_of(self, window: Window) -> Bounds:
        corner = self.transform_of(window)
        east, south = corner @ (window.width, window.height)
        return corner.c, south, east, corner.f

    def bounds_4326_of(self, window: Window) -> BBox:
        """The box around a window in degrees."""
        place = self.transform_of(window)
        bounds = geographic_bounds(parse_crs(self.crs), place[:6], window.width, window.height)
        assert bounds is not None  # a grid is made of what lies on Earth
        return bounds


@dataclass(frozen=True, slots=True)
class Tile:
    """One part of the grid that becomes one COG; `window` includes what it shares with its neighbours."""

    tile_id: str
    row: int
    col: int
    window: Window
    bounds: Bounds
    bounds_4326: BBox


@dataclass(frozen=True, slots=True)
class TilingScheme:
    grid: OutputGrid
    tile_size: int
    overlap: int
    tiles: tuple[Tile, ...]


def output_grid(
    facts: RasterFacts, target_crs: str = "EPSG:4326", resolution: float | tuple[float, float] | None = None
) -> OutputGrid:
    """The grid a file goes to. Its own, where it is already in the target CRS and north-up and no resolution is asked for.

    Otherwise the resolution is the one gdalwarp would choose, unless given, and pixels are counted from the fixed origin of
    the CRS: give one resolution to have several files share one grid.
    """
    source, target = _crs(facts), parse_crs(target_crs)
    if resolution is None and source == target and _is_north_up(facts):
        return _own_grid(facts, target_crs)
    extent = _Extent.of(facts, source, target)
    size = _pair(resolution) if resolution is not None else extent.resolution
    return _snapped(target_crs, target, extent.bounds, size)


def auto_tile_size(band_count: int, dtype: str) -> int:
    """8192 for three bands of a byte, and as many bytes for any other pixel; whole blocks.

    >>> auto_tile_size(3, "uint8"), auto_tile_size(8, "uint16")
    (8192, 3072)
    """
    bytes_a_pixel = band_count * np.dtype(dtype).itemsize
    side = 8192 * math.sqrt(3 / bytes_a_pixel)
    return min(8192, max(2 * BLOCK, int(side // BLOCK) * BLOCK))


def tiles_of(grid: OutputGrid, tile_size: int, overlap: int = BLOCK) -> tuple[Tile, ...]:
    """Cut the grid, row by row. Windows are at most `tile_size` wide and high and share `overlap` pixels with each neighbour."""
    _require_whole_blocks(tile_size, overlap)
    rows = _cuts(0, grid.height, tile_size, overlap)
    cols = [cut for start, stop in grid.sections for cut in _cuts(start, stop, tile_size, overlap)]
    digits = max(3, len(str(max(len(rows), len(cols)) - 1)))
    return tuple(
        _tile(grid, Window(left, top, right - left, bottom - top), row, col, digits)
        for row, (top, bottom) in enumerate(rows)
        for col, (left, right) in enumerate(cols)
    )


def scheme_to_geojson(scheme: TilingScheme) -> dict[str, Any]:
    """A FeatureCollection (RFC 7946) of the tiles, with the grid beside them."""
    grid = scheme.grid
    return {
        "type": "FeatureCollection",
        "grid": {
            "crs": grid.crs,
            "origin": list(grid.origin),
            "resolution": list(grid.resolution),
            "width": grid.width,
            "height": grid.height,
            "tile_size": scheme.tile_size,
            "overlap": scheme.overlap,
        },
        "features": [_feature(tile) for tile in scheme.tiles],
    }


def scheme_from_geojson(document: dict[str, Any]) -> TilingScheme:
    """The scheme that `scheme_to_geojson` wrote."""
    try:
        said = document["grid"]
        grid = OutputGrid(said["crs"], tuple(said["origin"]), tuple(said["resolution"]), said["width"], said["height"])
        tiles = tuple(_tile_from(grid, feature["properties"]) for feature in document["features"])
        return TilingScheme(grid, said["tile_size"], said["overlap"], tiles)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"not a tiling scheme: {error}", code="raster.bad-scheme", hint="make it with raster.generate_tiling_scheme"
        ) from error


def require_aligned(grid: OutputGrid, window: Window) -> None:
    """Neighbours agree because all cut the same blocks: a window starts on one, and stays within its section."""
    for start, stop in grid.sections:
        if start <= window.col < stop:
            inside = window.col + window.width <= stop and window.row >= 0 and window.row + window.height <= grid.height
            if (
                inside
                and window.width > 0
                and window.height > 0
                and not (window.col - start) % BLOCK + window.row % BLOCK
            ):
                return
    raise InvalidRequest(
        f"window {window.col}, {window.row}, {window.width} × {window.height} is not one of the grid's",
        code="raster.bad-window",
        hint=f"windows lie inside the grid and start at multiples of {BLOCK} pixels: take them from tiles_of",
    )


def _cuts(start: int, stop: int, tile_size: int, overlap: int) -> list[tuple[int, int]]:
    stride = tile_size - overlap
    count = max(1, math.ceil((stop - start - overlap) / stride))
    return [(start + i * stride, min(start + i * stride + tile_size, stop)) for i in range(count)]


def _tile(grid: OutputGrid, window: Window, row: int, col: int, digits: int) -> Tile:
    name = f"r{row:0{digits}}c{col:0{digits}}"
    return Tile(name, row, col, window, grid.bounds_of(window), grid.bounds_4326_of(window))


def _feature(tile: Tile) -> dict[str, Any]:
    window = tile.window
    return {
        "type": "Feature",
        "id": tile.tile_id,
        "geometry": tile.bounds_4326.geometry(),
        "properties": {
            "tile_id": tile.tile_id,
            "grid_row": tile.row,
            "grid_col": tile.col,
            "window": {"col": window.col, "row": window.row, "width": window.width, "height": window.height},
            "bounds_4326": tile.bounds_4326.as_list(),
        },
    }


def _tile_from(grid: OutputGrid, said: dict[str, Any]) -> Tile:
    window = Window(**{key: int(value) for key, value in said["window"].items()})
    return Tile(
        said["tile_id"], said["grid_row"], said["grid_col"], window, grid.bounds_of(window), grid.bounds_4326_of(window)
    )


def _require_whole_blocks(tile_size: int, overlap: int) -> None:
    if tile_size <= 0 or tile_size % BLOCK or overlap < 0 or overlap % BLOCK or overlap >= tile_size:
        raise InvalidRequest(
            f"tiles of {tile_size} pixels that overlap by {overlap}",
            code="raster.bad-tile-size",
            hint=f"give multiples of {BLOCK}, the overlap smaller than the tile",
        )


def _own_grid(facts: RasterFacts, crs: str) -> OutputGrid:
    assert facts.transform is not None
    a, _, c, _, e, f = facts.transform
    return OutputGrid(crs, (c, f), (a, -e), facts.width, facts.height)


def _snapped(crs: str, target: CRS, bounds: Bounds, resolution: tuple[float, float]) -> OutputGrid:
    """The smallest grid over the bounds whose edges are whole pixels away from the fixed origin of the CRS.

    Where there is an antimeridian, columns are counted from it, so that it is always an edge; degrees northwards from the pole.
    """
    dx, dy = resolution
    turn = _turn(crs)
    x0, y0 = 0.0 if turn is None else turn / 2, 90.0 if target.is_geographic else 0.0
    west, south, east, north = bounds
    left, right = math.floor((west - x0) / dx + _SLACK), math.ceil((east - x0) / dx - _SLACK)
    top, bottom = math.floor((y0 - north) / dy + _SLACK), math.ceil((y0 - south) / dy - _SLACK)
    if turn is not None:
        left = max(left, right - math.floor(turn / dx + _SLACK))  # not a pixel round the world twice
    if target.is_geographic:
        top, bottom = max(top, 0), min(bottom, round(180 / dy))  # nor beyond a pole
    return OutputGrid(crs, (x0 + left * dx, y0 - top * dy), (dx, dy), max(1, right - left), max(1, bottom - top))


@dataclass(frozen=True, slots=True)
class _Extent:
    """What a file covers in another CRS, and the pixel size that gdalwarp would give it there."""

    bounds: Bounds
    resolution: tuple[float, float]

    @staticmethod
    def of(facts: RasterFacts, source: CRS, target: CRS) -> "_Extent":
        across = _lies_across_the_antimeridian(facts, source, target)
        points = _outer_points(facts, source, target)
        x = np.mod(points.x, _turn(name_crs(target)) or math.inf) if across else points.x
        bounds = float(x.min()), float(points.y.min()), float(x.max()), float(points.y.max())
        bounds = _with_poles(facts, source, target, bounds)
        return _Extent(bounds, _default_resolution(facts, source, _turned(target) if across else target))


def _outer_points(facts: RasterFacts, source: CRS, target: CRS) -> Points:
    """Its edges densely, and its inside coarsely: projected outlines bulge, and some inputs are larger than the CRS."""
    along = np.linspace(0, 1, 101)
    inner_x, inner_y = (grid.ravel() for grid in np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21)))
    zeros, ones = np.zeros_like(along), np.ones_like(along)
    u = np.concatenate([along, along, zeros, ones, inner_x]) * facts.width
    v = np.concatenate([zeros, ones, along, along, inner_y]) * facts.height
    points = project(source, target, *apply_affine(_affine(facts), u, v)).finite()
    if points.x.size == 0:
        raise UnfitData(
            f"no part of the raster lies within {target.to_string()[:60]}",
            code="raster.outside-crs",
            hint="check its CRS and transform, or choose another target_crs",
        )
    return points


def _lies_across_the_antimeridian(facts: RasterFacts, source: CRS, target: CRS) -> bool:
    turn = _turn(name_crs(target))
    if turn is None or (target.is_geographic and _poles_inside(facts, source, target)):
        return False
    x = _outer_points(facts, source, target).x
    return bool(np.ptp(x) > turn / 2 > np.ptp(np.mod(x, turn)))


def _poles_inside(facts: RasterFacts, source: CRS, target: CRS) -> tuple[float, ...]:
    if source.is_geographic:
        return ()
    poles = np.array([90.0, -90.0])
    points = project(target, source, np.zeros(2), poles)
    cols, rows = apply_affine(~_affine(facts), points.x, points.y)
    back = project(source, target, points.x, points.y)
    with np.errstate(invalid="ignore"):
        inside = (cols >= 0) & (cols <= facts.width) & (rows >= 0) & (rows <= facts.height)
        # Cylindrical projections have no pole, but some answer for one.
        inside &= np.abs(back.y - poles) < 1e-6
    return tuple(float(pole) for pole in poles[inside])


def _with_poles(facts: RasterFacts, source: CRS, target: CRS, bounds: Bounds) -> Bounds:
    if not target.is_geographic:
        return bounds
    west, south, east, north = bounds
    for pole in _poles_inside(facts, source, target):
        west, east = -180.0, 180.0
        south, north = min(south, pole), max(north, pole)
    return west, south, east, north


def _default_resolution(facts: RasterFacts, source: CRS, target: CRS) -> tuple[float, float]:
    affine = _affine(facts)
    corners = [(u, v, *(affine @ (u, v))) for u in (0, facts.width) for v in (0, facts.height)]
    if _is_north_up(facts):
        (_, _, left, top), (_, _, right, bottom) = corners[0], corners[3]
        where: dict[str, Any] = {"left": left, "bottom": bottom, "right": right, "top": top}
    else:
        # Bounds alone would lose the rotation; four corners as control points carry it.
        where = {"gcps": [GroundControlPoint(row=v, col=u, x=x, y=y, z=0.0) for u, v, x, y in corners]}
    suggested, _, _ = calculate_default_transform(source, target, facts.width, facts.height, **where)
    return suggested.a, -suggested.e


def _turned(crs: CRS) -> CRS:
    """The same CRS with the antimeridian in its middle."""
    if not crs.is_geographic:
        return CRS.from_string(
            "+proj=merc +a=6378137 +b=6378137 +lat_ts=0 +lon_0=180 +k=1 +units=m +nadgrids=@null +wktext"
        )
    return CRS.from_string(f"{CRS.from_wkt(crs.to_wkt()).to_proj4()} +lon_wrap=180".replace("=True", ""))


@functools.cache
def _turn(crs: str) -> float | None:
    parsed = parse_crs(crs)
    if parsed.is_geographic:
        return 360.0
    return 2 * math.pi * 6_378_137 if parsed == CRS.from_epsg(3857) else None


def _crs(facts: RasterFacts) -> CRS:
    if facts.crs is None:
        raise UnfitData("raster has no CRS", code="raster.no-crs", hint="pass source_crs")
    return parse_crs(facts.crs)


def _affine(facts: RasterFacts) -> Affine:
    if facts.transform is None:
        raise UnfitData(
            "raster has no georeference", code="raster.no-geotransform", hint="give it one, or rectify it first"
        )
    return Affine(*facts.transform)


def _is_north_up(facts: RasterFacts) -> bool:
    a, b, _, d, e, _ = _affine(facts)[:6]
    return bool(a > 0 and e < 0 and b == 0 and d == 0)


def _pair(resolution: float | tuple[float, float]) -> tuple[float, float]:
    pair = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    if min(pair) <= 0 or not all(math.isfinite(value) for value in pair):
        raise InvalidRequest(f"resolution {resolution}", code="raster.bad-resolution", hint="give a positive number")
    return float(pair[0]), float(pair[1])
