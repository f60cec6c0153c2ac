"""Judgements, and how checks are run.

A problem keeps the platform from working or from keeping its promises. A warning is worth knowing. Each check runs in a
thread of its own, which is abandoned when it takes too long; a check that fails or hangs is a finding too.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

from dagmaster.errors import DagmasterError
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
    found: str
    fix: str | None = None


Judgements = Iterable[Judgement]
Findings = dict[str, list[Judgement]]


def ok(found: str) -> Judgement:
    return Judgement(FindingLevel.OK, found)


def warning(found: str, fix: str) -> Judgement:
    return Judgement(FindingLevel.WARNING, found, fix)


def problem(found: str, fix: str | None) -> Judgement:
    return Judgement(FindingLevel.PROBLEM, found, fix)


def skipped(reason: str) -> Judgement:
    return Judgement(FindingLevel.SKIPPED, reason)


def graded(found: str, fix: str, *, is_problem: bool = False, is_warning: bool = False) -> Judgement:
    return problem(found, fix) if is_problem else warning(found, fix) if is_warning else ok(found)


def run(
    checks: Mapping[str, Callable[[Subject], Judgements]], subject: Subject, patience_seconds: float = PATIENCE_SECONDS
) -> Findings:
    """The judgements of all checks of a subject, in their order and without secrets."""
    results = call_all({name: partial(_listed, check, subject) for name, check in checks.items()}, patience_seconds)
    return {name: without_secrets(result) for name, result in results.items()}


def _listed(check: Callable[[Subject], Judgements], subject: Subject) -> list[Judgement]:
    return list(check(subject))


def without_secrets(result: Judgements | Exception) -> list[Judgement]:
    judgements = [_failed(result)] if isinstance(result, Exception) else result
    return [Judgement(level, redact(found), redact(fix) if fix else None) for level, found, fix in judgements]


def _failed(error: Exception) -> Judgement:
    if isinstance(error, _TookTooLong):
        return problem(str(error), "check whether the machine, its disks or the network hang")
    if isinstance(error, DagmasterError):
        return problem(error.message, error.hint)
    fix = "see whether another finding explains it; if not, report it as a bug of dagmaster"
    return problem(f"this check failed: {type(error).__name__}: {error}", fix)


class _TookTooLong(Exception):
    pass


def call_all(
    calls: Mapping[str, Callable[[], T]], patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, T | Exception]:
    """What each call returned or raised."""
    deadline = time.monotonic() + patience_seconds
    results = {name: _start(name, call) for name, call in calls.items()}
    answers: dict[str, T | Exception] = {}
    for name, result in results.items():
        try:
            answers[name] = result.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            answers[name] = _TookTooLong(f"no answer within {patience_seconds:g} s")
    return answers


def _start(name: str, call: Callable[[], T]) -> "queue.SimpleQueue[T | Exception]":
    result: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def answer() -> None:
        try:
            result.put(call())
        except Exception as error:
            result.put(error)

    threading.Thread(target=answer, name=f"doctor-{name}", daemon=True).start()
    return result


def some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


def in_bytes(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


def in_time(seconds: float) -> str:
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.0f} h"
