"""A worker without database access: the real loop over the real API, with faults between them."""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from httpx2 import ReadError, Response
from tests.engine.harness import Engine, engine, fast_settings, open_gate, until, workflow
from tests.traces import Collector, facts
from tests.worker.over_http import a_key, connection_with, platform, worker_api

from dagmaster.access.worker_ids import is_worker_of, new_worker_id
from dagmaster.api.task_watch import MAX_WAITING, WOKEN_AT_ONCE, TaskWatch
from dagmaster.client.models.worker import ClaimedTask, StartedWorker, TaskDemand
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.ledger.protocol import Demand, Report, Running
from dagmaster.database.reads.remote_workers import ClaimableHandler
from dagmaster.errors import Conflict, Fenced, InvalidRequest, NotAllowed, NotFound, Unavailable, UnfitData
from dagmaster.handlers.registry import Registry, installed
from dagmaster.handlers.shipped import REGISTRATIONS
from dagmaster.jobs.model import TaskMessage, task_id
from dagmaster.jobs.payload import LOADABLE_BYTES, reference_to
from dagmaster.jobs.states import TaskStatus
from dagmaster.operations.keys.revoke import revoke_key
from dagmaster.roles.remote_worker import wired, without_database
from dagmaster.settings import load
from dagmaster.worker.http import ledger as http_ledger
from dagmaster.worker.http.ledger import HttpLedger, HttpPayloads
from dagmaster.worker.http.requests import WorkerRequests, translated
from dagmaster.worker.http.start import limited_settings, start
from dagmaster.worker.http.transport import HttpTransport
from dagmaster.worker.loop import Worker

pytestmark = pytest.mark.requirement("E7", "Q3", "H1")

JOB = UUID("0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01")  # part of the names of tests, which must not change


@asynccontextmanager
async def remote(running: Engine, app: Any, key: str, **settings: Any) -> AsyncIterator[Worker]:
    """A worker in this process that uses the app with a key."""
    connection = connection_with(app, key)
    started = await start(connection)
    chosen = limited_settings(fast_settings(**settings), started)
    worker = wired(chosen, started, WorkerRequests(connection), running.registry)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 20)
        await connection.close()


LARGE = workflow("""
    workflow_id: large_values
    inputs: {list: {type: array, default: [0, 1, 2]}, text: {type: string}}
    nodes:
      start: {type: start, next: tiles}
      tiles:
        type: fan_out
        source: "{{ inputs.list }}"
        task: {handler: give, params: {value: ["{{ inputs.text }}", "{{ inputs.text }}"]}}
      gather: {type: fan_in, aggregation: collect, depends_on: {all_of: [tiles]}, next: read}
      read: {type: fan_out, results_of: tiles, batch_size: 2, task: {handler: collect_results}}
      read_in: {type: fan_in, aggregation: collect, depends_on: {all_of: [read]}, next: end}
      end: {type: end}
""")


PHASES = workflow("""
    workflow_id: phases
    nodes:
      start: {type: start, next: work}
      work: {handler: multi_phase, next: end}
      end: {type: end}
""")


async def test_a_worker_over_http_runs_the_same_tasks_as_a_worker_with_a_database(database):
    """Plain handlers with checkpoints, fan_outs, large params, outputs and results, progress and log lines."""
    key = await a_key(database, "partner")
    async with engine(database, workers=0) as running, platform(database) as app:
        async with remote(running, app, key) as worker:
            demo = await running.run("demo", count=20)
            phases = await running.run(PHASES)
            large = await running.run(LARGE, text="x" * 200_000)
            (listed,) = await running.rows("SELECT * FROM dagapp.workers")
        workers_left = await running.rows("SELECT * FROM dagapp.workers")
        results = await running.rows("SELECT DISTINCT worker_id FROM dagapp.dag_task_results")

    assert demo["status"] == "completed", demo["error_message"]
    assert phases["status"] == "completed", phases["error_message"]
    assert large["status"] == "completed", large["error_message"]
    assert listed["worker_id"] == worker.worker_id
    assert is_worker_of(worker.worker_id, "partner")
    assert "raster.validate" not in listed["handlers"]
    assert "echo" in listed["handlers"]
    assert workers_left == []
    assert results == [{"worker_id": worker.worker_id}]


async def test_the_trace_of_a_job_reaches_a_worker_over_http(database):
    key = await a_key(database, "partner")
    with Collector.running() as collector:
        async with engine(database, workers=0) as running, platform(database) as app, remote(running, app, key):
            await running.run("echo_test")

    (step,) = [each for each in collector.named("advance job") if facts(each)["tasks"]]
    (attempt,) = collector.named("task echo")
    assert (attempt.trace_id, attempt.parent_span_id) == (step.trace_id, step.span_id)


class OlderApi:
    """The API of a release without a field: the field is renamed, so that the real API refuses it as unknown."""

    def __init__(self, app: Any, field: str) -> None:
        self._app = app
        self._field = field.encode()
        self._renamed = b"older_" + self._field
        self.refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_renamed() -> Any:
            message = await receive()
            body = message.get("body", b"")
            self.refused += b'"%s"' % self._field in body
            return message | {"body": body.replace(b'"%s"' % self._field, b'"%s"' % self._renamed)}

        async def send_renamed(message: Any) -> None:
            await send(message | {"body": message.get("body", b"").replace(self._renamed, self._field)})

        await self._app(scope, receive_renamed, send_renamed)


@pytest.mark.parametrize("unknown", [(), ("free_slots",), ("free_slots", "rooms")], ids=len)
async def test_a_worker_over_http_limits_its_queues(database, unknown):
    key = await a_key(database, "partner")
    many = workflow("""
        workflow_id: many_gates
        nodes:
          start: {type: start, next: split}
          split: {type: fan_out, source: [1, 2, 3, 4, 5], task: {handler: gate}, next: end}
          end: {type: end}
    """)
    limits = {"worker_queue_concurrency": ("dag-worker-tasks=2",)}
    async with (
        engine(database, workers=0) as running,
        platform(database) as app,
        _as_older(app, unknown) as older,
        remote(running, older[-1] if older else app, key, **limits) as worker,
    ):
        job_id = await running.submit(many)
        await until(lambda: _holds(worker, 2))
        await asyncio.sleep(0.3)
        held = len(worker.held_tasks)
        open_gate(job_id)
        job = await running.wait(job_id, 30)

    assert held == 2
    assert job["status"] == "completed"
    # Each field is refused once, and then tasks are requested in the way that the platform supports.
    assert [api.refused for api in older] == [1] * len(unknown)


@asynccontextmanager
async def _as_older(app: Any, fields: tuple[str, ...]) -> AsyncIterator[list[OlderApi]]:
    """APIs of older and older releases: each lacks one more of these fields than the one before it."""
    apis: list[OlderApi] = []
    for field in fields:
        apis.append(OlderApi(apis[-1] if apis else app, field))
    yield apis


async def _holds(worker: Worker, count: int) -> bool:
    return len(worker.held_tasks) == count


GATED = workflow("""
    workflow_id: gated
    nodes:
      start: {type: start, next: work}
      work: {handler: gate, next: end, retry: {max_attempts: 0}}
      end: {type: end}
""")


async def test_cancel_pause_and_running_reach_a_worker_over_http(database):
    key = await a_key(database, "partner")
    async with (
        engine(database, workers=0) as running,
        platform(database) as app,
        remote(running, app, key) as worker,
    ):
        job_id = await running.submit(GATED)
        shown = await until(lambda: _shows(running, job_id, "running"))
        await running.ledger.request_cancel(job_id, by="test", reason=None)
        cancelled = await running.wait(job_id)
        await running.ledger.set_queue("dag-worker-tasks", is_paused=True)
        paused = await running.submit(GATED)
        open_gate(paused)
        await until(lambda: _queued(running, paused))
        await asyncio.sleep(0.3)
        claimed_while_paused = worker.counters.claimed
        await running.ledger.set_queue("dag-worker-tasks", is_paused=False)
        completed = await running.wait(paused)

    assert shown
    assert cancelled["status"] == "cancelled"
    assert claimed_while_paused == 1
    assert completed["status"] == "completed"


async def _shows(running: Engine, job_id: UUID, status: str) -> bool:
    return (await running.nodes(job_id))["work"]["status"] == status


async def _queued(running: Engine, job_id: UUID) -> bool:
    return any(task["status"] == "queued" for task in await running.tasks(job_id))


class LosingApi:
    """An API whose first response to each kind of request is lost after the request has taken effect."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.lost: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = f"{scope['method']} {scope['path'].rpartition('/')[2]}"
        if scope["method"] == "DELETE" or kind in self.lost:
            await self._app(scope, receive, send)
            return
        messages: list[Any] = []

        async def keep(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        if kind != "POST stops" or b"work_1" in messages[-1]["body"]:  # most of these are empty
            self.lost.add(kind)
            raise ReadError("the connection was closed")
        for message in messages:
            await send(message)


async def test_the_loss_of_any_response_has_no_effect_on_jobs(database):
    key = await a_key(database, "partner")
    times = {"task_lease_sec": 2, "lease_renew_sec": 0.5}
    async with engine(database, workers=0, **times) as running, platform(database, **times) as app:
        losing = LosingApi(app)
        async with remote(running, losing, key, **times) as worker:
            large = await running.run(LARGE, 40, text="x" * 200_000)
            phases = await running.run(PHASES, 40)
            gated = await running.submit(GATED)
            await until(lambda: _shows(running, gated, "running"))
            await running.ledger.request_cancel(gated, by="test", reason=None)
            cancelled = await running.wait(gated)
            results = await running.rows(
                "SELECT job_id, node_id FROM dagapp.dag_task_results WHERE accepted AND status = 'succeeded'"
            )
            late = worker.counters.late_reports

    assert large["status"] == "completed", large["error_message"]
    assert phases["status"] == "completed", phases["error_message"]
    assert cancelled["status"] == "cancelled"
    assert len(results) == len({tuple(row.values()) for row in results})
    assert late == 0  # a report that is sent again is not late
    assert losing.lost == {
        *("POST start", "PUT heartbeat", "POST wait", "POST exchange", "POST report", "POST renew", "POST stops"),
        *("POST running", "GET params", "GET results", "GET checkpoints", "PUT checkpoints", "PUT output"),
    }


async def test_a_worker_keeps_running_tasks_and_results_during_an_outage_of_the_platform(database):
    """No responses arrive, as when all instances restart. The handler ends meanwhile, and its report is sent later."""
    key = await a_key(database, "partner")
    async with (
        engine(database, workers=0, task_lease_sec=30) as running,
        platform(database, task_lease_sec=30) as app,
        remote(running, app, key, task_lease_sec=30) as worker,
    ):
        connection = worker._ledger._requests._connection
        answering = connection._connected
        job_id = await running.submit(GATED)
        await until(lambda: _shows(running, job_id, "running"))
        connection._connected = (answering[0], _UnreachablePlatform())
        open_gate(job_id)
        await until(lambda: _is_finished(worker))
        outages = worker.counters.outages
        connection._connected = answering
        job = await running.wait(job_id)
        tasks = await running.tasks(job_id)

    assert outages
    assert job["status"] == "completed"
    assert [task["attempt"] for task in tasks] == [1]


async def _is_finished(worker: Worker) -> bool:
    return bool(worker._finished) and worker._failures > 1


class _UnreachablePlatform:
    """A client of a platform that does not respond."""

    def stream(self, *_arguments: Any, **_options: Any) -> Any:
        import httpx2

        raise httpx2.ConnectError("Connection refused")

    async def aclose(self) -> None: ...


async def test_the_task_of_a_worker_whose_key_is_revoked_is_lost_and_run_by_another(database):
    """Its requests are refused from then on, so that its lease expires and its result is not accepted."""
    key = await a_key(database, "partner")
    times = {"task_lease_sec": 2, "lease_renew_sec": 0.5}
    async with (
        engine(database, workers=0, **times) as running,
        platform(database, **times) as app,
        remote(running, app, key, **times) as worker,
    ):
        job_id = await running.submit(GATED)
        await until(lambda: _shows(running, job_id, "running"))
        async with KeyStore(database) as store:
            await revoke_key(store, key.split("_")[1], KeyChange("test"))
        other = await running.start_worker()
        await until(lambda: _holds(other, 1), 20)
        open_gate(job_id)
        job = await running.wait(job_id)
        await until(lambda: _is_finished(worker))  # it tries to report
        tasks = await running.tasks(job_id)
        results = await running.rows("SELECT attempt, worker_id, accepted FROM dagapp.dag_task_results")

    assert job["status"] == "completed"
    assert [(task["attempt"], task["status"]) for task in tasks] == [(1, "lost"), (2, "succeeded")]
    assert results == [{"attempt": 2, "worker_id": other.worker_id, "accepted": True}]


def test_a_refused_key_is_treated_as_an_outage_so_that_results_are_kept():
    refused = translated(NotAllowed("this key was revoked", code="auth.revoked"))

    assert isinstance(refused, Unavailable)
    assert refused.code == "auth.revoked"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("no such path", code="request.not-found"), Unavailable),
        (NotFound("gone", code="payload.missing"), NotFound),
        (NotFound("not yours", code="worker.not-held"), Fenced),
        (InvalidRequest("bad report"), InvalidRequest),
        (Conflict("no"), Conflict),
        (Unavailable("later"), Unavailable),
    ],
)
def test_only_errors_of_the_request_itself_are_not_retried(error, kind):
    assert type(translated(error)) is kind


# --- idle workers ----------------------------------------------------------------------------------------------------


class CountedReads:
    def __init__(self) -> None:
        self.claimable: list[ClaimableHandler] = []
        self.reads = 0
        self.fails = False

    async def claimable_handlers(self, _queues: Any) -> list[ClaimableHandler]:
        self.reads += 1
        if self.fails:
            raise Unavailable("the database is down")
        return self.claimable


class QuietNotifier:
    def __init__(self) -> None:
        self.topics: asyncio.Queue[frozenset[str]] = asyncio.Queue()

    def notify(self, *_topics: str) -> None: ...

    async def wait(self, _timeout_seconds: float) -> frozenset[str]:
        return await self.topics.get()

    async def close(self) -> None: ...


@asynccontextmanager
async def task_watch(poll_seconds: float = 60.0) -> AsyncIterator[tuple[TaskWatch, CountedReads, QuietNotifier]]:
    reads, notifier = CountedReads(), QuietNotifier()
    watch = TaskWatch(reads, {"tasks:q": "q"}, lambda: notifier, poll_seconds)
    yield watch, reads, notifier
    await watch.close()


async def test_hundreds_of_idle_workers_share_one_query_of_the_database():
    async with task_watch(poll_seconds=0.1) as (watch, reads, _):
        waiting = [asyncio.create_task(watch.wait({"q"}, {"echo"}, 0.55)) for _ in range(300)]

        responses = await asyncio.gather(*waiting)

    assert set(responses) == {frozenset()}
    assert 3 <= reads.reads <= 8  # one in each poll interval, not one for each worker


async def test_a_notification_wakes_a_few_workers_that_can_run_the_task():
    async with task_watch() as (watch, reads, notifier):
        waiting = [
            asyncio.create_task(watch.wait({"q"}, {"echo"} if number != 1 else {"other"}, 5.0)) for number in range(40)
        ]
        await asyncio.sleep(0.05)
        reads.claimable = [ClaimableHandler("q", "echo")]
        await notifier.topics.put(frozenset({"tasks:q"}))
        await until(lambda: _some_done(waiting))
        reads.claimable = []  # the first workers have claimed the task
        await asyncio.sleep(0.1)
        woken = [number for number, task in enumerate(waiting) if task.done()]

    assert woken == [0, *range(2, WOKEN_AT_ONCE + 1)]
    assert waiting[0].result() == {"q"}


async def _some_done(tasks: list[Any]) -> bool:
    return any(task.done() for task in tasks)


async def test_all_workers_are_woken_while_there_are_tasks():
    async with task_watch() as (watch, reads, _):
        reads.claimable = [ClaimableHandler("q", "echo")]

        responses = await asyncio.gather(*(watch.wait({"q"}, {"echo"}, 5.0) for _ in range(40)))

    assert set(responses) == {frozenset({"q"})}


async def test_tasks_that_no_waiting_worker_can_run_wake_none():
    async with task_watch(poll_seconds=0.02) as (watch, reads, notifier):
        reads.claimable = [ClaimableHandler("q", "rare"), ClaimableHandler("elsewhere", "echo")]
        await notifier.topics.put(frozenset({"tasks:q"}))

        assert await watch.wait({"q"}, {"echo"}, 0.2) == frozenset()


async def test_waits_continue_during_an_outage_of_the_database_and_end_on_close():
    async with task_watch(poll_seconds=0.02) as (watch, reads, _):
        reads.fails = True
        waiting = asyncio.create_task(watch.wait({"q"}, {"echo"}, 30))
        await until(lambda: _counted(reads, 2))
        reads.fails, reads.claimable = False, [ClaimableHandler("q", "echo")]
        assert await waiting == {"q"}
        reads.claimable = []
        waiting = asyncio.create_task(watch.wait({"q"}, {"rare"}, 30))
        await asyncio.sleep(0.01)
        await watch.close()
        assert await asyncio.wait_for(waiting, 1) == frozenset()
        assert await watch.wait({"q"}, {"rare"}, 30) == frozenset()


async def _counted(reads: CountedReads, count: int) -> bool:
    return reads.reads >= count


async def test_too_many_waiting_workers_are_refused(monkeypatch):
    monkeypatch.setattr("dagmaster.api.task_watch.MAX_WAITING", 1)
    assert MAX_WAITING > 1000
    async with task_watch() as (watch, _, _):
        first = asyncio.create_task(watch.wait({"q"}, {"echo"}, 5.0))
        await asyncio.sleep(0.01)

        with pytest.raises(Unavailable):
            await watch.wait({"q"}, {"echo"}, 5.0)
        first.cancel()


# --- untrusted responses ---------------------------------------------------------------------------------------------


class ScriptedConnection:
    """A connection that returns given bodies and records the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, **options: Any) -> Response:
        self.requests.append((method, path, options.get("body") or options.get("content")))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Response(200, content=answer if isinstance(answer, bytes) else orjson.dumps(answer))


def claim_response(**changes: Any) -> dict[str, Any]:
    task = {
        "task_id": task_id(JOB, "work", 1),
        "job_id": str(JOB),
        "node_id": "work",
        "attempt": 1,
        "handler": "echo",
        "params": {},
        "queue": "q",
        "timeout_seconds": 10.0,
        "retry_count": 0,
        "losses": 0,
        "params_ref": None,
    }
    return {"claimed": [task | changes], "accepted": 0, "late": []}


WANTED = Demand(("q",), ("echo",), 1)


async def test_claimed_tasks_are_read_from_the_response():
    ledger = HttpLedger(WorkerRequests(ScriptedConnection(claim_response(unknown_field=1))))

    (task,) = (await ledger.exchange(uuid4(), [], WANTED, lease_seconds=60)).claimed

    assert (task.task_id, task.handler, task.params) == (task_id(JOB, "work", 1), "echo", {})


@pytest.mark.parametrize(
    "answer",
    [
        claim_response(handler="rm"),
        claim_response(queue="elsewhere"),
        claim_response(node_id="other"),
        claim_response(timeout_seconds=-1),
        claim_response(params="text"),
        claim_response(attempt="x"),
        {"claimed": claim_response()["claimed"] * 2, "accepted": 0, "late": []},
        {"claimed": "x"},
        [],
        b"",
        b"<html>",
        b'{"claimed": [], "accepted": NaN, "late": []}',
        b"[" * 100_000,
    ],
)
async def test_an_invalid_response_is_treated_as_an_outage_and_starts_no_task(answer):
    ledger = HttpLedger(WorkerRequests(ScriptedConnection(answer)))

    with pytest.raises(Unavailable) as refusal:
        await ledger.exchange(uuid4(), [], WANTED, lease_seconds=60)

    assert refusal.value.code == "server.unexpected"


async def test_large_reports_are_sent_in_several_requests_and_only_the_last_one_claims():
    connection = ScriptedConnection({"claimed": [], "accepted": 2, "late": []})
    ledger = HttpLedger(WorkerRequests(connection))
    reports = [Report(JOB, f"n{n}", 1, TaskStatus.SUCCEEDED, output="x" * 200_000) for n in range(9)]

    answer = await ledger.exchange(uuid4(), reports, WANTED, lease_seconds=60)

    bodies = [json.loads(content) for _, _, content in connection.requests]
    assert sum(len(body["reports"]) for body in bodies) == 9
    assert [body["demand"]["light"] for body in bodies] == [0] * (len(bodies) - 1) + [1]
    assert [path.rpartition("/")[2] for _, path, _ in connection.requests[:-1]] == ["report"] * (len(bodies) - 1)
    assert all(len(content) < 1024 * 1024 for _, _, content in connection.requests)
    assert answer.accepted == 2 * len(bodies)


NO_FREE_SLOTS = InvalidRequest("demand.free_slots: unknown field 'free_slots'", code="request.invalid")
NO_ROOMS = InvalidRequest("demand.rooms: unknown field 'rooms'", code="request.invalid")
LIMITED = Demand(("a", "q", "z"), ("echo",), 5, ("work",), 4, {"q": 3, "z": 1})


async def test_tasks_of_limited_queues_are_requested_separately_from_an_older_platform():
    empty = {"claimed": [], "accepted": 0, "late": []}
    connection = ScriptedConnection(NO_FREE_SLOTS, NO_ROOMS, empty, empty, empty, empty)
    connection.answers[2] = claim_response(handler="echo") | {"accepted": 1}
    ledger = HttpLedger(WorkerRequests(connection))

    answer = await ledger.exchange(uuid4(), [Report(JOB, "n", 1, TaskStatus.SUCCEEDED)], LIMITED, lease_seconds=60)

    bodies = [json.loads(content) for _, _, content in connection.requests[2:]]
    wanted = [(*each["demand"]["queues"], each["demand"]["light"], each["demand"]["heavy"]) for each in bodies]
    assert wanted == [("q", 3, 0), ("q", 0, 2), ("z", 1, 0), ("z", 0, 1), ("a", 4, 0), ("a", 0, 4)]
    assert [len(each["reports"]) for each in bodies] == [1, 0, 0, 0, 0, 0]
    assert not any({"free_slots", "rooms"} & each["demand"].keys() for each in bodies)
    assert (len(answer.claimed), answer.accepted) == (1, 1)


async def test_tasks_claimed_from_an_older_platform_are_kept_if_a_later_request_fails():
    connection = ScriptedConnection(NO_FREE_SLOTS, NO_ROOMS, claim_response(), Unavailable("it restarts"))
    ledger = HttpLedger(WorkerRequests(connection))

    answer = await ledger.exchange(uuid4(), [], LIMITED, lease_seconds=60)

    assert [task.handler for task in answer.claimed] == ["echo"]


async def test_an_older_platform_gets_the_free_slots_under_their_former_name():
    connection = ScriptedConnection(NO_FREE_SLOTS, {"claimed": [], "accepted": 0, "late": []})
    ledger = HttpLedger(WorkerRequests(connection))

    for _ in range(2):
        await ledger.exchange(uuid4(), [], LIMITED, lease_seconds=60)

    refused, *accepted = [json.loads(content)["demand"] for _, _, content in connection.requests]
    assert refused["free_slots"] == {"q": 3, "z": 1}
    assert [each.get("rooms") for each in accepted] == [{"q": 3, "z": 1}] * 2
    assert not any("free_slots" in each for each in accepted)


async def test_all_queues_are_requested_together_after_the_platform_is_upgraded(monkeypatch):
    monkeypatch.setattr(http_ledger, "_UNKNOWN_FIELD_SECONDS", 0.0)
    connection = ScriptedConnection(NO_FREE_SLOTS, {"claimed": [], "accepted": 0, "late": []})
    ledger = HttpLedger(WorkerRequests(connection))
    await ledger.exchange(uuid4(), [], LIMITED, lease_seconds=60)
    connection.requests.clear()

    await ledger.exchange(uuid4(), [], LIMITED, lease_seconds=60)

    ((_, _, content),) = connection.requests
    assert json.loads(content)["demand"]["free_slots"] == {"q": 3, "z": 1}


def test_free_slots_are_accepted_under_their_former_name():
    assert TaskDemand.model_validate({"rooms": {"q": 3}}) == TaskDemand(free_slots={"q": 3})


NO_RUN_SECONDS = InvalidRequest("body.held.1.run_seconds: unknown field 'run_seconds'", code="request.invalid")
HELD = [Running(JOB, "runs", 1, {"fraction": 0.5}), Running(JOB, "waits", 1, run_seconds=0.0)]


async def test_leases_are_renewed_without_run_seconds_on_an_older_platform(monkeypatch):
    connection = ScriptedConnection(NO_RUN_SECONDS, {"task_ids": ["lost"]})
    ledger = HttpLedger(WorkerRequests(connection))

    lost = [await ledger.renew(uuid4(), HELD, lease_seconds=60) for _ in range(2)]
    monkeypatch.setattr(ledger, "_unknown_until", {"run_seconds": 0.0})  # the platform may have been upgraded since
    lost.append(await ledger.renew(uuid4(), HELD, lease_seconds=60))

    sent = [json.loads(content)["held"] for _, _, content in connection.requests]
    assert [[each.get("run_seconds") for each in held] for held in sent] == [
        [None, 0.0],  # refused, and sent again without the field
        [None, None],
        [None, None],
        [None, 0.0],
    ]
    assert all(held[0]["progress"] == {"fraction": 0.5} for held in sent)
    assert lost == [{"lost"}] * 3


async def test_an_older_api_accepts_renewals_of_a_worker_that_waits_for_slots(database):
    key = await a_key(database, "partner")
    async with worker_api(database) as app:
        older = OlderApi(app, "run_seconds")
        ledger = HttpLedger(WorkerRequests(connection_with(older, key)))

        lost = [await ledger.renew(new_worker_id("partner"), HELD, lease_seconds=60) for _ in range(2)]

    assert lost == [{task_id(JOB, "runs", 1), task_id(JOB, "waits", 1)}] * 2  # a result, not an error
    assert older.refused == 1


async def test_a_renewal_that_is_refused_for_another_reason_is_not_sent_again():
    connection = ScriptedConnection(
        InvalidRequest("body.held.0.attempt: must be greater than 0", code="request.invalid")
    )

    with pytest.raises(InvalidRequest):
        await HttpLedger(WorkerRequests(connection)).renew(uuid4(), HELD, lease_seconds=60)

    assert len(connection.requests) == 1


async def test_params_that_do_not_match_their_reference_are_refused():
    payloads = HttpPayloads(
        WorkerRequests(ScriptedConnection(b'{"evil": true}')), uuid4(), task_id(JOB, "work", 1), 1.0
    )

    with pytest.raises(UnfitData) as refusal:
        await payloads.load_payload(JOB, reference_to(b'{"text": "as stored"}'))

    assert refusal.value.code == "payload.damaged"


async def test_params_are_reported_as_damaged_if_their_download_always_fails():
    lost = Unavailable("the connection was lost", code="server.lost")
    payloads = HttpPayloads(WorkerRequests(ScriptedConnection(lost)), uuid4(), task_id(JOB, "work", 1), 1.0)

    for _ in range(4):
        with pytest.raises(Unavailable):
            await payloads.load_payload(JOB, reference_to(b"{}"))
    with pytest.raises(UnfitData):
        await payloads.load_payload(JOB, reference_to(b"{}"))


async def test_an_output_that_is_too_large_is_refused_before_it_is_sent():
    connection = ScriptedConnection({})
    payloads = HttpPayloads(WorkerRequests(connection), uuid4(), task_id(JOB, "work", 1), 1.0)

    with pytest.raises(InvalidRequest) as refusal:
        await payloads.store_payload(JOB, bytes(LOADABLE_BYTES + 1))

    assert refusal.value.code == "output.too-large"
    assert connection.requests == []


async def test_saving_a_checkpoint_waits_for_a_platform_that_restarts():
    unavailable = Unavailable("no platform responds", code="server.unreachable")
    payloads = HttpPayloads(
        WorkerRequests(ScriptedConnection(unavailable, unavailable, {"is_saved": True})),
        uuid4(),
        task_id(JOB, "work", 1),
        5.0,
    )

    assert await payloads.save_checkpoint(None, "phase", {"x": 1})


async def test_a_worker_backs_off_after_announcements_without_a_claim():
    connection = ScriptedConnection({"queues": ["q"]})
    transport = HttpTransport(WorkerRequests(connection), uuid4(), random.Random(1))
    loop = asyncio.get_running_loop()
    started = loop.time()
    for _ in range(5):
        transport.note_exchange(WANTED, ())
        assert [each.queue for each in await transport.receive(1.0)] == ["q"]

    assert loop.time() - started > 0.15


async def test_a_wait_is_replaced_when_slots_for_other_handlers_become_free():
    class Slow(ScriptedConnection):
        async def request(self, method: str, path: str, **options: Any) -> Response:
            if "heavy" not in options["body"]["handlers"]:
                self.requests.append((method, path, "cancelled"))
                await asyncio.sleep(30)
            return await super().request(method, path, **options)

    connection = Slow({"queues": ["q"]})
    transport = HttpTransport(WorkerRequests(connection), uuid4())
    both = Demand(("q",), ("light",), 1, ("heavy",), 1)
    transport.note_exchange(Demand(("q",), ("light",), 1), ())
    receiving = asyncio.create_task(transport.receive(1.0))
    await asyncio.sleep(0.05)

    transport.note_exchange(both, ())
    deliveries = await asyncio.wait_for(receiving, 5)

    assert [each.queue for each in deliveries] == ["q"]
    assert len(connection.requests) == 2


# --- starting --------------------------------------------------------------------------------------------------------


def start_response(**changes: Any) -> StartedWorker:
    facts = {"worker_id": uuid4(), "caller": "partner", "queues": None, "lease_seconds": 30.0}
    return StartedWorker(**(facts | {"software_version": "1", "protocol": 1} | changes))


def test_a_worker_uses_the_lease_of_the_platform_and_the_queues_of_its_key(monkeypatch):
    monkeypatch.delenv("WORKER_QUEUE", raising=False)

    settings = limited_settings(
        load(task_lease_sec=60, lease_renew_sec=15), start_response(queues=["partner-a"], lease_seconds=20)
    )

    assert (settings.task_lease_sec, settings.lease_renew_sec) == (20, 5)
    assert settings.worker_queue == ("partner-a",)
    with pytest.raises(NotAllowed) as refusal:
        limited_settings(load(worker_queue="partner-a,container-tasks"), start_response(queues=["partner-a"]))
    assert "container-tasks" in refusal.value.message


@pytest.mark.parametrize(
    ("answer", "code", "kind"),
    [
        (NotAllowed("this key is not valid", code="auth.invalid-key"), "auth.invalid-key", NotAllowed),
        (NotFound("no such path", code="request.not-found"), "worker.no-api", Unavailable),
        (Conflict("too old", code="worker.too-old"), "worker.too-old", Conflict),
        (Unavailable("not a platform", code="server.not-a-platform"), "server.not-a-platform", Unavailable),
        ({"worker_id": "x"}, "server.unexpected", Unavailable),
    ],
)
async def test_permanent_errors_end_the_start_at_once(answer, code, kind):
    connection = ScriptedConnection(answer)
    connection.url = "https://platform.example"

    with pytest.raises(kind) as refusal:
        await asyncio.wait_for(start(connection), 1)

    assert refusal.value.code == code
    assert refusal.value.hint or kind is Conflict or code == "server.not-a-platform"


async def test_a_start_waits_until_the_platform_is_reachable():
    connection = ScriptedConnection(
        Unavailable("refused", code="server.unreachable"), start_response(caller="partner").model_dump(mode="json")
    )

    assert (await start(connection)).caller == "partner"


def test_the_url_must_use_https_unless_it_is_on_this_machine():
    assert load(dag_callback_url="https://platform.example/").dag_callback_url == "https://platform.example"
    assert load(dag_callback_url="http://127.0.0.1:8000").dag_callback_url
    assert load(dag_callback_url="http://orchestrator:8000", dag_callback_insecure=True).dag_callback_url
    for wrong in ("http://platform.example", "ftp://x", "https://user:password@x", "platform.example"):
        with pytest.raises(InvalidRequest):
            load(dag_callback_url=wrong)


def test_handlers_that_need_a_database_are_not_offered():
    offered = set(without_database(installed()))

    assert {"echo", "multi_phase", "raster.inventory"} <= offered
    assert not {name for name in offered if name.startswith(("export.", "raster.stac_register", "raster.validate"))}
    assert not offered & {"raster.stac_ensure_collection", "raster.stac_finalize"}
    assert len(Registry(REGISTRATIONS)) > len(offered)


def test_a_worker_id_is_valid_only_for_the_caller_that_it_was_issued_to():
    mine = new_worker_id("partner-a")

    assert is_worker_of(mine, "partner-a")
    assert not is_worker_of(mine, "partner-b")
    assert not is_worker_of(uuid4(), "partner-a")
    assert mine.version == 8
    assert new_worker_id("partner-a") != mine


def test_a_claimed_task_is_sent_and_received_with_the_fields_of_a_task_message():
    """The tuple is the only list of the fields: responses are written from it and read into it."""
    assert tuple(ClaimedTask.model_fields) == TaskMessage._fields


def test_the_modules_of_a_worker_over_http_import_no_database_driver():
    import subprocess

    code = "import sys; import dagmaster.roles.remote_worker; sys.exit('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == 0
