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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.quantities import shortened
from dagmaster.settings import Settings

NO_SYMLINK = os.O_NOFOLLOW | os.O_CLOEXEC
STORAGE_FOLDERS = ("storage_folder", "bronze_folder", "silver_folder", "external_folder", "scratch_folder")
# Which object stores hold the zones. Their keys are not passed on: each process has its own.
OBJECT_STORES = (
    "storage_backend",
    "bronze_backend",
    "silver_backend",
    "external_backend",
    "azure_storage_account_name",
    "bronze_azure_account",
    "silver_azure_account",
    "external_azure_account",
    "azure_storage_endpoint",
    "s3_endpoint",
    "s3_region",
    "storage_ca_file",
)


@dataclass(frozen=True, slots=True)
class RunningPlatform:
    """A running platform. `storage` are its storage settings, which may differ from those of the reading process."""

    database_url: str
    pid: int
    started_at: str
    api_url: str | None = None
    maps_url: str | None = None
    storage: dict[str, str] = field(default_factory=dict)

    def with_its_storage(self, settings: Settings) -> Settings:
        paths = {name: Path(path) for name, path in self.storage.items() if name.endswith(("_folder", "_file"))}
        return settings.model_copy(update={**dict.fromkeys(STORAGE_FOLDERS), **self.storage, **paths})


def data_folder(settings: Settings) -> Path:
    return settings.home()


def find_database(settings: Settings) -> str:
    """The URL of the configured database, or that of the platform running on this machine."""
    if dsn := settings.dsn():
        return dsn
    folder = data_folder(settings)
    platform = running_platform(folder)
    if platform is None:
        raise _no_platform(folder, "set DATABASE_URL")
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
        raise _no_platform(folder, "give the URL of another platform with --server URL (or DAGMASTER_URL)")
    if dsn not in (None, platform.database_url):
        raise Conflict(
            f"the platform running on {folder} uses another database than the one in DATABASE_URL",
            code="platform.other-database",
            hint="choose a platform with --server URL, or unset DATABASE_URL",
        )
    if platform.api_url is None:
        message = f"the platform running on {folder} serves no API"
        raise Unavailable(message, code="platform.no-api", hint="start it without API_ENABLED=false")
    return platform.api_url


def _no_platform(folder: Path, alternative: str) -> Unavailable:
    return Unavailable(
        f"no platform is running on {_short(folder)}",
        code="platform.none",
        hint=f"start one with `dagmaster up`, use --data if yours is in another folder, or {alternative}",
    )


def find_maps(settings: Settings, chosen: str | None = None) -> str:
    """The URL of the chosen map server, or that of the platform running on this machine."""
    if url := chosen or settings.public_url:
        return url
    platform = running_platform(data_folder(settings))
    if platform is None or platform.maps_url is None:
        hint = "start one with `dagmaster up`, or give the URL of another one (maps=URL, or PUBLIC_URL)"
        raise Unavailable("no map server is running on this machine", code="maps.none", hint=hint)
    return platform.maps_url


def running_platform(folder: Path) -> RunningPlatform | None:
    """The platform of a data folder, if it is running."""
    with folder_errors(folder):
        if not is_held(folder / "platform.lock"):
            return None
        try:
            return RunningPlatform(**json.loads((folder / "platform.json").read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return None  # the platform is starting or stopping


@contextlib.contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Translate system errors about the data folder into errors that name the folder."""
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
    return shortened(str(folder), 200)


def is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | NO_SYMLINK)
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
