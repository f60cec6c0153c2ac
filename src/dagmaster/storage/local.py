"""A zone in a folder of this machine.

    <root>/<container>/<blob>   objects; each appears here complete, by one rename or link
    <root>/.incoming/<random>   objects that are being written; leftovers of killed processes are removed after a day
    <root>/.scratch/<job id>/   folders for large files, which a put can move, because they are on the same file system
    <root>/.gone/<random>/      removed folders, until their files are deleted
    <root>/.uploads/<upload id> unfinished uploads (`file_uploads`)

Names of containers do not begin with a dot. Symbolic links that lead out of the root are not followed.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO
from uuid import UUID, uuid4

from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.storage import scratch
from dagmaster.storage.location import Folder, Location, Zone
from dagmaster.storage.store import (
    CHUNK_BYTES,
    ObjectInfo,
    StorageTier,
    Stored,
    bad_range,
    not_found,
    require_file,
    require_path,
    taken,
)

LEFTOVER_SECONDS = 24 * 3600.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
# A folder is deleted with its last object, so a new folder may disappear before it is used.
_TRIES = 100


class LocalStore:
    def __init__(self, zone: Zone, root: Path) -> None:
        self.zone = zone
        self._root = root.resolve()

    @property
    def root(self) -> Path:
        return self._root

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        with writing(location), self._incoming() as unfinished:
            with unfinished.open("xb") as file:
                file.write(data)
                _sync(file)
            return self._publish(unfinished, location, hashlib.sha256(data).hexdigest(), create_only)

    def put_file(
        self,
        location: Location,
        file: Path,
        *,
        move: bool = False,
        create_only: bool = False,
        tier: StorageTier = StorageTier.HOT,
    ) -> Stored:
        status = require_file(file)
        # If the file has another hard link, the object could be changed through it.
        stored = self._take(location, file, create_only) if move and status.st_nlink == 1 else None
        if stored is None:
            with writing(location), self._incoming() as unfinished:
                stored = self._publish(unfinished, location, _copy(file, unfinished), create_only)
        if move:
            file.unlink(missing_ok=True)
        return stored

    def link_file(self, location: Location, file: Path, digest: str) -> Stored:
        """Make a file of this file system an object too, by a link; `digest` is its SHA-256. An existing object stays;
        raises Conflict if its content differs. The caller removes the file, and must not write to it again."""
        with writing(location):
            return self._publish(file, location, digest, create_only=True)

    def _take(self, location: Location, file: Path, create_only: bool) -> Stored | None:
        """Turn the file itself into the object; None if it is on another file system."""
        with writing(location):
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                os.fsync(content.fileno())
            try:
                return self._publish(file, location, digest, create_only)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    return None
                raise

    def get(self, location: Location) -> bytes:
        with _reading(location), self._open(location) as file:
            return file.read()

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        with _reading(location), self._open(location) as file:
            if start < 0 or length < 1 or start >= os.fstat(file.fileno()).st_size:
                raise bad_range(location, start, length)
            file.seek(start)
            return file.read(length)

    def get_file(self, location: Location, file: Path) -> None:
        with _reading(location), self._open(location) as source, file.open("xb") as target:
            shutil.copyfileobj(source, target, CHUNK_BYTES)

    def sha256(self, location: Location) -> str:
        with _reading(location), self._open(location) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def head(self, location: Location) -> ObjectInfo:
        with _reading(location):
            status = self._path(location).stat()
        if not stat.S_ISREG(status.st_mode):
            raise not_found(location)
        return _info(location, status)

    def exists(self, location: Location) -> bool:
        with _reading(location):
            return self._path(location).is_file()

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        """Links, and files whose names break the rules, are not objects and are not listed."""
        base = self._root / folder.container
        with _reading(folder):
            for parent, _, names in os.walk(self._within(base / folder.path)):
                for name in names:
                    if info := self._listed(folder, base, Path(parent, name)):
                        yield info

    def page(self, container: str, prefix: str, after: str, limit: int) -> Sequence[ObjectInfo]:
        folder = Folder(self.zone, container)
        base = self._root / container
        with _reading(folder):
            files = _sorted_files(self._within(base), prefix, after)
            listed = (info for file in files if (info := self._listed(folder, base, file)))
            return tuple(itertools.islice(listed, limit))

    def delete(self, location: Location) -> None:
        with _reading(location), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path = self._path(location)
            path.unlink()
            self._prune(path.parent)

    def folders(self, folder: Folder) -> Iterator[str]:
        with _reading(folder):
            yield from scratch.folders_in(self._within(self._root / folder.container / folder.path))

    def delete_all(self, folder: Folder) -> None:
        """Also deletes links and files whose names break the rules."""
        require_path(folder)
        with _reading(folder):
            path = self._within(self._root / folder.container / folder.path)
            scratch.move_away(path, self._removed_folder)
            self._prune(path.parent)

    def gdal_path(self, location: Location) -> str:
        return str(self._path(location))

    def display_path(self, location: Location) -> str:
        return str(self._path(location))

    def create_container(self, container: str) -> None:
        """Does nothing: a put creates the folders that it needs."""

    @contextlib.contextmanager
    def scratch(self, job_id: UUID) -> Iterator[Path]:
        with contextlib.ExitStack() as stack:
            with writing(self._scratch_name):
                own = stack.enter_context(scratch.opened(self._scratch_folder, job_id))
            yield own

    def scratch_jobs(self) -> Iterator[UUID]:
        with writing(self._scratch_name):
            yield from scratch.jobs_in(self._scratch_folder)

    def clear_scratch(self, job_id: UUID) -> None:
        with writing(self._scratch_name):
            scratch.move_away(self._scratch_folder / str(job_id), self._removed_folder)

    def remove_leftovers(self) -> None:
        with writing(f"the removed folders of the zone {self.zone}"):
            self._remove_leftovers()
            scratch.delete_moved(self._removed_folder)

    @property
    def _scratch_folder(self) -> Path:
        return self._root / ".scratch"

    @property
    def _scratch_name(self) -> str:
        return f"the scratch folder of the zone {self.zone}"

    @property
    def _removed_folder(self) -> Path:
        return self._root / ".gone"

    @contextlib.contextmanager
    def _incoming(self) -> Iterator[Path]:
        folder = self._root / ".incoming"
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / uuid4().hex
        try:
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    def _publish(self, unfinished: Path, location: Location, digest: str, create_only: bool) -> Stored:
        status = unfinished.stat()
        path = self._path(location)
        is_new = _put_in_place(unfinished, path, create_only)
        if not is_new:
            with path.open("rb") as other:
                status = os.fstat(other.fileno())
                if hashlib.file_digest(other, "sha256").hexdigest() != digest:
                    raise taken(location)
        return Stored(location, status.st_size, digest, _etag(status), is_new)

    def _listed(self, folder: Folder, base: Path, path: Path) -> ObjectInfo | None:
        try:
            location = Location(folder.zone, folder.container, path.relative_to(base).as_posix())
            status = path.lstat()
        except (InvalidRequest, FileNotFoundError):
            return None
        return _info(location, status) if stat.S_ISREG(status.st_mode) else None

    def _prune(self, folder: Path) -> None:
        """Remove empty folders, up to the container's own folder, which stays."""
        while folder.parent not in (self._root, folder):
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _remove_leftovers(self) -> None:
        """Remove files of processes that were killed during a put. A put that still runs is not that old."""
        oldest = time.time() - LEFTOVER_SECONDS
        with contextlib.suppress(FileNotFoundError):
            for file in (self._root / ".incoming").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    # Not the modification time, which a copy has from its file, and which may be years ago.
                    if file.lstat().st_ctime < oldest:
                        file.unlink()

    def _open(self, location: Location) -> BufferedReader:
        return self._path(location).open("rb")

    def _path(self, location: Location) -> Path:
        return self._within(self._root / location.container / location.blob)

    def _within(self, path: Path) -> Path:
        # Not Path.resolve, which raises an error for links that form a loop.
        if not Path(os.path.realpath(path)).is_relative_to(self._root):
            raise NotAllowed(
                f"a symbolic link leads out of the zone {self.zone}",
                code="storage.link",
                hint="put the file itself into the zone",
            )
        return path


@contextlib.contextmanager
def _reading(place: Location | Folder) -> Iterator[None]:
    """Translate errors of the file system. The messages do not contain paths of this machine."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise not_found(place) from None
    except OSError as error:
        raise _unavailable(error, place) from error


@contextlib.contextmanager
def writing(place: Location | str) -> Iterator[None]:
    """Like `_reading`, for writes."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError):
        raise Conflict(
            f"{place} cannot be stored: a part of its name is an object, or it is a folder with objects",
            code="storage.name-taken",
        ) from None
    except OSError as error:
        raise _unavailable(error, place) from error


def _unavailable(error: OSError, place: Location | Folder | str) -> DagmasterError:
    if error.errno == errno.ENAMETOOLONG:
        return InvalidRequest(f"the name {place} is too long for this file system", code="storage.bad-blob")
    if error.errno in _FULL:
        return Unavailable("the storage is full", code="storage.full", hint="free space, or use a larger disk")
    if error.errno in _NO_LINKS and error.filename2:
        return Unavailable(
            "this file system has no hard links, which are needed to protect objects from being overwritten",
            code="storage.no-links",
            hint="put the storage on another file system",
        )
    return Unavailable(f"{place} cannot be accessed: {error.strerror}", code="storage.unavailable")


def _put_in_place(unfinished: Path, path: Path, create_only: bool) -> bool:
    """Put the file in place atomically; False if `create_only` and an object exists."""
    for tries_left in reversed(range(_TRIES)):
        try:
            changed = _make_folders(path.parent)
            if not _moved(unfinished, path, create_only):
                return False
            break
        except FileNotFoundError:
            if not tries_left:
                raise
    for folder in changed:
        _sync_folder(folder)
    return True


def _copy(file: Path, target: Path) -> str:
    """Copy and hash in one pass. The copy keeps the modification time of the file, which dates the data."""
    digest = hashlib.sha256()
    with file.open("rb") as source, target.open("xb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()  # a later write would change the modification time again
        written = os.fstat(source.fileno())
        os.utime(copy.fileno(), ns=(written.st_atime_ns, written.st_mtime_ns))
        _sync(copy)
    return digest.hexdigest()


def _moved(unfinished: Path, path: Path, create_only: bool) -> bool:
    if not create_only:
        unfinished.replace(path)
        return True
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        return False
    return True


def _sorted_files(base: Path, prefix: str, after: str, name: str = "") -> Iterator[Path]:
    """Files whose names, relative to the base, begin with a prefix and come after another name, in the order of their
    names. A folder is sorted with its slash, as in whole names: `a-b` and `a.tif` come before `a/b`."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(base / name) as entries:
        names = sorted(f"{name}{entry.name}{'/' * entry.is_dir(follow_symlinks=False)}" for entry in entries)
        for each in names:
            if not each.endswith("/"):
                if each.startswith(prefix) and each > after:
                    yield base / each
            elif (each.startswith(prefix) or prefix.startswith(each)) and (each > after or after.startswith(each)):
                yield from _sorted_files(base, prefix, after, each)


def _make_folders(folder: Path) -> list[Path]:
    """Create missing folders. Returns `folder` and its parents that have a new entry, to be synced."""
    missing = [folder]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        if any(each.exists() and not each.is_dir() for each in missing):
            raise  # an object has the name of a folder
        raise FileNotFoundError from None  # the folder was deleted in the meantime
    return missing


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # deleted with its last object
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _info(location: Location, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(location, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), _etag(status))


def _etag(status: os.stat_result) -> str:
    # Every put writes a new file, so inode and modification time differ from those of the file before.
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
