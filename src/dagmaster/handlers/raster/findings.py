"""Findings as a job reports them: logged by every task, and each kind once in the result of the job.

findings of the validation ─┐
findings of every COG ──────┴─▶ MergedFindings ─▶ `findings` of the job's result
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dagmaster.handlers.context import TaskLogger
from dagmaster.handlers.raster.dataset import Json
from dagmaster.raster.validation.findings import Checked, Finding, Severity, Verdict

MAX_PLACES = 5

Stage = Literal["validation", "processing"]


class MergedFinding(BaseModel):
    """All findings with the same code. Message, advice and fix are those of the first one.

    `count` is their number, and `places` are the first files or tiles that have one. `stage` is `validation` if it was
    found before any output was written, and `processing` if every pixel had to be read for it.
    """

    model_config = ConfigDict(frozen=True)

    code: str
    severity: Severity
    message: str
    advice: str = ""
    fix: str | None = None
    stage: Stage = "validation"
    count: int = 1
    places: list[str] = []


class MergedFindings:
    """Findings of many files or tiles, of bounded size: one for each code."""

    def __init__(self) -> None:
        self._by_code: dict[str, MergedFinding] = {}

    def add(self, findings: Iterable[Json], stage: Stage = "validation", *, place: str | None = None) -> None:
        for finding in findings:
            new = MergedFinding.model_validate({"stage": stage, "places": [place] if place else [], **finding})
            first = self._by_code.get(new.code)
            self._by_code[new.code] = _joined(first, new) if first else new

    def add_earlier(self, findings: Iterable[Json]) -> None:
        """Add findings of the validation, except for codes of processing, whose figures are those of all pixels."""
        self.add([finding for finding in findings if finding["code"] not in self._by_code])

    def to_json(self) -> list[Json]:
        """The most severe first."""
        worst_first = list(Severity)[::-1]
        ordered = sorted(self._by_code.values(), key=lambda finding: worst_first.index(finding.severity))
        return [finding.model_dump(mode="json") for finding in ordered]


def _joined(first: MergedFinding, other: MergedFinding) -> MergedFinding:
    places = [*first.places, *(place for place in other.places if place not in first.places)]
    return first.model_copy(update={"count": first.count + other.count, "places": places[:MAX_PLACES]})


def findings_as_json(findings: Iterable[Finding]) -> list[Json]:
    as_json: list[Json] = Checked(Verdict.WARN, findings=tuple(findings)).to_dict()["findings"]
    return as_json


def log_findings(logger: TaskLogger, findings: Iterable[Finding]) -> None:
    for finding in findings:
        report = logger.info if finding.severity is Severity.INFO else logger.warning
        report(finding.message, code=finding.code, severity=finding.severity.value)
