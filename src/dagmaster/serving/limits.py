"""Limits how many requests for pixels are served at once, in all and for each client.

Previews, crops and statistics read and encode millions of pixels; a tile needs few. For one client, at most as many
large requests as there are cores are served at once, and one more for other clients. Further requests wait in a queue
of limited length and for a limited time; beyond that they are refused, with a `Retry-After` header.
"""

import asyncio
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.access.caller import ANONYMOUS, RESERVED_NAMES, Caller
from dagmaster.dataset_urls import SEARCHES, TILES
from dagmaster.errors import DagmasterError, NotAllowed, NotFound, Unavailable
from dagmaster.serving.problems import PROBLEMS
from dagmaster.web.authentication import CALLER

_CORES = max(2, os.cpu_count() or 1)
_SMALL_PATHS = re.compile(r"tiles(?:/.*)?|(?:.*/)?tilejson\.json|map|.*/map\.html|info(?:\.geojson)?|point/.*|.*\.xml")
_PIXEL_PATHS = re.compile(rf"(?:{TILES}|{SEARCHES})/[^/]+/(?P<path>.+)")
# The patterns of routes with boxes and sizes backtrack: a path with hundreds of separators would take minutes.
_MAX_COMMAS, _MAX_PATH_CHARACTERS = 3, 500


@dataclass(slots=True)
class WorkLimit:
    """At most `running` requests run at once, `per_client` of one client. At most `waiting` more wait for a slot,
    `waiting_per_client` of one client."""

    running: int
    per_client: int
    waiting: int
    waiting_per_client: int
    max_seconds: float
    _running: Counter[str] = field(default_factory=Counter)
    _queue: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)

    async def acquire(self, client: str) -> None:
        """Wait for a slot of this client; raise if too many others wait, or if it takes too long."""
        if not self._queue and self._has_slot(client):
            self._running[client] += 1
            return
        self._require_queue_space(client)
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append((client, admitted))
        self._admit()
        try:
            async with asyncio.timeout(self.max_seconds):
                await admitted
        except (TimeoutError, asyncio.CancelledError) as ended:
            if admitted.cancelled():
                self._queue.remove((client, admitted))
            else:  # it was admitted at the same moment
                self.release(client)
            if isinstance(ended, TimeoutError):
                raise _busy() from None
            raise

    def release(self, client: str) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._admit()

    def _admit(self) -> None:
        """Give free slots to the requests that have waited longest and whose client is below its limit."""
        for client, admitted in list(self._queue):
            if not admitted.done() and self._has_slot(client):
                self._queue.remove((client, admitted))
                self._running[client] += 1
                admitted.set_result(None)

    def _has_slot(self, client: str) -> bool:
        return self._running.total() < self.running and self._running[client] < self.per_client

    def _require_queue_space(self, client: str) -> None:
        if sum(waiting == client for waiting, _ in self._queue) >= self.waiting_per_client:
            raise NotAllowed(
                "too many requests of this client at once",
                code="serving.too-many-requests",
                hint="wait for the responses before sending more, or request smaller images",
            )
        if len(self._queue) >= self.waiting:
            raise _busy()


def client_of(scope: Scope) -> str:
    """The client that a request is counted for: the caller, or without credentials the IP address. Clients behind the
    same proxy have the same address."""
    caller: Caller = scope.get("state", {}).get(CALLER, ANONYMOUS)
    address: str = (scope.get("client") or ("", 0))[0]
    return address if caller.name in RESERVED_NAMES else f"caller {caller.name}"


def _busy() -> Unavailable:
    return Unavailable(
        "the server is busy with other requests", code="serving.busy", hint="repeat the request after Retry-After"
    )


def _require_simple_path(path: str) -> None:
    """`path` is what follows the dataset or the search, whose ids may be long."""
    if path.count(",") > _MAX_COMMAS or len(path) > _MAX_PATH_CHARACTERS:
        raise NotFound("no route has such a path", code="route.not-found", hint="/openapi.json lists all paths")


def _pixel_path(scope: Scope) -> str | None:
    """The part of a path after the dataset or the search; None if the request is not for pixels."""
    if scope["type"] != "http":
        return None
    match = _PIXEL_PATHS.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
    return match["path"] if match else None


class PixelLimits:
    """ASGI middleware: requests for pixels hold a slot until their response begins.

    A slot is not held until the response ends: a client that reads slowly would keep it after the work is done.
    """

    def __init__(self, app: ASGIApp, large: WorkLimit | None = None, small: WorkLimit | None = None) -> None:
        self._app = app
        self._large = large or WorkLimit(_CORES + 1, _CORES, 64, 16, 30.0)
        self._small = small or WorkLimit(128, 96, 512, 256, 20.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._limit_of(scope)
        if limit is None:
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
        try:
            _require_simple_path(_pixel_path(scope) or "")
            await limit.acquire(client)
        except DagmasterError as error:
            await PROBLEMS.problem_of(error, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        slots = [client]

        async def send_without_slot(message: Message) -> None:
            if slots:
                limit.release(slots.pop())
            await send(message)

        try:
            await self._app(scope, receive, send_without_slot)
        finally:
            if slots:
                limit.release(slots.pop())

    def _limit_of(self, scope: Scope) -> WorkLimit | None:
        path = _pixel_path(scope)
        if path is None:
            return None
        query = unquote_to_bytes(scope.get("query_string", b""))
        is_small = _SMALL_PATHS.fullmatch(path) and b"tilesize=1024" not in query
        return self._small if is_small else self._large
