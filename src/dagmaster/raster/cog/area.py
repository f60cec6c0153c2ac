"""Compare the valid area of a COG with that of its source, while it is written.

Up to 1,024 probes are spread evenly over the part of the source that belongs to the COG. They are projected forward,
from the source to the grid, whereas blocks are computed backward, from the grid to the source: data that one way loses
is found by the other. A probe counts only if all pixels of the source around it, as far as the kernel reaches, are
valid, or none is: at a border, either is correct.
"""

import math
from dataclasses import dataclass

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling

from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.cog.warp import Blocks, blocks_of, kernel_radius
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.pixels import Block, Pixels, Rules, Validity
from dagmaster.raster.source.points import Floats, Points, apply_affine, project
from dagmaster.raster.source.window import Window

AREA_TOLERANCE = 0.01  # share of the valid area
_MAX_PER_SIDE = 32
_PIXELS_PER_PROBE = 32  # in each direction, if the source is small
_MAX_READ_AFTERWARDS = 64
_EARTH_KM = 6371.0
_LON_LAT = CRS.from_epsg(4326)
_DIRECTIONS = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)])

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ValidArea:
    """Valid area in square kilometres, as far as it can be compared, and the part that differs."""

    source_km2: float
    output_km2: float
    lost_km2: float  # valid in the source, but not in the output
    added_km2: float  # valid in the output, but not in the source

    @property
    def differs(self) -> bool:
        return max(self.lost_km2, self.added_km2) > AREA_TOLERANCE * max(self.source_km2, self.output_km2)

    @property
    def lost_percent(self) -> float:
        return 100 * self.lost_km2 / self.source_km2 if self.source_km2 else 0.0

    @property
    def added_percent(self) -> float:
        return 100 * self.added_km2 / self.output_km2 if self.output_km2 else 0.0


@dataclass(frozen=True, slots=True)
class _AreaProbes:
    """Pixels of the source, their pixels in the grid, and how far the kernel reaches around them."""

    km2: Floats  # the area that each stands for
    col: Indices
    row: Indices
    out_col: Indices
    out_row: Indices
    reach: Indices


class AreaCheck:
    """The blocks of a window of the grid, with a comparison of their valid area."""

    def __init__(
        self, source: Pixels, grid: OutputGrid, window: Window, resampling: Resampling, core: Window | None = None
    ) -> None:
        self._source = source
        core = core or Window(0, 0, source.width, source.height)
        self._probes = _probes_of(source, grid, window, resampling, core)
        count = self._probes.col.size
        self._is_read = np.zeros(count, np.bool_)
        self._all_valid, self._none_valid, self._written = (np.zeros(count, np.bool_) for _ in range(3))
        is_whole = core == Window(0, 0, source.width, source.height)
        self._blocks = blocks_of(_ObservedSource(source, self), grid, resampling, None if is_whole else core)

    def blocks(self) -> Blocks:
        return _ObservedBlocks(self._blocks, self)

    def valid_area(self) -> ValidArea:
        """The result, after all blocks were computed."""
        scale = self._read_missing()
        km2 = self._probes.km2 * scale
        certain = self._is_read & (self._all_valid | self._none_valid)
        written = certain & self._written
        return ValidArea(
            source_km2=float(km2[certain & self._all_valid].sum()),
            output_km2=float(km2[written].sum()),
            lost_km2=float(km2[certain & self._all_valid & ~self._written].sum()),
            added_km2=float(km2[written & self._none_valid].sum()),
        )

    def note_read(self, window: Window, block: Block) -> None:
        """Record which pixels around the probes are valid, for probes whose whole kernel is in this window."""
        probes = self._probes
        left, top = np.maximum(probes.col - probes.reach, 0), np.maximum(probes.row - probes.reach, 0)
        right = np.minimum(probes.col + probes.reach, self._source.width - 1)
        bottom = np.minimum(probes.row + probes.reach, self._source.height - 1)
        inside = (left >= window.col) & (right < window.col + window.width)
        inside &= (top >= window.row) & (bottom < window.row + window.height)
        at = np.flatnonzero(inside)
        if at.size == 0:
            return
        self._is_read[at] = True
        cols = probes.col[at] + np.outer(_DIRECTIONS[:, 0], probes.reach[at])
        rows = probes.row[at] + np.outer(_DIRECTIONS[:, 1], probes.reach[at])
        exists = (cols >= 0) & (cols < self._source.width) & (rows >= 0) & (rows < self._source.height)
        valid = exists
        if block.valid is not None:
            # Valid pixels may be far from both ends of a direction: the pixels half way are checked too.
            half_cols, half_rows = (probes.col[at] + cols) // 2, (probes.row[at] + rows) // 2
            pairs = [
                (np.where(exists, c, probes.col[at]), np.where(exists, r, probes.row[at]))
                for c, r in ((cols, rows), (half_cols, half_rows))
            ]
            ends, halves = (block.valid[0, r - window.row, c - window.col] for c, r in pairs)
            self._none_valid[at] = ~(ends | halves).any(axis=0)
            valid = exists & ends & halves
        self._all_valid[at] = valid.all(axis=0)

    def note_written(self, col: int, row: int, block: Block | None) -> None:
        if block is None:
            return
        probes = self._probes
        height, width = block.values.shape[1:]
        inside = (probes.out_col >= col) & (probes.out_col < col + width)
        inside &= (probes.out_row >= row) & (probes.out_row < row + height)
        at = np.flatnonzero(inside)
        if at.size:
            valid = block.valid
            self._written[at] = True if valid is None else valid[0, probes.out_row[at] - row, probes.out_col[at] - col]

    def _read_missing(self) -> Floats:
        """Read the source around probes that were not read with a block, or around some of them, which then count for
        all. Normally there are none."""
        missing = np.flatnonzero(~self._is_read)
        scale = np.ones(self._is_read.size)
        if missing.size == 0:
            return scale
        chosen = missing[:: math.ceil(missing.size / _MAX_READ_AFTERWARDS)]
        scale[chosen] = missing.size / chosen.size
        for index in chosen:
            self._read_around(int(index))
        return scale

    def _read_around(self, index: int) -> None:
        probes, source = self._probes, self._source
        reach = int(probes.reach[index])
        left, top = max(0, int(probes.col[index]) - reach), max(0, int(probes.row[index]) - reach)
        right = min(source.width, int(probes.col[index]) + reach + 1)
        bottom = min(source.height, int(probes.row[index]) + reach + 1)
        window = Window(left, top, right - left, bottom - top)
        block = Block(np.empty((1, 0, 0))) if source.rules.validity is Validity.ALL else source.read(window)
        self.note_read(window, block)


@dataclass(frozen=True, slots=True)
class _ObservedSource:
    """A source that reports what is read to the check."""

    pixels: Pixels
    check: AreaCheck

    @property
    def width(self) -> int:
        return self.pixels.width

    @property
    def height(self) -> int:
        return self.pixels.height

    @property
    def crs(self) -> CRS:
        return self.pixels.crs

    @property
    def transform(self) -> Affine:
        return self.pixels.transform

    @property
    def rules(self) -> Rules:
        return self.pixels.rules

    @property
    def clamped(self) -> int:
        return self.pixels.clamped

    def read(self, window: Window) -> Block:
        block = self.pixels.read(window)
        self.check.note_read(window, block)
        return block


class _ObservedBlocks:
    """Blocks that are reported to the check."""

    def __init__(self, blocks: Blocks, check: AreaCheck) -> None:
        self.source, self.reprojects = blocks.source, blocks.reprojects
        self.source_windows = blocks.source_windows
        self._blocks, self._check = blocks, check

    def block(self, col: int, row: int) -> Block | None:
        block = self._blocks.block(col, row)
        self._check.note_written(col, row, block)
        return block


def _probes_of(source: Pixels, grid: OutputGrid, window: Window, resampling: Resampling, part: Window) -> _AreaProbes:
    """Probes where the part of the source belongs to the window; the part is narrowed down step by step."""
    mapping = _Mapping(source, grid)
    lattice = _AreaCells.of(part)
    for _ in range(16):
        if window == grid.window:
            break
        smaller = _part_near(mapping.forward(*lattice.centres), lattice, window, part)
        if smaller is None or smaller == part:
            break
        part, lattice = smaller, _AreaCells.of(smaller)
    col, row = (np.floor(axis) for axis in lattice.centres)
    out = mapping.forward(col + 0.5, row + 0.5)
    with np.errstate(invalid="ignore"):
        out_col, out_row = np.floor(out.x), np.floor(out.y)
        inside = (out_col >= window.col) & (out_col < window.col + window.width)
        inside &= (out_row >= window.row) & (out_row < window.row + window.height)
    # The kernel's reach in the source is that of one pixel of the grid, which differs from place to place.
    centre, right, down = (mapping.backward(out_col + 0.5 + x, out_row + 0.5 + y) for x, y in ((0, 0), (1, 0), (0, 1)))
    with np.errstate(invalid="ignore"):
        size = np.max([np.hypot(end.x - centre.x, end.y - centre.y) for end in (right, down)], axis=0)
        distance = np.hypot(centre.x - col - 0.5, centre.y - row - 0.5)
        reach = np.ceil((kernel_radius(resampling) + 0.5) * np.maximum(1, size)) + 1
        inside &= (distance <= reach) & (reach < max(source.width, source.height))
    km2 = lattice.km2(source)
    kept = np.flatnonzero(inside & np.isfinite(km2))
    indices = (axis[kept].astype(np.intp) for axis in (col, row, out_col, out_row, reach))
    return _AreaProbes(km2[kept], *indices)


@dataclass(frozen=True, slots=True)
class _AreaCells:
    """Cells of equal size over a part of the source."""

    x: Floats  # edges
    y: Floats

    @staticmethod
    def of(part: Window) -> "_AreaCells":
        across, down = (
            int(min(_MAX_PER_SIDE, max(4, size // _PIXELS_PER_PROBE), size)) for size in (part.width, part.height)
        )
        return _AreaCells(
            np.linspace(part.col, part.col + part.width, across + 1),
            np.linspace(part.row, part.row + part.height, down + 1),
        )

    @property
    def centres(self) -> tuple[Floats, Floats]:
        x, y = np.meshgrid((self.x[:-1] + self.x[1:]) / 2, (self.y[:-1] + self.y[1:]) / 2)
        return x.ravel(), y.ravel()

    def km2(self, source: Pixels) -> Floats:
        """The area of each cell, from its diagonals on a sphere."""
        x, y = np.meshgrid(self.x, self.y)
        points = project(source.crs, _LON_LAT, *apply_affine(source.transform, x.ravel(), y.ravel()))
        with np.errstate(invalid="ignore"):
            lon, lat = np.radians(points.x), np.radians(points.y)
            sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)
        corners = (_EARTH_KM * sphere).reshape(*x.shape, 3)
        diagonals = corners[1:, 1:] - corners[:-1, :-1], corners[1:, :-1] - corners[:-1, 1:]
        area: Floats = np.linalg.norm(np.cross(*diagonals), axis=-1).ravel() / 2
        return area


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Positions in pixels of the source and of the grid."""

    source: Pixels
    grid: OutputGrid

    def forward(self, x: Floats, y: Floats) -> Points:
        grid = self.grid
        points = project(self.source.crs, parse_crs(grid.crs), *apply_affine(self.source.transform, x, y))
        with np.errstate(invalid="ignore"):
            cols, rows = apply_affine(~grid.transform, points.x, points.y)
            # Longitudes of the grid may be beyond 180.
            return Points(cols if grid.turn is None else np.mod(cols, grid.turn / grid.resolution[0]), rows)

    def backward(self, x: Floats, y: Floats) -> Points:
        grid = self.grid
        points = project(parse_crs(grid.crs), self.source.crs, *apply_affine(grid.transform, x, y))
        middle, _ = self.source.transform @ (self.source.width / 2, self.source.height / 2)
        with np.errstate(invalid="ignore"):
            lon = points.x + 360 * np.round((middle - points.x) / 360) if self.source.crs.is_geographic else points.x
            return Points(*apply_affine(~self.source.transform, lon, points.y))


def _part_near(out: Points, lattice: _AreaCells, window: Window, part: Window) -> Window | None:
    """The part of the source around the cells that are in the window or next to it; None if it need not be smaller."""
    shape = lattice.y.size - 1, lattice.x.size - 1
    cols, rows = out.x.reshape(shape), out.y.reshape(shape)
    with np.errstate(invalid="ignore"):
        steps = [np.abs(np.diff(axis, axis=along)) for axis in (cols, rows) for along in (0, 1)]
        margin = 2 * max(
            (float(np.median(step[np.isfinite(step)])) for step in steps if np.isfinite(step).any()), default=0.0
        )
        near = (cols >= window.col - margin) & (cols < window.col + window.width + margin)
        near &= (rows >= window.row - margin) & (rows < window.row + window.height + margin)
    if not near.any() or near.mean() > 0.5:
        return None
    down, across = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
    left, right = (math.floor(lattice.x[max(0, across[0] - 1)]), math.ceil(lattice.x[min(shape[1], across[-1] + 2)]))
    top, bottom = (math.floor(lattice.y[max(0, down[0] - 1)]), math.ceil(lattice.y[min(shape[0], down[-1] + 2)]))
    return Window(left, top, min(right, part.col + part.width) - left, min(bottom, part.row + part.height) - top)
