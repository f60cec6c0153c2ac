"""Middleware for every request: it assigns a request id, checks the host name, and limits the size of the body.

It is plain ASGI, so that streams and large files pass through unchanged. Authentication is not supported yet, so
servers listen on loopback only. Web pages of other sites in a browser on this machine can still reach them by DNS
rebinding; the check of the `Host` header refuses those. A server extends the middleware by overriding `refusal`,
`enter` and `mark`.
"""

import re
import time
from collections.abc import Iterable
from typing import ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.errors import InvalidRequest
from dagmaster.listen import Endpoint, is_loopback
from dagmaster.observe import log
from dagmaster.web.problems import Problems

REQUEST_ID = "X-Request-ID"
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestMiddleware:
    endpoint: ClassVar[Endpoint]
    problems: ClassVar[Problems]
    hint_when_foreign: ClassVar[str] = "use localhost as the host name"
    hint_when_too_large: ClassVar[str | None] = None

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, own_hosts: Iterable[str], is_open_to_all: bool) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._own_hosts = {"localhost", *own_hosts}
        self._is_open_to_all = is_open_to_all
        self._log = log.get(self.endpoint.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _Exchange(self, scope, send, request_id)
        refusal = self.refusal(scope, headers)
        if refusal is not None:
            await self.problems.problem_of(refusal, scope["path"], request_id)(scope, receive, exchange.send)
            return
        self.enter(scope)
        await self._call_app(scope, self._limited(receive), exchange)

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        """The error for a request that is refused, or None."""
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            return self._too_large()
        host = headers.get("host", "")
        if not self._is_open_to_all and not self._is_own(_name_of(host)):
            return InvalidRequest(
                f"{self.endpoint.what} does not accept requests for this host name",
                code="request.foreign-host",
                hint=self.hint_when_foreign,
                host=host,
            )
        return None

    def enter(self, scope: Scope) -> None:
        """Change the scope of a request that was not refused."""

    def mark(self, scope: Scope, status: int, headers: MutableHeaders) -> None:
        """Change the headers of a response, including those of problems."""

    async def _call_app(self, scope: Scope, receive: Receive, exchange: "_Exchange") -> None:
        try:
            await self._app(scope, receive, exchange.send)
        except Exception as error:  # the last place that can still send a response
            self._log.error("a request failed", request_id=exchange.request_id, path=scope["path"], exc_info=error)
            if not exchange.status:
                await self.problems.bug(scope["path"], exchange.request_id)(scope, receive, exchange.send)
        finally:
            self._log.debug("request", **exchange.facts())

    def _is_own(self, name: str) -> bool:
        return name in self._own_hosts or is_loopback(name)

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes of the body as they arrive, because its Content-Length may be missing or wrong."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                # An HTTPException, because FastAPI passes it on unchanged while it reads a body.
                raise HTTPException(413, self._too_large().message)
            return message

        return counted

    def _too_large(self) -> InvalidRequest:
        return InvalidRequest(
            f"a request may have at most {self._max_body_bytes} bytes",
            code="request.too-large",
            hint=self.hint_when_too_large,
        )


class _Exchange:
    """One request and the status of its response."""

    def __init__(self, middleware: RequestMiddleware, scope: Scope, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self._middleware = middleware
        self._scope = scope
        self._send = send
        self._started_at = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            self._middleware.mark(self._scope, self.status, headers)
        await self._send(message)

    def facts(self) -> dict[str, object]:
        return {
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "seconds": round(time.monotonic() - self._started_at, 4),
            "request_id": self.request_id,
        }


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _request_id(headers: Headers) -> str:
    """The id that the client sent, if it is well-formed, or a new one."""
    sent = headers.get(REQUEST_ID, "")
    return sent if _VALID_ID.fullmatch(sent) else uuid4().hex[:16]
