"""Partners upload files to the bronze zone. Requests are forwarded to an orchestrator, which checks them; bodies are
streamed."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import httpx2
from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.pages import Page
from dagmaster.client.models.uploads import CHUNK_TYPE, MAX_NAME_LENGTH, SourceObject, UploadInfo, UploadRequest
from dagmaster.gateway.forward import ForwardedRequest, headers_of, passed_back
from dagmaster.gateway.platform import partner_problem
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Cursor, Limit
from dagmaster.web.uploads import body_of
from dagmaster.web.validation import responses

PATH: Final = "/api/platform/uploads"
router = APIRouter(prefix="/api/platform", tags=["uploads"])

Submitter = Annotated[Caller, Depends(needs(Permission.ASSETS_SUBMIT))]
UploadId = Annotated[UUID, Path(description="The id of the upload: the last part of its `Location`")]
_CHUNK: dict[str, Any] = {
    "requestBody": {"required": True, "content": {CHUNK_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


@router.options(
    "/uploads",
    operation_id="platform_describe_uploads",
    summary="Get the limits and the version of the protocol",
    status_code=204,
    responses=responses(429, 504),
)
async def describe(services: Services, _caller: Submitter, request: Request) -> Response:
    return await _forwarded(services, request, is_repeatable=True)


@router.post(
    "/uploads",
    operation_id="platform_begin_upload",
    summary="Begin an upload",
    status_code=201,
    response_model=UploadInfo,
    responses={
        200: {"model": UploadInfo, "description": "The same file was uploaded before"},
        **responses(404, 409, 412, 429, 504),
    },
)
async def begin(
    *,
    services: Services,
    _caller: Submitter,
    request: Request,
    upload: Annotated[UploadRequest | None, Body()] = None,
    upload_length: Annotated[str | None, Header(description="tus: the size of the file, if there is no body")] = None,
    upload_metadata: Annotated[
        str | None, Header(max_length=8192, description="tus: `filename`, and `sha256`, `if_exists`, in Base64")
    ] = None,
) -> Response:
    """The object will be `{platform}/{name}`, which a submission names as its source. With a `sha256` the request may
    be repeated: for the same file, the response is the existing upload. The protocol is tus 1.0.0."""
    del upload_length, upload_metadata  # they are passed on with the other headers
    body = b"" if upload is None else upload.model_dump_json(exclude_none=True).encode()
    return await _forwarded(
        services, request, body=body, is_repeatable=upload is not None and upload.sha256 is not None
    )


@router.get(
    "/uploads",
    operation_id="platform_uploads",
    summary="List uploads, newest first",
    response_model=Page[UploadInfo],
    responses=responses(429, 504),
)
async def list_uploads(
    *,
    services: Services,
    _caller: Submitter,
    request: Request,
    state: Annotated[Literal["open", "finished"] | None, Query(description="Only uploads in this state")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Response:
    del state, after, limit  # they are passed on with the query
    return await _forwarded(services, request, is_repeatable=True)


@router.get(
    "/uploads/{upload_id}",
    operation_id="platform_upload",
    summary="Get an upload",
    response_model=UploadInfo,
    responses=responses(404, 409, 429, 504),
)
async def get(services: Services, _caller: Submitter, request: Request, upload_id: UploadId) -> Response:
    return await _forwarded(services, request, f"/{upload_id}", is_repeatable=True)


@router.head(
    "/uploads/{upload_id}",
    operation_id="platform_upload_offset",
    summary="Get the number of bytes that have arrived",
    response_class=Response,
    responses=responses(404, 409, 412, 429, 504),
)
async def get_offset(services: Services, _caller: Submitter, request: Request, upload_id: UploadId) -> Response:
    return await _forwarded(services, request, f"/{upload_id}", is_repeatable=True)


@router.patch(
    "/uploads/{upload_id}",
    operation_id="platform_append_to_upload",
    summary="Send the next bytes of a file",
    status_code=204,
    responses=responses(404, 408, 409, 412, 423, 429, 504),
    openapi_extra=_CHUNK,
)
async def append(
    *,
    services: Services,
    _caller: Submitter,
    request: Request,
    upload_id: UploadId,
    upload_offset: Annotated[str, Header(description="The number of bytes that have already arrived")],
) -> Response:
    """The body has the bytes from `Upload-Offset` on, at most `UPLOAD_CHUNK_MB`. After a lost connection or 504,
    request the offset with HEAD, and continue there."""
    del upload_offset  # it is passed on with the other headers
    try:
        return await _forwarded(services, request, f"/{upload_id}", stream=body_of(request))
    except ClientDisconnect:
        return Response(status_code=400)  # the client has disconnected


@router.delete(
    "/uploads/{upload_id}",
    operation_id="platform_cancel_upload",
    summary="Cancel an upload",
    status_code=204,
    responses=responses(404, 409, 412, 423, 429, 504),
)
async def cancel(services: Services, _caller: Submitter, request: Request, upload_id: UploadId) -> Response:
    return await _forwarded(services, request, f"/{upload_id}")


@router.get(
    "/sources",
    operation_id="platform_sources",
    summary="List objects of the bronze zone by name",
    response_model=Page[SourceObject],
    responses=responses(429, 504),
)
async def list_sources(
    *,
    services: Services,
    _caller: Submitter,
    request: Request,
    prefix: Annotated[
        str, Query(max_length=MAX_NAME_LENGTH, description="Only objects whose names begin with this")
    ] = "",
    after: Annotated[str, Query(max_length=MAX_NAME_LENGTH, description="`next` of the previous page")] = "",
    limit: Limit = 50,
) -> Response:
    """A platform sees its own objects, whose names begin with its id and a slash."""
    del prefix, after, limit  # they are passed on with the query
    forwarded = ForwardedRequest("GET", f"{PREFIX}/sources", headers_of(request), request.url.query, is_repeatable=True)
    return _response_of(await services.forwarder.send(forwarded), request)


async def _forwarded(
    services: GatewayServices,
    request: Request,
    below: str = "",
    *,
    body: bytes = b"",
    stream: AsyncIterator[bytes] | None = None,
    is_repeatable: bool = False,
) -> Response:
    forwarded = ForwardedRequest(
        request.method,
        f"{PREFIX}/uploads{below}",
        headers_of(request),
        request.url.query,
        body,
        is_repeatable=is_repeatable,
    )
    return _response_of(await services.forwarder.send(forwarded, stream), request)


def _response_of(response: httpx2.Response, request: Request) -> Response:
    """The response to the client, with the URL of the upload on this server."""
    if not response.is_success and request.method != "HEAD":  # a response to HEAD has no body
        return partner_problem(response, request)
    passed = passed_back(response)
    location = passed.headers.get("location")
    if location is not None:
        passed.headers["location"] = location.replace(f"{PREFIX}/uploads", PATH, 1)
    return passed
