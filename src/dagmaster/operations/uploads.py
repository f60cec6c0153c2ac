"""Upload files to the bronze zone in parts: begin, append, get, cancel.

    begin ──▶ a row, which reserves the name
    append ──▶ the file of the upload, after the bytes that it has
                 └── the last byte ──▶ hash ──▶ the object ──▶ the row is finished

The offset is the number of bytes that the storage has, whichever process received them. A crash loses no bytes
that were written: the next request continues there, and if no bytes are missing, it finishes the upload. The object
becomes visible only when it is complete, and never replaces another one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID, uuid4

from dagmaster.access.caller import Caller
from dagmaster.access.decision import submitting_platform
from dagmaster.assets.model import Upload
from dagmaster.assets.uploads import prefix_of, with_suffix
from dagmaster.client.models.uploads import SourceObject, UploadedSource, UploadInfo, UploadRequest
from dagmaster.database.assets.reads import no_such_platform
from dagmaster.database.assets.uploads import NewUpload, UploadStore
from dagmaster.errors import Conflict, InvalidRequest, NotFound, UnfitData
from dagmaster.quantities import size_text
from dagmaster.settings import Settings
from dagmaster.storage import Storage, Zone
from dagmaster.storage.location import Location
from dagmaster.storage.uploads import PartWriter

T = TypeVar("T")
BLOCK_BYTES: Final = 1024 * 1024  # in memory, for each request
LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class UploadRules:
    max_bytes: int
    max_open: int
    expiry_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> "UploadRules":
        return cls(settings.max_upload_mb * 1_000_000, settings.max_open_uploads, settings.upload_expiry_hours * 3600.0)


@dataclass(frozen=True, slots=True)
class UploadOperations:
    """The operations on uploads, and what they need: rows, bytes, limits."""

    store: UploadStore
    storage: Storage
    rules: UploadRules

    async def begin(self, request: UploadRequest, caller: Caller) -> UploadInfo:
        """Begin an upload. For the same file (name, size and hash), the existing upload is returned, finished or
        not."""
        platform_id = _platform_of(request, caller)
        self._check_size(request.size_bytes)
        await self._require_platform(platform_id)
        upload_id = uuid4()
        for location in self._candidate_locations(request, platform_id, upload_id):
            if upload := await self._upload_of_same_file(request, location, caller):
                return await self._described(upload, caller)
            if await _in_thread(self._is_taken, location):
                continue
            await _in_thread(self.storage.uploads.require_space, request.size_bytes)
            new = NewUpload(
                upload_id=upload_id,
                platform_id=platform_id,
                container=location.container,
                blob=location.blob,
                size_bytes=request.size_bytes,
                sha256=request.sha256,
                created_by=caller.name,
                expires_in_seconds=self.rules.expiry_seconds,
            )
            if begun := await self.store.begin(new, max_uploads=self.rules.max_open):
                return await self._described(begun, caller)
            # Another request for the same file may have been faster.
            if upload := await self._upload_of_same_file(request, location, caller):
                return await self._described(upload, caller)
        raise _name_taken(request.name)

    async def append(
        self, upload_id: UUID, caller: Caller, *, offset: int, length: int | None, chunks: AsyncIterator[bytes]
    ) -> UploadInfo:
        """Append the bytes of one request, at the offset that the caller expects. `length` is the number of bytes in
        the request, if it is known. If the connection is lost, the bytes that have arrived are kept."""
        upload = await self._visible(upload_id, caller)
        if upload.finished_at is not None:
            return await self._repeated(upload, caller, offset, length)
        async with self._opened(upload_id) as writer:
            position = await _in_thread(lambda: writer.position)
            _check_range(upload, position, offset, length)
            await self._receive(upload, writer, position, chunks)
            return await self._finish_if_complete(upload, caller, writer)

    async def get(self, upload_id: UUID, caller: Caller) -> UploadInfo:
        """The upload as it is now. If no bytes are missing, but the process that received them died, finish it."""
        upload = await self._visible(upload_id, caller)
        info = await self._described(upload, caller)
        if info.is_finished or info.offset_bytes < info.size_bytes:
            return info
        try:
            return await self.append(upload_id, caller, offset=info.offset_bytes, length=0, chunks=_no_bytes())
        except Conflict as error:
            if error.code != "upload.locked":
                raise
            return info  # the process that received the last bytes is still finishing the upload

    async def uploads(self, rows: Sequence[Upload], caller: Caller) -> list[UploadInfo]:
        return [await self._described(row, caller) for row in rows]

    async def cancel(self, upload_id: UUID, caller: Caller) -> None:
        """Remove an upload and its bytes. A finished one stays: submissions may name its object."""
        upload = await self._visible(upload_id, caller)
        if upload.finished_at is not None:
            raise Conflict(
                "the upload is finished, and objects of the bronze zone are not removed",
                code="upload.finished",
                upload_id=str(upload_id),
            )
        async with self._opened(upload_id) as writer:
            if not await self.store.remove(upload_id):
                raise _not_found(upload_id)
            await _in_thread(writer.remove)

    async def sources(
        self, caller: Caller, *, prefix: str, after: str, limit: int, container: str | None = None
    ) -> Sequence[SourceObject]:
        """Objects of the bronze zone in the order of their names; for a partner, only its own."""
        platform_id = submitting_platform(caller)
        if platform_id is not None and container not in (None, self.storage.containers[Zone.BRONZE]):
            return []
        within = narrower_prefix(prefix, prefix_of(platform_id) if platform_id else "")
        if within is None:
            return []
        objects = await _in_thread(lambda: self.storage.page(within, after, limit, container=container))
        return [
            SourceObject(
                container=each.location.container,
                blob=each.location.blob,
                size_bytes=each.size_bytes,
                modified_at=each.modified_at,
                etag=each.etag,
            )
            for each in objects
        ]

    # Steps

    @asynccontextmanager
    async def _opened(self, upload_id: UUID) -> AsyncIterator[PartWriter]:
        writer = await _in_thread(self.storage.uploads.open, upload_id)
        try:
            yield writer
        finally:
            await _in_thread(writer.close)

    async def _receive(self, upload: Upload, writer: PartWriter, position: int, chunks: AsyncIterator[bytes]) -> None:
        """Write the bytes as they arrive, a block at a time. Bytes that arrived before an error are also written and
        synced."""
        block = bytearray()
        try:
            async for chunk in chunks:
                position += len(chunk)
                if position > upload.size_bytes:
                    raise _too_long(upload)
                block += chunk
                if len(block) >= BLOCK_BYTES:
                    full, block = block, bytearray()  # a block that cannot be written is not written again below
                    await _in_thread(writer.write, bytes(full))
        finally:
            if block:
                await _in_thread(writer.write, bytes(block))
            await _in_thread(writer.sync)
            await self.store.note_bytes(upload.upload_id, self.rules.expiry_seconds)

    async def _finish_if_complete(self, upload: Upload, caller: Caller, writer: PartWriter) -> UploadInfo:
        """Finish the upload if no bytes are missing."""
        current = await self.store.find(upload.upload_id)
        if current is None:  # it expired or was cancelled before this request locked it
            await _in_thread(writer.remove)
            raise _not_found(upload.upload_id)
        if current.finished_at is not None or await _in_thread(lambda: writer.position) < upload.size_bytes:
            return await self._described(current, caller)
        try:
            stored = await _in_thread(writer.publish, _location(upload), upload.sha256)
        except UnfitData:
            await self.store.remove(upload.upload_id)
            await _in_thread(writer.remove)
            raise
        except Conflict:  # another object was put there meanwhile
            raise _name_taken(upload.blob) from None
        finished = await self.store.finish(upload.upload_id, stored.sha256, stored.etag)
        await _in_thread(writer.remove)
        if finished is None:
            raise _not_found(upload.upload_id)
        return await self._described(finished, caller)

    async def _repeated(self, upload: Upload, caller: Caller, offset: int, length: int | None) -> UploadInfo:
        """A request to a finished upload. It is accepted only if it adds no bytes at the end."""
        if offset != upload.size_bytes or length != 0:
            raise wrong_offset(upload.upload_id, upload.size_bytes)
        return await self._described(upload, caller)

    async def _upload_of_same_file(self, request: UploadRequest, location: Location, caller: Caller) -> Upload | None:
        """The upload of the same file, if there is one: this caller's unfinished one, or a finished one whose object is
        still there."""
        if request.sha256 is None:
            return None
        for upload in await self.store.of_blob(location.container, location.blob):
            if (upload.size_bytes, upload.sha256) != (request.size_bytes, request.sha256):
                continue
            if upload.finished_at is None and upload.created_by == caller.name:
                return upload
            if upload.finished_at is not None and await _in_thread(self._etag, location) == upload.etag:
                return upload
        return None

    def _etag(self, location: Location) -> str | None:
        try:
            return self.storage.head(location).etag
        except NotFound:
            return None

    def _is_taken(self, location: Location) -> bool:
        """Whether an object has this name, has a parent path of it as its name, or is below it."""
        parts = location.blob.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        has_object = any(self.storage.exists(replace(location, blob=blob)) for blob in above)
        return has_object or bool(self.storage.page(f"{location.blob}/", "", 1, container=location.container))

    def _candidate_locations(self, request: UploadRequest, platform_id: str, upload_id: UUID) -> Iterator[Location]:
        """The locations that are tried, in this order. Names that are not valid are refused here."""
        prefix = prefix_of(platform_id)
        yield self.storage.location(f"{prefix}{request.name}", zone=Zone.BRONZE)
        if request.if_exists == "rename":
            suffixed = with_suffix(request.name, request.sha256 or upload_id.hex)
            yield self.storage.location(f"{prefix}{suffixed}", zone=Zone.BRONZE)

    def _check_size(self, size_bytes: int) -> None:
        if not size_bytes:
            raise InvalidRequest("the file is empty", code="upload.empty")
        if size_bytes > self.rules.max_bytes:
            raise InvalidRequest(
                f"a file may have at most {size_text(self.rules.max_bytes)}",
                code="upload.too-large",
                hint="the limit is the setting MAX_UPLOAD_MB of the orchestrators",
                max_bytes=self.rules.max_bytes,
            )

    async def _require_platform(self, platform_id: str) -> None:
        platform = await self.store.platform(platform_id)
        if not platform.is_active:
            raise Conflict(
                f"the platform '{platform_id}' is not active",
                code="platform.inactive",
                hint="ask an administrator to activate it",
            )

    async def _visible(self, upload_id: UUID, caller: Caller) -> Upload:
        """The upload, if the caller may see it; otherwise NotFound, as for an upload that does not exist."""
        upload = await self.store.find(upload_id)
        if upload is None or submitting_platform(caller) not in (None, upload.platform_id):
            raise _not_found(upload_id)
        return upload

    async def _described(self, upload: Upload, caller: Caller) -> UploadInfo:
        """A platform does not see which person of this installation has uploaded a file for it."""
        is_shown = submitting_platform(caller) is None or upload.created_by == caller.name
        is_finished = upload.finished_at is not None
        arrived = 0 if is_finished else await _in_thread(self.storage.uploads.position, upload.upload_id)
        return UploadInfo(
            upload_id=upload.upload_id,
            state="finished" if is_finished else "open",
            name=upload.blob.removeprefix(prefix_of(upload.platform_id)),
            platform_id=upload.platform_id,
            source=UploadedSource(container=upload.container, blob=upload.blob),
            size_bytes=upload.size_bytes,
            offset_bytes=upload.size_bytes if is_finished else arrived,
            sha256=upload.sha256,
            etag=upload.etag,
            created_by=upload.created_by if is_shown else None,
            created_at=upload.created_at,
            updated_at=upload.updated_at,
            expires_at=upload.expires_at,
            finished_at=upload.finished_at,
        )


def narrower_prefix(prefix: str, own_prefix: str) -> str | None:
    """The prefix of names that begin with both prefixes; None if no name does."""
    if prefix.startswith(own_prefix):
        return prefix
    return own_prefix if own_prefix.startswith(prefix) else None


def wrong_offset(upload_id: UUID, offset: int) -> Conflict:
    return Conflict(
        f"the offset of the request is wrong: {offset} bytes of this upload have arrived",
        code="upload.wrong-offset",
        hint=f"send the bytes from offset {offset} on; HEAD returns the offset",
        upload_id=str(upload_id),
        offset=offset,
    )


def _platform_of(request: UploadRequest, caller: Caller) -> str:
    own_platform_id = submitting_platform(caller)
    if own_platform_id is not None and request.platform_id not in (None, own_platform_id):
        raise no_such_platform(str(request.platform_id))
    return request.platform_id or caller.platform_id or LOCAL


def _check_range(upload: Upload, position: int, offset: int, length: int | None) -> None:
    if offset != position:
        raise wrong_offset(upload.upload_id, position)
    if length is not None and offset + length > upload.size_bytes:
        raise _too_long(upload)


def _too_long(upload: Upload) -> InvalidRequest:
    return InvalidRequest(
        f"the request exceeds the size of the upload, which is {upload.size_bytes} bytes",
        code="upload.too-long",
        hint="check the size of the file, or begin a new upload",
        size_bytes=upload.size_bytes,
    )


def _name_taken(name: str) -> Conflict:
    return Conflict(
        f"an object or an unfinished upload has the name '{name}', and objects are never overwritten",
        code="upload.name-taken",
        hint="choose another name, or use `if_exists: rename`, which adds a suffix",
    )


def _not_found(upload_id: UUID) -> NotFound:
    return NotFound(
        "there is no such upload; it may have expired",
        code="upload.not-found",
        hint="begin a new upload",
        upload_id=str(upload_id),
    )


def _location(upload: Upload) -> Location:
    return Location(Zone.BRONZE, upload.container, upload.blob)


async def _no_bytes() -> AsyncIterator[bytes]:
    return
    yield b""  # makes this function a generator


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread. If this task is cancelled, the call is still awaited: it may use an open file."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
