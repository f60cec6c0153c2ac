"""The output grid: the position of every pixel of a dataset's outputs, and the tiles that it is divided into.

All tiles of a dataset share one grid, and its pixels are counted from a fixed origin of the CRS, so that the pixels of
neighbours (and of files of one dataset at one resolution) coincide.

    fixed origin of the CRS
      └ grid: origin, resolution, width × height
          └ sections: one, or two if the grid crosses the antimeridian, which is the edge between them
              └ tiles: windows of the grid that start at multiples of 512 pixels of their section; neighbours overlap
                  └ blocks: 512 × 512, the unit of warping and of the COG

A grid that crosses the antimeridian has continuous longitudes (170 … 190). A tile beyond 180 is georeferenced one turn
further west, so that every COG is within -180 … 180. Web Mercator is treated in the same way, in metres.
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
from dagmaster.raster.cog.pyramid import sizes as pyramid_sizes
from dagmaster.raster.source.crs import name_crs, parse_crs
from dagmaster.raster.source.extent import Bounds, geographic_bounds
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.raster.source.points import Points, apply_affine, project
from dagmaster.raster.source.window import BLOCK, Window
from dagmaster.web_mercator import EQUATOR_METRES

_SLACK = 1e-6  # of a pixel: for rounding errors of a transform
SAME_PIXELS = 0.01  # share of a pixel by which equal grids may differ, over their whole length


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
        """The circumference of the Earth in units of the CRS, if its x coordinates repeat; else None."""
        return _turn(self.crs)

    @property
    def sections(self) -> tuple[tuple[int, int], ...]:
        """Ranges of columns that no tile crosses: two if the antimeridian is inside the grid, on an edge of pixels."""
        if self.turn is None:
            return ((0, self.width),)
        edge = (self.turn / 2 - self.origin[0]) / self.resolution[0]
        column = round(edge)
        if 0 < column < self.width and abs(edge - column) < 0.01:
            return ((0, column), (column, self.width))
        return ((0, self.width),)

    def transform_of(self, window: Window) -> Affine:
        """The transform of a window; beyond the antimeridian it is one turn further west."""
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
        transform = self.transform_of(window)
        bounds = geographic_bounds(parse_crs(self.crs), transform[:6], window.width, window.height)
        assert bounds is not None  # a grid covers only places on Earth
        return bounds


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of the grid that becomes one COG; `window` includes the overlap with its neighbours."""

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
    facts: RasterFacts,
    target_crs: str = "EPSG:4326",
    resolution: float | tuple[float, float] | None = None,
    origin: tuple[float, float] | None = None,
    *,
    has_neighbours: bool = False,
) -> OutputGrid:
    """The output grid of a file: its own grid if it is north-up in the target CRS and no resolution is requested.

    Otherwise the default resolution is that of gdalwarp, and pixels are counted from the fixed origin of the CRS: pass
    the same resolution for files that should share one grid. With an `origin` they are counted from there, and a file
    whose pixels are on that grid already keeps its own. If it `has_neighbours`, the grid is extended so that the pixels
    of its overviews coincide with theirs.
    """
    source, target = _crs(facts), parse_crs(target_crs)
    if is_north_up_in(facts, target_crs) and (resolution is None or _is_on_grid(facts, resolution, origin)):
        return _own_grid(facts, target_crs)
    extent = _Extent.of(facts, source, target)
    size = _pair(resolution) if resolution is not None else extent.resolution
    lattice = _Lattice.of(target_crs, target, size, origin)
    cells = lattice.around(extent.bounds)
    return lattice.grid(lattice.with_whole_overviews(cells) if has_neighbours else cells)


def is_north_up_in(facts: RasterFacts, target_crs: str) -> bool:
    """Whether the pixels of a file can be copied to a grid of the CRS."""
    return _crs(facts) == parse_crs(target_crs) and _is_north_up(facts)


def auto_tile_size(band_count: int, dtype: str) -> int:
    """8192 for three bands of one byte; for other pixels about the same number of bytes, in whole blocks.

    >>> auto_tile_size(3, "uint8"), auto_tile_size(8, "uint16")
    (8192, 3072)
    """
    pixel_bytes = band_count * np.dtype(dtype).itemsize
    side = 8192 * math.sqrt(3 / pixel_bytes)
    return min(8192, max(2 * BLOCK, int(side // BLOCK) * BLOCK))


def tiles_of(grid: OutputGrid, tile_size: int, overlap: int = BLOCK) -> tuple[Tile, ...]:
    """Divide the grid, row by row, into windows of at most `tile_size` that overlap by `overlap` pixels."""
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
    """A FeatureCollection (RFC 7946) of the tiles, with the grid as a member of its own."""
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
        header = document["grid"]
        origin, resolution = tuple(header["origin"]), tuple(header["resolution"])
        grid = OutputGrid(header["crs"], origin, resolution, header["width"], header["height"])
        tiles = tuple(_tile_from(grid, feature["properties"]) for feature in document["features"])
        return TilingScheme(grid, header["tile_size"], header["overlap"], tiles)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"not a tiling scheme: {error}",
            code="raster.bad-scheme",
            hint="create it with raster.generate_tiling_scheme",
        ) from error


def require_aligned(grid: OutputGrid, window: Window) -> None:
    """Refuse a window that does not start at a block of a section: neighbouring tiles agree in their pixels because
    they share blocks."""
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
        f"window {window.col}, {window.row}, {window.width} × {window.height} is not a window of the grid",
        code="raster.bad-window",
        hint=f"windows are inside the grid and start at multiples of {BLOCK} pixels: use those of tiles_of",
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


def _tile_from(grid: OutputGrid, properties: dict[str, Any]) -> Tile:
    window = Window(**{key: int(value) for key, value in properties["window"].items()})
    return Tile(
        properties["tile_id"],
        properties["grid_row"],
        properties["grid_col"],
        window,
        grid.bounds_of(window),
        grid.bounds_4326_of(window),
    )


def _require_whole_blocks(tile_size: int, overlap: int) -> None:
    if tile_size <= 0 or tile_size % BLOCK or overlap < 0 or overlap % BLOCK or overlap >= tile_size:
        raise InvalidRequest(
            f"tiles of {tile_size} pixels with an overlap of {overlap} are not possible",
            code="raster.bad-tile-size",
            hint=f"pass multiples of {BLOCK}, and an overlap that is smaller than the tile",
        )


def _own_grid(facts: RasterFacts, crs: str) -> OutputGrid:
    assert facts.transform is not None
    a, _, c, _, e, f = facts.transform
    return OutputGrid(crs, (c, f), (a, -e), facts.width, facts.height)


def _is_on_grid(
    facts: RasterFacts, resolution: float | tuple[float, float], origin: tuple[float, float] | None
) -> bool:
    """Whether the pixels of a north-up file are those of the grid, up to a hundredth of a pixel."""
    if origin is None:
        return False
    (dx, dy), (west, north) = _pair(resolution), origin
    a, _, c, _, e, f = _affine(facts)[:6]
    drift = max(abs(a / dx - 1) * facts.width, abs(-e / dy - 1) * facts.height)
    cols, rows = (c - west) / dx, (north - f) / dy
    return bool(max(drift, abs(cols - round(cols)), abs(rows - round(rows))) <= SAME_PIXELS)


@dataclass(frozen=True, slots=True)
class _Cells:
    """First column and row, and end column and row, counted from the origin of a lattice."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class _Lattice:
    """All pixels of a CRS: of one size, and counted from one origin.

    If a CRS has an antimeridian, the fixed origin is on it, so that it is always an edge of pixels; rows in degrees are
    counted from the north pole.
    """

    crs: str
    is_geographic: bool
    origin: tuple[float, float]
    size: tuple[float, float]

    @staticmethod
    def of(crs: str, target: CRS, size: tuple[float, float], origin: tuple[float, float] | None) -> "_Lattice":
        turn = _turn(crs)
        fixed = 0.0 if turn is None else turn / 2, 90.0 if target.is_geographic else 0.0
        return _Lattice(crs, target.is_geographic, origin or fixed, size)

    def around(self, bounds: Bounds) -> _Cells:
        """The smallest rectangle around the bounds."""
        (x0, y0), (dx, dy) = self.origin, self.size
        west, south, east, north = bounds
        left, right = math.floor((west - x0) / dx + _SLACK), math.ceil((east - x0) / dx - _SLACK)
        top, bottom = math.floor((y0 - north) / dy + _SLACK), math.ceil((y0 - south) / dy - _SLACK)
        return self._on_earth(_Cells(left, top, right, bottom))

    def with_whole_overviews(self, cells: _Cells) -> _Cells:
        """Extend the cells to whole pixels of the coarsest overview, but not beyond a pole or the antimeridian.

        Otherwise each COG would have overview pixels of its own size: GDAL stretches an overview to the extent of its
        COG. Data that ends inside its COG, as warped data does, would end too early in the overview, and there would be
        gaps between neighbours.
        """
        for _ in range(3):  # a larger size may need more overviews
            step = 2 ** (len(pyramid_sizes(cells.right - cells.left, cells.bottom - cells.top)) - 1)
            extended = _Cells(
                cells.left // step * step,
                cells.top // step * step,
                -(-cells.right // step) * step,
                -(-cells.bottom // step) * step,
            )
            cells = self._within_edges(extended, cells)
        return cells

    def grid(self, cells: _Cells) -> OutputGrid:
        (x0, y0), (dx, dy) = self.origin, self.size
        corner = (x0 + cells.left * dx, y0 - cells.top * dy)
        width, height = max(1, cells.right - cells.left), max(1, cells.bottom - cells.top)
        return OutputGrid(self.crs, corner, self.size, width, height)

    def _on_earth(self, cells: _Cells) -> _Cells:
        """Remove pixels that repeat around the Earth, and those with their centre beyond a pole."""
        left, top, bottom = cells.left, cells.top, cells.bottom
        turn = _turn(self.crs)
        if turn is not None:
            left = max(left, cells.right - math.floor(turn / self.size[0] + _SLACK))
        if self.is_geographic:
            y0, dy = self.origin[1], self.size[1]
            bottom = min(bottom, round((y0 + 90) / dy))
            top = min(max(top, round((y0 - 90) / dy)), bottom - 1)
        return _Cells(left, top, cells.right, bottom)

    def _within_edges(self, extended: _Cells, cells: _Cells) -> _Cells:
        """Undo an extension across the antimeridian or beyond a pole."""
        turn = _turn(self.crs)
        left, right = extended.left, extended.right
        if turn is not None:
            edges = [(edge - self.origin[0]) / self.size[0] for edge in (-turn / 2, turn / 2)]
            if any(left < edge - _SLACK and edge <= cells.left + 1 for edge in edges):
                left = cells.left
            if any(right > edge + _SLACK and edge >= cells.right - 1 for edge in edges):
                right = cells.right
        return self._on_earth(_Cells(left, extended.top, right, extended.bottom))


@dataclass(frozen=True, slots=True)
class _Extent:
    """The extent of a file in another CRS, and the resolution that gdalwarp would choose there."""

    bounds: Bounds
    resolution: tuple[float, float]

    @staticmethod
    def of(facts: RasterFacts, source: CRS, target: CRS) -> "_Extent":
        crosses = _crosses_antimeridian(facts, source, target)
        points = _outer_points(facts, source, target)
        x = np.mod(points.x, _turn(name_crs(target)) or math.inf) if crosses else points.x
        bounds = float(x.min()), float(points.y.min()), float(x.max()), float(points.y.max())
        bounds = _with_poles(facts, source, target, bounds)
        dx, dy = _default_resolution(facts, source, _turned(target) if crosses else target)
        if target.is_geographic and bounds[1] <= -90:
            # Rows are counted from the north pole: the last one ends at the south pole, not before or beyond it.
            dy = 180 / math.ceil(180 / dy - _SLACK)
        return _Extent(bounds, (dx, dy))


def _outer_points(facts: RasterFacts, source: CRS, target: CRS) -> Points:
    """Points along the edges of a file and inside it: projected edges are curved, and a file may exceed the domain of
    the CRS."""
    along = np.linspace(0, 1, 101)
    inner_x, inner_y = (grid.ravel() for grid in np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21)))
    zeros, ones = np.zeros_like(along), np.ones_like(along)
    u = np.concatenate([along, along, zeros, ones, inner_x]) * facts.width
    v = np.concatenate([zeros, ones, along, along, inner_y]) * facts.height
    points = project(source, target, *apply_affine(_affine(facts), u, v)).finite()
    if points.x.size == 0:
        raise UnfitData(
            f"no part of the raster is within the domain of {target.to_string()[:60]}",
            code="raster.outside-crs",
            hint="check its CRS and transform, or choose another target_crs",
        )
    return points


def _crosses_antimeridian(facts: RasterFacts, source: CRS, target: CRS) -> bool:
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
        # Cylindrical projections have no pole, but some return coordinates for one.
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
        extent: dict[str, Any] = {"left": left, "bottom": bottom, "right": right, "top": top}
    else:
        # Bounds alone would lose the rotation; four corners as control points keep it.
        extent = {"gcps": [GroundControlPoint(row=v, col=u, x=x, y=y, z=0.0) for u, v, x, y in corners]}
    suggested, _, _ = calculate_default_transform(source, target, facts.width, facts.height, **extent)
    return suggested.a, -suggested.e


def _turned(crs: CRS) -> CRS:
    """The same CRS, centred on the antimeridian."""
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
    return EQUATOR_METRES if parsed == CRS.from_epsg(3857) else None


def _crs(facts: RasterFacts) -> CRS:
    if facts.crs is None:
        raise UnfitData("raster has no CRS", code="raster.no-crs", hint="pass source_crs")
    return parse_crs(facts.crs)


def _affine(facts: RasterFacts) -> Affine:
    if facts.transform is None:
        raise UnfitData(
            "raster has no georeference", code="raster.no-geotransform", hint="georeference it, or rectify it first"
        )
    return Affine(*facts.transform)


def _is_north_up(facts: RasterFacts) -> bool:
    a, b, _, d, e, _ = _affine(facts)[:6]
    return bool(a > 0 and e < 0 and b == 0 and d == 0)


def _pair(resolution: float | tuple[float, float]) -> tuple[float, float]:
    pair = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    if min(pair) <= 0 or not all(math.isfinite(value) for value in pair):
        raise InvalidRequest(
            f"the resolution {resolution} is not possible", code="raster.bad-resolution", hint="pass a positive number"
        )
    return float(pair[0]), float(pair[1])
