"""The position of a grid of pixels on Earth, in degrees.

The outline is projected in small steps, so that edges that are curved in degrees are followed. Longitudes are unrolled
along the outline, so that it may cross the antimeridian. An outline that goes once around the Earth has a pole inside.
"""

import numpy as np
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.warp import transform as transform_points

from dagmaster.bbox import BBox
from dagmaster.raster.source.points import Floats, apply_affine, project_all, project_each

Affine6 = tuple[float, float, float, float, float, float]
Bounds = tuple[float, float, float, float]

_STEPS = 100  # along each edge
_GRID = 33  # points along a side, for a grid whose outline leaves the domain of the projection
_AT_A_POLE = 90 - 1e-9  # degrees; points beyond this latitude count as the pole
_WIDEST_GAP = 20.0  # degrees without a point that still count as covered


def native_bounds(transform: Affine6, width: int, height: int) -> Bounds:
    """West, south, east, north in the CRS's own units; also of a rotated grid."""
    x, y = apply_affine(transform, np.array([0, width, width, 0.0]), np.array([0, 0, height, height * 1.0]))
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def geographic_bounds(crs: CRS, transform: Affine6, width: int, height: int) -> BBox | None:
    """The box around the grid in degrees; None if no part of it is on Earth."""
    points = project_all(crs, CRS.from_epsg(4326), *apply_affine(transform, *_outline(width, height)))
    if points is None or not points.are_finite:
        return _bounds_of_the_part_on_earth(crs, transform, width, height)

    lon, lat = points.x, points.y
    south, north = float(lat.min()), float(lat.max())
    lon, winding = _unrolled(lon, lat, keep_poles=bool(crs.is_geographic))
    if winding:
        poles = _poles_inside(crs, transform, width, height) or {90.0 if south + north > 0 else -90.0}
        return BBox(-180.0, min(south, *poles), 180.0, max(north, *poles))
    west, east = _normalised(float(lon.min()), float(lon.max()))
    return BBox(west, max(south, -90.0), east, min(north, 90.0))


def _outline(width: int, height: int) -> tuple[Floats, Floats]:
    """Pixel coordinates, clockwise from the upper left corner and back to it."""
    along = np.linspace(0, 1, _STEPS, endpoint=False)
    zeros, ones = np.zeros(_STEPS), np.ones(_STEPS)
    columns = np.concatenate([along, ones, 1 - along, zeros, [0]]) * width
    rows = np.concatenate([zeros, along, ones, 1 - along, [0]]) * height
    return columns, rows


def _unrolled(lon: Floats, lat: Floats, *, keep_poles: bool) -> tuple[Floats, bool]:
    """Longitudes without jumps, and whether the outline goes once around the Earth.

    A pole on the outline has no longitude: the outline is taken to start there, and the pole is left out.
    """
    at_pole = np.zeros(len(lon), dtype=bool) if keep_poles else np.abs(lat) >= _AT_A_POLE
    if at_pole.any():
        first = int(np.argmax(at_pole))
        ring = np.roll(lon[:-1], -first)[~np.roll(at_pole[:-1], -first)]
        return np.unwrap(ring, period=360.0), False
    continuous = np.unwrap(lon, period=360.0)
    return continuous, bool(abs(continuous[-1] - continuous[0]) > 180)


def _normalised(west: float, east: float) -> tuple[float, float]:
    if east - west >= 360 - 1e-9:
        return -180.0, 180.0
    turns = np.floor((west + 180 + 1e-9) / 360) * 360
    west, east = max(west - turns, -180.0), east - turns
    return float(west), float(east if east <= 180 + 1e-9 else east - 360)


def _poles_inside(crs: CRS, transform: Affine6, width: int, height: int) -> set[float]:
    a, b, c, d, e, f = transform
    area = a * e - b * d
    inside = set()
    for pole in (90.0, -90.0):
        try:
            (x,), (y,) = transform_points(CRS.from_epsg(4326), crs, [0.0], [pole])[:2]
        except (CPLE_BaseError, RasterioError):
            continue
        column = (e * (x - c) - b * (y - f)) / area
        row = (a * (y - f) - d * (x - c)) / area
        if 0 < column < width and 0 < row < height:
            inside.add(pole)
    return inside


def _bounds_of_the_part_on_earth(crs: CRS, transform: Affine6, width: int, height: int) -> BBox | None:
    """The bounds of a grid that extends beyond the domain of its projection, such as a full disk, from points all over
    it."""
    side = np.linspace(0, 1, _GRID)
    columns, rows = (part.ravel() for part in np.meshgrid(side * width, side * height))
    points = project_each(crs, CRS.from_epsg(4326), *apply_affine(transform, columns, rows)).finite()
    lon, lat = points.x, points.y
    if not len(lon):
        return None
    poles = set() if crs.is_geographic else _poles_inside(crs, transform, width, height)
    south, north = float(min(lat.min(), *poles, 90)), float(max(lat.max(), *poles, -90))
    west, east = (-180.0, 180.0) if poles else _around_the_widest_gap(lon)
    return BBox(west, max(south, -90.0), east, min(north, 90.0))


def _around_the_widest_gap(lon: Floats) -> tuple[float, float]:
    around = np.sort((lon + 180) % 360 - 180)
    gaps = np.diff(np.append(around, around[0] + 360))
    widest = int(gaps.argmax())
    if gaps[widest] < _WIDEST_GAP:
        return -180.0, 180.0
    return float(around[(widest + 1) % len(around)]), float(around[widest])
