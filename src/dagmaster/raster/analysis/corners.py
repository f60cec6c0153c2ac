"""From the steps of pixels to the line that they stand for.

The edge of a mask is a staircase. Where a side of the data runs aslant, the middles of its steps lie along the true edge: the
bends are found among them, a line is fitted to those between two bends, and lines meet in the corners. So a rotated scene has the
four corners that it has on the ground, to a fraction of a pixel, and not some hundred.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry import LineString, Polygon

Floats = NDArray[np.float64]

# Pixels. A step's middle is at most half a pixel from a line of 45°, and so may its neighbours be on the other side; the corner
# of a single pixel is further from the line between its neighbours, and stays.
_RAGGED = 0.7
_ENOUGH = 3  # middles of steps, between two bends, to fit a line to
_PARALLEL = 0.02  # sine of the angle below which two lines meet nowhere in particular
_NEAR = 2.0  # pixels that a corner may move
_BLUNT = 8.0  # pixels that the edge may be long which a staircase has in place of a sharp corner


def without_steps(polygon: Polygon, swelling: float = 0.0) -> Polygon:
    """The polygon with straight edges. Corners of the data that are no steps stay where they are.

    `swelling`: by how many pixels the mask reaches beyond the data in each direction of the axes, on the average. An overview is
    data where any pixel below it is; slanting edges are moved back by what that adds to them.
    """
    shell = _straight(polygon.exterior, swelling)
    return Polygon(shell, [_straight(ring, -swelling) for ring in polygon.interiors])


@dataclass(frozen=True, slots=True)
class _Line:
    point: Floats
    direction: Floats  # of length 1; what the ring encloses is on its left
    start: Floats  # the bend that it begins at
    length: float
    is_fitted: bool = False

    @classmethod
    def through(cls, points: Floats, swelling: float) -> "_Line":
        """Two bends and the points between them."""
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
        found: Floats = self.point + self.direction * ((point - self.point) @ self.direction)
        return found

    def meets(self, other: "_Line") -> Floats:
        """The corner before `other`: where both meet; where they hardly do, between what each has nearest to the bend."""
        if (found := self.crosses(other)) is not None:
            return found if np.hypot(*(found - other.start)) <= _NEAR + _BLUNT else other.start
        return (self.nearest(other.start) + other.nearest(other.start)) / 2

    def crosses(self, other: "_Line") -> Floats | None:
        sine = self.direction[0] * other.direction[1] - self.direction[1] * other.direction[0]
        if abs(sine) <= _PARALLEL:
            return None
        apart = other.point - self.point
        found: Floats = (
            self.point + self.direction * (apart[0] * other.direction[1] - apart[1] * other.direction[0]) / sine
        )
        return found


def _straight(ring: Any, swelling: float) -> Floats:
    points = _middles(ring)
    if len(points) <= 4:
        return points
    if not shapely.is_ccw(shapely.linearrings(points)):
        points = points[::-1]
    # What lies farthest out is a corner, and not in the middle of an edge.
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
    """Without the short edges that blunt a corner of two slanting ones."""
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
    """A slanting edge comes as steps of one pixel. Through their middles it is a line; real corners stay."""
    corners: Floats = shapely.get_coordinates(ring)[:-1]
    following = np.roll(corners, -1, axis=0)
    is_step = np.abs(following - corners).sum(axis=1) <= 1
    is_corner = ~(is_step | np.roll(is_step, 1))
    points = np.stack([corners, (corners + following) / 2], axis=1).reshape(-1, 2)
    smooth = points[np.stack([is_corner, is_step], axis=1).ravel()]
    # A line of single pixels has nothing but steps.
    return smooth if len(smooth) > 4 else corners


def _bends(points: Floats) -> list[int]:
    """Places of the points that a line with few of them cannot do without."""
    simple = shapely.simplify(LineString(points), _RAGGED, preserve_topology=False)
    wanted = [tuple(point) for point in shapely.get_coordinates(simple).tolist()]
    found: list[int] = []
    for at, point in enumerate(points.tolist()):
        if len(found) < len(wanted) and tuple(point) == wanted[len(found)]:
            found.append(at)
    return found
