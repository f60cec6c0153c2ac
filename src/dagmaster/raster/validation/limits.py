"""Checking a stranger's file in a process of its own, which may crash, hang or eat memory without harm.

    inspect ──(question, JSON)──▶ python -m dagmaster.raster.validation.subprocess_main ──(answer, JSON)──▶ inspect

The process has little address space, a number of CPU seconds and of seconds, may not write any file, leaves no core, gets
no environment (and so no credentials), and ends itself when its time is over, even if its parent is gone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.opening import short_name
from dagmaster.raster.validation.findings import Checked, rejected
from dagmaster.raster.validation.header_rules import Ceilings

_NEW_FILE = "export it anew; if it is good, report this"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What the process may use."""

    memory_mb: int = 2048  # of address space, of which the libraries alone take some hundreds
    cpu_seconds: int = 30
    seconds: int = 60


def inspect(
    path: str | Path,
    *,
    source_crs: str | None = None,
    raster_type: RasterType | str | None = None,
    ceilings: Ceilings | None = None,
    whole: bool = False,
    limits: ProcessLimits | None = None,
) -> Checked:
    """`check` in a limited process. A file that breaks the process is rejected.

    >>> inspect("from-the-internet.tif").verdict
    <Verdict.REJECT: 'reject'>
    """
    limits = limits or ProcessLimits()
    question = {
        "path": os.path.abspath(path) if path else "",  # noqa: PTH100  (resolve() would follow links)
        "source_crs": source_crs,
        "raster_type": RasterType.asked(raster_type),
        "ceilings": asdict(ceilings or Ceilings()),
        "whole": whole,
        "limits": asdict(limits),
    }
    status, answer = _ask(json.dumps(question).encode(), limits)
    return _understand(status, answer, short_name(path), limits)


def _ask(question: bytes, limits: ProcessLimits) -> tuple[int | None, bytes]:
    """The exit status and what was said; None when it had to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster.raster.validation.subprocess_main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1", "PROJ_NETWORK": "OFF"},
        start_new_session=True,
    )
    try:
        answer, _ = process.communicate(question, timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return None, b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with whatever it may have started
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
    return process.returncode, answer


def _understand(status: int | None, answer: bytes, name: str, limits: ProcessLimits) -> Checked:
    if status in (None, -signal.SIGALRM, -signal.SIGXCPU):
        return rejected("raster.hang", f"'{name}' could not be judged within {limits.seconds} seconds", _NEW_FILE)
    if status == 0:
        with contextlib.suppress(ValueError, KeyError):
            return _heard(json.loads(answer))
    return rejected("raster.crash", f"'{name}' made its reader fail", _NEW_FILE)


def _heard(said: dict[str, object]) -> Checked:
    if problem := said.get("invalid"):
        assert isinstance(problem, dict)
        kind = NotFound if said.get("missing") else InvalidRequest
        raise kind(problem["message"], code=problem["code"], hint=problem["hint"])
    return Checked.from_dict(said["checked"])
