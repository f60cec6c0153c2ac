"""Where a platform on this machine lives, whether it runs, and how others find it.

    <data folder>/platform.lock   held by `dagmaster up` as long as it lives; holds its process number
    <data folder>/platform.json   how to reach it; only its owner may read that

The lock is the truth: a file that a killed platform left behind is not taken for a running one.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.settings import Settings

_NO_DETOUR = os.O_NOFOLLOW | os.O_CLOEXEC
_STORAGE_FOLDERS = ("storage_folder", "bronze_folder", "silver_folder", "external_folder")
_CONTAINERS = ("bronze_container", "silver_container", "external_container")


@dataclass(frozen=True, slots=True)
class Platform:
    """`storage` are the settings of where it keeps objects, which may be another's than those of whoever reads this."""

    database_url: str
    pid: int
    started_at: str
    api_url: str | None = None
    maps_url: str | None = None
    storage: dict[str, str] = field(default_factory=dict)

    def with_its_storage(self, settings: Settings) -> Settings:
        folders = {name: Path(told) for name, told in self.storage.items() if name.endswith("_folder")}
        return settings.model_copy(update={**dict.fromkeys(_STORAGE_FOLDERS), **self.storage, **folders})


def storage_of(settings: Settings) -> dict[str, str]:
    named = {name: getattr(settings, name) for name in (*_STORAGE_FOLDERS, *_CONTAINERS)}
    told = {name: value.absolute() if isinstance(value, Path) else value for name, value in named.items()}
    return {name: str(value) for name, value in told.items() if value}


def data_folder(settings: Settings) -> Path:
    return settings.home()


def find_database(settings: Settings) -> str:
    """The address of the database that is meant: the configured one, or that of the platform running here."""
    if dsn := settings.dsn():
        return dsn
    folder = data_folder(settings)
    platform = running_platform(folder)
    if platform is None:
        raise _none(folder, "set DATABASE_URL")
    return platform.database_url


def find_api(settings: Settings, chosen: str | None = None) -> str:
    """The address of the API that is meant: the one named, or that of the platform running here."""
    if url := chosen or settings.server_url:
        return url
    folder, dsn = data_folder(settings), settings.dsn()
    platform = running_platform(folder)
    if platform is None and dsn:
        hint = "DATABASE_URL is not enough: name the API of an orchestrator on it with --server URL (DAGMASTER_URL)"
        raise Unavailable("no platform is running", code="platform.none", hint=hint)
    if platform is None:
        raise _none(folder, "name one with --server URL (or DAGMASTER_URL)")
    if dsn not in (None, platform.database_url):
        raise Conflict(
            f"the platform running on {folder} uses another database than DATABASE_URL names",
            code="platform.other-database",
            hint="say which one is meant with --server URL, or unset DATABASE_URL",
        )
    if platform.api_url is None:
        what = f"the platform running on {folder} serves no API"
        raise Unavailable(what, code="platform.no-api", hint="start it without API_ENABLED=false")
    return platform.api_url


def _none(folder: Path, otherwise: str) -> Unavailable:
    return Unavailable(
        f"no platform is running on {_short(folder)}", code="platform.none",
        hint=f"start one with `dagmaster up`, say --data if yours is in another folder, or {otherwise}",
    )  # fmt: skip


def running_platform(folder: Path) -> Platform | None:
    """The platform of a data folder, if it is up."""
    with _told(folder):
        if not _is_held(folder / "platform.lock"):
            return None
        try:
            return Platform(**json.loads((folder / "platform.json").read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return None  # it is just starting, or just stopping


def awaited_platform(
    folder: Path, on_waiting: Callable[[], None] = lambda: None, patience_seconds: float = 90.0
) -> Platform | None:
    """The platform of a data folder; of one that is just starting, or stopping, the end of that is waited for."""
    deadline, has_said = time.monotonic() + patience_seconds, False
    while True:
        found = running_platform(folder)
        if found or not _is_held(folder / "platform.lock"):
            return found
        if time.monotonic() > deadline:
            raise Unavailable(
                f"a platform has been starting or stopping on {folder} for {patience_seconds:.0f} s", code="platform.slow",
                hint="look at what `dagmaster up` says there",
            )  # fmt: skip
        if not has_said:
            on_waiting()
            has_said = True
        time.sleep(0.1)


def publish(folder: Path, platform: Platform) -> None:
    """Let others find this platform."""
    unfinished = folder / f"platform.json.{os.getpid()}"
    with _told(folder):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_DETOUR, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(platform), file)
        unfinished.replace(folder / "platform.json")


def withdraw(folder: Path) -> None:
    (folder / "platform.json").unlink(missing_ok=True)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Be the only platform of this data folder."""
    with _told(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "platform.lock", os.O_RDWR | os.O_CREAT | _NO_DETOUR, 0o600)
    try:
        _acquire(descriptor, folder)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """A folder that can't be used is told as what it means."""
    try:
        yield
    except OSError as error:
        kind: type[DagmasterError] = InvalidRequest
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            kind = NotAllowed
        elif error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            kind = Unavailable
        reason = "platform.lock is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise kind(
            f"the data folder {_short(folder)} can't be used: {reason}", code="platform.bad-folder",
            hint="choose another one with --data",
        ) from None  # fmt: skip


def _short(folder: Path) -> str:
    text = str(folder)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _acquire(descriptor: int, folder: Path, patience_seconds: float = 0.5) -> None:
    """Not given up at first sight: whoever looks whether we run holds the lock for a moment."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _runs_already(os.pread(descriptor, 20, 0).decode(errors="replace").strip(), folder) from None
            time.sleep(0.02)


def _runs_already(pid: str, folder: Path) -> Conflict:
    return Conflict(
        f"a platform runs already on {folder} (process {pid})",
        code="platform.running",
        hint="use it, stop it, or choose another folder with --data",
        pid=int(pid) if pid.isdigit() else None,
    )


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | _NO_DETOUR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
