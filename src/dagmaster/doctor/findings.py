"""Judgements, and how checks are run.

A problem keeps the platform from working or from keeping its promises. A warning is worth knowing. Each check runs in a
thread of its own, which is abandoned when it takes too long; a check that fails or hangs is a finding too.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.extras import missing_extra
from dagmaster.observe.redaction import redact

PATIENCE_SECONDS = 15.0  # a busy machine is slow, and the doctor is asked then
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

    def public(self) -> dict[str, str | None]:
        return {"level": self.level, "found": self.observation, "fix": self.fix}


Judgements = Iterable[Judgement]
Findings = dict[str, list[Judgement]]
ok = partial(Judgement, FindingLevel.OK)
warning = partial(Judgement, FindingLevel.WARNING)
problem = partial(Judgement, FindingLevel.PROBLEM)
skipped = partial(Judgement, FindingLevel.SKIPPED)


def judge(
    value: float, observation: str, fix: str, *, warning: float, problem: float | None = None, is_least: bool = False
) -> Judgement:
    """Compare a value with the limits above which there is a warning or a problem; with `is_least` below which."""
    for level, limit in ((FindingLevel.PROBLEM, problem), (FindingLevel.WARNING, warning)):
        if limit is not None and (value < limit if is_least else value > limit):
            return Judgement(level, observation, fix)
    return ok(observation)


def run(
    checks: Mapping[str, Callable[[Subject], Judgements]], subject: Subject, patience_seconds: float = PATIENCE_SECONDS
) -> Findings:
    """The judgements of all checks of a subject, in their order and without secrets."""
    calls = {name: partial(lambda check: list(check(subject)), check) for name, check in checks.items()}
    return {name: without_secrets(result) for name, result in call_all(calls, patience_seconds).items()}


def skip(names: Iterable[str], reason: str) -> Findings:
    return {name: [skipped(reason)] for name in names}


def without_secrets(result: Judgements | Exception) -> list[Judgement]:
    judgements = [_failed(result)] if isinstance(result, Exception) else result
    return [Judgement(level, redact(text), redact(fix) if fix else None) for level, text, fix in judgements]


def _failed(error: Exception) -> Judgement:
    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error) or error
    if isinstance(error, DagmasterError):
        return problem(error.message, error.hint)
    fix = "see whether another finding explains it; if not, report it as a bug of dagmaster"
    return problem(f"this check failed: {type(error).__name__}: {error}", fix)


def call_all(
    calls: Mapping[str, Callable[[], T]], patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, T | Exception]:
    """What each call returned or raised. Not in an executor: its threads are waited for when the process ends."""
    results: dict[str, T | Exception] = {}

    def call(name: str) -> None:
        try:
            results[name] = calls[name]()
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=call, args=[name], daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + patience_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hint = "check whether the machine, its disks or the network hang"
    late = Unavailable(f"no answer within {patience_seconds:g} s", code="check.timeout", hint=hint)
    return {name: results.get(name, late) for name in calls}


def some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more
