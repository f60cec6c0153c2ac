"""Statistics of each band over any number of rasters: exact, or from overviews on request.

Each block of a COG that is written (`Tally`) and each chunk of a raster that is read (`measure`) gives a `Partial` per
band; partials are merged, so that memory is bounded. The result does not depend on their order or on how rasters are
distributed to workers (mean and deviation may differ in the last digits). Values are counted in bins whose width is a
power of two and whose edges are multiples of it, so that two histograms can always be converted to a common width
without reading a pixel again.

    partials = [measure("a.tif"), measure("b.tif", window=(512, 0, 7680, 8192))]
    red, green, blue = summarize(combine(partials))

A `window` (column, row, width, height, in full-resolution pixels) is the part of a raster to count, so that the overlap
of tiles counts once. Values are as stored: scale and offset are not applied. Only finite values count; infinity is
data, but has no mean, and is counted in `infinite`.

Exact: count, minimum, maximum, valid percent, and mean and deviation to the precision of 64-bit floats. Percentiles are
exact if every integer between minimum and maximum has a bin (a range of 65,536 values), otherwise they are accurate to
the width of a bin, which is `percentile_error` and at most 1/32,768 of the range, unless the range is tiny compared
with the values. In the histogram, values closer than that to an edge between two buckets may be counted in the other
one.
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
from dagmaster.raster.source.pixels import Block, Rules
from dagmaster.raster.source.reading import marks_of, open_raster, read_with_validity

PERCENTILES = (2, 25, 50, 75, 98)
BINS = 65_536  # one for every value of a 16-bit band
CHUNK_PIXELS = 4_194_304
_MAX_HALF_DISTANCE = 2.0**1022  # twice this value is surely within the range of a float
_SAFE_EXPONENT = 300  # binary exponent; squares of larger numbers, and sums of such squares, may exceed a float

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
    """Counts are of full-resolution pixels; a pixel of an overview counts as many times as it has pixels below it.

    `infinite` is the number of infinite values, which are valid but not in `count`. `percentile_error` is None if the
    statistics are approximate.
    """

    minimum: float
    maximum: float
    mean: float
    stddev: float
    valid_percent: float
    count: int
    percentiles: Mapping[int, float]
    histogram: Histogram
    infinite: int = 0
    approximate: bool = False
    percentile_error: float | None = None
    before_compression: bool = False  # values are those before lossy compression, which changes them a little

    def as_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        percentiles = {str(rank): value for rank, value in self.percentiles.items()}
        return {**numbers, "percentiles": percentiles, "histogram": self.histogram.as_json()}


_NUMBERS = (
    *("minimum", "maximum", "mean", "stddev", "valid_percent", "count"),
    *("infinite", "approximate", "percentile_error", "before_compression"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """Statistics of a part of one band. `counts[i]` is for [(first + i) · 2^scale, (first + i + 1) · 2^scale)."""

    total: int = 0
    count: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    offset: float = 0.0  # the mean; for integers minus the minimum: a float cannot hold every 64-bit integer
    deviation: float = 0.0  # the standard deviation; its square may exceed a float
    scale: int = 0
    first: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    is_integer: bool = True
    infinite: int = 0  # valid, but not counted
    approximate: bool = False
    before_compression: bool = False

    @property
    def mean(self) -> float:
        return self.minimum + self.offset if self.is_integer and self.count else self.offset

    def pack(self) -> dict[str, Any]:
        """As JSON, to pass it from one task to another."""
        packed = {name: getattr(self, name) for name in _PACKED} | {"mean": self.mean}
        if not self.count:
            packed |= {"minimum": None, "maximum": None}
        squares = self.deviation * self.deviation * self.count
        packed["squares"] = squares if math.isfinite(squares) else None  # for workers of earlier releases
        return packed | {"counts": base64.b64encode(zlib.compress(self.counts.astype("<i8").tobytes())).decode()}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> "Partial":
        numbers = {name: packed[name] for name in _PACKED if packed.get(name) is not None}
        if "deviation" not in numbers and numbers["count"]:  # from a worker of an earlier release
            numbers["deviation"] = math.sqrt(packed["squares"] / numbers["count"])
            numbers["offset"] = packed["mean"] - (packed["minimum"] if packed["is_integer"] else 0)
        counts = np.frombuffer(zlib.decompress(base64.b64decode(packed["counts"])), dtype="<i8").astype(np.int64)
        return cls(**numbers, counts=counts)


_PACKED = (
    *("total", "count", "minimum", "maximum", "offset", "deviation", "scale", "first"),
    *("is_integer", "infinite", "approximate", "before_compression"),
)

Partials: TypeAlias = tuple[Partial, ...]  # one per band


def band_statistics(
    parts: Iterable[tuple[str | PurePath, Area | Window | None]],
    *,
    exact: bool = False,
    overview_level: int | None = None,
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
    path: str | PurePath, window: Area | Window | None = None, *, exact: bool = False, overview_level: int | None = None
) -> Partials:
    """A partial per band of one raster, from every pixel. With an `overview_level` (0 is the finest overview) they are
    approximate, from that overview or the coarsest one if there are fewer, unless `exact` is requested."""
    with open_raster(path) as dataset:
        area = _area(dataset, window)
        full = (dataset.height, dataset.width)
        level = None if exact or overview_level is None else _overview(dataset, overview_level)
        if level is None:
            return _measured(dataset, area, weight=1)
    with open_raster(path, overview=level) as dataset:
        down, across = full[0] / dataset.height, full[1] / dataset.width
        partials = _measured(dataset, _shrunk(area, down, across), weight=round(down) * round(across))
        return tuple(replace(partial, approximate=True) for partial in partials)


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
    shared: dict[str, Any] = {
        "total": one.total + other.total,
        "is_integer": one.is_integer and other.is_integer,
        "infinite": one.infinite + other.infinite,
        "approximate": one.approximate or other.approximate,
        "before_compression": one.before_compression or other.before_compression,
    }
    if not one.count or not other.count:
        counted = one if one.count else other
        return replace(counted, **shared | {"is_integer": counted.is_integer})
    count = one.count + other.count
    minimum, maximum = min(one.minimum, other.minimum), max(one.maximum, other.maximum)
    scale = max(_scale(minimum, maximum, shared["is_integer"]), one.scale, other.scale)
    first, counts = _added(_coarsened(one, scale), _coarsened(other, scale))
    offset, deviation = _merged_moments(one, other, minimum if shared["is_integer"] else 0)
    return Partial(
        count=count,
        minimum=minimum,
        maximum=maximum,
        offset=offset,
        deviation=deviation,
        scale=scale,
        first=first,
        counts=counts,
        **shared,
    )


def _merged_moments(one: Partial, other: Partial, reference: float) -> tuple[float, float]:
    """Mean, as an offset from the reference, and deviation. `hypot` adds squares that no float can hold."""
    share, other_share = one.count / (one.count + other.count), other.count / (one.count + other.count)
    offset, other_offset = (
        (each.minimum - reference) + each.offset if each.is_integer else each.offset - reference
        for each in (one, other)
    )
    half = other_offset / 2 - offset / 2  # their distance may exceed a float
    mean = (
        offset + 2 * half * other_share
        if abs(half) < _MAX_HALF_DISTANCE
        else offset * share + other_offset * other_share
    )
    between = 2 * math.sqrt(share * other_share) * half
    return mean, math.hypot(math.sqrt(share) * one.deviation, math.sqrt(other_share) * other.deviation, between)


def summarize(partials: Partials, *, buckets: int = 64) -> tuple[BandStatistics | None, ...]:
    return tuple(_summary(partial, buckets) if partial.count else None for partial in partials)


def _summary(partial: Partial, buckets: int) -> BandStatistics:
    return BandStatistics(
        minimum=partial.minimum,
        maximum=partial.maximum,
        mean=min(max(partial.mean, partial.minimum), partial.maximum),
        stddev=partial.deviation,
        valid_percent=100 * partial.count / partial.total,
        count=partial.count,
        percentiles={rank: _percentile(partial, rank) for rank in PERCENTILES},
        histogram=_histogram(partial, buckets),
        infinite=partial.infinite,
        approximate=partial.approximate,
        percentile_error=None if partial.approximate else _percentile_error(partial),
        before_compression=partial.before_compression,
    )


def _percentile_error(partial: Partial) -> float:
    if _has_bin_per_value(partial) or partial.minimum == partial.maximum:
        return 0.0
    return math.ldexp(1, partial.scale)


def _percentile(partial: Partial, rank: float) -> float:
    """By linear interpolation between the two nearest values, as in numpy: exact if each value has its own bin."""
    position = rank / 100 * (partial.count - 1)
    below = _value_at(partial, math.floor(position))
    above = _value_at(partial, math.ceil(position))
    share = position - math.floor(position)
    value = below if below == above else below * (1 - share) + above * share
    return min(max(value, partial.minimum), partial.maximum)


def _value_at(partial: Partial, position: int) -> float:
    """The value at this position if all values are sorted; values in a bin are assumed to be spread evenly."""
    cumulative = np.cumsum(partial.counts)
    bin_ = int(np.searchsorted(cumulative, position, side="right"))
    left = math.ldexp(partial.first + bin_, partial.scale)
    if _has_bin_per_value(partial):
        return left
    fraction = (position - int(cumulative[bin_]) + int(partial.counts[bin_]) + 0.5) / int(partial.counts[bin_])
    value = left + fraction * math.ldexp(1, partial.scale)
    return min(max(value, partial.minimum), partial.maximum)


def _histogram(partial: Partial, buckets: int) -> Histogram:
    if partial.minimum == partial.maximum:
        return Histogram(partial.minimum - 0.5, partial.maximum + 0.5, (0, partial.count, 0))
    number = _number_of_buckets(partial, buckets)
    middle = 0.0 if _has_bin_per_value(partial) else 0.5
    # In widths of a bin: the edges of the outermost bins may exceed a float.
    low, high = math.ldexp(partial.minimum, -partial.scale), math.ldexp(partial.maximum, -partial.scale)
    values = partial.first + np.arange(len(partial.counts)) + middle
    places = np.floor((values - low) / (high - low) * number).astype(np.int64)
    filled = np.bincount(places.clip(0, number - 1), weights=partial.counts, minlength=number)
    return Histogram(partial.minimum, partial.maximum, tuple(filled.astype(np.int64).tolist()))


def _number_of_buckets(partial: Partial, requested: int) -> int:
    """At most one per integer, or some would be empty; at least three, as STAC requires."""
    distinct = int(partial.maximum - partial.minimum) + 1 if _has_bin_per_value(partial) else requested
    return max(3, min(requested, distinct))


def _has_bin_per_value(partial: Partial) -> bool:
    return partial.is_integer and partial.scale == 0


def _measured(dataset: Any, area: Area, *, weight: int) -> Partials:
    partials = [Partial(is_integer=np.dtype(dtype).kind in "iu") for dtype in dataset.dtypes]
    marks = marks_of(dataset)
    for chunk in chunks_of(dataset, area):  # bands within chunks: interleaved blocks are decoded once
        for place, band in enumerate(dataset.indexes):
            values, valid = read_with_validity(dataset, band, chunk, marks=marks)
            partial = partial_of(values[valid], total=valid.size, weight=weight, scale=_scale_of(partials[place]))
            partials[place] = merge(partials[place], partial)
    return tuple(partials)


class Tally:
    """Exact statistics of a raster from its blocks, while it is written. `bands` are the indices of those to count.

    `own` (width, height) is the part, from the first column and row, that no following tile of the mosaic covers.
    """

    def __init__(
        self,
        bands: Sequence[int],
        dtype: str,
        rules: Rules,
        own: tuple[int, int] | None = None,
        *,
        before_compression: bool = False,
    ) -> None:
        empty = Partial(is_integer=np.dtype(dtype).kind in "iu", before_compression=before_compression)
        self._bands, self._rules, self._limits = bands, rules, own
        self._own, self._covered = [empty for _ in bands], [empty for _ in bands]

    def add(self, column: int, row: int, block: Block) -> None:
        """Add the block at this position. Blocks without valid pixels are not added."""
        height, width = block.values.shape[1:]
        own_width, own_height = self._limits or (column + width, row + height)
        right, bottom = (
            min(max(end, 0), size) for end, size in ((own_width - column, width), (own_height - row, height))
        )
        for place, band in enumerate(self._bands):
            valid = self._rules.valid_in_band(block, band)
            for target, area in (
                (self._own, np.s_[:bottom, :right]),
                (self._covered, np.s_[:bottom, right:]),
                (self._covered, np.s_[bottom:, :]),
            ):
                values = block.values[band][area]
                values = values.ravel() if valid is None else values[valid[area]]
                if values.size:
                    target[place] = merge(target[place], partial_of(values, scale=_scale_of(target[place])))

    def whole(self, width: int, height: int) -> Partials:
        """Statistics of the whole raster, which has this size."""
        return tuple(
            self._completed(band, merge(own, covered), width * height)
            for band, own, covered in zip(self._bands, self._own, self._covered, strict=True)
        )

    def own(self, width: int, height: int) -> Partials:
        """Statistics of the part that no following tile covers."""
        own_width, own_height = self._limits or (width, height)
        pixels = min(own_width, width) * min(own_height, height)
        return tuple(self._completed(band, own, pixels) for band, own in zip(self._bands, self._own, strict=True))

    def _completed(self, band: int, partial: Partial, total: int) -> Partial:
        """Count the pixels of blocks that were not added. Alpha has a value there too: 0, transparent."""
        missing = total - partial.count - partial.infinite
        if band == self._rules.alpha and missing:
            transparent = np.zeros(1, np.uint8 if partial.is_integer else np.float32)
            partial = merge(partial, partial_of(transparent, weight=missing))
        return replace(partial, total=total)


def partial_of(values: NDArray[Any], *, total: int | None = None, weight: int = 1, scale: int | None = None) -> Partial:
    """The partial of valid values, which are flat; `total` is the number of pixels read, `weight` the number that each
    counts for. `scale` is that of a partial it is merged with: finer bins are not needed."""
    total = weight * (values.size if total is None else total)
    is_integer = values.dtype.kind in "iu"
    if not values.size:
        return Partial(total=total, is_integer=is_integer)
    minimum, maximum = values.min().item(), values.max().item()
    if not (math.isfinite(minimum) and math.isfinite(maximum)):
        infinite = weight * int(np.isinf(values).sum())
        partial = partial_of(values[np.isfinite(values)], total=0, weight=weight, scale=scale)
        return replace(partial, total=total, infinite=infinite)
    finest = _scale(minimum, maximum, is_integer)
    scale = finest if scale is None else max(scale, finest)
    first, counts = _counted(values, minimum, scale)
    offset, deviation = (
        _moments_of_counts(first - minimum, counts) if is_integer and not scale else _moments(values, minimum, maximum)
    )
    return Partial(
        total=total,
        count=weight * values.size,
        minimum=minimum,
        maximum=maximum,
        offset=offset,
        deviation=deviation,
        scale=scale,
        first=first,
        counts=weight * counts,
        is_integer=is_integer,
    )


def _scale_of(partial: Partial) -> int | None:
    return partial.scale if partial.count else None


def _moments(values: NDArray[Any], minimum: float, maximum: float) -> tuple[float, float]:
    """Mean (of integers: above the minimum) and deviation. Values are shifted or scaled first, so that neither sums nor
    squares exceed a float."""
    if values.dtype.kind in "iu":
        low = values.dtype.type(minimum)
        with np.errstate(over="ignore"):  # the difference of signed integers wraps, and is correct as an unsigned one
            wide = (values - low).view(f"u{values.dtype.itemsize}").astype(np.float64)
        return _mean_and_deviation(wide)
    wide = values.astype(np.float64)
    size = math.frexp(max(abs(minimum), abs(maximum)))[1]
    if abs(size) <= _SAFE_EXPONENT:
        return _mean_and_deviation(wide)
    size = min(max(size, -1000), 1000)
    wide *= math.ldexp(1, -size)
    mean, deviation = _mean_and_deviation(wide)
    return math.ldexp(mean, size), math.ldexp(deviation, size)


def _mean_and_deviation(wide: NDArray[np.float64]) -> tuple[float, float]:
    mean = float(wide.mean())
    wide -= mean
    np.square(wide, out=wide)  # not `dot`, for which BLAS starts threads that take longer than the work
    return mean, math.sqrt(float(wide.mean()))


def _moments_of_counts(first: float, counts: NDArray[np.int64]) -> tuple[float, float]:
    offsets = np.arange(len(counts), dtype=np.float64)
    number = int(counts.sum())
    mean = float((offsets * counts).sum()) / number
    return first + mean, math.sqrt(float(((offsets - mean) ** 2 * counts).sum()) / number)


def _counted(values: NDArray[Any], minimum: float, scale: int) -> tuple[int, NDArray[np.int64]]:
    kind, bytes_ = values.dtype.kind, values.dtype.itemsize
    if kind in "iu":
        first = int(minimum) >> scale
        if kind == "u" and bytes_ <= 2 and not scale:
            return first, (_counted_in_pairs(values) if bytes_ == 1 else np.bincount(values))[first:]
        return first, np.bincount((values >> scale).astype(np.int64) - first)
    first = math.floor(math.ldexp(minimum, -scale))
    # A power of two: exact, also in 32 bits.
    narrow = bytes_ == 4 and abs(scale) < 100
    wide = values * np.float32(math.ldexp(1, -scale)) if narrow else values.astype(np.float64) * math.ldexp(1, -scale)
    np.floor(wide, out=wide)
    wide -= first
    return first, np.bincount(wide.astype(np.int64))


def _counted_in_pairs(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count two neighbouring values at a time, which takes half as long."""
    even = values.size // 2 * 2
    pairs = np.bincount(values[:even].view(np.uint16), minlength=65_536).reshape(256, 256)
    counts: NDArray[np.int64] = pairs.sum(axis=0) + pairs.sum(axis=1)
    counts[values[even:]] += 1
    return counts[: int(values.max()) + 1]


def _scale(minimum: float, maximum: float, is_integer: bool) -> int:
    """The finest allowed bins. It depends on the range alone, so that the order of merging does not matter."""
    # Bins finer than the precision of the values would be empty, and their numbers would not fit an integer.
    size = math.frexp(max(abs(minimum), abs(maximum)))[1]
    finest = max(size - 52, 0) if is_integer else max(size - 40, -900)
    half_span = maximum / 2 - minimum / 2
    guess = math.frexp(half_span / BINS)[1] if half_span else finest
    scale = max(finest, guess)
    while math.floor(math.ldexp(maximum, -scale)) - math.floor(math.ldexp(minimum, -scale)) >= BINS:
        scale += 1
    return scale


def _coarsened(partial: Partial, scale: int) -> tuple[int, NDArray[np.int64]]:
    shift = min(scale - partial.scale, 62)  # a larger shift has the same result: only the sign is left
    if not shift:
        return partial.first, partial.counts
    first = partial.first >> shift
    places = ((partial.first + np.arange(len(partial.counts), dtype=np.int64)) >> shift) - first
    return first, np.bincount(places, weights=partial.counts).astype(np.int64)


def _added(one: tuple[int, NDArray[np.int64]], other: tuple[int, NDArray[np.int64]]) -> tuple[int, NDArray[np.int64]]:
    first = min(one[0], other[0])
    counts = np.zeros(max(start + len(counts) for start, counts in (one, other)) - first, dtype=np.int64)
    for start, part in (one, other):
        counts[start - first : start - first + len(part)] += part
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


def chunks_of(dataset: Any, area: Area) -> Iterator[Window]:
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
