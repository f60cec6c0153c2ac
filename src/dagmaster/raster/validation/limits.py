"""Check an untrusted file in a separate process, which may crash, hang or run out of memory without harm.

    inspect ──(request, JSON)──▶ python -m dagmaster.raster.validation.subprocess_main ──(response, JSON)──▶ inspect

The process has limits on address space, CPU time and elapsed time, cannot write files, leaves no core dump, does not
inherit the environment (and so no credentials), and ends itself when its time is over, even if its parent has ended.
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

_NEW_FILE = "export it again; if the file is good, report this as a bug"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Resources that the process may use."""

    memory_mb: int = 2048  # address space; the libraries alone use some hundreds
    cpu_seconds: int = 30
    seconds: int = 60


def inspect(
    path: str | Path,
    *,
    source_crs: str | None = None,
    raster_type: RasterType | str | None = None,
    ceilings: Ceilings | None = None,
    every_pixel: bool = False,
    limits: ProcessLimits | None = None,
) -> Checked:
    """`check` in a limited process. A file that makes the process fail is rejected.

    >>> inspect("from-the-internet.tif").verdict
    <Verdict.REJECT: 'reject'>
    """
    limits = limits or ProcessLimits()
    request = {
        "path": os.path.abspath(path) if path else "",  # noqa: PTH100  (resolve() would follow links)
        "source_crs": source_crs,
        "raster_type": RasterType.parse(raster_type),
        "ceilings": asdict(ceilings or Ceilings()),
        "every_pixel": every_pixel,
        "limits": asdict(limits),
    }
    status, response = _run(json.dumps(request).encode(), limits)
    return _checked(status, response, short_name(path), limits)


def _run(request: bytes, limits: ProcessLimits) -> tuple[int | None, bytes]:
    """The exit status and the response; the status is None if the process had to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster.raster.validation.subprocess_main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1", "PROJ_NETWORK": "OFF"},
        start_new_session=True,
    )
    try:
        response, _ = process.communicate(request, timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return None, b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and every process that it may have started
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
    return process.returncode, response


def _checked(status: int | None, response: bytes, name: str, limits: ProcessLimits) -> Checked:
    if status in (None, -signal.SIGALRM, -signal.SIGXCPU):
        allowed = f"{limits.seconds} seconds, or {limits.cpu_seconds} seconds of CPU time"
        return rejected("raster.hang", f"'{name}' could not be checked within {allowed}", _NEW_FILE)
    if status == 0:
        with contextlib.suppress(ValueError, KeyError):
            return _parsed(json.loads(response))
    return rejected("raster.crash", f"'{name}' crashed the process that checked it", _NEW_FILE)


def _parsed(document: dict[str, object]) -> Checked:
    if problem := document.get("invalid"):
        assert isinstance(problem, dict)
        kind = NotFound if document.get("missing") else InvalidRequest
        raise kind(problem["message"], code=problem["code"], hint=problem["hint"])
    return Checked.from_dict(document["checked"])
