"""Judgements, and how checks are run.

A problem keeps the platform from working or from keeping its promises. A warning is worth knowing. Each check runs in a
thread of its own, which is abandoned when it takes too long; a check that fails or hangs is a finding too.
"""

import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.observe.redaction import redact

PATIENCE_SECONDS = 3.0
MB, GB = 1 << 20, 1 << 30
MINUTE, HOUR = 60.0, 3600.0
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


def ok(observation: str) -> Judgement:
    return Judgement(FindingLevel.OK, observation)


def warning(observation: str, fix: str) -> Judgement:
    return Judgement(FindingLevel.WARNING, observation, fix)


def problem(observation: str, fix: str | None) -> Judgement:
    return Judgement(FindingLevel.PROBLEM, observation, fix)


def skipped(reason: str) -> Judgement:
    return Judgement(FindingLevel.SKIPPED, reason)


class Threshold(NamedTuple):
    """Above which value there is a warning or a problem; with `is_least` below which."""

    fix: str
    warning: float
    problem: float | None = None
    is_least: bool = False

    def judge(self, value: float, observation: str) -> Judgement:
        is_beyond = operator.lt if self.is_least else operator.gt
        if self.problem is not None and is_beyond(value, self.problem):
            return problem(observation, self.fix)
        return warning(observation, self.fix) if is_beyond(value, self.warning) else ok(observation)


def run(
    checks: Mapping[str, Callable[[Subject], Judgements]], subject: Subject, patience_seconds: float = PATIENCE_SECONDS
) -> Findings:
    """The judgements of all checks of a subject, in their order and without secrets."""
    calls = {name: partial(lambda check: list(check(subject)), check) for name, check in checks.items()}
    return {name: without_secrets(result) for name, result in call_all(calls, patience_seconds).items()}


def without_secrets(result: Judgements | Exception) -> list[Judgement]:
    judgements = [_failed(result)] if isinstance(result, Exception) else result
    return [Judgement(level, redact(text), redact(fix) if fix else None) for level, text, fix in judgements]


def _failed(error: Exception) -> Judgement:
    if isinstance(error, DagmasterError):
        return problem(error.message, error.hint)
    fix = "see whether another finding explains it; if not, report it as a bug of dagmaster"
    return problem(f"this check failed: {type(error).__name__}: {error}", fix)


def call_all(
    calls: Mapping[str, Callable[[], T]], patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, T | Exception]:
    """What each call returned or raised."""
    futures = {name: _start(name, call) for name, call in calls.items()}
    ended, _ = wait(futures.values(), timeout=patience_seconds)
    hint = "check whether the machine, its disks or the network hang"
    late = Unavailable(f"no answer within {patience_seconds:g} s", code="check.timeout", hint=hint)
    return {name: future.result() if future in ended else late for name, future in futures.items()}


def _start(name: str, call: Callable[[], T]) -> "Future[T | Exception]":
    """Not in an executor: its threads are waited for when the process ends, and this one may hang."""
    future: Future[T | Exception] = Future()

    def answer() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_result(error)

    threading.Thread(target=answer, name=f"doctor-{name}", daemon=True).start()
    return future


def some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


def in_bytes(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


def in_time(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.0f} h"
