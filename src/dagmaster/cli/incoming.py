"""Copy a file of this machine into the bronze zone, under its own name where possible.

The zone gets a copy, so that later edits of the file do not change what was processed. On file systems that can share
blocks (XFS, Btrfs), the copy takes neither time nor space.
"""

import errno
import fcntl
import hashlib
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dagmaster.cli.command import State
from dagmaster.cli.printable import size_text
from dagmaster.dataset_ids import dataset_id_from
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.storage.location import Location, Zone

if TYPE_CHECKING:
    from dagmaster.storage.zones import Storage

_FICLONE = 0x40049409  # linux/fs.h
_WORTH_SHOWING_BYTES = 100_000_000
_POLL_SECONDS = 0.1


def source_file(path: Path) -> Path:
    """The file, with symbolic links resolved. Folders, pipes and empty files are refused."""
    try:
        real = path.resolve(strict=True)
        size_bytes = real.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no file {path}", code="file.not-found") from None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its symbolic links form a loop"
        raise InvalidRequest(f"{path} cannot be read: {reason}", code="file.unreadable") from None
    if not real.is_file():
        raise InvalidRequest(f"{path} is not a file", code="file.not-a-file", hint="give the path of one GeoTIFF")
    if not os.access(real, os.R_OK):
        raise InvalidRequest(f"{path} cannot be read: Permission denied", code="file.unreadable")
    if not size_bytes:
        raise InvalidRequest(
            f"{path} is empty", code="file.empty", hint="the copy or download may be incomplete; get the file again"
        )
    return real


def place_in_bronze(state: State, storage: "Storage", file: Path) -> tuple[Location, bool]:
    """The location for the file, and whether it is there already. Nothing is copied yet.

    If another file with the same name is there, the name of this one gets a suffix from the hash of its content.
    """
    location = storage.location(_blob_name(file), zone=Zone.BRONZE)
    if not storage.exists(location):
        return location, False
    digest = _digest(state, file)
    if _is_same(storage, location, file, digest):
        return location, True
    name = Path(location.blob)
    location = storage.location(f"{name.stem}-{digest[:8]}{name.suffix}", zone=Zone.BRONZE)
    return location, storage.exists(location) and _is_same(storage, location, file, digest)


def copy_in(state: State, storage: "Storage", file: Path, location: Location) -> None:
    if location.blob != (name := _blob_name(file)) and not state.json:
        state.note(f"the bronze zone has another file named {name}; this one is stored as {location.blob}")
    _put(state, storage, location, file)


def _blob_name(file: Path) -> str:
    """The name of the file, unless it is not a valid blob name."""
    name = unicodedata.normalize("NFC", file.name)
    try:
        Location(Zone.BRONZE, "any", name)
    except InvalidRequest:
        return f"{dataset_id_from(file.stem)}{file.suffix.lower()}"
    return name


def _is_same(storage: "Storage", location: Location, file: Path, digest: str) -> bool:
    return storage.head(location).size_bytes == file.stat().st_size and storage.sha256(location) == digest


def _digest(state: State, file: Path) -> str:
    with _shown(state, file, "comparing"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _put(state: State, storage: "Storage", location: Location, file: Path) -> None:
    # A folder on the file system of the store, so that the clone can be moved into place.
    with storage.scratch(uuid4()) as folder:
        clone = folder / "clone"
        if _cloned(file, clone):
            with _shown(state, clone, "reading"):
                storage.put_file(location, clone, move=True, create_only=True)
            return
    with _shown(state, file, "copying"):
        storage.put_file(location, file, create_only=True)


def _cloned(file: Path, clone: Path) -> bool:
    """Clone a file by sharing its blocks; False if the file systems do not support it."""
    with file.open("rb") as source, clone.open("xb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            if error.errno in {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}:
                return False
            raise
        written = os.fstat(source.fileno())
        os.utime(target.fileno(), ns=(written.st_atime_ns, written.st_mtime_ns))
    return True


@contextmanager
def _shown(state: State, file: Path, verb: str) -> Iterator[None]:
    """Show how much of a large file this process has read, during the block."""
    size_bytes = file.stat().st_size
    if state.json or size_bytes < _WORTH_SHOWING_BYTES:
        yield
        return
    if not sys.stderr.isatty():
        state.note(f"{verb} {size_text(size_bytes)} …")
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, is_done = progress.add_task(f"{verb} {file.name}", total=size_bytes), threading.Event()

        def follow() -> None:
            while not is_done.wait(_POLL_SECONDS):
                progress.update(task, completed=_position_in(file))

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()


def _position_in(file: Path) -> int:
    """The position of this process in a file that it reads."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if descriptor.readlink() == file:
                text = Path("/proc/self/fdinfo", descriptor.name).read_text()
                return int(text.split("pos:", 1)[1].split()[0])
        except OSError:
            continue  # closed meanwhile
    return 0
