"""Metadata of bands that is stored with their pixels: colours, names, units, scales, palettes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rasterio.enums import ColorInterp

from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.pixels import colors_of


@dataclass(frozen=True, slots=True)
class Bands:
    """One entry per band in each tuple; all bands have the same type."""

    dtype: str
    colors: tuple[ColorInterp, ...]
    descriptions: tuple[str | None, ...]
    units: tuple[str | None, ...]
    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    palette: dict[int, tuple[int, int, int, int]] | None = None
    is_point: bool = False

    @staticmethod
    def of(dataset: Any, raster_type: RasterType, *, unset_alpha: bool = False, dtype: str | None = None) -> "Bands":
        colors = colors_of(dataset, raster_type, unset_alpha=unset_alpha)
        return Bands(
            dtype=dtype or str(np.result_type(*dataset.dtypes)),
            colors=colors,
            descriptions=dataset.descriptions,
            units=dataset.units,
            scales=dataset.scales,
            offsets=dataset.offsets,
            palette=dataset.colormap(1) if colors[0] is ColorInterp.palette else None,
            is_point=dataset.tags().get("AREA_OR_POINT") == "Point",
        )
