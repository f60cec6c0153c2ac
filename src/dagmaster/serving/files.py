"""Files as they are, in parts or whole, so that GIS programs read COGs straight from their addresses.

    /files/silver/<container>/<blob>    GET and HEAD, with Range, If-Range, If-None-Match

Nothing is listed, raw data and files on their way are nobody's, and a name must obey storage's rules, which know no `..`.
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
from dagmaster.serving.caching import is_held
from dagmaster.serving.services import Services
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.store import CHUNK_BYTES, Found
from dagmaster.storage.zones import Storage

# Others are served as bytes: what someone put there shall not run as a page of ours.
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
_KEPT = "public, max-age=60"
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")

router = APIRouter(tags=["files"])


@router.head(PATH, include_in_schema=False)
@router.get(PATH, operation_id="files.getFile")
async def get_file(request: Request, services: Services, zone: str, container: str, blob: str) -> Response:
    """A file, or a part of it."""
    location = _served(zone, container, blob)
    found = await asyncio.to_thread(services.storage.head, location)
    etag = f'"{found.etag}"'
    headers = {
        "Accept-Ranges": "bytes", "ETag": etag, "Cache-Control": _KEPT,
        "Last-Modified": format_datetime(found.modified_at, usegmt=True),
    }  # fmt: skip
    if is_held(request.headers.get("if-none-match"), etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    part = _part(request, found, etag)
    if part is None:
        return Response(
            status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            headers={**headers, "Content-Range": f"bytes */{found.size_bytes}"},
        )
    return _answer(request, services.storage, found, part, headers)


def _served(zone: str, container: str, blob: str) -> Location:
    try:
        if zone not in SERVED_ZONES or _is_on_its_way(blob):
            raise _nothing()
        return Location(Zone(zone), container, blob)
    except InvalidRequest:
        raise _nothing() from None


def _is_on_its_way(blob: str) -> bool:
    """Intermediate files of a job, and hidden ones."""
    first = blob.partition("/")[0]
    try:
        UUID(first)
    except ValueError:
        return any(part.startswith(".") for part in blob.split("/"))
    return True


def _part(request: Request, found: Found, etag: str) -> range | None:
    """The bytes that are asked for; all where no part is, or one that we don't understand; None: it has none of them."""
    whole = range(found.size_bytes)
    asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if asked is None or request.headers.get("if-range", etag) != etag:
        return whole
    first, last = asked.groups()
    if not first and not last:
        return whole
    if not first:
        part = range(max(0, found.size_bytes - int(last)), found.size_bytes)
    elif last and int(last) < int(first):
        return whole
    else:
        part = range(int(first), min(int(last) + 1 if last else found.size_bytes, found.size_bytes))
    return part or None


def _answer(request: Request, storage: Storage, found: Found, part: range, headers: dict[str, str]) -> Response:
    kind = MEDIA_TYPES.get(PurePosixPath(found.location.blob).suffix.lower(), "application/octet-stream")
    headers |= {"Content-Length": str(len(part)), "Content-Type": kind}
    status = HTTPStatus.OK
    if len(part) != found.size_bytes:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{found.size_bytes}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return StreamingResponse(_chunks(storage, found.location, part), status_code=status, headers=headers)


async def _chunks(storage: Storage, location: Location, part: range) -> AsyncIterator[bytes]:
    for start in range(part.start, part.stop, CHUNK_BYTES):
        yield await asyncio.to_thread(storage.get_range, location, start, min(CHUNK_BYTES, part.stop - start))


def _nothing() -> NotFound:
    return NotFound("there is no such file", code="file.not-found")
