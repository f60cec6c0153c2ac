"""Finds and ends the processes of a child whose keeper can't: it was stopped, or killed.

They are known by the mark in the environment they were started with, which copies and programs inherit, or by their session.
A program that was given neither, after its keeper was killed, is not found.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "DAGMASTER_CHILD"

_ROUND_SECONDS = 0.01


def end(mark: str, sessions: set[int], seconds: float) -> None:
    """Kill until none is left: while one is killed it may start another."""
    deadline = time.monotonic() + seconds
    wanted = f"{MARK}={mark}".encode()
    while _kill_all(wanted, sessions) and time.monotonic() < deadline:
        time.sleep(_ROUND_SECONDS)


def _kill_all(wanted: bytes, sessions: set[int]) -> bool:
    """Whether there were any."""
    found = False
    for pid in _pids():
        if pid != os.getpid() and _belongs(pid, wanted, sessions):
            found = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return found


def _pids() -> Iterator[int]:
    try:
        return iter([int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()])
    except FileNotFoundError:  # not on every system
        return iter(())


def _belongs(pid: int, wanted: bytes, sessions: set[int]) -> bool:
    """The dead, whose environment is gone, don't."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        if state in "ZX":
            return False
        return int(session) in sessions or wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):  # it is gone, or someone else's
        return False
