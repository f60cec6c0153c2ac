"""Downloads of outputs of any size: streamed, with the hash of their content as ETag."""

from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Path
from starlette.responses import Response, StreamingResponse

from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import JobId, NodeName
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.reads import outputs
from dagmaster.database.reads.api import ApiReads
from dagmaster.database.reads.outputs import Download
from dagmaster.errors import DagmasterError
from dagmaster.jobs.payload import Reference
from dagmaster.web.authentication import requires

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[requires(Permission.JOBS_READ)])

Hash = Annotated[str, Path(description="SHA-256 of the content, as in references", pattern="^[0-9a-f]{64}$")]
IfNoneMatch = Annotated[str | None, Header(description="ETags of the versions that the client has")]
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The JSON as it was stored",
        "content": {"application/json": {"schema": {}}},
        "headers": {"ETag": {"description": "The SHA-256 of the content, in quotes", "schema": {"type": "string"}}},
    },
    304: {"description": "Not modified: the client has this version"},
    **responses(404),
}


@router.get(
    "/{job_id}/nodes/{node_id}/output",
    operation_id="get_output",
    summary="Download a node's output",
    response_class=StreamingResponse,
    responses=_RESPONSES,
)
async def get_output(
    services: Services, job_id: JobId, node_id: NodeName, if_none_match: IfNoneMatch = None
) -> Response:
    """The whole output, also if it is stored by reference. An output that is combined from the children of a fan_out
    has a weak ETag and no length. If the content turns out to be damaged, the connection is closed before the end."""
    node = await services.reads.node(job_id, node_id)
    return await _respond(outputs.output_of(services.reads, node), if_none_match)


@router.get(
    "/{job_id}/payloads/{sha256}",
    operation_id="get_payload",
    summary="Download the content of a reference",
    response_class=StreamingResponse,
    responses=_RESPONSES,
)
async def get_payload(services: Services, job_id: JobId, sha256: Hash, if_none_match: IfNoneMatch = None) -> Response:
    """The content of an `output_ref` or `params_ref` with this hash: the params of a task, an output, or a result of
    the job."""
    await services.reads.brief(job_id)
    reference = await services.reads.payload_reference(job_id, sha256)
    return await _respond(outputs.stored(services.reads, job_id, reference), if_none_match)


async def stored_response(reads: ApiReads, job_id: UUID, reference: Reference) -> Response:
    """The content of a reference."""
    return await _respond(outputs.stored(reads, job_id, reference), None)


async def _respond(download: Download, if_none_match: str | None) -> Response:
    tag = f'W/"{download.tag}"' if download.is_weak else f'"{download.tag}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if download.tag in (if_none_match or ""):
        return Response(status_code=304, headers=headers)
    if download.size_bytes is not None:
        headers["Content-Length"] = str(download.size_bytes)
    # If the content does not exist, the response is a problem and not a truncated download.
    first = await anext(download.pieces)
    return StreamingResponse(_chain(first, download.pieces), media_type="application/json", headers=headers)


class TruncatedError(Exception):
    """A download that was started cannot be completed. The connection is closed, so that the client sees that the
    download is incomplete."""


async def _chain(first: bytes, following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for piece in following:
            yield piece
    except DagmasterError as error:
        raise TruncatedError(str(error)) from error
