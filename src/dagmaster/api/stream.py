"""The events of a job as they happen, as server-sent events.

The id of a frame is the sequence number of its event. An EventSource, or another client that sends `Last-Event-ID`,
continues after the last event it received: none is missed and none is repeated. The stream ends with the job. A request
after the last event of a job that has ended gets a 204 response, which stops an EventSource.

Frames of the type `progress` have no id. They contain the progress of running attempts, at most once per second.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from dagmaster.access.permissions import Permission
from dagmaster.api import examples
from dagmaster.api.event_follower import JobProgress, WatchedUpdate
from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.jobs import EventEntry
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.web.authentication import requires

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[requires(Permission.JOBS_READ)])

RECONNECT_MILLISECONDS = 1000
MEDIA_TYPE = "text/event-stream"
_FRAME = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {
            "type": "string",
            "description": "The sequence number of the event, for Last-Event-ID. `progress` frames have none",
        },
        "event": {"type": "string", "description": "The type of the event, or `progress`"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventEntry"},
        },
    },
}
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "/{job_id}/events/stream",
    operation_id="stream_events",
    summary="Follow the events of a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events and progress until the job has ended; comments keep the connection open",
            "content": {MEDIA_TYPE: {"itemSchema": _FRAME, "example": examples.STREAM}},
        },
        204: {"description": "The job has ended, and it has no events after this number"},
        **responses(404),
    },
)
async def stream_events(
    services: Services,
    job_id: JobId,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=2**53, description="The sequence number of the last event that was received")
    ] = None,
    after: Annotated[
        int, Query(ge=0, le=2**53, description="Like Last-Event-ID, for clients that cannot set headers")
    ] = 0,
) -> Response:
    cursor = after if last_event_id is None else last_event_id
    brief = await services.reads.brief(job_id)
    if brief.status in JOB_TERMINAL and cursor >= brief.last_sequence:
        return Response(status_code=204)
    services.events.admit()
    updates = services.events.watch(job_id, brief, cursor, services.heartbeat_seconds)
    return StreamingResponse(_frames(updates), media_type=MEDIA_TYPE, headers=STREAM_HEADERS)


async def _frames(updates: AsyncIterator[WatchedUpdate]) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode()
    async for update in updates:
        yield frame(update)


def frame(update: WatchedUpdate) -> bytes:
    match update:
        case JobProgress():
            nodes = [{"node_id": n.node_id, "attempt": n.attempt, "progress": n.progress} for n in update.nodes]
            return b"event: progress\ndata: %s\n\n" % orjson.dumps({"nodes": nodes})
        case None:
            return b": keep-alive\n\n"
        case events:
            return b"".join(map(_event_frame, events))


def _event_frame(event: EventEntry) -> bytes:
    data = orjson.dumps(dict(event), option=orjson.OPT_UTC_Z)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.event_type.encode(), data)
