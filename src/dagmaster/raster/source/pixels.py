"""Pixels of a source, and the rule for which of them are valid.

A source is one file, or several combined (`cog.stack`). It is read in windows, and each block has the mask of its valid
pixels. `Validity` is how the source marks nodata: by a value, alpha, a mask, or not at all.

There is one rule, and every reader uses it (this module, `reading`, `sample`): alpha decides, else a mask, else the
nodata value; NaN is never valid. Infinity is data unless it is the declared nodata value: COGs keep it, and statistics
leave it out and count it.
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

_MAX_WHOLE_NUMBER = 2.0**53  # a float can represent every smaller integer

Values = NDArray[Any]  # band, row, column
Valid = NDArray[np.bool_]  # band (or one for all), row, column


class Validity(StrEnum):
    NODATA = "nodata"
    ALPHA = "alpha"
    MASK = "mask"
    ALL = "all"  # every pixel is valid


@dataclass(frozen=True, slots=True)
class Block:
    """Pixels and the mask of valid ones; None means that all are valid. Other pixels have the fill value."""

    values: Values
    valid: Valid | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Which pixels are valid.

    `is_nodata_shared`: a pixel is nodata only if all bands have the nodata value, as in a picture, where one colour may
    be 0. Otherwise each band has its own valid pixels.
    `source_nodata` is the nodata value in the file, if a TIFF cannot declare it (see `storable_nodata`).
    """

    validity: Validity
    nodata: float | None = None
    alpha: int | None = None  # its index, from 0
    is_nodata_shared: bool = True
    source_nodata: float | None = None

    @property
    def fill(self) -> float:
        return 0 if self.nodata is None else self.nodata

    def valid_of(self, values: Values) -> Valid | None:
        """The valid pixels, as far as values show them; None if all are."""
        if self.validity is Validity.ALPHA:
            assert self.alpha is not None
            colors = np.delete(values, self.alpha, axis=0) if values.dtype.kind == "f" else values
            return without_nan(values[self.alpha : self.alpha + 1] != 0, colors)
        if self.validity is not Validity.NODATA:
            return None
        nodata = is_nodata(values[:1], self.nodata)
        if self.is_nodata_shared:
            for band in values[1:]:
                if not nodata.any():
                    return None
                nodata &= is_nodata(band, self.nodata)
        elif len(values) > 1:
            nodata = np.concatenate([nodata, is_nodata(values[1:], self.nodata)])
        return none_if_all(~nodata)

    def valid_in_band(self, block: "Block", band: int) -> Valid | None:
        """The valid pixels of one band (rows, columns); None if all are.

        A block has one mask for all its bands if a pixel is valid in any of them. Alpha is valid everywhere.
        """
        if band == self.alpha:
            return None
        is_per_band = self.validity is Validity.NODATA and (not self.is_nodata_shared or len(block.values) == 1)
        shared: Valid | None = None
        if block.valid is not None:
            shared = block.valid[band if len(block.valid) > 1 else 0]
        if is_per_band or (self.validity is not Validity.NODATA and block.values.dtype.kind != "f"):
            return shared
        nodata = is_nodata(block.values[band], self.nodata if self.validity is Validity.NODATA else None)
        if not nodata.any():
            return shared
        return ~nodata if shared is None else shared & ~nodata

    def avoid_nodata(self, values: Values, valid: Valid | None = None) -> None:
        """Change valid pixels that interpolation set to the nodata value by chance to the next value, as GDAL does."""
        if self.nodata is None or math.isnan(self.nodata):
            return
        equal = values == _in_type(self.nodata, values.dtype)
        if not equal.any():
            return
        if self.is_nodata_shared:
            equal = equal.all(axis=0, keepdims=True)
        if valid is not None:
            equal &= valid
        values[np.broadcast_to(equal, values.shape)] = _next_to(self.nodata, values.dtype)


def is_nodata(values: Values, nodata: float | None) -> Valid:
    """Pixels without data, as far as values show them: NaN, and the nodata value if the type can hold it."""
    is_float = values.dtype.kind == "f"
    is_nan: Valid = np.isnan(values) if is_float else np.zeros(values.shape, np.bool_)
    if nodata is None or math.isnan(nodata) or not _fits(nodata, values.dtype):
        return is_nan
    equal: Valid = values == _in_type(nodata, values.dtype)
    return is_nan | equal if is_float else equal


def storable_nodata(nodata: float, dtype: np.dtype[Any]) -> float:
    """The nodata value, or for 64-bit integers one that a TIFF can declare: GDAL is passed a float, and writes 19
    digits of it as 9.2e18, which is read as 9."""
    if dtype.kind in "iu" and dtype.itemsize == 8 and abs(nodata) > _MAX_WHOLE_NUMBER:
        return math.copysign(_MAX_WHOLE_NUMBER, nodata)
    return float(_in_type(nodata, dtype))


class Pixels(Protocol):
    """A source: a raster that is read in windows. `rules` say which of its pixels are valid."""

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
        """How many values did not fit the requested type and were replaced by the nearest that fits."""

    def read(self, window: Window) -> Block: ...


@dataclass(slots=True)
class Cast:
    """Converts to another integer type. Values that do not fit become the nearest that fits, and are counted."""

    dtype: np.dtype[Any]
    clamped: int = 0

    def __call__(self, block: Block) -> Block:
        target, source = np.iinfo(self.dtype), np.iinfo(block.values.dtype)
        low, high = max(target.min, source.min), min(target.max, source.max)
        beyond = (block.values < low) | (block.values > high)
        if beyond.any():
            self.clamped += int(np.count_nonzero(beyond if block.valid is None else beyond & block.valid))
            np.clip(block.values, low, high, out=block.values)
        return Block(block.values.astype(self.dtype), block.valid)


@dataclass(frozen=True, slots=True)
class FileSource:
    """One file with its rules."""

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
        block = self._read(window)
        return self.cast(block) if self.cast else block

    def _read(self, window: Window) -> Block:
        area = rasterio.windows.Window(window.col, window.row, window.width, window.height)
        with self._reading():
            values = read_bands(self.dataset, area)
        if self.rules.validity is Validity.MASK:
            with self._reading():
                valid = self.dataset.read_masks(1, window=area)[np.newaxis] != 0
            return Block(values, without_nan(valid, values))
        if self.rules.validity is Validity.NODATA:
            for band, nodata in zip(values, self.dataset.nodatavals, strict=True):
                # A COG has one nodata value; other formats have one for each band.
                if nodata is not None and _fits(nodata, band.dtype) and _differ(nodata, self.dataset.nodata):
                    band[is_nodata(band, nodata)] = self.rules.nodata
            if self.rules.source_nodata is not None:
                values[is_nodata(values, self.rules.source_nodata)] = self.rules.nodata
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
                hint="upload it again, or export it again from its source",
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
    """An open dataset as a source. Parameters as in `make_cog`."""
    if dataset.transform.is_identity:
        raise UnfitData(
            "raster has no georeference", code="raster.no-geotransform", hint="georeference it, or rectify it first"
        )
    rules = rules_of(dataset, raster_type, nodata, unset_alpha=unset_alpha)
    cast = _cast_to(dtype, np.result_type(*dataset.dtypes)) if dtype else None
    if cast and rules.nodata is not None and not _fits(rules.nodata, cast.dtype):
        raise InvalidRequest(
            f"nodata is {rules.nodata:g}, which {cast.dtype} cannot hold",
            code="raster.bad-dtype",
            hint="pass another dtype",
        )
    return FileSource(dataset, crs_of(dataset, source_crs), dataset.transform, rules, cast)


def _cast_to(dtype: str, common: np.dtype[Any]) -> Cast | None:
    try:
        target = np.dtype(dtype)
    except TypeError:
        target = np.dtype(object)
    if target == common:
        return None
    if target.kind not in "iu" or common.kind not in "iu":
        raise InvalidRequest(
            f"{common} cannot be stored as '{dtype}'", code="raster.bad-dtype", hint="only integers can be converted"
        )
    return Cast(target)


def colors_of(dataset: Any, raster_type: RasterType, *, unset_alpha: bool = False) -> tuple[ColorInterp, ...]:
    """The colour interpretation of each band. `unset_alpha`: the band that is marked as alpha holds data.

    The fourth band of an RGBA raster is alpha, even if the file does not declare it. A palette needs a colour table.
    """
    colors = [
        ColorInterp.gray if color is ColorInterp.palette and not _has_colors(dataset, band) else color
        for band, color in enumerate(dataset.colorinterp, 1)
    ]
    if unset_alpha:
        return tuple(ColorInterp.undefined if color is ColorInterp.alpha else color for color in colors)
    if raster_type is RasterType.RGBA and len(colors) == 4 and ColorInterp.alpha not in colors:
        colors[3] = ColorInterp.alpha
    return tuple(colors)


def _has_colors(dataset: Any, band: int) -> bool:
    try:
        return bool(dataset.colormap(band))
    except ValueError:
        return False


def rules_of(dataset: Any, raster_type: RasterType, nodata: float | None = None, *, unset_alpha: bool = False) -> Rules:
    """The rules of a source. `nodata` overrides the declared value; a mask or alpha takes precedence over both."""
    colors = colors_of(dataset, raster_type, unset_alpha=unset_alpha)
    dtype = np.dtype(dataset.dtypes[0])
    is_shared = raster_type in (RasterType.RGB, RasterType.RGBA)
    if ColorInterp.alpha in colors:
        return Rules(Validity.ALPHA, alpha=colors.index(ColorInterp.alpha))
    if MaskFlags.per_dataset in dataset.mask_flag_enums[0] and MaskFlags.alpha not in dataset.mask_flag_enums[0]:
        return Rules(Validity.MASK)  # GDAL also reports alpha as a mask
    value = nodata if nodata is not None else dataset.nodata
    if value is not None and _fits(value, dtype):
        stored = storable_nodata(value, dtype)
        is_same = stored == _in_type(value, dtype) or math.isnan(value)
        return Rules(
            Validity.NODATA, stored, is_nodata_shared=is_shared, source_nodata=None if is_same else float(value)
        )
    if dtype.kind == "f":
        return Rules(Validity.NODATA, nodata=math.nan, is_nodata_shared=is_shared)
    return Rules(Validity.ALL)


def crs_of(dataset: Any, source_crs: str | None = None) -> CRS:
    if source_crs is not None:
        return parse_crs(source_crs)
    if not dataset.crs:
        raise UnfitData("raster has no CRS", code="raster.no-crs", hint="pass source_crs")
    horizontal, _ = split_crs(dataset.crs)
    return horizontal


def without_nan(valid: Valid, colors: Values) -> Valid | None:
    """The mask without pixels that are NaN in every band; None if all pixels are valid."""
    if colors.dtype.kind == "f" and np.isnan(colors[0]).any():
        valid = valid & ~np.isnan(colors).all(axis=0)
    return none_if_all(valid)


def none_if_all(valid: Valid) -> Valid | None:
    """The mask, or None if all pixels are valid."""
    return None if valid.all() else valid


def _differ(one: float, other: float | None) -> bool:
    return one != other and not (other is not None and math.isnan(one) and math.isnan(other))


def _fits(nodata: float, dtype: np.dtype[Any]) -> bool:
    """Whether the type can hold the value. A file may declare one that no pixel can have."""
    if dtype.kind == "f":
        return not math.isfinite(nodata) or abs(nodata) <= float(np.finfo(dtype).max) * (1 + 1e-6)
    if not float(nodata).is_integer():
        return False
    limits = np.iinfo(dtype)
    # As floats: 2^63 - 1 is passed as 2^63.
    return float(limits.min) <= nodata <= float(limits.max)


def _in_type(nodata: float, dtype: np.dtype[Any]) -> Any:
    """The value as a pixel of the type holds it: near a limit of the type, its text may be rounded to a value
    beyond."""
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max)
        return dtype.type(nodata if not math.isfinite(nodata) else min(max(nodata, -limit), limit))
    limits = np.iinfo(dtype)
    return min(max(int(nodata), int(limits.min)), int(limits.max))


def _next_to(nodata: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return float(np.nextafter(dtype.type(nodata), dtype.type(0 if nodata else 1)))
    return nodata + 1 if nodata == np.iinfo(dtype).min else nodata - 1
