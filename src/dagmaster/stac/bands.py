"""Bands, projection and classes of a raster, as STAC 1.1 and its extensions define them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rasterio.crs import CRS

from dagmaster.data_types import data_type_name
from dagmaster.stac.values import Band, Cog, Facts, Json, Statistics
from dagmaster.web_mercator import METRES_PER_DEGREE

CRS_CODE = re.compile(r"[A-Za-z_0-9]+:[A-Za-z0-9_.-]+")
_EPSG = re.compile(r"EPSG:(\d{1,9})")
# The common names of the eo extension that a band's name or colour may have.
_COMMON_NAMES = frozenset(
    [
        *("coastal", "blue", "green", "red", "rededge", "yellow", "pan", "nir", "nir08", "nir09", "cirrus"),
        *("swir16", "swir22", "lwir", "lwir11", "lwir12"),
    ]
)


def bands(cog: Cog) -> list[Json]:
    """One object per band, with its statistics if there are any."""
    resolution = resolution_metres(cog.facts)
    statistics = [*cog.statistics, *[None] * (len(cog.facts.bands) - len(cog.statistics))]
    return [
        _band(cog, number, band, statistics[number - 1], resolution)
        for number, band in enumerate(cog.facts.bands, start=1)
    ]


def eo_bands(bands: Sequence[Json]) -> list[Json]:
    """The names of the bands in the form of STAC 1.0, by which odc-stac finds bands."""
    return [{"name": band["name"], **_common_name(band)} for band in bands]


def _common_name(band: Json) -> Json:
    names = (str(band.get(key, "")).strip().lower() for key in ("name", "description"))
    return next(({"common_name": name} for name in names if name in _COMMON_NAMES), {})


def number(value: float) -> float | str:
    """A number for JSON, which has neither NaN nor infinity: STAC writes them as strings."""
    if isinstance(value, int):
        return value
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value)


def projection(facts: Facts) -> Json:
    """The `proj:` fields of an asset; a CRS without a code is written as WKT."""
    fields: Json = crs_fields(facts)
    fields["proj:shape"] = [facts.height, facts.width]
    if facts.transform:
        fields["proj:transform"] = [*map(float, facts.transform), 0.0, 0.0, 1.0]
    if facts.bounds:
        fields["proj:bbox"] = [float(edge) for edge in facts.bounds]
    return fields


def crs_fields(facts: Facts) -> Json:
    if facts.crs is None:
        return {}
    if CRS_CODE.fullmatch(facts.crs):
        epsg = _EPSG.fullmatch(facts.crs)
        return {"proj:code": facts.crs, **({"proj:epsg": int(epsg[1])} if epsg else {})}
    return {"proj:wkt2": CRS.from_user_input(facts.crs).to_wkt(version="WKT2_2019")}


def resolution_metres(facts: Facts) -> float | None:
    """The ground size of a pixel, averaged over both directions, to five digits."""
    if facts.crs is None or facts.transform is None or facts.bounds is None:
        return None
    a, b, _, d, e, _ = facts.transform
    across, down = math.hypot(a, d), math.hypot(b, e)
    crs = CRS.from_user_input(facts.crs)
    if crs.is_geographic:
        middle = math.radians((facts.bounds[1] + facts.bounds[3]) / 2)
        factor = math.degrees(crs.units_factor[1]) * METRES_PER_DEGREE
        across *= max(math.cos(middle * math.degrees(crs.units_factor[1])), 1e-6)
    else:
        factor = float(crs.units_factor[1])
    size = factor * math.sqrt(across * down)
    return float(f"{size:.5g}")


def classes(cog: Cog) -> list[Json] | None:
    """The classes of a palette. The caller passes names; a value without one is named by its number."""
    band_number = next((band_number for band_number, band in enumerate(cog.facts.bands, start=1) if band.palette), None)
    if band_number is None:
        return None
    band = cog.facts.bands[band_number - 1]
    return [_class(value, colour, band, cog.class_names) for value, colour in palette_in_use(cog, band_number).items()]


def palette_in_use(cog: Cog, band_number: int) -> dict[int, tuple[int, int, int, int]]:
    """TIFF palettes are padded with black: entries after the last colour and the last value are not classes."""
    palette = cog.facts.bands[band_number - 1].palette or {}
    statistics = cog.statistics[band_number - 1] if band_number <= len(cog.statistics) else None
    coloured = [value for value, colour in palette.items() if any(colour[:3])]
    last = max([*coloured, *cog.class_names, statistics.maximum if statistics else 0])
    return {value: colour for value, colour in sorted(palette.items()) if value <= last}


def _class(value: int, colour: Sequence[int], band: Band, names: Mapping[int, str]) -> Json:
    title = names.get(value)
    name = re.sub(r"[^0-9A-Za-z_-]+", "-", title).strip("-") if title else ""
    fields: Json = {
        "value": value,
        "name": name or f"class-{value}",
        "color_hint": "{:02X}{:02X}{:02X}".format(*colour[:3]),
    }
    if title:
        fields["title"] = title
    if band.nodata == value:
        fields["nodata"] = True
    return fields


def _band(cog: Cog, band_number: int, band: Band, statistics: Statistics | None, resolution: float | None) -> Json:
    fields: dict[str, Any] = {
        "name": cog.band_names[band_number - 1] if band_number <= len(cog.band_names) else f"b{band_number}",
        "description": band.description or (band.color if band.color not in ("undefined", "gray", "palette") else None),
        "data_type": data_type_name(band.dtype),
        "nodata": None if band.nodata is None else number(band.nodata),
        "unit": band.unit,
        "statistics": statistics and _statistics(statistics),
        "raster:sampling": "point" if cog.facts.is_point else "area",
        "raster:spatial_resolution": resolution,
        "raster:scale": number(band.scale),
        "raster:offset": number(band.offset),
        "raster:bits_per_sample": band.bits,
        "raster:histogram": statistics and _histogram(statistics),
        "dagmaster:statistics_approximate": (statistics and statistics.approximate) or None,
        "dagmaster:statistics_before_compression": (statistics and statistics.before_compression) or None,
        "dagmaster:percentile_error": statistics and statistics.percentile_error,
        "dagmaster:infinite": (statistics and statistics.infinite) or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _statistics(statistics: Statistics) -> Json:
    return {
        "minimum": number(statistics.minimum),
        "maximum": number(statistics.maximum),
        "mean": float(statistics.mean),
        "stddev": float(statistics.stddev),
        "valid_percent": round(float(statistics.valid_percent), 4),
        "count": int(statistics.count),
    }


def _histogram(statistics: Statistics) -> Json:
    histogram = statistics.histogram
    return {
        "count": len(histogram.buckets),
        "min": number(histogram.minimum),
        "max": number(histogram.maximum),
        "buckets": [int(bucket) for bucket in histogram.buckets],
    }
