"""The area on Earth that a raster covers, as GeoJSON in EPSG:4326.

`footprint` follows the data and leaves out nodata collars; `outline` follows the grid. Both are split at the
antimeridian, and include a pole if the raster does. The amount of work is bounded: the mask comes from an overview of
about a megapixel, or from a coarser one if its outline is irregular. The result is accurate to one pixel of that
overview.

To convert a polygon to degrees, its edges are divided until they are straight in degrees too, longitudes are unrolled
along each ring, and a ring that goes once around the Earth is closed over the pole that it encloses.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.features import shapes
from rasterio.warp import transform as transform_points
from shapely.geometry import MultiPolygon, Point, Polygon, box, mapping, shape

from dagmaster.bbox import BBox
from dagmaster.errors import UnfitData
from dagmaster.raster.analysis.corners import straightened
from dagmaster.raster.source.points import Floats, apply_affine, project_each
from dagmaster.raster.source.reading import data_bands, is_all_valid, open_raster, read_with_validity

MASK_PIXELS = 1_048_576
MAX_EDGES = 60_000  # sides between valid and nodata pixels; a mask with more is coarsened
MAX_VERTICES = 8_000
DECIMALS = 7
_STEPS_PER_EDGE = 4  # straight edges are used only if each replaces this many steps, on average
_CORNER_TOLERANCE = 0.25  # pixels; a smaller bend is not a corner
_STRAIGHT_TOLERANCE = 0.03  # pixels by which an edge in degrees may differ from the true one
_POLE_DISC_RADIUS = 0.02  # pixels; the disc around a pole that is cut out of a polygon
_CELLS = 256  # along each side of a grid, to find the part within the domain of its projection

Polygons: TypeAlias = Any  # shapely's Polygon or MultiPolygon
ToDegrees: TypeAlias = Callable[[Floats], Floats]  # (n, 2) pixels to (n, 2) longitudes and latitudes


@dataclass(frozen=True, slots=True)
class Footprint:
    """`geometry` is a GeoJSON Polygon or MultiPolygon, split at the antimeridian."""

    geometry: dict[str, Any]
    bbox: BBox


def footprint(path: str | PurePath, *, max_pixels: int = MASK_PIXELS) -> Footprint | None:
    """The area that a raster has data for; None if it has no data.

    >>> from dagmaster.raster.analysis.footprint import footprint
    >>> footprint("scene.tif").bbox                                     # doctest: +SKIP
    """
    with open_raster(path) as dataset:
        grid = _PixelGrid.of(dataset)
        if any(is_all_valid(dataset, band) for band in data_bands(dataset)):
            return _as_footprint(_whole_grid(grid))
        level = _overview(dataset, max_pixels)
        factor = 1 if level is None else dataset.overviews(1)[level]
        if level is None:
            mask = _data_mask(dataset, max_pixels)
    if level is not None:
        with open_raster(path, overview=level) as dataset:
            mask = _data_mask(dataset, max_pixels)
    if not mask.any():
        return None
    pixels, size = _polygons(mask, grid, factor)
    return _as_footprint(_in_degrees(pixels, grid, pixel=size))


def outline(path: str | PurePath) -> Footprint:
    """The area of a raster's grid, with and without data."""
    with open_raster(path) as dataset:
        grid = _PixelGrid.of(dataset)
    return _as_footprint(_whole_grid(grid))


def degrees_of_a_pixel(dataset: Any) -> float:
    """The shorter side of a pixel in the centre of an open raster, in degrees of a great circle."""
    grid = _PixelGrid.of(dataset)
    return _degrees_of_a_pixel(box(0, 0, grid.width, grid.height), _projection(grid))


def union(footprints: Iterable[Footprint | None]) -> Footprint | None:
    """The area of all footprints together; None if there are none."""
    polygons = [shape(footprint.geometry) for footprint in footprints if footprint]
    # Corners of tiles on a common edge are not corners of the union.
    return _as_footprint(shapely.simplify(shapely.unary_union(polygons), 10**-DECIMALS)) if polygons else None


@dataclass(frozen=True, slots=True)
class _PixelGrid:
    width: int
    height: int
    transform: Any
    crs: CRS

    @classmethod
    def of(cls, dataset: Any) -> "_PixelGrid":
        if dataset.crs is None:
            raise UnfitData("raster has no CRS", code="raster.no-crs", hint="pass `source_crs`")
        return cls(dataset.width, dataset.height, dataset.transform, dataset.crs)

    def to_map(self, pixels: Floats) -> Floats:
        return np.stack(apply_affine(self.transform, pixels[:, 0], pixels[:, 1]), axis=1)

    @property
    def is_in_degrees(self) -> bool:
        return bool(self.crs.is_geographic and self.crs.units_factor[0].startswith("degree"))


def _whole_grid(grid: _PixelGrid) -> Polygons:
    pixel = max(1.0, math.sqrt(grid.width * grid.height / MASK_PIXELS))
    return _in_degrees(box(0, 0, grid.width, grid.height), grid, pixel=pixel)


# From pixels to polygons


def _overview(dataset: Any, max_pixels: int) -> int | None:
    """The finest overview that is small enough, else the coarsest one; None for the raster itself."""
    if dataset.width * dataset.height <= max_pixels:
        return None
    factors = dataset.overviews(1)
    sizes = [math.ceil(dataset.width / factor) * math.ceil(dataset.height / factor) for factor in factors]
    fitting = [level for level, size in enumerate(sizes) if size <= max_pixels]
    return fitting[0] if fitting else len(factors) - 1 if factors else None


def _data_mask(dataset: Any, max_pixels: int) -> NDArray[np.bool_]:
    """Pixels that are valid in any band; read at a lower resolution if no overview is small enough."""
    shrink = max(1.0, math.sqrt(dataset.width * dataset.height / max_pixels))
    shape_ = (max(1, int(dataset.height / shrink)), max(1, int(dataset.width / shrink)))
    mask = np.zeros(shape_, dtype=np.bool_)
    for band in data_bands(dataset):
        mask |= read_with_validity(dataset, band, shape=shape_)[1]
        if mask.all():
            break
    return mask


def _polygons(mask: NDArray[np.bool_], grid: _PixelGrid, factor: int = 1) -> tuple[Polygons, float]:
    """Simplified polygons in pixels of the full grid, and the size of the mask's pixels.

    `factor` is that of the mask's overview. A mask pixel is valid if any pixel below it is, also after coarsening.
    """
    rows, columns = mask.shape
    if (rows, columns) == (math.ceil(grid.height / factor), math.ceil(grid.width / factor)):
        across = down = float(factor)  # the last pixels may extend beyond the grid
    else:
        across, down = grid.width / columns, grid.height / rows
    swelling: float | None = (factor - 1) / 2 / across
    while (traced := _traced(mask, swelling)) is None:
        # The edges of an irregular outline are not straightened, which would lose pixels with data.
        mask, swelling, across, down = _coarser(mask), None, 2 * across, 2 * down
    scaled = shapely.transform(traced, lambda xy: xy * (across, down)).intersection(box(0, 0, grid.width, grid.height))
    pixel = min(across, down)
    return _only_polygons(shapely.simplify(scaled, _CORNER_TOLERANCE * pixel)), pixel


def _traced(mask: NDArray[np.bool_], swelling: float | None) -> Polygons | None:
    """The polygons of a mask; None if their outline is too long or has too many corners. Without a `swelling`, edges
    are not straightened."""
    if min(mask.shape) > 8 and _edges(mask) > MAX_EDGES:
        return None
    mask = _unpinched(mask)
    parts = [shape(geometry) for geometry, _ in shapes(mask.astype(np.uint8), mask=mask)]
    if swelling is not None:
        parts = [_straight_if_regular(part, swelling) for part in parts]
    polygons = shapely.unary_union(shapely.make_valid(parts))
    too_many = shapely.get_num_coordinates(polygons) > MAX_VERTICES
    return None if too_many and min(mask.shape) > 8 else _only_polygons(polygons)


def _straight_if_regular(outline_: Polygon, swelling: float) -> Polygon:
    """Straighten the edges if straight ones replace many steps, as in a rotated scene. An irregular outline, such as a
    coast, is kept: lines through the middles of its steps would cut off pixels with data."""
    straight = straightened(outline_, swelling)
    is_regular = shapely.get_num_coordinates(straight) * _STEPS_PER_EDGE <= shapely.get_num_coordinates(outline_)
    return straight if is_regular else outline_


def _unpinched(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Join pixels that touch only at a corner, so that the tip of a rotated scene is not separate."""
    falling = mask[:-1, :-1] & mask[1:, 1:] & ~mask[:-1, 1:] & ~mask[1:, :-1]
    rising = mask[:-1, 1:] & mask[1:, :-1] & ~mask[:-1, :-1] & ~mask[1:, 1:]
    joined = mask.copy()
    joined[:-1, 1:] |= falling
    joined[:-1, :-1] |= rising
    return joined


def _edges(mask: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask[1:] != mask[:-1]) + np.count_nonzero(mask[:, 1:] != mask[:, :-1]))


def _coarser(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask at half the resolution: a pixel is valid if any of its four pixels is."""
    rows, columns = (size + size % 2 for size in mask.shape)
    even = np.zeros((rows, columns), dtype=np.bool_)
    even[: mask.shape[0], : mask.shape[1]] = mask
    return even[::2, ::2] | even[1::2, ::2] | even[::2, 1::2] | even[1::2, 1::2]


# From pixels to degrees


def _in_degrees(pixels: Polygons, grid: _PixelGrid, *, pixel: float) -> Polygons:
    """Polygons in pixels of the grid as polygons in degrees, between -180 and 180."""
    if grid.is_in_degrees:
        return shapely.unary_union([_wrapped(part) for part in _parts(_shifted(pixels, grid))])
    to_degrees = _projection(grid)
    pixels = _within_domain(pixels, grid, to_degrees)
    tolerance = _STRAIGHT_TOLERANCE * pixel * _degrees_of_a_pixel(pixels, to_degrees)
    poles = {latitude: point for latitude in (90.0, -90.0) if (point := _pole(grid, latitude))}
    pieces = [_projected(part, to_degrees, tolerance, poles, pixel) for part in _parts(pixels)]
    return shapely.simplify(shapely.unary_union(pieces), tolerance)


def _shifted(pixels: Polygons, grid: _PixelGrid) -> Polygons:
    """Polygons of a grid in degrees, as WGS 84. A datum shift must not move a longitude by a turn around the Earth."""
    wgs84 = CRS.from_epsg(4326)

    def to_degrees(points: Floats) -> Floats:
        degrees = grid.to_map(points)
        if grid.crs == wgs84:
            return degrees
        moved = np.array(transform_points(grid.crs, wgs84, *degrees.T)[:2]).T
        moved[:, 0] += 360 * np.round((degrees[:, 0] - moved[:, 0]) / 360)
        return moved

    return shapely.transform(pixels, to_degrees)


def _projection(grid: _PixelGrid) -> ToDegrees:
    wgs84 = CRS.from_epsg(4326)

    def to_degrees(points: Floats) -> Floats:
        degrees = project_each(grid.crs, wgs84, *apply_affine(grid.transform, *points.T), missing=np.nan)
        return np.stack([degrees.x, degrees.y], axis=1)

    return to_degrees


def _within_domain(pixels: Polygons, grid: _PixelGrid, to_degrees: ToDegrees) -> Polygons:
    """The polygons without parts outside the domain of the projection, such as the corners of a full disk."""
    if np.isfinite(to_degrees(_divided(shapely.get_coordinates(shapely.envelope(pixels)), 8))).all():
        return pixels
    side = np.linspace(0, 1, _CELLS + 1)
    corners = np.stack(np.meshgrid(side * grid.width, side * grid.height), axis=-1).reshape(-1, 2)
    finite = np.isfinite(to_degrees(corners)).all(axis=1).reshape(_CELLS + 1, _CELLS + 1)
    cells = finite[1:, 1:] & finite[1:, :-1] & finite[:-1, 1:] & finite[:-1, :-1]
    if not cells.any():
        raise UnfitData("the raster is outside the domain of its projection", code="raster.off-the-map")
    return pixels.intersection(_polygons(cells, grid)[0])


def _degrees_of_a_pixel(pixels: Polygons, to_degrees: ToDegrees) -> float:
    """The shorter side of a pixel near the centre of the data, on a great circle."""
    x, y = pixels.representative_point().coords[0]
    corner, right, below = to_degrees(np.array([(x, y), (x + 1, y), (x, y + 1)]))
    return min(_distance(corner, right), _distance(corner, below))


def _distance(one: Floats, other: Floats) -> float:
    across = (other[0] - one[0] + 180) % 360 - 180
    return math.hypot(across * math.cos(math.radians(one[1])), other[1] - one[1])


def _pole(grid: _PixelGrid, latitude: float) -> Point | None:
    """The pole in pixels; None if the projection has none."""
    try:
        (x,), (y,) = transform_points(CRS.from_epsg(4326), grid.crs, [0.0], [latitude])[:2]
    except (CPLE_BaseError, RasterioError):
        return None
    return Point(~grid.transform @ (x, y)) if math.isfinite(x) and math.isfinite(y) else None


def _projected(
    polygon: Polygon, to_degrees: ToDegrees, tolerance: float, poles: dict[float, Point], pixel: float
) -> Polygons:
    polygon, touched = _kept_off_poles(polygon, poles, pixel)
    pieces = [_projected_clear(part, to_degrees, tolerance, poles) for part in _parts(polygon)]
    polygons = shapely.unary_union(pieces)
    return shapely.transform(polygons, lambda lonlat: _onto_poles(lonlat, touched, tolerance)) if touched else polygons


def _kept_off_poles(polygon: Polygon, poles: dict[float, Point], pixel: float) -> tuple[Polygons, set[float]]:
    """Cut out a tiny disc around a pole that is on the boundary, because a ring has no longitude there. `_onto_poles`
    moves the edge of the disc onto the pole later."""
    touched = set()
    for latitude, pole in poles.items():
        if polygon.boundary.distance(pole) < _POLE_DISC_RADIUS * pixel / 2:
            polygon = polygon.difference(pole.buffer(_POLE_DISC_RADIUS * pixel, quad_segs=32))
            touched.add(latitude)
    return polygon, touched


def _onto_poles(lonlat: Floats, poles: set[float], tolerance: float) -> Floats:
    moved = lonlat.copy()
    for latitude in poles:
        near = np.abs(lonlat[:, 1] - latitude) < tolerance / _STRAIGHT_TOLERANCE * _POLE_DISC_RADIUS * 2
        moved[near, 1] = latitude
    return moved


def _projected_clear(polygon: Polygon, to_degrees: ToDegrees, tolerance: float, poles: dict[float, Point]) -> Polygons:
    """Project a polygon with no pole on its boundary. A ring that goes around the Earth is closed at the pole that
    it encloses. A point is in the polygon if an odd number of rings contain it."""
    rings = [_unrolled(np.array(ring.coords), to_degrees, tolerance) for ring in (polygon.exterior, *polygon.interiors)]
    enclosed = [latitude for latitude, pole in poles.items() if polygon.contains(pole)]
    closing_latitude = enclosed[0] if enclosed else 90.0
    polygons = Polygon()
    for ring in rings:
        if len(ring) > 3:
            polygons = polygons.symmetric_difference(_wrapped(_closed(ring, closing_latitude)))
    return polygons


def _unrolled(ring: Floats, to_degrees: ToDegrees, tolerance: float) -> Floats:
    """A ring in degrees, divided until its edges are straight there, with longitudes that never jump."""
    ring = _divided(ring, 8)
    degrees = to_degrees(ring)
    for _ in range(24):
        middles = (ring[1:] + ring[:-1]) / 2
        true = to_degrees(middles)
        bent = _bent(degrees, true, tolerance)
        if not bent.any():
            break
        places = np.flatnonzero(bent) + 1
        ring = np.insert(ring, places, middles[bent], axis=0)
        degrees = np.insert(degrees, places, true[bent], axis=0)
    degrees = degrees[np.isfinite(degrees).all(axis=1)]
    degrees[:, 0] = np.unwrap(degrees[:, 0], period=360)
    return degrees


def _divided(ring: Floats, pieces: int) -> Floats:
    """The ring with additional points on each edge, so that a symmetric bend of an edge is detected."""
    steps = np.linspace(0, 1, pieces, endpoint=False)[None, :, None]
    between = ring[:-1, None, :] + steps * (ring[1:, None, :] - ring[:-1, None, :])
    return np.concatenate([between.reshape(-1, 2), ring[-1:]])


def _bent(degrees: Floats, true: Floats, tolerance: float) -> NDArray[np.bool_]:
    """Which edges are curved in degrees, or too long for their direction around the Earth to be known."""
    with np.errstate(invalid="ignore"):  # points outside the domain of the projection do not count
        across = _turn(np.diff(degrees[:, 0]))
        latitude = (degrees[1:, 1] + degrees[:-1, 1]) / 2
        off_north = np.abs(true[:, 1] - latitude)
        off_east = np.abs(_turn(true[:, 0] - degrees[:-1, 0] - across / 2)) * np.cos(np.radians(latitude))
        return np.asarray((off_north > tolerance) | (off_east > tolerance) | (np.abs(across) > 30))


def _turn(longitudes: Floats) -> Floats:
    """Differences of longitudes, between -180 and 180."""
    return (longitudes + 180) % 360 - 180


def _closed(ring: Floats, pole: float) -> Polygons:
    start, end = ring[0, 0], ring[-1, 0]
    if abs(end - start) > 180:
        ring = np.concatenate([ring, [(end, pole), (start, pole), ring[0]]])
    return shapely.make_valid(Polygon(ring))


def _wrapped(polygon: Polygons) -> Polygons:
    """The polygon split at the antimeridian, with all pieces moved to between -180 and 180."""
    west, _, east, _ = polygon.bounds
    turns = range(math.floor((west + 180) / 360), math.ceil((east - 180) / 360) + 1)
    pieces = [polygon.intersection(box(360 * turn - 180, -90, 360 * turn + 180, 90)) for turn in turns]
    moved = [shapely.transform(piece, _mover(-360 * turn)) for turn, piece in zip(turns, pieces, strict=True)]
    return _only_polygons(shapely.unary_union(moved))


def _mover(degrees: float) -> Callable[[Floats], Floats]:
    return lambda lonlat: lonlat + np.array([degrees, 0])


# Results


def _as_footprint(polygons: Polygons) -> Footprint:
    """A footprint with rounded, valid polygons and counter-clockwise exteriors, in an order that depends on the shape
    alone."""
    polygons = _only_polygons(shapely.set_precision(polygons, 10**-DECIMALS))
    if polygons.is_empty:
        raise UnfitData("the data covers no area at this precision", code="raster.no-footprint")
    polygons = shapely.orient_polygons(shapely.normalize(polygons))
    return Footprint(_plain(mapping(polygons)), BBox.shortest_union(_rounded(part.bounds) for part in _parts(polygons)))


def _plain(geometry: Any) -> dict[str, Any]:
    return {"type": geometry["type"], "coordinates": _lists(geometry["coordinates"])}


def _lists(coordinates: Any) -> Any:
    if isinstance(coordinates, float):
        return round(coordinates, DECIMALS) + 0.0  # no negative zero
    return [_lists(inner) for inner in coordinates]


def _rounded(bounds: Iterable[float]) -> BBox:
    return BBox.of(round(number, DECIMALS) + 0.0 for number in bounds)


def _parts(polygons: Polygons) -> Iterator[Polygon]:
    yield from polygons.geoms if hasattr(polygons, "geoms") else [polygons]


def _only_polygons(geometry: Any) -> Polygons:
    """Remove the points and lines that splitting and repairing leave behind."""
    parts = [part for part in _flat(geometry) if isinstance(part, Polygon) and not part.is_empty]
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def _flat(geometry: Any) -> Iterator[Any]:
    if hasattr(geometry, "geoms"):
        for part in geometry.geoms:
            yield from _flat(part)
    else:
        yield geometry
