"""CombinedRaster files as one raster: bands upon each other, or neighbours side by side.

Nothing is copied beforehand: what is asked for is read from the files, window by window, straight into the COG. They must go
together as they are, and what does not is told: one CRS, one grid of pixels, one type, one nodata value.

    stacked   all bands of all files, in their order, where every file covers the same pixels
    merged    one band for each band, where files lie beside each other; where they overlap, later ones lie on top

    with merged(["west.tif", "east.tif"], raster_type=RasterType.DEM) as whole:
        write_cog(whole.pixels, whole.bands, Path("both.tif"), output_grid(whole.facts), raster_type=RasterType.DEM)
"""

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import ColorInterp

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.source.bands import Bands
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.extent import Affine6, geographic_bounds, native_bounds
from dagmaster.raster.source.facts import RasterFacts, RasterType, facts_of
from dagmaster.raster.source.opening import open_file, restricted_gdal, size_of
from dagmaster.raster.source.pixels import (
    Block,
    FileSource,
    Pixels,
    Rules,
    Valid,
    Validity,
    Values,
    none_if_all,
    source_of,
)
from dagmaster.raster.source.window import Window
from dagmaster.raster.validation.header_rules import Ceilings

_MOST_OPEN = 64
_MOST_BANDS = 256  # all of them are in memory for a block
_RGB = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
_OFF = 0.01  # of a pixel, that grids may differ by over all their length
_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class CombinedRaster:
    """`facts` are those of the whole, for its grid; `pixels` and `bands` become the COG."""

    facts: RasterFacts
    pixels: Pixels
    bands: Bands


@contextlib.contextmanager
def stacked(
    paths: Sequence[str | Path],
    *,
    raster_type: RasterType,
    nodata: float | None = None,
    source_crs: str | None = None,
    names: Sequence[str] = (),
    remote: bool = False,
) -> Iterator[CombinedRaster]:
    """All bands of all files as those of one. `names` describe bands that do not describe themselves."""
    with _opened(paths, raster_type, nodata=nodata, source_crs=source_crs, remote=remote) as files:
        first = files.parts[0]
        _require_alike(files.parts, _FITTING)
        for part in files.parts:
            _require_same_ground(part, first)
            _require_stackable(part)
        bands = _upon_each_other(files.parts, raster_type, names)
        if len(bands.colors) > _MOST_BANDS:
            raise UnfitData(
                f"{len(bands.colors)} bands are more than {_MOST_BANDS}",
                code="raster.too-many-bands",
                hint="make several stacks",
            )
        facts = replace(
            first.facts,
            bands=tuple(band for part in files.parts for band in part.facts.bands),
            size_bytes=sum(part.facts.size_bytes for part in files.parts),
        )
        yield CombinedRaster(facts, _Stack(files, first.rules), bands)


@contextlib.contextmanager
def merged(
    paths: Sequence[str | Path],
    *,
    raster_type: RasterType,
    nodata: float | None = None,
    source_crs: str | None = None,
    remote: bool = False,
) -> Iterator[CombinedRaster]:
    """Files that lie on one grid of pixels as one. Where nothing marks what is missing, a mask says what no file covers."""
    with _opened(paths, raster_type, nodata=nodata, source_crs=source_crs, remote=remote) as files:
        _require_alike(files.parts, _SAME_BANDS)
        first = files.parts[0]
        places = np.array([_place_of(part, first) for part in files.parts])
        left, top = places[:, :2].min(axis=0)
        width, height = places[:, 2:].max(axis=0) - (left, top)
        transform = first.transform @ Affine.translation(int(left), int(top))
        facts = _facts_of_whole(files.parts, transform, int(width), int(height))
        rules = first.rules if first.rules.validity in (Validity.NODATA, Validity.ALPHA) else Rules(Validity.MASK)
        pixels = _Merged(
            files, rules, transform, facts.width, facts.height, places - (left, top, left, top), first.bands
        )
        yield CombinedRaster(facts, pixels, first.bands)


@dataclass(frozen=True, slots=True)
class _SourceFile:
    """One file, as its header has it."""

    path: str | Path
    facts: RasterFacts
    bands: Bands
    crs: CRS
    transform: Affine
    rules: Rules

    @property
    def name(self) -> str:
        return self.facts.name


class _Files:
    """The files, of which not too many are open at a time."""

    def __init__(self, *, remote: bool) -> None:
        self.parts: list[_SourceFile] = []
        self._remote = remote
        self._open: OrderedDict[str, Any] = OrderedDict()

    def dataset(self, path: str | Path) -> Any:
        name = str(path)
        if name not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[name] = open_file(path, remote=self._remote)
        self._open.move_to_end(name)
        return self._open[name]

    def read(self, part: _SourceFile, window: Window) -> Block:
        return FileSource(self.dataset(part.path), part.crs, part.transform, part.rules).read(window)

    def close(self) -> None:
        for dataset in self._open.values():
            dataset.close()


@contextlib.contextmanager
def _opened(
    paths: Sequence[str | Path], raster_type: RasterType, *, nodata: float | None, source_crs: str | None, remote: bool
) -> Iterator[_Files]:
    if not paths:
        raise InvalidRequest("no files are given", code="raster.no-files")
    override = parse_crs(source_crs) if source_crs else None
    files = _Files(remote=remote)
    with restricted_gdal(), rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES):
        try:
            for path in paths:
                dataset = files.dataset(path)
                source = source_of(dataset, raster_type, nodata=nodata, source_crs=source_crs)
                facts = facts_of(dataset, path, crs_override=override, size_bytes=size_of(path))
                bands = Bands.of(dataset, raster_type)
                files.parts.append(_SourceFile(path, facts, bands, source.crs, source.transform, source.rules))
            yield files
        finally:
            files.close()


@dataclass(frozen=True, slots=True)
class _Stack:
    files: _Files
    rules: Rules
    clamped: int = 0

    @property
    def _first(self) -> _SourceFile:
        return self.files.parts[0]

    @property
    def width(self) -> int:
        return self._first.facts.width

    @property
    def height(self) -> int:
        return self._first.facts.height

    @property
    def crs(self) -> CRS:
        return self._first.crs

    @property
    def transform(self) -> Affine:
        return self._first.transform

    def read(self, window: Window) -> Block:
        values = np.concatenate([self.files.read(part, window).values for part in self.files.parts])
        return Block(values, self.rules.valid_of(values))


@dataclass(frozen=True, slots=True)
class _Merged:
    """`places`: of each file, where it begins and ends: column, row, column, row."""

    files: _Files
    rules: Rules
    transform: Affine
    width: int
    height: int
    places: NDArray[np.int64]
    bands: Bands
    clamped: int = 0

    @property
    def crs(self) -> CRS:
        return self.files.parts[0].crs

    def read(self, window: Window) -> Block:
        shape = window.height, window.width
        values: Values = np.full((len(self.bands.colors), *shape), self.rules.fill, self.bands.dtype)
        covered: Valid = np.zeros((1, *shape), np.bool_)
        for at in self._files_in(window):
            self._lay(at, window, values, covered)
        if self.rules.validity is Validity.MASK:
            return Block(values, none_if_all(covered))
        return Block(values, self.rules.valid_of(values))

    def _files_in(self, window: Window) -> NDArray[np.intp]:
        left, top, right, bottom = self.places.T
        across = (left < window.col + window.width) & (right > window.col)
        return np.flatnonzero(across & (top < window.row + window.height) & (bottom > window.row))

    def _lay(self, at: int, window: Window, values: Values, covered: Valid) -> None:
        """What one file has for the window, on top of what is there."""
        left, top, right, bottom = (int(edge) for edge in self.places[at])
        first_col, first_row = max(left, window.col), max(top, window.row)
        last_col, last_row = min(right, window.col + window.width), min(bottom, window.row + window.height)
        part = Window(first_col - left, first_row - top, last_col - first_col, last_row - first_row)
        found = self.files.read(self.files.parts[at], part)
        area = np.s_[:, first_row - window.row : last_row - window.row, first_col - window.col : last_col - window.col]
        if found.valid is None:
            values[area] = found.values
            covered[area] = True
        else:
            np.copyto(values[area], found.values, where=found.valid)
            covered[area] |= found.valid.any(axis=0)


# What must be the same


@dataclass(frozen=True, slots=True)
class _Demand:
    code: str
    what: str  # the verb before what is found
    of: Callable[[_SourceFile], Any]
    hint: str


def _marks(part: _SourceFile) -> str:
    """How it marks what is missing, as far as it matters that all do it alike."""
    match part.rules.validity:
        case Validity.NODATA:
            return f"the nodata value {part.rules.nodata:g}"
        case Validity.ALPHA:
            return "alpha"
        case Validity.MASK | Validity.ALL:
            return "a mask, or by nothing"


_ONE_NODATA = "give all of them one nodata value: `gdal_edit.py -a_nodata VALUE file.tif`, or pass nodata"
_FITTING = (
    _Demand("raster.crs-differs", "is in", lambda part: part.crs, "reproject them to one CRS first"),
    _Demand(
        "raster.types-differ", "holds", lambda part: part.bands.dtype, "convert them to one type: `gdal_translate -ot`"
    ),
    _Demand("raster.nodata-differs", "marks what is missing by", _marks, _ONE_NODATA),
)
_SAME_BANDS = (
    *_FITTING,
    _Demand(
        "raster.bands-differ",
        "has this number of bands:",
        lambda part: part.facts.count,
        "leave out those that are of another kind",
    ),
    _Demand(
        "raster.colors-differ",
        "has bands of",
        lambda part: ", ".join(color.name for color in part.bands.colors),
        "give them the same colours: `gdal_edit.py -colorinterp_1 red …`",
    ),
    _Demand(
        "raster.scales-differ",
        "has the scale and offset",
        lambda part: (part.bands.scales, part.bands.offsets),
        "unpack them first: `gdal_translate -unscale -ot Float32`",
    ),
    _Demand("raster.units-differ", "is in units of", lambda part: part.bands.units, "convert them to one unit"),
    _Demand("raster.palettes-differ", "has the palette", lambda part: part.bands.palette, "give them one palette"),
)


def _require_alike(parts: Sequence[_SourceFile], demands: Sequence[_Demand]) -> None:
    first, *others = parts
    for part, demand in itertools.product(others, demands):
        theirs, ours = demand.of(part), demand.of(first)
        if theirs != ours:
            raise UnfitData(
                f"'{part.name}' {demand.what} {_short(theirs)}, '{first.name}' {_short(ours)}",
                code=demand.code,
                hint=demand.hint,
            )


def _require_stackable(part: _SourceFile) -> None:
    """A COG has one mask and one palette for all its bands."""
    alone = None
    if part.rules.validity is Validity.ALPHA:
        alone = "an alpha band"
    elif part.rules.validity is Validity.MASK:
        alone = "a mask"
    elif part.bands.palette is not None:
        alone = "a palette"
    if alone:
        raise UnfitData(
            f"'{part.name}' has {alone}, which is of its own bands only",
            code="raster.not-stackable",
            hint="mark what is missing by a nodata value" if part.bands.palette is None else "leave the palette out",
        )


def _place_of(part: _SourceFile, first: _SourceFile) -> tuple[int, int, int, int]:
    """Where a file begins and ends among the pixels of the first: column, row, column, row."""
    width, height = part.facts.width, part.facts.height
    steps = ~first.transform @ part.transform
    drift = max(abs(steps.a - 1) * width, abs(steps.d) * width, abs(steps.e - 1) * height, abs(steps.b) * height)
    if drift > _OFF:
        size, wanted = (" × ".join(f"{side:.10g}" for side in each.facts.resolution or ()) for each in (part, first))
        turned = "" if size != wanted else " and turned otherwise"
        raise UnfitData(
            f"the pixels of '{part.name}' are {size}{turned}, those of '{first.name}' {wanted}",
            code="raster.grids-differ",
            hint="bring them to one resolution first",
        )
    col, row = round(steps.c), round(steps.f)
    beside = max(abs(steps.c - col), abs(steps.f - row))
    if beside > _OFF:
        raise UnfitData(
            f"the pixels of '{part.name}' lie {beside:.2g} of a pixel beside those of '{first.name}'",
            code="raster.grids-differ",
            hint="bring them to one grid first: `gdalwarp -tap -tr`",
        )
    return col, row, col + width, row + height


def _require_same_ground(part: _SourceFile, first: _SourceFile) -> None:
    if _place_of(part, first) != (0, 0, first.facts.width, first.facts.height):
        raise UnfitData(
            f"'{part.name}' covers other ground than '{first.name}'",
            code="raster.grids-differ",
            hint="bring them to one extent first: `gdalwarp -te`",
        )


# What comes of them together


def _upon_each_other(parts: Sequence[_SourceFile], raster_type: RasterType, names: Sequence[str]) -> Bands:
    every = [part.bands for part in parts]
    descriptions = tuple(text for bands in every for text in bands.descriptions)
    if names and len(names) != len(descriptions):
        raise InvalidRequest(
            f"{len(names)} names are given for {len(descriptions)} bands", code="raster.names", hint="give one for each"
        )
    colors = tuple(color for bands in every for color in bands.colors)
    if raster_type is RasterType.RGB and len(colors) == len(_RGB):
        colors = _RGB
    return Bands(
        dtype=every[0].dtype,
        colors=colors,
        descriptions=tuple(own or given for own, given in itertools.zip_longest(descriptions, names)),
        units=tuple(unit for bands in every for unit in bands.units),
        scales=tuple(scale for bands in every for scale in bands.scales),
        offsets=tuple(offset for bands in every for offset in bands.offsets),
        is_point=every[0].is_point,
    )


def _facts_of_whole(parts: Sequence[_SourceFile], transform: Affine, width: int, height: int) -> RasterFacts:
    ceilings, first = Ceilings(), parts[0]
    if max(width, height) > ceilings.side or width * height > ceilings.pixels:
        raise UnfitData(
            f"together they span {width:,} × {height:,} pixels",
            code="raster.too-large",
            hint="merge neighbours only, or leave out those that lie far away",
        )
    six: Affine6 = tuple(transform[:6])
    return replace(
        first.facts,
        width=width,
        height=height,
        transform=six,
        bounds=native_bounds(six, width, height),
        bounds_4326=geographic_bounds(first.crs, six, width, height),
        is_cog=False,
        size_bytes=sum(part.facts.size_bytes for part in parts),
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
