"""The changes of the whole platform as they happen, as server-sent events: one connection for each page of a browser.

The id of a frame is a cursor. An EventSource, or another client that sends `Last-Event-ID`, gets the changes since
then: a change may be repeated, none is missed. If there are too many, or the cursor is too old, it gets a `resync`.

A stream ends after some minutes and the client reconnects, so that revoked credentials are not used for longer.
"""

import time
from collections.abc import AsyncIterator, Collection
from typing import Annotated, get_args

import orjson
from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import Response, StreamingResponse

from dagmaster.access.caller import Caller
from dagmaster.access.decision import may_preview, own_platform_of
from dagmaster.access.permissions import Permission, may
from dagmaster.api import examples
from dagmaster.api.change_follower import Batch, cursor_of, moment_of
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.api.stream import MEDIA_TYPE, RECONNECT_MILLISECONDS, STREAM_HEADERS
from dagmaster.api.visibility import visible_assets
from dagmaster.client.models.changes import AssetChange, ChangeKind
from dagmaster.database.reads.changes import ChangedAsset
from dagmaster.web.authentication import needs, require
from dagmaster.web.pages import CommaSeparated

router = APIRouter(tags=["operations"])

MAX_SECONDS = 900.0
PERMISSIONS: dict[ChangeKind, Permission] = {
    "jobs": Permission.JOBS_READ,
    "assets": Permission.ASSETS_READ,
    "queues": Permission.PLATFORM_READ,
    "instances": Permission.PLATFORM_READ,
}
_FRAME = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "A cursor, for Last-Event-ID; on the last frame of a batch"},
        "event": {"type": "string", "enum": ["hello", "resync", *get_args(ChangeKind)]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/ChangeBatch"},
        },
    },
}


@router.get(
    "/stream",
    operation_id="stream_changes",
    summary="Follow the changes of the platform",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events; comments keep the connection open",
            "content": {MEDIA_TYPE: {"itemSchema": _FRAME, "example": examples.CHANGES}},
        },
        **responses(),
    },
)
async def stream_changes(
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.ASSETS_READ))],
    kind: Annotated[
        CommaSeparated[ChangeKind] | None,
        Query(description="Only changes of these kinds; by default all that the caller may see"),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=32, description="The id of the last frame that the client received")
    ] = None,
    after: Annotated[
        str | None, Query(max_length=32, description="Like Last-Event-ID, for clients that cannot set headers")
    ] = None,
) -> Response:
    """Frames of the types `jobs` (`{jobs: [JobChange]}`) and `assets` (`{assets: [AssetChange]}`) contain the current
    state of changed jobs and assets; they are sent at most twice a second. `queues` and `instances` are hints that
    queues or instances may have changed. `hello` is the first frame: when you have received it, load the
    data that you display. `resync` means that changes were left out: reload the data."""
    kinds = kinds_of(caller, kind)
    cursor = last_event_id or after or None
    since = moment_of(cursor) if cursor else None
    services.changes.admit()
    now = await services.changes.now()
    batches = services.changes.watch(since, services.heartbeat_seconds)
    hello = _event("hello", orjson.dumps({"kinds": kinds, "now": now}), None if cursor else cursor_of(now))
    return StreamingResponse(_frames(batches, hello, caller, kinds), media_type=MEDIA_TYPE, headers=STREAM_HEADERS)


def kinds_of(caller: Caller, requested: Collection[ChangeKind] | None) -> list[ChangeKind]:
    """The kinds that a caller requests, or all that it may see."""
    for kind in requested or ():
        require(caller, PERMISSIONS[kind])
    return [
        kind
        for kind, permission in PERMISSIONS.items()
        if (kind in requested if requested else may(caller, permission))
    ]


async def _frames(
    batches: AsyncIterator[Batch], hello: bytes, caller: Caller, kinds: list[ChangeKind]
) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode() + hello
    end = time.monotonic() + MAX_SECONDS
    async for batch in batches:
        frame = frame_of(batch, caller, kinds)
        if frame:
            yield frame
        if time.monotonic() > end:
            return


def frame_of(batch: Batch, caller: Caller, kinds: Collection[ChangeKind]) -> bytes:
    """The part of a batch that a caller may see, which may be empty. Only the last event has an id: a client that is
    disconnected before the last event receives the whole batch again."""
    events: list[tuple[str, bytes]] = []
    if batch.jobs and "jobs" in kinds:
        events.append(("jobs", batch.jobs_json))
    if "assets" in kinds and (assets := _visible(batch.assets, caller)):
        dumped = [asset.model_dump() for asset in assets]
        events.append(("assets", orjson.dumps({"assets": dumped}, option=orjson.OPT_UTC_Z)))
    if batch.are_queues_changed and "queues" in kinds:
        events.append(("queues", b"{}"))
    if batch.are_instances_changed and "instances" in kinds:
        events.append(("instances", b"{}"))
    if batch.resync:
        events.append(("resync", orjson.dumps({"reason": batch.resync})))
    cursor = cursor_of(batch.until)
    if not events:
        return b": keep-alive\nid: %s\n\n" % cursor.encode() if batch.is_empty else b""
    *first, (name, data) = events
    return b"".join(_event(*event) for event in first) + _event(name, data, cursor)


def _event(name: str, data: bytes, cursor: str | None = None) -> bytes:
    number = b"id: %s\n" % cursor.encode() if cursor else b""
    return b"%sevent: %s\ndata: %s\n\n" % (number, name.encode(), data)


def _visible(assets: Collection[ChangedAsset], caller: Caller) -> list[AssetChange]:
    """The changes of assets that a caller may see. For published assets of other platforms, it only learns that they
    have changed."""
    if may_preview(caller):
        return [asset.change for asset in assets]
    visible = visible_assets(caller)
    own_platform = own_platform_of(caller)
    changes: list[AssetChange] = []
    for asset in assets:
        if own_platform is not None and asset.change.platform_id == own_platform:
            changes.append(asset.change)
        elif visible is not None and asset.is_published and asset.clearance in visible.clearances:
            changes.append(
                asset.change.model_copy(update={"action": "changed", "version_ordinal": None, "revision": None})
            )
    return changes
