"""Straight edges and corners from the outline of a mask.

The outline of a mask consists of steps of one pixel. Along a slanted edge, the middles of the steps are close to the
true edge: bends are detected among them, a line is fitted to the middles between two bends, and lines meet in the
corners. So a rotated scene has the four corners that it has on the ground, accurate to a fraction of a pixel, instead
of hundreds of corners.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import LineString, Polygon

Floats = NDArray[np.float64]

# Pixels by which the middles of steps may differ from a straight edge: along an edge of 45°, a middle is at most half a
# pixel from it, and its neighbours may be as far on the other side. The corner of a single pixel is farther from the
# line between its neighbours, and is kept.
_STEP_TOLERANCE = 0.7
_MIN_MIDDLES = 3  # middles of steps between two bends that are needed to fit a line
_PARALLEL = 0.02  # sine of the angle below which two lines count as parallel
_MAX_CORNER_SHIFT = 2.0  # pixels by which a corner may be moved
_MAX_BLUNT_EDGE = 8.0  # pixels; the longest edge that replaces a sharp corner in a mask


def straightened(polygon: Polygon, swelling: float = 0.0) -> Polygon:
    """The polygon with straight edges instead of steps. Corners that are not part of a step are kept.

    `swelling`: by how many pixels the mask extends beyond the data along each axis, on average. A pixel of an overview
    is valid if any pixel below it is; slanted edges are moved back by the same distance.
    """
    shell = _straight(polygon.exterior, swelling)
    return Polygon(shell, [_straight(ring, -swelling) for ring in polygon.interiors])


@dataclass(frozen=True, slots=True)
class _Line:
    point: Floats
    direction: Floats  # of length 1; the inside of the ring is on its left
    start: Floats  # the bend at its start
    length: float
    is_fitted: bool = False

    @classmethod
    def through(cls, points: Floats, swelling: float) -> "_Line":
        """The line through two bends, fitted to the points between them."""
        along = points[-1] - points[0]
        inner = points[1:-1]
        length = float(np.hypot(*along))
        if len(inner) < _MIN_MIDDLES:
            return cls(points[0], along / max(length, 1e-12), points[0], length)
        middle = inner.mean(axis=0)
        _, axes = np.linalg.eigh(np.cov((inner - middle).T))
        direction = axes[:, 1] * (1 if axes[:, 1] @ along >= 0 else -1)
        inwards = np.array([-direction[1], direction[0]])
        back = inwards * swelling * np.abs(inwards).sum()
        return cls(middle + back, direction, points[0], length, is_fitted=True)

    def nearest(self, point: Floats) -> Floats:
        nearest_point: Floats = self.point + self.direction * ((point - self.point) @ self.direction)
        return nearest_point

    def corner_with(self, other: "_Line") -> Floats:
        """The corner between this line and the next one: where they cross, or the bend if that is too far away; if they
        are parallel, the mean of their points nearest to the bend."""
        if (corner := self.crossing_with(other)) is not None:
            return corner if np.hypot(*(corner - other.start)) <= _MAX_CORNER_SHIFT + _MAX_BLUNT_EDGE else other.start
        return (self.nearest(other.start) + other.nearest(other.start)) / 2

    def crossing_with(self, other: "_Line") -> Floats | None:
        sine = self.direction[0] * other.direction[1] - self.direction[1] * other.direction[0]
        if abs(sine) <= _PARALLEL:
            return None
        offset = other.point - self.point
        crossing: Floats = (
            self.point + self.direction * (offset[0] * other.direction[1] - offset[1] * other.direction[0]) / sine
        )
        return crossing


def _straight(ring: Any, swelling: float) -> Floats:
    points = _middles(ring)
    if len(points) <= 4:
        return points
    if not shapely.is_ccw(shapely.linearrings(points)):
        points = points[::-1]
    # The point farthest from the centre is a corner, and not in the middle of an edge.
    farthest = int(np.hypot(*(points - points.mean(axis=0)).T).argmax())
    points = np.roll(points, -farthest, axis=0)
    points = np.concatenate([points, points[:1]])
    bends = _bends(points)
    lines = [_Line.through(points[start : end + 1], swelling) for start, end in itertools.pairwise(bends)]
    lines = _sharpened(lines)
    if len(lines) < 3:
        return points
    return np.array([before.corner_with(after) for before, after in zip([lines[-1], *lines[:-1]], lines, strict=True)])


def _sharpened(lines: list[_Line]) -> list[_Line]:
    """The lines without the short edges that replace the corner of two slanted ones."""
    kept = lines
    fitted = [at for at, line in enumerate(lines) if line.is_fitted]
    for at, following in zip(fitted, [*fitted[1:], *fitted[:1]], strict=True):
        between = [lines[place % len(lines)] for place in range(at + 1, following + len(lines) * (following <= at))]
        corner = lines[at].crossing_with(lines[following])
        if not between or corner is None or sum(line.length for line in between) > _MAX_BLUNT_EDGE:
            continue
        if min(np.hypot(*(corner - line.nearest(corner))) for line in between) <= _MAX_CORNER_SHIFT:
            kept = [line for line in kept if all(line is not other for other in between)]
    return kept


def _middles(ring: Any) -> Floats:
    """Middles of the steps of one pixel, which are on a line along a slanted edge, and all other corners."""
    corners: Floats = shapely.get_coordinates(ring)[:-1]
    following = np.roll(corners, -1, axis=0)
    is_step = np.abs(following - corners).sum(axis=1) <= 1
    is_corner = ~(is_step | np.roll(is_step, 1))
    points = np.stack([corners, (corners + following) / 2], axis=1).reshape(-1, 2)
    smooth = points[np.stack([is_corner, is_step], axis=1).ravel()]
    # A line of single pixels has only steps.
    return smooth if len(smooth) > 4 else corners


def _bends(points: Floats) -> list[int]:
    """Indices of the points that remain when the line is simplified."""
    simple = shapely.simplify(LineString(points), _STEP_TOLERANCE, preserve_topology=False)
    kept = [tuple(point) for point in shapely.get_coordinates(simple).tolist()]
    bends: list[int] = []
    for at, point in enumerate(points.tolist()):
        if len(bends) < len(kept) and tuple(point) == kept[len(bends)]:
            bends.append(at)
    return bends
