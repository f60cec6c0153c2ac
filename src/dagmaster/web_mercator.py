"""The projection of web maps: positions on a square map of the world, its tiles, and its size on the ground."""

import math
from typing import Final

EQUATOR_METRES: Final = 2 * math.pi * 6_378_137  # of WGS 84; also the width of the map
METRES_PER_DEGREE: Final = EQUATOR_METRES / 360


def position(longitude: float, latitude: float, *, limit: float) -> tuple[float, float]:
    """The position on the map from its north-western corner, as fractions of its width. Latitudes beyond `limit` count
    as `limit`, because the poles are infinitely far away."""
    latitude = min(max(latitude, -limit), limit)
    north = math.asinh(math.tan(math.radians(latitude))) / math.pi
    return (longitude + 180) / 360, (1 - north) / 2


def quadkey(column: int, row: int, zoom: int) -> str:
    """A tile's key has one digit (0 to 3) for each zoom level. It begins with the key of each tile that contains it."""
    return "".join(str(((column >> bit) & 1) | (((row >> bit) & 1) << 1)) for bit in range(zoom - 1, -1, -1))
