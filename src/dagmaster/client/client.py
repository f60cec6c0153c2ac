"""A client of the API: what a command asks, and what its errors mean.

    Client ──▶ a question ──▶ JSON as it came
                         └──▶ a problem (RFC 9457), told as the error it was on the platform, with the id of the request
                         └──▶ no answer, or one that is not the API's: Unavailable, and what to look at

Where the platform is, is asked anew after a lost connection: one that was started again may listen elsewhere.
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
# A stream shows a sign of life every 15 seconds.
STREAM_TIMEOUT_SECONDS = 50.0
JANITOR_TIMEOUT_SECONDS = 120.0
# Deploying and migrating wait for locks.
SCHEMA_TIMEOUT_SECONDS = 900.0
_LARGEST_EVENT_BYTES = 64 * 1024 * 1024
_LARGEST_ANSWER_BYTES = 256 * 1024 * 1024
_MOST_LETTERS = 10_000

_KINDS: Mapping[int, type[DagmasterError]] = {
    HTTPStatus.UNAUTHORIZED: NotAllowed,
    HTTPStatus.FORBIDDEN: NotAllowed,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.REQUEST_TIMEOUT: Unavailable,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
}


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """An event as it came; `data` is its JSON. Progress has no number."""

    sequence: int | None
    data: str


class Client:
    """Asks the platform that `find` names. Not to be shared between threads: make another one with `again`."""

    def __init__(self, find: Callable[[], str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._find = find
        self._timeout_seconds = timeout_seconds
        self._connected: tuple[str, httpx2.Client] | None = None
        self.now = datetime.now(UTC)

    def again(self) -> "Client":
        return Client(self._find, self._timeout_seconds)

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()

    # Jobs

    def submit(self, submission: Json, *, force: bool = False, resume: bool = False) -> Json:
        return self._object("POST", "/jobs", body=submission, params={"force": force, "resume": resume})

    def cancel(self, job_id: str, wish: Json, wait_seconds: float) -> Json:
        """Ask for a job's end, or look how far that is: asking again changes nothing."""
        return self._object("POST", f"/jobs/{job_id}/cancel", body=wish, params={"wait": wait_seconds})

    def resume(self, job_id: str, wish: Json, *, is_dry_run: bool = False) -> Json:
        return self._object("POST", f"/jobs/{job_id}/resume", body=wish, params={"dry_run": is_dry_run})

    def retry(self, job_id: str, wish: Json, *, is_dry_run: bool = False) -> Json:
        return self._object("POST", f"/jobs/{job_id}/retry", body=wish, params={"dry_run": is_dry_run})

    def jobs(self, limit: int, after: str | None = None, **filters: str | None) -> tuple[list[Json], str | None]:
        return self._page("/jobs", limit, after, **filters)

    def job(self, job_id: str) -> Json:
        return self._object("GET", f"/jobs/{job_id}")

    def job_line(self, job_id: str) -> Json:
        """One job as in a list: cheap to ask for again and again."""
        lines, _ = self.jobs(1, _behind(UUID(job_id)))
        if not lines or lines[0].get("job_id") != job_id:
            raise _no_job(job_id)
        return lines[0]

    def nodes(
        self, job_id: str, limit: int, after: int = -1, *, parent: str | None = None, status: str | None = None
    ) -> tuple[list[Json], str | None]:
        return self._page(f"/jobs/{job_id}/nodes", limit, str(after), parent=parent, status=status)

    def node(self, job_id: str, node_id: str) -> Json:
        """A node with its attempts."""
        return self._object("GET", f"/jobs/{job_id}/nodes/{_segment(node_id)}")

    def download_output(self, job_id: str, node_id: str, file: BinaryIO) -> int:
        """Write a node's whole output to a file, however large. Answers its size."""
        url, http = self._connection()
        patience = httpx2.Timeout(self._timeout_seconds, connect=self._connect_seconds())
        path = f"{url}{PREFIX}/jobs/{job_id}/nodes/{_segment(node_id)}/output"
        digest, size = hashlib.sha256(), 0
        with self._translated(url), http.stream("GET", path, timeout=patience) as response:
            if response.status_code != HTTPStatus.OK:
                response.read()
            _refuse_unless_ok(response, url, "application/json")
            for piece in response.iter_bytes():
                digest.update(piece)
                size += file.write(piece)
        tag = response.headers.get("etag", "")
        if not tag.startswith("W/") and tag.strip('"') != digest.hexdigest():
            raise unexpected("what came is not what its ETag says")
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
        """The id of the job that an id, the unique beginning of one, or `last` stands for."""
        if name == "last":
            newest, _ = self.jobs(1)
            if not newest:
                raise NotFound("there is no job yet", code="job.not-found")
            return str(newest[0]["job_id"])
        first, last = ids_beginning_with(name)
        if first == last:
            return str(first)
        found = [job["job_id"] for job in self.jobs(4, _behind(last))[0] if UUID(job["job_id"]) >= first]
        if not found:
            raise _no_job(name)
        if len(found) > 1:
            what = f"several jobs begin with {name}: {', '.join(found[:3])}, …"
            raise InvalidRequest(what, code="job.ambiguous", hint="type more of it")
        return str(found[0])

    @contextmanager
    def stream(self, job_id: str, after: int) -> Iterator[Iterator[StreamedEvent] | None]:
        """The events behind a number as they happen, and progress in between, as far as this connection goes; None
        where none will follow."""
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
            _refuse_unless_ok(response, url, "text/event-stream")
            yield _events(response)

    # Workflows

    def workflows(self, limit: int = 10_000) -> list[Json]:
        return self._page("/workflows", limit)[0]

    def refused_workflows(self) -> list[Json]:
        """Files that the platform found and could not use."""
        refused = self._object("GET", "/workflows", params={"limit": 1}).get("refused", [])
        if not isinstance(refused, list):
            raise unexpected("refused workflow files that are no list")
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

    def set_queue(self, queue: str, **changed: int | bool | None) -> Json:
        """Change `max_running`, `is_paused` or both; what is not named stays."""
        return self._object("PATCH", f"/queues/{_segment(queue)}", body=changed)

    def workers(self, limit: int) -> tuple[list[Json], str | None]:
        return self._page("/workers", limit)

    def orchestrators(self, limit: int) -> tuple[list[Json], str | None]:
        return self._page("/orchestrators", limit)

    def dead_letters(
        self, limit: int, after: str | None = None, reason: str | None = None
    ) -> tuple[list[Json], str | None]:
        return self._page("/dead-letters", limit, after, reason=reason)

    def find_dead_letter(self, name: str) -> UUID:
        """The id of the dead letter that an id, or the unique beginning of one, stands for."""
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
        found = [letter_id for letter in letters if first <= (letter_id := UUID(letter["dead_letter_id"])) <= last]
        if not found:
            what = f"no dead letter has an id that begins with {name}"
            raise NotFound(what, code="dead-letter.not-found", hint="see `dagmaster dead-letters ls`")
        if len(found) > 1:
            what = f"several dead letters begin with {name}: {', '.join(map(str, found[:3]))}, …"
            raise InvalidRequest(what, code="dead-letter.ambiguous", hint="type more of it")
        return found[0]

    def dead_letter(self, dead_letter_id: UUID) -> Json:
        return self._object("GET", f"/dead-letters/{dead_letter_id}")

    def replay(self, dead_letter_id: UUID) -> Json:
        return self._object("POST", f"/dead-letters/{dead_letter_id}/replay")

    def janitor_actions(
        self, limit: int, after: str | None = None, **filters: str | None
    ) -> tuple[list[Json], str | None]:
        return self._page("/janitor/actions", limit, after, **filters)

    def run_janitor(self, *, is_dry_run: bool) -> Json:
        # Each of its statements may take 10 seconds, and there are some.
        params = {"dry_run": "true" if is_dry_run else "false"}
        return self._object("POST", "/janitor/run", params=params, timeout=JANITOR_TIMEOUT_SECONDS)

    # The schema

    def schema_status(self) -> Json:
        return self._object("GET", "/bootstrap/status", timeout=SCHEMA_TIMEOUT_SECONDS)

    def tables(self) -> Json:
        return self._object("GET", "/bootstrap/tables", timeout=SCHEMA_TIMEOUT_SECONDS)

    def ddl(self) -> str:
        return self._asked("GET", "/bootstrap/ddl", expected="text/plain").text

    def deploy(self) -> Json:
        return self._object("POST", "/bootstrap/deploy", timeout=SCHEMA_TIMEOUT_SECONDS)

    def migrate(self) -> Json:
        return self._object("POST", "/bootstrap/migrate", timeout=SCHEMA_TIMEOUT_SECONDS)

    def rebuild(self, confirm: str) -> Json:
        return self._object("POST", "/bootstrap/rebuild", body={"confirm": confirm}, timeout=SCHEMA_TIMEOUT_SECONDS)

    # Asking

    def _page(
        self, path: str, limit: int, after: str | None = None, **filters: str | int | None
    ) -> tuple[list[Json], str | None]:
        """As many as wanted, in as many questions as that takes; and where the next ones begin."""
        items: list[Json] = []
        while True:
            count = min(MOST_ITEMS, limit - len(items))
            page = self._object("GET", path, params={"limit": count, "after": after, **filters})
            if not isinstance(page.get("items"), list) or "next" not in page:
                raise unexpected("a page without items")
            if not isinstance(page["next"], str | None) or (page["next"] is not None and not page["items"]):
                raise unexpected("a page that leads nowhere")
            items += page["items"]
            after = page["next"]
            if after is None or len(items) >= limit:
                return items, after

    def _object(self, method: str, path: str, **more: Any) -> Json:
        answer = self._asked(method, path, **more)
        try:
            value = orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise unexpected(f"it is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise unexpected("it is not an object")
        return value

    def _asked(
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
                f"the request would have {len(sent):,} bytes; the API takes {MAX_BODY_BYTES:,}",
                code="request.too-large",
                hint="large data goes to storage, by reference",
            )
        url, http = self._connection()
        given = {name: value for name, value in (params or {}).items() if value is not None}
        headers = {"Content-Type": media_type} if sent is not None else {}
        patience = httpx2.Timeout(timeout or self._timeout_seconds, connect=self._connect_seconds())
        path = f"{url}{PREFIX}{path}"
        with (
            self._translated(url),
            http.stream(method, path, params=given, content=sent, headers=headers, timeout=patience) as response,
        ):
            answer = _whole(response, time.monotonic() + (timeout or self._timeout_seconds), _shown(url))
        self.now = _moment(answer) or datetime.now(UTC)
        _refuse_unless_ok(answer, url, expected)
        return answer

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
            raise _unanswered(error, _shown(url)) from None


def checked_url(text: str) -> str:
    """The address of an API, without a slash at its end."""
    hint = "for example --server http://localhost:8000"
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise InvalidRequest(f"{_shown(text)}: not a URL: {error}", code="server.bad-url", hint=hint) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidRequest(
            f"{_shown(text)}: not the URL of an API", code="server.bad-url",
            hint=f"it begins with http:// or https://, {hint}",
        )  # fmt: skip
    if url.query or url.fragment:
        raise InvalidRequest(f"{_shown(text)}: ends with a query or fragment", code="server.bad-url", hint=hint)
    return text.rstrip("/").removesuffix(PREFIX)


def _http(url: str) -> httpx2.Client:
    parsed = httpx2.URL(url)
    # A proxy of the environment is not on the way to this machine. Certificates take a while to load.
    is_here = parsed.host in {"localhost", "127.0.0.1", "::1"}
    return httpx2.Client(
        headers={"User-Agent": f"dagmaster/{__version__}", "Accept": "application/json"},
        trust_env=not is_here,
        verify=parsed.scheme == "https",
    )


def _shown(url: str) -> str:
    from dagmaster.observe.redaction import redact

    return redact(url)


def _segment(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _behind(job_id: UUID) -> str | None:
    """Where a page begins whose first job is this one, or one before it. Ids are in the order of time."""
    return str(UUID(int=job_id.int + 1)) if job_id.int < 2**128 - 1 else None


def _no_job(name: str) -> NotFound:
    return NotFound(f"no job has the id {name}", code="job.not-found", hint="see `dagmaster jobs ls`")


def _moment(answer: httpx2.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError):
        return None


def _whole(response: httpx2.Response, until: float, url: str) -> httpx2.Response:
    """The answer, if it comes to an end: in time, and at a size that a command can hold."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > _LARGEST_ANSWER_BYTES:
            raise unexpected(f"it has more than {_LARGEST_ANSWER_BYTES:,} bytes")
        if time.monotonic() > until:
            raise Unavailable(
                f"{url} took too long to answer", code="server.slow", hint="try again; is the platform overloaded?"
            )
        parts.append(part)
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() != "content-encoding"]
    return httpx2.Response(response.status_code, headers=headers, content=b"".join(parts), request=response.request)


def _events(response: httpx2.Response) -> Iterator[StreamedEvent]:
    for frame in httpx2.EventSource(response, max_event_size=_LARGEST_EVENT_BYTES):
        if frame.event == "progress":
            yield StreamedEvent(None, frame.data)
        elif frame.id.isascii() and frame.id.isdigit() and frame.data:
            yield StreamedEvent(int(frame.id), frame.data)


# --- errors ----------------------------------------------------------------------------------------------------------


def _unanswered(error: httpx2.HTTPError, url: str) -> Unavailable:
    """Why there was no answer."""
    reason = _reason(error)
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return Unavailable(
                f"no platform answers at {url}: {reason or 'no connection within seconds'}", code="server.unreachable",
                hint="is it running? check the address (--server, DAGMASTER_URL), or start one with `dagmaster up`",
            )  # fmt: skip
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


def _refuse_unless_ok(answer: httpx2.Response, url: str, expected: str) -> None:
    """Raise what the platform says was wrong, or that this is no platform."""
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.is_redirect:
        target = _shown(answer.headers.get("location", "nowhere"))
        raise Unavailable(
            f"{_shown(url)} sends us on to {target}", code="server.redirects",
            hint="give the final address with --server",
        )  # fmt: skip
    if media_type == "application/problem+json":
        raise _problem(answer)
    if answer.is_error:
        raise _bare_error(answer, _shown(url), media_type)
    if media_type != expected:
        raise Unavailable(
            f"{_shown(url)} answers, but not as the API of a platform does ({media_type or 'no content type'})",
            code="server.not-a-platform",
            hint="check the address (--server, DAGMASTER_URL); is something else listening there?",
        )


def _kind_of(status: int) -> type[DagmasterError]:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable
    return _KINDS.get(status, InvalidRequest)


def _bare_error(answer: httpx2.Response, url: str, media_type: str) -> DagmasterError:
    """An error of something in between: a proxy, a gateway, another program."""
    said = f"{answer.status_code} {answer.reason_phrase}".strip()
    return _kind_of(answer.status_code)(
        f"{url} answers {said}, and not as the API of a platform does ({media_type or 'no content type'})",
        code="server.not-a-platform",
        hint="check the address (--server, DAGMASTER_URL), or ask whoever runs what is in front of it",
    )


def _problem(answer: httpx2.Response) -> DagmasterError:
    try:
        told = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        return unexpected("a problem that is not JSON")
    mistakes = told.get("errors")
    if isinstance(mistakes, list) and told.get("code") == InvalidWorkflow.default_code:
        return InvalidWorkflow("workflow", problems_of(mistakes))
    facts = told.get("facts")
    known = {str(name): value for name, value in facts.items()} if isinstance(facts, dict) else {}
    reserved = {"message", "code", "hint"}
    error = _kind_of(answer.status_code)(
        str(told.get("detail") or told.get("title") or answer.status_code),
        code=str(told.get("code") or "server.problem"),
        hint=str(told["hint"]) if told.get("hint") else None,
        **{name: value for name, value in known.items() if name not in reserved},
    )
    error.facts |= {"request_id": told.get("request_id"), "status": answer.status_code}
    return error


def problems_of(mistakes: Sequence[Any]) -> list[WorkflowProblem]:
    """Mistakes in a workflow file, as the platform found them."""
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
