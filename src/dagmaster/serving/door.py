"""What every request passes before anything else: a request id, who may ask, how much may be sent, and our own address.

Plain ASGI, so that large files pass through untouched. Nobody is asked who they are yet, so maps are served on loopback only;
what remains are web pages of others in a browser on this machine, which are told by the `Host` they use (DNS rebinding).

Links are made from the address that was asked for. Where others reach this server by another one, PUBLIC_URL says so, and no
header of a request does.
"""

import re
import time
from urllib.parse import SplitResult, urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster import log
from dagmaster.errors import InvalidRequest
from dagmaster.listen import is_loopback
from dagmaster.serving import problems
from dagmaster.serving.caching import headers_of

REQUEST_ID = "X-Request-ID"
# A search may carry a polygon of many corners.
MAX_BODY_BYTES = 1_048_576
_GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_FORWARDED = (b"forwarded", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-prefix")
_log = log.get("serving")


class Door:
    def __init__(self, app: ASGIApp, *, own_host: str, public_url: str | None, is_open_to_all: bool) -> None:
        self._app = app
        self._own_host = own_host
        self._public = urlsplit(public_url) if public_url else None
        self._is_open_to_all = is_open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        visit = _Visit(scope, send, request_id)
        refusal = self._refusal(headers)
        if refusal is not None:
            await problems.problem_of(refusal, scope["path"], request_id)(scope, receive, visit.send)
            return
        _take_address(scope, self._public)
        await self._pass(scope, _bounded(receive), visit)

    async def _pass(self, scope: Scope, receive: Receive, visit: "_Visit") -> None:
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:  # the last place that can still give an answer
            _log.error("a request failed", request_id=visit.request_id, path=scope["path"], exc_info=error)
            if not visit.status:
                await problems.bug(scope["path"], visit.request_id)(scope, receive, visit.send)
        finally:
            visit.tell()

    def _refusal(self, headers: Headers) -> InvalidRequest | None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            return InvalidRequest(f"a request may have {MAX_BODY_BYTES} bytes", code="request.too-large")
        if not self._is_open_to_all and not self._is_own(_name_of(headers.get("host", ""))):
            return InvalidRequest(
                "the map server of this machine does not answer to this host name", code="request.foreign-host",
                hint="ask for localhost, or set PUBLIC_URL",
            )  # fmt: skip
        return None

    def _is_own(self, name: str) -> bool:
        public = self._public.hostname if self._public else None
        return name in {"localhost", self._own_host, public} or is_loopback(name)


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
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            # What is served was made by others: a browser shall take it for what it is said to be.
            headers["X-Content-Type-Options"] = "nosniff"
            if self.status in (200, 304):
                headers.update(headers_of(self._scope))
        await self._send(message)

    def tell(self) -> None:
        _log.debug(
            "request", method=self._scope["method"], path=self._scope["path"], status=self.status,
            seconds=round(time.monotonic() - self._begun, 4), request_id=self.request_id,
        )  # fmt: skip


def _take_address(scope: Scope, public: SplitResult | None) -> None:
    """Let links begin with our public address, if there is one; what a request says of proxies does not count."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _FORWARDED]
    if public is not None:
        scope["scheme"] = public.scheme
        scope["root_path"] = public.path
        headers = [(name, value) for name, value in headers if name != b"host"]
        headers.append((b"host", public.netloc.encode()))
    scope["headers"] = headers


def _bounded(receive: Receive) -> Receive:
    """Bodies without a length, or with a wrong one, are counted as they come."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(413)
        return message

    return counted


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _GIVEN_ID.fullmatch(given) else uuid4().hex[:16]
