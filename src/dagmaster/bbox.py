"""Boxes in degrees (EPSG:4326), which may cross the antimeridian.

As in GeoJSON (RFC 7946, 5.2) and STAC, `west > east` means that the box crosses the antimeridian. Bounds in the units
of another CRS are plain tuples.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self


class BBox(NamedTuple):
    """West, south, east and north in degrees.

    >>> fiji = BBox(177.0, -19.0, -178.0, -16.0)
    >>> fiji.crosses_antimeridian
    True
    >>> fiji.split()
    (BBox(west=177.0, south=-19.0, east=180.0, north=-16.0), BBox(west=-180.0, south=-19.0, east=-178.0, north=-16.0))
    """

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Self:
        """The box of a STAC document: four numbers, or six with heights, which are dropped."""
        numbers = tuple(numbers)
        if len(numbers) not in (4, 6):
            raise ValueError(f"a bbox has four or six numbers, not {len(numbers)}")
        half = len(numbers) // 2
        return cls(numbers[0], numbers[1], numbers[half], numbers[half + 1])

    @classmethod
    def union(cls, boxes: Iterable["BBox"]) -> "BBox":
        """The box around all boxes. It crosses the antimeridian only if a box does, or if boxes meet there."""
        parts = _parts(boxes)
        box = cls.around(parts)
        return _across(parts) if box.west <= -180 and box.east >= 180 else box

    @classmethod
    def shortest_union(cls, boxes: Iterable["BBox"]) -> "BBox":
        """The box around all boxes. It crosses the antimeridian if that makes it narrower than half the globe."""
        parts = _parts(boxes)
        box, across = cls.around(parts), _across(parts)
        return across if across.width < min(180, box.width) else box

    @classmethod
    def around(cls, boxes: Iterable["BBox"]) -> "BBox":
        """The box around boxes that do not cross the antimeridian. It does not cross it either."""
        boxes = list(boxes)
        return BBox(
            min(box.west for box in boxes),
            min(box.south for box in boxes),
            max(box.east for box in boxes),
            max(box.north for box in boxes),
        )

    @property
    def crosses_antimeridian(self) -> bool:
        return self.west > self.east

    @property
    def width(self) -> float:
        """In degrees of longitude."""
        return self.east - self.west + 360 * self.crosses_antimeridian

    @property
    def centre(self) -> tuple[float, float]:
        """Longitude and latitude."""
        longitude = (self.west + self.east + 360 * self.crosses_antimeridian) / 2
        return longitude - 360 if longitude > 180 else longitude, (self.south + self.north) / 2

    def split(self) -> tuple["BBox", ...]:
        """The box itself, or its parts west and east of the antimeridian."""
        if not self.crosses_antimeridian:
            return (self,)
        return self._replace(east=180.0), self._replace(west=-180.0)

    def widened(self) -> "BBox":
        """The smallest box around this one that does not cross the antimeridian, for formats that forbid it."""
        return self._replace(west=-180.0, east=180.0) if self.crosses_antimeridian else self

    def unrolled(self) -> "BBox":
        """The same box with continuous longitudes: east of the antimeridian they are greater than 180."""
        return self._replace(east=self.east + 360) if self.crosses_antimeridian else self

    def shifted(self, turns: int) -> "BBox":
        """The same place, with longitudes that are this many times 360 degrees greater."""
        return self._replace(west=self.west + 360 * turns, east=self.east + 360 * turns)

    def contains(self, longitude: float, latitude: float) -> bool:
        """Whether a point lies in the box or on its edge."""
        return self.intersects(BBox(longitude, latitude, longitude, latitude))

    def intersects(self, other: "BBox") -> bool:
        """Whether both have a point in common; an edge is enough."""
        if not (self.south <= other.north and other.south <= self.north):
            return False
        return any(a.west <= b.east and b.west <= a.east for a in self.split() for b in other.split())

    def as_list(self) -> list[float]:
        """For JSON and STAC."""
        return list(self)

    def geometry(self) -> dict[str, Any]:
        """GeoJSON: a Polygon, or a MultiPolygon of two where the box crosses the antimeridian (RFC 7946, 3.1.9)."""
        rings = [[[[w, s], [e, s], [e, n], [w, n], [w, s]]] for w, s, e, n in self.split()]
        if len(rings) == 1:
            return {"type": "Polygon", "coordinates": rings[0]}
        return {"type": "MultiPolygon", "coordinates": rings}


def _parts(boxes: Iterable[BBox]) -> list[BBox]:
    """The boxes, split at the antimeridian, from west to east."""
    return sorted(part for box in boxes for part in box.split())


def _across(parts: list[BBox]) -> BBox:
    """The box around all parts that leaves out the widest gap between them; without a gap, as `BBox.around`."""
    box = BBox.around(parts)
    gap, reached = 0.0, parts[0].east
    for part in parts[1:]:
        if part.west - reached > gap:
            gap = part.west - reached
            box = box._replace(west=part.west, east=reached if reached > -180 else 180.0)
        reached = max(reached, part.east)
    return box
