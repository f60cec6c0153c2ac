"""A client of the API, for commands.

    Client ──▶ request ──▶ JSON, as the API sent it
                      └──▶ a problem (RFC 9457): raised as the error that it was on the platform, with the request id
                      └──▶ no response, or one that is not from the API: Unavailable, with a hint

After a lost connection the client looks up the URL of the platform again: a restarted platform may use another port.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, BinaryIO
from uuid import UUID

import httpx2
import orjson

from dagmaster import __version__
from dagmaster.client.limits import MAX_BODY_BYTES, MOST_ITEMS, PREFIX
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
from dagmaster.jobs.ids import ids_beginning_with

TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5.0
# The server sends a heartbeat on a stream every 15 seconds.
STREAM_TIMEOUT_SECONDS = 50.0
JANITOR_TIMEOUT_SECONDS = 120.0
# Deployments and migrations wait for locks.
SCHEMA_TIMEOUT_SECONDS = 900.0
_LARGEST_EVENT_BYTES = 64 * 1024 * 1024
_LARGEST_RESPONSE_BYTES = 256 * 1024 * 1024
_MOST_LETTERS = 10_000

_ERRORS_BY_STATUS: Mapping[int, type[DagmasterError]] = {
    HTTPStatus.UNAUTHORIZED: NotAllowed,
    HTTPStatus.FORBIDDEN: NotAllowed,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.REQUEST_TIMEOUT: Unavailable,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
}


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as the server sent it; `data` is its JSON. A progress event has no sequence number."""

    sequence: int | None
    data: str


class Client:
    """A client of the platform whose URL `find` returns. It is not thread-safe: another thread uses a `copy`."""

    def __init__(self, find: Callable[[], str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._find = find
        self._timeout_seconds = timeout_seconds
        self._connected: tuple[str, httpx2.Client] | None = None
        self.now = datetime.now(UTC)

    def copy(self) -> "Client":
        return Client(self._find, self._timeout_seconds)

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()

    # Jobs

    def submit(self, submission: Json, *, force: bool = False, resume: bool = False) -> Json:
        return self._object("POST", "/jobs", body=submission, params={"force": force, "resume": resume})

    def cancel(self, job_id: str, request: Json, wait_seconds: float) -> Json:
        """Request the cancellation of a job, or get its progress: a second request changes nothing."""
        return self._object("POST", f"/jobs/{job_id}/cancel", body=request, params={"wait": wait_seconds})

    def resume(self, job_id: str, request: Json, *, is_dry_run: bool = False) -> Json:
        return self._object("POST", f"/jobs/{job_id}/resume", body=request, params={"dry_run": is_dry_run})

    def retry(self, job_id: str, request: Json, *, is_dry_run: bool = False) -> Json:
        return self._object("POST", f"/jobs/{job_id}/retry", body=request, params={"dry_run": is_dry_run})

    def jobs(self, limit: int, after: str | None = None, **filters: str | None) -> tuple[list[Json], str | None]:
        return self._page("/jobs", limit, after, **filters)

    def job(self, job_id: str) -> Json:
        return self._object("GET", f"/jobs/{job_id}")

    def job_line(self, job_id: str) -> Json:
        """The summary of a job: a cheap request, for polling."""
        jobs, _ = self.jobs(1, _cursor_before(UUID(job_id)))
        if not jobs or jobs[0].get("job_id") != job_id:
            raise _no_job(job_id)
        return jobs[0]

    def nodes(
        self, job_id: str, limit: int, after: int = -1, *, parent: str | None = None, status: str | None = None
    ) -> tuple[list[Json], str | None]:
        return self._page(f"/jobs/{job_id}/nodes", limit, str(after), parent=parent, status=status)

    def node(self, job_id: str, node_id: str) -> Json:
        """A node with its attempts."""
        return self._object("GET", f"/jobs/{job_id}/nodes/{_segment(node_id)}")

    def download_output(self, job_id: str, node_id: str, file: BinaryIO) -> int:
        """Write the whole output of a node to a file. Returns its size in bytes."""
        url, http = self._connection()
        timeout = httpx2.Timeout(self._timeout_seconds, connect=self._connect_seconds())
        path = f"{url}{PREFIX}/jobs/{job_id}/nodes/{_segment(node_id)}/output"
        digest, size = hashlib.sha256(), 0
        with self._translated(url), http.stream("GET", path, timeout=timeout) as response:
            if response.status_code != HTTPStatus.OK:
                response.read()
            _raise_unless_ok(response, url, "application/json")
            for chunk in response.iter_bytes():
                digest.update(chunk)
                size += file.write(chunk)
        etag = response.headers.get("etag", "")
        if not etag.startswith("W/") and etag.strip('"') != digest.hexdigest():
            raise unexpected("the content does not match its ETag")
        return size

    def events(
        self, job_id: str, limit: int, after: int = 0, node_id: str | None = None
    ) -> tuple[list[Json], str | None]:
        return self._page(f"/jobs/{job_id}/events", limit, str(after), node_id=node_id)

    def logs(
        self,
        job_id: str,
        limit: int,
        after: str | None = None,
        *,
        node_id: str | None = None,
        attempt: int | None = None,
        is_running: bool = False,
    ) -> tuple[list[Json], str | None]:
        return self._page(
            f"/jobs/{job_id}/logs", limit, after, node_id=node_id, attempt=attempt, running=is_running or None
        )

    def waiting(self, job_id: str) -> Json:
        return self._object("GET", f"/jobs/{job_id}/waiting")

    def find_job(self, name: str) -> str:
        """The id of a job by its id, by the unique beginning of its id, or `last` for the newest job."""
        if name == "last":
            newest, _ = self.jobs(1)
            if not newest:
                raise NotFound("there is no job yet", code="job.not-found")
            return str(newest[0]["job_id"])
        first, last = ids_beginning_with(name)
        if first == last:
            return str(first)
        matches = [job["job_id"] for job in self.jobs(4, _cursor_before(last))[0] if UUID(job["job_id"]) >= first]
        if not matches:
            raise _no_job(name)
        if len(matches) > 1:
            message = f"several jobs begin with {name}: {', '.join(matches[:3])}, …"
            raise InvalidRequest(message, code="job.ambiguous", hint="type more digits of the id")
        return str(matches[0])

    @contextmanager
    def stream(self, job_id: str, after: int) -> Iterator[Iterator[StreamedEvent] | None]:
        """The events after a sequence number as they happen, and progress, until the connection ends.

        None if the job has ended and no more events will follow."""
        url, http = self._connection()
        timeout = httpx2.Timeout(STREAM_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        path = f"{url}{PREFIX}/jobs/{job_id}/events/stream"
        with self._translated(url), http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code == HTTPStatus.NO_CONTENT:
                yield None
                return
            if response.status_code != HTTPStatus.OK:
                response.read()
            _raise_unless_ok(response, url, "text/event-stream")
            yield _events(response)

    # Workflows

    def workflows(self, limit: int = 10_000) -> list[Json]:
        return self._page("/workflows", limit)[0]

    def refused_workflows(self) -> list[Json]:
        """Workflow files that the platform cannot use."""
        refused = self._object("GET", "/workflows", params={"limit": 1}).get("refused", [])
        if not isinstance(refused, list):
            raise unexpected("`refused` is not a list")
        return refused

    def workflow(self, workflow_id: str) -> Json:
        return self._object("GET", f"/workflows/{_segment(workflow_id)}")

    def graph(self, workflow_id: str) -> Json:
        return self._object("GET", f"/workflows/{_segment(workflow_id)}/graph")

    def validate(self, text: bytes) -> Json:
        return self._object("POST", "/workflows/validate", content=text, media_type="application/yaml")

    # Operations

    def queues(self) -> list[Json]:
        return self._page("/queues", MOST_ITEMS)[0]

    def set_queue(self, queue: str, **changes: int | bool | None) -> Json:
        """Change `max_running`, `is_paused` or both. A value that is not passed stays as it is."""
        return self._object("PATCH", f"/queues/{_segment(queue)}", body=changes)

    def workers(self, limit: int) -> tuple[list[Json], str | None]:
        return self._page("/workers", limit)

    def orchestrators(self, limit: int) -> tuple[list[Json], str | None]:
        return self._page("/orchestrators", limit)

    def dead_letters(
        self, limit: int, after: str | None = None, reason: str | None = None
    ) -> tuple[list[Json], str | None]:
        return self._page("/dead-letters", limit, after, reason=reason)

    def find_dead_letter(self, name: str) -> UUID:
        """The id of a dead letter by its id, or by the unique beginning of its id."""
        try:
            first, last = ids_beginning_with(name)
        except InvalidRequest:
            raise InvalidRequest(
                f"'{name}' is not the id of a dead letter",
                code="dead-letter.bad-id",
                hint="see `dagmaster dead-letters ls`",
            ) from None
        if first == last:
            return first
        letters, _ = self.dead_letters(_MOST_LETTERS)
        matches = [letter_id for letter in letters if first <= (letter_id := UUID(letter["dead_letter_id"])) <= last]
        if not matches:
            message = f"no dead letter has an id that begins with {name}"
            raise NotFound(message, code="dead-letter.not-found", hint="see `dagmaster dead-letters ls`")
        if len(matches) > 1:
            message = f"several dead letters begin with {name}: {', '.join(map(str, matches[:3]))}, …"
            raise InvalidRequest(message, code="dead-letter.ambiguous", hint="type more digits of the id")
        return matches[0]

    def dead_letter(self, dead_letter_id: UUID) -> Json:
        return self._object("GET", f"/dead-letters/{dead_letter_id}")

    def replay(self, dead_letter_id: UUID) -> Json:
        return self._object("POST", f"/dead-letters/{dead_letter_id}/replay")

    def janitor_actions(
        self, limit: int, after: str | None = None, **filters: str | None
    ) -> tuple[list[Json], str | None]:
        return self._page("/janitor/actions", limit, after, **filters)

    def run_janitor(self, *, is_dry_run: bool) -> Json:
        # The janitor executes several statements, and each may take 10 seconds.
        params = {"dry_run": "true" if is_dry_run else "false"}
        return self._object("POST", "/janitor/run", params=params, timeout=JANITOR_TIMEOUT_SECONDS)

    # The schema

    def schema_status(self) -> Json:
        return self._object("GET", "/bootstrap/status", timeout=SCHEMA_TIMEOUT_SECONDS)

    def tables(self) -> Json:
        return self._object("GET", "/bootstrap/tables", timeout=SCHEMA_TIMEOUT_SECONDS)

    def ddl(self) -> str:
        return self._request("GET", "/bootstrap/ddl", expected="text/plain").text

    def deploy(self) -> Json:
        return self._object("POST", "/bootstrap/deploy", timeout=SCHEMA_TIMEOUT_SECONDS)

    def migrate(self) -> Json:
        return self._object("POST", "/bootstrap/migrate", timeout=SCHEMA_TIMEOUT_SECONDS)

    def rebuild(self, confirm: str) -> Json:
        return self._object("POST", "/bootstrap/rebuild", body={"confirm": confirm}, timeout=SCHEMA_TIMEOUT_SECONDS)

    # Requests

    def _page(
        self, path: str, limit: int, after: str | None = None, **filters: str | int | None
    ) -> tuple[list[Json], str | None]:
        """Up to `limit` items, with as many requests as necessary, and the cursor of the next page."""
        items: list[Json] = []
        while True:
            count = min(MOST_ITEMS, limit - len(items))
            page = self._object("GET", path, params={"limit": count, "after": after, **filters})
            if not isinstance(page.get("items"), list) or "next" not in page:
                raise unexpected("a page has no `items` or no `next`")
            if not isinstance(page["next"], str | None) or (page["next"] is not None and not page["items"]):
                raise unexpected("`next` of a page is not valid")
            items += page["items"]
            after = page["next"]
            if after is None or len(items) >= limit:
                return items, after

    def _object(self, method: str, path: str, **options: Any) -> Json:
        response = self._request(method, path, **options)
        try:
            value = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise unexpected(f"it is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise unexpected("it is not an object")
        return value

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json | None = None,
        content: bytes | None = None,
        media_type: str = "application/json",
        timeout: float | None = None,
        expected: str = "application/json",
    ) -> httpx2.Response:
        sent = orjson.dumps(body) if body is not None else content
        if sent is not None and len(sent) > MAX_BODY_BYTES:
            raise InvalidRequest(
                f"the request has {len(sent):,} bytes; at most {MAX_BODY_BYTES:,} are allowed",
                code="request.too-large",
                hint="put large data into storage and pass a reference",
            )
        url, http = self._connection()
        query = {name: value for name, value in (params or {}).items() if value is not None}
        headers = {"Content-Type": media_type} if sent is not None else {}
        seconds = timeout or self._timeout_seconds
        timeouts = httpx2.Timeout(seconds, connect=self._connect_seconds())
        path = f"{url}{PREFIX}{path}"
        with (
            self._translated(url),
            http.stream(method, path, params=query, content=sent, headers=headers, timeout=timeouts) as stream,
        ):
            response = _read(stream, time.monotonic() + seconds, _redacted(url))
        self.now = _date_of(response) or datetime.now(UTC)
        _raise_unless_ok(response, url, expected)
        return response

    def _connect_seconds(self) -> float:
        return min(CONNECT_TIMEOUT_SECONDS, self._timeout_seconds)

    def _connection(self) -> tuple[str, httpx2.Client]:
        if self._connected is None:
            url = checked_url(self._find())
            self._connected = url, _http(url)
        return self._connected

    @contextmanager
    def _translated(self, url: str) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            self.close()
            raise _no_response(error, _redacted(url)) from None


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


def _http(url: str) -> httpx2.Client:
    parsed = httpx2.URL(url)
    # Requests to this machine use no proxy of the environment. Certificates are loaded only for https, as that is slow.
    is_local = parsed.host in {"localhost", "127.0.0.1", "::1"}
    return httpx2.Client(
        headers={"User-Agent": f"dagmaster/{__version__}", "Accept": "application/json"},
        trust_env=not is_local,
        verify=parsed.scheme == "https",
    )


def _redacted(url: str) -> str:
    from dagmaster.observe.redaction import redact

    return redact(url)


def _segment(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _cursor_before(job_id: UUID) -> str | None:
    """The cursor of a page that begins with this job, or with the next older one: ids are in the order of time."""
    return str(UUID(int=job_id.int + 1)) if job_id.int < 2**128 - 1 else None


def _no_job(name: str) -> NotFound:
    return NotFound(f"no job has the id {name}", code="job.not-found", hint="see `dagmaster jobs ls`")


def _date_of(response: httpx2.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(response.headers["date"])
    except (KeyError, ValueError):
        return None


def _read(stream: httpx2.Response, until: float, url: str) -> httpx2.Response:
    """The complete response. Refused if it takes too long or is too large for memory."""
    chunks: list[bytes] = []
    size = 0
    for chunk in stream.iter_bytes():
        size += len(chunk)
        if size > _LARGEST_RESPONSE_BYTES:
            raise unexpected(f"more than {_LARGEST_RESPONSE_BYTES:,} bytes")
        if time.monotonic() > until:
            raise Unavailable(
                f"{url} took too long to answer", code="server.slow", hint="try again; is the platform overloaded?"
            )
        chunks.append(chunk)
    headers = [(name, value) for name, value in stream.headers.multi_items() if name.lower() != "content-encoding"]
    return httpx2.Response(stream.status_code, headers=headers, content=b"".join(chunks), request=stream.request)


def _events(response: httpx2.Response) -> Iterator[StreamedEvent]:
    for frame in httpx2.EventSource(response, max_event_size=_LARGEST_EVENT_BYTES):
        if frame.event == "progress":
            yield StreamedEvent(None, frame.data)
        elif frame.id.isascii() and frame.id.isdigit() and frame.data:
            yield StreamedEvent(int(frame.id), frame.data)


# --- errors ----------------------------------------------------------------------------------------------------------


def _no_response(error: httpx2.HTTPError, url: str) -> Unavailable:
    """The error for a request without a response."""
    reason = _reason(error)
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return Unavailable(
                f"no platform answers at {url}: {reason or 'no connection within the timeout'}",
                code="server.unreachable",
                hint="is it running? check the URL (--server, DAGMASTER_URL), or start one with `dagmaster up`",
            )
        case httpx2.TimeoutException():
            return Unavailable(
                f"{url} took too long to answer", code="server.slow", hint="try again; is the platform overloaded?"
            )
        case httpx2.TransportError():
            return Unavailable(f"the connection to {url} was lost", code="server.lost", hint="try again")
    return unexpected(reason or type(error).__name__)


def _reason(error: Exception) -> str:
    text = str(error)
    return text.partition("] ")[2] if text.startswith("[Errno ") else text


def _raise_unless_ok(response: httpx2.Response, url: str, expected: str) -> None:
    """Raise the error that the platform reports, or Unavailable if the response is not from a platform."""
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_redirect:
        target = _redacted(response.headers.get("location", "nowhere"))
        raise Unavailable(
            f"{_redacted(url)} redirects to {target}",
            code="server.redirects",
            hint="pass the final URL with --server",
        )
    if media_type == "application/problem+json":
        raise _problem(response)
    if response.is_error:
        raise _bare_error(response, _redacted(url), media_type)
    if media_type != expected:
        raise Unavailable(
            f"{_redacted(url)} responds, but it is not the API of a platform ({media_type or 'no content type'})",
            code="server.not-a-platform",
            hint="check the URL (--server, DAGMASTER_URL); does another program listen there?",
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
    error.facts |= {"request_id": problem.get("request_id"), "status": response.status_code}
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
