"""HTTP requests to the API of a platform, and what can go wrong with them.

    ApiConnection ──▶ request ──▶ the response, complete
                        └──▶ a problem (RFC 9457): raised as the error that it was on the platform, with the request id
                        └──▶ no response, or one that is not from the API: Unavailable, with a hint

After a lost connection the URL of the platform is looked up again: a restarted platform may use another port. Requests
that are safe to repeat (GET, and those marked as repeatable) are retried with backoff.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Self

import httpx2
import orjson

from dagmaster import __version__
from dagmaster.client.limits import MAX_BODY_BYTES, MAX_ITEMS, PREFIX
from dagmaster.client.models.base import Json, unexpected
from dagmaster.errors import (
    Conflict,
    DagmasterError,
    InvalidRequest,
    InvalidWorkflow,
    NotAllowed,
    NotFound,
    Unavailable,
    WorkflowProblem,
)

TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5.0
# The server sends a heartbeat on a stream every 15 seconds.
STREAM_TIMEOUT_SECONDS = 50.0
_MAX_EVENT_BYTES = 64 * 1024 * 1024
_MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_FIRST_BACKOFF_SECONDS = 0.2
_MAX_BACKOFF_SECONDS = 10.0
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
# The request may have had its effect: only the response is missing.
UNANSWERED = frozenset({"server.lost", "server.slow"})
NO_RESPONSE = {"server.unreachable", *UNANSWERED}
_TEMPORARY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}

_ERRORS_BY_STATUS: Mapping[int, type[DagmasterError]] = {
    HTTPStatus.UNAUTHORIZED: NotAllowed,
    HTTPStatus.FORBIDDEN: NotAllowed,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.PRECONDITION_FAILED: Conflict,
    HTTPStatus.LOCKED: Conflict,
    HTTPStatus.REQUEST_TIMEOUT: Unavailable,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
}


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as the server sent it; `data` is its JSON. A progress event has no sequence number."""

    sequence: int | None
    data: str


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event of the stream of changes: its type, the cursor after which the stream can be continued, its JSON."""

    name: str
    cursor: str
    data: str


class ApiConnection:
    """Sends requests to the platform whose URL `find` returns, with the key or token that `find_key` returns. A request
    that can be repeated safely is sent up to `attempts` times.

    Tasks of one event loop may share a connection."""

    def __init__(
        self,
        find: Callable[[], str],
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        attempts: int = 1,
        headers: Mapping[str, str] | None = None,
        find_key: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._find = find
        self._find_key = find_key
        self.timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._headers = dict(headers or {})
        self._connected: tuple[str, httpx2.AsyncClient] | None = None
        self._is_url_known = False
        self._retired: list[httpx2.AsyncClient] = []
        self.now = datetime.now(UTC)  # by the clock of the platform, at the last response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        connected, self._connected = self._connected, None
        retired, self._retired = self._retired, []
        for http in [*retired, *([connected[1]] if connected else [])]:
            await http.aclose()

    async def page(
        self, path: str, limit: int, after: str | None = None, **filters: Any
    ) -> tuple[list[Json], str | None]:
        """Up to `limit` items, with as many requests as necessary, and the cursor of the next page."""
        items: list[Json] = []
        while True:
            count = min(MAX_ITEMS, limit - len(items))
            page = await self.object("GET", path, params={"limit": count, "after": after, **filters})
            if not isinstance(page.get("items"), list) or "next" not in page:
                raise unexpected("a page has no `items` or no `next`")
            if not isinstance(page["next"], str | None) or (page["next"] is not None and not page["items"]):
                raise unexpected("`next` of a page is not valid")
            items += page["items"]
            after = page["next"]
            if after is None or len(items) >= limit:
                return items, after

    async def object(self, method: str, path: str, **options: Any) -> Json:
        """The JSON object of a response."""
        value = await self.value(method, path, **options)
        if not isinstance(value, dict):
            raise unexpected("it is not an object")
        return value

    async def value(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of a response."""
        response = await self.request(method, path, **options)
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise unexpected(f"it is not JSON ({error})") from None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json | None = None,
        content: bytes | None = None,
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        expected: str = "application/json",
        is_repeatable: bool = False,
        prefix: str = PREFIX,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> httpx2.Response:
        """A complete response. A request that may be repeated is repeated while the platform is unavailable."""
        sent = _encoded(body) if body is not None else content
        if sent is not None and len(sent) > max_bytes:
            raise InvalidRequest(
                f"the request has {len(sent):,} bytes; at most {max_bytes:,} are allowed",
                code="request.too-large",
                hint="put large data into storage and pass a reference",
            )
        attempts = self._attempts if method == "GET" or is_repeatable else 1
        for attempt in range(1, attempts + 1):
            try:
                response = await self._send_once(
                    method,
                    prefix + path,
                    timeout or self.timeout_seconds,
                    params={name: value for name, value in (params or {}).items() if value is not None} or None,
                    content=sent,
                    headers={**(headers or {}), **({"Content-Type": media_type} if sent is not None else {})},
                )
                _raise_unless_ok(response, self.url, expected)
            except Unavailable as error:
                if attempt == attempts or not is_temporary(error):
                    raise
                await asyncio.sleep(_backoff_seconds(error, attempt))
            else:
                return response
        raise AssertionError("the last attempt returns or raises")

    async def _send_once(self, method: str, path: str, seconds: float, **options: Any) -> httpx2.Response:
        url, http = self._connection()
        timeouts = httpx2.Timeout(seconds, connect=min(CONNECT_TIMEOUT_SECONDS, self.timeout_seconds))
        try:
            async with (
                asyncio.timeout(seconds + CONNECT_TIMEOUT_SECONDS),
                self._translated(url),
                http.stream(method, url + path, timeout=timeouts, **options) as stream,
            ):
                response = await _read(stream, asyncio.get_running_loop().time() + seconds, _redacted(url))
        except TimeoutError:
            raise _too_slow(_redacted(url)) from None
        self.now = _date_of(response) or datetime.now(UTC)
        return response

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        accept: str,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        read_seconds: float | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """A response whose content is read piece by piece. Its status is 200 or 204."""
        url, http = self._connection()
        connect_seconds = min(CONNECT_TIMEOUT_SECONDS, self.timeout_seconds)
        timeout = httpx2.Timeout(read_seconds or self.timeout_seconds, connect=connect_seconds)
        all_headers = {"Accept": accept, **(headers or {})}
        async with (
            self._translated(url),
            http.stream("GET", url + PREFIX + path, headers=all_headers, params=params, timeout=timeout) as response,
        ):
            if response.status_code != HTTPStatus.NO_CONTENT:
                if response.status_code != HTTPStatus.OK:
                    await response.aread()
                _raise_unless_ok(response, url, accept)
            yield response

    @property
    def url(self) -> str:
        """The URL of the last request."""
        return self._connected[0] if self._connected else ""

    def _connection(self) -> tuple[str, httpx2.AsyncClient]:
        """The URL and its client. Other requests may still use the client of a former URL, so it is closed later."""
        if self._connected is None or not self._is_url_known:
            url = checked_url(self._find())
            if self._connected is None or self._connected[0] != url:
                if self._connected is not None:
                    self._retired.append(self._connected[1])
                self._connected = url, _http(url, {**authorization(self._find_key()), **self._headers})
            self._is_url_known = True
        return self._connected

    @asynccontextmanager
    async def _translated(self, url: str) -> AsyncIterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            self._is_url_known = False
            raise _no_response(error, _redacted(url)) from None


def authorization(key: str | None) -> dict[str, str]:
    """The header that sends a key or a token."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _encoded(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        message = f"the request cannot be written as JSON: {error}"
        raise InvalidRequest(message, code="request.not-json", hint="pass strings, numbers, lists and dicts") from None


def is_temporary(error: Unavailable) -> bool:
    """Whether the same request may succeed later."""
    return error.code in NO_RESPONSE or error.facts.get("status") in _TEMPORARY


def _backoff_seconds(error: Unavailable, attempt: int) -> float:
    """The delay that the platform requests (Retry-After), or one that doubles with each attempt; with jitter."""
    requested = error.facts.get("retry_after_seconds") or _FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1)
    return float(min(_MAX_BACKOFF_SECONDS, requested)) * random.uniform(1.0, 1.25)  # noqa: S311


def checked_url(text: str) -> str:
    """The URL of an API, without a slash at its end."""
    hint = "for example --server http://localhost:8000"
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise InvalidRequest(f"{_redacted(text)}: not a URL: {error}", code="server.bad-url", hint=hint) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidRequest(
            f"{_redacted(text)}: not the URL of an API",
            code="server.bad-url",
            hint=f"the URL must begin with http:// or https://, {hint}",
        )
    if url.query or url.fragment:
        raise InvalidRequest(
            f"{_redacted(text)}: the URL of an API has no query and no fragment", code="server.bad-url", hint=hint
        )
    return text.rstrip("/").removesuffix(PREFIX)


def _http(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    parsed = httpx2.URL(url)
    # Requests to this machine ignore proxies of the environment. Loading certificates is slow: only https needs them.
    is_local = parsed.host in LOCAL_HOSTS
    return httpx2.AsyncClient(
        headers={"User-Agent": f"dagmaster/{__version__}", "Accept": "application/json", **headers},
        trust_env=not is_local,
        verify=parsed.scheme == "https",
    )


def _redacted(url: str) -> str:
    from dagmaster.observe.redaction import redact

    return redact(url)


def _date_of(response: httpx2.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(response.headers["date"])
    except (KeyError, ValueError):
        return None


async def _read(stream: httpx2.Response, until: float, url: str) -> httpx2.Response:
    """The complete response. Raises an error if it takes too long or is too large for memory."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in stream.aiter_bytes():
        size += len(chunk)
        if size > _MAX_RESPONSE_BYTES:
            raise unexpected(f"more than {_MAX_RESPONSE_BYTES:,} bytes")
        if asyncio.get_running_loop().time() > until:
            raise _too_slow(url)
        chunks.append(chunk)
    headers = [(name, value) for name, value in stream.headers.multi_items() if name.lower() != "content-encoding"]
    return httpx2.Response(stream.status_code, headers=headers, content=b"".join(chunks), request=stream.request)


async def streamed_events(response: httpx2.Response) -> AsyncIterator[StreamedEvent]:
    async for frame in httpx2.EventSource(response, max_event_size=_MAX_EVENT_BYTES):
        if frame.event == "progress":
            yield StreamedEvent(None, frame.data)
        elif frame.id.isascii() and frame.id.isdigit() and frame.data:
            yield StreamedEvent(int(frame.id), frame.data)


async def named_events(response: httpx2.Response) -> AsyncIterator[NamedEvent]:
    async for frame in httpx2.EventSource(response, max_event_size=_MAX_EVENT_BYTES):
        if frame.data:
            yield NamedEvent(frame.event, frame.id, frame.data)


# --- errors ----------------------------------------------------------------------------------------------------------


def _no_response(error: httpx2.HTTPError, url: str) -> Unavailable:
    """The error for a request without a response."""
    reason = _reason(error)
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return Unavailable(
                f"no platform responds at {url}: {reason or 'no connection within the timeout'}",
                code="server.unreachable",
                hint="start it with `dagmaster up`, or correct its URL (--server, DAGMASTER_URL, DAG_CALLBACK_URL)",
            )
        case httpx2.TimeoutException():
            return _too_slow(url)
        case httpx2.TransportError():
            hint = "try again; if it is lost again, check the URL (--server, DAGMASTER_URL, DAG_CALLBACK_URL)"
            return Unavailable(f"the connection to {url} was lost", code="server.lost", hint=hint)
    return unexpected(reason or type(error).__name__)


def _too_slow(url: str) -> Unavailable:
    return Unavailable(
        f"{url} took too long to respond", code="server.slow", hint="try again; the platform may be overloaded"
    )


def _reason(error: BaseException) -> str:
    """The message of the system error that caused this error, or else its own message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):  # one error for each address of a host
            cause = cause.exceptions[0]
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return os.strerror(cause.errno) if cause.errno > 0 else cause.strerror  # asyncio replaces the text
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _raise_unless_ok(response: httpx2.Response, url: str, expected: str) -> None:
    """Raise the error that the platform reports, or Unavailable if the response is not from a platform."""
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_redirect:
        target = _redacted(response.headers.get("location", "an unknown URL"))
        raise Unavailable(
            f"{_redacted(url)} redirects to {target}",
            code="server.redirects",
            hint="pass the final URL with --server",
        )
    if response.is_error or media_type == "application/problem+json":
        is_problem = media_type == "application/problem+json"
        error = _problem(response) if is_problem else _bare_error(response, _redacted(url), media_type)
        error.facts["status"] = response.status_code
        if (seconds := response.headers.get("retry-after", "")).isdecimal():
            error.facts["retry_after_seconds"] = int(seconds)
        raise error
    if media_type != expected:
        raise Unavailable(
            f"{_redacted(url)} responds, but it is not the API of a platform ({media_type or 'no content type'})",
            code="server.not-a-platform",
            hint="check the URL (--server, DAGMASTER_URL): another program may listen there",
        )


def _error_class(status: int) -> type[DagmasterError]:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable
    return _ERRORS_BY_STATUS.get(status, InvalidRequest)


def _bare_error(response: httpx2.Response, url: str, media_type: str) -> DagmasterError:
    """The error for a failed request to a proxy, a gateway or another program."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    return _error_class(response.status_code)(
        f"{url} responds with {status}, but it is not the API of a platform ({media_type or 'no content type'})",
        code="server.not-a-platform",
        hint="check the URL (--server, DAGMASTER_URL), and any proxy in front of the API",
    )


def _problem(response: httpx2.Response) -> DagmasterError:
    try:
        problem = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        return unexpected("a problem that is not JSON")
    mistakes = problem.get("errors")
    if isinstance(mistakes, list) and problem.get("code") == InvalidWorkflow.default_code:
        return InvalidWorkflow("workflow", problems_of(mistakes))
    facts = problem.get("facts")
    if not isinstance(facts, dict):
        facts = {}
    reserved = {"message", "code", "hint"}
    error = _error_class(response.status_code)(
        str(problem.get("detail") or problem.get("title") or response.status_code),
        code=str(problem.get("code") or "server.problem"),
        hint=str(problem["hint"]) if problem.get("hint") else None,
        **{name: value for name, value in facts.items() if name not in reserved},
    )
    error.facts["request_id"] = problem.get("request_id")
    return error


def problems_of(mistakes: Sequence[Any]) -> list[WorkflowProblem]:
    """The errors in a workflow file, from the response of the platform."""
    return [
        WorkflowProblem(
            message=str(mistake.get("message")),
            line=int(mistake.get("line") or 0),
            column=int(mistake.get("column") or 0),
            node=mistake.get("node"),
            code=str(mistake.get("code") or "workflow.invalid"),
        )
        for mistake in mistakes
        if isinstance(mistake, dict)
    ]
