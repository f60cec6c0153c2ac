"""Positions on web maps."""

import random

import pytest
from morecantile import tms

from dagmaster.web_mercator import EQUATOR_METRES, METRES_PER_DEGREE, position, quadkey

GRID = tms.get("WebMercatorQuad")


@pytest.mark.parametrize(("longitude", "latitude"), [(-179.9, 85), (0, 0), (8.5, 47.4), (151.2, -33.9), (179.9, -85)])
def test_positions_equal_those_of_morecantile(longitude, latitude):
    x, y = position(longitude, latitude, limit=89.99)
    tile = GRID.tile(longitude, latitude, 12)

    assert (int(x * 2**12), int(y * 2**12)) == (tile.x, tile.y)


def test_latitudes_beyond_the_limit_are_clamped():
    assert position(0, 90, limit=85) == position(0, 85, limit=85)
    assert position(0, -90, limit=85) == position(0, -85, limit=85)


def test_quadkeys_equal_those_of_morecantile():
    seeded = random.Random(7)
    for _ in range(200):
        zoom = seeded.randrange(1, 20)
        x, y = seeded.randrange(2**zoom), seeded.randrange(2**zoom)
        assert quadkey(x, y, zoom) == GRID.quadkey(x, y, zoom)
    assert quadkey(0, 0, 0) == ""


def test_a_degree_at_the_equator_has_111_km():
    assert pytest.approx(40_075_017, abs=1) == EQUATOR_METRES
    assert pytest.approx(111_319.49, abs=0.01) == METRES_PER_DEGREE
