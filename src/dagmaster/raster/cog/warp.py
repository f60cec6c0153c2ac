"""Pixels of a source on the output grid, one block of 512 × 512 at a time.

A block depends only on the source, the grid and its own position: not on the tile that needs it, nor on earlier reads.
Therefore neighbouring tiles agree in every pixel. GDAL's transformer interpolates along each run of columns, and its
error grows with the length of the run and depends on where the run starts; in this module a run never leaves its block.

    Copy       if the pixels of the source coincide with those of the grid: they are copied
    Warp       otherwise; the slower kernel that respects nodata runs only for blocks with invalid pixels
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from affine import Affine
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.warp import reproject

from dagmaster.errors import InvalidRequest
from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.pixels import Block, Pixels, Rules, Valid, Validity, Values, none_if_all
from dagmaster.raster.source.points import Floats, Points, apply_affine, project
from dagmaster.raster.source.window import BLOCK, Window

_RADIUS = {
    Resampling.nearest: 0,
    Resampling.bilinear: 1,
    Resampling.cubic: 2,
    Resampling.cubic_spline: 2,
    Resampling.lanczos: 3,
}
_MAX_REDUCTION = 32
_MAX_TILT = 0.1  # tangent of the angle between rows of the grid and of the source, up to which pixels are averaged
AVERAGED_FROM = 1.5  # source pixels per pixel of the grid, in the coarser direction
_OPAQUE = 100  # the value of valid pixels in a mask that is warped as a band; it fits every type
_TURN_DEGREES = 360.0
_NEAREST_ERROR = 2e-5  # pixels; also the share of pixels for which the nearest source pixel is wrong
_ON_EDGE = 1e-3  # pixels; a pixel on the edge of two files is in both, so that it is never left out
_INTERPOLATION_ERROR = 4e-3  # pixels; such a shift is hardly visible in interpolated values


class Blocks(Protocol):
    """Blocks of the grid."""

    source: Pixels
    reprojects: bool

    def block(self, col: int, row: int) -> Block | None:
        """512 × 512 pixels of the grid from this position on, fewer at its end; None if none is valid."""

    def source_windows(self, col: int, row: int) -> Iterator[Window]:
        """The parts of the source that a block is computed from."""


def blocks_of(source: Pixels, grid: OutputGrid, resampling: Resampling, core: Window | None = None) -> Blocks:
    """The source on the grid: copied if their pixels coincide, else warped.

    Only pixels whose centre is in the `core` of the source become valid; those around it are for interpolation.
    """
    offset = None if core else _whole_offset(source, grid)
    return Copy(source, grid, *offset) if offset else Warp(source, grid, resampling, core)


class Copy:
    """Pixels of the source, unchanged. `cols` and `rows` are its offset in the grid."""

    reprojects = False

    def __init__(self, source: Pixels, grid: OutputGrid, cols: int, rows: int) -> None:
        self.source = source
        self._rules = source.rules
        self._grid = grid
        self._cols, self._rows = cols, rows

    def source_windows(self, col: int, row: int) -> Iterator[Window]:
        block = Window(col - self._cols, row - self._rows, BLOCK, BLOCK)
        if window := _clipped(block, self.source):
            yield window

    def block(self, col: int, row: int) -> Block | None:
        for window in self.source_windows(col, row):
            block = self.source.read(window)
            if block.valid is not None and not block.valid.any():
                return None
            if window.width == window.height == BLOCK:
                return block
            return self._placed(block, window, col, row)
        return None

    def _placed(self, part: Block, window: Window, col: int, row: int) -> Block:
        """The window at its position in a block; other pixels are nodata."""
        top, left = window.row + self._rows - row, window.col + self._cols - col
        rows, cols = slice(top, top + window.height), slice(left, left + window.width)
        depth = 1 if part.valid is None else len(part.valid)
        valid = np.zeros((depth, BLOCK, BLOCK), dtype=np.bool_)
        valid[:, rows, cols] = True if part.valid is None else part.valid
        values = _filled(len(part.values), part.values.dtype, self._rules)
        values[:, rows, cols] = part.values
        return Block(values, valid)


@dataclass(frozen=True, slots=True)
class _SourcePart:
    """The part of the source that a block is computed from, shifted by a number of turns around the Earth.

    `pixels` are positions in the source, 32 pixels of the block apart. `is_inside`: the block needs no pixel outside of
    the source.
    """

    turn: int
    window: Window
    is_inside: bool
    pixels: Points

    @property
    def run(self) -> int:
        """The longest run of columns for which GDAL's linear interpolation is accurate enough."""
        bulge = max(_bulge(self.pixels.x), _bulge(self.pixels.y))
        return next((run for run in (512, 256, 128) if bulge * (run / 32) ** 2 <= _INTERPOLATION_ERROR), 64)


class Warp:
    """Pixels of the source, reprojected or resampled."""

    reprojects = True

    def __init__(self, source: Pixels, grid: OutputGrid, resampling: Resampling, core: Window | None = None) -> None:
        self.source = source
        # Averages reach beyond the source: a pixel belongs to it if its centre does, as with other kernels.
        is_averaged = resampling is Resampling.average
        self._core = core or (Window(0, 0, source.width, source.height) if is_averaged else None)
        self._rules = source.rules
        self._grid = grid
        self._crs = parse_crs(grid.crs)
        self._resampling = resampling
        self._reduction = source_pixels_per_pixel(source, grid)
        if max(self._reduction) > _MAX_REDUCTION:
            # All source pixels of a block are read at once.
            raise InvalidRequest(
                f"the output is {max(self._reduction):.0f} times coarser than the source",
                code="raster.too-coarse",
                hint=f"pass a resolution at most {_MAX_REDUCTION} times coarser; the COG has coarser overviews",
            )

    def source_windows(self, col: int, row: int) -> Iterator[Window]:
        for part in self._parts(col, row):
            yield part.window

    def block(self, col: int, row: int) -> Block | None:
        compute = self._nearest if self._resampling is Resampling.nearest else self._interpolated
        computed = ((part, compute(col, row, part)) for part in self._parts(col, row))
        blocks = [self._in_core(col, row, part, block) for part, block in computed if block is not None]
        return _merged(kept) if (kept := [block for block in blocks if block is not None]) else None

    def _in_core(self, col: int, row: int, part: _SourcePart, block: Block) -> Block | None:
        """The block without pixels whose centre is outside the core of the source."""
        core, window = self._core, part.window
        if core is None or (part.is_inside and _clip(window, core) == window):
            return block
        pixels = self._pixel_centres(col, row, part)
        with np.errstate(invalid="ignore"):
            inside = (pixels.x >= core.col - _ON_EDGE) & (pixels.x <= core.col + core.width + _ON_EDGE)
            inside &= (pixels.y >= core.row - _ON_EDGE) & (pixels.y <= core.row + core.height + _ON_EDGE)
        if inside.all():
            return block
        valid = np.broadcast_to(inside, (1, *inside.shape)) if block.valid is None else block.valid & inside
        return self._block_of(block.values, valid)

    def _parts(self, col: int, row: int) -> Iterator[_SourcePart]:
        """The parts of the source for a block: one for each turn around the Earth that reaches the source, so nearly
        always one."""
        lattice = self._lattice(col, row, 32)
        # At the edge of the domain of the source's CRS, a coarse lattice would miss the area between its points.
        outer = lattice if lattice.are_finite else self._lattice(col, row, 4)
        for turn in self._turns(outer.x):
            pixels, extent = self._in_source(lattice, turn), self._in_source(outer, turn)
            finite = extent.finite()
            if finite.x.size == 0:
                continue
            pad_x, pad_y = self._padding(extent)
            left, right = math.floor(finite.x.min() - pad_x), math.ceil(finite.x.max() + pad_x)
            top, bottom = math.floor(finite.y.min() - pad_y), math.ceil(finite.y.max() + pad_y)
            needed = Window(left, top, right - left, bottom - top)
            if window := _clipped(needed, self.source):
                yield _SourcePart(turn, window, window == needed and pixels.are_finite, pixels)

    def _size(self, col: int, row: int) -> tuple[int, int]:
        """Rows and columns of a block."""
        return min(BLOCK, self._grid.height - row), min(BLOCK, self._grid.width - col)

    def _lattice(self, col: int, row: int, step: int) -> Points:
        """Points of a mesh over the block, in the source's CRS."""
        down, across = (_mesh(size, step) for size in self._size(col, row))
        return self._projected(col, row, *np.meshgrid(across, down))

    def _projected(self, col: int, row: int, u: Floats, v: Floats) -> Points:
        points = _projected(self._crs, self.source.crs, *apply_affine(self._transform(col, row), u.ravel(), v.ravel()))
        return Points(points.x.reshape(u.shape), points.y.reshape(u.shape))

    def _transform(self, col: int, row: int) -> Affine:
        return self._grid.transform_of(Window(col, row, BLOCK, BLOCK))

    def _turns(self, x: Floats) -> list[int]:
        """The turns around the Earth to the longitudes of the source, which may be 0 … 360."""
        if not self.source.crs.is_geographic:
            return [0]
        middle, _ = self.source.transform @ (self.source.width / 2, self.source.height / 2)
        turns = np.round((middle - x[np.isfinite(x)]) / _TURN_DEGREES)
        return [int(turn) for turn in np.unique(turns)]

    def _in_source(self, points: Points, turn: int) -> Points:
        return Points(*apply_affine(~self.source.transform, points.x + turn * _TURN_DEGREES, points.y))

    def _padding(self, pixels: Points) -> tuple[float, float]:
        """The radius of the kernel, and how far the block may extend between or beyond the points of the lattice."""
        radius = kernel_radius(self._resampling)
        reach = [radius * max(1.0, reduction) + 2 for reduction in self._reduction]
        more = [_bulge(axis) if pixels.are_finite else _stride(axis) for axis in (pixels.x, pixels.y)]
        return reach[0] + more[0], reach[1] + more[1]

    def _nearest(self, col: int, row: int, part: _SourcePart) -> Block | None:
        """The block by nearest neighbour. GDAL's transformer would choose a wrong pixel in one of 1,000 cases; this
        method chooses one in at most one of 50,000."""
        window = part.window
        block = self.source.read(window)
        pixels = self._pixel_centres(col, row, part)
        with np.errstate(invalid="ignore"):
            # A small number is added as in GDAL, so that both choose the same pixel on an edge.
            cols, rows = np.floor(pixels.x + 1e-10) - window.col, np.floor(pixels.y + 1e-10) - window.row
            inside = (cols >= 0) & (cols < window.width) & (rows >= 0) & (rows < window.height)
        if not inside.any():
            return None
        flat = (np.where(inside, rows, 0) * window.width + np.where(inside, cols, 0)).astype(np.intp)
        values = block.values.reshape(len(block.values), -1)[:, flat]
        valid = inside[np.newaxis]
        if block.valid is not None:
            valid = block.valid.reshape(len(block.valid), -1)[:, flat] & inside
        return self._block_of(values, none_if_all(valid))

    def _pixel_centres(self, col: int, row: int, part: _SourcePart) -> Points:
        """Positions of the block's pixel centres in the source, interpolated in a lattice that is as fine as needed."""
        for step in (32, 16, 8, 4):
            pixels = part.pixels if step == 32 else self._in_source(self._lattice(col, row, step), part.turn)
            bulge = max(_bulge(pixels.x), _bulge(pixels.y))
            if not pixels.are_finite or bulge > 1000 * _NEAREST_ERROR:
                break
            if bulge <= _NEAREST_ERROR:
                down, across = (_mesh_weights(size, step) for size in self._size(col, row))
                return Points(down.T @ pixels.x @ across, down.T @ pixels.y @ across)
        height, width = self._size(col, row)
        centres = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
        return self._in_source(self._projected(col, row, *centres), part.turn)

    def _interpolated(self, col: int, row: int, part: _SourcePart) -> Block | None:
        block = self.source.read(part.window)
        if block.valid is not None and not block.valid.any():
            return None
        corner = self.source.transform @ Affine.translation(part.window.col, part.window.row)
        geometry: dict[str, Any] = {
            "src_transform": Affine.translation(-part.turn * _TURN_DEGREES, 0) @ corner,
            "dst_transform": self._transform(col, row),
            "size": self._size(col, row),
            "run": part.run,
        }
        if part.is_inside and block.valid is None and not self._is_translucent(block.values):
            values = self._kernel(block.values, **geometry)
            self._rules.avoid_nodata(values)
            return Block(values)
        match self._rules.validity:
            case Validity.NODATA:
                return self._with_nodata(block, geometry)
            case Validity.ALPHA:
                assert self._rules.alpha is not None
                alpha = self._rules.alpha + 1
                values = self._kernel(block.values, src_alpha=alpha, dst_alpha=alpha, **geometry)
                return self._block_of(values, self._rules.valid_of(values))
            case Validity.MASK | Validity.ALL:
                return self._with_mask(block, geometry)

    def _with_nodata(self, block: Block, geometry: dict[str, Any]) -> Block | None:
        assert self._rules.nodata is not None
        if block.valid is not None and block.values.dtype.kind == "f":
            # NaN becomes the nodata value, because the kernel accepts only one value.
            np.copyto(block.values, self._rules.nodata, where=np.isnan(block.values))
        # GDAL drops a pixel whose nearest source pixel is invalid only if all bands of a call share their valid pixels.
        # Otherwise it accepts any valid neighbour, and the data would grow by one source pixel.
        is_nodata_shared = self._rules.is_nodata_shared
        is_shared = is_nodata_shared or block.valid is None or bool((block.valid == block.valid[:1]).all())
        options = geometry | {"src_nodata": self._rules.nodata, "dst_nodata": self._rules.nodata}
        options["UNIFIED_SRC_NODATA"] = "YES" if is_nodata_shared else "PARTIAL"
        calls = [block.values] if is_shared else np.split(block.values, len(block.values))
        values = np.concatenate([self._kernel(bands, **options) for bands in calls])
        return self._block_of(values, self._rules.valid_of(values))

    def _with_mask(self, block: Block, geometry: dict[str, Any]) -> Block | None:
        """The mask is warped as an alpha band."""
        shape = block.values.shape[1:]
        mask = np.full((1, *shape), _OPAQUE, block.values.dtype)
        if block.valid is not None:
            mask[~block.valid] = 0
        count = len(block.values) + 1
        values = self._kernel(
            np.concatenate([block.values, mask]),
            src_alpha=count,
            dst_alpha=count,
            SRC_ALPHA_MAX=_OPAQUE,
            DST_ALPHA_MAX=_OPAQUE,
            **geometry,
        )
        return self._block_of(values[:-1], none_if_all(values[-1:] != 0))

    def _kernel(
        self, values: Values, *, size: tuple[int, int], run: int, dst_transform: Affine, **options: Any
    ) -> Values:
        height, width = size
        # Without a given scale, GDAL guesses one for each run, and smooths if it assumes a reduction.
        scale_x, scale_y = (1 / reduction if reduction >= 2 else 1 for reduction in self._reduction)
        runs = []
        for start in range(0, width, run):
            runs.append(np.zeros((len(values), height, min(run, width - start)), values.dtype))
            reproject(
                values,
                runs[-1],
                src_crs=self.source.crs,
                dst_crs=self._crs,
                dst_transform=dst_transform @ Affine.translation(start, 0),
                resampling=self._resampling,
                num_threads=1,
                XSCALE=scale_x,
                YSCALE=scale_y,
                **options,
            )
        return runs[0] if len(runs) == 1 else np.concatenate(runs, axis=2)

    def _is_translucent(self, values: Values) -> bool:
        alpha = self._rules.alpha
        return alpha is not None and bool((values[alpha] != np.iinfo(values.dtype).max).any())

    def _block_of(self, values: Values, valid: Valid | None) -> Block | None:
        """A block with the fill value in invalid pixels; None if no pixel is valid."""
        if valid is None:
            return Block(values)
        if not valid.any():
            return None
        np.copyto(values, values.dtype.type(self._rules.fill), where=~valid)
        return Block(values, valid)


def source_pixels_per_pixel(source: Pixels, grid: OutputGrid) -> tuple[float, float]:
    """The median number of source columns and rows per pixel of the grid: above one if the output is coarser."""
    right, down = _steps(source, grid)
    if right.x.size == 0:
        return 1.0, 1.0
    return float(np.median(np.hypot(right.x, down.x))), float(np.median(np.hypot(right.y, down.y)))


def interpolation_for(source: Pixels, grid: OutputGrid) -> Resampling:
    """How measurements are resampled: by the average of a pixel's area if it is clearly coarser, else bilinear.

    docs/raster/resampling.md has the measurements behind the limit. GDAL averages a box of rows and columns, so the
    grid must not be rotated against the source. GDAL's average also ignores partial transparency, and shows the edges
    of source pixels if the grid is finer in one direction.
    """
    finer, coarser = sorted(source_pixels_per_pixel(source, grid))
    right, down = _steps(source, grid)
    tilted = (np.abs(right.y) > _MAX_TILT * np.abs(right.x)) | (np.abs(down.x) > _MAX_TILT * np.abs(down.y))
    is_averaged = (
        coarser >= AVERAGED_FROM and finer >= 1 and source.rules.validity is not Validity.ALPHA and not tilted.any()
    )
    return Resampling.average if is_averaged else Resampling.bilinear


def _steps(source: Pixels, grid: OutputGrid) -> tuple[Points, Points]:
    """The distance in source pixels between neighbouring pixels of the grid: in its rows and in its columns."""
    u, v = (axis.ravel() for axis in np.meshgrid(*(size * np.arange(1, 8) / 8 for size in (grid.width, grid.height))))
    corner, crs = grid.transform_of(grid.window), parse_crs(grid.crs)
    places = (_projected(crs, source.crs, *apply_affine(corner, u + x, v + y)) for x, y in ((0, 0), (1, 0), (0, 1)))
    origin, right, down = (Points(*apply_affine(~source.transform, place.x, place.y)) for place in places)
    with np.errstate(invalid="ignore"):
        steps = [(end.x - origin.x, end.y - origin.y) for end in (right, down)]
    finite = np.isfinite(steps).all(axis=(0, 1))
    across, along = (Points(x[finite], y[finite]) for x, y in steps)
    return across, along


def _projected(crs: CRS, source_crs: CRS, x: Floats, y: Floats) -> Points:
    # The edge of the last row may be up to half a pixel beyond the pole, where there is no point.
    return project(crs, source_crs, x, np.clip(y, -90, 90) if crs.is_geographic else y)


def kernel_radius(resampling: Resampling) -> int:
    """The radius of the kernel in pixels of the source, or of the grid if these are larger."""
    return _RADIUS.get(resampling, 1)


def _whole_offset(source: Pixels, grid: OutputGrid) -> tuple[int, int] | None:
    """The offset of the source in the grid, in pixels; None if their pixels do not coincide."""
    if source.crs != parse_crs(grid.crs):
        return None
    cols, rows = ~grid.transform @ (source.transform.c, source.transform.f)
    steps = ~grid.transform @ source.transform
    size = source.width, source.height
    deviation = max(
        abs(steps.a - 1) * size[0], abs(steps.e - 1) * size[1], abs(cols - round(cols)), abs(rows - round(rows))
    )
    if steps.b or steps.d or deviation > 1e-3:
        return None
    return round(cols), round(rows)


def _clipped(window: Window, source: Pixels) -> Window | None:
    return _clip(window, Window(0, 0, source.width, source.height))


def _clip(window: Window, bounds: Window) -> Window | None:
    left, top = max(bounds.col, window.col), max(bounds.row, window.row)
    right = min(bounds.col + bounds.width, window.col + window.width)
    bottom = min(bounds.row + bounds.height, window.row + window.height)
    return Window(left, top, right - left, bottom - top) if left < right and top < bottom else None


def _merged(blocks: list[Block]) -> Block:
    """Merge blocks of the same position, from both sides of the source's edge at the antimeridian."""
    first, *others = blocks
    for other in others:
        if first.valid is None:
            break
        missing = ~first.valid
        filled = missing if other.valid is None else missing & other.valid
        np.copyto(first.values, other.values, where=filled)
        first = replace(first, valid=none_if_all(first.valid | filled))
    return first


def _bulge(lattice: Floats) -> float:
    """The largest deviation from a straight line between two points of a lattice."""
    return _largest_difference(lattice, 2) / 8


def _stride(lattice: Floats) -> float:
    """The largest distance between neighbours in a lattice."""
    return _largest_difference(lattice, 1)


def _largest_difference(lattice: Floats, order: int) -> float:
    with np.errstate(invalid="ignore"):
        differences = [np.abs(np.diff(lattice, order, axis)) for axis in (0, 1)]
    return max(float(difference[np.isfinite(difference)].max(initial=0)) for difference in differences)


def _mesh(size: int, step: int) -> Floats:
    """Points from 0 to `size`, at most `step` apart; three or more, because two show no curvature.

    No point is beyond the block: there may be a pole after the last row, and points beyond it cannot be projected.
    """
    return np.linspace(0, size, max(2, -(-size // step)) + 1)


def _mesh_weights(size: int, step: int) -> Floats:
    """Weights of the mesh's points for each pixel centre."""
    mesh = _mesh(size, step)
    weights: Floats = np.clip(1 - np.abs(mesh[:, np.newaxis] - (np.arange(size) + 0.5)) / mesh[1], 0, None)
    return weights


def _filled(bands: int, dtype: Any, rules: Rules) -> Values:
    return np.full((bands, BLOCK, BLOCK), rules.fill, dtype)
