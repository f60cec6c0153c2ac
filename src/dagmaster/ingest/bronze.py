"""Copy files of this machine into the bronze zone, under their own names where possible.

The zone gets a copy, so that later edits of the file do not change what was processed. On file systems that can share
blocks (XFS, Btrfs), the copy takes neither time nor space.
"""

import errno
import fcntl
import hashlib
import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dagmaster.dataset_ids import dataset_id_from
from dagmaster.errors import InvalidRequest
from dagmaster.ingest.progress import OpenBar, polled
from dagmaster.ingest.sources import LocalFile
from dagmaster.quantities import size_text
from dagmaster.storage.location import Location, Zone

if TYPE_CHECKING:
    from dagmaster.storage.zones import Storage

_FICLONE = 0x40049409  # linux/fs.h
_MIN_BYTES_WITH_PROGRESS = 100_000_000


@dataclass(frozen=True, slots=True)
class BronzeCopy:
    """The place of a file in the bronze zone; `is_stored` if the zone has the same content there already."""

    file: LocalFile
    location: Location
    is_stored: bool

    @property
    def name_in_use(self) -> str | None:
        """The name of the file, if another file in the zone has it; None if this one is stored under its name."""
        name = blob_name(self.file.path)
        return name if name != self.location.blob else None


def places_in_bronze(storage: "Storage", files: Sequence[LocalFile], progress: OpenBar) -> list[BronzeCopy]:
    """The place of each file. Nothing is copied yet. Two files with the same name and content are refused."""
    copies: dict[Location, BronzeCopy] = {}
    for file in files:
        copy = _place_in_bronze(storage, file, copies, progress)
        copies[copy.location] = copy
    return list(copies.values())


def _place_in_bronze(
    storage: "Storage", file: LocalFile, copies: Mapping[Location, BronzeCopy], progress: OpenBar
) -> BronzeCopy:
    """The place of one file. If another file has the name, a suffix from the hash of the content is added."""
    location = storage.location(blob_name(file.path), zone=Zone.BRONZE)
    if location not in copies and not storage.exists(location):
        return BronzeCopy(file, location, is_stored=False)
    digest = _digest(file.path, progress)
    name = Path(location.blob)
    suffixed = storage.location(f"{name.stem}-{digest[:8]}{name.suffix}", zone=Zone.BRONZE)
    for candidate in (location, suffixed):
        if other := copies.get(candidate):
            if _digest(other.file.path, progress) == digest:
                raise InvalidRequest(
                    f"{other.file.label} and {file.label} have the same content",
                    code="file.duplicate",
                    hint="give only one of them",
                )
        elif storage.exists(candidate) and _is_same(storage, candidate, file.path, digest):
            return BronzeCopy(file, candidate, is_stored=True)
    return BronzeCopy(file, suffixed, is_stored=False)


def blob_name(file: Path) -> str:
    """The name of the file, or a similar one if that is not a valid blob name."""
    name = unicodedata.normalize("NFC", file.name)
    try:
        Location(Zone.BRONZE, "any", name)
    except InvalidRequest:
        return f"{dataset_id_from(file.stem)}{file.suffix.lower()}"
    return name


def _is_same(storage: "Storage", location: Location, file: Path, digest: str) -> bool:
    return storage.head(location).size_bytes == file.stat().st_size and storage.sha256(location) == digest


def _digest(file: Path, progress: OpenBar) -> str:
    with _shown(file, "comparing", progress), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def copy_missing(
    storage: "Storage", copies: Sequence[BronzeCopy], progress: OpenBar, note: Callable[[str], None]
) -> None:
    """Copy each file that the zone does not have yet. `note` receives the new name of a file whose own name is in
    use."""
    for copy in copies:
        if copy.is_stored:
            continue
        if name := copy.name_in_use:
            note(f"the bronze zone has another file named {name}; this one is stored as {copy.location.blob}")
        copy_file(storage, copy, progress)


def copy_file(storage: "Storage", copy: BronzeCopy, progress: OpenBar) -> None:
    """Copy a file to its place. A downloaded file is moved."""
    file = copy.file.path
    if copy.file.is_downloaded:
        storage.put_file(copy.location, file, move=True, create_only=True)
        return
    # A folder on the file system of the store, so that the clone can be moved into place.
    with storage.scratch(uuid4()) as folder:
        clone = folder / "clone"
        if _cloned(file, clone):
            with _shown(clone, "reading", progress):
                storage.put_file(copy.location, clone, move=True, create_only=True)
            return
    with _shown(file, "copying", progress):
        storage.put_file(copy.location, file, create_only=True)


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
def _shown(file: Path, verb: str, progress: OpenBar) -> Iterator[None]:
    """Show how much of a large file this process has read, during the block."""
    size_bytes = file.stat().st_size
    if size_bytes < _MIN_BYTES_WITH_PROGRESS:
        yield
        return
    title = f"{verb} {file.name}, {size_text(size_bytes)}"
    with progress(title) as bar, polled(bar, lambda: _position_in(file), size_bytes):
        yield


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
