"""Read rasters that the platform has written, with a mask of their valid pixels.

A pixel of a band is valid unless the declared nodata value, a mask, an alpha band, NaN or infinity marks it as nodata.
"""

import contextlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import RasterioError
from rasterio.windows import Window

from dagmaster.errors import Unavailable, UnfitData
from dagmaster.raster.source.opening import short_name


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
        firsts = [dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1, ovr=level) for level in levels]
    offsets = [int(first) for first in firsts if first]
    return min(offsets) if offsets else None


def data_bands(dataset: Any) -> list[int]:
    """All bands but alpha."""
    return [band for band in dataset.indexes if not is_alpha(dataset, band)]


def is_alpha(dataset: Any, band: int) -> bool:
    return bool(dataset.colorinterp[band - 1] is ColorInterp.alpha)


def is_all_valid(dataset: Any, band: int) -> bool:
    """Whether the header guarantees that every pixel of the band is valid."""
    flags = dataset.mask_flag_enums[band - 1]
    return (
        MaskFlags.all_valid in flags and np.dtype(dataset.dtypes[band - 1]).kind in "iu" and not _alphas(dataset, band)
    )


def read_with_validity(
    dataset: Any, band: int, window: Window | None = None, shape: tuple[int, int] | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values of a band, and the mask of valid ones."""
    values = dataset.read(band, window=window, out_shape=shape)
    if values.dtype.kind == "c":
        raise UnfitData("complex numbers are not supported", code="raster.complex", hint="store real bands")
    return values, _validity(dataset, band, values, window, shape)


def _validity(
    dataset: Any, band: int, values: NDArray[Any], window: Window | None, shape: tuple[int, int] | None
) -> NDArray[np.bool_]:
    valid = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, dtype=np.bool_)
    nodata = dataset.nodatavals[band - 1]
    if nodata is not None and np.isfinite(nodata):
        valid &= values != nodata
    flags = dataset.mask_flag_enums[band - 1]
    if MaskFlags.per_dataset in flags:
        valid &= dataset.read_masks(band, window=window, out_shape=shape) != 0
    for alpha in _alphas(dataset, band):
        valid &= dataset.read(alpha, window=window, out_shape=shape) != 0
    return valid


def _alphas(dataset: Any, band: int) -> list[int]:
    """GDAL ignores the alpha band if a nodata value is declared; this module uses both."""
    return [other for other in dataset.indexes if other != band and is_alpha(dataset, other)]
