"""Judgements, and how checks are run.

A problem keeps the platform from working correctly; a warning does not. Each check runs in a thread
of its own, which is abandoned when it takes too long; a check that fails or hangs is a finding too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from dagmaster.daemon_threads import DaemonThreads
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.extras import missing_extra
from dagmaster.observe.redaction import redact

TIMEOUT_SECONDS = 15.0  # checks are slow on a busy machine, on which `doctor` is often run
SHOWN = 5

T = TypeVar("T")
Subject = TypeVar("Subject")


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


class Judgement(NamedTuple):
    level: FindingLevel
    observation: str
    fix: str | None = None


Judgements = Iterable[Judgement]
Findings = dict[str, list[Judgement]]
DoctorCheck = Callable[[Subject], Judgements]
ok = partial(Judgement, FindingLevel.OK)
warning = partial(Judgement, FindingLevel.WARNING)
problem = partial(Judgement, FindingLevel.PROBLEM)
skipped = partial(Judgement, FindingLevel.SKIPPED)


def judge(
    value: float, observation: str, fix: str, *, warning: float, problem: float | None = None, is_least: bool = False
) -> Judgement:
    """Compare a value with the limits above which (with `is_least`: below which) there is a warning or a problem."""
    for level, limit in ((FindingLevel.PROBLEM, problem), (FindingLevel.WARNING, warning)):
        if limit is not None and (value < limit if is_least else value > limit):
            return Judgement(level, observation, fix)
    return ok(observation)


def named(*checks: DoctorCheck[Subject]) -> dict[str, DoctorCheck[Subject]]:
    """Checks by the names that users see: `check_data_folder` is the check `data-folder`."""
    return {check.__name__.removeprefix("check_").replace("_", "-"): check for check in checks}


def run(
    checks: Mapping[str, DoctorCheck[Subject]], subject: Subject, timeout_seconds: float = TIMEOUT_SECONDS
) -> Findings:
    """The judgements of all checks of a subject, in their order and without secrets."""
    results = call_all(lambda check: list(check(subject)), checks.values(), timeout_seconds)
    return dict(zip(checks, map(without_secrets, results), strict=True))


def skip(names: Iterable[str], reason: str) -> Findings:
    return {name: [skipped(reason)] for name in names}


def without_secrets(result: Judgements | BaseException) -> list[Judgement]:
    judgements = [_failed(result)] if isinstance(result, BaseException) else result
    return [Judgement(level, redact(text), redact(fix) if fix else None) for level, text, fix in judgements]


def _failed(error: BaseException) -> Judgement:
    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error) or error
    if isinstance(error, DagmasterError):
        return problem(error.message, error.hint)
    fix = "see whether another finding explains it; if not, report it as a bug in dagmaster"
    return problem(f"this check failed: {type(error).__name__}: {error}", fix)


def call_all(
    function: Callable[[Subject], T], subjects: Iterable[Subject], timeout_seconds: float = TIMEOUT_SECONDS
) -> list[T | BaseException]:
    """What the function returned or raised for each subject. The calls run side by side."""
    futures = [DaemonThreads().submit(function, subject) for subject in subjects]
    wait(futures, timeout_seconds)
    hint = "check whether the machine, its disks or the network hang"
    late = Unavailable(f"no response within {timeout_seconds:g} s", code="check.timeout", hint=hint)
    return [(future.exception() or future.result()) if future.done() else late for future in futures]


def listed(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more
