"""First the unharmed copy passes what is asked of it, then each bug must fail it."""

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

PATIENCE_SECONDS: Final = 420.0  # with one command
_GOODBYE_SECONDS: Final = 30.0  # for tests to stop the servers that they have started
_PASSED, _FAILED = 0, 1  # pytest's exit codes
_RED = re.compile(r"^FAILED (?P<test>\S+?::\S.*?)(?: - (?P<why>.*))?$", re.MULTILINE)


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
    """Why a bug's red would mean nothing: what fails without any, twice. None: all is green."""
    for tests in dict.fromkeys(tests for mutant in mutants for tests in mutant.selections):
        ran = pytest(scratch, tests)
        if ran.code == _FAILED:
            report(f"unharmed: {' '.join(tests)}: fails, and runs once more\n{_end_of(ran.output)}")
            ran = pytest(scratch, tests)
        report(f"unharmed: {' '.join(tests)}: {'passes' if ran.code == _PASSED else 'FAILS'} ({ran.seconds:.0f} s)")
        if ran.code != _PASSED:
            return f"without any bug this fails: pytest {' '.join(tests)}\n{_end_of(ran.output)}"
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
    """Caught is what a test has failed on: an error on the way there is none."""
    if ran.code == _PASSED:
        return Trial(mutant, Verdict.SURVIVED, ran.seconds)
    red = _RED.search(ran.output)
    if ran.code != _FAILED or red is None:
        return Trial(mutant, Verdict.BROKEN, ran.seconds, details=_end_of(ran.output))
    return Trial(mutant, Verdict.CAUGHT, ran.seconds, red["test"], red["why"] or "")


def pytest(scratch: Scratch, arguments: Sequence[str]) -> Run:
    """In a session of its own: a Ctrl-C reaches it once, through us, and it stops what it has started."""
    aside = ["-p", "no:cacheprovider", f"--basetemp={scratch.folder / 'tmp'}"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *aside, *arguments]
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
        return Run(None, f"no end after {PATIENCE_SECONDS:.0f} s\n{_end(process)}", time.monotonic() - started)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> str:
    """Ask once, then insist. Answers what it still had to say."""
    output = ""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=_GOODBYE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return output


def _end_of(output: str, lines: int = 30) -> str:
    return "\n".join(output.splitlines()[-lines:])
