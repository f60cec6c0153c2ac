"""Validate files before they are copied: each in an isolated process, at most one per processor at a time."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dagmaster.ingest.progress import OpenBar
from dagmaster.ingest.sources import LocalFile
from dagmaster.quantities import counted

if TYPE_CHECKING:
    from dagmaster.handlers.raster.options import Options
    from dagmaster.raster.source.facts import RasterFacts
    from dagmaster.raster.validation.findings import Checked, Finding


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """`resolution` is that of its output; None if the file is rejected."""

    file: LocalFile
    checked: "Checked"
    resolution: tuple[float, float] | None = None

    @property
    def facts(self) -> "RasterFacts":
        assert self.checked.facts is not None
        return self.checked.facts

    def public(self) -> dict[str, Any]:
        facts = self.checked.to_dict()
        return {name: facts[name] for name in ("verdict", "raster_type", "findings")}


@dataclass(frozen=True, slots=True)
class FileRules:
    """What decides whether a file is valid."""

    source_crs: str | None
    raster_type: str | None
    options: "Options"


def validate_all(files: Sequence[LocalFile], rules: FileRules, progress: OpenBar) -> list[CheckedFile]:
    """The findings on each file. Options that are impossible for a file are refused."""
    if len(files) == 1:
        return [_validate(files[0], rules)]
    checks: list[CheckedFile] = []
    with (
        progress(f"validating {counted(len(files), 'file')}", is_bytes=False) as bar,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
    ):
        try:
            for check in threads.map(lambda file: _validate(file, rules), files):
                checks.append(check)
                bar.show(len(checks), len(files))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return checks


def _validate(file: LocalFile, rules: FileRules) -> CheckedFile:
    from dagmaster.raster.validation.limits import inspect

    checked = inspect(file.path, source_crs=rules.source_crs, raster_type=rules.raster_type)
    return CheckedFile(file, checked) if checked.errors else _advised(file, checked, rules.options)


def _advised(file: LocalFile, checked: "Checked", options: "Options") -> CheckedFile:
    """The check with additional findings on the options."""
    from rasterio import Env

    from dagmaster.handlers.raster.options import advice_on, require_possible

    assert checked.facts is not None
    with Env():
        grid = require_possible(options, checked.facts, checked.raster_type, unset_alpha=checked.fixes.unset_alpha)
        advised = replace(checked, findings=(*checked.findings, *advice_on(options, checked.facts, grid)))
    return CheckedFile(file, advised, grid.resolution)


def findings_on_all(checks: Sequence[CheckedFile], options: "Options") -> "list[Finding]":
    """Findings on valid files as a whole. Raises UnfitData if they cannot become one collection."""
    from rasterio import Env

    from dagmaster.handlers.raster.collection import layout_of

    if len(checks) == 1:
        return []
    assert checks[0].resolution is not None
    with Env():
        return layout_of([check.facts for check in checks], options, checks[0].resolution).findings


def public_check(checks: Sequence[CheckedFile]) -> dict[str, Any]:
    """The check of one file, or of each file of a collection."""
    if len(checks) == 1:
        return checks[0].public()
    return {"files": [{"file": check.file.label, **check.public()} for check in checks]}


def with_date(check: CheckedFile) -> CheckedFile:
    """The check with a finding on the date that the job will use. A later revision uses the previous one's date."""
    from dagmaster.raster.validation.findings import info
    from dagmaster.stac.when import choose_when

    written_at = datetime.fromtimestamp(check.file.path.stat().st_mtime, UTC)
    if choose_when(given=None, tags=check.facts.tags, supplied_at=written_at).basis != "publication":
        return check
    problem = "the file does not contain the date of its data; its modification date is used as"
    message = f"{problem} date of publication: {written_at:%Y-%m-%d}"
    advice = "to set it, use --datetime with a time, a day, a year, or start/end"
    finding = info("time.publication", message, advice)
    return replace(check, checked=replace(check.checked, findings=(*check.checked.findings, finding)))
