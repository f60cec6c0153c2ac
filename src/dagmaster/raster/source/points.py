"""Project points from one CRS to another, also if some of them are outside its domain."""

from dataclasses import dataclass

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.warp import transform

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Points:
    """Coordinates; those of a point that could not be projected are not finite."""

    x: Floats
    y: Floats

    def finite(self) -> "Points":
        is_finite = np.isfinite(self.x) & np.isfinite(self.y)
        return Points(self.x[is_finite], self.y[is_finite])

    @property
    def are_finite(self) -> bool:
        return bool(np.isfinite(self.x).all() and np.isfinite(self.y).all())


def project(source: CRS, target: CRS, x: Floats, y: Floats) -> Points:
    """Project flat arrays. Points with a latitude beyond the poles become infinite."""
    if source.is_geographic and (np.abs(y) > 90).any():
        on_earth = np.abs(y) <= 90
        projected = project_each(source, target, x[on_earth], y[on_earth])
        points = Points(np.full(x.size, np.inf), np.full(x.size, np.inf))
        points.x[on_earth], points.y[on_earth] = projected.x, projected.y
        return points
    return project_each(source, target, x, y)


def project_each(source: CRS, target: CRS, x: Floats, y: Floats, missing: float = np.inf) -> Points:
    """As `project_all`; a point that cannot be projected becomes `missing`."""
    if (points := project_all(source, target, x, y)) is not None:
        return points
    if x.size <= 1:
        return Points(np.full(x.size, missing), np.full(x.size, missing))
    # One point that cannot be projected fails the whole call: halve until it is alone.
    half = x.size // 2
    left = project_each(source, target, x[:half], y[:half], missing)
    right = project_each(source, target, x[half:], y[half:], missing)
    return Points(np.concatenate([left.x, right.x]), np.concatenate([left.y, right.y]))


def project_all(source: CRS, target: CRS, x: Floats, y: Floats) -> Points | None:
    """All points in one call; None if PROJ refuses one of them."""
    try:
        xs, ys = transform(source, target, x.tolist(), y.tolist())[:2]
    except (CPLE_BaseError, RasterioError):
        return None
    return Points(np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64))


def apply_affine(affine: Affine | tuple[float, ...], x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Columns and rows to coordinates; with the inverse transform, back."""
    a, b, c, d, e, f = affine[:6]
    with np.errstate(invalid="ignore"):
        return a * x + b * y + c, d * x + e * y + f
