"""The local data of `up`, `process` and `demo`: which data folders and databases there are, and how to remove them.

    <home>/folders/<id>   the path of a data folder that a platform has used; <home> is the default data folder
    <home>/<id>           as root, the database of that data folder; otherwise it is in the data folder

A database of root whose data folder is not recorded, because an older version created it, has an id only.
"""

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from dagmaster.errors import Conflict, NotAllowed, NotFound, Unavailable
from dagmaster.local import discovery
from dagmaster.local.embedded import ROOT_HOME, Cluster, identity_of
from dagmaster.settings import Settings
from dagmaster.storage import scratch
from dagmaster.storage.location import Zone, job_named

# What a platform puts into its data folder. Everything else in the folder belongs to the user, and is kept.
_OWN_NAMES = (
    "platform.json",
    "platform.lock",
    "gateway.key",
    "postgres",
    "previews",
    "storage",
    "preview.png",
    ".dagmaster-demo",
)
_SCRATCH = "scratch"  # a user may have made a folder with this name, so that only some of its content is the platform's
_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LocalData:
    """`folder` is None if it is unknown; sizes are None if this user may not read them. `pid` is that of the platform,
    or that of its PostgreSQL if `folder` is unknown. `has_server`: its PostgreSQL is running."""

    id: str
    folder: Path | None
    cluster: Cluster
    owner: str
    pid: int | None
    has_server: bool
    database_bytes: int | None
    folder_bytes: int | None

    @property
    def is_running(self) -> bool:
        return self.pid is not None or self.has_server

    @property
    def is_orphaned(self) -> bool:
        """Whether the data folder was deleted, and only the database is left."""
        return self.folder is not None and not self.folder.exists()


def record(folder: Path, settings: Settings) -> None:
    """Remember a data folder, so that it can be listed. A platform starts even if that fails."""
    if settings.data_folder is None:
        return
    with suppress(OSError):
        entry = _record_of(identity_of(settings.data_folder))
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry.write_text(str(folder))


def local_data() -> list[LocalData]:
    """All local data; for a normal user also the databases that root has created."""
    folders: dict[str, Path | None] = {_DEFAULT: _home()}
    folders |= {entry.name: Path(entry.read_text()) for entry in _files(_home() / "folders")}
    if os.geteuid() == 0:
        folders |= {name: None for name in _databases(ROOT_HOME) if name not in folders}
    data = [
        _read(name, folder, Cluster.of(name, None if name == _DEFAULT else folder)) for name, folder in folders.items()
    ]
    if os.geteuid() != 0:
        data += [_read(name, None, Cluster.of_root(name)) for name in _databases(ROOT_HOME)]
    for each in data:
        if not _exists(each):
            with suppress(OSError):
                _record_of(each.id).unlink(missing_ok=True)
    return [each for each in data if _exists(each)]


def find_local_data(name: str) -> LocalData:
    """Local data by its id, or by its data folder."""
    path = Path(name).absolute()
    for each in local_data():
        if name == each.id or (each.folder is not None and each.folder.absolute() == path):
            return each
    raise NotFound(f"no local data is named {name}", code="local.not-found", hint="list it with `dagmaster local ls`")


def remove(data: LocalData) -> int:
    """Delete the database and what the platform has put into the data folder; returns the number of bytes."""
    if data.is_running:
        owner = f"process {data.pid}" if data.pid else "a process that is starting or stopping"
        raise Conflict(
            f"a platform is running on {data.folder or data.id} ({owner})",
            code="platform.running",
            hint="stop it with Ctrl-C in its terminal, then try again",
        )
    folder = data.folder if data.folder and data.folder.is_dir() else None
    with discovery.hold(folder) if folder else nullcontext(), _translated(data):
        for path in (data.cluster.folder, data.cluster.socket_folder):
            _delete(path)
        if folder:
            _delete_own_paths(folder)
        _record_of(data.id).unlink(missing_ok=True)
    with suppress(OSError):  # the folder contains files of the user
        if folder and data.id != _DEFAULT:
            folder.rmdir()
    return (data.database_bytes or 0) + (data.folder_bytes or 0)


def _read(name: str, folder: Path | None, cluster: Cluster) -> LocalData:
    paths = _visible_paths(folder) if folder else []
    database_bytes = _size(cluster.folder)
    sizes = [_size(path) for path in paths if path != cluster.folder]
    pid = cluster.server_pid()
    return LocalData(
        id=name,
        folder=folder,
        cluster=cluster,
        owner=_owner(cluster.folder if os.path.lexists(cluster.folder) else folder),
        pid=discovery.holder_of(folder) if folder else pid,
        has_server=pid is not None,
        database_bytes=database_bytes,
        folder_bytes=sum(size or 0 for size in sizes) if folder else None,
    )


def _exists(data: LocalData) -> bool:
    has_folder = data.folder is not None and any(map(os.path.lexists, _visible_paths(data.folder)))
    return has_folder or os.path.lexists(data.cluster.folder)


def _visible_paths(folder: Path) -> list[Path]:
    """What a platform has put into a data folder, without scratch folders that this user may not read."""
    try:
        return [*_own_paths(folder), *_own_scratch_paths(folder)]
    except PermissionError:
        return _own_paths(folder)


def _own_paths(folder: Path) -> list[Path]:
    return [folder / name for name in _OWN_NAMES]


def _own_scratch_paths(folder: Path) -> list[Path]:
    """What object stores put into `scratch/<zone>`: folders of jobs, removed folders, unfinished uploads. Not what is
    behind a symbolic link: other platforms may use it too."""
    if (folder / _SCRATCH).is_symlink():
        return []
    zones = [path for path in (folder / _SCRATCH / zone for zone in Zone) if not path.is_symlink()]
    return [
        path / name
        for path in zones
        for name in scratch.folders_in(path)
        if name in (".gone", ".uploads") or job_named(name)
    ]


def _delete_own_paths(folder: Path) -> None:
    for path in (*_own_paths(folder), *_own_scratch_paths(folder)):
        _delete(path)
    for path in (*(folder / _SCRATCH / zone for zone in Zone), folder / _SCRATCH):
        with suppress(OSError):  # it does not exist, or contains files of the user
            path.rmdir()


def _home() -> Path:
    return Settings.default_home()


def _record_of(identity: str) -> Path:
    return _home() / "folders" / identity


def _databases(home: Path) -> Iterator[str]:
    for entry in sorted(home.iterdir()) if home.is_dir() else ():
        if entry.is_dir() and entry.name not in {*_OWN_NAMES, _SCRATCH, "folders"}:
            yield entry.name


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _size(path: Path) -> int | None:
    """The size of a file or of all files in a folder; None if some of it may not be read."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size if os.path.lexists(path) else 0
        sizes = [_size(entry) for entry in path.iterdir()]
    except PermissionError:
        return None
    except FileNotFoundError:  # deleted meanwhile
        return 0
    return None if None in sizes else sum(size or 0 for size in sizes)


def _owner(path: Path | None) -> str:
    try:
        return user_name(path.stat().st_uid) if path else ""
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """The name of a user, or the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _translated(data: LocalData) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise NotAllowed(
            f"{error.filename} cannot be deleted: it belongs to another user",
            code="local.not-allowed",
            hint=f"if a platform was run as root there, use `sudo dagmaster local rm {data.folder or data.id}`",
        ) from None
    except OSError as error:
        raise Unavailable(f"{error.filename} cannot be deleted: {error.strerror}", code="local.busy") from None
