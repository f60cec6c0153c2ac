"""Read rasters that the platform has written, with a mask of their valid pixels.

Which pixels are valid follows the rule of `pixels`, for each band.
"""

import contextlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp
from rasterio.errors import RasterioError
from rasterio.windows import Window

from dagmaster.errors import Unavailable, UnfitData
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.opening import short_name
from dagmaster.raster.source.pixels import Rules, Validity, is_nodata, rules_of


@contextlib.contextmanager
def open_raster(path: str | PurePath, *, overview: int | None = None) -> Iterator[Any]:
    """The dataset, or one of its overviews (0 is the finest). Errors name the file without its folder."""
    options = {} if overview is None else {"overview_level": overview}
    try:
        with rasterio.open(str(path), **options) as dataset:
            yield dataset
    except RasterioError as error:
        name = short_name(str(path))
        reason = str(error).replace(str(path), name)
        raise Unavailable(f"cannot read raster '{name}': {reason}", code="raster.unreadable", file=name) from error


def header_bytes(path: str | PurePath) -> int | None:
    """The size of a COG's header: all bytes before the first block. None if no block is stored."""
    with open_raster(path) as dataset:
        levels = [None, *range(len(dataset.overviews(1)))]
        first_offsets = [dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1, ovr=level) for level in levels]
    offsets = [int(first) for first in first_offsets if first]
    return min(offsets) if offsets else None


def data_bands(dataset: Any) -> list[int]:
    """All bands but alpha."""
    return [band for band in dataset.indexes if not is_alpha(dataset, band)]


def is_alpha(dataset: Any, band: int) -> bool:
    return bool(dataset.colorinterp[band - 1] is ColorInterp.alpha)


def is_all_valid(dataset: Any, band: int) -> bool:
    """Whether the header guarantees that every pixel of the band is valid."""
    return marks_of(dataset).validity is Validity.ALL and np.dtype(dataset.dtypes[band - 1]).kind in "iu"


def marks_of(dataset: Any) -> Rules:
    """How an open dataset marks nodata."""
    return rules_of(dataset, RasterType.UNKNOWN)


def read_with_validity(
    dataset: Any,
    band: int,
    window: Window | None = None,
    shape: tuple[int, int] | None = None,
    *,
    marks: Rules | None = None,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values of a band, and the mask of valid ones. `marks` are those of the dataset, if they are known."""
    values = dataset.read(band, window=window, out_shape=shape)
    if values.dtype.kind == "c":
        raise UnfitData(
            "complex numbers are not supported",
            code="raster.complex",
            hint="store real numbers, such as amplitude or phase",
        )
    return values, band_validity(dataset, band, values, marks or marks_of(dataset), window=window, shape=shape)


def band_validity(
    dataset: Any,
    band: int,
    values: NDArray[Any],
    marks: Rules,
    *,
    window: Window | None = None,
    shape: tuple[int, int] | None = None,
) -> NDArray[np.bool_]:
    """The mask of valid pixels of a band whose values were read. All pixels of an alpha band are valid."""
    valid = ~is_nodata(values, dataset.nodatavals[band - 1] if marks.validity is Validity.NODATA else None)
    if marks.validity is Validity.MASK:
        valid &= dataset.read_masks(1, window=window, out_shape=shape) != 0
    if marks.alpha is not None and band != marks.alpha + 1:
        valid &= dataset.read(marks.alpha + 1, window=window, out_shape=shape) != 0
    return valid
