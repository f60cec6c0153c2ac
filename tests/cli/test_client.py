"""The client with servers that send wrong responses."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dagmaster.cli.main import describe_error
from dagmaster.client.connection import checked_url
from dagmaster.client.json_client import JsonClient, Outage, StreamedEvent
from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.errors import (
    Conflict,
    DagmasterError,
    InvalidRequest,
    InvalidWorkflow,
    NotAllowed,
    NotFound,
    Unavailable,
)

JOB = "01a1e1fc-b109-718d-b3a2-6cd03fec0f75"
Answering = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def client_of_server(answer: Answering, timeout_seconds: float = 5) -> Iterator[JsonClient]:
    """A client of a server that sends this response to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    client = JsonClient.of(lambda: f"http://127.0.0.1:{server.server_port}", timeout_seconds)
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()


def response_with(status: int, media_type: str | None, body: bytes = b"", **headers: str) -> Answering:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        if media_type:
            request.send_header("Content-Type", media_type)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def json_response(value: object) -> Answering:
    return response_with(200, "application/json", json.dumps(value).encode())


def problem_response(status: int, **members: object) -> Answering:
    problem = {"title": "x", "status": status, "detail": "it is so", "code": "some.code", "hint": "do this", **members}
    return response_with(status, "application/problem+json", json.dumps(problem).encode())


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("answer", "message", "code", "exit_code"),
    [
        (
            response_with(200, "text/html", b"<html>"),
            "it is not the API of a platform (text/html)",
            "server.not-a-platform",
            5,
        ),
        (response_with(200, None), "(no content type)", "server.not-a-platform", 5),
        (response_with(502, "text/html", b"<html>"), "responds with 502 Bad Gateway", "server.not-a-platform", 5),
        (response_with(401, None), "responds with 401 Unauthorized", "server.not-a-platform", 3),
        (response_with(404, "text/html"), "responds with 404 Not Found", "server.not-a-platform", 4),
        (
            response_with(302, None, Location="http://u:hush@elsewhere/"),
            "redirects to http://u:***@elsewhere/",
            "server.redirects",
            5,
        ),
        (response_with(200, "application/json", b"{oops"), "it is not JSON", "server.unexpected", 5),
        (response_with(200, "application/json", b"[]"), "it is not an object", "server.unexpected", 5),
        (response_with(400, "application/problem+json", b"<"), "a problem that is not JSON", "server.unexpected", 5),
        (response_with(200, "application/json", b"{", **{"Content-Length": "9"}), "was lost", "server.lost", 5),
        (
            response_with(200, "application/json", b"no", **{"Content-Encoding": "gzip"}),
            "is not valid",
            "server.unexpected",
            5,
        ),
        (lambda request: request.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "was lost", "server.lost", 5),
    ],
)
def test_an_unexpected_response_is_reported_with_its_cause(answer, message, code, exit_code):
    with client_of_server(answer) as client, pytest.raises(DagmasterError) as raised:
        client.job(JOB)

    assert message in raised.value.message
    assert raised.value.code == code
    assert describe_error(raised.value)[0] == exit_code


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        (400, InvalidRequest, 2),
        (401, NotAllowed, 3),
        (403, NotAllowed, 3),
        (404, NotFound, 4),
        (409, Conflict, 4),
        (413, InvalidRequest, 2),
        (422, InvalidRequest, 2),
        (429, Unavailable, 5),
        (500, Unavailable, 5),
        (503, Unavailable, 5),
    ],
)
def test_a_problem_is_raised_as_the_error_of_the_platform(status, kind, exit_code):
    with (
        client_of_server(problem_response(status, facts={"queue": "q", "message": "m"}, request_id="abc")) as client,
        pytest.raises(kind) as raised,
    ):
        client.job(JOB)

    error = raised.value
    assert (error.message, error.code, error.hint) == ("it is so", "some.code", "do this")
    assert error.facts == {"queue": "q", "request_id": "abc", "status": status}
    assert describe_error(error)[0] == exit_code


@pytest.mark.requirement("W3")
def test_mistakes_in_a_workflow_keep_their_lines():
    mistake = {"message": "wrong", "line": 3, "column": 5, "node": "a", "code": "workflow.x"}

    answer = problem_response(422, code="workflow.invalid", errors=[mistake])
    with client_of_server(answer) as client, pytest.raises(InvalidWorkflow) as raised:
        client.submit({"workflow_id": "w"})

    assert raised.value.message == "workflow:3:5: node 'a': wrong"


@pytest.mark.requirement("M3")
def test_an_unreachable_server_is_distinguished_from_a_slow_one():
    done = threading.Event()

    with client_of_server(lambda _: done.wait(1) and None, 0.2) as client, pytest.raises(Unavailable) as slow:
        client.job(JOB)
    done.set()
    with pytest.raises(Unavailable) as refused:
        JsonClient.of(lambda: "http://127.0.0.1:1").job(JOB)

    assert slow.value.code == "server.slow"
    assert refused.value.code == "server.unreachable"
    assert "Connection refused" in refused.value.message


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://here", "http://", "http://[::1", "http://here/?a=1", "http://here/#x", "/run/socket"],
)
def test_an_invalid_url_of_an_api_is_refused(url):
    with pytest.raises(InvalidRequest) as raised:
        checked_url(url)

    assert raised.value.code == "server.bad-url"
    assert "--server http://localhost:8000" in (raised.value.hint or "")


@pytest.mark.requirement("M3")
def test_a_url_can_have_a_path_and_a_trailing_slash():
    assert checked_url("https://gateway/dagmaster/") == "https://gateway/dagmaster"
    assert checked_url("http://localhost:8000/api/v1") == "http://localhost:8000"


@pytest.mark.requirement("M3")
def test_a_request_that_is_too_large_is_not_sent():
    with client_of_server(json_response({})) as client, pytest.raises(InvalidRequest) as raised:
        client.submit({"workflow_id": "w", "input_params": {"text": "x" * MAX_BODY_BYTES}})

    assert raised.value.code == "request.too-large"


@pytest.mark.requirement("M3")
def test_lists_are_requested_in_pages_until_the_limit():
    requests = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        requests.append(request.path)
        items = [{"sequence": len(requests) * 1000 + number} for number in range(200)]
        json_response({"items": items, "next": str(len(requests))})(request)

    with client_of_server(answer) as client:
        events, following = client.events(JOB, 400)

    assert len(events) == 400
    assert following == "2"
    assert [path.partition("?")[2] for path in requests] == ["limit=200&after=0", "limit=200&after=1"]


@pytest.mark.requirement("M3")
def test_after_a_lost_connection_the_platform_is_located_again():
    """It may have been restarted on another port."""
    urls = iter(["http://127.0.0.1:1"])

    with client_of_server(json_response({"job": 1})) as other:
        other.job(JOB)
        client = JsonClient.of(lambda: next(urls, None) or other._asynchronous.connection.url)
        with pytest.raises(Unavailable):
            client.job(JOB)

        assert client.job(JOB) == {"job": 1}


def frames(*sequences: int) -> bytes:
    return b"".join(b'id: %d\nevent: x\ndata: {"sequence": %d}\n\n' % (number, number) for number in sequences)


@pytest.mark.requirement("M3")
def test_an_interrupted_stream_continues_without_gaps_or_duplicates():
    """The server ends streams early, repeats and omits events, and is unavailable; the client gets each event once."""

    def open_ended(body: bytes) -> Answering:
        def answer(request: BaseHTTPRequestHandler) -> None:
            response_with(200, "text/event-stream", body)(request)
            is_left_open.append(not requested_again.wait(2))

        return answer

    outputs = [
        response_with(200, "text/event-stream", b"retry: 1\n\n: still here\n\n" + frames(1, 2)),
        response_with(503, "application/problem+json", b'{"detail": "away", "code": "database.unavailable"}'),
        response_with(200, "text/event-stream", frames(1, 2, 3), **{"Content-Length": "9999"}),
        open_ended(frames(4, 6)),
        response_with(200, "text/event-stream", frames(5, 6)),
        response_with(204, None),
    ]
    last_event_ids = []
    requested_again, is_left_open = threading.Event(), []

    def answer(request: BaseHTTPRequestHandler) -> None:
        last_event_ids.append(int(request.headers["Last-Event-ID"]))
        if len(last_event_ids) > 4:
            requested_again.set()
        outputs[len(last_event_ids) - 1](request)

    with client_of_server(answer) as client:
        updates = list(client.follow(JOB, 0))
    seen = [update.sequence for update in updates if isinstance(update, StreamedEvent)]
    troubles = [update.error.code for update in updates if isinstance(update, Outage)]

    assert seen == [1, 2, 3, 4, 5, 6]
    assert last_event_ids == [0, 2, 2, 3, 4, 6]
    assert troubles == ["database.unavailable", "server.lost"]
    assert is_left_open == [False]


@pytest.mark.requirement("M3")
def test_a_response_that_is_not_a_stream_is_refused():
    with client_of_server(response_with(200, "text/html", b"<html>")) as client:
        update = next(client.follow(JOB, 0))

    assert isinstance(update, Outage)
    assert update.error.code == "server.not-a-platform"


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" " * 65536)
    except OSError:
        return


def slow_body(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" ")
            time.sleep(0.1)
    except OSError:
        return


def test_an_endless_response_is_refused(monkeypatch):
    monkeypatch.setattr("dagmaster.client.connection._MAX_RESPONSE_BYTES", 1_000_000)
    with client_of_server(endless) as client, pytest.raises(Unavailable, match="more than 1,000,000 bytes"):
        client.job(JOB)


def test_a_slow_response_ends_after_the_timeout():
    with client_of_server(slow_body, timeout_seconds=0.5) as client, pytest.raises(Unavailable, match="took too long"):
        client.job(JOB)


def test_a_response_that_is_too_large_after_decompression_is_refused(monkeypatch):
    monkeypatch.setattr("dagmaster.client.connection._MAX_RESPONSE_BYTES", 1_000_000)
    bomb = gzip.compress(b" " * 20_000_000)
    answer = response_with(200, "application/json", bomb, **{"Content-Encoding": "gzip"})
    with client_of_server(answer) as client, pytest.raises(Unavailable, match="more than 1,000,000 bytes"):
        client.job(JOB)


def test_a_compressed_response_is_read():
    packed = gzip.compress(json.dumps({"job": 1}).encode())
    with client_of_server(response_with(200, "application/json", packed, **{"Content-Encoding": "gzip"})) as client:
        assert client.job(JOB) == {"job": 1}


@pytest.mark.parametrize("page", [{"items": [], "next": "x"}, {"items": [{"a": 1}], "next": 7}])
def test_an_invalid_next_page_is_refused(page):
    with (
        client_of_server(json_response(page)) as client,
        pytest.raises(Unavailable, match="`next` of a page is not valid"),
    ):
        client.workflows()
