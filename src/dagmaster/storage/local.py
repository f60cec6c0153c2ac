"""A zone in a folder of this machine.

    <root>/<container>/<blob>   objects, each made elsewhere and put in place by one rename or link
    <root>/.incoming/<random>   objects on their way; what a killed process leaves there is removed a day later
    <root>/.scratch/<job id>/   folders for large files before they are put; on the same file system, so that a put moves them
    <root>/.gone/<random>/      folders that were taken away, until they are deleted

No container's name begins with a dot. A symbolic link that leads out of the root is not followed.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO
from uuid import UUID, uuid4

from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.storage import scratch
from dagmaster.storage.location import Folder, Location, Zone
from dagmaster.storage.store import CHUNK_BYTES, Found, Stored, bad_range, not_found, require_file, require_path, taken

LEFTOVER_SECONDS = 24 * 3600.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
# Folders are deleted when their last object is: one that is just made may be gone before it is used.
_TRIES = 100


class LocalStore:
    def __init__(self, zone: Zone, root: Path) -> None:
        self.zone = zone
        self._root = root.resolve()

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        with _writing(location), self._incoming() as unfinished:
            with unfinished.open("xb") as file:
                file.write(data)
                _sync(file)
            return self._publish(unfinished, location, hashlib.sha256(data).hexdigest(), create_only)

    def put_file(self, location: Location, file: Path, *, move: bool = False, create_only: bool = False) -> Stored:
        seen = require_file(file)
        # Whoever had another name for the file could change the object under its readers.
        stored = self._take(location, file, create_only) if move and seen.st_nlink == 1 else None
        if stored is None:
            with _writing(location), self._incoming() as unfinished:
                stored = self._publish(unfinished, location, _copy(file, unfinished), create_only)
        if move:
            file.unlink(missing_ok=True)
        return stored

    def _take(self, location: Location, file: Path, create_only: bool) -> Stored | None:
        """Make a file the object itself; None where it is on another file system."""
        with _writing(location):
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

    def head(self, location: Location) -> Found:
        with _reading(location):
            seen = self._path(location).stat()
        if not stat.S_ISREG(seen.st_mode):
            raise not_found(location)
        return _found(location, seen)

    def exists(self, location: Location) -> bool:
        with _reading(location):
            return self._path(location).is_file()

    def list(self, folder: Folder) -> Iterator[Found]:
        """Files whose names break the rules, and links, are no objects: they are left out."""
        base = self._root / folder.container
        with _reading(folder):
            for parent, _, names in os.walk(self._within(base / folder.path)):
                for name in names:
                    if found := self._listed(folder, base, Path(parent, name)):
                        yield found

    def delete(self, location: Location) -> None:
        with _reading(location), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path = self._path(location)
            path.unlink()
            self._prune(path.parent)

    def folders(self, folder: Folder) -> Iterator[str]:
        with _reading(folder):
            yield from scratch.folders_in(self._within(self._root / folder.container / folder.path))

    def delete_all(self, folder: Folder) -> None:
        """Also what is no object: links, and files whose names break the rules."""
        require_path(folder)
        with _reading(folder):
            path = self._within(self._root / folder.container / folder.path)
            scratch.take_away(path, self._gone_folder)
            self._prune(path.parent)

    def gdal_path(self, location: Location) -> str:
        return str(self._path(location))

    @contextlib.contextmanager
    def scratch(self, job_id: UUID) -> Iterator[Path]:
        with contextlib.ExitStack() as stack:
            with _writing(self._scratch_name):
                own = stack.enter_context(scratch.opened(self._scratch_folder, job_id))
            yield own

    def scratch_jobs(self) -> Iterator[UUID]:
        with _writing(self._scratch_name):
            yield from scratch.jobs_in(self._scratch_folder)

    def clear_scratch(self, job_id: UUID) -> None:
        with _writing(self._scratch_name):
            scratch.take_away(self._scratch_folder / str(job_id), self._gone_folder)

    def sweep_up(self) -> None:
        with _writing(f"what was taken away from the zone {self.zone}"):
            self._remove_leftovers()
            scratch.delete_taken(self._gone_folder)

    @property
    def _scratch_folder(self) -> Path:
        return self._root / ".scratch"

    @property
    def _scratch_name(self) -> str:
        return f"the scratch folder of the zone {self.zone}"

    @property
    def _gone_folder(self) -> Path:
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
        seen = unfinished.stat()
        path = self._path(location)
        is_new = _put_in_place(unfinished, path, create_only)
        if not is_new:
            with path.open("rb") as other:
                seen = os.fstat(other.fileno())
                if hashlib.file_digest(other, "sha256").hexdigest() != digest:
                    raise taken(location)
        return Stored(location, seen.st_size, digest, _etag(seen), is_new)

    def _listed(self, folder: Folder, base: Path, path: Path) -> Found | None:
        try:
            location = Location(folder.zone, folder.container, path.relative_to(base).as_posix())
            seen = path.lstat()
        except (InvalidRequest, FileNotFoundError):
            return None
        return _found(location, seen) if stat.S_ISREG(seen.st_mode) else None

    def _prune(self, folder: Path) -> None:
        """Remove folders that hold nothing any more; the container's own stays."""
        while folder.parent not in (self._root, folder):
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _remove_leftovers(self) -> None:
        """What processes left that were killed in the middle of a put. A slow put is not that old."""
        oldest = time.time() - LEFTOVER_SECONDS
        with contextlib.suppress(FileNotFoundError):
            for file in (self._root / ".incoming").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if file.lstat().st_mtime < oldest:
                        file.unlink()

    def _open(self, location: Location) -> BufferedReader:
        return self._path(location).open("rb")

    def _path(self, location: Location) -> Path:
        return self._within(self._root / location.container / location.blob)

    def _within(self, path: Path) -> Path:
        if not Path(os.path.realpath(path)).is_relative_to(self._root):  # resolve() raises where links go in circles
            raise NotAllowed(
                f"a symbolic link leads out of the zone {self.zone}",
                code="storage.link",
                hint="put the file itself there",
            )
        return path


@contextlib.contextmanager
def _reading(what: Location | Folder) -> Iterator[None]:
    """What the file system says, as what it means; without this machine's paths."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise not_found(what) from None
    except OSError as error:
        raise _unavailable(error, what) from error


@contextlib.contextmanager
def _writing(what: Location | str) -> Iterator[None]:
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError):
        raise Conflict(
            f"{what} can't be: a part of its name is an object, or it is a folder of others", code="storage.name-taken"
        ) from None
    except OSError as error:
        raise _unavailable(error, what) from error


def _unavailable(error: OSError, what: Location | Folder | str) -> DagmasterError:
    if error.errno == errno.ENAMETOOLONG:
        return InvalidRequest(f"{what} is too long a name for this file system", code="storage.bad-blob")
    if error.errno in _FULL:
        return Unavailable("the storage is full", code="storage.full", hint="free space, or move it to a larger disk")
    if error.errno in _NO_LINKS and error.filename2:
        return Unavailable(
            "this file system has no hard links, so an object can't be kept from being overwritten",
            code="storage.no-links",
            hint="put the storage on another file system",
        )
    return Unavailable(f"{what} can't be reached: {error.strerror}", code="storage.unavailable")


def _put_in_place(unfinished: Path, path: Path, create_only: bool) -> bool:
    """Whether it is there now, by one step that can't be seen half done."""
    for tries_left in reversed(range(_TRIES)):
        try:
            made = _make_folders(path.parent)
            if not _moved(unfinished, path, create_only):
                return False
            break
        except FileNotFoundError:
            if not tries_left:
                raise
    for folder in made:
        _sync_folder(folder)
    return True


def _copy(file: Path, target: Path) -> str:
    """Copy and hash in one reading. The copy is as old as the file: when it was last written is something to know."""
    digest = hashlib.sha256()
    with file.open("rb") as source, target.open("xb") as copy:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()  # or what is still to be written would make it young again
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


def _make_folders(folder: Path) -> list[Path]:
    """Make what is missing; answers every folder that has a new entry then, once one more is put in `folder`."""
    missing = [folder]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        if any(each.exists() and not each.is_dir() for each in missing):
            raise  # an object is where a folder should be
        raise FileNotFoundError from None  # it was there, and is gone again
    return missing


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # its last object was deleted meanwhile
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _found(location: Location, seen: os.stat_result) -> Found:
    return Found(location, seen.st_size, datetime.fromtimestamp(seen.st_mtime, UTC), _etag(seen))


def _etag(seen: os.stat_result) -> str:
    # Every put makes a file of its own, so that its number and time tell it from the one before.
    return f"{seen.st_ino:x}-{seen.st_mtime_ns:x}-{seen.st_size:x}"
