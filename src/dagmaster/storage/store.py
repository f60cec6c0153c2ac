"""The interface of a store. One store holds one zone: containers with blobs.

The interface is synchronous, because most callers are plain handlers in child processes. From an event loop, call it in
a thread (`await asyncio.to_thread(store.get, location)`).
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from uuid import UUID

from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.storage.location import Folder, Location

CHUNK_BYTES = 1024 * 1024


class StorageTier(StrEnum):
    """The access tier of an object: what it costs to keep and to read. A folder store has only one."""

    HOT = "hot"
    COOL = "cool"  # for objects that are rarely read; they can still be read at once


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a put. `is_new` is False if the same content was stored already."""

    location: Location
    size_bytes: int
    sha256: str
    etag: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    location: Location
    size_bytes: int
    modified_at: datetime
    etag: str  # changes with the content


class Store(Protocol):
    """Puts are atomic for readers, and durable once they have returned, even if the machine loses power."""

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        """Store bytes. With `create_only` an existing object is kept; raises Conflict if its content differs."""
        ...

    def put_file(
        self,
        location: Location,
        file: Path,
        *,
        move: bool = False,
        create_only: bool = False,
        tier: StorageTier = StorageTier.HOT,
    ) -> Stored:
        """Store a file. With `move` the file is removed, and not copied if it is on the file system of the store."""
        ...

    def get(self, location: Location) -> bytes: ...

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        """Returns fewer bytes if the object is too short."""
        ...

    def get_file(self, location: Location, file: Path) -> None:
        """Copy an object into a file that does not exist yet."""
        ...

    def sha256(self, location: Location) -> str:
        """The hash of the stored bytes. Reads all of them."""
        ...

    def head(self, location: Location) -> ObjectInfo: ...

    def exists(self, location: Location) -> bool: ...

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        """All objects below a folder, in no particular order."""
        ...

    def page(self, container: str, prefix: str, after: str, limit: int) -> Sequence[ObjectInfo]:
        """Objects whose names begin with `prefix` and come after `after`, in the order of their names (code points)."""
        ...

    def delete(self, location: Location) -> None:
        """Does nothing if the object does not exist."""
        ...

    def folders(self, folder: Folder) -> Iterator[str]:
        """The names of the folders right below a folder. Their content is not read."""
        ...

    def delete_all(self, folder: Folder) -> None:
        """Delete everything below a folder. On a file system one rename hides it at once."""
        ...

    def gdal_path(self, location: Location) -> str:
        """The path by which GDAL opens the object without downloading it."""
        ...

    def display_path(self, location: Location) -> str:
        """The path or URL by which the owner of the store finds the object with other tools."""
        ...

    def create_container(self, container: str) -> None:
        """Create a container, if it does not exist and the store does not create it by itself."""
        ...

    def scratch(self, job_id: UUID) -> AbstractContextManager[Path]:
        """A new empty folder for large files before they are put; removed at the end of the block.

        It is on the file system of the store, if the store has one. `clear_scratch` removes leftovers of killed
        processes.
        """
        ...

    def scratch_jobs(self) -> Iterator[UUID]:
        """The jobs that have a scratch folder."""
        ...

    def clear_scratch(self, job_id: UUID) -> None:
        """Remove a job's scratch folders, by one rename."""
        ...

    def remove_leftovers(self) -> None:
        """Delete removed folders, and leftovers of puts whose processes were killed more than a day ago."""
        ...


def not_found(location: Location | Folder) -> NotFound:
    return NotFound(f"the object {location} does not exist", code="storage.not-found", location=str(location))


def taken(location: Location) -> Conflict:
    return Conflict(
        f"{location} already exists with other content, and published objects are never overwritten",
        code="storage.taken",
        hint="store the new content as another revision",
        location=str(location),
    )


def require_path(folder: Folder) -> None:
    """Refuse to delete a whole container."""
    if not folder.path:
        raise InvalidRequest(f"{folder} is a container, not a folder in one", code="storage.bad-folder")


def bad_range(location: Location, start: int, length: int) -> InvalidRequest:
    return InvalidRequest(
        f"{location} has no range of {length} bytes from {start}", code="storage.bad-range", location=str(location)
    )


def require_file(file: Path) -> os.stat_result:
    """Refuse everything that is not a regular file, also links to files."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):
            return status
    raise NotFound(f"the file {file.name} to be stored does not exist or is not a regular file", code="storage.no-file")
