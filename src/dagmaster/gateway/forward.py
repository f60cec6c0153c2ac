"""Forward requests to a healthy orchestrator, with the credentials of the caller.

    a request ──▶ the next healthy address ──▶ its response
                  └── no connection ──▶ the next address; none left, or all hang: 503
                  └── no response in time ──▶ 504, or the next address if the request is safe to repeat

The orchestrator verifies the caller again. The gateway adds no rights.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import orjson
from starlette.requests import Request
from starlette.responses import Response

from dagmaster import __version__
from dagmaster.client.models.gateway import OrchestratorState
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.observe import traces
from dagmaster.web.backends import CONNECT_SECONDS, Backend, Backends
from dagmaster.web.problems import request_id_of

RESPONSE_SECONDS: Final = 30.0
MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
BODY_SECONDS: Final = 60.0  # as long as the servers wait for a body
_TUS_HEADERS: Final = ("tus-resumable", "upload-length", "upload-offset", "upload-metadata")
_PASSED_ON: Final = ("authorization", "x-api-key", "content-type", "accept", "if-match", "x-request-id", *_TUS_HEADERS)
_PASSED_BACK: Final = (
    *("content-type", "etag", "location", "retry-after", "www-authenticate", "cache-control"),
    *(*_TUS_HEADERS, "tus-version", "tus-extension", "tus-max-size", "upload-expires"),
)


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request as it is sent on. It `is_repeatable` if sending it twice has the effect of sending it once."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: str = ""
    body: bytes = b""
    is_repeatable: bool = False


class Forwarder:
    """Use as a context: it checks the addresses in the background. Errors name the `role` of the servers."""

    def __init__(
        self, urls: Sequence[str], *, role: str = "orchestrator", response_seconds: float = RESPONSE_SECONDS
    ) -> None:
        self._role = role
        timeout = httpx2.Timeout(response_seconds, connect=CONNECT_SECONDS)
        self._response_seconds = response_seconds
        self._http = httpx2.AsyncClient(
            timeout=timeout, trust_env=False, follow_redirects=False, headers={"User-Agent": f"dagmaster/{__version__}"}
        )
        # Requests that wait for a response must not delay checks.
        self._checks = httpx2.AsyncClient(trust_env=False, follow_redirects=False)
        self._backends = Backends(urls, self._checks, role="gateway")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.aclosing(self._http), contextlib.aclosing(self._checks), self._backends.checked():
            yield

    def states(self) -> list[OrchestratorState]:
        return self._backends.states()

    @property
    def can_forward(self) -> bool:
        return self._backends.has_healthy

    async def send(self, request: ForwardedRequest, body: AsyncIterator[bytes] | None = None) -> httpx2.Response:
        """The response of an orchestrator, complete. Raises Unavailable if none responds. A `body` is sent on as it
        arrives; errors in it are raised unchanged."""
        was_sent = False
        for backend in self._backends.candidates():
            try:
                return await self._send_to(backend, request, body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                backend.note_failure(error)  # nothing was sent
            except httpx2.PoolTimeout:
                break  # nothing was sent: too many requests wait for responses
            except httpx2.DecodingError as error:
                backend.note_failure(error)
                raise bad_response() from None
            except (httpx2.TransportError, TimeoutError) as error:
                backend.note_failure(error)
                was_sent = True
                if not request.is_repeatable:
                    break
        if was_sent:
            raise Unavailable(
                f"the {self._role} did not respond; it may have carried out the request",
                code="gateway.no-response",
                hint="check the status before you repeat the request; a submission may be repeated with its request id",
            )
        raise Unavailable(
            f"no {self._role} is available; the request was not carried out",
            code="gateway.no-orchestrator",
            hint="try again later; reading the status still works",
        )

    async def _send_to(
        self, backend: Backend, request: ForwardedRequest, body: AsyncIterator[bytes] | None
    ) -> httpx2.Response:
        query = f"?{request.query}" if request.query else ""
        passed_on = _PASSED_ON if body is None else (*_PASSED_ON, "content-length")
        # The bytes are those that the caller has sent, which need not be ASCII.
        headers = {
            name.encode(): value.encode("latin-1")
            for name, value in request.headers.items()
            if name.lower() in passed_on
        }
        traceparent = traces.current_traceparent() or traces.valid_traceparent(request.headers.get(traces.HEADER))
        if traceparent is not None:
            headers[traces.HEADER.encode()] = traceparent.encode()
        body_seconds = 0.0 if body is None else BODY_SECONDS
        async with (
            asyncio.timeout(body_seconds + self._response_seconds + CONNECT_SECONDS),
            self._http.stream(
                request.method,
                f"{backend.url}{request.path}{query}",
                headers=headers,
                content=body or request.body or None,
            ) as stream,
        ):
            return await _complete(stream)


async def _complete(stream: httpx2.Response) -> httpx2.Response:
    chunks, size = [], 0
    async for chunk in stream.aiter_bytes():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise InvalidRequest(
                f"the response has more than {MAX_RESPONSE_BYTES:,} bytes",
                code="gateway.response-too-large",
                hint="request fewer items, or use the API of an orchestrator",
            )
        chunks.append(chunk)
    headers = [(name, value) for name, value in stream.headers.multi_items() if name.lower() != "content-encoding"]
    return httpx2.Response(stream.status_code, headers=headers, content=b"".join(chunks), request=stream.request)


def headers_of(request: Request) -> dict[str, str]:
    """The headers of a request, with its request id on this server, so that the orchestrator logs the same id."""
    return {**request.headers, "x-request-id": request_id_of(request) or ""}


def json_of(response: httpx2.Response) -> Any:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        raise bad_response() from None


def bad_response() -> Unavailable:
    return Unavailable(
        "the response of the orchestrator is not valid",
        code="gateway.bad-response",
        hint="check the status before you repeat the request; operators: check ORCHESTRATOR_URLS",
    )


def encoded(content: Any) -> bytes:
    """A body to be forwarded. Texts with lone surrogates and integers of any size are forwarded unchanged: the
    orchestrator reports what is wrong with them."""
    try:
        return json.dumps(content, separators=(",", ":")).encode()
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="value.not-json") from None


def passed_back(response: httpx2.Response) -> Response:
    """The response of an orchestrator as the gateway sends it."""
    headers = {name: response.headers[name] for name in _PASSED_BACK if name in response.headers}
    return Response(response.content, status_code=response.status_code, headers=headers)
