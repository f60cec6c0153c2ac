"""Detect the type of a raster from its bands, colours, names and a sample of its values."""

import re

import numpy as np

from dagmaster.raster.source.classes import are_classes
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.source.sample import Array, Sample, alpha_band, color_bands

_INDEX = re.compile(r"(?<![a-z])(ndvi|evi2?|savi|msavi|ndwi|ndmi|gndvi|lai|fapar|vegetation.?index)(?![a-z])")
_HEIGHT = re.compile(r"(?<![a-z])(dem|dtm|dsm|dhm|elevation|elev|altitude|terrain|srtm|bathymetry|height)(?![a-z])")
_CLASSES = re.compile(
    r"(?<![a-z])(class|classes|classification|land.?cover|land.?use|lulc|category|categories|mask)(?![a-z])"
)
_NIR = re.compile(r"(?<![a-z])(nir\d?|near.?infra.?red)(?![a-z])")
_HEIGHT_UNITS = {"m", "metre", "meter", "metres", "meters", "ft", "feet", "foot", "us survey foot"}

_HEIGHTS = (-500.0, 9000.0)


def classify(facts: RasterFacts, sample: Sample | None = None) -> RasterType:
    """The most likely type; UNKNOWN rather than a guess that could damage the data."""
    sample = sample or Sample()
    colors = color_bands(facts)
    if not colors:
        return RasterType.UNKNOWN
    if any(band.palette or band.color == "palette" for band in facts.bands):
        return RasterType.CATEGORICAL
    if len(colors) == 1:
        return _one_band(facts, colors[0], sample)
    return _many_bands(facts, colors, sample)


def _one_band(facts: RasterFacts, number: int, sample: Sample) -> RasterType:
    band = facts.bands[number - 1]
    words = _words(facts)
    if _NIR.search(words) or band.color == "nir":
        return RasterType.NIR
    if _INDEX.search(words):
        return RasterType.VEGETATION_INDEX
    if _CLASSES.search(words) and band.dtype.startswith(("int", "uint")):
        return RasterType.CATEGORICAL
    if _HEIGHT.search(words) or ((band.unit or "").lower() in _HEIGHT_UNITS and _is_smooth(sample)):
        return RasterType.DEM
    if are_classes((patch.values[0], patch.valid[0]) for patch in sample.patches):
        return RasterType.CATEGORICAL
    if _is_like_an_index(band.dtype, sample):
        return RasterType.VEGETATION_INDEX
    if _is_like_heights(band.dtype, sample):
        return RasterType.DEM
    return RasterType.UNKNOWN


def _many_bands(facts: RasterFacts, colors: list[int], sample: Sample) -> RasterType:
    names = [facts.bands[number - 1].color for number in colors]
    described = " ".join((facts.bands[number - 1].description or "").lower() for number in colors)
    has_alpha = alpha_band(facts) is not None
    is_rgb = {"red", "green", "blue"} <= set(names) or all(
        word in described.split() for word in ("red", "green", "blue")
    )
    is_byte = all(facts.bands[number - 1].dtype == "uint8" for number in colors)
    is_infrared = "nir" in names or _NIR.search(described) is not None
    if is_infrared and len(colors) <= 4:
        return RasterType.NIR
    if len(colors) == 3 and has_alpha and is_alpha_image_data(sample):
        return RasterType.NIR
    if len(colors) == 3 and (is_rgb or is_byte):
        return RasterType.RGBA if has_alpha else RasterType.RGB
    if len(colors) == 4 and is_byte and not has_alpha and _is_like_alpha(sample):
        return RasterType.RGBA
    if len(colors) == 4 and is_rgb:
        return RasterType.NIR
    return RasterType.MULTISPECTRAL


def is_alpha_image_data(sample: Sample) -> bool:
    """Whether the alpha band holds image data: GDAL marks the fourth band of every 8-bit file as alpha, even near
    infrared. Real alpha is mostly 0 or 255."""
    return sample.half_transparent > 0.5


def _words(facts: RasterFacts) -> str:
    parts = [
        facts.name,
        *(band.description or "" for band in facts.bands),
        (facts.tags or {}).get("TIFFTAG_IMAGEDESCRIPTION", ""),
    ]
    return " ".join(parts).lower()


def _is_like_an_index(dtype: str, sample: Sample) -> bool:
    """Whether values are like those of a normalised difference: between -1 and 1, on both sides of zero."""
    return dtype.startswith("float") and -1.0 <= sample.minimum < -0.02 and 0.1 < sample.maximum <= 1.0


def _is_like_heights(dtype: str, sample: Sample) -> bool:
    low, high = _HEIGHTS
    in_range = low <= sample.minimum and sample.maximum <= high and sample.maximum - sample.minimum > 20
    return dtype in ("int16", "int32", "float32", "float64") and in_range and _is_smooth(sample)


def _is_smooth(sample: Sample) -> bool:
    """Whether differences between neighbours are small compared with the range of the values."""
    differences = [np.abs(difference) for difference in _differences(sample)]
    spread = sample.maximum - sample.minimum
    if not differences or not np.isfinite(spread) or spread == 0:
        return False
    return bool(np.concatenate(differences).mean() < spread / 20)


def _differences(sample: Sample) -> list[Array]:
    """Differences between neighbours in a row, where both are valid."""
    differences = [
        np.diff(patch.values[0].astype("float64"), axis=1)[patch.valid[0][:, 1:] & patch.valid[0][:, :-1]]
        for patch in sample.patches
    ]
    return [difference for difference in differences if difference.size]


def _is_like_alpha(sample: Sample) -> bool:
    """Whether the fourth band has no values but 0 and 255."""
    values = sample.values(3) if sample.patches and len(sample.patches[0].values) > 3 else np.empty(0)
    return values.size > 0 and bool(np.isin(values, (0, 255)).all())
