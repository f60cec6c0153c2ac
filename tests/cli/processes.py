"""`dagmaster` as real processes, and which of them still run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "dagmaster"]
CLEARED = (
    "DATABASE_URL",
    "POSTGRES_HOST",
    "RUN_MODE",
    "DAGMASTER_DATA",
    "DAGMASTER_URL",
    "DAGMASTER_KEY",
    "DAGMASTER_CREDENTIALS",
    "LOG_LEVEL",
    "CRASH_POINT",
)


def environment(**extra: str) -> dict[str, str]:
    """An environment without map server and gateway, which take seconds to load, unless the test needs them."""
    ours = {name: value for name, value in os.environ.items() if name not in CLEARED}
    return {**ours, "SERVING_ENABLED": "false", "GATEWAY_ENABLED": "false", **extra}


def start(*arguments: str, **extra: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], env=environment(**extra), stdout=pipe, stderr=pipe, text=True)


def call(*arguments: str, standard_input: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**extra),
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass
class Up:
    process: subprocess.Popen[str]
    facts: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid

    def pids(self) -> set[int]:
        return {self.pid, *descendants(self.pid)}

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=40)
        return self.process.returncode, out, err


@contextlib.contextmanager
def up(folder: Path, *arguments: str, **extra: str) -> Iterator[Up]:
    """A platform that is ready. Killed at the end, if the test has not stopped it."""
    process = start("up", "--json", "--data", str(folder), *arguments, **extra)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=30)
        yield Up(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def descendants(pid: int) -> set[int]:
    pids: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids |= {int(child), *descendants(int(child))}
    return pids


def alive(pids: set[int]) -> set[int]:
    """The processes that still run; zombies do not count."""
    return {pid for pid in pids if _state(pid) not in {"", "Z", "X"}}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def eventually(check: Callable[[], Any], timeout: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (response := check()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)
    return response
