"""Determine which tiles of a grid have data, without writing them.

A tile with a valid pixel is never left out; a tile without one may be included. The source is read only until a valid
pixel is found, and no part of it twice. So only empty areas are read completely, and they compress well.
"""

from collections.abc import Iterable
from pathlib import Path

import rasterio
from rasterio.enums import Resampling

from dagmaster.raster.cog.grid import OutputGrid, Tile
from dagmaster.raster.cog.warp import Blocks, blocks_of
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.opening import opened
from dagmaster.raster.source.pixels import Validity, source_of
from dagmaster.raster.source.window import BLOCK, Window


def tiles_with_data(
    source: str | Path,
    grid: OutputGrid,
    tiles: Iterable[Tile],
    *,
    raster_type: RasterType,
    nodata: float | None = None,
    source_crs: str | None = None,
    unset_alpha: bool = False,
    remote: bool = False,
) -> tuple[Tile, ...]:
    """The tiles without those that are outside the source or have only nodata. Parameters as in `make_cog`."""
    with opened(source, remote=remote) as dataset, rasterio.Env(GDAL_NUM_THREADS=1):
        pixels = source_of(dataset, raster_type, nodata=nodata, source_crs=source_crs, unset_alpha=unset_alpha)
        coverage = _Coverage(blocks_of(pixels, grid, Resampling.bilinear))
        return tuple(tile for tile in tiles if coverage.has_data(tile.window))


class _Coverage:
    """Which cells of 512 × 512 pixels of the source have data; each is read once."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._source = blocks.source
        self._has_data: dict[tuple[int, int], bool] = {}

    def has_data(self, window: Window) -> bool:
        rows, cols = window.blocks()
        # From the centre outwards: a tile with data most often has data in its centre.
        order = sorted(
            range(rows * cols), key=lambda i: abs(2 * (i // cols) - rows + 1) + abs(2 * (i % cols) - cols + 1)
        )
        return any(self._block_has_data(window.col + i % cols * BLOCK, window.row + i // cols * BLOCK) for i in order)

    def _block_has_data(self, col: int, row: int) -> bool:
        return any(self._part_has_data(part) for part in self._blocks.source_windows(col, row))

    def _part_has_data(self, part: Window) -> bool:
        rows = range(part.row // BLOCK, (part.row + part.height - 1) // BLOCK + 1)
        cols = range(part.col // BLOCK, (part.col + part.width - 1) // BLOCK + 1)
        return any(self._cell_has_data(row, col) for row in rows for col in cols)

    def _cell_has_data(self, row: int, col: int) -> bool:
        if (row, col) not in self._has_data:
            self._has_data[row, col] = self._read_cell(row, col)
        return self._has_data[row, col]

    def _read_cell(self, row: int, col: int) -> bool:
        source = self._source
        if source.rules.validity is Validity.ALL:
            return True
        width, height = min(BLOCK, source.width - col * BLOCK), min(BLOCK, source.height - row * BLOCK)
        block = source.read(Window(col * BLOCK, row * BLOCK, width, height))
        return block.valid is None or bool(block.valid.any())
