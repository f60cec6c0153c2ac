"""Rules that need pixels: what is damaged or empty, and which value means nodata."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.source.pixels import storable_nodata
from dagmaster.raster.source.sample import BlockTable, Sample, alpha_band, has_own_mask
from dagmaster.raster.validation.classify import is_alpha_image_data
from dagmaster.raster.validation.findings import Finding, Fix, Fixes, error, info, warn
from dagmaster.raster.validation.header_rules import Ceilings, judge_block

# Values that mean nodata and are never measured.
_SENTINELS = (-9999.0, -99999.0, -32768.0, -32767.0, -2147483648.0, 1e20, 9.969209968386869e36, 1e30, 1e38)
_HUGE = 3.0e38  # near the limits of float32, which programs round in different ways
RuleResult = tuple[Finding, Fixes] | None
_DECLARE = "if a value means nodata, declare it: `gdal_edit.py -a_nodata VALUE file.tif`"
_GDAL_NAMES = {"uint8": "Byte", "int16": "Int16", "uint16": "UInt16", "int32": "Int32", "uint32": "UInt32"}
_PICTURES = (RasterType.RGB, RasterType.RGBA, RasterType.NIR, RasterType.MULTISPECTRAL)


def judge_blocks(facts: RasterFacts, blocks: BlockTable, ceilings: Ceilings) -> list[Finding]:
    """Findings from the block table, before a block is decompressed."""
    findings = list(judge_block(facts, facts.raw_bytes, ceilings)) if blocks.is_one_strip else []
    if blocks.beyond_end:
        findings.append(
            error(
                "raster.truncated",
                f"the file is incomplete: {blocks.beyond_end} of {blocks.looked_up} checked blocks are beyond its end",
                "the upload was cut short: upload it again",
            )
        )
    elif blocks.looked_up and blocks.left_out == blocks.looked_up and blocks.is_complete:
        findings.append(
            error("raster.all-nodata", "none of its blocks is stored: every pixel is nodata", "export it again")
        )
    elif _is_bomb(facts, blocks, ceilings):
        findings.append(
            error(
                "raster.bomb",
                f"its {facts.size_bytes / 2**20:,.1f} MB decompress to {facts.raw_bytes / 2**30:,.0f} GB",
                "if it is almost empty, crop it to its data",
            )
        )
    elif blocks.is_mostly_left_out:
        findings.append(
            info(
                "raster.sparse",
                f"{blocks.left_out} of {blocks.looked_up} checked blocks are not stored: they are nodata",
            )
        )
    return findings


def judge_pixels(facts: RasterFacts, sample: Sample, raster_type: RasterType) -> tuple[list[Finding], Fixes]:
    """Findings from the sample, and the corrections for them."""
    if sample.problem:
        return [
            error(
                "raster.unreadable",
                f"its pixels cannot be read: {sample.problem}",
                "export it again, or upload it again",
            )
        ], Fixes()
    if sample.valid == 0:
        return [_empty(sample)], Fixes()
    fixes = Fixes()
    findings = []
    if sample.minimum == sample.maximum:
        where = "every pixel" if sample.is_whole else "every pixel of the sample"
        findings.append(
            warn(
                "raster.constant", f"{where} has the same value, {sample.minimum:g}", "check that it is the right file"
            )
        )
    for rule in RULES:
        if result := rule(facts, sample, raster_type, fixes):
            finding, fixes = result  # each rule extends the fixes of those before it
            findings.append(finding)
    return findings, fixes


def _is_bomb(facts: RasterFacts, blocks: BlockTable, ceilings: Ceilings) -> bool:
    """Blocks that are not stored take no space, so a sparse file is not a decompression bomb."""
    return (
        facts.size_bytes > 0
        and facts.raw_bytes > ceilings.bomb_bytes
        and facts.raw_bytes > ceilings.bomb_ratio * facts.size_bytes
        and not blocks.is_mostly_left_out
    )


def _empty(sample: Sample) -> Finding:
    if sample.is_whole or sample.is_empty:
        return error("raster.all-nodata", "every pixel is nodata", "check the nodata value, or export it again")
    return warn(
        "raster.nodata-in-sample",
        f"all {sample.pixels:,} pixels of the sample are nodata",
        "check that it is the right file",
    )


def _alpha(facts: RasterFacts, sample: Sample, raster_type: RasterType, fixes: Fixes) -> RuleResult:
    if alpha_band(facts) is None or raster_type is RasterType.RGBA or not is_alpha_image_data(sample):
        return None
    finding = warn(
        "raster.alpha-is-picture",
        "its alpha band looks like image data, probably near infrared, and is treated as such",
        "pass raster_type=rgba if it is alpha",
        Fix.UNSET_ALPHA,
    )
    return finding, replace(fixes, unset_alpha=True)


def infinite_values(number: int, where: str = "") -> Finding:
    """Infinity is data, but has neither mean nor range."""
    return warn(
        "raster.infinite",
        f"{number:,} values{where} are infinite; they are kept, and left out of the statistics",
        "if they mean nodata, declare it: `gdal_edit.py -a_nodata inf file.tif`, or write NaN",
    )


def _infinite(_facts: RasterFacts, sample: Sample, _raster_type: RasterType, fixes: Fixes) -> RuleResult:
    if not sample.infinite:
        return None
    return infinite_values(sample.infinite, "" if sample.is_whole else " of the sample"), fixes


def _undeclared_nodata(facts: RasterFacts, sample: Sample, raster_type: RasterType, fixes: Fixes) -> RuleResult:
    """A value that means nodata, but is not declared."""
    value = _sentinel(facts, sample)
    if facts.nodata is not None:
        return _second_nodata(facts.nodata, value, fixes) if value is not None else None
    if _has_mask(facts, fixes):
        return None
    if value is None and sample.has_nan:
        value = math.nan
    if value is None:
        return _collar_without_nodata(facts, sample, raster_type, fixes)
    message = f"{_text(value)} looks like nodata, but the file does not declare it"
    return warn("raster.undeclared-nodata", message, "", Fix.DECLARE_NODATA), replace(fixes, nodata=value)


def _second_nodata(declared: float, value: float, fixes: Fixes) -> RuleResult:
    message = f"it declares {_text(declared)} as nodata, but {_text(value)} looks like nodata too"
    return warn(
        "raster.second-nodata", message, "write the declared value to all nodata pixels, e.g. with `gdal_calc.py`"
    ), fixes


def _collar_without_nodata(facts: RasterFacts, sample: Sample, raster_type: RasterType, fixes: Fixes) -> RuleResult:
    value = _collar(facts, sample)
    if value is None:
        return None
    message = f"at least two of its corners have only the value {_text(value)}, which looks like a nodata collar"
    if raster_type in _PICTURES:
        finding = warn("raster.collar", f"{message}; the value is treated as nodata", "", Fix.DECLARE_NODATA)
        return finding, replace(fixes, nodata=value)
    # 0 may be a height at sea level or a class.
    advice = f"if it is nodata, declare it: `gdal_edit.py -a_nodata {value:g} file.tif`"
    return warn("raster.collar", f"{message}; the value is kept, because it may be valid", advice), fixes


def _width_of_integers(facts: RasterFacts, sample: Sample, raster_type: RasterType, fixes: Fixes) -> RuleResult:
    """Integers of 32 or 64 bits where fewer are enough, and 8-bit colours in 16 bits. They are converted if all pixels
    were read."""
    dtype = np.dtype(facts.dtype)
    is_wide = dtype.itemsize > 2 or (dtype.itemsize == 2 and raster_type in (RasterType.RGB, RasterType.RGBA))
    if dtype.kind not in "iu" or not is_wide or len({band.dtype for band in facts.bands}) > 1:
        return None
    # An alpha band of 8 bits has another value for opaque.
    if alpha_band(facts) is not None:
        return None
    nodata = [band.nodata for band in facts.bands if band.nodata is not None]
    narrow = _narrowest([sample.minimum, sample.maximum, *nodata])
    if np.dtype(narrow).itemsize >= dtype.itemsize:
        return None
    if sample.is_whole:
        message = f"its values are {facts.dtype}, but all of them fit into {narrow} and are stored as {narrow}"
        return warn("raster.wide-integers", message, "", Fix.NARROW_DTYPE), replace(fixes, dtype=narrow)
    message = f"its values are {facts.dtype}, but those of the sample fit into {narrow}; they are not converted"
    advice = f"if all of them fit, convert it: `gdal_translate -ot {_GDAL_NAMES[narrow]} in.tif out.tif`"
    return warn("raster.wide-integers", message, advice), fixes


def _narrowest(values: list[float]) -> str:
    for name in ("uint8", "int16", "uint16", "int32", "uint32"):
        limits = np.iinfo(name)
        if all(limits.min <= value <= limits.max for value in values):
            return name
    return "int64"


def _missing_nodata(facts: RasterFacts, sample: Sample, raster_type: RasterType, fixes: Fixes) -> RuleResult:
    """Reprojection leaves pixels without data at the edges: they must be marked."""
    if facts.nodata is not None or fixes.nodata is not None or _has_mask(facts, fixes):
        return None
    value = _free_value(fixes.dtype or facts.dtype, sample, raster_type)
    message = "it declares no nodata value"
    if value is not None:
        pixels = "pixel" if sample.is_whole else "pixel of the sample"
        message += f"; {_text(value)}, which no {pixels} has, is used"
        return warn("raster.no-nodata", message, _DECLARE, Fix.DECLARE_NODATA), replace(fixes, nodata=value)
    edges = "a mask marks the pixels of the output that are beyond the edges of the file"
    if raster_type in _PICTURES:  # pictures use every value and need no nodata value
        return info("raster.all-data", f"all of its pixels are valid; {edges}", "", Fix.ADD_MASK), fixes
    return warn(
        "raster.no-nodata", f"{message}, and no value is known to be unused; {edges}", _DECLARE, Fix.ADD_MASK
    ), fixes


def _free_value(dtype: str, sample: Sample, raster_type: RasterType) -> float | None:
    """A value that no pixel of the sample has. For 8 bits, where every value is likely, all pixels must be read."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return math.nan
    if kind.itemsize == 1 and not (sample.is_whole and raster_type not in _PICTURES):
        return None
    limits = np.iinfo(dtype)
    ends = (limits.max, limits.min) if dtype == "uint8" else (limits.min, limits.max)
    values = [storable_nodata(end, kind) for end in ends]
    return next((value for value in values if not sample.minimum <= value <= sample.maximum), None)


def _common_type(facts: RasterFacts, _sample: Sample, _raster_type: RasterType, fixes: Fixes) -> RuleResult:
    """The type that all bands are stored in; the header rules report that the types differ."""
    kinds = {band.dtype for band in facts.bands}
    if len(kinds) == 1:
        return None
    common = str(np.result_type(*kinds))
    return info("raster.common-type", f"all bands are stored as {common}", "", Fix.COMMON_DTYPE), replace(
        fixes, dtype=common
    )


RULES: tuple[Callable[[RasterFacts, Sample, RasterType, Fixes], RuleResult], ...] = (
    _alpha,
    _infinite,
    _undeclared_nodata,
    _width_of_integers,
    _missing_nodata,
    _common_type,
)


def _sentinel(facts: RasterFacts, sample: Sample) -> float | None:
    """A sentinel at an end of the range of valid values. Pixels with the declared nodata value are not valid."""
    for end in (sample.minimum, sample.maximum):
        if end in _SENTINELS and not facts.dtype.startswith("uint"):
            return end
        if facts.dtype.startswith("float") and _HUGE < abs(end) < math.inf:
            return end
    return None


def _collar(facts: RasterFacts, sample: Sample) -> float | None:
    """The value that fills at least two corners in every band, if other pixels have other values."""
    dtype = np.dtype(facts.dtype)
    suspects = (0.0,) if dtype.kind == "f" else (0.0, float(np.iinfo(dtype).max))
    filled = [float(corner.flat[0]) for corner in sample.corners if corner.size and (corner == corner.flat[0]).all()]
    for value in suspects:
        is_all = sample.minimum == sample.maximum == value
        if filled.count(value) >= 2 and not is_all and facts.nodata is None:
            return value
    return None


def _has_mask(facts: RasterFacts, fixes: Fixes) -> bool:
    has_alpha = alpha_band(facts) is not None and not fixes.unset_alpha
    return has_alpha or has_own_mask(facts)


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:g}"
