"""Is this file good? A verdict with findings, in the order of cost: name and format, headers, table of blocks, a few pixels.

The first stage that finds an error ends the check, so that a file that lies is not read further. For files of strangers
outside of a worker use `limits.inspect`, which does the same in a process that can be killed.
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
    whole: bool = False,
    remote: bool = False,
    size_bytes: int | None = None,
) -> Checked:
    """Judge one raster file.

        >>> answer = check("scene.tif")
        >>> answer.verdict, [finding.code for finding in answer.findings]
        (<Verdict.WARN: 'warn'>, ['raster.striped', 'raster.no-nodata'])

    `whole` reads every pixel, so that a damaged block anywhere is found and what a sample only suggests is proven.
    A bad file gives a verdict, never an error; what is wrong with the question (no such file, an unknown CRS) is raised.
    """
    override = parse_crs(source_crs) if source_crs else None
    wanted = RasterType.asked(raster_type)
    try:
        with opened(path, remote=remote) as dataset:
            size = size_of(path) if size_bytes is None else size_bytes
            ceilings = ceilings or Ceilings()
            require_few_bands(dataset.count, ceilings)
            facts = facts_of(dataset, path, crs_override=override, size_bytes=size)
            return _judge(dataset, facts, wanted, ceilings, whole=whole)
    except UnfitData as unfit:
        return rejected(unfit.code, unfit.message, unfit.hint or "")
    except MemoryError:
        return rejected("raster.memory", f"'{short_name(path)}' needs more memory than there is", NEW_LAYOUT)
    except READ_ERRORS as problem:
        return rejected(
            "raster.corrupt",
            f"'{short_name(path)}' is damaged: {reason(problem)}",
            "upload it again, or export it anew",
        )


def _judge(
    dataset: object, facts: RasterFacts, wanted: RasterType | None, ceilings: Ceilings, *, whole: bool
) -> Checked:
    findings = judge_header(facts, ceilings)
    if _is_rejected(findings):
        return _answer(facts, findings, classify(facts), wanted)
    findings += judge_blocks(facts, look_up_blocks(dataset, facts), ceilings)
    if _is_rejected(findings):
        return _answer(facts, findings, classify(facts), wanted)
    sample = take_sample(dataset, facts, whole=whole)
    detected = classify(facts, sample)
    more, fixes = judge_pixels(facts, sample, wanted or detected)
    return _answer(facts, findings + more, detected, wanted, fixes=fixes, sample=sample)


def _answer(
    facts: RasterFacts,
    findings: list[Finding],
    detected: RasterType,
    wanted: RasterType | None,
    *,
    fixes: Fixes | None = None,
    sample: Sample | None = None,
) -> Checked:
    findings = [*findings, *_judge_type(facts, detected, wanted)]
    fixes = fixes or Fixes()
    if facts.crs != facts.file_crs:
        fixes = replace(fixes, source_crs=facts.crs)
    seen = SampleCoverage(sample.pixels, facts.pixels, sample.is_whole) if sample else SampleCoverage(0, facts.pixels)
    worst_first = sorted(findings, key=lambda finding: list(Severity)[::-1].index(finding.severity))
    return Checked(verdict_of(findings), wanted or detected, tuple(worst_first), facts, fixes, seen)


def _judge_type(facts: RasterFacts, detected: RasterType, wanted: RasterType | None) -> Iterator[Finding]:
    """The submitter knows best, unless it cannot be."""
    colors, has_alpha = len(color_bands(facts)), alpha_band(facts) is not None
    needed = {RasterType.RGB: colors >= 3, RasterType.RGBA: colors >= 4 or (colors == 3 and has_alpha)}
    if wanted and not needed.get(wanted, True):
        yield error(
            "raster.type-impossible",
            f"it cannot be {wanted}: it has {facts.count} band(s)",
            "pass the right raster_type, or none",
        )
    elif wanted and detected not in (wanted, RasterType.UNKNOWN):
        yield warn(
            "raster.type-contradicts",
            f"it looks like {detected}, but is treated as {wanted}, as you say",
            "is that what you mean?",
        )
    elif not wanted and detected is RasterType.UNKNOWN:
        yield info(
            "raster.type-unknown",
            "what its values are could not be told: they are treated as measurements",
            "pass raster_type",
        )


def _is_rejected(findings: list[Finding]) -> bool:
    return verdict_of(findings) is Verdict.REJECT
