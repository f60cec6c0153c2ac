"""Uploads to the bronze zone: a file is sent in several requests, and the upload continues after a lost connection.

    POST /uploads ──▶ Location          HEAD ──▶ Upload-Offset
    PATCH, Upload-Offset: N ──▶ 204, Upload-Offset: M ── … ──▶ M is the size: the object is in the bronze zone

The protocol is tus 1.0.0, so that its clients can be used. In addition, POST accepts JSON, and GET returns JSON.
"""

from email.utils import format_datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from dagmaster.access.caller import Caller
from dagmaster.access.decision import submitting_platform
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import PROBLEMS, responses
from dagmaster.api.services import Services
from dagmaster.assets.uploads import parse_metadata, parse_size, write_metadata
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.pages import Page
from dagmaster.client.models.uploads import CHUNK_TYPE, UploadInfo, UploadRequest
from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.web.authentication import needs, requires
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_id, page_of
from dagmaster.web.problems import request_id_of
from dagmaster.web.uploads import EXTENSIONS, body_of, check_version, length_of

PATH: Final = f"{PREFIX}/uploads"
router = APIRouter(prefix="/uploads", tags=["uploads"])

Submitter = Annotated[Caller, Depends(needs(Permission.ASSETS_SUBMIT))]
UploadId = Annotated[UUID, Path(description="The id of the upload: the last part of its `Location`")]

_OFFSET: dict[str, Any] = {
    "Upload-Offset": {"description": "The number of bytes that have arrived", "schema": {"type": "integer"}}
}
_LOCATION: dict[str, Any] = {"Location": {"description": "The URL to send the bytes to", "schema": {"type": "string"}}}
_CHUNK: dict[str, Any] = {
    "requestBody": {"required": True, "content": {CHUNK_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}
_METADATA: Final = {"filename": "name", "sha256": "sha256", "platform_id": "platform_id", "if_exists": "if_exists"}


@router.options(
    "",
    operation_id="describe_uploads",
    summary="Get the limits and the version of the protocol",
    status_code=204,
    responses={
        204: {"description": "See the headers `Tus-Version`, `Tus-Extension` and `Tus-Max-Size`"},
        **responses(),
    },
    dependencies=[requires(Permission.ASSETS_SUBMIT)],
)
async def describe_uploads(services: Services) -> Response:
    size = str(services.uploads.rules.max_bytes)
    return Response(status_code=204, headers={"Tus-Extension": EXTENSIONS, "Tus-Max-Size": size})


@router.post(
    "",
    operation_id="begin_upload",
    summary="Begin an upload",
    status_code=201,
    response_model=UploadInfo,
    responses={
        200: {"model": UploadInfo, "description": "The same file was uploaded before", "headers": _LOCATION | _OFFSET},
        201: {"description": "A new upload, or an unfinished upload of the same file", "headers": _LOCATION | _OFFSET},
        **responses(404, 409, 412, 429),
    },
)
async def begin_upload(
    *,
    services: Services,
    caller: Submitter,
    request: Request,
    response: Response,
    upload: Annotated[UploadRequest | None, Body()] = None,
    upload_length: Annotated[str | None, Header(description="tus: the size of the file, if there is no body")] = None,
    upload_metadata: Annotated[
        str | None,
        Header(max_length=8192, description="tus: `filename`, and `platform_id`, `sha256`, `if_exists`, in Base64"),
    ] = None,
) -> UploadInfo:
    """The file is described by the body, or by the headers of the tus protocol. Its object will be
    `{platform_id}/{name}`. An existing object is never overwritten: the request is refused, or with `rename` as
    `if_exists` the name gets a suffix. With a `sha256` the request may be repeated: for the same file, the response is
    the existing upload, which continues at its `offset_bytes` or is finished (200).

    An unfinished upload that gets no bytes for `UPLOAD_EXPIRY_HOURS` is removed."""
    check_version(request)
    info = await services.uploads.begin(upload or _described(upload_length, upload_metadata), caller)
    response.status_code = 200 if info.is_finished else 201
    response.headers.update(_headers(info))
    response.headers["Location"] = f"{PATH}/{info.upload_id}"
    return info


@router.get("", operation_id="list_uploads", summary="List uploads, newest first", responses=responses())
async def list_uploads(
    *,
    services: Services,
    caller: Submitter,
    state: Annotated[Literal["open", "finished"] | None, Query(description="Only uploads in this state")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[UploadInfo]:
    """A platform sees its own uploads."""
    rows = await services.uploads.store.uploads(
        limit=limit + 1,
        after=moment_and_id(after),
        platform_id=submitting_platform(caller),
        is_finished=None if state is None else state == "finished",
    )
    page = page_of(rows, limit, lambda row: joined(row.created_at.isoformat(), row.upload_id))
    return Page[UploadInfo](items=await services.uploads.uploads(page.items, caller), next=page.next)


@router.get("/{upload_id}", operation_id="get_upload", summary="Get an upload", responses=responses(404, 409))
async def get_upload(services: Services, caller: Submitter, response: Response, upload_id: UploadId) -> UploadInfo:
    """Once the upload is finished, `source` is the value for the `source` of a submission."""
    info = await services.uploads.get(upload_id, caller)
    response.headers.update(_headers(info))
    return info


@router.head(
    "/{upload_id}",
    operation_id="get_upload_offset",
    summary="Get the number of bytes that have arrived",
    response_class=Response,
    responses={200: {"description": "See the header `Upload-Offset`", "headers": _OFFSET}, **responses(404, 409, 412)},
)
async def get_upload_offset(services: Services, caller: Submitter, request: Request, upload_id: UploadId) -> Response:
    check_version(request)
    info = await services.uploads.get(upload_id, caller)
    metadata = {"filename": info.name, "platform_id": info.platform_id}
    return Response(headers={**_headers(info), "Upload-Metadata": write_metadata(metadata)})


@router.patch(
    "/{upload_id}",
    operation_id="append_to_upload",
    summary="Send the next bytes of a file",
    status_code=204,
    responses={
        **responses(404, 408, 412, 423),
        204: {"description": "The bytes are stored; after the last bytes, the object exists", "headers": _OFFSET},
        409: {**responses(409)[409], "description": "The upload continues at another offset", "headers": _OFFSET},
    },
    openapi_extra=_CHUNK,
)
async def append_to_upload(
    *,
    services: Services,
    caller: Submitter,
    request: Request,
    upload_id: UploadId,
    upload_offset: Annotated[str, Header(description="The number of bytes that have already arrived")],
) -> Response:
    """The body has the bytes from `Upload-Offset` on, at most `UPLOAD_CHUNK_MB`. If the connection is lost, the bytes
    that have arrived are kept: request the offset with HEAD, and continue there. A 409 response has the actual offset
    in `Upload-Offset`. Only one request may write at a time; another one gets 423."""
    check_version(request)
    _check_type(request)
    try:
        info = await services.uploads.append(
            upload_id,
            caller,
            offset=parse_size(upload_offset, "Upload-Offset"),
            length=length_of(request),
            chunks=body_of(request),
        )
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected
    except Conflict as error:
        response = PROBLEMS.problem_of(error, request.url.path, request_id_of(request))
        if "offset" in error.facts:
            response.headers["Upload-Offset"] = str(error.facts["offset"])
        return response
    return Response(status_code=204, headers=_headers(info))


@router.delete(
    "/{upload_id}",
    operation_id="cancel_upload",
    summary="Cancel an upload",
    status_code=204,
    responses={204: {"description": "The bytes are removed"}, **responses(404, 409, 412, 423)},
)
async def cancel_upload(services: Services, caller: Submitter, request: Request, upload_id: UploadId) -> Response:
    """A finished upload is not removed: submissions may name its object."""
    check_version(request)
    await services.uploads.cancel(upload_id, caller)
    return Response(status_code=204)


def _described(length: str | None, metadata: str | None) -> UploadRequest:
    """The file that the headers of the tus protocol describe."""
    if length is None:
        raise InvalidRequest(
            "the request does not describe a file",
            code="upload.not-described",
            hint="send JSON with `name` and `size_bytes`, or the headers Upload-Length and Upload-Metadata",
        )
    sent = parse_metadata(metadata) if metadata else {}
    fields = {field: sent[key] for key, field in _METADATA.items() if key in sent}
    try:
        return UploadRequest.model_validate({**fields, "size_bytes": parse_size(length, "Upload-Length")})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = {field: key for key, field in _METADATA.items()}.get(str(first["loc"][0]), "Upload-Length")
        raise InvalidRequest(f"{key} is not valid: {first['msg']}", code="upload.bad-header", header=key) from None


def _check_type(request: Request) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != CHUNK_TYPE:
        raise InvalidRequest(
            "the content type of the request is not that of an upload",
            code="upload.media-type",
            hint=f"send the bytes with the header `Content-Type: {CHUNK_TYPE}`",
        )


def _headers(info: UploadInfo) -> dict[str, str]:
    headers = {
        "Upload-Offset": str(info.offset_bytes),
        "Upload-Length": str(info.size_bytes),
        "Cache-Control": "no-store",
    }
    if info.expires_at is not None:
        headers["Upload-Expires"] = format_datetime(info.expires_at, usegmt=True)
    return headers
