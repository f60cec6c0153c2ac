"""What every store can do. One store keeps one zone: containers, and in them blobs under their names.

Synchronous: most who store things are plain handlers in processes of their own. Who has an event loop calls it in a thread
(`await asyncio.to_thread(store.get, location)`).
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.storage.location import Folder, Location

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stored:
    """What a put left behind. Not `is_new`: the very same content was there already."""

    location: Location
    size_bytes: int
    sha256: str
    etag: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    location: Location
    size_bytes: int
    modified_at: datetime
    etag: str  # another one as soon as the content is another


class Store(Protocol):
    """A reader sees an object whole or not at all, and after a put has returned it stays, whatever happens to the machine."""

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        """Store bytes. `create_only`: what is there stays; if it is something else, that is a Conflict."""
        ...

    def put_file(self, location: Location, file: Path, *, move: bool = False, create_only: bool = False) -> Stored:
        """Store a file. `move`: it is gone afterwards, which spares copying it where it lies on the store's file system."""
        ...

    def get(self, location: Location) -> bytes: ...

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        """Fewer bytes where the object ends before."""
        ...

    def get_file(self, location: Location, file: Path) -> None:
        """Copy an object into a file that does not exist yet."""
        ...

    def sha256(self, location: Location) -> str:
        """Of what is stored: reads all of it."""
        ...

    def head(self, location: Location) -> Found: ...

    def exists(self, location: Location) -> bool: ...

    def list(self, folder: Folder) -> Iterator[Found]:
        """Everything below a folder, in no particular order."""
        ...

    def delete(self, location: Location) -> None:
        """What is not there is deleted already."""
        ...

    def folders(self, folder: Folder) -> Iterator[str]:
        """The names of the folders right below a folder, without a look at what is in them."""
        ...

    def delete_all(self, folder: Folder) -> None:
        """Delete everything below a folder. Where there is a file system, it is out of sight at once, by one rename."""
        ...

    def gdal_path(self, location: Location) -> str:
        """How GDAL opens the object, without downloading it."""
        ...

    def scratch(self, job_id: UUID) -> AbstractContextManager[Path]:
        """An empty folder of one's own to write large files in before they are put; gone after the block.

        On the store's file system, where it has one. What a killed process leaves is removed by `clear_scratch`.
        """
        ...

    def scratch_jobs(self) -> Iterator[UUID]:
        """The jobs that have a scratch folder."""
        ...

    def clear_scratch(self, job_id: UUID) -> None:
        """Take a job's scratch folders away, by one rename."""
        ...

    def sweep_up(self) -> None:
        """Free the space of what was taken away, and of puts whose processes were killed more than a day ago."""
        ...


def not_found(location: Location | Folder) -> NotFound:
    return NotFound(f"there is no object {location}", code="storage.not-found", location=str(location))


def taken(location: Location) -> Conflict:
    return Conflict(
        f"{location} exists already with other content, and is never overwritten",
        code="storage.taken",
        hint="what is published stays as it is: store it as another revision",
        location=str(location),
    )


def require_path(folder: Folder) -> None:
    """A whole container is never deleted."""
    if not folder.path:
        raise InvalidRequest(f"{folder} is a container, and not a folder in one", code="storage.bad-folder")


def bad_range(location: Location, start: int, length: int) -> InvalidRequest:
    return InvalidRequest(
        f"{location} has no {length} bytes from {start} on", code="storage.bad-range", location=str(location)
    )


def require_file(file: Path) -> os.stat_result:
    """What is to be stored is a file, and no link to one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        seen = file.lstat()
        if stat.S_ISREG(seen.st_mode):
            return seen
    raise NotFound(f"there is no file {file.name} to store", code="storage.no-file")
