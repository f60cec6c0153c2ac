"""Kills the processes that a child has started, if its supervisor was stopped or killed and cannot kill them.

They are recognised by a marker in their initial environment, which forked processes and programs inherit, or by their
session. If the supervisor was killed, a process without the marker in another session is not found.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "DAGMASTER_CHILD"

_ROUND_SECONDS = 0.01


def kill_marked(mark: str, sessions: set[int], seconds: float) -> None:
    """Kill until none is left, because a process may start another one while it is being killed."""
    deadline = time.monotonic() + seconds
    marker = f"{MARK}={mark}".encode()
    while _kill_all(marker, sessions) and time.monotonic() < deadline:
        time.sleep(_ROUND_SECONDS)


def _kill_all(marker: bytes, sessions: set[int]) -> bool:
    """Kill every matching process once. Returns whether there were any."""
    has_killed = False
    for pid in _pids():
        if pid != os.getpid() and _belongs(pid, marker, sessions):
            has_killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return has_killed


def _pids() -> Iterator[int]:
    try:
        return iter([int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()])
    except FileNotFoundError:  # not on every system
        return iter(())


def _belongs(pid: int, marker: bytes, sessions: set[int]) -> bool:
    """Whether a process carries the marker or belongs to one of the sessions. Zombies do not count."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        if state in "ZX":
            return False
        return int(session) in sessions or marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):  # it has ended, or belongs to another user
        return False
