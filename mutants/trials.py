"""Run the tests: first they must pass on the unchanged copy, then fail with each bug."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mutants.catalogue import Mutant
from mutants.scratch import Mismatch, Scratch

PATIENCE_SECONDS: Final = 420.0  # for one command
_STOP_SECONDS: Final = 30.0  # for tests to stop the servers that they have started
_PASSED, _FAILED = 0, 1  # pytest's exit codes
_FAILED_TEST = re.compile(r"^FAILED (?P<test>\S+?::\S.*?)(?: - (?P<why>.*))?$", re.MULTILINE)


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    MOVED = "no longer matches"
    BROKEN = "the tests don't run"


@dataclass(frozen=True, slots=True)
class Trial:
    mutant: Mutant
    verdict: Verdict
    seconds: float
    caught_by: str = ""  # the first test that failed
    details: str = ""

    @property
    def is_good(self) -> bool:
        return self.verdict is Verdict.CAUGHT


@dataclass(frozen=True, slots=True)
class Run:
    code: int | None  # None: it took too long
    output: str
    seconds: float


Report = Callable[[str], None]


def baseline(scratch: Scratch, mutants: Iterable[Mutant], report: Report) -> str | None:
    """The tests that fail twice without any bug, which makes further results meaningless; None if all pass."""
    for tests in dict.fromkeys(tests for mutant in mutants for tests in mutant.selections):
        ran = pytest(scratch, tests)
        if ran.code == _FAILED:
            report(f"unchanged: {' '.join(tests)}: fails, and runs once more\n{_end_of(ran.output)}")
            ran = pytest(scratch, tests)
        report(f"unchanged: {' '.join(tests)}: {'passes' if ran.code == _PASSED else 'FAILS'} ({ran.seconds:.0f} s)")
        if ran.code != _PASSED:
            return f"these tests fail without any bug: pytest {' '.join(tests)}\n{_end_of(ran.output)}"
    return None


def tried(scratch: Scratch, mutant: Mutant) -> Trial:
    started = time.monotonic()
    try:
        with scratch.mutated(mutant.edits):
            for tests in mutant.selections:
                trial = judged(mutant, pytest(scratch, ["-x", *tests]))
                if not trial.is_good:
                    break
    except Mismatch as error:
        return Trial(mutant, Verdict.MOVED, time.monotonic() - started, details=str(error))
    return replace(trial, seconds=time.monotonic() - started)


def judged(mutant: Mutant, ran: Run) -> Trial:
    """A bug is caught if a test failed. An error outside of a test, such as in its setup, does not count."""
    if ran.code == _PASSED:
        return Trial(mutant, Verdict.SURVIVED, ran.seconds)
    failed_test = _FAILED_TEST.search(ran.output)
    if ran.code != _FAILED or failed_test is None:
        return Trial(mutant, Verdict.BROKEN, ran.seconds, details=_end_of(ran.output))
    return Trial(mutant, Verdict.CAUGHT, ran.seconds, failed_test["test"], failed_test["why"] or "")


def pytest(scratch: Scratch, arguments: Sequence[str]) -> Run:
    """Run pytest in a session of its own: it gets Ctrl-C only once, from us, and ends its own processes."""
    options = ["-p", "no:cacheprovider", f"--basetemp={scratch.folder / 'tmp'}"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *options, *arguments]
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=scratch.folder,
        env=scratch.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return Run(process.returncode, output, time.monotonic() - started)
    except subprocess.TimeoutExpired:
        return Run(None, f"not finished after {PATIENCE_SECONDS:.0f} s\n{_end(process)}", time.monotonic() - started)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> str:
    """Interrupt the process, and kill it if it does not end in time. Returns its last output."""
    output = ""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return output


def _end_of(output: str, lines: int = 30) -> str:
    return "\n".join(output.splitlines()[-lines:])
