"""Points from one CRS to another, where some of them may have no place in it."""

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
    """What could not be projected is infinite."""

    x: Floats
    y: Floats

    def finite(self) -> "Points":
        good = np.isfinite(self.x) & np.isfinite(self.y)
        return Points(self.x[good], self.y[good])

    @property
    def are_finite(self) -> bool:
        return bool(np.isfinite(self.x).all() and np.isfinite(self.y).all())


def project(source: CRS, target: CRS, x: Floats, y: Floats) -> Points:
    """Flat arrays in, flat arrays out."""
    if source.is_geographic and (np.abs(y) > 90).any():
        on_earth = np.abs(y) <= 90
        found = project(source, target, x[on_earth], y[on_earth])
        made = Points(np.full(x.size, np.inf), np.full(x.size, np.inf))
        made.x[on_earth], made.y[on_earth] = found.x, found.y
        return made
    if (found_all := _project(source, target, x, y)) is not None:
        return found_all
    if x.size <= 1:
        return Points(np.full(x.size, np.inf), np.full(x.size, np.inf))
    # One bad point spoils a whole call: halve until the good are among themselves.
    half = x.size // 2
    left, right = project(source, target, x[:half], y[:half]), project(source, target, x[half:], y[half:])
    return Points(np.concatenate([left.x, right.x]), np.concatenate([left.y, right.y]))


def _project(source: CRS, target: CRS, x: Floats, y: Floats) -> Points | None:
    try:
        xs, ys = transform(source, target, x.tolist(), y.tolist())[:2]
    except (CPLE_BaseError, RasterioError):
        return None
    return Points(np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64))


def placed(transform: Affine, u: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Columns and rows to x and y; with the inverse transform, back."""
    with np.errstate(invalid="ignore"):
        return transform.a * u + transform.b * v + transform.c, transform.d * u + transform.e * v + transform.f
