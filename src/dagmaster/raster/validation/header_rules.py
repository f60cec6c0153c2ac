"""Rules that need only a file's headers. Each takes the facts and yields findings."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dagmaster.errors import UnfitData
from dagmaster.raster.source.crs import CrsFacts, describe_crs
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.raster.source.sample import alpha_band, color_bands, has_own_mask
from dagmaster.raster.validation.findings import Finding, Fix, error, info, warn

_FEET = ("foot", "feet", "ft", "us-ft")
# Eastings that begin with the number of the zone reach 61,000 km. PROJ accepts any number.
_FARTHEST_METRES = 1e8
_MIN_DEGREES = 2e-7  # positions have seven decimals
_GOOD_BLOCKS = range(256, 1025)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Limits for values in a header; a file above them is rejected. The operator may change them."""

    side: int = 2_000_000  # pixels
    pixels: int = 250_000_000_000
    raw_bytes: int = 2 * 10**12
    bands: int = 1024
    block_bytes: int = 512 * 2**20  # a compressed block is decompressed as a whole, in memory
    bomb_bytes: int = 8 * 2**30  # uncompressed; above this size …
    bomb_ratio: int = 1000  # … a file that expands by more than this is a decompression bomb


def require_few_bands(count: int, ceilings: Ceilings) -> None:
    """Checked before the facts are read, because these have an entry for every band."""
    if count > ceilings.bands:
        raise UnfitData(
            f"the header claims {count:,} bands",
            code="raster.too-large",
            hint=f"submit at most {ceilings.bands:,} bands in a file, or check how it was exported",
        )


def judge_header(facts: RasterFacts, ceilings: Ceilings) -> list[Finding]:
    """The findings of all rules."""
    findings = list(_size(facts, ceilings))
    for rule in RULES:
        findings += rule(facts)
    return findings


def _size(facts: RasterFacts, ceilings: Ceilings) -> Iterator[Finding]:
    shape = f"{facts.width:,} × {facts.height:,} pixels, {facts.count} bands of {facts.dtype}"
    if (
        max(facts.width, facts.height) > ceilings.side
        or facts.pixels > ceilings.pixels
        or facts.raw_bytes > ceilings.raw_bytes
        or facts.count > ceilings.bands
    ):
        yield error(
            "raster.too-large", f"the header claims {shape}", "split it into parts, or check how it was exported"
        )
    rows, columns = facts.block_shape
    by_band = (facts.interleave or "").upper() == "BAND"
    yield from judge_block(
        facts, rows * columns * facts.bytes_per_pixel // (facts.count if by_band and facts.count else 1), ceilings
    )


def judge_block(facts: RasterFacts, block_bytes: int, ceilings: Ceilings) -> Iterator[Finding]:
    """A compressed block is decompressed as a whole."""
    if block_bytes > ceilings.block_bytes and (facts.compression or "").upper() not in ("", "NONE"):
        yield error(
            "raster.block-too-large",
            f"its blocks have {block_bytes / 2**20:,.0f} MB, and each must be decompressed to read a part of it",
            "rewrite it in tiles: `gdal_translate -co TILED=YES -co COMPRESS=DEFLATE in.tif out.tif`",
        )


def _bands(facts: RasterFacts) -> Iterator[Finding]:
    if not facts.bands:
        yield error("raster.no-bands", "the file has no bands", "it may be a container: export the layer that you need")
        return
    if any(band.dtype.startswith("complex") for band in facts.bands):
        yield error(
            "raster.complex",
            f"the values are complex numbers ({facts.dtype}), as in unprocessed radar data",
            "submit amplitude, intensity or phase as real numbers",
        )
    kinds = sorted({band.dtype for band in facts.bands})
    if len(kinds) > 1:
        yield warn("raster.mixed-types", f"the bands have different types: {', '.join(kinds)}", "", Fix.COMMON_DTYPE)
    values = {_comparable(facts.bands[number - 1].nodata) for number in color_bands(facts)}
    if len(values) > 1:
        yield warn(
            "raster.mixed-nodata",
            "the bands declare different nodata values",
            "a GeoTIFF has one nodata value: write the same value to each band, or submit the bands separately",
        )
    if min(facts.width, facts.height) == 1:
        yield warn(
            "raster.thin",
            f"it is only one pixel {'wide' if facts.width == 1 else 'high'}",
            "check that it is the right file",
        )
    if facts.pages > 1:
        yield warn(
            "raster.pages",
            f"the file has {facts.pages} images; the first one is used",
            "submit the others as separate files",
        )


def _georeference(facts: RasterFacts) -> Iterator[Finding]:
    if facts.transform is not None:
        yield from _grid(facts)
    elif facts.gcp_count:
        yield error(
            "raster.gcp-only",
            f"it is georeferenced by {facts.gcp_count} ground control points, not by a geotransform",
            "rectify it: `gdalwarp -tps -r bilinear in.tif out.tif`",
        )
    elif facts.has_rpc:
        yield error(
            "raster.rpc-only",
            "it is a raw satellite scene, georeferenced by RPC coefficients only",
            "orthorectify it with a terrain model: `gdalwarp -rpc -to RPC_DEM=dem.tif in.tif out.tif`",
        )
    else:
        note = "" if facts.driver == "GTiff" else f" ({facts.driver} files cannot contain one)"
        yield error(
            "raster.no-georeference",
            f"the file has no georeference{note}",
            "side-car files (world files) are not read: include them with `gdal_translate in.tif out.tif`",
        )


def _grid(facts: RasterFacts) -> Iterator[Finding]:
    assert facts.transform is not None
    a, _, _, _, e, _ = facts.transform
    if not _has_area(facts):
        yield error(
            "raster.bad-transform",
            "its pixels have no size",
            "export it again, or set its bounds: `gdal_edit.py -a_ullr … file.tif`",
        )
    elif facts.is_rotated:
        yield warn("raster.rotated", "its grid is rotated", "it is resampled to a north-up grid", Fix.RESAMPLE_NORTH_UP)
    elif e > 0 or a < 0:
        yield warn(
            "raster.flipped",
            "its rows go from south to north, or its columns from east to west",
            "",
            Fix.RESAMPLE_NORTH_UP,
        )
    elif abs(abs(a) - abs(e)) > 1e-6 * abs(a):
        yield info("raster.oblong-pixels", f"its pixels are not square: {abs(a):g} by {abs(e):g}")
    if facts.is_point:
        yield info("raster.point", "its values are at points, the centres of the pixels (AREA_OR_POINT=Point)")


def _reference_system(facts: RasterFacts) -> Iterator[Finding]:
    if facts.crs is None:
        yield error("raster.no-crs", "the file has no CRS", "pass `source_crs`, e.g. EPSG:32633")
        return
    crs = describe_crs(facts.crs)
    if not crs.is_earth:
        assert crs.radius_metres is not None
        yield error(
            "raster.not-earth",
            f"its CRS '{crs.name}' is not on Earth (the radius of its body is {crs.radius_metres / 1000:,.0f} km)",
            "other celestial bodies are not supported; if the data is of the Earth, pass `source_crs`",
        )
    elif crs.is_local:
        yield error(
            "raster.local-crs",
            f"its CRS '{crs.name}' is local: its position on Earth is not known",
            "pass `source_crs`, e.g. EPSG:32633",
        )
    elif facts.bounds is not None and _has_area(facts):
        yield from _position(facts, crs)
    if facts.file_crs and facts.file_crs != facts.crs:
        file_crs = facts.file_crs if len(facts.file_crs) < 40 else describe_crs(facts.file_crs).name
        yield warn(
            "raster.crs-overridden",
            f"the CRS in the file is {file_crs}; `source_crs` is used instead",
            "check `source_crs`",
            Fix.ASSUME_CRS,
        )
    elif not facts.file_crs:
        yield info("raster.crs-given", "the file has no CRS; `source_crs` is used", "", Fix.ASSUME_CRS)
    yield from _units(facts, crs)


def _position(facts: RasterFacts, crs: CrsFacts) -> Iterator[Finding]:
    assert facts.bounds is not None
    west, south, east, north = facts.bounds
    if crs.is_geographic:
        yield from _degrees(facts)
    elif min(east - west, north - south) * (crs.metres_per_unit or 1) < _MIN_DEGREES * 111_000:
        yield error(
            "raster.no-footprint",
            "it is only centimetres wide or high, less than a footprint can describe",
            "if the unit of its coordinates is not that of its CRS, pass the right `source_crs`",
        )
    elif facts.bounds_4326 is None or max(map(abs, facts.bounds)) * (crs.metres_per_unit or 1) > _FARTHEST_METRES:
        yield error(
            "raster.off-earth", "in its CRS, its coordinates are not on Earth", "if the CRS is wrong, pass `source_crs`"
        )
    elif max(abs(west), abs(east)) <= 360 and max(abs(south), abs(north)) <= 90 and min(facts.resolution or (1,)) < 0.1:
        yield warn(
            "raster.degrees",
            f"its coordinates look like degrees, but '{crs.name}' is in {crs.unit}",
            "if they are degrees, pass `source_crs`, e.g. EPSG:4326",
        )
    elif crs.area_of_use and not facts.bounds_4326.intersects(crs.area_of_use):
        yield warn(
            "raster.outside-area",
            f"it is outside the area of use of '{crs.name}': "
            f"longitude {facts.bounds_4326.west:.2f}, latitude {facts.bounds_4326.south:.2f}",
            "the CRS may be wrong, or its axes swapped: check it on a map before you approve it",
        )


def _degrees(facts: RasterFacts) -> Iterator[Finding]:
    assert facts.bounds is not None
    west, south, east, north = facts.bounds
    tolerance = 1.0 * max(facts.resolution or (0,))  # grids of points extend half a pixel beyond the poles
    in_range = (
        south >= -90 - tolerance and north <= 90 + tolerance and west >= -360 - tolerance and east <= 540 + tolerance
    )
    if in_range and min(east - west, north - south) < _MIN_DEGREES:
        yield error(
            "raster.no-footprint",
            "it is only centimetres wide or high, less than a footprint can describe",
            "if its coordinates are not degrees, pass the right `source_crs`",
        )
        return
    if in_range and east - west <= 360 + 2 * tolerance:
        if east > 180 + tolerance or west < -180 - tolerance:
            yield info("raster.longitudes", f"its longitudes range from {west:g} to {east:g}", "", Fix.WRAP_LONGITUDES)
        return
    is_swapped = max(abs(west), abs(east)) <= 90 and max(abs(south), abs(north)) <= 360
    yield error(
        "raster.axes-swapped" if is_swapped else "raster.out-of-range",
        f"its coordinates are not degrees: x from {west:g} to {east:g}, y from {south:g} to {north:g}",
        "latitude and longitude look swapped: export it again"
        if is_swapped
        else "they look like metres: pass the right `source_crs`",
    )


def _units(facts: RasterFacts, crs: CrsFacts) -> Iterator[Finding]:
    if crs.metres_per_unit and crs.metres_per_unit != 1:
        is_feet = any(word in (crs.unit or "").lower() for word in ("foot", "feet"))
        code = "raster.feet" if is_feet else "raster.units"
        yield info(code, f"its coordinates are in {crs.unit}; they are converted")
    if facts.vertical_crs:
        yield info("raster.vertical-crs", f"its heights refer to '{facts.vertical_crs}'; they are not converted")
    units = {(band.unit or "").lower() for band in facts.bands}
    if any(unit in _FEET or "foot" in unit for unit in units):
        yield info("raster.heights-in-feet", "its values are in feet; they are not converted, and the unit is kept")


def _layout(facts: RasterFacts) -> Iterator[Finding]:
    rows, columns = facts.block_shape
    if max(facts.width, facts.height) <= 512:
        return  # one block
    if facts.is_cog:
        yield info("raster.cog", "it is already a Cloud Optimized GeoTIFF")
    if not facts.has_blocks:
        yield warn(
            "raster.striped", f"it is stored in strips of {rows} rows; parts of it are slow to read", "", Fix.RETILE
        )
    elif rows not in _GOOD_BLOCKS or columns not in _GOOD_BLOCKS:
        yield warn("raster.block-size", f"its blocks are {columns} × {rows} pixels", "", Fix.RETILE)


def _values(facts: RasterFacts) -> Iterator[Finding]:
    if any(band.palette or band.color == "palette" for band in facts.bands):
        yield info("raster.palette", "its values are indices into a palette; they are never averaged")
    if any(band.color == "palette" and not band.palette for band in facts.bands):
        yield warn(
            "raster.no-color-table",
            "its values are indices into a palette, but it has no colour table; the outputs have no palette",
            "add one with `gdaldem color-relief` or `gdal_edit.py`, or pass raster_type if the values are not classes",
        )
    if any(band.scale != 1 or band.offset != 0 for band in facts.bands):
        yield info("raster.packed", "its values are packed (scale and offset); both are kept")
    if any(band.bits for band in facts.bands):
        yield info("raster.bits", f"it uses {max(band.bits or 0 for band in facts.bands)} bits of each value")
    if "float64" in {band.dtype for band in facts.bands}:
        yield info(
            "raster.wide-float",
            "its values are 64-bit floats, twice the size that measurements need",
            "consider float32",
        )
    colors = {band.color for band in facts.bands}
    if {"red", "green", "blue"} <= colors and facts.dtype != "uint8":
        yield info(
            "raster.wide-rgb",
            f"its colours are {facts.dtype}: they cannot be stored as JPEG, and a map needs a value range to show them",
            "use the analysis or archive tier, or scale it to 8 bits for viewing",
        )


def _nodata(facts: RasterFacts) -> Iterator[Finding]:
    alpha = alpha_band(facts)
    if facts.nodata is not None and alpha:
        yield warn(
            "raster.alpha-and-nodata",
            "it has both an alpha band and a nodata value; alpha is used",
            "keep one of them",
            Fix.USE_ALPHA,
        )
    elif facts.nodata is not None and has_own_mask(facts):
        yield warn(
            "raster.mask-and-nodata",
            "it has both a mask and a nodata value; the mask is used",
            "keep one of them",
            Fix.USE_MASK,
        )
    if facts.nodata is not None and math.isnan(facts.nodata):
        yield info("raster.nan-nodata", "nodata is NaN")
    impossible = next((band.impossible_nodata for band in facts.bands if band.impossible_nodata is not None), None)
    if impossible is not None:
        yield warn(
            "raster.impossible-nodata",
            f"its nodata value {impossible:g} is not a {facts.dtype}, so no pixel can have it; it is ignored",
            "declare the value that the file uses: `gdal_edit.py -a_nodata 0 file.tif`",
            Fix.DROP_NODATA,
        )


RULES: tuple[Callable[[RasterFacts], Iterator[Finding]], ...] = (
    _bands,
    _georeference,
    _reference_system,
    _layout,
    _values,
    _nodata,
)


def _has_area(facts: RasterFacts) -> bool:
    """Whether a pixel has an area."""
    if facts.transform is None or not all(map(math.isfinite, facts.transform)):
        return False
    a, b, _, d, e, _ = facts.transform
    return a * e - b * d != 0


def _comparable(nodata: float | None) -> float | str | None:
    return "nan" if nodata is not None and math.isnan(nodata) else nodata
