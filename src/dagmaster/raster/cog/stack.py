"""Files combined into one raster: their bands stacked, or neighbours merged.

The files are not copied first: windows are read from them directly for the COG. They must have the same CRS, grid of
pixels, type and nodata value; an error names the file that differs.

    stacked   all bands of all files, in their order; all files cover the same pixels
    merged    the same bands, of files next to each other; where files overlap, the later one is used

    with merged(["west.tif", "east.tif"], raster_type=RasterType.DEM) as both:
        write_cog(both.pixels, both.bands, Path("both.tif"), output_grid(both.facts), raster_type=RasterType.DEM)
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
from dagmaster.quantities import shortened
from dagmaster.raster.cog.grid import SAME_PIXELS
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

BORDER = 40  # pixels of neighbours around a file: more than a kernel reaches at the coarsest resolution
_MAX_OPEN = 64
_MAX_BANDS = 256  # all bands of a block are in memory
_RGB = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
_CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class CombinedRaster:
    """`facts` describe the combined raster, for its grid; `pixels` and `bands` become the COG.

    `core` is the part of the pixels that becomes valid; those around it are only for interpolation. None means that all
    pixels become valid.
    """

    facts: RasterFacts
    pixels: Pixels
    bands: Bands
    core: Window | None = None


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
    """All bands of all files as one raster. `names` are for bands without a description."""
    with _opened(paths, raster_type, nodata=nodata, source_crs=source_crs, remote=remote) as files:
        first = files.parts[0]
        _require_alike(files.parts, _SAME_CRS_AND_TYPE)
        for part in files.parts:
            _require_same_extent(part, first)
            _require_stackable(part)
        bands = _stacked_bands(files.parts, raster_type, names)
        if len(bands.colors) > _MAX_BANDS:
            raise UnfitData(
                f"{len(bands.colors)} bands are more than the limit of {_MAX_BANDS}",
                code="raster.too-many-bands",
                hint="create more than one stack",
            )
        facts = replace(
            first.facts,
            bands=tuple(band for part in files.parts for band in part.facts.bands),
            size_bytes=sum(part.facts.size_bytes for part in files.parts),
        )
        pixels = _Stack(files, first.rules, first.crs, first.transform, facts.width, facts.height)
        yield CombinedRaster(facts, pixels, bands)


@contextlib.contextmanager
def merged(
    paths: Sequence[str | Path],
    *,
    raster_type: RasterType,
    nodata: float | None = None,
    source_crs: str | None = None,
    remote: bool = False,
) -> Iterator[CombinedRaster]:
    """Files on one pixel grid as one raster. Without a nodata value or alpha, a mask marks uncovered pixels."""
    with _opened(paths, raster_type, nodata=nodata, source_crs=source_crs, remote=remote) as files:
        _require_alike(files.parts, _SAME_BANDS)
        first = files.parts[0]
        places = np.array([_place_of(part.facts, first.facts) for part in files.parts])
        left, top = places[:, :2].min(axis=0)
        width, height = places[:, 2:].max(axis=0) - (left, top)
        transform = first.transform @ Affine.translation(int(left), int(top))
        facts = _merged_facts(files.parts, transform, int(width), int(height))
        rules = first.rules if first.rules.validity in (Validity.NODATA, Validity.ALPHA) else Rules(Validity.MASK)
        pixels = _Merged(
            files, rules, first.crs, transform, facts.width, facts.height, places - (left, top, left, top), first.bands
        )
        yield CombinedRaster(facts, pixels, first.bands)


@contextlib.contextmanager
def bordered(
    path: str | Path,
    neighbours: Sequence[str | Path],
    *,
    raster_type: RasterType,
    nodata: float | None = None,
    source_crs: str | None = None,
    remote: bool = False,
) -> Iterator[CombinedRaster]:
    """A file with a border of its neighbours' pixels, so that it is interpolated at its edges as in one raster.

    Neighbours with other bands or another nodata value are not used.
    """
    with _opened([path, *neighbours], raster_type, nodata=nodata, source_crs=source_crs, remote=remote) as files:
        own, *others = files.parts
        files.parts = [*(part for part in others if _first_difference(part, own, _SAME_BANDS) is None), own]
        places = np.array([_place_of(part.facts, own.facts) for part in files.parts]) + BORDER
        rules = own.rules if own.rules.validity in (Validity.NODATA, Validity.ALPHA) else Rules(Validity.MASK)
        width, height = own.facts.width, own.facts.height
        pixels = _Merged(
            files,
            rules,
            own.crs,
            own.transform @ Affine.translation(-BORDER, -BORDER),
            width + 2 * BORDER,
            height + 2 * BORDER,
            places,
            own.bands,
            opaque=len(files.parts) - 1,
        )
        yield CombinedRaster(own.facts, pixels, own.bands, Window(BORDER, BORDER, width, height))


@dataclass(frozen=True, slots=True)
class GridGroup:
    """Files on one pixel grid: their indices, and the first column and row and end column and row of each, in pixels of
    the first one."""

    members: list[int]
    places: NDArray[np.int64]


def grid_groups(files: Sequence[RasterFacts]) -> list[GridGroup]:
    """The files by their pixel grids, in the order of their first file. All have a CRS and a transform."""
    crss = [parse_crs(each.crs or "") for each in files]
    transforms = np.array([each.transform for each in files], dtype=np.float64)
    sizes = np.array([(each.width, each.height) for each in files])
    groups, pending = [], list(range(len(files)))
    while pending:
        first = pending[0]
        corners, is_aligned = _corners_in_pixels(transforms[pending], sizes[pending], Affine(*transforms[first]))
        is_member = [aligned and crss[at] == crss[first] for at, aligned in zip(pending, is_aligned, strict=True)]
        members = [at for at, is_one in zip(pending, is_member, strict=True) if is_one]
        starts = corners[is_member]
        groups.append(GridGroup(members, np.hstack([starts, starts + sizes[members]])))
        pending = [at for at, is_one in zip(pending, is_member, strict=True) if not is_one]
    return groups


def _corners_in_pixels(
    transforms: NDArray[np.float64], sizes: NDArray[np.int64], first: Affine
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Column and row of each file's corner in pixels of the first file, and whether their pixels coincide."""
    a, b, c, d, e, f = transforms.T
    inverse = ~first
    along = np.abs(np.stack([inverse.a * a + inverse.b * d - 1, inverse.d * a + inverse.e * d])) * sizes[:, 0]
    down = np.abs(np.stack([inverse.a * b + inverse.b * e, inverse.d * b + inverse.e * e - 1])) * sizes[:, 1]
    corners = np.stack([inverse.a * c + inverse.b * f + inverse.c, inverse.d * c + inverse.e * f + inverse.f], axis=1)
    whole = np.round(corners)
    deviation = np.max([*along, *down, *np.abs(corners - whole).T], axis=0)
    return whole.astype(np.int64), deviation <= SAME_PIXELS


def neighbours_of(places: NDArray[np.int64]) -> list[list[int]]:
    """For each file, the others that have pixels in the border around it."""
    left, top, right, bottom = places.T
    result = []
    for at, (west, north, east, south) in enumerate(places.tolist()):
        near = (left < east + BORDER) & (right > west - BORDER) & (top < south + BORDER) & (bottom > north - BORDER)
        near &= (left < west) | (right > east) | (top < north) | (bottom > south)
        near[at] = False
        result.append(np.flatnonzero(near).tolist())
    return result


@dataclass(frozen=True, slots=True)
class _StackPart:
    """One file, from its header."""

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
    """The files, of which a limited number is open at a time."""

    def __init__(self, *, remote: bool) -> None:
        self.parts: list[_StackPart] = []
        self._remote = remote
        self._open: OrderedDict[str, Any] = OrderedDict()

    def dataset(self, path: str | Path) -> Any:
        name = str(path)
        if name not in self._open:
            while len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[name] = open_file(path, remote=self._remote)
        self._open.move_to_end(name)
        return self._open[name]

    def read(self, part: _StackPart, window: Window) -> Block:
        return FileSource(self.dataset(part.path), part.crs, part.transform, part.rules).read(window)

    def close(self) -> None:
        for dataset in self._open.values():
            dataset.close()


@contextlib.contextmanager
def _opened(
    paths: Sequence[str | Path], raster_type: RasterType, *, nodata: float | None, source_crs: str | None, remote: bool
) -> Iterator[_Files]:
    if not paths:
        raise InvalidRequest("there are no files to combine", code="raster.no-files")
    override = parse_crs(source_crs) if source_crs else None
    files = _Files(remote=remote)
    with restricted_gdal(), rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES):
        try:
            for path in paths:
                dataset = files.dataset(path)
                source = source_of(dataset, raster_type, nodata=nodata, source_crs=source_crs)
                facts = facts_of(dataset, path, crs_override=override, size_bytes=size_of(path))
                bands = Bands.of(dataset, raster_type)
                files.parts.append(_StackPart(path, facts, bands, source.crs, source.transform, source.rules))
            yield files
        finally:
            files.close()


@dataclass(frozen=True, slots=True)
class _Stack:
    files: _Files
    rules: Rules
    crs: CRS
    transform: Affine
    width: int
    height: int
    clamped: int = 0

    def read(self, window: Window) -> Block:
        values = np.concatenate([self.files.read(part, window).values for part in self.files.parts])
        return Block(values, self.rules.valid_of(values))


@dataclass(frozen=True, slots=True)
class _Merged:
    """`places`: first column and row and end column and row of each file. Where a file has nodata, the files below it
    are used; only nodata of the file `opaque` hides them."""

    files: _Files
    rules: Rules
    crs: CRS
    transform: Affine
    width: int
    height: int
    places: NDArray[np.int64]
    bands: Bands
    opaque: int | None = None
    clamped: int = 0

    def read(self, window: Window) -> Block:
        shape = window.height, window.width
        values: Values = np.full((len(self.bands.colors), *shape), self.rules.fill, self.bands.dtype)
        covered: Valid = np.zeros((1, *shape), np.bool_)
        for at in self._files_in(window):
            self._add(at, window, values, covered)
        if self.rules.validity is Validity.MASK:
            return Block(values, none_if_all(covered))
        return Block(values, self.rules.valid_of(values))

    def _files_in(self, window: Window) -> NDArray[np.intp]:
        left, top, right, bottom = self.places.T
        across = (left < window.col + window.width) & (right > window.col)
        return np.flatnonzero(across & (top < window.row + window.height) & (bottom > window.row))

    def _add(self, at: int, window: Window, values: Values, covered: Valid) -> None:
        """Write the valid pixels of one file over those of earlier files."""
        left, top, right, bottom = (int(edge) for edge in self.places[at])
        first_col, first_row = max(left, window.col), max(top, window.row)
        last_col, last_row = min(right, window.col + window.width), min(bottom, window.row + window.height)
        part = Window(first_col - left, first_row - top, last_col - first_col, last_row - first_row)
        block = self.files.read(self.files.parts[at], part)
        area = np.s_[:, first_row - window.row : last_row - window.row, first_col - window.col : last_col - window.col]
        if block.valid is None or at == self.opaque:
            values[area] = block.values
            covered[area] = True if block.valid is None else block.valid.any(axis=0)
        else:
            np.copyto(values[area], block.values, where=block.valid)
            covered[area] |= block.valid.any(axis=0)


# Requirements


@dataclass(frozen=True, slots=True)
class _Requirement:
    code: str
    verb: str  # precedes the value in the error message
    value_of: Callable[[_StackPart], Any]
    hint: str


def _marks(part: _StackPart) -> str:
    """How a file marks nodata; files with and without a mask can be combined."""
    match part.rules.validity:
        case Validity.NODATA:
            return f"the nodata value {part.rules.nodata:g}"
        case Validity.ALPHA:
            return "alpha"
        case Validity.MASK | Validity.ALL:
            return "a mask or not at all"


_NODATA_HINT = "declare the same nodata value in all files: `gdal_edit.py -a_nodata VALUE file.tif`, or pass nodata"
_SAME_CRS_AND_TYPE = (
    _Requirement("raster.crs-differs", "is in", lambda part: part.crs, "reproject them to one CRS first"),
    _Requirement(
        "raster.types-differ",
        "has the data type",
        lambda part: part.bands.dtype,
        "convert them to one type: `gdal_translate -ot`",
    ),
    _Requirement("raster.nodata-differs", "marks nodata with", _marks, _NODATA_HINT),
)
_SAME_BANDS = (
    *_SAME_CRS_AND_TYPE,
    _Requirement(
        "raster.bands-differ",
        "has this number of bands:",
        lambda part: part.facts.count,
        "leave out files with other bands",
    ),
    _Requirement(
        "raster.colors-differ",
        "has bands of",
        lambda part: ", ".join(color.name for color in part.bands.colors),
        "declare the same colours: `gdal_edit.py -colorinterp_1 red …`",
    ),
    _Requirement(
        "raster.scales-differ",
        "has the scale and offset",
        lambda part: (part.bands.scales, part.bands.offsets),
        "unpack them first: `gdal_translate -unscale -ot Float32`",
    ),
    _Requirement("raster.units-differ", "is in units of", lambda part: part.bands.units, "convert them to one unit"),
    _Requirement("raster.palettes-differ", "has the palette", lambda part: part.bands.palette, "use one palette"),
)


def _require_alike(parts: Sequence[_StackPart], requirements: Sequence[_Requirement]) -> None:
    first, *others = parts
    for part in others:
        if requirement := _first_difference(part, first, requirements):
            raise UnfitData(
                f"'{part.name}' {requirement.verb} {shortened(str(requirement.value_of(part)), 60)}, "
                f"but '{first.name}' {requirement.verb} {shortened(str(requirement.value_of(first)), 60)}",
                code=requirement.code,
                hint=requirement.hint,
            )


def _first_difference(part: _StackPart, first: _StackPart, requirements: Sequence[_Requirement]) -> _Requirement | None:
    return next(
        (requirement for requirement in requirements if requirement.value_of(part) != requirement.value_of(first)), None
    )


def _require_stackable(part: _StackPart) -> None:
    """A COG has one mask and one palette for all its bands."""
    limited_to_file = None
    if part.rules.validity is Validity.ALPHA:
        limited_to_file = "an alpha band"
    elif part.rules.validity is Validity.MASK:
        limited_to_file = "a mask"
    elif part.bands.palette is not None:
        limited_to_file = "a palette"
    if limited_to_file:
        raise UnfitData(
            f"'{part.name}' has {limited_to_file}, which applies to its own bands only",
            code="raster.not-stackable",
            hint="mark nodata with a value instead" if part.bands.palette is None else "remove the palette",
        )


def _place_of(part: RasterFacts, first: RasterFacts) -> tuple[int, int, int, int]:
    """First column and row, and end column and row, of a file in pixels of the first file."""
    assert part.transform is not None
    assert first.transform is not None
    width, height = part.width, part.height
    steps = ~Affine(*first.transform) @ Affine(*part.transform)
    drift = max(abs(steps.a - 1) * width, abs(steps.d) * width, abs(steps.e - 1) * height, abs(steps.b) * height)
    if drift > SAME_PIXELS:
        size, first_size = (" × ".join(f"{side:.10g}" for side in each.resolution or ()) for each in (part, first))
        rotation = "" if size != first_size else " with another rotation"
        raise UnfitData(
            f"the pixels of '{part.name}' are {size}{rotation}, but those of '{first.name}' are {first_size}",
            code="raster.grids-differ",
            hint="resample them to one resolution first",
        )
    col, row = round(steps.c), round(steps.f)
    shift = max(abs(steps.c - col), abs(steps.f - row))
    if shift > SAME_PIXELS:
        raise UnfitData(
            f"the pixels of '{part.name}' are {shift:.2g} pixels away from those of '{first.name}'",
            code="raster.grids-differ",
            hint="resample them to one grid first: `gdalwarp -tap -tr`",
        )
    return col, row, col + width, row + height


def _require_same_extent(part: _StackPart, first: _StackPart) -> None:
    if _place_of(part.facts, first.facts) != (0, 0, first.facts.width, first.facts.height):
        raise UnfitData(
            f"'{part.name}' has another extent than '{first.name}'",
            code="raster.grids-differ",
            hint="crop them to one extent first: `gdalwarp -te`",
        )


# Facts and bands of the combined raster


def _stacked_bands(parts: Sequence[_StackPart], raster_type: RasterType, names: Sequence[str]) -> Bands:
    every = [part.bands for part in parts]
    descriptions = tuple(text for bands in every for text in bands.descriptions)
    if names and len(names) != len(descriptions):
        raise InvalidRequest(
            f"there are {len(names)} names for {len(descriptions)} bands",
            code="raster.names",
            hint="pass one name per band",
        )
    colors = tuple(color for bands in every for color in bands.colors)
    if raster_type is RasterType.RGB and len(colors) == len(_RGB):
        colors = _RGB
    return Bands(
        dtype=every[0].dtype,
        colors=colors,
        descriptions=tuple(own or name for own, name in itertools.zip_longest(descriptions, names)),
        units=tuple(unit for bands in every for unit in bands.units),
        scales=tuple(scale for bands in every for scale in bands.scales),
        offsets=tuple(offset for bands in every for offset in bands.offsets),
        is_point=every[0].is_point,
    )


def _merged_facts(parts: Sequence[_StackPart], transform: Affine, width: int, height: int) -> RasterFacts:
    ceilings, first = Ceilings(), parts[0]
    if max(width, height) > ceilings.side or width * height > ceilings.pixels:
        raise UnfitData(
            f"together the files span {width:,} × {height:,} pixels, which is too many",
            code="raster.too-large",
            hint="merge neighbours only, or leave out files that are far away",
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
