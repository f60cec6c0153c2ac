"""Statistics of each band over any number of rasters, from overviews or exactly.

Rasters are read in chunks, so that memory is bounded. Each chunk gives a `Partial` per band, and partials are merged.
The result does not depend on their order or on how rasters are distributed to workers (mean and deviation may differ in
the last digits). Values are counted in bins whose width is a power of two and whose edges are multiples of it, so that
two histograms can always be converted to a common width without reading a pixel again.

    partials = [measure("a.tif"), measure("b.tif", window=(512, 0, 7680, 8192))]
    red, green, blue = summarize(combine(partials))

A `window` (column, row, width, height, in full-resolution pixels) is the part of a raster to count, so that the overlap
of tiles counts once. Values are as stored: scale and offset are not applied.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from dagmaster.errors import UnfitData
from dagmaster.raster.source.reading import open_raster, read_with_validity

PERCENTILES = (2, 25, 50, 75, 98)
BINS = 65_536  # one for every value of a 16-bit band
CHUNK_PIXELS = 4_194_304

Area: TypeAlias = tuple[int, int, int, int]  # column, row, width, height


@dataclass(frozen=True, slots=True)
class Histogram:
    """Buckets of equal width from `minimum` to `maximum`."""

    minimum: float
    maximum: float
    buckets: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {"count": len(self.buckets), "min": self.minimum, "max": self.maximum, "buckets": list(self.buckets)}


@dataclass(frozen=True, slots=True)
class BandStatistics:
    """Counts are of full-resolution pixels; if an overview is read, each of its pixels counts as those below it."""

    minimum: float
    maximum: float
    mean: float
    stddev: float
    valid_percent: float
    count: int
    percentiles: Mapping[int, float]
    histogram: Histogram

    def as_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        percentiles = {str(rank): value for rank, value in self.percentiles.items()}
        return {**numbers, "percentiles": percentiles, "histogram": self.histogram.as_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BandStatistics":
        histogram = document["histogram"]
        return cls(
            **{name: document[name] for name in _NUMBERS},
            percentiles={int(rank): value for rank, value in document["percentiles"].items()},
            histogram=Histogram(histogram["min"], histogram["max"], tuple(histogram["buckets"])),
        )


_NUMBERS = ("minimum", "maximum", "mean", "stddev", "valid_percent", "count")


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """Statistics of a part of one band. `counts[i]` is for [(first + i) · 2^scale, (first + i + 1) · 2^scale)."""

    total: int = 0
    count: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    scale: int = 0
    first: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    is_integer: bool = True

    def pack(self) -> dict[str, Any]:
        """As JSON, to pass it from one task to another."""
        packed = {name: getattr(self, name) for name in _PACKED}
        if not self.count:
            packed |= {"minimum": None, "maximum": None}
        return packed | {"counts": base64.b64encode(zlib.compress(self.counts.astype("<i8").tobytes())).decode()}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> "Partial":
        numbers = {name: packed[name] for name in _PACKED if packed[name] is not None}
        counts = np.frombuffer(zlib.decompress(base64.b64decode(packed["counts"])), dtype="<i8").astype(np.int64)
        return cls(**numbers, counts=counts)


_PACKED = ("total", "count", "minimum", "maximum", "mean", "squares", "scale", "first", "is_integer")

Partials: TypeAlias = tuple[Partial, ...]  # one per band


def band_statistics(
    parts: Iterable[tuple[str | PurePath, Area | Window | None]],
    *,
    exact: bool = False,
    overview_level: int = 2,
    buckets: int = 64,
) -> tuple[BandStatistics | None, ...]:
    """Statistics per band over (path, window) parts; None for a band without valid pixels.

    >>> from dagmaster.raster.analysis.statistics import band_statistics
    >>> [elevation] = band_statistics([("dem.tif", None)])              # doctest: +SKIP
    >>> elevation.percentiles[2], elevation.percentiles[98]             # doctest: +SKIP
    """
    partials = (measure(path, window, exact=exact, overview_level=overview_level) for path, window in parts)
    return summarize(combine(partials), buckets=buckets)


def measure(
    path: str | PurePath, window: Area | Window | None = None, *, exact: bool = False, overview_level: int = 2
) -> Partials:
    """A partial per band of one raster: from the requested overview, or the next finer one, or every pixel."""
    with open_raster(path) as dataset:
        area = _area(dataset, window)
        full = (dataset.height, dataset.width)
        level = None if exact else _overview(dataset, overview_level)
        if level is None:
            return _measured(dataset, area, weight=1)
    with open_raster(path, overview=level) as dataset:
        down, across = full[0] / dataset.height, full[1] / dataset.width
        return _measured(dataset, _shrunk(area, down, across), weight=round(down) * round(across))


def owned(windows: Sequence[Area]) -> list[Area]:
    """The part of each tile to count, in its own pixels, so that overlaps count once. `windows` are those of tiles in a
    grid.

    An overlap belongs to the first tile, from the west and from the north.

    >>> owned([(0, 0, 100, 50), (80, 0, 100, 50)])
    [(0, 0, 100, 50), (20, 0, 80, 50)]
    """
    columns = _shared({(column, width) for column, _, width, _ in windows})
    rows = _shared({(row, height) for _, row, _, height in windows})
    areas = []
    for column, row, width, height in windows:
        left, top = columns[column, width], rows[row, height]
        areas.append((left, top, width - left, height - top))
    return areas


def _shared(ranges: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The length of each range (start, length) that the ranges before it cover already."""
    shared, covered = {}, None
    for start, length in sorted(ranges):
        shared[start, length] = 0 if covered is None else min(max(covered - start, 0), length)
        covered = start + length if covered is None else max(covered, start + length)
    return shared


def combine(partials: Iterable[Partials]) -> Partials:
    """Partials of all rasters, as if they were one raster."""
    combined: Partials = ()
    for bands in partials:
        if combined and len(bands) != len(combined):
            message = f"rasters differ in their number of bands: {len(combined)} and {len(bands)}"
            raise UnfitData(message, code="raster.bands-differ")
        combined = tuple(map(merge, combined, bands)) if combined else bands
    return combined


def merge(one: Partial, other: Partial) -> Partial:
    """Chan's method for the moments; counts are converted to a common bin width."""
    if not one.count or not other.count:
        not_empty = one if one.count else other
        return replace(not_empty, total=one.total + other.total, is_integer=one.is_integer and other.is_integer)
    count = one.count + other.count
    distance = other.mean - one.mean
    minimum, maximum = min(one.minimum, other.minimum), max(one.maximum, other.maximum)
    is_integer = one.is_integer and other.is_integer
    scale = max(_scale(minimum, maximum, is_integer), one.scale, other.scale)
    first, counts = _added(_coarsened(one, scale), _coarsened(other, scale))
    return Partial(
        total=one.total + other.total,
        count=count,
        minimum=minimum,
        maximum=maximum,
        mean=one.mean + distance * other.count / count,
        squares=one.squares + other.squares + distance * distance * one.count * other.count / count,
        scale=scale,
        first=first,
        counts=counts,
        is_integer=is_integer,
    )


def summarize(partials: Partials, *, buckets: int = 64) -> tuple[BandStatistics | None, ...]:
    return tuple(_summary(partial, buckets) if partial.count else None for partial in partials)


def _summary(partial: Partial, buckets: int) -> BandStatistics:
    return BandStatistics(
        minimum=partial.minimum,
        maximum=partial.maximum,
        mean=min(max(partial.mean, partial.minimum), partial.maximum),
        stddev=math.sqrt(partial.squares / partial.count),
        valid_percent=100 * partial.count / partial.total,
        count=partial.count,
        percentiles={rank: _percentile(partial, rank) for rank in PERCENTILES},
        histogram=_histogram(partial, buckets),
    )


def _percentile(partial: Partial, rank: float) -> float:
    """By linear interpolation between the two nearest values, as in numpy: exact if each value has its own bin."""
    position = rank / 100 * (partial.count - 1)
    below = _in_order(partial, math.floor(position))
    above = _in_order(partial, math.ceil(position))
    return below + (above - below) * (position - math.floor(position))


def _in_order(partial: Partial, place: int) -> float:
    """The value at this position of all values in order; values in a bin are assumed to be spread evenly."""
    cumulative = np.cumsum(partial.counts)
    bin_ = int(np.searchsorted(cumulative, place, side="right"))
    left = math.ldexp(partial.first + bin_, partial.scale)
    if _has_bin_per_value(partial):
        return left
    inside = (place - int(cumulative[bin_]) + int(partial.counts[bin_]) + 0.5) / int(partial.counts[bin_])
    value = left + inside * math.ldexp(1, partial.scale)
    return min(max(value, partial.minimum), partial.maximum)


def _histogram(partial: Partial, buckets: int) -> Histogram:
    if partial.minimum == partial.maximum:
        return Histogram(partial.minimum - 0.5, partial.maximum + 0.5, (0, partial.count, 0))
    number = _number_of_buckets(partial, buckets)
    middle = 0.0 if _has_bin_per_value(partial) else 0.5
    values = np.ldexp(partial.first + np.arange(len(partial.counts)) + middle, partial.scale)
    places = np.floor((values - partial.minimum) / (partial.maximum - partial.minimum) * number).astype(np.int64)
    filled = np.zeros(number, dtype=np.int64)
    np.add.at(filled, places.clip(0, number - 1), partial.counts)
    return Histogram(partial.minimum, partial.maximum, tuple(filled.tolist()))


def _number_of_buckets(partial: Partial, requested: int) -> int:
    """At most one per integer, or some would be empty; at least three, as STAC requires."""
    distinct = int(partial.maximum - partial.minimum) + 1 if _has_bin_per_value(partial) else requested
    return max(3, min(requested, distinct))


def _has_bin_per_value(partial: Partial) -> bool:
    return partial.is_integer and partial.scale == 0


def _measured(dataset: Any, area: Area, *, weight: int) -> Partials:
    partials = [Partial(is_integer=np.dtype(dtype).kind in "iu") for dtype in dataset.dtypes]
    for chunk in _chunks(dataset, area):  # bands within chunks: interleaved blocks are decoded once
        for place, band in enumerate(dataset.indexes):
            values, valid = read_with_validity(dataset, band, chunk)
            partials[place] = merge(partials[place], partial_of(values[valid], total=valid.size, weight=weight))
    return tuple(partials)


def partial_of(values: NDArray[Any], *, total: int | None = None, weight: int = 1) -> Partial:
    """The partial of valid values; `total` is the number of pixels read, `weight` the number that each counts for."""
    total = weight * (values.size if total is None else total)
    is_integer = values.dtype.kind in "iu"
    if not values.size:
        return Partial(total=total, is_integer=is_integer)
    minimum, maximum = float(values.min()), float(values.max())
    scale = _scale(minimum, maximum, is_integer)
    first, counts = _counted(values, minimum, scale, is_integer)
    if is_integer and scale == 0:
        mean, squares = _moments_of_counts(first, counts)
    else:
        mean, squares = _moments(values)
    return Partial(
        total=total,
        count=weight * values.size,
        minimum=minimum,
        maximum=maximum,
        mean=mean,
        squares=weight * squares,
        scale=scale,
        first=first,
        counts=weight * counts,
        is_integer=is_integer,
    )


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    wide = values.astype(np.float64)
    mean = float(wide.mean())
    wide -= mean
    return mean, float(np.dot(wide, wide))


def _moments_of_counts(first: int, counts: NDArray[np.int64]) -> tuple[float, float]:
    offsets = np.arange(len(counts), dtype=np.float64)
    mean = float(np.dot(offsets, counts)) / int(counts.sum())
    return first + mean, float(np.dot((offsets - mean) ** 2, counts))


def _counted(values: NDArray[Any], minimum: float, scale: int, is_integer: bool) -> tuple[int, NDArray[np.int64]]:
    first = math.floor(math.ldexp(minimum, -scale))
    if is_integer and scale == 0:
        places = values.astype(np.int64) - first
    else:
        wide = values.astype(np.float64)
        wide *= math.ldexp(1, -scale)  # a power of two: exact
        places = np.floor(wide, out=wide).astype(np.int64) - first
    return first, np.bincount(places).astype(np.int64)


def _scale(minimum: float, maximum: float, is_integer: bool) -> int:
    """The finest allowed bins. It depends on the range alone, so that the order of merging does not matter."""
    # Bins finer than the precision of the values would be empty, and their numbers would not fit an integer.
    size = math.frexp(max(abs(minimum), abs(maximum)))[1]
    finest = max(size - 52, 0) if is_integer else max(size - 40, -900)
    span = maximum - minimum
    guess = math.frexp(span / BINS)[1] - 1 if span else finest
    scale = max(finest, guess)
    while math.floor(math.ldexp(maximum, -scale)) - math.floor(math.ldexp(minimum, -scale)) >= BINS:
        scale += 1
    return scale


def _coarsened(partial: Partial, scale: int) -> tuple[int, NDArray[np.int64]]:
    shift = min(scale - partial.scale, 62)  # then only the sign is left
    if not shift:
        return partial.first, partial.counts
    first = partial.first >> shift
    places = ((partial.first + np.arange(len(partial.counts), dtype=np.int64)) >> shift) - first
    summed = np.zeros(int(places[-1]) + 1, dtype=np.int64)
    np.add.at(summed, places, partial.counts)
    return first, summed


def _added(one: tuple[int, NDArray[np.int64]], other: tuple[int, NDArray[np.int64]]) -> tuple[int, NDArray[np.int64]]:
    first = min(one[0], other[0])
    counts = np.zeros(max(start + len(counts) for start, counts in (one, other)) - first, dtype=np.int64)
    for start, some in (one, other):
        counts[start - first : start - first + len(some)] += some
    return first, counts


def _area(dataset: Any, window: Area | Window | None) -> Area:
    """The window, or the whole raster; clipped to the raster."""
    if window is None:
        return (0, 0, dataset.width, dataset.height)
    column, row, width, height = (
        round(number) for number in (window.flatten() if isinstance(window, Window) else window)
    )
    left, top = max(column, 0), max(row, 0)
    right, bottom = min(column + width, dataset.width), min(row + height, dataset.height)
    return (left, top, max(right - left, 0), max(bottom - top, 0))


def _overview(dataset: Any, requested: int) -> int | None:
    """The coarsest overview up to the requested level: small rasters have fewer."""
    count = len(dataset.overviews(1))
    return min(requested, count - 1) if count and requested >= 0 else None


def _shrunk(area: Area, down: float, across: float) -> Area:
    """The overview's pixels whose centres are in the area, so that areas with a common edge share no pixel."""
    column, row, width, height = area
    left, right = math.ceil(column / across - 0.5), math.ceil((column + width) / across - 0.5)
    top, bottom = math.ceil(row / down - 0.5), math.ceil((row + height) / down - 0.5)
    return (left, top, right - left, bottom - top)


def _chunks(dataset: Any, area: Area) -> Iterator[Window]:
    """The area in windows of whole blocks that fit into memory."""
    column, row, width, height = area
    block_rows, block_columns = dataset.block_shapes[0]
    wide = block_columns * max(1, math.isqrt(CHUNK_PIXELS) // block_columns)
    high = block_rows * max(1, CHUNK_PIXELS // wide // block_rows)
    for top in range(row // high * high, row + height, high):
        for left in range(column // wide * wide, column + width, wide):
            first_row, first_column = max(top, row), max(left, column)
            last_row, last_column = min(top + high, row + height), min(left + wide, column + width)
            yield Window(first_column, first_row, last_column - first_column, last_row - first_row)
