"""Boxes in degrees, compared with a model: the edges of boxes are multiples of 10 degrees,
and points around the globe are 5 degrees apart."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapely.geometry import Point, shape

from dagmaster.bbox import BBox

LONGITUDES = st.integers(-18, 18).map(lambda tens: 10 * tens)
POINTS = st.tuples(st.integers(-36, 36).map(lambda fives: 5 * fives), st.integers(-90, 90))
TURN = 72  # points along a parallel
BOXES = st.builds(BBox, LONGITUDES, st.integers(-90, 0), LONGITUDES, st.integers(0, 90))


def points_between(west: float, east: float) -> set[int]:
    """The numbers of the points from west to east, including both edges; a box of 360 degrees has all points."""
    first, last = round(west / 5), round(east / 5)
    steps = TURN if last - first == TURN else (last - first) % TURN
    return {(first + step) % TURN for step in range(steps + 1)}


def covered(boxes: list[BBox]) -> set[int]:
    return set().union(*(points_between(box.west, box.east) for box in boxes))


@given(BOXES, POINTS)
def test_a_box_contains_the_points_between_its_edges(box, point):
    longitude, latitude = point
    if abs(longitude) == 180 and 180 in (abs(box.west), abs(box.east)):
        return  # the antimeridian has two longitudes, and a box that ends there contains one of them
    is_between = round(longitude / 5) % TURN in points_between(box.west, box.east)
    assert box.contains(longitude, latitude) == (is_between and box.south <= latitude <= box.north)


@given(BOXES)
def test_the_parts_of_a_box_cover_the_box(box):
    parts = box.split()

    assert len(parts) == 1 + box.crosses_antimeridian
    assert not any(part.crosses_antimeridian for part in parts)
    assert covered(list(parts)) == covered([box])
    assert sum(part.width for part in parts) == box.width
    assert box.width in (0, 360) or box.width == 5 * (len(covered([box])) - 1)
    assert {(part.south, part.north) for part in parts} == {(box.south, box.north)}


@given(BOXES, BOXES)
def test_boxes_intersect_where_they_share_a_point(one, other):
    shared = points_between(one.west, one.east) & points_between(other.west, other.east)
    shared.discard(TURN // 2)  # the antimeridian itself: see `contains`

    assert one.intersects(other) == other.intersects(one)
    if shared:
        assert one.intersects(other)
    elif 180 not in {abs(one.west), abs(one.east), abs(other.west), abs(other.east)}:
        assert one.intersects(other) == (one.crosses_antimeridian and other.crosses_antimeridian)


@given(BOXES)
def test_the_centre_has_the_same_distance_to_west_and_east(box):
    longitude, latitude = box.centre

    assert -180 <= longitude <= 180
    assert (longitude - box.west) % 360 == pytest.approx((box.east - longitude) % 360)
    assert latitude - box.south == box.north - latitude
    assert box.contains(longitude, latitude)


@given(BOXES, POINTS)
def test_the_geometry_of_a_box_covers_the_same_points(box, point):
    geometry = box.geometry()

    assert geometry["type"] == ("MultiPolygon" if box.crosses_antimeridian else "Polygon")
    if all(part.width and part.south < part.north for part in box.split()):
        polygons = getattr(shape(geometry), "geoms", [shape(geometry)])
        assert any(polygon.covers(Point(point)) for polygon in polygons) == box.contains(*point)


@given(BOXES)
def test_a_widened_and_an_unrolled_box_contain_the_box(box):
    assert not box.widened().crosses_antimeridian
    assert covered([box]) <= covered([box.widened()])
    assert box.unrolled().east - box.west == box.width
    assert (box.widened() == box) == (box.unrolled() == box) == (not box.crosses_antimeridian)


@given(BOXES)
def test_a_box_can_be_read_from_its_own_list(box):
    west, south, east, north = box

    assert BBox.of(json.loads(json.dumps(box.as_list()))) == box
    assert BBox.of([west, south, -10, east, north, 8000]) == box


@pytest.mark.parametrize("numbers", [[], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_a_box_with_a_wrong_number_of_values_is_refused(numbers):
    with pytest.raises(ValueError, match="four or six"):
        BBox.of(numbers)


@given(st.lists(BOXES, min_size=1, max_size=6))
def test_unions_contain_every_box(boxes):
    for union in (BBox.union(boxes), BBox.shortest_union(boxes)):
        assert -180 <= union.west <= 180
        assert -180 <= union.east <= 180
        assert (union.south, union.north) == (min(box.south for box in boxes), max(box.north for box in boxes))
        assert covered(boxes) <= covered([union])


@pytest.mark.requirement("C1")
@given(st.lists(BOXES, min_size=1, max_size=6))
def test_a_union_crosses_the_antimeridian_only_if_boxes_cross_or_meet_there(boxes):
    union = BBox.union(boxes)
    west, east = min(box.west for box in boxes), max(box.east for box in boxes)

    if any(box.crosses_antimeridian for box in boxes) or (west, east) == (-180, 180):
        assert len(covered([union])) == shortest_arc(covered(boxes))
    else:
        assert (union.west, union.east) == (west, east)


@given(st.lists(BOXES, min_size=1, max_size=6))
def test_a_shortest_union_is_the_shortest_if_it_fits_half_the_globe(boxes):
    union = BBox.shortest_union(boxes)

    shortest = shortest_arc(covered(boxes))
    if 5 * (shortest - 1) < 180:
        assert len(covered([union])) == shortest
    else:
        assert not union.crosses_antimeridian


def shortest_arc(points: set[int]) -> int:
    """The number of points of the shortest arc that contains all these points and begins at one of them."""
    return min(max((point - start) % TURN for point in points) for start in points) + 1


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([(10, 0, 20, 5), (30, -5, 40, 1)], (10, -5, 40, 5)),
        ([(178, 0, 180, 5), (-180, 0, -177, 5)], (178, 0, -177, 5)),
        ([(179, 0, -179, 5)], (179, 0, -179, 5)),
        ([(179, 0, -179, 5), (170, 0, 171, 5)], (170, 0, -179, 5)),
        ([(140, 0, 141, 5), (-120, 0, -119, 5)], (-120, 0, 141, 5)),
        ([(-180, -90, 180, 90), (0, 0, 1, 1)], (-180, -90, 180, 90)),
        ([(-180, 0, 0, 1), (0, 0, 180, 1)], (-180, 0, 180, 1)),
        ([(100, 0, -60, 1)], (100, 0, -60, 1)),
    ],
)
def test_unions_at_the_antimeridian_have_the_expected_edges(boxes, expected):
    assert BBox.union(BBox(*box) for box in boxes) == expected


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([(0, 0, 10, 10), (20, -5, 30, 10)], (0, -5, 30, 10)),
        ([(170, -10, 180, 0), (-180, -5, -170, 3)], (170, -10, -170, 3)),
        ([(178, 0, 179, 1), (-179, 0, -178, 1)], (178, 0, -178, 1)),
        ([(170, 0, -170, 1), (165, 0, 168, 1)], (165, 0, -170, 1)),
        ([(170, 0, -170, 1), (0, 0, 10, 1)], (-180, 0, 180, 1)),
        ([(-180, 0, 180, 1), (3, 0, 4, 1)], (-180, 0, 180, 1)),
        ([(100, 0, -60, 1)], (-180, 0, 180, 1)),
    ],
)
def test_a_shortest_union_can_cross_the_antimeridian(boxes, expected):
    assert BBox.shortest_union(BBox(*box) for box in boxes) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 0, 10, 10), (5, 5, 15, 15), True),
        ((0, 0, 10, 10), (10, 10, 15, 15), True),
        ((0, 0, 10, 10), (11, 5, 15, 15), False),
        ((0, 0, 10, 10), (5, 11, 15, 15), False),
        ((160, -60, -170, -25), (-175, -40, -172, -30), True),
        ((160, -60, -170, -25), (175, -40, -175, -30), True),
        ((160, -60, -170, -25), (-160, -40, 150, -30), False),
    ],
)
def test_boxes_can_intersect_across_the_antimeridian(one, other, expected):
    assert BBox(*one).intersects(BBox(*other)) is BBox(*other).intersects(BBox(*one)) is expected


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((170.0, -10.0, -170.0, 10.0), (-180, -10, 180, 10)), ((-180.0, -9.0, 180.0, 9.0), (-180, -9, 180, 9))],
)
def test_a_widened_box_does_not_cross_the_antimeridian(bounds, expected):
    assert BBox(*bounds).widened() == expected


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("bounds", "longitude"),
    [((170.0, 0.0, -160.0, 2.0), -175), ((160.0, 0.0, -170.0, 2.0), 175), ((10.0, 0.0, 20.0, 2.0), 15)],
)
def test_the_centre_lies_within_the_box(bounds, longitude):
    assert BBox(*bounds).centre == (longitude, 1)


def test_a_box_can_be_moved_by_whole_turns():
    fiji = BBox(177, -19, -178, -16)

    assert fiji.unrolled().shifted(-1) == (-183, -19, -178, -16)
    assert BBox.around([BBox(177, -19, 180, -16), BBox(-180, -18, -178, -15).shifted(1)]) == (177, -19, 182, -15)
