"""Findings as a job reports them: logged by every task, and each kind once in the result of the job.

findings of the validation ─┐
findings of every COG ──────┴─▶ MergedFindings ─▶ `findings` of the job's result
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from dagmaster.handlers.context import TaskLogger
from dagmaster.handlers.frozen import FrozenModel
from dagmaster.raster.validation.findings import Finding, Severity

MAX_PLACES = 5

FindingStage = Literal["validation", "processing"]


class ReportedFinding(FrozenModel):
    """A finding in the output of a task. `fix` may be a correction that only another release knows."""

    code: str
    severity: Severity
    message: str
    advice: str = ""
    fix: str | None = None


class MergedFinding(ReportedFinding):
    """All findings with the same code. Message, advice and fix are those of the first one.

    `count` is their number, and `places` are the first files or tiles that have one. `stage` is `validation` if it was
    found before any output was written, and `processing` if every pixel had to be read for it.
    """

    stage: FindingStage = "validation"
    count: int = 1
    places: list[str] = []


class MergedFindings:
    """Findings of many files or tiles, of bounded size: one for each code."""

    def __init__(self) -> None:
        self._by_code: dict[str, MergedFinding] = {}

    def add(
        self, findings: Iterable[ReportedFinding], stage: FindingStage = "validation", *, place: str | None = None
    ) -> None:
        places = [place] if place else []
        for finding in findings:
            self._add(MergedFinding(**dict(finding), stage=stage, places=places))

    def add_earlier(self, findings: Iterable[MergedFinding]) -> None:
        """Add findings of the validation, except those with codes that processing has reported too, from all pixels."""
        for finding in [each for each in findings if each.code not in self._by_code]:
            self._add(finding)

    def _add(self, finding: MergedFinding) -> None:
        first = self._by_code.get(finding.code)
        self._by_code[finding.code] = _joined(first, finding) if first else finding

    def most_severe_first(self) -> list[MergedFinding]:
        """All findings, the most severe first."""
        worst_first = list(Severity)[::-1]
        return sorted(self._by_code.values(), key=lambda finding: worst_first.index(finding.severity))


def _joined(first: MergedFinding, other: MergedFinding) -> MergedFinding:
    places = [*first.places, *(place for place in other.places if place not in first.places)]
    return first.model_copy(update={"count": first.count + other.count, "places": places[:MAX_PLACES]})


def reported(findings: Iterable[Finding]) -> list[ReportedFinding]:
    return [ReportedFinding(**asdict(finding)) for finding in findings]


def log_findings(logger: TaskLogger, findings: Iterable[Finding]) -> None:
    for finding in findings:
        report = logger.info if finding.severity is Severity.INFO else logger.warning
        report(finding.message, code=finding.code, severity=finding.severity.value)
