"""Find the platform that runs on this machine.

    <data folder>/platform.lock   locked by the platform as long as it runs; contains its process id
    <data folder>/platform.json   its addresses; only its owner may read them

Only the lock says whether it runs: a killed platform leaves both files behind.
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

_NO_SYMLINK = os.O_NOFOLLOW | os.O_CLOEXEC
_STORAGE_FOLDERS = ("storage_folder", "bronze_folder", "silver_folder", "external_folder")
_CONTAINERS = ("bronze_container", "silver_container", "external_container")


@dataclass(frozen=True, slots=True)
class Platform:
    """A running platform. `storage` are its storage settings, which may differ from those of the reading process."""

    database_url: str
    pid: int
    started_at: str
    api_url: str | None = None
    maps_url: str | None = None
    storage: dict[str, str] = field(default_factory=dict)

    def with_its_storage(self, settings: Settings) -> Settings:
        folders = {name: Path(path) for name, path in self.storage.items() if name.endswith("_folder")}
        return settings.model_copy(update={**dict.fromkeys(_STORAGE_FOLDERS), **self.storage, **folders})


def storage_of(settings: Settings) -> dict[str, str]:
    named = {name: getattr(settings, name) for name in (*_STORAGE_FOLDERS, *_CONTAINERS)}
    absolute = {name: value.absolute() if isinstance(value, Path) else value for name, value in named.items()}
    return {name: str(value) for name, value in absolute.items() if value}


def data_folder(settings: Settings) -> Path:
    return settings.home()


def find_database(settings: Settings) -> str:
    """The URL of the configured database, or that of the platform running on this machine."""
    if dsn := settings.dsn():
        return dsn
    folder = data_folder(settings)
    platform = running_platform(folder)
    if platform is None:
        raise _none(folder, "set DATABASE_URL")
    return platform.database_url


def find_api(settings: Settings, chosen: str | None = None) -> str:
    """The URL of the chosen API, or that of the platform running on this machine."""
    if url := chosen or settings.server_url:
        return url
    folder, dsn = data_folder(settings), settings.dsn()
    platform = running_platform(folder)
    if platform is None and dsn:
        hint = (
            "DATABASE_URL is not enough: give the API of one of its orchestrators with --server URL (or DAGMASTER_URL)"
        )
        raise Unavailable("no platform is running", code="platform.none", hint=hint)
    if platform is None:
        raise _none(folder, "give the API of another one with --server URL (or DAGMASTER_URL)")
    if dsn not in (None, platform.database_url):
        raise Conflict(
            f"the platform running on {folder} uses another database than DATABASE_URL names",
            code="platform.other-database",
            hint="choose one with --server URL, or unset DATABASE_URL",
        )
    if platform.api_url is None:
        what = f"the platform running on {folder} serves no API"
        raise Unavailable(what, code="platform.no-api", hint="start it without API_ENABLED=false")
    return platform.api_url


def _none(folder: Path, otherwise: str) -> Unavailable:
    return Unavailable(
        f"no platform is running on {_short(folder)}",
        code="platform.none",
        hint=f"start one with `dagmaster up`, use --data if yours is in another folder, or {otherwise}",
    )


def running_platform(folder: Path) -> Platform | None:
    """The platform of a data folder, if it is up."""
    with _translated(folder):
        if not _is_held(folder / "platform.lock"):
            return None
        try:
            return Platform(**json.loads((folder / "platform.json").read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return None  # it is starting or stopping


def awaited_platform(
    folder: Path, on_waiting: Callable[[], None] = lambda: None, patience_seconds: float = 90.0
) -> Platform | None:
    """The platform of a data folder, after it has finished starting or stopping."""
    deadline, is_reported = time.monotonic() + patience_seconds, False
    while True:
        platform = running_platform(folder)
        if platform or not _is_held(folder / "platform.lock"):
            return platform
        if time.monotonic() > deadline:
            raise Unavailable(
                f"a platform has been starting or stopping on {folder} for {patience_seconds:.0f} s",
                code="platform.slow",
                hint="see the output of its `dagmaster up`",
            )
        if not is_reported:
            on_waiting()
            is_reported = True
        time.sleep(0.1)


def publish(folder: Path, platform: Platform) -> None:
    """Let others find this platform."""
    unfinished = folder / f"platform.json.{os.getpid()}"
    with _translated(folder):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_SYMLINK, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(platform), file)
        unfinished.replace(folder / "platform.json")


def withdraw(folder: Path) -> None:
    (folder / "platform.json").unlink(missing_ok=True)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Be the only platform of this data folder."""
    with _translated(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "platform.lock", os.O_RDWR | os.O_CREAT | _NO_SYMLINK, 0o600)
    try:
        _acquire(descriptor, folder)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """System errors about the data folder become errors that name it."""
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
            f"the data folder {_short(folder)} cannot be used: {reason}",
            code="platform.bad-folder",
            hint="choose another one with --data",
        ) from None


def _short(folder: Path) -> str:
    text = str(folder)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _acquire(descriptor: int, folder: Path, patience_seconds: float = 0.5) -> None:
    """Try for a moment: another command that checks whether a platform runs holds the lock briefly."""
    deadline = time.monotonic() + patience_seconds
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
        hint="use it, stop it, or choose another folder with --data",
        pid=int(pid) if pid.isdigit() else None,
    )


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | _NO_SYMLINK)
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
