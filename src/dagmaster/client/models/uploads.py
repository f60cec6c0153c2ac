"""Uploads to the bronze zone, and the objects there, as the API describes them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from dagmaster.client.models.assets import PlatformName
from dagmaster.client.models.base import ApiModel, Extensible, RequestModel

TUS_VERSION = "1.0.0"
CHUNK_TYPE = "application/offset+octet-stream"
MAX_NAME_LENGTH = 1024

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
IfExists = Literal["refuse", "rename"]


class UploadRequest(RequestModel):
    """A file to upload. Its object will be `{platform_id}/{name}`. If an object or another upload has this name, the
    request is refused, or the name gets a suffix (`rename`)."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    size_bytes: Annotated[int, Field(ge=0, le=2**62)]
    sha256: Sha256 | None = None
    platform_id: PlatformName | None = None
    if_exists: IfExists = "refuse"


class UploadedSource(ApiModel):
    """The value for the `source` of a submission."""

    container: str
    blob: str


class UploadInfo(ApiModel):
    """An upload. `offset_bytes` is the number of bytes that have arrived. `sha256` is the announced hash; when the
    upload is finished, it is that of the object, and `etag` is set."""

    upload_id: UUID
    state: Extensible[Literal["open", "finished"]]
    name: str
    platform_id: str
    source: UploadedSource
    size_bytes: int
    offset_bytes: int
    sha256: str | None = None
    etag: str | None = None
    created_by: str | None = None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def is_finished(self) -> bool:
        return self.state == "finished"


class SourceObject(ApiModel):
    """An object of the bronze zone. The ETag changes with its content."""

    container: str
    blob: str
    size_bytes: int
    modified_at: datetime
    etag: str
