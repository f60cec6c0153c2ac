"""Tiles are joined into a picture, each at its position."""

import numpy as np
import pytest
from rasterio.io import MemoryFile

from dagmaster.raster.picture import stitched

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def png(*colour: int, size: int = 4) -> bytes:
    """A tile of one colour."""
    with MemoryFile() as memory:
        with memory.open(driver="PNG", count=len(colour), width=size, height=size, dtype="uint8") as file:
            file.write(np.broadcast_to(np.array(colour, np.uint8)[:, None, None], (len(colour), size, size)))
        return bytes(memory.getbuffer())


def pixels(image: bytes):
    with MemoryFile(image) as memory, memory.open() as file:
        return file.read()


def test_tiles_are_placed_at_their_positions_and_cropped_to_the_box():
    tiles = {(5, 7): png(10, 0, 0), (6, 7): png(20, 0, 0), (5, 8): png(30, 0, 0)}

    picture = pixels(stitched(tiles, (21, 30, 26, 34), tile_size=4))

    assert picture.shape == (4, 4, 5)
    assert picture[0].tolist() == [[10, 10, 10, 20, 20], [10, 10, 10, 20, 20], [30, 30, 30, 0, 0], [30, 30, 30, 0, 0]]


def test_the_picture_is_transparent_where_there_is_no_tile():
    picture = pixels(stitched({(0, 0): png(1, 2, 3)}, (0, 0, 8, 4), tile_size=4))

    assert picture[3].tolist() == [[255] * 4 + [0] * 4] * 4


@pytest.mark.parametrize(
    ("bands", "expected"),
    [
        ((7,), [7, 7, 7, 255]),
        ((7, 90), [7, 7, 7, 90]),
        ((1, 2, 3), [1, 2, 3, 255]),
        ((1, 2, 3, 90), [1, 2, 3, 90]),
    ],
)
def test_grey_and_colour_are_drawn_with_and_without_alpha(bands, expected):
    assert pixels(stitched({(0, 0): png(*bands)}, (0, 0, 4, 4), tile_size=4))[:, 0, 0].tolist() == expected
