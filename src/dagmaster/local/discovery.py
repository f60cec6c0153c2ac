"""Publish the platform that runs on this machine, so that `dagmaster.client.discovery` finds it."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from dagmaster.client.discovery import (
    NO_SYMLINK,
    OBJECT_STORES,
    STORAGE_FOLDERS,
    RunningPlatform,
    data_folder,
    find_api,
    find_database,
    folder_errors,
    is_held,
    running_platform,
)
from dagmaster.errors import Conflict, Unavailable
from dagmaster.settings import Settings

__all__ = [
    "RunningPlatform",
    "awaited_platform",
    "data_folder",
    "find_api",
    "find_database",
    "hold",
    "holder_of",
    "publish",
    "running_platform",
    "storage_of",
    "withdraw",
]
_CONTAINERS = ("bronze_container", "silver_container", "external_container")


def storage_of(settings: Settings) -> dict[str, str]:
    chosen = {name: getattr(settings, name) for name in (*STORAGE_FOLDERS, *OBJECT_STORES, *_CONTAINERS)}
    absolute = {name: value.absolute() if isinstance(value, Path) else value for name, value in chosen.items()}
    return {name: str(value) for name, value in absolute.items() if value}


def holder_of(folder: Path) -> int | None:
    """The process that holds a data folder: a platform that runs, starts or stops."""
    lock = folder / "platform.lock"
    try:
        pid = lock.read_text().strip() if is_held(lock) else ""
    except OSError:  # the file belongs to another user
        return None
    return int(pid) if pid.isdigit() else None


def awaited_platform(
    folder: Path, on_waiting: Callable[[], None] = lambda: None, timeout_seconds: float = 90.0
) -> RunningPlatform | None:
    """The platform of a data folder, after it has finished starting or stopping."""
    deadline, is_reported = time.monotonic() + timeout_seconds, False
    while True:
        platform = running_platform(folder)
        if platform or not is_held(folder / "platform.lock"):
            return platform
        if time.monotonic() > deadline:
            raise Unavailable(
                f"a platform has been starting or stopping on {folder} for {timeout_seconds:.0f} s",
                code="platform.slow",
                hint="see the output of its `dagmaster up`",
            )
        if not is_reported:
            on_waiting()
            is_reported = True
        time.sleep(0.1)


def publish(folder: Path, platform: RunningPlatform) -> None:
    """Let other processes find this platform."""
    unfinished = folder / f"platform.json.{os.getpid()}"
    with folder_errors(folder):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_SYMLINK, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(platform), file)
        unfinished.replace(folder / "platform.json")


def withdraw(folder: Path) -> None:
    (folder / "platform.json").unlink(missing_ok=True)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the data folder, so that it has only one platform."""
    with folder_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "platform.lock", os.O_RDWR | os.O_CREAT | NO_SYMLINK, 0o600)
    try:
        _acquire(descriptor, folder)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path, retry_seconds: float = 0.5) -> None:
    """Try for a moment: another command that checks whether a platform runs holds the lock briefly."""
    deadline = time.monotonic() + retry_seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _already_running(os.pread(descriptor, 20, 0).decode(errors="replace").strip(), folder) from None
            time.sleep(0.02)


def _already_running(pid: str, folder: Path) -> Conflict:
    return Conflict(
        f"a platform is already running on {folder} (process {pid})",
        code="platform.running",
        hint="use that platform, stop it, or choose another folder with --data",
        pid=int(pid) if pid.isdigit() else None,
    )
