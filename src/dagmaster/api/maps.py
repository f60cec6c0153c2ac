"""Maps at the address of the API: requests for paths of the map server are forwarded to it.

    browser ──▶ /tiles /stac /files … of port 8000 ──▶ map server, with the same Host header and credentials
                                                       └── response, passed on as it arrives, in pieces

So pages, the API and maps have one origin. The map server authenticates the caller and builds its links from the Host
header, which is that of the browser. Responses are not stored on the way: a file of any size needs little memory, and
if the client disconnects, the request to the map server ends. All requests of these paths only read, so a request whose
connection fails is sent to the next address.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx2
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dagmaster.access.permissions import Permission
from dagmaster.cancellation import cancel_and_wait
from dagmaster.dataset_urls import FILES, MAP_PATHS
from dagmaster.errors import InvalidRequest, NotFound, Unavailable
from dagmaster.observe import log, traces
from dagmaster.web.backends import CONNECT_SECONDS, Backend, Backends
from dagmaster.web.metrics import name_route
from dagmaster.web.middleware import REQUEST_ID
from dagmaster.web.problems import request_id_of

METHODS: Final = ("GET", "HEAD", "POST", "OPTIONS")
# The timeout until the response begins, and between its parts. A map server that was just started needs some seconds.
RESPONSE_SECONDS: Final = 60.0
# The limit for the bodies of searches. The map server does not accept larger ones either.
MAX_BODY_BYTES: Final = 1_048_576
_KEPT_OPEN_SECONDS: Final = 20.0  # less than the map server's keep-alive: it must not close a connection in use
# Hop-by-hop headers (RFC 9110): they belong to one connection and are not forwarded.
_OF_CONNECTION: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_FORWARDED: Final = (b"forwarded", b"x-forwarded-", b"x-real-ip")
_TIMEOUT: Final = {"connect": CONNECT_SECONDS, "read": RESPONSE_SECONDS, "write": 30.0, "pool": 5.0}
_log = log.get("api")


@dataclass(slots=True)
class Slots:
    """At most `at_once` requests are forwarded; `max_waiting` more wait for a slot, for a limited time."""

    at_once: int
    max_waiting: int
    seconds: float
    _free: asyncio.Semaphore = field(init=False)
    _waiting: int = 0

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.at_once)

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        if self._free.locked() and self._waiting >= self.max_waiting:
            raise _busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(self.seconds):
                await self._free.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()


class MapForwarder:
    """An ASGI app. Use `running` as a context: it checks the addresses, if there are several."""

    permission = Permission.ANYONE  # the map server checks permissions

    def __init__(self, urls: Sequence[str]) -> None:
        # Files have slots of their own: a few slow downloads must not delay tiles.
        self._slots = Slots(at_once=64, max_waiting=512, seconds=20.0)
        self._file_slots = Slots(at_once=32, max_waiting=64, seconds=20.0)
        max_connections = self._slots.at_once + self._file_slots.at_once
        self._transport = httpx2.AsyncHTTPTransport(
            trust_env=False,
            limits=httpx2.Limits(
                max_connections=max_connections,
                max_keepalive_connections=max_connections,
                keepalive_expiry=_KEPT_OPEN_SECONDS,
            ),
        )
        self._checks = httpx2.AsyncClient(trust_env=False)
        self._backends = Backends(urls, self._checks, role="map server", checks_single=False)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            contextlib.aclosing(self._transport),
            contextlib.aclosing(self._checks),
            self._backends.checked(),
        ):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._backends:
            raise NotFound("no map server is configured", code="maps.not-configured", hint="set SERVING_URLS")
        name_route(scope, next((path for path in MAP_PATHS if scope["path"].startswith(path)), "maps"))
        body = await _body(receive)
        slots = self._file_slots if scope["path"].startswith(f"{FILES}/") else self._slots
        exchange = asyncio.create_task(self._exchange(slots, scope, body, send))
        disconnected = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait((exchange, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_complete = exchange.done()
            await cancel_and_wait(exchange, disconnected)
        if is_complete:
            exchange.result()

    async def _exchange(self, slots: Slots, scope: Scope, body: bytes, send: Send) -> None:
        async with slots.acquire():
            response = await self._response(scope, body)
            try:
                await _pass_on(response, send)
            finally:
                await response.aclose()

    async def _response(self, scope: Scope, body: bytes) -> httpx2.Response:
        """The response of a map server, as soon as its headers have arrived."""
        for backend in self._backends.candidates():
            try:
                response = await self._transport.handle_async_request(_request(backend, scope, body))
                backend.is_healthy = True
                return response
            except httpx2.ReadTimeout:
                raise Unavailable(
                    f"the map server did not respond within {RESPONSE_SECONDS:g} s",
                    code="maps.no-response",
                    hint="try again later",
                ) from None
            except httpx2.TransportError as error:
                backend.note_failure(error)
                _log.warning("a map server does not respond", url=backend.url, error=backend.error)
        raise Unavailable(
            "no map server can be reached",
            code="maps.unavailable",
            hint="try again in a few seconds; jobs and the API work without a map server",
        )


def map_routes(forwarder: MapForwarder) -> list[Route]:
    paths = (path for prefix in MAP_PATHS for path in (prefix, f"{prefix}/{{path:path}}"))
    return [Route(path, forwarder, methods=METHODS, include_in_schema=False) for path in paths]


def _request(backend: Backend, scope: Scope, body: bytes) -> httpx2.Request:
    request_id = request_id_of(Request(scope)) or ""
    headers = [
        (name, value) for name, value in _end_to_end_headers(scope["headers"]) if not name.startswith(_FORWARDED)
    ]
    headers = [(name, value) for name, value in headers if name not in (b"content-length", REQUEST_ID.lower().encode())]
    headers += [
        (b"x-forwarded-for", (scope.get("client") or ("",))[0].encode()),
        (b"x-forwarded-proto", scope["scheme"].encode()),
        (REQUEST_ID.lower().encode(), request_id.encode()),
    ]
    if traced := traces.headers():
        headers = [(name, value) for name, value in headers if name != traces.HEADER.encode()]
        headers += [(name.encode(), value.encode()) for name, value in traced.items()]
    # The path is forwarded byte for byte: a URL parser would resolve `..`, which could lead to other paths.
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    target: bytes = httpx2.URL(backend.url).raw_path.rstrip(b"/") + scope["raw_path"] + query
    return httpx2.Request(
        scope["method"],
        backend.url,
        headers=headers,
        content=body,
        extensions={"target": target, "timeout": _TIMEOUT},
    )


async def _pass_on(response: httpx2.Response, send: Send) -> None:
    headers = [pair for pair in _end_to_end_headers(response.headers.raw) if pair[0] != b"date"]  # uvicorn adds its own
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        async for piece in response.stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except httpx2.TransportError as error:
        # The status was sent, so no problem can be sent. The server closes the connection, so that the client notices.
        _log.warning("a map server ended a response too early", error=f"{type(error).__name__}: {error}")
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _end_to_end_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers without hop-by-hop headers, which are those of `_OF_CONNECTION` and those that `Connection` names."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in lower if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in lower if name not in _OF_CONNECTION and name not in named]


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(
                f"the body of a request for maps may have at most {MAX_BODY_BYTES} bytes", code="request.too-large"
            )
        if not message.get("more_body"):
            return bytes(body)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _busy() -> Unavailable:
    return Unavailable("too many requests for maps are in progress", code="maps.too-busy", hint="try again")
