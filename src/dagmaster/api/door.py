"""What every request passes before anything else: a request id, who may ask, how much may be sent.

Plain ASGI, so that streams pass through untouched. Nobody is asked who they are yet, so the API listens on loopback only;
what remains are web pages of others in a browser on this machine. They are told apart by the names they use: a foreign
`Host` (DNS rebinding) or a foreign `Origin` (forged requests) is refused.
"""

import re
import time
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster import log
from dagmaster.api import problems
from dagmaster.errors import InvalidRequest
from dagmaster.listen import is_loopback

REQUEST_ID = "X-Request-ID"
_GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_log = log.get("api")


class Door:
    def __init__(self, app: ASGIApp, *, max_body_bytes: int, own_host: str, is_open_to_all: bool) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._own_host = own_host
        self._is_open_to_all = is_open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        visit = _Visit(scope, send, request_id)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await problems.problem_of(refusal, scope["path"], request_id)(scope, receive, visit.send)
            return
        await self._pass(scope, self._bounded(receive), visit)

    async def _pass(self, scope: Scope, receive: Receive, visit: "_Visit") -> None:
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:  # the last place that can still give an answer
            _log.error("a request failed", request_id=visit.request_id, path=scope["path"], exc_info=error)
            if not visit.status:
                await problems.bug(scope["path"], visit.request_id)(scope, receive, visit.send)
        finally:
            visit.tell()

    def _refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            return _too_large(self._max_body_bytes)
        host = headers.get("host", "")
        if not self._is_open_to_all and not self._is_own(_name_of(f"//{host}")):
            return InvalidRequest(
                "the API of this machine does not answer to this host name", code="request.foreign-host",
                hint="ask for localhost", host=host,
            )  # fmt: skip
        origin = headers.get("origin")
        is_reading = scope["method"] in {"GET", "HEAD", "OPTIONS"}
        if origin is not None and not is_reading and _place_of(origin) != host:
            return InvalidRequest("requests of other web pages change nothing here", code="request.foreign-origin")
        return None

    def _is_own(self, name: str) -> bool:
        return name in {"localhost", self._own_host} or is_loopback(name)

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies without a length, or with a wrong one, are counted as they come."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                # An HTTPException, which is what passes through the reading of bodies as it is.
                raise HTTPException(413, _too_large(self._max_body_bytes).message)
            return message

        return counted


class _Visit:
    """One request and how it was answered."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self._scope = scope
        self._send = send
        self._begun = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID] = self.request_id
        await self._send(message)

    def tell(self) -> None:
        _log.debug(
            "request", method=self._scope["method"], path=self._scope["path"], status=self.status,
            seconds=round(time.monotonic() - self._begun, 4), request_id=self.request_id,
        )  # fmt: skip


def _place_of(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _GIVEN_ID.fullmatch(given) else uuid4().hex[:16]


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"a request may have {limit} bytes", code="request.too-large", hint="large data goes to storage, by reference"
    )
