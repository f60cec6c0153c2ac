"""Unfinished uploads in files of this machine: `<folder>/<upload id>`.

The length of the file is the position. An advisory lock (flock) on it admits one writer; the lock ends with the
process, even if that is killed. When all bytes have arrived, the file becomes an object: in a folder by a hard link, in
an object store by an upload.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from dagmaster.errors import NotFound, Unavailable
from dagmaster.storage.local import writing
from dagmaster.storage.location import Location
from dagmaster.storage.store import Stored
from dagmaster.storage.uploads import UploadPart, locked, wrong_checksum

Publish: TypeAlias = Callable[[Location, Path, str], Stored]

_NAME = "the file of an upload"
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


class FileUploads:
    """`publish` stores a finished file, whose hash is known, under a name that is not in use."""

    def __init__(self, folder: Path, publish: Publish) -> None:
        self._folder = folder
        self._publish = publish

    def open(self, upload_id: UUID) -> "FilePartWriter":
        path = self._folder / str(upload_id)
        with writing(_NAME):
            descriptor = self._locked(upload_id, path)
        return FilePartWriter(self._publish, path, descriptor)

    def position(self, upload_id: UUID) -> int:
        with writing(_NAME), contextlib.suppress(FileNotFoundError):
            return (self._folder / str(upload_id)).lstat().st_size
        return 0

    def all(self) -> Iterator[UploadPart]:
        with writing(_NAME), contextlib.suppress(FileNotFoundError):
            for file in self._folder.iterdir():
                with contextlib.suppress(ValueError, FileNotFoundError):  # not an upload, or removed meanwhile
                    upload_id, status = UUID(file.name), file.lstat()
                    yield UploadPart(upload_id, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    def require_space(self, size_bytes: int) -> None:
        with writing(_NAME):
            self._folder.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(self._folder).free
        if size_bytes > free_bytes:
            raise Unavailable(
                "the storage has no room for a file of this size",
                code="storage.full",
                hint="free space, or move the storage to a larger disk",
                size_bytes=size_bytes,
            )

    def _locked(self, upload_id: UUID, path: Path) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, descriptor):  # removed between opening and locking
                raise NotFound("the upload was removed", code="upload.not-found", upload_id=str(upload_id))
        except BlockingIOError:
            os.close(descriptor)
            raise locked(upload_id) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class FilePartWriter:
    """Threads may share it: a call waits for the one before, and after `close` nothing is written."""

    def __init__(self, publish: Publish, path: Path, descriptor: int) -> None:
        self._publish = publish
        self._path = path
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()

    @property
    def position(self) -> int:
        with self._lock, writing(_NAME):
            return os.fstat(self._open()).st_size

    def write(self, data: bytes) -> None:
        with self._lock, writing(_NAME), memoryview(data) as view:
            written = 0
            while written < len(view):
                written += os.write(self._open(), view[written:])

    def sync(self) -> None:
        with self._lock, writing(_NAME):
            os.fsync(self._open())

    def publish(self, location: Location, sha256: str | None = None) -> Stored:
        with self._lock:
            with writing(_NAME), self._path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if sha256 not in (None, digest):
                raise wrong_checksum(location, str(sha256), digest)
            return self._publish(location, self._path, digest)

    def remove(self) -> None:
        with self._lock, writing(_NAME):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            raise ValueError("the upload is closed")
        return self._descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
