"""Middleware for every request: it assigns a request id, checks the host name, authenticates the caller, and limits the
size of the body.

It is plain ASGI, so that streams and large files pass through unchanged. Without authentication, servers listen on
loopback only. Web pages of other sites in a browser on this machine can still send requests: by DNS rebinding, which
the check of the `Host` header refuses, or directly, which the check of `Origin` and `Sec-Fetch-Site` refuses. With
authentication a request has no more rights than the credentials that its sender knows, so neither is checked.

A server extends the middleware by overriding methods such as `refusal`, `change_scope`, `change_headers` and
`needs_caller`.
"""

import re
import time
from collections.abc import Iterable
from typing import ClassVar
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.listen import Endpoint, is_loopback
from dagmaster.observe import log, traces
from dagmaster.web.authentication import CALLER, IDENTITY, Authentication
from dagmaster.web.metrics import RequestMetrics, route_of
from dagmaster.web.origins import is_of_other_site, name_of
from dagmaster.web.problems import Problems
from dagmaster.web.uploads import is_chunk, mark_version

REQUEST_ID = "X-Request-ID"
_UNTRACED = frozenset({"/livez", "/readyz", "/metrics"})
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestMiddleware:
    endpoint: ClassVar[Endpoint]
    problems: ClassVar[Problems]
    hint_when_foreign: ClassVar[str] = "use localhost as the host name"
    hint_when_too_large: ClassVar[str | None] = None
    uploads_below: ClassVar[str | None] = None  # the path of uploads, whose requests have a limit of their own
    untraced_below: ClassVar[str | None] = None

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        max_chunk_bytes: int | None = None,
        own_hosts: Iterable[str],
        is_open_to_all: bool,
        authentication: Authentication,
        refuses_other_sites: bool = True,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics or RequestMetrics(self.endpoint.name)
        self._max_body_bytes = max_body_bytes
        self._max_chunk_bytes = max_chunk_bytes or max_body_bytes
        self._own_hosts = {"localhost", *own_hosts}
        self._is_open_to_all = is_open_to_all
        self._authentication = authentication
        self._refuses_other_sites = refuses_other_sites
        self._log = log.get(self.endpoint.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _HttpExchange(self, scope, send, request_id)
        self._metrics.begin()
        try:
            if traces.is_on() and self._is_traced(scope["path"]):
                await self._traced(scope, receive, headers, exchange)
            else:
                await self._handle(scope, receive, headers, exchange)
        finally:
            self._metrics.end(scope["method"], exchange.status, exchange.seconds, route_of(scope))

    def _is_traced(self, path: str) -> bool:
        """Probes and polls of processes are not traced: they would be most of the traces."""
        return path not in _UNTRACED and (self.untraced_below is None or not path.startswith(self.untraced_below))

    async def _traced(self, scope: Scope, receive: Receive, headers: Headers, exchange: "_HttpExchange") -> None:
        """Handle the request in the trace of the client, if the request names one."""
        parent = traces.valid_traceparent(headers.get(traces.HEADER))
        facts = {"http.request.method": scope["method"], "request_id": exchange.request_id}
        with traces.span(scope["method"], parent=parent, kind="server", **facts) as span:
            await self._handle(scope, receive, headers, exchange)
            span.set(**{"http.route": route_of(scope)})
            span.set(**{"http.response.status_code": int(exchange.status)})
            if exchange.status >= 500:
                span.fail(str(exchange.status))

    async def _handle(self, scope: Scope, receive: Receive, headers: Headers, exchange: "_HttpExchange") -> None:
        try:
            refusal = self.refusal(scope, headers) or await self._authenticate(scope, headers)
            if refusal is not None:
                response = self.problems.problem_of(refusal, scope["path"], exchange.request_id)
                await response(scope, receive, exchange.send)
                return
            self.change_scope(scope)
            await self._app(scope, self._limited(receive, self._max_bytes(scope)), exchange.send)
        except Exception as error:  # the last place that can still send a response
            self._log.error("a request failed", request_id=exchange.request_id, path=scope["path"], exc_info=error)
            if not exchange.status:
                await self.problems.bug(scope["path"], exchange.request_id)(scope, receive, exchange.send)
        finally:
            self._log.debug("request", **exchange.facts())

    async def _authenticate(self, scope: Scope, headers: Headers) -> DagmasterError | None:
        """Store the caller in the scope. Credentials that are not valid are refused on every route."""
        if not self.needs_caller(scope["path"]):
            return None
        try:
            identity = await self._authentication.identify(scope, headers)
        except DagmasterError as error:
            return error
        scope["state"] |= {CALLER: identity.caller, IDENTITY: identity}
        return None

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        """The error for a request that is refused, or None."""
        length = headers.get("content-length", "")
        max_bytes = self._max_bytes(scope)
        if length.isascii() and length.isdigit() and int(length) > max_bytes:
            return self._too_large(max_bytes)
        host = headers.get("host", "")
        if not self._is_open_to_all and not self._is_own(name_of(host)):
            return InvalidRequest(
                f"{self.endpoint.title} does not accept requests for this host name",
                code="request.foreign-host",
                hint=self.hint_when_foreign,
                host=host,
            )
        if self._refuses_other_sites and is_of_other_site(
            scope, headers, with_images=self.allows_foreign_images(scope["path"])
        ):
            return InvalidRequest(
                "requests from pages of other web sites are refused, because authentication is disabled",
                code="request.foreign-origin",
            )
        return None

    def allows_foreign_images(self, _path: str) -> bool:
        """Whether pages of other sites may show images of a path, if authentication is disabled."""
        return False

    def needs_caller(self, _path: str) -> bool:
        """Whether requests for a path are authenticated. Others are handled even while the database is down."""
        return True

    def change_scope(self, scope: Scope) -> None:
        """Change the scope of a request that was not refused."""

    def change_headers(self, scope: Scope, status: int, headers: MutableHeaders) -> None:
        """Change the headers of a response, including those of problems."""
        if self.uploads_below is not None:
            mark_version(scope, headers, self.uploads_below)

    def _is_own(self, name: str) -> bool:
        return name in self._own_hosts or is_loopback(name)

    def _max_bytes(self, scope: Scope) -> int:
        """How many bytes the body of a request may have."""
        is_upload = self.uploads_below is not None and is_chunk(scope, self.uploads_below)
        return self._max_chunk_bytes if is_upload else self._max_body_bytes

    def _limited(self, receive: Receive, max_bytes: int) -> Receive:
        """Count the bytes of the body as they arrive, because its Content-Length may be missing or wrong."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_bytes:
                # An HTTPException, because FastAPI passes it on unchanged while it reads a body.
                raise HTTPException(413, self._too_large(max_bytes).message)
            return message

        return counted

    def _too_large(self, max_bytes: int) -> InvalidRequest:
        is_upload = max_bytes != self._max_body_bytes
        return InvalidRequest(
            f"a request may have at most {max_bytes} bytes",
            code="request.too-large",
            hint="send the file in smaller parts" if is_upload else self.hint_when_too_large,
        )


class _HttpExchange:
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
            self._middleware.change_headers(self._scope, self.status, headers)
        await self._send(message)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    def facts(self) -> dict[str, object]:
        return {
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "seconds": round(self.seconds, 4),
            "request_id": self.request_id,
        }


def _request_id(headers: Headers) -> str:
    """The id that the client sent, if it is well-formed, or a new one."""
    sent = headers.get(REQUEST_ID, "")
    return sent if _VALID_ID.fullmatch(sent) else uuid4().hex[:16]
