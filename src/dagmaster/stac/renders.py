"""How a raster is rendered by default, as the render extension defines.

Every item has a render: map servers do not take a value range from statistics, and without one elevations appear white.
"""

from collections.abc import Sequence

from dagmaster.stac.bands import number, palette_in_use
from dagmaster.stac.values import Band, Cog, Json, Statistics

_COLORMAPS = {"dem": "terrain", "vegetation_index": "rdylgn", "categorical": "tab20"}
_TITLES = {
    "rgb": "Natural colours",
    "rgba": "Natural colours",
    "dem": "Terrain",
    "categorical": "Classes",
    "nir": "Colours",
    "vegetation_index": "Vegetation index",
    "multispectral": "Colours",
}
_LIMITS: dict[str, tuple[float, float]] = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
}
# Red, green and blue by name, and by the band numbers of Sentinel-2 and others.
_NATURAL = (("red", "green", "blue"), ("b04", "b03", "b02"), ("b4", "b3", "b2"))
_MULTIBAND = ("rgb", "rgba", "multispectral", "nir")


def renders(cog: Cog) -> Json:
    """The render `default` of the asset `data`."""
    shown = _shown(cog)
    band = cog.facts.bands[shown[0] - 1]
    default: Json = {"title": _TITLES.get(cog.raster_type, "Values"), "assets": ["data"]}
    if len(cog.facts.bands) > 1:
        default["bidx"] = shown
    if band.palette and cog.raster_type not in _MULTIBAND:
        default["colormap"] = {str(value): _hex(colour) for value, colour in palette_in_use(cog, shown[0]).items()}
    else:
        default["rescale"] = [_range(cog, band_number) for band_number in shown]
        if len(shown) == 1 and cog.raster_type in _COLORMAPS:
            default["colormap_name"] = _COLORMAPS[cog.raster_type]
    default["resampling"] = "nearest" if cog.raster_type == "categorical" or band.palette else "bilinear"
    if band.nodata is not None:
        default["nodata"] = number(band.nodata)
    return {"default": default}


def _shown(cog: Cog) -> list[int]:
    """The bands to show: red, green and blue if known, else the first three of a multiband raster, else the first."""
    numbered = list(enumerate(cog.facts.bands, start=1))[::-1]
    for number_by_name in (
        {band.color: band_number for band_number, band in numbered},
        {(band.description or "").strip().lower(): band_number for band_number, band in numbered},
    ):
        for wanted in _NATURAL:
            if all(name in number_by_name for name in wanted):
                return [number_by_name[name] for name in wanted]
    data = [band_number for band_number, band in enumerate(cog.facts.bands, start=1) if band.color != "alpha"] or [1]
    return data[:3] if cog.raster_type in _MULTIBAND and len(data) >= 3 else data[:1]


def _range(cog: Cog, band_number: int) -> list[float]:
    band = cog.facts.bands[band_number - 1]
    statistics = cog.statistics[band_number - 1] if band_number <= len(cog.statistics) else None
    # Photographs are not stretched: a separate stretch of each colour would change the hues.
    if cog.raster_type in ("rgb", "rgba") and band.dtype == "uint8":
        return [0, 255]
    return _stretch(statistics) if statistics else _whole(band)


def _stretch(statistics: Statistics) -> list[float]:
    """Two percent at each end may saturate, so that a few outliers do not reduce the contrast."""
    low, high = (_short(statistics.percentiles[rank]) for rank in (2, 98))
    if low >= high:
        low, high = _short(statistics.minimum), _short(statistics.maximum)
    return [low, high] if low < high else [low, low + 1]


def _whole(band: Band) -> list[float]:
    """The range if there are no statistics: that of the data type, for small integers."""
    low, high = _LIMITS.get(band.dtype, (0, 1))
    return [low, high]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in (colour[:3] if colour[3:] == (255,) else colour))
