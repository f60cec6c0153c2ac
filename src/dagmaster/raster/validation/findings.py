"""The words of a verdict: what was found, how bad it is, what to do, and what the platform does by itself."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from pydantic import TypeAdapter

from dagmaster.errors import UnfitData
from dagmaster.raster.source.facts import RasterFacts, RasterType


class Severity(StrEnum):
    INFO = "info"  # good to know
    WARN = "warn"  # processed, with what `fix` says, or as it is
    ERROR = "error"  # cannot be processed


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105  (no password)
    WARN = "warn"
    REJECT = "reject"


class Fix(StrEnum):
    """What the platform does by itself. None of them is named unless it is done."""

    ASSUME_CRS = "assume-crs"
    DECLARE_NODATA = "declare-nodata"
    ADD_MASK = "add-mask"
    NARROW_DTYPE = "narrow-dtype"
    COMMON_DTYPE = "common-dtype"
    UNSET_ALPHA = "unset-alpha"
    USE_ALPHA = "use-alpha"
    USE_MASK = "use-mask"
    DROP_NODATA = "drop-nodata"
    RESAMPLE_NORTH_UP = "resample-north-up"
    RETILE = "retile"
    WRAP_LONGITUDES = "wrap-longitudes"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable; `fix` names what the platform will do (see Fixes), None when it leaves the file as it is."""

    code: str
    severity: Severity
    message: str
    advice: str = ""
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Fixes:
    """What processing must be told for that: parameters of `make_cog`. The rest comes with the output grid and the COG."""

    source_crs: str | None = None  # take this for the CRS of the source
    nodata: float | None = None  # take pixels of this value as no data, and declare it in the outputs
    dtype: str | None = None  # store as this type: every pixel was seen to fit it
    unset_alpha: bool = False  # the band marked as alpha is a picture


@dataclass(frozen=True, slots=True)
class SampleCoverage:
    """How much of the pixels the verdict rests on."""

    pixels: int = 0
    of_pixels: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer of a check. `facts` is None when the file could not be opened."""

    verdict: Verdict
    raster_type: RasterType = RasterType.UNKNOWN
    findings: tuple[Finding, ...] = ()
    facts: RasterFacts | None = None
    fixes: Fixes = field(default_factory=Fixes)
    seen: SampleCoverage = field(default_factory=SampleCoverage)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARN)

    def has(self, code: str) -> bool:
        return any(finding.code == code for finding in self.findings)

    def require_fit(self) -> Self:
        """Itself, or UnfitData with the first error when it is rejected."""
        for error in self.errors:
            raise UnfitData(error.message, code=error.code, hint=error.advice or None)
        return self

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: it becomes the string "nan", as in STAC."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, answer: Any) -> "Checked":
        """From what `to_dict` gave; raises ValueError for anything else."""
        return _ADAPTER.validate_python(answer)


_ADAPTER: TypeAdapter[Checked] = TypeAdapter(Checked)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(part) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Verdict.REJECT
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def rejected(code: str, message: str, advice: str = "", *, facts: RasterFacts | None = None) -> Checked:
    """A verdict of one error."""
    return Checked(Verdict.REJECT, findings=(Finding(code, Severity.ERROR, message, advice),), facts=facts)


def info(code: str, message: str, advice: str = "", fix: Fix | None = None) -> Finding:
    return Finding(code, Severity.INFO, message, advice, fix)


def warn(code: str, message: str, advice: str = "", fix: Fix | None = None) -> Finding:
    return Finding(code, Severity.WARN, message, advice, fix)


def error(code: str, message: str, advice: str = "") -> Finding:
    return Finding(code, Severity.ERROR, message, advice)
