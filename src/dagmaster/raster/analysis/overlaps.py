"""Statistics of a mosaic whose COGs overlap: each of its pixels counts once, in the COG that is served there.

That is, for each band, the first COG in the order of the mosaic that has a valid pixel there. A COG that shares valid
pixels with earlier ones is read once more. If too many values would be read again, or if pixels of different sizes
overlap, the result is marked as approximate.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio.windows import Window
from shapely.geometry import box, shape

from dagmaster.raster.analysis.mosaic import MosaicAsset
from dagmaster.raster.analysis.statistics import Partial, Partials, chunks_of, combine, merge, partial_of
from dagmaster.raster.source.reading import data_bands, is_alpha, open_raster, read_with_validity

MAX_VALUES = 2**31  # the number of values that may be read again


@dataclass(frozen=True, slots=True)
class CountedCog:
    """A COG of a mosaic, the statistics of all its pixels, and the paths of the COGs above it."""

    path: str
    partials: Partials
    above: Sequence[str] = ()


def covering(assets: Iterable[MosaicAsset]) -> dict[str, list[str]]:
    """The COGs above each one, by name: those earlier in the order of the mosaic whose outline overlaps its own."""
    assets = sorted(assets, key=lambda asset: asset.name)
    outlines = [shape(asset.geometry) for asset in assets]
    tree = shapely.STRtree(outlines)
    above = {}
    for place, (asset, outline) in enumerate(zip(assets, outlines, strict=True)):
        earlier = sorted(int(other) for other in tree.query(outline, "intersects") if other < place)
        above[asset.name] = [assets[other].name for other in earlier if not outline.touches(outlines[other])]
    return above


def count_once(cogs: Iterable[CountedCog], *, max_values: int = MAX_VALUES) -> Partials:
    """Statistics of the mosaic of these COGs."""
    return combine(_each_visible(cogs, max_values))


def _each_visible(cogs: Iterable[CountedCog], max_values: int) -> Iterator[Partials]:
    for cog in cogs:
        partials, read = _visible(cog, max_values) if cog.above else (cog.partials, 0)
        max_values -= read
        yield partials


def _visible(cog: CountedCog, max_values: int) -> tuple[Partials, int]:
    """Statistics of the pixels that the COGs above leave visible, and how many values were read for them."""
    with ExitStack() as stack:
        dataset, *uppers = (stack.enter_context(open_raster(path)) for path in (cog.path, *cog.above))
        whole = Window(0, 0, dataset.width, dataset.height)
        overlaps = [overlap for upper in uppers if (overlap := _overlap(dataset, upper, whole))]
        if not any(_shares_valid_pixels(dataset, overlap) for overlap in overlaps):
            squares = [box(part.col_off, part.row_off, *_ends(part)) for part in (each.window for each in overlaps)]
            shared = round(shapely.union_all(squares).area)
            return tuple(replace(partial, total=partial.total - shared) for partial in cog.partials), 0
        values = dataset.width * dataset.height * dataset.count
        if values > max_values:
            return tuple(replace(partial, approximate=True) for partial in cog.partials), 0
        partials = [_visible_in_band(dataset, band, uppers) for band in dataset.indexes]
        is_exact = all(_is_aligned(dataset, upper) for upper in uppers)
        return tuple(
            replace(
                partial,
                # A pixel that is transparent in several COGs is counted in each of them.
                approximate=partial.approximate or not is_exact or is_alpha(dataset, band),
                before_compression=stored.before_compression,
            )
            for band, partial, stored in zip(dataset.indexes, partials, cog.partials, strict=True)
        ), values


def _visible_in_band(dataset: Any, band: int, uppers: Sequence[Any]) -> Partial:
    result = Partial(is_integer=np.dtype(dataset.dtypes[band - 1]).kind in "iu")
    for chunk in chunks_of(dataset, (0, 0, dataset.width, dataset.height)):
        values, visible = read_with_validity(dataset, band, chunk)
        is_first = np.ones(visible.shape, np.bool_)
        for upper in uppers:
            if overlap := _overlap(dataset, upper, chunk):
                visible[overlap.within(chunk)] &= ~overlap.valid(1 if is_alpha(dataset, band) else band)
                is_first[overlap.within(chunk)] = False
        scale = result.scale if result.count else None
        result = merge(result, partial_of(values[visible], total=int(is_first.sum()), scale=scale))
    return result


@dataclass(frozen=True, slots=True)
class _Overlap:
    """The window of a COG whose pixel centres are inside an upper COG, and the columns and rows of the upper one."""

    window: Window
    upper: Any
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]

    def within(self, chunk: Window) -> tuple[slice, slice]:
        top, left = self.window.row_off - chunk.row_off, self.window.col_off - chunk.col_off
        return slice(top, top + self.window.height), slice(left, left + self.window.width)

    def valid(self, band: int) -> NDArray[np.bool_]:
        left, top = int(self.columns[0]), int(self.rows[0])
        area = Window(left, top, int(self.columns[-1]) - left + 1, int(self.rows[-1]) - top + 1)
        _, valid = read_with_validity(self.upper, band, area)
        result: NDArray[np.bool_] = valid[np.ix_(self.rows - top, self.columns - left)]
        return result


def _overlap(dataset: Any, upper: Any, window: Window) -> _Overlap | None:
    """Where an upper COG covers the window; None if it does not. All COGs have the same CRS, and north is up."""
    to_map, to_upper = dataset.transform, ~upper.transform
    columns = window.col_off + np.arange(window.width)
    rows = window.row_off + np.arange(window.height)
    upper_columns = np.floor(to_upper.a * (to_map.a * (columns + 0.5) + to_map.c) + to_upper.c).astype(np.int64)
    upper_rows = np.floor(to_upper.e * (to_map.e * (rows + 0.5) + to_map.f) + to_upper.f).astype(np.int64)
    across, down = (
        (upper_columns >= 0) & (upper_columns < upper.width),
        (upper_rows >= 0) & (upper_rows < upper.height),
    )
    if not across.any() or not down.any():
        return None
    part = Window(int(columns[across][0]), int(rows[down][0]), int(across.sum()), int(down.sum()))
    return _Overlap(part, upper, upper_columns[across], upper_rows[down])


def _shares_valid_pixels(dataset: Any, overlap: _Overlap) -> bool:
    part = overlap.window
    for chunk in chunks_of(dataset, (part.col_off, part.row_off, part.width, part.height)):
        if shared := _overlap(dataset, overlap.upper, chunk):
            for band in data_bands(dataset):
                _, valid = read_with_validity(dataset, band, shared.window)
                if (valid & shared.valid(band)).any():
                    return True
    return False


def _is_aligned(dataset: Any, upper: Any) -> bool:
    """Whether the pixels of both coincide."""
    steps = ~upper.transform @ dataset.transform
    is_same_size = max(abs(steps.a - 1), abs(steps.e - 1)) < 1e-6
    return bool(is_same_size and max(abs(offset - round(offset)) for offset in (steps.c, steps.f)) < 0.01)


def _ends(window: Window) -> tuple[int, int]:
    return window.col_off + window.width, window.row_off + window.height
