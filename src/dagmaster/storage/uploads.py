"""Bytes of unfinished uploads, and how they become an object.

    first request ──▶ open ──▶ position ──▶ write … sync ──▶ all bytes are there ──▶ publish ──▶ remove
                        └── another request writes: Conflict (upload.locked)

The position is the number of bytes that the store really has: after a crash, an upload continues there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from dagmaster.errors import Conflict, UnfitData
from dagmaster.storage.location import Location
from dagmaster.storage.store import Stored


@dataclass(frozen=True, slots=True)
class UploadPart:
    """What a store has of one upload."""

    upload_id: UUID
    size_bytes: int
    modified_at: datetime


class PartWriter(Protocol):
    """The only writer of an upload, until it is closed."""

    @property
    def position(self) -> int:
        """The number of bytes that the store has."""
        ...

    def write(self, data: bytes) -> None:
        """Append. If the storage is full, as much as fits is kept, and Unavailable is raised."""
        ...

    def sync(self) -> None:
        """Make everything that was written durable, so that it survives a loss of power."""
        ...

    def publish(self, location: Location, sha256: str | None = None) -> Stored:
        """Turn the bytes into an object, atomically. An existing object is kept. Raises Conflict if its content
        differs, and UnfitData if the bytes do not have this hash. The call may be repeated, with the same result."""
        ...

    def remove(self) -> None:
        """Remove the bytes. A published object stays."""
        ...

    def close(self) -> None: ...


class UploadParts(Protocol):
    def open(self, upload_id: UUID) -> PartWriter:
        """Begin or continue an upload. Raises Conflict if another process or thread has it open."""
        ...

    def position(self, upload_id: UUID) -> int:
        """The number of bytes that the store has; 0 before the first one."""
        ...

    def all(self) -> Iterator[UploadPart]: ...

    def require_space(self, size_bytes: int) -> None:
        """Raises Unavailable if there is certainly no room for this many bytes."""
        ...


def locked(upload_id: UUID) -> Conflict:
    return Conflict(
        "another request is writing to this upload",
        code="upload.locked",
        hint="wait a moment, ask for the offset with HEAD, and continue there",
        upload_id=str(upload_id),
    )


def wrong_checksum(location: Location, expected: str, actual: str) -> UnfitData:
    return UnfitData(
        f"the bytes received for {location.path} do not have the SHA-256 that was announced",
        code="upload.checksum",
        hint="the upload is removed; check the file and upload it again",
        expected_sha256=expected,
        actual_sha256=actual,
    )
