"""Straight edges and corners from the outline of a mask.

The outline of a mask consists of steps of one pixel. Along a slanted edge, the middles of the steps are close to the
true edge: bends are detected among them, a line is fitted to the middles between two bends, and lines meet in the
corners. So a rotated scene has the four corners that it has on the ground, accurate to a fraction of a pixel, instead
of some hundred corners.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import LineString, Polygon

Floats = NDArray[np.float64]

# Pixels. The middle of a step is at most half a pixel from a line of 45°, and its neighbours may be as far on the other
# side. The corner of a single pixel is further from the line between its neighbours, and is kept.
_RAGGED = 0.7
_ENOUGH = 3  # middles of steps between two bends that are needed to fit a line
_PARALLEL = 0.02  # sine of the angle below which two lines count as parallel
_NEAR = 2.0  # pixels by which a corner may be moved
_BLUNT = 8.0  # pixels; the longest edge that replaces a sharp corner in a mask


def straightened(polygon: Polygon, swelling: float = 0.0) -> Polygon:
    """The polygon with straight edges. Corners of the data that are not steps are kept.

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
        if len(inner) < _ENOUGH:
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

    def meets(self, other: "_Line") -> Floats:
        """The corner before `other`: where both cross; if they are parallel,
        the mean of their points nearest the bend."""
        if (corner := self.crosses(other)) is not None:
            return corner if np.hypot(*(corner - other.start)) <= _NEAR + _BLUNT else other.start
        return (self.nearest(other.start) + other.nearest(other.start)) / 2

    def crosses(self, other: "_Line") -> Floats | None:
        sine = self.direction[0] * other.direction[1] - self.direction[1] * other.direction[0]
        if abs(sine) <= _PARALLEL:
            return None
        apart = other.point - self.point
        crossing: Floats = (
            self.point + self.direction * (apart[0] * other.direction[1] - apart[1] * other.direction[0]) / sine
        )
        return crossing


def _straight(ring: Any, swelling: float) -> Floats:
    points = _middles(ring)
    if len(points) <= 4:
        return points
    if not shapely.is_ccw(shapely.linearrings(points)):
        points = points[::-1]
    # The point farthest from the centre is a corner, and not in the middle of an edge.
    far = int(np.hypot(*(points - points.mean(axis=0)).T).argmax())
    points = np.roll(points, -far, axis=0)
    points = np.concatenate([points, points[:1]])
    bends = _bends(points)
    lines = [_Line.through(points[start : end + 1], swelling) for start, end in itertools.pairwise(bends)]
    lines = _sharpened(lines)
    if len(lines) < 3:
        return points
    return np.array([before.meets(after) for before, after in zip([lines[-1], *lines[:-1]], lines, strict=True)])


def _sharpened(lines: list[_Line]) -> list[_Line]:
    """The lines without the short edges that replace the corner of two slanted ones."""
    kept = lines
    fitted = [at for at, line in enumerate(lines) if line.is_fitted]
    for at, following in zip(fitted, [*fitted[1:], *fitted[:1]], strict=True):
        between = [lines[place % len(lines)] for place in range(at + 1, following + len(lines) * (following <= at))]
        corner = lines[at].crosses(lines[following])
        if not between or corner is None or sum(line.length for line in between) > _BLUNT:
            continue
        if min(np.hypot(*(corner - line.nearest(corner))) for line in between) <= _NEAR:
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
    simple = shapely.simplify(LineString(points), _RAGGED, preserve_topology=False)
    kept = [tuple(point) for point in shapely.get_coordinates(simple).tolist()]
    bends: list[int] = []
    for at, point in enumerate(points.tolist()):
        if len(bends) < len(kept) and tuple(point) == kept[len(bends)]:
            bends.append(at)
    return bends
