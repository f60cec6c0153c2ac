"""The stored files, whole or in ranges, so that GIS programs can read COGs from their URLs.

    /files/silver/<container>/<blob>    GET and HEAD, with Range, If-Range, If-None-Match

Folders are not listed. Raw data and intermediate files are not served. A name must follow the rules of storage, which
forbid `..`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from email.utils import format_datetime
from http import HTTPStatus
from pathlib import PurePosixPath
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from dagmaster.addresses import FILES, SERVED_ZONES
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.caching import matches_etag
from dagmaster.serving.services import Services
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.store import CHUNK_BYTES, ObjectInfo
from dagmaster.storage.zones import Storage

# Other types are served as bytes: an uploaded file must not run as a page of this server.
MEDIA_TYPES = {
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".json": "application/json",
    ".geojson": "application/geo+json",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".parquet": "application/vnd.apache.parquet",
    ".pmtiles": "application/vnd.pmtiles",
}
PATH = FILES + "/{zone}/{container}/{blob:path}"
_CACHE_CONTROL = "public, max-age=60"
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")

router = APIRouter(tags=["files"])


@router.head(PATH, include_in_schema=False)
@router.get(PATH, operation_id="files.getFile")
async def get_file(request: Request, services: Services, zone: str, container: str, blob: str) -> Response:
    """A file, or a range of it."""
    location = _served_location(zone, container, blob)
    file = await asyncio.to_thread(services.storage.head, location)
    etag = f'"{file.etag}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Cache-Control": _CACHE_CONTROL,
        "Last-Modified": format_datetime(file.modified_at, usegmt=True),
    }
    if matches_etag(request.headers.get("if-none-match"), etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    requested = _requested_range(request, file, etag)
    if requested is None:
        return Response(
            status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            headers={**headers, "Content-Range": f"bytes */{file.size_bytes}"},
        )
    return _respond(request, services.storage, file, requested, headers)


def _served_location(zone: str, container: str, blob: str) -> Location:
    try:
        if zone not in SERVED_ZONES or _is_intermediate(blob):
            raise _no_file()
        return Location(Zone(zone), container, blob)
    except InvalidRequest:
        raise _no_file() from None


def _is_intermediate(blob: str) -> bool:
    """Whether it is an intermediate file of a job, or hidden."""
    first = blob.partition("/")[0]
    try:
        UUID(first)
    except ValueError:
        return any(part.startswith(".") for part in blob.split("/"))
    return True


def _requested_range(request: Request, file: ObjectInfo, etag: str) -> range | None:
    """The requested bytes; the whole file if there is no valid range; None if the file has none of the bytes."""
    whole = range(file.size_bytes)
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or request.headers.get("if-range", etag) != etag:
        return whole
    first, last = match.groups()
    if not first and not last:
        return whole
    if not first:
        requested = range(max(0, file.size_bytes - int(last)), file.size_bytes)
    elif last and int(last) < int(first):
        return whole
    else:
        requested = range(int(first), min(int(last) + 1 if last else file.size_bytes, file.size_bytes))
    return requested or None


def _respond(request: Request, storage: Storage, file: ObjectInfo, part: range, headers: dict[str, str]) -> Response:
    media_type = MEDIA_TYPES.get(PurePosixPath(file.location.blob).suffix.lower(), "application/octet-stream")
    headers |= {"Content-Length": str(len(part)), "Content-Type": media_type}
    status = HTTPStatus.OK
    if len(part) != file.size_bytes:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size_bytes}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return StreamingResponse(_chunks(storage, file.location, part), status_code=status, headers=headers)


async def _chunks(storage: Storage, location: Location, part: range) -> AsyncIterator[bytes]:
    for start in range(part.start, part.stop, CHUNK_BYTES):
        yield await asyncio.to_thread(storage.get_range, location, start, min(CHUNK_BYTES, part.stop - start))


def _no_file() -> NotFound:
    return NotFound("the file does not exist", code="file.not-found")
