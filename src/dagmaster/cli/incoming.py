"""A file of this machine on its way into the bronze zone, under a name made of its own.

The zone gets a copy: whoever edits the file later does not change what was processed. Where the file system can share blocks
until one side is written to (XFS, Btrfs), the copy takes neither time nor space.
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
    """The file itself, where a link leads to it. Folders, pipes and empty files are refused."""
    try:
        real = path.resolve(strict=True)
        size_bytes = real.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no file {path}", code="file.not-found") from None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "links go in circles"
        raise InvalidRequest(f"{path} can't be read: {reason}", code="file.unreadable") from None
    if not real.is_file():
        raise InvalidRequest(f"{path} is not a file", code="file.not-a-file", hint="name one GeoTIFF")
    if not os.access(real, os.R_OK):
        raise InvalidRequest(f"{path} can't be read: Permission denied", code="file.unreadable")
    if not size_bytes:
        raise InvalidRequest(
            f"{path} is empty", code="file.empty", hint="was it copied or downloaded to its end? get it again"
        )
    return real


def place_in_bronze(state: State, storage: "Storage", file: Path) -> tuple[Location, bool]:
    """Where the file belongs, and whether it is there already. Nothing is put there yet.

    A file of the same name with another content stays as it is: this one gets a name of its own, which its content decides.
    """
    location = storage.location(_blob_name(file), zone=Zone.BRONZE)
    if not storage.exists(location):
        return location, False
    digest = _digest(state, file)
    if _is(storage, location, file, digest):
        return location, True
    name = Path(location.blob)
    location = storage.location(f"{name.stem}-{digest[:8]}{name.suffix}", zone=Zone.BRONZE)
    return location, storage.exists(location) and _is(storage, location, file, digest)


def take_in(state: State, storage: "Storage", file: Path, location: Location) -> None:
    """Put the file where it belongs."""
    if location.blob != (name := _blob_name(file)) and not state.json:
        state.note(f"another file is kept as {name} already; this one is kept as {location.blob}")
    _put(state, storage, location, file)


def _blob_name(file: Path) -> str:
    """The file's own name, unless a store would not take it."""
    name = unicodedata.normalize("NFC", file.name)
    try:
        Location(Zone.BRONZE, "any", name)
    except InvalidRequest:
        return f"{dataset_id_from(file.stem)}{file.suffix.lower()}"
    return name


def _is(storage: "Storage", location: Location, file: Path, digest: str) -> bool:
    return storage.head(location).size_bytes == file.stat().st_size and storage.sha256(location) == digest


def _digest(state: State, file: Path) -> str:
    with _shown(state, file, "comparing"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _put(state: State, storage: "Storage", location: Location, file: Path) -> None:
    # A folder of the store's own, so that what is made there can be moved into place.
    with storage.scratch(uuid4()) as folder:
        clone = folder / "clone"
        if _cloned(file, clone):
            with _shown(state, clone, "reading"):
                storage.put_file(location, clone, move=True, create_only=True)
            return
    with _shown(state, file, "copying"):
        storage.put_file(location, file, create_only=True)


def _cloned(file: Path, clone: Path) -> bool:
    """Share the blocks of a file; False where the file systems can't."""
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
    """Show how far a large file is read inside the block, by whomever; Ctrl-C ends it as it would without."""
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
        task, is_over = progress.add_task(f"{verb} {file.name}", total=size_bytes), threading.Event()

        def follow() -> None:
            while not is_over.wait(_POLL_SECONDS):
                progress.update(task, completed=_position_in(file))

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def _position_in(file: Path) -> int:
    """How far this process has read a file."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if descriptor.readlink() == file:
                told = Path("/proc/self/fdinfo", descriptor.name).read_text()
                return int(told.split("pos:", 1)[1].split()[0])
        except OSError:
            continue  # closed meanwhile
    return 0
