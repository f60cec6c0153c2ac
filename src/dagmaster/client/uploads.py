"""The methods of the Python client about files: send them to the bronze zone, and list its objects."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal
from uuid import UUID

from dagmaster.client.blocking import Blocking, C, blocking, iterating
from dagmaster.client.models.base import parse
from dagmaster.client.models.uploads import IfExists, SourceObject, UploadInfo
from dagmaster.client.paging import PagedClient
from dagmaster.client.sending import CHUNK_BYTES, PATIENCE_SECONDS, OnSent, SendOptions, send_file


class AsyncUploads(PagedClient):
    async def upload(
        self,
        file: Path | str,
        *,
        name: str | None = None,
        platform_id: str | None = None,
        if_exists: IfExists = "rename",
        on_progress: OnSent | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> UploadInfo:
        """Send a file to the bronze zone, as `{platform_id}/{name}`. `source` of the result is what `submit_asset`
        needs (`blob`, `container`).

        After a lost connection the upload continues where it stopped; so does another call with the same file, also in
        another process. A file that was sent before is not sent again. If another file has the name, this one gets a
        suffix, or Conflict is raised (`if_exists="refuse"`). `on_progress` is called with the bytes that have arrived
        and their total. Without any progress for `patience_seconds`, the last error is raised.
        """
        options = SendOptions(name, platform_id, if_exists, on_progress, chunk_bytes, patience_seconds)
        return await send_file(self.json, Path(file), options)

    async def upload_info(self, upload_id: UUID | str) -> UploadInfo:
        """The state of an upload."""
        return parse(UploadInfo, await self.json.upload_of(upload_id))

    async def uploads(
        self, *, state: Literal["open", "finished"] | None = None, limit: int | None = None
    ) -> AsyncIterator[UploadInfo]:
        """Uploads, newest first."""
        async for upload in self._all(UploadInfo, "/uploads", limit, state=state):
            yield upload

    async def cancel_upload(self, upload_id: UUID | str) -> None:
        """Remove an upload that is not finished."""
        await self.json.cancel_upload(upload_id)

    async def sources(
        self, prefix: str = "", *, container: str | None = None, limit: int | None = None
    ) -> AsyncIterator[SourceObject]:
        """The objects of the bronze zone whose names begin with a prefix, by name."""
        async for source in self._all(SourceObject, "/sources", limit, prefix=prefix or None, container=container):
            yield source


class Uploads(Blocking[C]):
    upload = blocking(AsyncUploads.upload)
    upload_info = blocking(AsyncUploads.upload_info)
    uploads = iterating(AsyncUploads.uploads)
    cancel_upload = blocking(AsyncUploads.cancel_upload)
    sources = iterating(AsyncUploads.sources)
