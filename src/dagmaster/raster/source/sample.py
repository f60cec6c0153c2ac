"""A sample of the pixels: enough to check a file, and never all of a large one unless requested.

First the block table is checked, without reading a pixel: a block beyond the end of the file was lost in the upload.
Then a few windows are read, among them all four corners (where collars are) and the last block (the first that an
incomplete upload lacks).
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from dagmaster.raster.source.facts import RasterFacts
from dagmaster.raster.source.opening import READ_ERRORS, is_out_of_memory, read_bands, reason
from dagmaster.raster.source.pixels import Rules
from dagmaster.raster.source.reading import band_validity, marks_of

_WINDOW = 512
_LATTICE = 4  # windows per side
_PATCH = 128
_MAX_PATCHES = 32
_CORNER = 16
_SMALL_BYTES = 32 * 2**20  # uncompressed; files up to this size are read completely
_CHUNK_BYTES = 8 * 2**20
_MAX_BLOCKS = 4096  # entries of the block table, spread evenly

Array = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Counts of the blocks that were looked up."""

    looked_up: int = 0
    left_out: int = 0  # sparse: not stored, all nodata
    beyond_end: int = 0
    is_complete: bool = True  # whether all blocks were looked up
    is_one_strip: bool = False  # if it is compressed, every read decompresses it from its first row on

    @property
    def is_mostly_left_out(self) -> bool:
        return self.left_out * 2 > self.looked_up


@dataclass(slots=True)
class BandRange:
    """One band: the number of pixels read, the number of valid ones, and the range of valid values that are finite."""

    pixels: int = 0
    valid: int = 0
    infinite: int = 0  # the number of valid values that are infinite
    minimum: float = math.inf
    maximum: float = -math.inf
    has_nan: bool = False

    def add(self, values: Array, valid: Mask) -> None:
        self.pixels += values.size
        self.valid += int(valid.sum())
        if values.dtype.kind == "f":
            self.has_nan = self.has_nan or bool(np.isnan(values).any())
            infinite = valid & np.isinf(values)
            self.infinite += int(infinite.sum())
            valid = valid & ~infinite
        if valid.any():
            data = values[valid]
            self.minimum = min(self.minimum, float(data.min()))
            self.maximum = max(self.maximum, float(data.max()))


@dataclass(frozen=True, slots=True)
class Patch:
    values: Array  # bands, rows, columns
    valid: Mask  # valid and finite pixels, because values are compared and averaged


@dataclass(slots=True)
class Sample:
    bands: dict[int, BandRange] = field(default_factory=dict)  # by band number, without alpha
    patches: list[Patch] = field(default_factory=list)
    corners: list[Array] = field(default_factory=list)
    pixels: int = 0  # the number of pixels read, per band
    alpha_pixels: int = 0
    alpha_between: int = 0  # alpha pixels that are neither transparent nor opaque
    is_whole: bool = False
    is_empty: bool = False  # all pixels were read, and none is valid
    problem: str | None = None  # why the pixels cannot be read

    @property
    def valid(self) -> int:
        return sum(band.valid for band in self.bands.values())

    @property
    def minimum(self) -> float:
        return min((band.minimum for band in self.bands.values()), default=math.inf)

    @property
    def maximum(self) -> float:
        return max((band.maximum for band in self.bands.values()), default=-math.inf)

    @property
    def has_nan(self) -> bool:
        return any(band.has_nan for band in self.bands.values())

    @property
    def infinite(self) -> int:
        return sum(band.infinite for band in self.bands.values())

    @property
    def half_transparent(self) -> float:
        """The share of pixels that are neither transparent nor opaque."""
        return self.alpha_between / self.alpha_pixels if self.alpha_pixels else 0.0

    def values(self, at: int = 0) -> Array:
        """The valid values of one band in all patches, flat."""
        parts = [patch.values[at][patch.valid[at]] for patch in self.patches]
        return np.concatenate(parts) if parts else np.empty(0)


def look_up_blocks(dataset: Any, facts: RasterFacts, *, seconds: float = 10.0) -> BlockTable:
    """Look up blocks of a TIFF; an empty table for other formats. At most `_MAX_BLOCKS` are looked up. If none of these
    is stored, the search continues with the others, until a stored one is found or `seconds` have passed."""
    if facts.driver != "GTiff" or not facts.bands:
        return BlockTable()
    rows, columns = (
        math.ceil(size / block) for size, block in zip((facts.height, facts.width), facts.block_shape, strict=True)
    )
    planes = facts.count if (facts.interleave or "").upper() == "BAND" else 1
    total = planes * rows * columns
    looked_up = stored = beyond_end = last_row = 0
    deadline = time.monotonic() + seconds
    for number in _blocks_to_look_up(total):
        if looked_up >= _MAX_BLOCKS and (stored or time.monotonic() > deadline):
            break
        plane, index = divmod(number, rows * columns)
        row, column = divmod(index, columns)
        looked_up += 1
        offset = dataset.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", bidx=plane + 1)
        if offset:
            size = dataset.get_tag_item(f"BLOCK_SIZE_{column}_{row}", "TIFF", bidx=plane + 1)
            stored += 1
            last_row = max(last_row, row)
            beyond_end += bool(facts.size_bytes and int(offset) + int(size or 0) > facts.size_bytes)
    # GDAL shows a file of one strip as rows, of which only the first has an offset.
    if facts.block_shape == (1, facts.width) and rows > 1 and stored and last_row == 0:
        return BlockTable(planes, 0, beyond_end, is_one_strip=True)
    return BlockTable(looked_up, looked_up - stored, beyond_end, is_complete=looked_up >= total)


def take_sample(dataset: Any, facts: RasterFacts, *, every_pixel: bool = False, seconds: float = 10.0) -> Sample:
    """Read some windows, or all of a small file or on request. `seconds` limits a sample, but not a whole read."""
    sample = Sample(is_whole=every_pixel or facts.raw_bytes <= _SMALL_BYTES)
    windows = list(_all_windows(facts) if sample.is_whole else _lattice(facts))
    every = math.ceil(len(windows) / _MAX_PATCHES)
    marks = marks_of(dataset)
    deadline = time.monotonic() + seconds
    try:
        for number, window in enumerate(windows):
            _add_window(dataset, facts, marks, sample, window, keep=number % every == 0)
            # The first four are the corners, the last block among them.
            if not sample.is_whole and number >= 3 and time.monotonic() > deadline:
                break
        _add_corners(dataset, facts, sample)
        if sample.valid == 0 and not sample.is_whole:
            _look_for_data(dataset, facts, marks, sample, seconds=6 * seconds)
    except READ_ERRORS as error:
        if is_out_of_memory(error):
            raise MemoryError from error
        sample.problem = reason(error)
        sample.is_whole = False
    return sample


def _look_for_data(dataset: Any, facts: RasterFacts, marks: Rules, sample: Sample, *, seconds: float) -> None:
    """Read on until a window has a valid pixel. Nodata compresses well, so that this is fast for an empty file."""
    deadline = time.monotonic() + seconds
    for window in _all_windows(facts):
        if time.monotonic() > deadline:
            return
        _add_window(dataset, facts, marks, sample, window, keep=True)
        if sample.valid:
            return
        sample.patches.clear()
    sample.is_empty = True


def color_bands(facts: RasterFacts) -> list[int]:
    """Numbers of all bands but alpha."""
    return [number for number, band in enumerate(facts.bands, 1) if band.color != "alpha"]


def alpha_band(facts: RasterFacts) -> int | None:
    return next((number for number, band in enumerate(facts.bands, 1) if band.color == "alpha"), None)


def has_own_mask(facts: RasterFacts) -> bool:
    """Whether it has a mask apart from alpha, which GDAL also reports as a mask."""
    return bool(facts.bands) and "per_dataset" in facts.bands[0].mask and "alpha" not in facts.bands[0].mask


def _blocks_to_look_up(total: int) -> Iterator[int]:
    """The numbers of all blocks, in this order: the last one, others spread evenly, the rest."""
    spread = dict.fromkeys([total - 1, *range(0, total, math.ceil(total / _MAX_BLOCKS))])
    yield from spread
    yield from (number for number in range(total) if number not in spread)


def _all_windows(facts: RasterFacts) -> Iterator[Window]:
    rows, columns = _step(facts)
    for top in range(0, facts.height, rows):
        for left in range(0, facts.width, columns):
            yield Window(left, top, min(columns, facts.width - left), min(rows, facts.height - top))


def _step(facts: RasterFacts) -> tuple[int, int]:
    """Some megapixels of whole blocks, so that each is decompressed once."""
    rows, columns = facts.block_shape
    across = max(1, 2048 // columns)
    down = max(1, _CHUNK_BYTES // (rows * columns * across))
    return rows * down, columns * across


def _lattice(facts: RasterFacts) -> list[Window]:
    """Windows that are spread evenly over the raster, corners first."""
    width, height = min(_WINDOW, facts.width), min(_WINDOW, facts.height)
    left_offsets = _positions(facts.width - width)
    tops = _positions(facts.height - height)
    corners = [(top, left) for top in (tops[0], tops[-1]) for left in (left_offsets[0], left_offsets[-1])]
    others = [(top, left) for top in tops for left in left_offsets]
    return [Window(left, top, width, height) for top, left in dict.fromkeys(corners + others)]


def _positions(last: int) -> list[int]:
    return [last * step // (_LATTICE - 1) for step in range(_LATTICE)]


def _add_window(dataset: Any, facts: RasterFacts, marks: Rules, sample: Sample, window: Window, *, keep: bool) -> None:
    _add_alpha(dataset, marks, sample, window)
    for number, group in enumerate(_groups(facts, window, everything=sample.is_whole)):
        values = read_bands(dataset, window, group)
        valid = np.stack(
            [band_validity(dataset, band, values[at], marks, window=window) for at, band in enumerate(group)]
        )
        for at, band in enumerate(group):
            sample.bands.setdefault(band, BandRange()).add(values[at], valid[at])
        if keep and number == 0:
            sample.patches.append(_middle(values, valid))
    sample.pixels += int(window.width * window.height)


def _groups(facts: RasterFacts, window: Window, *, everything: bool) -> list[list[int]]:
    """Groups of bands that fit into memory together; in a sample only one, which includes the last band."""
    bands = color_bands(facts)
    group_size = max(1, int(2 * _CHUNK_BYTES // (window.width * window.height * facts.bands[0].bytes_per_pixel)))
    if len(bands) <= group_size:
        return [bands] if bands else []
    if not everything:
        return [[*bands[: group_size - 1], bands[-1]]]
    return [bands[start : start + group_size] for start in range(0, len(bands), group_size)]


def _add_alpha(dataset: Any, marks: Rules, sample: Sample, window: Window) -> None:
    if marks.alpha is None:
        return
    alpha = dataset.read(marks.alpha + 1, window=window)
    full = 255 if alpha.dtype == np.uint8 else alpha.max()
    sample.alpha_pixels += alpha.size
    sample.alpha_between += int(((alpha > 0) & (alpha < full)).sum())


def _middle(values: Array, valid: Mask) -> Patch:
    top, left = (max(0, (size - _PATCH) // 2) for size in values.shape[1:])
    part = np.s_[:8, top : top + _PATCH, left : left + _PATCH]
    finite = np.isfinite(values[part]) if values.dtype.kind == "f" else True
    return Patch(values[part].copy(), valid[part] & finite)


def _add_corners(dataset: Any, facts: RasterFacts, sample: Sample) -> None:
    width, height = min(_CORNER, facts.width), min(_CORNER, facts.height)
    bands = list(sample.bands)[:8]
    for top in (0, facts.height - height):
        for left in (0, facts.width - width):
            sample.corners.append(read_bands(dataset, Window(left, top, width, height), bands))
