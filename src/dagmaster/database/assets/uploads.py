"""The rows of uploads. No row is locked while bytes arrive: the storage allows only one writer per upload."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from dagmaster.assets.model import Upload
from dagmaster.database.assets.transaction import AssetTransactions
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts
from dagmaster.errors import Unavailable


@dataclass(frozen=True, slots=True)
class NewUpload:
    upload_id: UUID
    platform_id: str
    container: str
    blob: str
    size_bytes: int
    sha256: str | None
    created_by: str
    expires_in_seconds: float


class UploadStore(AssetTransactions):
    """`async with UploadStore(dsn) as store`, or on a pool that is passed."""

    async def begin(self, upload: NewUpload, *, max_uploads: int) -> Upload | None:
        """None if another unfinished upload has the name. A caller may have up to `max_uploads` unfinished uploads."""

        async def act(connection: Connection) -> Upload | None:
            values = {name: getattr(upload, name) for name in NewUpload.__slots__}
            await connection.execute(query("upload_lock_caller"), {"created_by": upload.created_by})
            (row,) = await dicts(connection, "upload_count_open", {"created_by": upload.created_by})
            if row["uploads"] >= max_uploads:
                raise _too_many(max_uploads)
            return next(iter(models(Upload, await dicts(connection, "upload_begin", values))), None)

        return await self._transaction("upload", act)

    async def find(self, upload_id: UUID) -> Upload | None:
        return await self._upload("upload_get", {"upload_id": upload_id})

    async def of_blob(self, container: str, blob: str) -> Sequence[Upload]:
        """The unfinished upload of this name, and the last finished one, if they exist."""
        return models(Upload, await self._dicts("uploads_of_blob", {"container": container, "blob": blob}))

    async def uploads(
        self,
        *,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        platform_id: str | None = None,
        is_finished: bool | None = None,
    ) -> list[Upload]:
        """Newest first. `after` is (created_at, upload_id) of the last one of the previous page."""
        after_at, after_id = after or (None, None)
        values = {
            "limit": limit,
            "after_at": after_at,
            "after_id": after_id,
            "platform_id": platform_id,
            "is_finished": is_finished,
        }
        return models(Upload, await self._dicts("uploads_page", values))

    async def note_bytes(self, upload_id: UUID, expires_in_seconds: float) -> Upload | None:
        """Record that bytes have arrived. None if the upload was finished or removed meanwhile."""
        values = {"upload_id": upload_id, "expires_in_seconds": expires_in_seconds}
        return await self._upload("upload_continue", values)

    async def finish(self, upload_id: UUID, sha256: str, etag: str) -> Upload | None:
        """Record that the object exists. None if another process has done so, or has removed the upload."""
        values = {"upload_id": upload_id, "sha256": sha256, "etag": etag}
        rows = await self._transaction("upload", partial(dicts, name="upload_finish", values=values))
        return next(iter(models(Upload, rows)), None)

    async def remove(self, upload_id: UUID) -> bool:
        """False if the upload is finished, or does not exist."""
        values = {"upload_id": upload_id, "is_expired": False}
        return bool(await self._transaction("upload", partial(dicts, name="upload_remove", values=values)))

    async def _upload(self, name: str, values: dict[str, Any]) -> Upload | None:
        return next(iter(models(Upload, await self._dicts(name, values))), None)


def _too_many(max_uploads: int) -> Unavailable:
    return Unavailable(
        f"this caller has {max_uploads} unfinished uploads, and no more are allowed",
        code="upload.too-many",
        hint="finish or cancel some of them, or wait until they expire",
    )
