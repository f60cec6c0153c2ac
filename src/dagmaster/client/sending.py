"""Send a file to a platform in parts, even if the connection is lost in between.

hash ──▶ begin ──▶ send a part ──▶ … ──▶ finished
                      └── no response, or another offset ──▶ wait, request the offset, continue there
"""

import asyncio
import hashlib
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from uuid import UUID

from dagmaster.client.connection import is_temporary
from dagmaster.client.models.base import Json, parse
from dagmaster.client.models.uploads import IfExists, UploadInfo
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotFound, Unavailable

CHUNK_BYTES: Final = 8 * 1024 * 1024
PATIENCE_SECONDS: Final = 120.0
_SMALLEST_CHUNK_BYTES = 64 * 1024
_FAST_SECONDS = 2.0  # a part that takes less is followed by a larger one
_SLOW_SECONDS = 15.0
_MAX_PAUSE_SECONDS = 5.0
_HASHED_PER_SECOND = 50_000_000  # bytes that a slow server hashes per second, after all of them have arrived

OnSent = Callable[[int, int], None]


class UploadApi(Protocol):
    """The requests that sending a file needs."""

    async def begin_upload(self, request: Json) -> Json: ...

    async def append_to_upload(self, upload_id: UUID | str, offset: int, data: bytes) -> int: ...

    async def upload_of(self, upload_id: UUID | str) -> Json: ...


@dataclass(frozen=True, slots=True)
class SendOptions:
    name: str | None = None
    platform_id: str | None = None
    if_exists: IfExists = "rename"
    on_progress: OnSent | None = None
    chunk_bytes: int = CHUNK_BYTES
    patience_seconds: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 or self.patience_seconds <= 0:
            raise InvalidRequest("`chunk_bytes` and `patience_seconds` must be positive", code="client.invalid")


async def send_file(api: UploadApi, file: Path, options: SendOptions) -> UploadInfo:
    """Send a file, and return the finished upload. A file that the platform already has is not sent again."""
    with _opened(file) as opened:
        size_bytes, sha256 = await asyncio.to_thread(_size_and_checksum, opened)
        request = {
            "name": options.name or unicodedata.normalize("NFC", file.name),
            "size_bytes": size_bytes,
            "sha256": sha256,
            "platform_id": options.platform_id,
            "if_exists": options.if_exists,
        }
        begun = await api.begin_upload({field: value for field, value in request.items() if value is not None})
        return await _Sender(api, opened, parse(UploadInfo, begun), options).send()


class _Sender:
    """Sends the bytes that are missing. The size of a part follows the speed of the connection."""

    def __init__(self, api: UploadApi, file: BinaryIO, upload: UploadInfo, options: SendOptions) -> None:
        self._api = api
        self._file = file
        self._upload = upload
        self._on_progress = options.on_progress
        self._largest_bytes = self._chunk_bytes = options.chunk_bytes
        self._patience_seconds = options.patience_seconds
        self._failures = 0
        self._progress_at = _now()

    async def send(self) -> UploadInfo:
        self._report(self._upload.offset_bytes)
        while not self._upload.is_finished:
            before = self._upload.offset_bytes
            try:
                await self._send_parts()
                self._upload = await self._read_upload()
            except DagmasterError as error:
                await self._recover(error)
            if self._upload.offset_bytes > before:
                self._failures, self._progress_at = 0, _now()
                self._report(self._upload.offset_bytes)
        return self._upload

    async def _send_parts(self) -> None:
        """Send the bytes that are missing."""
        offset = self._upload.offset_bytes
        while offset < self._upload.size_bytes:
            data = await asyncio.to_thread(self._read, offset)
            started_at = _now()
            offset = await self._api.append_to_upload(self._upload.upload_id, offset, data)
            self._upload = self._upload.model_copy(update={"offset_bytes": offset})
            self._failures, self._progress_at = 0, _now()
            self._adapt(_now() - started_at)
            self._report(offset)

    async def _read_upload(self) -> UploadInfo:
        upload = parse(UploadInfo, await self._api.upload_of(self._upload.upload_id))
        if not upload.is_finished and upload.offset_bytes == upload.size_bytes:
            raise Unavailable("the platform has not stored the file yet", code="upload.not-stored", hint="try again")
        return upload

    async def _recover(self, error: DagmasterError) -> None:
        """Wait, and request the offset at which to continue. Raise the error if it is final, or if there was no
        progress for too long."""
        if not _is_temporary(error) or _now() - self._progress_at > self._allowed_seconds():
            raise error
        self._failures += 1
        self._chunk_bytes = max(min(_SMALLEST_CHUNK_BYTES, self._largest_bytes), self._chunk_bytes // 2)
        await asyncio.sleep(min(_MAX_PAUSE_SECONDS, 0.1 * 2 ** min(self._failures, 10)))
        try:
            self._upload = parse(UploadInfo, await self._api.upload_of(self._upload.upload_id))
        except DagmasterError as second_error:
            if not _is_temporary(second_error):
                raise

    def _allowed_seconds(self) -> float:
        is_sent = self._upload.offset_bytes == self._upload.size_bytes
        return self._patience_seconds + (self._upload.size_bytes / _HASHED_PER_SECOND if is_sent else 0)

    def _adapt(self, seconds: float) -> None:
        if seconds < _FAST_SECONDS:
            self._chunk_bytes = min(self._largest_bytes, 2 * self._chunk_bytes)
        elif seconds > _SLOW_SECONDS:
            self._chunk_bytes = max(min(_SMALLEST_CHUNK_BYTES, self._largest_bytes), self._chunk_bytes // 2)

    def _read(self, offset: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(min(self._chunk_bytes, self._upload.size_bytes - offset))
        if not data:
            raise InvalidRequest("the file has become shorter while it was sent", code="file.changed")
        return data

    def _report(self, arrived: int) -> None:
        if self._on_progress is not None:
            self._on_progress(arrived, self._upload.size_bytes)


def _is_temporary(error: DagmasterError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, Conflict):
        return error.code in {"upload.locked", "upload.wrong-offset"}
    is_full = error.code == "storage.full"
    return isinstance(error, Unavailable) and not is_full and (is_temporary(error) or error.code == "upload.not-stored")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", code="file.not-found") from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", code="file.unreadable") from None


def _size_and_checksum(file: BinaryIO) -> tuple[int, str]:
    """The size and the hash of a file."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return file.tell(), digest


def _now() -> float:
    return asyncio.get_running_loop().time()
