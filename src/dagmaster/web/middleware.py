"""What every request passes before anything else: a request id, who may ask, how much may be sent.

Plain ASGI, so that streams and large files pass through untouched. Nobody is asked who they are yet, so servers listen
on loopback only; what remains are web pages of others in a browser on this machine. They are told by the `Host` they
use (DNS rebinding). A server that needs more of its door adds it to `refusal`, `enter` and `mark`.
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
_GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestMiddleware:
    endpoint: ClassVar[Endpoint]
    problems: ClassVar[Problems]
    hint_when_foreign: ClassVar[str] = "ask for localhost"
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
        visit = _Visit(self, scope, send, request_id)
        refusal = self.refusal(scope, headers)
        if refusal is not None:
            await self.problems.problem_of(refusal, scope["path"], request_id)(scope, receive, visit.send)
            return
        self.enter(scope)
        await self._pass(scope, self._bounded(receive), visit)

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        """Why a request is not let in, if it isn't."""
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            return self._too_large()
        host = headers.get("host", "")
        if not self._is_open_to_all and not self._is_own(_name_of(host)):
            return InvalidRequest(
                f"{self.endpoint.what} of this machine does not answer to this host name", code="request.foreign-host",
                hint=self.hint_when_foreign, host=host,
            )  # fmt: skip
        return None

    def enter(self, scope: Scope) -> None:
        """Change what is asked, once it is let in."""

    def mark(self, scope: Scope, status: int, headers: MutableHeaders) -> None:
        """Change the headers of an answer, be it a problem or not."""

    async def _pass(self, scope: Scope, receive: Receive, visit: "_Visit") -> None:
        try:
            await self._app(scope, receive, visit.send)
        except Exception as error:  # the last place that can still give an answer
            self._log.error("a request failed", request_id=visit.request_id, path=scope["path"], exc_info=error)
            if not visit.status:
                await self.problems.bug(scope["path"], visit.request_id)(scope, receive, visit.send)
        finally:
            self._log.debug("request", **visit.facts())

    def _is_own(self, name: str) -> bool:
        return name in self._own_hosts or is_loopback(name)

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies without a length, or with a wrong one, are counted as they come."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                # An HTTPException, which is what passes through the reading of bodies as it is.
                raise HTTPException(413, self._too_large().message)
            return message

        return counted

    def _too_large(self) -> InvalidRequest:
        return InvalidRequest(
            f"a request may have {self._max_body_bytes} bytes", code="request.too-large", hint=self.hint_when_too_large
        )


class _Visit:
    """One request and how it was answered."""

    def __init__(self, door: RequestMiddleware, scope: Scope, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self._door = door
        self._scope = scope
        self._send = send
        self._begun = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            self._door.mark(self._scope, self.status, headers)
        await self._send(message)

    def facts(self) -> dict[str, object]:
        return {
            "method": self._scope["method"], "path": self._scope["path"], "status": self.status,
            "seconds": round(time.monotonic() - self._begun, 4), "request_id": self.request_id,
        }  # fmt: skip


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _GIVEN_ID.fullmatch(given) else uuid4().hex[:16]
