"""The result of a check: findings, the verdict, and the corrections that the platform applies."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pydantic import TypeAdapter

from dagmaster.errors import UnfitData
from dagmaster.raster.source.facts import RasterFacts, RasterType


class Severity(StrEnum):
    INFO = "info"  # for information only
    WARN = "warn"  # processed, with the correction in `fix`, if any
    ERROR = "error"  # cannot be processed


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105  (no password)
    WARN = "warn"
    REJECT = "reject"


class Fix(StrEnum):
    """Corrections. The platform applies each correction that a finding names."""

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
    """`code` is stable; `fix` names the correction that the platform applies (see Fixes), if any."""

    code: str
    severity: Severity
    message: str
    advice: str = ""
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Fixes:
    """Parameters of `make_cog` that apply corrections. Others follow from the output grid and the format of the COG."""

    source_crs: str | None = None  # use this as the CRS of the source
    nodata: float | None = None  # pixels of this value are nodata, and the outputs declare it
    dtype: str | None = None  # store as this type, which can hold the values of all pixels
    unset_alpha: bool = False  # the band marked as alpha holds data


@dataclass(frozen=True, slots=True)
class SampleCoverage:
    """How many pixels the verdict is based on."""

    pixels: int = 0
    of_pixels: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `facts` is None if the file could not be opened."""

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
        """Return this result. Raises UnfitData with the first error if the file is rejected."""
        for error in self.errors:
            raise UnfitData(error.message, code=error.code, hint=error.advice or None)
        return self

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: it becomes the string "nan", as in STAC."""
        plain: dict[str, Any] = _plain(_ADAPTER.dump_python(self, by_alias=True))
        return plain

    @classmethod
    def from_dict(cls, document: Any) -> "Checked":
        """From the result of `to_dict`; raises ValueError for anything else."""
        return _ADAPTER.validate_python(document)


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


def rejected(code: str, message: str, advice: str = "") -> Checked:
    """A rejection with one error."""
    return Checked(Verdict.REJECT, findings=(Finding(code, Severity.ERROR, message, advice),))


def info(code: str, message: str, advice: str = "", fix: Fix | None = None) -> Finding:
    return Finding(code, Severity.INFO, message, advice, fix)


def warn(code: str, message: str, advice: str = "", fix: Fix | None = None) -> Finding:
    return Finding(code, Severity.WARN, message, advice, fix)


def error(code: str, message: str, advice: str = "") -> Finding:
    return Finding(code, Severity.ERROR, message, advice)
