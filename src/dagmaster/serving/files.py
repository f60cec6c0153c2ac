"""The stored files, whole or in ranges, so that GIS programs can read COGs from their URLs.

    /files/silver/<container>/cogs/<dataset>/v<ordinal>/r<revision>/…    GET, HEAD; Range, If-Range, If-None-Match
    /files/external/…                                                    the copies of public revisions

Only files that the STAC documents of a revision name are served, to those who may read that revision: its COGs, its
mosaic and its tiling scheme. Other objects in its folders are not served. Folders are not listed. Raw data,
intermediate files, recipes and results of jobs that belong to no asset are not served. In the external zone, everything
that an export has written for a revision is served for as long as anyone may read the revision. A name must follow the
rules of storage, which forbid `..`.

Files are served as they are stored, except mosaics: they name their COGs relative to the storage, and are served with
the URLs of the COGs, so that other programs can read them.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from email.utils import format_datetime
from functools import partial
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TypeAlias

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from dagmaster.access.links import PARAMETER
from dagmaster.addresses import SERVED_ZONES
from dagmaster.dataset_urls import FILES
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.access import ReadableRevision
from dagmaster.serving.caching import cache_control, matches_etag
from dagmaster.serving.mosaics import with_asset_urls
from dagmaster.serving.services import MapServices, services_of
from dagmaster.storage.location import EXTERNAL_KINDS, Location, Zone, edition_named, is_mosaic
from dagmaster.storage.store import CHUNK_BYTES, ObjectInfo

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
_SERVED_KINDS = {Zone.SILVER: ("cogs", "mosaics", "tiling_schemes"), Zone.EXTERNAL: EXTERNAL_KINDS}
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
ReadRange: TypeAlias = Callable[[int, int], bytes]

router = APIRouter(tags=["files"])


@router.head(PATH, include_in_schema=False)
@router.get(PATH, operation_id="files.getFile")
async def get_file(request: Request, zone: str, container: str, blob: str) -> Response:
    """A file, or a range of it."""
    services = services_of(request)
    location = _served_location(zone, container, blob)
    readable = await _readable_revision(request, services, location)
    read: ReadRange = partial(services.storage.get_range, location)
    file, content = await asyncio.to_thread(_head_and_content, request, services, location)
    if is_mosaic(location):
        stored = await asyncio.to_thread(services.storage.get, location)
        token = request.query_params.get(PARAMETER)
        document = await asyncio.to_thread(with_asset_urls, stored, location, str(request.base_url), token)
        file = replace(file, size_bytes=len(document), etag=hashlib.sha256(document).hexdigest()[:32])
        read = partial(_slice, document)
    etag = _etag_of(file)
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Cache-Control": cache_control(request, is_pinned=readable.is_published, is_public=readable.is_public),
        "Last-Modified": format_datetime(file.modified_at, usegmt=True),
    }
    if _has_current(request, file):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    requested = _requested_range(request, file)
    if requested is None:
        return Response(
            status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            headers={**headers, "Content-Range": f"bytes */{file.size_bytes}"},
        )
    return _respond(request, content if content is not None else read, file, requested, headers)


def _head_and_content(request: Request, services: MapServices, location: Location) -> tuple[ObjectInfo, bytes | None]:
    """A file, and the requested bytes if they are few. Most requests are for a few blocks of a COG, for which a second
    thread and a stream would take longer than reading them."""
    file = services.storage.head(location)
    if request.method == "HEAD" or is_mosaic(location) or _has_current(request, file):
        return file, None
    part = _requested_range(request, file)
    if not part or len(part) > CHUNK_BYTES:
        return file, None
    return file, services.storage.get_range(location, part.start, len(part))


def _etag_of(file: ObjectInfo) -> str:
    return f'"{file.etag}"'


def _has_current(request: Request, file: ObjectInfo) -> bool:
    """Whether the client has this file already."""
    return matches_etag(request.headers.get("if-none-match"), _etag_of(file))


def _served_location(zone: str, container: str, blob: str) -> Location:
    try:
        if zone not in SERVED_ZONES or any(part.startswith(".") for part in blob.split("/")):
            raise _no_file()
        return Location(Zone(zone), container, blob)
    except InvalidRequest:
        raise _no_file() from None


async def _readable_revision(request: Request, services: MapServices, location: Location) -> ReadableRevision:
    """The revision that a file belongs to, if the caller may read it and its STAC documents name the file."""
    kind, edition = edition_named(location.blob)
    if edition is None or kind not in _SERVED_KINDS[location.zone]:
        raise _no_file()
    try:
        readable = await services.access.readable(request, edition.dataset_id, str(edition.ordinal), edition.revision)
    except NotFound:
        raise _no_file() from None
    if readable.dataset_id != edition.dataset_id:  # the path has the id of an asset
        raise _no_file()
    if location.zone == Zone.EXTERNAL:
        is_served = readable.is_public and location.container == services.storage.containers[Zone.EXTERNAL]
    else:
        is_served = location in await services.resolver.files(readable)
    if not is_served:
        raise _no_file()
    return readable


def _requested_range(request: Request, file: ObjectInfo) -> range | None:
    """The requested bytes; the whole file if there is no valid range; None if the file has none of the bytes."""
    everything, etag = range(file.size_bytes), _etag_of(file)
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or request.headers.get("if-range", etag) != etag:
        return everything
    first, last = match.groups()
    if not first and not last:
        return everything
    if not first:
        requested = range(max(0, file.size_bytes - int(last)), file.size_bytes)
    elif last and int(last) < int(first):
        return everything
    else:
        requested = range(int(first), min(int(last) + 1 if last else file.size_bytes, file.size_bytes))
    return requested or None


def _respond(
    request: Request, content: bytes | ReadRange, file: ObjectInfo, part: range, headers: dict[str, str]
) -> Response:
    media_type = MEDIA_TYPES.get(PurePosixPath(file.location.blob).suffix.lower(), "application/octet-stream")
    headers |= {"Content-Length": str(len(part)), "Content-Type": media_type}
    status = HTTPStatus.OK
    if len(part) != file.size_bytes:
        status = HTTPStatus.PARTIAL_CONTENT
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size_bytes}"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    if isinstance(content, bytes):
        return Response(content, status_code=status, headers=headers)
    return StreamingResponse(_chunks(content, part), status_code=status, headers=headers)


async def _chunks(read: ReadRange, part: range) -> AsyncIterator[bytes]:
    for start in range(part.start, part.stop, CHUNK_BYTES):
        yield await asyncio.to_thread(read, start, min(CHUNK_BYTES, part.stop - start))


def _slice(document: bytes, start: int, length: int) -> bytes:
    return document[start : start + length]


def _no_file() -> NotFound:
    return NotFound("the file does not exist", code="file.not-found")
