"""Check a raster file, in the order of cost: name and format, headers, block table, a few pixels.

The first stage with an error ends the check, so that an invalid file is not read further. For untrusted files outside
of a worker use `limits.inspect`, which does the same in a process that can be killed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dagmaster.errors import UnfitData
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.facts import RasterFacts, RasterType, facts_of
from dagmaster.raster.source.opening import READ_ERRORS, opened, reason, short_name, size_of
from dagmaster.raster.source.sample import Sample, alpha_band, color_bands, look_up_blocks, take_sample
from dagmaster.raster.validation.classify import classify
from dagmaster.raster.validation.findings import (
    Checked,
    Finding,
    Fix,
    Fixes,
    SampleCoverage,
    Severity,
    Verdict,
    error,
    info,
    rejected,
    verdict_of,
    warn,
)
from dagmaster.raster.validation.header_rules import Ceilings, judge_header, require_few_bands
from dagmaster.raster.validation.pixel_rules import judge_blocks, judge_pixels

__all__ = ["Ceilings", "Checked", "Finding", "Fix", "Fixes", "SampleCoverage", "Severity", "Verdict", "check"]

NEW_LAYOUT = "rewrite it in tiles: `gdal_translate -co TILED=YES -co COMPRESS=DEFLATE in.tif out.tif`"


def check(
    path: str | Path,
    *,
    source_crs: str | None = None,
    raster_type: RasterType | str | None = None,
    ceilings: Ceilings | None = None,
    every_pixel: bool = False,
    remote: bool = False,
    size_bytes: int | None = None,
) -> Checked:
    """Check one raster file.

        >>> checked = check("scene.tif")
        >>> checked.verdict, [finding.code for finding in checked.findings]
        (<Verdict.WARN: 'warn'>, ['raster.striped', 'raster.no-nodata'])

    `every_pixel` reads all pixels, which detects any damaged block and proves what a sample only suggests.
    A bad file leads to a verdict, never to an error; an invalid call (no such file, an unknown CRS) raises an error.
    """
    override = parse_crs(source_crs) if source_crs else None
    requested = RasterType.parse(raster_type)
    try:
        with opened(path, remote=remote) as dataset:
            size = size_of(path) if size_bytes is None else size_bytes
            ceilings = ceilings or Ceilings()
            require_few_bands(dataset.count, ceilings)
            facts = facts_of(dataset, path, crs_override=override, size_bytes=size)
            return _judge(dataset, facts, requested, ceilings, every_pixel=every_pixel)
    except UnfitData as unfit:
        return rejected(unfit.code, unfit.message, unfit.hint or "")
    except MemoryError:
        return rejected("raster.memory", f"'{short_name(path)}' needs more memory than is available", NEW_LAYOUT)
    except READ_ERRORS as problem:
        return rejected(
            "raster.corrupt",
            f"'{short_name(path)}' is damaged: {reason(problem)}",
            "upload it again, or export it again",
        )


def _judge(
    dataset: object, facts: RasterFacts, requested: RasterType | None, ceilings: Ceilings, *, every_pixel: bool
) -> Checked:
    findings = judge_header(facts, ceilings)
    if _is_rejected(findings):
        return _checked(facts, findings, classify(facts), requested)
    findings += judge_blocks(facts, look_up_blocks(dataset, facts), ceilings)
    if _is_rejected(findings):
        return _checked(facts, findings, classify(facts), requested)
    sample = take_sample(dataset, facts, every_pixel=every_pixel)
    detected = classify(facts, sample)
    pixel_findings, fixes = judge_pixels(facts, sample, requested or detected)
    if not requested and detected is RasterType.CATEGORICAL and classify(facts) is not detected:
        pixel_findings = [*pixel_findings, _treated_as_classes()]
    return _checked(facts, findings + pixel_findings, detected, requested, fixes=fixes, sample=sample)


def _checked(
    facts: RasterFacts,
    findings: list[Finding],
    detected: RasterType,
    requested: RasterType | None,
    *,
    fixes: Fixes | None = None,
    sample: Sample | None = None,
) -> Checked:
    findings = [*findings, *_judge_type(facts, detected, requested)]
    fixes = fixes or Fixes()
    if facts.crs != facts.file_crs:
        fixes = replace(fixes, source_crs=facts.crs)
    seen = SampleCoverage(sample.pixels, facts.pixels, sample.is_whole) if sample else SampleCoverage(0, facts.pixels)
    worst_first = sorted(findings, key=lambda finding: list(Severity)[::-1].index(finding.severity))
    return Checked(verdict_of(findings), requested or detected, tuple(worst_first), facts, fixes, seen)


def _judge_type(facts: RasterFacts, detected: RasterType, requested: RasterType | None) -> Iterator[Finding]:
    """The submitter's type is used, unless it is impossible."""
    colors, has_alpha = len(color_bands(facts)), alpha_band(facts) is not None
    is_possible = {RasterType.RGB: colors >= 3, RasterType.RGBA: colors >= 4 or (colors == 3 and has_alpha)}
    if requested and not is_possible.get(requested, True):
        yield error(
            "raster.type-impossible",
            f"it cannot be {requested}: it has {facts.count} band(s)",
            "pass the right raster_type, or none",
        )
    elif requested and detected not in (requested, RasterType.UNKNOWN):
        yield warn(
            "raster.type-contradicts",
            f"it looks like {detected}, but is treated as {requested}, as requested",
            "check `raster_type`",
        )
    elif not requested and detected is RasterType.UNKNOWN:
        yield info(
            "raster.type-unknown",
            "the type of its values could not be detected: they are treated as measurements",
            "pass raster_type",
        )


def _treated_as_classes() -> Finding:
    """For a type that is guessed from the values of a sample, and not known from a palette or a name."""
    return info(
        "raster.treated-as",
        "the values of a sample look like classes: all values are resampled (nearest, mode) and coloured as classes",
        "pass raster_type if they are measurements, such as raster_type=dem",
    )


def _is_rejected(findings: list[Finding]) -> bool:
    return verdict_of(findings) is Verdict.REJECT
