"""A job's events as they happen, as server-sent events.

Every frame carries the event's number as its id, so that a browser's EventSource, or whoever sends `Last-Event-ID`, goes on
where it was cut off: no event is missed, none comes twice. The stream ends with the job. Asking again behind the last
event of a job that is over answers 204, which tells an EventSource to stop asking.

In between come frames of the type `progress`, without an id: how far the running attempts are, at most once a second. They are
not events: nothing is missed with them.
"""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from dagmaster.api import examples
from dagmaster.api.follower import News, Progress
from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.reads.jobs import EventEntry
from dagmaster.jobs.states import JOB_TERMINAL

router = APIRouter(prefix="/jobs", tags=["jobs"])

RECONNECT_MILLISECONDS = 1000
MEDIA_TYPE = "text/event-stream"
_FRAME = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "The event's number; send it back as Last-Event-ID. Progress has none"},
        "event": {"type": "string", "description": "The type of the event, or `progress`"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventEntry"},
        },
    },
}
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "/{job_id}/events/stream",
    operation_id="stream_events",
    summary="Follow a job's events live",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events until the job is over, progress in between; comments as signs of life",
            "content": {MEDIA_TYPE: {"itemSchema": _FRAME, "example": examples.STREAM}},
        },
        204: {"description": "The job is over and there is nothing behind this number"},
        **responses(404),
    },
)
async def stream_events(
    services: Services,
    job_id: JobId,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**53, description="The last event that was seen")] = None,
    after: Annotated[int, Query(ge=0, le=2**53, description="The same, for whoever can't set headers")] = 0,
) -> Response:
    cursor = after if last_event_id is None else last_event_id
    brief = await services.reads.brief(job_id)
    if brief.status in JOB_TERMINAL and cursor >= brief.last_sequence:
        return Response(status_code=204)
    services.follower.admit()
    events = services.follower.watch(job_id, brief, cursor, services.heartbeat_seconds)
    return StreamingResponse(_frames(events), media_type=MEDIA_TYPE, headers=_HEADERS)


async def _frames(news: AsyncIterator[News]) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode()
    async for told in news:
        yield frame(told)


def frame(news: News) -> bytes:
    match news:
        case Progress():
            nodes = [{"node_id": n.node_id, "attempt": n.attempt, "progress": n.progress} for n in news.nodes]
            return b"event: progress\ndata: %s\n\n" % orjson.dumps({"nodes": nodes})
        case None:
            return b": still here\n\n"
        case events:
            return b"".join(map(_event_frame, events))


def _event_frame(event: EventEntry) -> bytes:
    data = orjson.dumps(asdict(event), option=orjson.OPT_UTC_Z)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.event_type.encode(), data)
