"""Join map tiles into one picture."""

import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile

Box = tuple[int, int, int, int]


def stitched(tiles: Mapping[tuple[int, int], bytes], box: Box, tile_size: int = 256) -> bytes:
    """A PNG of the pixels in `box` (left, top, right, bottom); tiles are PNGs by column and row.

    Pixels without a tile are transparent.
    """
    left, top, right, bottom = box
    canvas = np.zeros((4, bottom - top, right - left), np.uint8)
    for (col, row), image in tiles.items():
        _paste(canvas, _rgba(image), col * tile_size - left, row * tile_size - top)
    return _png(canvas)


def _paste(canvas: NDArray[np.uint8], tile: NDArray[np.uint8], left: int, top: int) -> None:
    _, height, width = canvas.shape
    rows, cols = slice(max(0, -top), height - top), slice(max(0, -left), width - left)
    part = tile[:, rows, cols]
    canvas[:, max(0, top) : max(0, top) + part.shape[1], max(0, left) : max(0, left) + part.shape[2]] = part


def _rgba(image: bytes) -> NDArray[np.uint8]:
    """Four bands, from a picture of one or three bands with or without alpha."""
    with _quietly(), MemoryFile(image) as memory, memory.open() as file:
        bands = file.read()
    alpha = bands[-1:] if len(bands) in (2, 4) else np.full_like(bands[:1], 255)
    colours = bands[:3] if len(bands) >= 3 else np.repeat(bands[:1], 3, axis=0)
    return np.concatenate([colours, alpha])


def _png(bands: NDArray[np.uint8]) -> bytes:
    count, height, width = bands.shape
    shape = {"count": count, "height": height, "width": width, "dtype": "uint8"}
    with _quietly(), MemoryFile() as memory:
        with memory.open(driver="PNG", **shape) as file:
            file.write(bands)
        return bytes(memory.getbuffer())


def _quietly() -> warnings.catch_warnings:
    """Suppress the warning that a picture has no georeference."""
    return warnings.catch_warnings(action="ignore", category=NotGeoreferencedWarning)
