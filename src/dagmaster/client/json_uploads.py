"""The requests about uploads and the objects of the bronze zone, with responses as JSON."""

from pathlib import Path
from typing import Any, Final
from uuid import UUID

from dagmaster.client.blocking import Blocking, C, blocking
from dagmaster.client.connection import ApiConnection
from dagmaster.client.models.base import Json, unexpected
from dagmaster.client.models.uploads import CHUNK_TYPE, TUS_VERSION
from dagmaster.client.sending import SendOptions, send_file

MAX_CHUNK_BYTES: Final = 64 * 1_000_000
CHUNK_TIMEOUT_SECONDS: Final = 70.0  # servers wait 60 seconds for a body


class AsyncUploadRequests:
    connection: ApiConnection

    async def begin_upload(self, request: Json) -> Json:
        """With a hash the request may be repeated: for the same file, the existing upload is returned."""
        is_repeatable = bool(request.get("sha256"))
        return await self.connection.object("POST", "/uploads", body=request, is_repeatable=is_repeatable)

    async def append_to_upload(self, upload_id: UUID | str, offset: int, data: bytes) -> int:
        """Send the bytes from an offset on. Returns the number of bytes that have arrived."""
        response = await self.connection.request(
            "PATCH",
            f"/uploads/{upload_id}",
            content=data,
            media_type=CHUNK_TYPE,
            headers={"Upload-Offset": str(offset), "Tus-Resumable": TUS_VERSION},
            timeout=max(CHUNK_TIMEOUT_SECONDS, self.connection.timeout_seconds),
            expected="",
            max_bytes=MAX_CHUNK_BYTES,
        )
        text = response.headers.get("upload-offset", "")
        if not (text.isascii() and text.isdigit()):
            raise unexpected("it has no Upload-Offset")
        return int(text)

    async def upload_of(self, upload_id: UUID | str) -> Json:
        return await self.connection.object("GET", f"/uploads/{upload_id}")

    async def upload_file(self, file: Path, options: SendOptions) -> Json:
        """Send a file in parts. The response describes the finished upload."""
        return (await send_file(self, file, options)).model_dump(mode="json")

    async def uploads(self, /, limit: int, after: str | None = None, **filters: Any) -> tuple[list[Json], str | None]:
        """Uploads, newest first."""
        return await self.connection.page("/uploads", limit, after, **filters)

    async def cancel_upload(self, upload_id: UUID | str) -> None:
        await self.connection.request("DELETE", f"/uploads/{upload_id}", expected="")

    async def sources(self, /, limit: int, after: str | None = None, **filters: Any) -> tuple[list[Json], str | None]:
        """Objects of the bronze zone, by name."""
        return await self.connection.page("/sources", limit, after, **filters)


class UploadRequests(Blocking[C]):
    begin_upload = blocking(AsyncUploadRequests.begin_upload)
    append_to_upload = blocking(AsyncUploadRequests.append_to_upload)
    upload_of = blocking(AsyncUploadRequests.upload_of)
    upload_file = blocking(AsyncUploadRequests.upload_file)
    uploads = blocking(AsyncUploadRequests.uploads)
    cancel_upload = blocking(AsyncUploadRequests.cancel_upload)
    sources = blocking(AsyncUploadRequests.sources)
