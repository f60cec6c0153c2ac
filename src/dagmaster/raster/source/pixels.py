"""Pixels of a source, and how nothing is told from something in them.

A source is a file here; `several` has those that are made of many. Whatever it is, it is read by windows, and each answer says
which of its pixels are data.

    validity   how the source says that a pixel is nothing: a nodata value, alpha, a mask, or never
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import rasterio.windows
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import RasterioError

from dagmaster.errors import InvalidRequest, Unavailable, UnfitData
from dagmaster.raster.source.crs import parse_crs, split_crs
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.opening import read_bands, reason, short_name
from dagmaster.raster.source.window import Window

Values = NDArray[Any]  # band, row, column
Valid = NDArray[np.bool_]  # band (or one for all), row, column


class Validity(StrEnum):
    NODATA = "nodata"
    ALPHA = "alpha"
    MASK = "mask"
    ALL = "all"  # every pixel of the source is data


@dataclass(frozen=True, slots=True)
class Block:
    """Pixels, and which of them are data: `valid` None means all of them. What is not data has the fill value."""

    values: Values
    valid: Valid | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How nothing is told from something.

    `together`: a pixel is nothing where every band says so, as in a picture, where one colour may well be 0. Otherwise each
    band speaks for itself.
    """

    validity: Validity
    nodata: float | None = None
    alpha: int | None = None  # its index, from 0
    together: bool = True

    @property
    def fill(self) -> float:
        return 0 if self.nodata is None else self.nodata

    def valid_of(self, values: Values) -> Valid | None:
        """Which values are data, as far as values can tell; None: all."""
        if self.validity is Validity.ALPHA:
            assert self.alpha is not None
            return unless_all(values[self.alpha : self.alpha + 1] != 0)
        if self.validity is not Validity.NODATA:
            return None
        nothing = self._is_nothing(values[:1])
        if self.together:
            for band in values[1:]:
                if not nothing.any():
                    return None
                nothing &= self._is_nothing(band)
        elif len(values) > 1:
            nothing = np.concatenate([nothing, self._is_nothing(values[1:])])
        return unless_all(~nothing)

    def _is_nothing(self, values: Values) -> Valid:
        nothing: Valid
        if values.dtype.kind != "f":
            nothing = values == self.nodata
            return nothing
        nothing = np.isnan(values)
        if self.nodata is not None and not math.isnan(self.nodata):
            nothing |= values == values.dtype.type(self.nodata)
        return nothing

    def keep_apart(self, values: Values, valid: Valid | None = None) -> None:
        """Interpolation may hit the nodata value by chance: move such pixels, which are data, one step away (as GDAL does)."""
        if self.nodata is None or math.isnan(self.nodata):
            return
        hit = values == values.dtype.type(self.nodata)
        if not hit.any():
            return
        if self.together:
            hit = hit.all(axis=0, keepdims=True)
        if valid is not None:
            hit &= valid
        values[np.broadcast_to(hit, values.shape)] = _beside(self.nodata, values.dtype)


class Pixels(Protocol):
    """A source: a raster that is read by windows. `rules` are those by which its pixels are data."""

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    @property
    def crs(self) -> CRS: ...

    @property
    def transform(self) -> Affine: ...

    @property
    def rules(self) -> Rules: ...

    @property
    def clamped(self) -> int:
        """How many values that were read are beyond the type asked for, and were taken for its nearest."""

    def read(self, window: Window) -> Block: ...


@dataclass(slots=True)
class Cast:
    """To another type of whole numbers. What it cannot hold becomes the nearest that it can, and is counted."""

    dtype: np.dtype[Any]
    clamped: int = 0

    def __call__(self, block: Block) -> Block:
        mine, theirs = np.iinfo(self.dtype), np.iinfo(block.values.dtype)
        low, high = max(mine.min, theirs.min), min(mine.max, theirs.max)
        beyond = (block.values < low) | (block.values > high)
        if beyond.any():
            self.clamped += int(np.count_nonzero(beyond if block.valid is None else beyond & block.valid))
            np.clip(block.values, low, high, out=block.values)
        return Block(block.values.astype(self.dtype), block.valid)


@dataclass(frozen=True, slots=True)
class FileSource:
    """One file, with its rules."""

    dataset: Any
    crs: CRS
    transform: Affine
    rules: Rules
    cast: Cast | None = None

    @property
    def width(self) -> int:
        return int(self.dataset.width)

    @property
    def height(self) -> int:
        return int(self.dataset.height)

    @property
    def clamped(self) -> int:
        return self.cast.clamped if self.cast else 0

    def read(self, window: Window) -> Block:
        found = self._read(window)
        return self.cast(found) if self.cast else found

    def _read(self, window: Window) -> Block:
        area = rasterio.windows.Window(window.col, window.row, window.width, window.height)
        with self._reading():
            values = read_bands(self.dataset, area)
        for index, nodata in enumerate(self.dataset.nodatavals):
            # A COG has one nodata value; other formats have one for each band.
            if self.rules.validity is Validity.NODATA and nodata is not None and _differ(nodata, self.dataset.nodata):
                values[index][values[index] == nodata] = self.rules.nodata
        if self.rules.validity is Validity.MASK:
            with self._reading():
                return Block(values, unless_all(self.dataset.read_masks(1, window=area)[np.newaxis] != 0))
        return Block(values, self.rules.valid_of(values))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except RasterioError as error:
            name = short_name(self.dataset.name)
            if self.dataset.name.startswith("/vsi"):
                raise Unavailable(f"'{name}' cannot be read: {reason(error)}", code="raster.unreadable") from None
            raise UnfitData(
                f"'{name}' is damaged: {reason(error)}",
                code="raster.corrupt",
                hint="upload it again, or export it anew from its source",
            ) from None


def source_of(
    dataset: Any,
    raster_type: RasterType,
    *,
    nodata: float | None = None,
    source_crs: str | None = None,
    unset_alpha: bool = False,
    dtype: str | None = None,
) -> FileSource:
    """An open dataset as a source. Parameters as of `make_cog`."""
    if dataset.transform.is_identity:
        raise UnfitData(
            "raster has no georeference", code="raster.no-geotransform", hint="give it one, or rectify it first"
        )
    rules = rules_of(dataset, raster_type, nodata, unset_alpha=unset_alpha)
    cast = _cast_to(dtype, np.result_type(*dataset.dtypes)) if dtype else None
    if cast and rules.nodata is not None and not _fits(rules.nodata, cast.dtype):
        raise InvalidRequest(
            f"nodata is {rules.nodata:g}, which {cast.dtype} cannot hold",
            code="raster.bad-dtype",
            hint="give another dtype",
        )
    return FileSource(dataset, crs_of(dataset, source_crs), dataset.transform, rules, cast)


def _cast_to(dtype: str, common: np.dtype[Any]) -> Cast | None:
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = np.dtype(object)
    if wanted == common:
        return None
    if wanted.kind not in "iu" or common.kind not in "iu":
        raise InvalidRequest(
            f"{common} cannot be stored as '{dtype}'", code="raster.bad-dtype", hint="only whole numbers become others"
        )
    return Cast(wanted)


def colors_of(dataset: Any, raster_type: RasterType, *, unset_alpha: bool = False) -> tuple[ColorInterp, ...]:
    """What each band is of. `unset_alpha`: the band that is marked as alpha is data like the others.

    The fourth band of what is RGBA is alpha, also where the file does not say so.
    """
    colors = list(dataset.colorinterp)
    if unset_alpha:
        return tuple(ColorInterp.undefined if color is ColorInterp.alpha else color for color in colors)
    if raster_type is RasterType.RGBA and len(colors) == 4 and ColorInterp.alpha not in colors:
        colors[3] = ColorInterp.alpha
    return tuple(colors)


def rules_of(dataset: Any, raster_type: RasterType, nodata: float | None = None, *, unset_alpha: bool = False) -> Rules:
    """How a source marks nothing. `nodata` is what to take for it where the file has no mask and no alpha."""
    colors = colors_of(dataset, raster_type, unset_alpha=unset_alpha)
    if ColorInterp.alpha in colors:
        return Rules(Validity.ALPHA, alpha=colors.index(ColorInterp.alpha))
    if MaskFlags.per_dataset in dataset.mask_flag_enums[0] and MaskFlags.alpha not in dataset.mask_flag_enums[0]:
        return Rules(Validity.MASK)  # GDAL also calls alpha one
    dtype = np.dtype(dataset.dtypes[0])
    together = raster_type in (RasterType.RGB, RasterType.RGBA)
    value = nodata if nodata is not None else dataset.nodata
    if value is not None and _fits(value, dtype):
        return Rules(Validity.NODATA, nodata=float(value), together=together)
    if dtype.kind == "f":
        return Rules(Validity.NODATA, nodata=math.nan, together=together)
    return Rules(Validity.ALL)


def crs_of(dataset: Any, given: str | None = None) -> CRS:
    if given is not None:
        return parse_crs(given)
    if not dataset.crs:
        raise UnfitData("raster has no CRS", code="raster.no-crs", hint="pass source_crs")
    horizontal, _ = split_crs(dataset.crs)
    return horizontal


def unless_all(valid: Valid) -> Valid | None:
    return None if valid.all() else valid


def _differ(one: float, other: float | None) -> bool:
    return one != other and not (other is not None and math.isnan(one) and math.isnan(other))


def _fits(nodata: float, dtype: np.dtype[Any]) -> bool:
    """A file may declare a value that its type cannot hold: no pixel has it."""
    if dtype.kind == "f":
        return True
    if not float(nodata).is_integer():
        return False
    limits = np.iinfo(dtype)
    return limits.min <= nodata <= limits.max


def _beside(nodata: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return float(np.nextafter(dtype.type(nodata), dtype.type(0 if nodata else 1)))
    return nodata + 1 if nodata == np.iinfo(dtype).min else nodata - 1
