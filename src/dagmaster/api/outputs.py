"""Outputs as they are, however large: streamed, and named by the hash of their content."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from starlette.responses import Response, StreamingResponse

from dagmaster.api.jobs import JobId, NodeName
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.reads import outputs
from dagmaster.database.reads.outputs import Download
from dagmaster.errors import DagmasterError

router = APIRouter(prefix="/jobs", tags=["jobs"])

Hash = Annotated[str, Path(description="SHA-256 of the content, as references have it", pattern="^[0-9a-f]{64}$")]
IfNoneMatch = Annotated[str | None, Header(description="ETags of what one has already")]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The JSON as it was stored",
        "content": {"application/json": {"schema": {}}},
        "headers": {"ETag": {"description": "The SHA-256 of the content, in quotes", "schema": {"type": "string"}}},
    },
    304: {"description": "It is what one has already"},
    **responses(404),
}


@router.get(
    "/{job_id}/nodes/{node_id}/output",
    operation_id="get_output",
    summary="Download a node's output",
    response_class=StreamingResponse,
    responses=_ANSWERS,
)
async def get_output(
    services: Services, job_id: JobId, node_id: NodeName, if_none_match: IfNoneMatch = None
) -> Response:
    """All of it, also what is kept by reference. What is made of the results of a fan_out's children has a weak ETag and no
    length. Should the content turn out to be damaged on the way, the answer breaks off before its end."""
    node = await services.reads.node(job_id, node_id)
    return await _answer(outputs.output_of(services.reads, node), if_none_match)


@router.get(
    "/{job_id}/payloads/{sha256}",
    operation_id="get_payload",
    summary="Download what a reference stands for",
    response_class=StreamingResponse,
    responses=_ANSWERS,
)
async def get_payload(services: Services, job_id: JobId, sha256: Hash, if_none_match: IfNoneMatch = None) -> Response:
    """What an `output_ref` or `params_ref` with this hash refers to: the params of a task, an output, or one of a job's results."""
    await services.reads.brief(job_id)
    reference = await services.reads.payload_reference(job_id, sha256)
    return await _answer(outputs.stored(services.reads, job_id, reference), if_none_match)


async def _answer(download: Download, if_none_match: str | None) -> Response:
    tag = f'W/"{download.tag}"' if download.is_weak else f'"{download.tag}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if download.tag in (if_none_match or ""):
        return Response(status_code=304, headers=headers)
    if download.size_bytes is not None:
        headers["Content-Length"] = str(download.size_bytes)
    # What is not there at all is a problem, not an answer that breaks off.
    first = await anext(download.pieces)
    return StreamingResponse(_from(first, download.pieces), media_type="application/json", headers=headers)


class BrokenOffError(Exception):
    """What was begun can't be brought to its end: the connection is closed, so that nobody takes what came for all of it."""


async def _from(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for piece in rest:
            yield piece
    except DagmasterError as error:
        raise BrokenOffError(str(error)) from error
