"""The public Python client: against a running engine, and against servers that fail."""

import asyncio
import inspect
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import dagmaster.client
from dagmaster.client import (
    AsyncClient,
    Client,
    Conflict,
    InvalidRequest,
    JobFailed,
    NotFound,
    Unavailable,
    WaitTimedOut,
)
from dagmaster.client.blocking import blocking, iterating
from dagmaster.client.json_client import AsyncJsonClient, JsonClient
from dagmaster.client.models.jobs import JobDetail
from tests.api.serving import api, app_of, ok, served
from tests.engine.harness import engine

SLEEPY = """
workflow_id: sleepy
inputs:
  seconds: {type: number, default: 60}
nodes:
  start: {type: start, next: nap}
  nap: {handler: sleep, params: {seconds: "{{ inputs.seconds }}"}, next: end}
  end: {type: end}
"""
FAILING = """
workflow_id: failing
nodes:
  start: {type: start, next: oops}
  oops: {handler: fail, params: {message: "no such river"}, retry: {max_attempts: 0}, next: end}
  end: {type: end}
"""
JOB = "01a1e1fc-b109-718d-b3a2-6cd03fec0f75"


@asynccontextmanager
async def platform(database: str) -> AsyncIterator[AsyncClient]:
    async with (
        engine(database) as running,
        served(app_of(database, running)) as server,
        AsyncClient(server.url) as client,
    ):
        yield client


@contextmanager
def answering(*answers: tuple[int, Any]) -> Iterator[tuple[Client, list[str]]]:
    """A client of a server that sends these responses and then repeats the last one, and the requests of the client."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            status, body = answers[min(len(requests), len(answers)) - 1]
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}") as client:
            yield client, requests
    finally:
        server.shutdown()
        server.server_close()


async def test_a_job_is_submitted_and_watched_and_its_result_is_read(database):
    async with platform(database) as client:
        job = await client.submit("hello_world", {"name": "Ada"}, correlation_id="mine")
        details = [detail async for detail in client.watch(job.job_id, timeout_seconds=20)]
        result = await client.result(job.job_id)
        events = [event async for event in client.events(job.job_id)]
        followed = [event.sequence async for event in client.follow(job.job_id)]
        listed = [line.job_id async for line in client.jobs(correlation_id="mine")]
        others = [line.job_id async for line in client.jobs(correlation_id="yours")]
        node = await client.node(job.job_id, "greet")
        output = await client.output(job.job_id, "greet")

    assert result == {"message": "Hello, Ada!"}
    assert details[-1].is_over
    assert details[-1].status == "completed"
    assert details[-1].job.inputs == {"name": "Ada"}
    sequences = [detail.job.last_sequence for detail in details]
    assert sequences == sorted(sequences)
    assert [event.sequence for event in events] == followed == list(range(1, sequences[-1] + 1))
    assert (listed, others) == ([job.job_id], [])
    assert node.node.params == {"name": "Ada"}
    assert output == {"message": "Hello, Ada!"}


async def test_a_job_that_fails_raises_an_error_with_its_reason_and_can_be_run_again(database):
    async with platform(database) as client:
        job = await client.submit("failing", definition=FAILING)
        with pytest.raises(JobFailed) as raised:
            await client.result(job.job_id, timeout_seconds=20)
        planned = await client.resume(job.job_id, dry_run=True)
        again = await client.retry(job.job_id, node="oops", reason="again")
        after = await client.wait(job.job_id, timeout_seconds=20)

    assert "no such river" in raised.value.message
    assert raised.value.code == "job.failed"
    assert "resume" in (raised.value.hint or "")
    assert (planned.status, planned.nodes[0]) == ("dry_run", "oops")
    assert again.status == "resumed"
    assert after.status == "failed"


async def test_waiting_for_a_job_can_time_out_and_the_job_can_be_cancelled(database):
    async with platform(database) as client:
        job = await client.submit("sleepy", definition=SLEEPY)
        with pytest.raises(WaitTimedOut) as raised:
            await client.wait(job.job_id, timeout_seconds=0.3)
        await client.cancel(job.job_id, reason="enough")
        ended = await client.wait(job.job_id, timeout_seconds=20)
        with pytest.raises(JobFailed, match="cancellation requested by local: enough"):
            await client.result(job.job_id)

    assert isinstance(raised.value, TimeoutError)
    assert ended.status == "cancelled"


async def test_workflows_jobs_instances_and_queues_can_be_listed(database):
    async with platform(database) as client:
        workflows = await client.workflows()
        one = await client.workflow("hello_world")
        workers = await client.workers()
        orchestrators = await client.orchestrators()
        queues = await client.queues()
        for _ in range(5):
            await client.submit("hello_world")
        three = [job async for job in client.jobs(limit=3)]
        newest = await client.find_job("last")

    assert "hello_world" in [workflow.workflow_id for workflow in workflows]
    assert one.inputs_schema["properties"]["name"]["type"] == "string"
    assert (len(workers), len(orchestrators)) == (1, 1)
    assert queues
    assert len(three) == 3
    assert newest == three[0].job_id


async def test_errors_have_a_class_a_code_a_hint_and_a_status(database):
    async with platform(database) as client:
        with pytest.raises(NotFound) as missing:
            await client.job(JOB)
        with pytest.raises(InvalidRequest) as bad:
            await client.submit("hello_world", {"unknown": 1})
        with pytest.raises(InvalidRequest) as no_id:
            await client.job("../workers")
        job = await client.submit("hello_world")
        await client.wait(job.job_id, timeout_seconds=20)
        with pytest.raises(Conflict) as ended:
            await client.cancel(job.job_id)

    assert (missing.value.code, missing.value.status) == ("job.not-found", 404)
    assert (bad.value.status, bool(bad.value.facts["request_id"])) == (400, True)
    assert (no_id.value.code, no_id.value.status) == ("job.bad-id", None)
    assert (ended.value.code, ended.value.status) == ("job.ended", 409)


async def test_each_change_of_a_job_is_reported(database):
    seen: list[JobDetail] = []
    async with platform(database) as client:
        job = await client.submit("sleepy", {"seconds": 1.5}, definition=SLEEPY)
        await client.wait(job.job_id, timeout_seconds=20, on_change=seen.append)

    assert [detail.status for detail in seen][-1] == "completed"
    assert "running" in [node.state for detail in seen for node in detail.nodes]


async def test_the_blocking_client_works_inside_a_running_event_loop(database):
    """A notebook, for example, has a running event loop."""
    async with engine(database) as running, served(app_of(database, running)) as server:

        def use() -> Any:
            with Client(server.url) as client:
                job = client.submit("hello_world", {"name": "Ada"})
                statuses = [detail.status for detail in client.watch(job.job_id, timeout_seconds=20)]
                return statuses[-1], client.result(job.job_id), [line.job_id for line in client.jobs()] == [job.job_id]

        response = await asyncio.to_thread(use)

    assert response == ("completed", {"message": "Hello, Ada!"}, True)

    async def nested() -> str:
        with answering((200, {"items": [], "next": None})) as (client, _):
            return str(client.workflows())

    assert await nested() == "[]"


async def test_both_names_of_a_field_are_accepted_and_sent(database):
    async with engine(database) as running, api(database, running) as http:
        for name in ("inputs", "input_params"):
            body = {"workflow_id": "hello_world", name: {"name": "Ada"}, "idempotency_key": name}
            accepted = await ok(http.post("/api/v1/jobs", json=body), 202)
            await running.wait(accepted["job_id"], until=("completed",))
            repeated = await ok(http.post("/api/v1/jobs", json=body))
            detail = await ok(http.get(f"/api/v1/jobs/{accepted['job_id']}"))
            node = await ok(http.get(f"/api/v1/jobs/{accepted['job_id']}/nodes/greet"))

            assert repeated["result"] == repeated["result_data"] == {"message": "Hello, Ada!"}
            assert detail["job"]["inputs"] == detail["job"]["input_params"] == {"name": "Ada"}
            assert detail["job"]["result"] == detail["job"]["result_data"] == {"message": "Hello, Ada!"}
            assert node["node"]["params"] == node["node"]["input_params"] == {"name": "Ada"}
        both = {"workflow_id": "hello_world", "inputs": {}, "input_params": {}}
        refused = await http.post("/api/v1/jobs", json=both)

    assert refused.status_code == 422
    assert "both `inputs` and `input_params` were sent" in refused.json()["detail"]
    assert "unknown field" not in refused.text


def problem(status: int) -> tuple[int, Any]:
    return status, {"detail": "away", "code": "database.unavailable"}


def test_a_read_is_repeated_while_the_platform_is_unavailable():
    with answering(problem(503), problem(502), (200, {"items": [], "next": None})) as (client, requests):
        assert client.queues() == []

    assert len(requests) == 3


def test_a_read_is_repeated_a_limited_number_of_times():
    with answering(problem(503)) as (client, requests), pytest.raises(Unavailable) as raised:
        client.queues()

    assert (raised.value.status, len(requests)) == (503, 3)


def test_names_in_urls_are_quoted():
    with answering((200, {"items": [], "next": None})) as (client, requests):
        client.json.workflow("a/b?c")
        client.json.graph("a/b?c")
        client.json.definitions("a/b?c")
        client.json.definition("a/b?c", "d/e")
        client.json.workflow_statistics("a/b?c")

    workflow = "GET /api/v1/workflows/a%2Fb%3Fc"
    assert [line.partition("?")[0] for line in requests] == [
        workflow,
        f"{workflow}/graph",
        f"{workflow}/definitions",
        f"{workflow}/definitions/d%2Fe",
        f"{workflow}/statistics",
    ]


@pytest.mark.parametrize(("count", "ending"), [(2, ""), (3, ""), (4, ", …")])
def test_the_error_for_an_ambiguous_id_lists_up_to_three_matches(count, ending):
    ids = [f"{JOB[:-1]}{digit}" for digit in range(count)]
    jobs = {"items": [{"job_id": job_id} for job_id in ids], "next": None}
    letters = {"items": [{"dead_letter_id": letter_id} for letter_id in ids], "next": None}
    with answering((200, jobs), (200, letters)) as (client, _):
        with pytest.raises(InvalidRequest) as job:
            client.find_job(JOB[:-1])
        with pytest.raises(InvalidRequest) as letter:
            client.json.find_dead_letter(JOB[:-1])

    matches = f"an id that begins with {JOB[:-1]}: {', '.join(ids[:3])}{ending}"
    assert job.value.message == f"several jobs have {matches}"
    assert letter.value.message == f"several dead letters have {matches}"


@pytest.mark.parametrize(("key", "count"), [(None, 1), ("mine", 3)])
def test_a_submission_is_repeated_only_with_an_idempotency_key(key, count):
    with answering(problem(503)) as (client, requests), pytest.raises(Unavailable):
        client.submit("hello_world", idempotency_key=key)

    assert len(requests) == count


@pytest.mark.parametrize("call", ["resume", "cancel"])
def test_a_request_that_changes_a_job_is_sent_once(call):
    with answering(problem(503)) as (client, requests), pytest.raises(Unavailable):
        getattr(client, call)(JOB)

    assert len(requests) == 1


def test_a_request_that_was_refused_is_not_repeated():
    with answering(problem(404)) as (client, requests), pytest.raises(NotFound):
        client.job(JOB)

    assert len(requests) == 1


def test_texts_are_returned_as_the_platform_sent_them():
    """The command line escapes control characters; a program gets the value itself."""
    queue = {"queue": "a\x1b[31mb\r", "kind": "tasks", "depth": 0, "running_count": 0, "live_workers": 0}
    page = {"items": [{**queue, "is_paused": False}], "next": None}
    with answering((200, page)) as (client, _):
        assert client.queues()[0].queue == "a\x1b[31mb\r"


def test_datasets_are_read_page_by_page():
    collections = [{"id": f"dem/{number}", "extent": {"spatial": {"bbox": [[1, 2, 3, 4]]}}} for number in range(3)]
    following = {"rel": "next", "href": "http://elsewhere.example/stac/collections?limit=200&offset=2"}
    pages = [(200, {"collections": collections[:2], "links": [following]}), (200, {"collections": collections[2:]})]
    with answering(*pages) as (other, requests):
        server = other.json._asynchronous.connection._find()
        with Client("http://127.0.0.1:1", maps=server) as client:
            datasets = client.datasets()

    assert [dataset.dataset_id for dataset in datasets] == ["dem/0", "dem/1", "dem/2"]
    assert datasets[0].bbox == (1, 2, 3, 4)
    assert datasets[0].map_url == f"{server}/tiles/dem%2F0/map"
    assert requests == ["GET /stac/collections?limit=200", "GET /stac/collections?limit=200&offset=2"]


def test_without_a_platform_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("DAGMASTER_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("PUBLIC_URL", raising=False)
    monkeypatch.setenv("DAGMASTER_DATA", str(tmp_path))
    with Client() as client:
        with pytest.raises(Unavailable) as raised:
            client.workflows()
        with pytest.raises(Unavailable) as no_maps:
            client.datasets()

    assert raised.value.code == "platform.none"
    assert "DAGMASTER_URL" in (raised.value.hint or "")
    assert no_maps.value.code == "maps.none"


def test_the_url_of_the_platform_is_read_from_the_environment(monkeypatch):
    with answering((200, {"items": [], "next": None})) as (other, requests):
        monkeypatch.setenv("DAGMASTER_URL", other.json._asynchronous.connection._find())
        with Client() as client:
            client.workflows()

    assert requests


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"), [(AsyncClient, Client), (AsyncJsonClient, JsonClient)], ids=["typed", "json"]
)
def test_the_blocking_client_has_every_method_and_shares_its_code(asynchronous, synchronous):
    methods = {name: value for name, value in vars(asynchronous).items() if inspect.isfunction(value)}
    public = {name for name in methods if not name.startswith("_") and name != "close"}
    wrapped = {name: value for name, value in vars(synchronous).items() if isinstance(value, blocking | iterating)}

    assert wrapped.keys() == public
    for name, wrapper in wrapped.items():
        assert wrapper._method is methods[name]
        assert isinstance(wrapper, iterating) == inspect.isasyncgenfunction(methods[name])


def test_the_public_names_can_be_imported():
    for name in dagmaster.client.__all__:
        assert getattr(dagmaster.client, name).__name__ == name
    with pytest.raises(AttributeError):
        dagmaster.client.nothing  # noqa: B018


def test_the_models_and_limits_are_imported_without_the_client():
    """The command line imports them at each start."""
    code = "import sys, dagmaster.client.escaping; sys.exit('httpx2' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ctrl_c_ends_a_call_that_waits():
    code = (
        "import socket\n"
        "from dagmaster.client import Client\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "client = Client(f'http://127.0.0.1:{listener.getsockname()[1]}')\n"
        "print('waiting', flush=True)\n"
        "try:\n    client.workflows()\nexcept KeyboardInterrupt:\n    client.close()\n    print('interrupted')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)

    assert (process.returncode, out) == (0, "interrupted\n")


def test_several_threads_can_share_a_client():
    with answering((200, {"items": [], "next": None})) as (client, requests):
        threads = [threading.Thread(target=client.queues) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    assert len(requests) == 8


def test_a_closed_client_can_be_used_again_and_leaves_no_thread():
    before = set(threading.enumerate())  # clients of other tests may not be collected yet
    with answering((200, {"items": [], "next": None})) as (client, requests):
        client.queues()
        client.close()
        assert "dagmaster-client" not in {thread.name for thread in set(threading.enumerate()) - before}
        client.queues()

    assert len(requests) == 2
