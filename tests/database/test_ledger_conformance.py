"""One suite for all ledgers: what `database/ledger` promises, on PostgreSQL, in memory and over HTTP.

`Bench` holds a ledger with a clock that the test sets. On PostgreSQL the clock is the session's `dagapp.fake_now`, set
on the ledger's own connection; everything that a test compares is read by the same small set of queries.

Over HTTP, calls of workers go through the API with the key of a worker (`every_worker_ledger`); submitters and
orchestrators use the database.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Protocol
from uuid import UUID, uuid4

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from tests.worker.over_http import a_key, connection_with, services_of, worker_api
from tests.workflows.builders import a_workflow

from dagmaster.access import worker_ids
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import (
    SMALL_BYTES,
    Claim,
    DeferralReview,
    Demand,
    Exchange,
    LoadedJob,
    MessageScope,
    NewJob,
    OpenJob,
    OrchestratorInfo,
    OrchestratorLedger,
    PayloadLedger,
    Report,
    Running,
    StepScope,
    SubmissionLedger,
    WorkerInfo,
    WorkerLedger,
    dead_letter,
)
from dagmaster.database.maintenance.history import verify
from dagmaster.database.notify.notifier import JOBS, RESULTS, tasks_topic
from dagmaster.errors import Conflict, DagmasterError, Fenced, NotFound
from dagmaster.jobs.changes import Changes, JobTransition, NewTask, NodeChange
from dagmaster.jobs.fan import ChildResult, SumOutOfRange, aggregate
from dagmaster.jobs.model import DeadLetter, JobMessage, TaskMessage, WorkerRecord, new_job_id
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES, reference_to
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.rerun import Rerun, resume, retry
from dagmaster.jobs.routing import DeferredWork, Route, UnknownRoute
from dagmaster.jobs.states import EventType, JobStatus, NodeStatus, Stop, TaskStatus
from dagmaster.jobs.updates import (
    Due,
    Expired,
    Failed,
    Idle,
    Lost,
    Overran,
    Returned,
    Started,
    StopRequest,
    Succeeded,
    Withdrawn,
)
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger, RefusedByGuard
from dagmaster.worker.http.ledger import HttpLedger, HttpPayloads
from dagmaster.worker.http.requests import WorkerRequests
from dagmaster.workflows.model import Aggregation, Work, Workflow

START = datetime(2030, 1, 1, tzinfo=UTC)
KEY_NAME = "conformance"
# Ids that belong to the key with which workers call the API.
WORKER, OTHER_WORKER = (worker_ids._id_of(bytes([number] * 8), KEY_NAME) for number in (1, 2))
LEASE = 60.0
QUEUE = "dag-worker-tasks"
SERVED = Demand((QUEUE,), ("echo",), 100)
NO_DEMAND = Demand(())

ONE = """
  start: {type: start, next: work}
  work: {handler: echo, next: end, retry: {max_attempts: 1, initial_delay_seconds: 5, jitter: false}}
  end: {type: end}
"""
TWO_QUEUES = """
  start: {type: start, next: [one, two, narrow]}
  one: {handler: echo, next: end}
  two: {handler: echo, next: end}
  narrow: {handler: echo, queue: container-tasks, next: end}
  end: {type: end, depends_on: {all_of: [one, two, narrow]}}
"""
TILES = """
  start: {{type: start, next: tiles}}
  tiles:
    type: fan_out
    source: "{{{{ inputs.list }}}}"
    tolerate: 1.0
    task: {{handler: echo, retry: {{max_attempts: 0}}}}
  gather: {{type: fan_in, aggregation: {mode}, depends_on: {{all_of: [tiles]}}}}
  end: {{type: end, depends_on: {{all_of: [gather]}}}}
"""
INPUTS = "inputs:\n  list: {type: array, default: [0, 1]}\n"


class Ledger(SubmissionLedger, OrchestratorLedger, WorkerLedger, PayloadLedger, Protocol):
    async def now(self) -> datetime: ...


class Bench(Protocol):
    ledger: Ledger

    async def set_clock(self, seconds: float) -> None:
        """Set the clock to this number of seconds after START."""
        ...

    async def rows(self, table: str, job_id: UUID | None = None) -> list[dict[str, Any]]: ...

    async def forget_owner(self, owner_id: UUID) -> None: ...


class MemoryBench:
    def __init__(self) -> None:
        self.now = START
        self.database = MemoryDatabase(lambda: self.now)
        self.ledger = MemoryLedger(self.database)

    async def set_clock(self, seconds: float) -> None:
        self.now = START + timedelta(seconds=seconds)

    async def rows(self, table: str, job_id: UUID | None = None) -> list[dict[str, Any]]:
        database = self.database
        tables: dict[str, list[Any]] = {
            "dag_jobs": list(database.jobs.values()),
            "dag_node_states": [node for nodes in database.nodes.values() for node in nodes.values()],
            "dag_tasks": list(database.tasks.values()),
            "dag_task_results": list(database.results.values()),
            "dag_job_events": [event for events in database.events.values() for event in events],
            "dag_job_messages": list(database.messages.values()),
            "dag_dead_letters": list(database.dead_letters),
            "dag_queues": list(database.queues.values()),
            "dag_payloads": list(database.payloads.values()),
            "workers": [
                WorkerRecord(**asdict(info), started_at=self.now, heartbeat_at=self.now)
                for info in database.workers.values()
            ],
        }
        rows = [{**row.model_dump(), **_statuses(row)} for row in tables[table]]
        return [row for row in rows if job_id is None or row["job_id"] == job_id]

    async def forget_owner(self, owner_id: UUID) -> None:
        del self.database.orchestrators[owner_id]


def _statuses(row: Any) -> dict[str, Any]:
    return {"status": str(row.status)} if hasattr(row, "status") else {}


class PostgresBench:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.ledger = PostgresLedger(dsn, "test")

    async def set_clock(self, seconds: float) -> None:
        now = START + timedelta(seconds=seconds)
        async with self.ledger._connected() as connection:
            await connection.execute("SELECT set_config('dagapp.fake_now', %s, false)", [now.isoformat()])

    async def rows(self, table: str, job_id: UUID | None = None) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row) as connection:
            set_json_loads(orjson.loads, connection)
            where = "" if job_id is None else " WHERE job_id = %s"
            values = [] if job_id is None else [job_id]
            return await (await connection.execute(f"SELECT * FROM dagapp.{table}{where}", values)).fetchall()

    async def forget_owner(self, owner_id: UUID) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute("DELETE FROM dagapp.orchestrators WHERE owner_id = %s", [owner_id])


class OverHttp(PostgresLedger):
    """Calls of a worker and its handlers go to the API, all others to the database. Payloads and checkpoints of tasks
    that the worker does not hold cannot be read over HTTP, so they are read from the database."""

    def __init__(self, dsn: str, requests: WorkerRequests) -> None:
        super().__init__(dsn, "test")
        self._requests = requests
        self._worker = HttpLedger(requests)
        self._held: dict[str, tuple[UUID, TaskMessage]] = {}  # every task that was ever claimed, with its worker

    async def _over_http(self, path: str, worker_id: UUID, *arguments: Any) -> Exchange:
        response = await self._worker._exchange(path, worker_id, *arguments)
        self._held |= {task.task_id: (worker_id, task) for task in response.claimed}
        return response

    async def exchange(self, worker_id, reports, demand, *, lease_seconds):
        return await self._over_http("/exchange", worker_id, reports, demand, lease_seconds)

    async def report(self, worker_id, reports, demand, *, lease_seconds):
        return await self._over_http("/report", worker_id, reports, demand, lease_seconds)

    async def beat_worker(self, worker):
        await self._worker.beat_worker(worker)

    async def renew(self, worker_id, held, *, lease_seconds):
        return await self._worker.renew(worker_id, held, lease_seconds=lease_seconds)

    async def take_stops(self, worker_id):
        return await self._worker.take_stops(worker_id)

    async def retire_worker(self, worker_id):
        await self._worker.retire_worker(worker_id)

    def _payloads(self, job_id: UUID, **facts: Any) -> HttpPayloads | None:
        """The HTTP client for the last task of this job that a worker has claimed."""
        for worker_id, task in reversed(self._held.values()):
            if task.job_id == job_id and all(getattr(task, name) == value for name, value in facts.items()):
                return HttpPayloads(self._requests, worker_id, task.task_id, 1.0)
        return None

    async def store_payload(self, job_id, encoded):
        over_http = self._payloads(job_id)
        return await (over_http or super()).store_payload(job_id, encoded)

    async def load_payload(self, job_id, reference):
        over_http = self._payloads(job_id, params_ref=reference)
        return await (over_http or super()).load_payload(job_id, reference)

    async def save_checkpoint(self, running, name, data, artifacts=()):
        over_http = self._payloads(running.job_id, node_id=running.node_id, attempt=running.attempt)
        assert over_http
        return await over_http.save_checkpoint(running, name, data, artifacts)

    async def load_checkpoints(self, job_id, node_id):
        over_http = self._payloads(job_id, node_id=node_id)
        try:
            return await (over_http or super()).load_checkpoints(job_id, node_id)
        except Fenced:
            return await super().load_checkpoints(job_id, node_id)


class HttpBench(PostgresBench):
    def __init__(self, dsn: str, app: Any, key: str) -> None:
        self.dsn = dsn
        self.services = services_of(app)
        self.connection = connection_with(app, key)
        self.ledger = OverHttp(dsn, WorkerRequests(self.connection))

    async def set_clock(self, seconds: float) -> None:
        now = (START + timedelta(seconds=seconds)).isoformat()
        pools = (self.services.exchange_ledgers, self.services.lease_ledgers, self.services.payload_ledgers)
        for ledger in (self.ledger, *(ledger for pool in pools for ledger in pool._all)):
            async with ledger._connected() as connection:
                await connection.execute("SELECT set_config('dagapp.fake_now', %s, false)", [now])


@pytest.fixture(params=["memory", "postgres"])
async def bench(request, monkeypatch) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield MemoryBench()
        return
    database = request.getfixturevalue("database")
    if request.param == "http":
        monkeypatch.setattr("dagmaster.api.services.WORKER_LEDGERS", 1)
        monkeypatch.setattr("dagmaster.api.services.LEASE_LEDGERS", 1)
        key = await a_key(database, KEY_NAME)
        async with worker_api(database, task_lease_sec=LEASE) as app:
            bench = HttpBench(database, app, key)
            await bench.set_clock(0)
            yield bench
            await bench.connection.close()
            await bench.ledger.close()
        return
    bench = PostgresBench(database)
    await bench.set_clock(0)
    yield bench
    await bench.ledger.close()


every_worker_ledger = pytest.mark.parametrize("bench", ["memory", "postgres", "http"], indirect=True)


# --- builders --------------------------------------------------------------------------------------------------------


def a_job(number: int, workflow: Workflow | None = None, **facts: Any) -> NewJob:
    facts = {"input_params": {}, **facts}
    return NewJob(new_job_id(1_900_000_000_000 + number, bytes(10)), workflow or a_workflow(ONE), **facts)


def tiles(count: int, mode: str = "collect") -> NewJob:
    return a_job(1, a_workflow(TILES.format(mode=mode), head=INPUTS), input_params={"list": list(range(count))})


class RoutesAll:
    def route(self, work: Work) -> Route:
        return Route(work.queue or QUEUE, work.timeout_seconds or 1000.0)


class RoutesNothing:
    def route(self, work: Work) -> Route:
        raise UnknownRoute("unknown", DeferredWork(work.handler, work.queue), code="handler.unknown")


def a_planner(**limits: Any) -> Planner:
    return Planner(RoutesAll(), Random(1), max_losses=3, **limits)


@dataclass
class Driver:
    """An orchestrator of one job that decides what the real planner decides, and keeps what the ledger returned."""

    bench: Bench
    owner_id: UUID
    claim: Claim
    updates: list[Any]
    planner: Planner = field(default_factory=a_planner)

    async def run_once(self, also_read: str = "", wake: dict[tuple[UUID, str], int] | None = None) -> list[Any]:
        """Load the job and advance it. `also_read` names what is read in addition to results. Returns the updates."""
        (job,) = await self.bench.ledger.load_jobs([self.claim.job_id])
        view = job.view()
        completed = [node_id for node_id, state in view.nodes.items() if state.status is NodeStatus.COMPLETED]
        outputs = await self.bench.ledger.load_outputs(job.job_id, completed)
        view = replace(view, outputs=view.outputs | outputs)
        scope = StepScope(**dict.fromkeys(also_read.split(), frozenset({job.job_id})), wake=wake or {})
        async with self.bench.ledger.open_jobs(self.owner_id, [self.claim], scope) as step:
            (opened,) = step.jobs.values()
            self.updates = opened.updates
            plan = self.planner.decide(
                view,
                opened.updates,
                epoch=opened.epoch,
                sequence=opened.sequence,
                checks_all_nodes=True,
                stop=opened.stop,
            )
            await step.commit([plan.changes])
        return self.updates


async def owned(bench: Bench, job: NewJob) -> Driver:
    """Create and claim a job, and dispatch its first tasks."""
    await bench.ledger.create_jobs([job])
    owner_id = await an_owner(bench)
    (claim,) = await claim_all(bench, owner_id)
    driver = Driver(bench, owner_id, claim, [])
    await driver.run_once()
    return driver


async def an_owner(bench: Bench, number: int = 1) -> UUID:
    owner_id = UUID(int=number)
    await bench.ledger.beat(OrchestratorInfo(owner_id, "host", 1, "test"))
    return owner_id


async def claim_all(bench: Bench, owner_id: UUID, limit: int = 100, unclaimed_after: float = 1e6) -> list[Claim]:
    return await bench.ledger.claim_orphans(
        owner_id, limit=limit, orphan_after_seconds=60, unclaimed_after_seconds=unclaimed_after
    )


async def take(bench: Bench, demand: Demand = SERVED, worker: UUID = WORKER) -> tuple[TaskMessage, ...]:
    return (await bench.ledger.exchange(worker, [], demand, lease_seconds=LEASE)).claimed


def report_of(task: TaskMessage, status: TaskStatus = TaskStatus.SUCCEEDED, **facts: Any) -> Report:
    return Report(task.job_id, task.node_id, task.attempt, status, **facts)


async def hand_in(bench: Bench, *reports: Report, worker: UUID = WORKER) -> Any:
    return await bench.ledger.exchange(worker, reports, NO_DEMAND, lease_seconds=LEASE)


async def only_row(bench: Bench, table: str, **where: Any) -> dict[str, Any]:
    (row,) = [row for row in await bench.rows(table) if all(row[name] == value for name, value in where.items())]
    return row


async def all_rows(bench: Bench) -> list[Any]:
    tables = ("dag_jobs", "dag_node_states", "dag_tasks", "dag_task_results", "dag_job_events")
    return [sorted(map(str, await bench.rows(table))) for table in tables]


# --- creating --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E2")
async def test_a_job_is_created_with_its_nodes_and_first_events(bench):
    job = a_job(1, priority=7, correlation_id="request-1", submitted_by="me")

    created = await bench.ledger.create_jobs([job])

    assert created == [job.job_id]
    row = await only_row(bench, "dag_jobs")
    assert (row["status"], row["priority"], row["owner_id"], row["epoch"]) == ("pending", 7, None, 0)
    assert row["deadline_at"] == START + timedelta(seconds=7200)
    nodes = {node["node_id"]: (node["status"], node["max_retries"]) for node in await bench.rows("dag_node_states")}
    assert nodes == {"start": ("ready", 0), "work": ("pending", 1), "end": ("pending", 0)}
    events = [
        (e["sequence"], e["event_type"], e["node_id"], e["event_status"]) for e in await bench.rows("dag_job_events")
    ]
    assert events == [(1, "job_created", None, "pending"), (2, "node_ready", "start", "ready")]
    assert row["last_sequence"] == 2


@pytest.mark.requirement("E2")
async def test_a_job_is_created_once_by_id_and_by_message(bench):
    first, again = a_job(1, message_id="m1"), a_job(2, message_id="m1")

    created = [await bench.ledger.create_jobs(jobs) for jobs in ([first], [first], [again], [a_job(3)])]

    assert created == [[first.job_id], [], [], [a_job(3).job_id]]
    assert len(await bench.rows("dag_jobs")) == 2
    assert len(await bench.rows("dag_job_events")) == 4


@pytest.mark.requirement("E2")
async def test_only_the_first_of_two_jobs_with_the_same_message_is_created(bench):
    created = await bench.ledger.create_jobs([a_job(1, message_id="m1"), a_job(2, message_id="m1"), a_job(3)])

    assert created == [a_job(1).job_id, a_job(3).job_id]


async def test_creating_no_jobs_does_nothing(bench):
    assert await bench.ledger.create_jobs([]) == []


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q1")
async def test_messages_become_jobs_or_dead_letters_once(bench):
    for number in range(4):
        await bench.set_clock(number)
        await bench.ledger.enqueue_message(f"m{number}", "dag-jobs", {"number": number})
    assert not await bench.ledger.enqueue_message("m1", "dag-jobs", {"number": 99})
    await bench.ledger.enqueue_message("elsewhere", "other-queue", {})
    seen: list[str] = []

    def handle(message: JobMessage) -> NewJob | DeadLetter:
        seen.append(message.message_id)
        if message.body["number"] % 2:
            return DeadLetter(
                dead_letter_id=uuid4(),
                queue=message.queue,
                message_id=message.message_id,
                reason="Odd",
                description="it is odd",
                body=message.body,
                created_at=START,
            )
        return a_job(message.body["number"], message_id=message.message_id)

    first = await bench.ledger.take_messages("dag-jobs", 3, handle)
    last_messages = await bench.ledger.take_messages("dag-jobs", 3, handle)
    none = await bench.ledger.take_messages("dag-jobs", 3, handle)

    assert sorted(map(str, first)) == sorted([str(a_job(0).job_id), str(a_job(2).job_id), "m1"])
    assert (last_messages, none) == (["m3"], [])
    assert sorted(seen) == ["m0", "m1", "m2", "m3"]
    letters = {letter["message_id"]: letter for letter in await bench.rows("dag_dead_letters")}
    assert sorted(letters) == ["m1", "m3"]
    assert (letters["m1"]["reason"], letters["m1"]["body"]) == ("Odd", {"number": 1})
    assert [message["message_id"] for message in await bench.rows("dag_job_messages")] == ["elsewhere"]


@pytest.mark.requirement("Q1")
async def test_a_refused_message_that_is_delivered_again_becomes_no_second_dead_letter(bench):
    """A message with another content is not lost, and neither is one that is replayed and refused again."""

    async def refuse(body: Any, queue: str = "dag-jobs") -> list[Any]:
        await bench.ledger.enqueue_message("m1", queue, body)
        await bench.ledger.take_messages(queue, 3, lambda message: dead_letter(message, "Malformed", "wrong"))
        letters = await bench.rows("dag_dead_letters")
        return sorted((letter["queue"], letter["body"]) for letter in letters)

    once = await refuse("x")
    again = await refuse("x")
    (letter,) = await bench.rows("dag_dead_letters")
    await bench.ledger.replay_dead_letter(letter["dead_letter_id"], "dag-jobs")
    replayed = await refuse("x")
    other_content = await refuse("y")
    other_queue = await refuse("x", "other-queue")

    assert once == again == replayed == [("dag-jobs", "x")]
    assert other_content == [("dag-jobs", "x"), ("dag-jobs", "y")]
    assert other_queue == [*other_content, ("other-queue", "x")]


@pytest.mark.requirement("Q1")
async def test_a_stored_message_is_known_while_it_waits_and_when_it_is_a_job_or_a_dead_letter(bench):
    async def known() -> list[bool]:
        return [await bench.ledger.has_message(name, "dag-jobs") for name in ("good", "bad")]

    def handle(message: JobMessage) -> NewJob | DeadLetter:
        if message.message_id == "bad":
            return dead_letter(message, "Malformed", "wrong")
        return a_job(1, message_id=message.message_id)

    before = await known()
    for name in ("good", "bad"):
        await bench.ledger.enqueue_message(name, "dag-jobs", {})
    waiting = await known()
    await bench.ledger.take_messages("dag-jobs", 3, handle)

    assert (before, waiting, await known()) == ([False, False], [True, True], [True, True])
    assert await bench.rows("dag_job_messages") == []


@pytest.mark.requirement("Q1")
async def test_a_message_is_kept_if_it_could_not_be_processed(bench):
    await bench.ledger.enqueue_message("m1", "dag-jobs", {})

    def handle(message: JobMessage) -> NewJob:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await bench.ledger.take_messages("dag-jobs", 3, handle)

    assert len(await bench.rows("dag_job_messages")) == 1


@pytest.mark.requirement("Q1")
async def test_messages_follow_the_rules_of_idempotency_keys(bench):
    """Number, key, submitter and request of each message; the last one repeats a message that became a job."""
    first = a_job(1, idempotency_key="over-http", request_hash="a")
    await bench.ledger.create_once(first, "a")
    messages = [
        ("same-as-http", 2, "over-http", None, "a"),
        ("other-than-http", 3, "over-http", None, "b"),
        ("new", 4, "k", None, "a"),
        ("repeated", 5, "k", None, "a"),
        ("other", 6, "k", None, "b"),
        ("of-someone-else", 7, "k", "ada", "b"),
        ("without-a-key", 8, None, None, "a"),
        ("keyed-later", 9, None, None, "a"),
    ]
    facts = {name: content for name, *content in messages}

    def handle(message: JobMessage) -> NewJob:
        number, key, by, request = facts[message.message_id]
        given = {"idempotency_key": key, "submitted_by": by, "request_hash": request}
        return a_job(number, message_id=message.message_id, **given)

    for name, *_ in messages:
        await bench.ledger.enqueue_message(name, "dag-jobs", {})
    for _ in range(4):
        await bench.ledger.take_messages("dag-jobs", 2, handle)
    facts["keyed-later"] = [10, "late", None, "a"]
    await bench.ledger.enqueue_message("keyed-later", "dag-jobs", {})
    await bench.ledger.take_messages("dag-jobs", 2, handle)
    later = await bench.ledger.create_once(a_job(11, idempotency_key="late"), "a")

    jobs = {job["message_id"] for job in await bench.rows("dag_jobs")}
    letters = {letter["message_id"]: letter for letter in await bench.rows("dag_dead_letters")}
    assert jobs == {None, "new", "of-someone-else", "without-a-key", "keyed-later"}
    assert {name: letter["reason"] for name, letter in letters.items()} == dict.fromkeys(
        ["other-than-http", "other"], "KeyConflict"
    )
    assert str(first.job_id) in letters["other-than-http"]["description"]
    assert later == a_job(11).job_id, "a message that is not turned into a job reserves no key"
    assert await bench.rows("dag_job_messages") == []


@pytest.mark.requirement("Q1")
async def test_messages_of_unknown_workflows_are_kept_until_the_timeout(bench):
    bodies = {"known": {"workflow_id": "a"}, "unknown": {"workflow_id": "b"}, "none": {}, "number": {"workflow_id": 5}}
    for name, body in bodies.items():
        await bench.ledger.enqueue_message(name, "dag-jobs", body)
    scope = MessageScope(["a"], unknown_after_seconds=600)
    taken: list[str] = []

    def handle(message: JobMessage) -> NewJob:
        taken.append(message.message_id)
        return a_job(len(taken), message_id=message.message_id)

    for seconds, expected in ((0, ["known", "none", "number"]), (599, []), (600, ["unknown"])):
        taken.clear()
        await bench.set_clock(seconds)
        await bench.ledger.take_messages("dag-jobs", 9, handle, scope=scope)
        assert sorted(taken) == expected


# --- deferred work ---------------------------------------------------------------------------------------------------


async def deferred_job(bench: Bench, job: NewJob) -> Driver:
    """A job whose owner cannot route its nodes."""
    await bench.ledger.create_jobs([job])
    owner_id = await an_owner(bench)
    (claim,) = await claim_all(bench, owner_id)
    driver = Driver(bench, owner_id, claim, [], Planner(RoutesNothing(), Random(1)))
    await driver.run_once()
    return driver


async def review(driver: Driver) -> DeferralReview:
    await an_owner(driver.bench)
    return await driver.bench.ledger.review_deferred([driver.claim], alive_seconds=60, unknown_after_seconds=600)


def a_worker(*handlers: str, queues: tuple[str, ...] = (QUEUE,)) -> WorkerInfo:
    return WorkerInfo(WORKER, "host", 1, "test", "general", queues, handlers)


@pytest.mark.requirement("E22")
async def test_work_that_no_live_process_knows_is_reported_after_the_timeout(bench):
    driver = await deferred_job(bench, a_job(1))
    unknown = {}
    for seconds in (0, 599, 601):
        await bench.set_clock(seconds)
        unknown[seconds] = await review(driver)

    assert (unknown[0], unknown[599]) == (DeferralReview(), DeferralReview())
    assert unknown[601] == DeferralReview(frozenset(), {a_job(1).job_id: frozenset({DeferredWork("echo")})})
    assert (await only_row(bench, "dag_jobs"))["owner_id"] == driver.owner_id


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("handler", ["echo", "another"])
async def test_the_timeout_starts_when_the_last_process_that_knows_the_handler_is_dead(bench, handler):
    driver = await deferred_job(bench, a_job(1))
    for seconds in range(0, 601, 50):
        await bench.set_clock(seconds)
        await bench.ledger.beat_worker(a_worker(handler))
        await review(driver)
    is_reported = {}
    for seconds in (650, 1100, 1270):  # the worker counts as alive until 660
        await bench.set_clock(seconds)
        is_reported[seconds] = bool((await review(driver)).unroutable)

    assert is_reported == {650: handler == "another", 1100: handler == "another", 1270: True}


@pytest.mark.requirement("E22")
@pytest.mark.parametrize(
    ("handlers", "queues", "is_released"),
    [
        (["echo"], [QUEUE, "container-tasks"], True),
        (["echo"], [QUEUE], False),
        (["other"], [QUEUE, "container-tasks"], False),
    ],
)
async def test_a_job_is_released_to_a_live_orchestrator_that_knows_handler_and_queue(
    bench, handlers, queues, is_released
):
    narrow = a_workflow(
        "  start: {type: start, next: a}\n  a: {handler: echo, queue: container-tasks, next: end}\n  end: {type: end}\n"
    )
    driver = await deferred_job(bench, a_job(1, narrow))
    other = UUID(int=2)
    await bench.ledger.beat(OrchestratorInfo(other, "host", 2, "test", {}, handlers, queues))

    released = (await review(driver)).released
    mine, theirs = (
        await claim_all(bench, driver.owner_id, unclaimed_after=-1),
        await claim_all(bench, other, unclaimed_after=-1),
    )

    assert bool(released) is is_released
    assert mine == [], "its owner must not claim it again while the other one is alive"
    assert bool(theirs) is is_released


@pytest.mark.requirement("E22")
async def test_any_orchestrator_claims_a_released_job_if_the_one_that_knows_its_handler_is_dead(bench):
    driver = await deferred_job(bench, a_job(1))
    await bench.ledger.beat(OrchestratorInfo(UUID(int=2), "host", 2, "test", {}, ["echo"], [QUEUE]))
    await review(driver)
    await bench.set_clock(100)
    await an_owner(bench)

    (claim,) = await claim_all(bench, driver.owner_id)
    driver.claim, driver.planner = claim, a_planner()
    await driver.run_once()

    assert (await only_row(bench, "dag_jobs"))["deferred_work"] is None
    assert (await only_row(bench, "dag_node_states", node_id="work"))["status"] == "dispatched"


@pytest.mark.requirement("E22")
async def test_a_review_by_an_owner_that_lost_the_job_changes_nothing(bench):
    driver = await deferred_job(bench, a_job(1))
    await bench.ledger.beat(OrchestratorInfo(UUID(int=2), "host", 2, "test", {}, ["echo"], [QUEUE]))
    before = await only_row(bench, "dag_jobs")
    driver.claim = replace(driver.claim, token=uuid4())

    assert await review(driver) == DeferralReview()
    assert await only_row(bench, "dag_jobs") == before


@pytest.mark.requirement("Q1")
async def test_a_message_that_arrived_twice_becomes_one_job(bench):
    for number in (1, 2):
        await bench.ledger.enqueue_message("m1", "dag-jobs", {})
        await bench.ledger.take_messages("dag-jobs", 9, lambda m, n=number: a_job(n, message_id=m.message_id))

    assert [job["job_id"] for job in await bench.rows("dag_jobs")] == [a_job(1).job_id]


# --- claiming --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E19")
async def test_jobs_are_claimed_by_priority_then_age(bench):
    await bench.ledger.create_jobs([a_job(n, priority=p) for n, p in enumerate([0, 10, 5, 10])])
    owner = await an_owner(bench)

    claimed = [[claim.job_id for claim in await claim_all(bench, owner, limit=1)] for _ in range(5)]

    assert claimed == [[a_job(1).job_id], [a_job(3).job_id], [a_job(2).job_id], [a_job(0).job_id], []]


@pytest.mark.requirement("E5")
async def test_a_claim_raises_the_epoch_and_has_a_new_token(bench):
    await bench.ledger.create_jobs([a_job(1)])
    first = await claim_all(bench, await an_owner(bench, 1))
    await bench.set_clock(61)
    second = await claim_all(bench, await an_owner(bench, 2))

    assert [claim.epoch for claim in first + second] == [1, 2]
    assert first[0].token != second[0].token
    row = await only_row(bench, "dag_jobs")
    assert (row["owner_id"], row["claim_token"], row["epoch"]) == (UUID(int=2), second[0].token, 2)


@pytest.mark.requirement("E5")
async def test_jobs_spread_evenly_over_instances(bench):
    await bench.ledger.create_jobs([a_job(n) for n in range(10)])
    owners = [await an_owner(bench, number) for number in (1, 2, 3)]

    claimed = [len(await claim_all(bench, owner)) for owner in (*owners, *owners)]

    assert claimed == [4, 4, 2, 0, 0, 0]


@pytest.mark.requirement("E5")
async def test_beyond_its_share_an_instance_claims_only_jobs_that_have_waited_too_long(bench):
    await bench.ledger.create_jobs([a_job(n) for n in range(4)])
    owner, _ = await an_owner(bench, 1), await an_owner(bench, 2)
    share = await claim_all(bench, owner, unclaimed_after=10)
    early = await claim_all(bench, owner, unclaimed_after=10)
    await bench.set_clock(11)
    late = await claim_all(bench, owner, limit=1, unclaimed_after=10)

    assert [len(share), len(early), len(late)] == [2, 0, 1]


@pytest.mark.requirement("E5")
async def test_the_jobs_of_a_silent_owner_are_orphans_and_those_of_a_live_one_are_not(bench):
    await bench.ledger.create_jobs([a_job(1)])
    await claim_all(bench, await an_owner(bench, 1))
    await bench.set_clock(59)
    second = await an_owner(bench, 2)
    alive = await claim_all(bench, second)
    await bench.set_clock(60.5)
    silent = await claim_all(bench, second)

    assert (alive, [claim.job_id for claim in silent]) == ([], [a_job(1).job_id])


@pytest.mark.requirement("E5")
async def test_only_claim_orphans_claims_orphans(bench):
    await bench.ledger.create_jobs([a_job(1)])
    await claim_all(bench, await an_owner(bench, 1))
    await bench.ledger.create_jobs([a_job(2)])
    await bench.set_clock(61)
    second = await an_owner(bench, 2)
    limits = {"limit": 100, "orphan_after_seconds": 60, "unclaimed_after_seconds": 1e6}

    free = await bench.ledger.claim_jobs(second, **limits)
    orphans = await bench.ledger.claim_orphans(second, **limits)

    assert [claim.job_id for claim in free] == [a_job(2).job_id]
    assert [claim.job_id for claim in orphans] == [a_job(1).job_id]


@pytest.mark.requirement("E5")
async def test_an_instance_without_a_recent_heartbeat_claims_no_orphans(bench):
    """After an outage no heartbeat is recent: instances would repeatedly take the same jobs from each other."""
    await bench.ledger.create_jobs([a_job(1)])
    second = await an_owner(bench, 2)
    await claim_all(bench, await an_owner(bench, 1))
    await bench.set_clock(61)

    without_heartbeat = await claim_all(bench, second)
    await an_owner(bench, 2)
    with_heartbeat = await claim_all(bench, second)

    assert (without_heartbeat, [claim.job_id for claim in with_heartbeat]) == ([], [a_job(1).job_id])


@pytest.mark.requirement("E5")
async def test_a_missing_owner_counts_as_dead(bench):
    await bench.ledger.create_jobs([a_job(1)])
    first = await an_owner(bench, 1)
    await claim_all(bench, first)
    await bench.forget_owner(first)

    assert len(await claim_all(bench, await an_owner(bench, 2))) == 1


@pytest.mark.requirement("E5")
async def test_the_jobs_of_an_owner_that_retires_can_be_claimed_at_once(bench):
    await bench.ledger.create_jobs([a_job(1), a_job(2)])
    first, second = await an_owner(bench, 1), await an_owner(bench, 2)
    mine = await claim_all(bench, first, limit=1) + await claim_all(bench, first, limit=9, unclaimed_after=-1)
    assert len(mine) == 2

    retired = await bench.ledger.retire(first)
    again = await claim_all(bench, second)

    assert (retired, {claim.job_id for claim in again}) == (2, {claim.job_id for claim in mine})
    assert await bench.ledger.retire(first) == 0


@pytest.mark.requirement("E5")
async def test_a_claim_whose_response_was_lost_is_detected_and_released(bench):
    await bench.ledger.create_jobs([a_job(1), a_job(2)])
    owner = await an_owner(bench, 1)
    known, lost = sorted(await claim_all(bench, owner), key=lambda claim: claim.job_id)

    owned_by_rows = (await bench.ledger.sweep_jobs(owner)).owned
    released = await bench.ledger.release_unknown(owner, [known.job_id])
    again = await bench.ledger.release_unknown(owner, [known.job_id])

    assert (owned_by_rows, released, again) == (2, 1, 0)
    assert {job["job_id"]: job["owner_id"] for job in await bench.rows("dag_jobs")} == {
        known.job_id: owner,
        lost.job_id: None,
    }
    assert [claim.job_id for claim in await claim_all(bench, await an_owner(bench, 2))] == [lost.job_id]


# --- the fence -------------------------------------------------------------------------------------------------------


async def replaced_owner(bench: Bench) -> tuple[UUID, Claim]:
    """A claim that is no longer valid, because another owner has claimed the job."""
    await bench.ledger.create_jobs([a_job(1)])
    first = await an_owner(bench, 1)
    (claim,) = await claim_all(bench, first)
    await bench.set_clock(100)
    assert await claim_all(bench, await an_owner(bench, 2))
    return first, claim


@pytest.mark.requirement("E6")
async def test_an_owner_that_was_replaced_cannot_write(bench):
    owner, claim = await replaced_owner(bench)
    before = await all_rows(bench)

    async with bench.ledger.open_jobs(owner, [claim], StepScope()) as step:
        await step.commit([])

    assert step.fenced == {claim.job_id}
    assert not step.jobs
    assert await all_rows(bench) == before


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("wrong", ["owner", "token"])
async def test_the_fence_requires_both_the_owner_and_the_token(bench, wrong):
    driver = await owned(bench, a_job(1))
    owner = uuid4() if wrong == "owner" else driver.owner_id
    claim = replace(driver.claim, token=uuid4()) if wrong == "token" else driver.claim
    before = await all_rows(bench)

    async with bench.ledger.open_jobs(owner, [claim], StepScope()) as step:
        await step.commit([])

    assert step.fenced == {claim.job_id}
    assert await all_rows(bench) == before


@pytest.mark.requirement("E6")
async def test_an_ended_job_is_fenced(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, output=1))
    await driver.run_once()

    async with bench.ledger.open_jobs(driver.owner_id, [driver.claim], StepScope()) as step:
        await step.commit([])

    assert (await only_row(bench, "dag_jobs"))["status"] == "completed"
    assert step.fenced == {driver.claim.job_id}


@pytest.mark.requirement("E6")
async def test_a_stale_claim_does_not_block_the_others(bench):
    owner, lost = await replaced_owner(bench)
    await bench.ledger.create_jobs([a_job(2)])
    await bench.ledger.beat(OrchestratorInfo(owner, "host", 1, "test"))
    (mine,) = await claim_all(bench, owner)

    async with bench.ledger.open_jobs(owner, [lost, mine], StepScope()) as step:
        await step.commit([])

    assert step.fenced == {lost.job_id}
    assert step.jobs == {mine.job_id: OpenJob(epoch=1, sequence=2)}


@pytest.mark.requirement("E9")
async def test_open_reported_jobs_opens_only_jobs_with_reports(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.ledger.create_jobs([a_job(2)])
    await hand_in(bench, report_of(task, output=1))
    (silent,) = await claim_all(bench, driver.owner_id)

    async with bench.ledger.open_reported_jobs(driver.owner_id, [driver.claim, silent], StepScope()) as step:
        await step.commit([])

    assert set(step.jobs) == {driver.claim.job_id}
    assert [type(item).__name__ for item in step.jobs[driver.claim.job_id].updates] == ["Succeeded"]
    assert not step.fenced  # the claims of jobs without reports are not checked


@pytest.mark.requirement("E6")
async def test_a_stale_claim_is_fenced_even_if_there_is_a_report(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, output=1))
    stale_claim = replace(driver.claim, token=uuid4())

    async with bench.ledger.open_reported_jobs(driver.owner_id, [stale_claim], StepScope()) as step:
        await step.commit([])

    assert not step.jobs
    assert not (await only_row(bench, "dag_task_results"))["processed"]


@pytest.mark.requirement("E27")
async def test_a_decision_that_fails_changes_nothing(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, output=1))
    before = await all_rows(bench)

    async def decide() -> None:
        async with bench.ledger.open_jobs(driver.owner_id, [driver.claim], StepScope()) as step:
            assert step.jobs[task.job_id].updates
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await decide()
    if isinstance(bench, PostgresBench):
        await bench.set_clock(0)  # on a new connection
    unchanged = await all_rows(bench)
    updates = await driver.run_once()

    assert unchanged == before
    assert [type(item) for item in updates] == [Succeeded]


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E3")
async def test_a_dispatched_node_has_its_task(bench):
    await owned(bench, a_job(1, priority=4))

    task = await only_row(bench, "dag_tasks")
    assert (task["node_id"], task["attempt"], task["status"], task["priority"]) == ("work", 1, "queued", 4)
    assert (task["queue"], task["handler"], task["timeout_seconds"]) == (QUEUE, "echo", 1000.0)
    assert (await only_row(bench, "dag_node_states", node_id="work"))["status"] == "dispatched"
    assert (await only_row(bench, "dag_jobs"))["status"] == "running"


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_a_result_is_handled_exactly_once(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.set_clock(5)
    exchange = await hand_in(bench, report_of(task, output={"x": 1}, metrics={"bytes": 3}))
    reported = await bench.ledger.reported_jobs(driver.owner_id)

    updates = await driver.run_once()

    assert (exchange.accepted, exchange.late) == (1, ())
    assert reported == (task.job_id,)
    (result,) = updates
    assert isinstance(result, Succeeded)
    assert (result.node_id, result.attempt, result.status) == ("work", 1, NodeStatus.DISPATCHED)
    assert result.output == {"x": 1}
    assert (result.started_at, result.finished_at) == (START, START + timedelta(seconds=5))
    row = await only_row(bench, "dag_task_results")
    assert (row["accepted"], row["processed"], row["metrics"]) == (True, True, {"bytes": 3})
    node = await only_row(bench, "dag_node_states", node_id="work")
    assert (node["status"], node["output"], node["attempt"]) == ("completed", {"x": 1}, 1)
    assert (node["started_at"], node["completed_at"]) == (START, START + timedelta(seconds=5))
    assert await bench.ledger.reported_jobs(driver.owner_id) == ()
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["result_data"], job["owner_id"]) == ("completed", {"work": {"x": 1}}, None)


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_a_report_that_is_repeated_after_a_lost_response_changes_nothing(bench):
    await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, output=1))
    before = await all_rows(bench)

    again = await hand_in(bench, report_of(task, output=2))

    assert (again.accepted, again.late) == (1, ())
    assert await all_rows(bench) == before


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_a_report_of_another_worker_does_not_block_that_of_the_holder(bench):
    await owned(bench, a_job(1))
    (task,) = await take(bench)

    other = await hand_in(bench, report_of(task, output=2), worker=OTHER_WORKER)
    results = await bench.rows("dag_task_results")
    holder = await hand_in(bench, report_of(task, output=1))

    assert (other.accepted, other.late, results) == (0, (task.task_id,), [])
    assert (holder.accepted, holder.late) == (1, ())
    row = await only_row(bench, "dag_task_results")
    assert (row["accepted"], row["processed"], row["output"]) == (True, False, 1)


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_a_report_of_an_unknown_task_is_late_and_is_not_stored(bench):
    exchange = await hand_in(bench, Report(UUID(int=9), "nowhere", 1, TaskStatus.SUCCEEDED))

    assert exchange.late == (f"{UUID(int=9)}_nowhere_1",)
    assert await bench.rows("dag_task_results") == []


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_one_call_can_have_late_and_accepted_reports(bench):
    await owned(bench, tiles(3))
    tasks = sorted(await take(bench), key=lambda task: task.node_id)
    lost = Report(tasks[0].job_id, "tiles__0", 2, TaskStatus.SUCCEEDED)

    exchange = await hand_in(bench, report_of(tasks[0], output=0), lost, report_of(tasks[2], output=2))

    assert (exchange.accepted, exchange.late) == (2, (f"{tasks[0].job_id}_tiles__0_2",))
    statuses = {task["node_id"]: task["status"] for task in await bench.rows("dag_tasks")}
    assert statuses == {"tiles__0": "succeeded", "tiles__1": "running", "tiles__2": "succeeded"}


@every_worker_ledger
@pytest.mark.requirement("E7")
@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (TaskStatus.FAILED, {"message": "no", "blame": "handler"}, Failed),
        (TaskStatus.RETURNED, None, Returned),
    ],
)
async def test_failed_and_returned_tasks_have_the_counters_of_their_nodes(bench, status, error, kind):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, status, error=error))

    (update,) = await driver.run_once()

    assert isinstance(update, kind)
    assert (update.retry_count, update.loss_count, update.parent_node_id, update.fan_out_index) == (0, 0, None, None)
    assert (await only_row(bench, "dag_tasks", attempt=1))["status"] == status
    if isinstance(update, Failed):
        assert update.error == error


@every_worker_ledger
@pytest.mark.requirement("E12")
async def test_a_failed_attempt_stays_visible_and_its_node_waits(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.set_clock(10)
    error = {"message": "no", "blame": "handler"}
    await hand_in(bench, report_of(task, TaskStatus.FAILED, error=error))
    await driver.run_once()

    node = await only_row(bench, "dag_node_states", node_id="work")
    assert (node["status"], node["retry_count"], node["error_message"]) == ("ready", 1, "no")
    assert node["not_before"] == START + timedelta(seconds=15)
    row = await only_row(bench, "dag_task_results")
    assert (row["status"], row["error"], row["error_message"]) == ("failed", error, "no")


@pytest.mark.requirement("E18")
async def test_a_large_output_of_a_node_is_not_part_of_the_update(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    # Random, because other text would be compressed.
    large = Random(1).randbytes(4 * SMALL_BYTES).hex()
    await hand_in(bench, report_of(task, output={"large": large}))

    (update,) = await driver.run_once()

    assert isinstance(update, Succeeded)
    assert (update.has_output, update.output) == (False, None)
    assert await bench.ledger.load_outputs(task.job_id, ["work", "end"]) == {"work": {"large": large}, "end": None}


# --- claiming tasks --------------------------------------------------------------------------------------------------


@every_worker_ledger
@pytest.mark.requirement("E19")
async def test_tasks_are_claimed_by_priority_then_age(bench):
    await bench.ledger.create_jobs([a_job(n, priority=p) for n, p in enumerate([0, 9, 9])])
    owner = await an_owner(bench)
    for claim in sorted(await claim_all(bench, owner), key=lambda claim: claim.job_id):
        await Driver(bench, owner, claim, []).run_once()
    demand = replace(SERVED, light=1)

    taken = [[task.job_id for task in await take(bench, demand)] for _ in range(4)]

    assert taken == [[a_job(1).job_id], [a_job(2).job_id], [a_job(0).job_id], []]


async def queued(bench: Bench, *kinds: tuple[str, int]) -> None:
    """Create one job with a queued task for each handler and priority, in this order."""
    await bench.ledger.create_jobs(
        [
            a_job(n, a_workflow(ONE.replace("echo", handler)), priority=priority)
            for n, (handler, priority) in enumerate(kinds)
        ]
    )
    owner = await an_owner(bench)
    for claim in sorted(await claim_all(bench, owner), key=lambda claim: claim.job_id):
        await Driver(bench, owner, claim, []).run_once()


def numbers(tasks: Iterable[TaskMessage]) -> set[int]:
    known = {a_job(n).job_id: n for n in range(20)}
    return {known[task.job_id] for task in tasks}


@every_worker_ledger
@pytest.mark.requirement("E19")
async def test_priority_decides_before_the_handler(bench):
    await queued(bench, ("echo", 1), ("echo", 9), ("sleep", 5), ("fail", 5), ("sleep", 0))
    demand = Demand((QUEUE,), ("echo", "sleep", "fail"), 2)

    assert [numbers(await take(bench, demand)) for _ in range(4)] == [{1, 2}, {0, 3}, {4}, set()]


@pytest.mark.requirement("E19")
async def test_among_tasks_of_equal_priority_the_oldest_is_claimed_first(bench):
    await queued(bench, ("sleep", 0), ("echo", 0), ("sleep", 0), ("fail", 0), ("echo", 0))
    demand = Demand((QUEUE,), ("echo", "sleep", "fail"), 1)

    assert [numbers(await take(bench, demand)) for _ in range(5)] == [{0}, {1}, {2}, {3}, {4}]


@pytest.mark.requirement("E19")
async def test_a_batch_claims_by_handler_in_the_order_of_their_oldest_tasks(bench):
    await queued(bench, ("sleep", 0), ("echo", 0), ("sleep", 0), ("fail", 0), ("echo", 0))
    demand = Demand((QUEUE,), ("echo", "sleep", "fail"), 3)

    assert [numbers(await take(bench, demand)) for _ in range(2)] == [{0, 2, 1}, {3, 4}]


@every_worker_ledger
@pytest.mark.requirement("E19")
@pytest.mark.parametrize(
    ("demand", "taken"),
    [
        (Demand((QUEUE,), ("echo", "sleep", "fail"), 10), {1, 2, 0}),
        (Demand((QUEUE,), ("echo", "fail"), 10, ("sleep",), 10), {1, 4, 3}),
        (Demand((QUEUE,), ("echo", "fail"), 1, ("sleep",), 10), {1, 0, 2}),
        (Demand((QUEUE,), ("echo", "fail"), 0, ("sleep",), 10), {0, 2}),
        (Demand((QUEUE,), ("fail",), 10), {3}),
    ],
    ids=["light", "light before heavy", "one light", "no room for light", "one kind"],
)
async def test_light_and_heavy_tasks_share_the_limit_of_a_queue(bench, demand, taken):
    await queued(bench, ("sleep", 5), ("echo", 9), ("sleep", 5), ("fail", 0), ("echo", 5))
    await bench.ledger.set_queue(QUEUE, max_running=3)

    assert numbers(await take(bench, demand)) == taken
    assert numbers(await take(bench, Demand((QUEUE,), ("echo",), 10, ("sleep",), 10))) == (
        set() if len(taken) == 3 else {1, 4} if taken == {3} else {1}
    )


@every_worker_ledger
async def test_a_worker_claims_only_the_tasks_that_it_demands(bench):
    await owned(bench, tiles(5))

    other_queue = await take(bench, replace(SERVED, queues=("container-tasks",)))
    other_handler = await take(bench, replace(SERVED, light_handlers=("sleep",)))
    none = await take(bench, NO_DEMAND)
    light = await take(bench, replace(SERVED, light=2))
    heavy = await take(bench, Demand((QUEUE,), (), 0, ("echo",), 2))
    last_tasks = await take(bench, Demand((QUEUE,), ("sleep",), 5, ("echo",), 5))

    assert [len(x) for x in (other_queue, other_handler, none, light, heavy, last_tasks)] == [0, 0, 0, 2, 2, 1]
    assert len({task.task_id for task in (*light, *heavy, *last_tasks)}) == 5


@every_worker_ledger
async def test_a_report_claims_no_tasks(bench):
    await owned(bench, tiles(5))
    first, second, third = await take(bench, replace(SERVED, light=3))

    reported = await bench.ledger.report(WORKER, [report_of(first)], SERVED, lease_seconds=LEASE)
    exchanged = await bench.ledger.exchange(WORKER, [report_of(second)], replace(SERVED, light=1), lease_seconds=LEASE)
    late = await bench.ledger.report(OTHER_WORKER, [report_of(third)], SERVED, lease_seconds=LEASE)

    assert (reported.claimed, reported.accepted) == ((), 1)
    assert (len(exchanged.claimed), exchanged.accepted) == (1, 1)
    assert (late.claimed, late.accepted, late.late) == ((), 0, (third.task_id,))


@every_worker_ledger
@pytest.mark.requirement("E19")
async def test_a_limit_applies_from_the_next_claim_and_can_be_removed(bench):
    await owned(bench, tiles(4))
    first = await take(bench, Demand((QUEUE,), ("echo",), 1))  # before there is a limit
    await bench.ledger.set_queue(QUEUE, max_running=2)

    limited = await take(bench)
    none_left = await take(bench)
    await bench.ledger.set_queue(QUEUE, max_running=None)
    lifted = await take(bench)

    assert [len(first), len(limited), len(none_left), len(lifted)] == [1, 1, 0, 2]


@every_worker_ledger
@pytest.mark.requirement("E19")
async def test_a_limited_queue_is_served_although_another_queue_has_work(bench):
    await bench.ledger.set_queue("container-tasks", max_running=1)
    await owned(bench, a_job(1, a_workflow(TWO_QUEUES)))

    first = await take(bench, Demand((QUEUE, "container-tasks"), ("echo",), 1))
    second = await take(bench, Demand(("container-tasks", QUEUE), ("echo",), 1))

    assert [task.queue for task in (*first, *second)] == [QUEUE, "container-tasks"]


@every_worker_ledger
@pytest.mark.requirement("E19")
async def test_a_report_in_a_limited_queue_claims_the_next_task(bench):
    await owned(bench, tiles(3))
    await bench.ledger.set_queue(QUEUE, max_running=1)
    (task,) = await take(bench)

    reported = await bench.ledger.report(WORKER, [report_of(task)], SERVED, lease_seconds=LEASE)

    assert (len(reported.claimed), reported.accepted) == (1, 1)


@every_worker_ledger
async def test_a_claimed_task_has_all_fields_that_its_worker_needs(bench):
    await owned(bench, a_job(1, a_workflow(ONE.replace("echo,", "echo, params: {a: [1, null]}, timeout_seconds: 7,"))))

    (task,) = await take(bench)

    assert task == TaskMessage(
        task_id=f"{a_job(1).job_id}_work_1",
        job_id=a_job(1).job_id,
        node_id="work",
        attempt=1,
        handler="echo",
        params={"a": [1, None]},
        queue=QUEUE,
        timeout_seconds=7,
        retry_count=0,
    )
    row = await only_row(bench, "dag_tasks")
    assert (row["status"], row["worker_id"], row["started_at"]) == ("running", WORKER, START)
    assert row["lease_until"] == START + timedelta(seconds=LEASE)


@every_worker_ledger
@pytest.mark.requirement("E11")
async def test_a_claimed_task_has_the_number_of_workers_that_it_has_lost(bench):
    driver = await owned(bench, a_job(1))
    claimed = []
    for minute in (2, 4, 6):
        claimed += await take(bench)
        await bench.set_clock(60 * minute)
        await bench.ledger.beat(OrchestratorInfo(driver.owner_id, "host", 1, "test"))
        await driver.run_once("overdue")
        await bench.set_clock(60 * minute + 59)
        await driver.run_once("overdue")  # the delay of its retry is over

    assert [(task.attempt, task.losses) for task in claimed] == [(1, 0), (2, 0), (3, 2)]


# --- leases, timeouts, delays ----------------------------------------------------------------------------------------


@every_worker_ledger
@pytest.mark.requirement("E11")
async def test_a_lease_is_renewed_by_its_holder_only(bench):
    await owned(bench, a_job(1))
    (task,) = await take(bench)
    mine = Running(task.job_id, task.node_id, task.attempt, {"fraction": 0.5})
    await bench.set_clock(40)

    lost = await bench.ledger.renew(WORKER, [mine, Running(task.job_id, task.node_id, 2)], lease_seconds=LEASE)
    others = await bench.ledger.renew(OTHER_WORKER, [mine], lease_seconds=999)
    silent = await bench.ledger.renew(WORKER, [replace(mine, progress=None)], lease_seconds=LEASE)

    assert lost == {f"{task.job_id}_work_2"}
    assert others == {task.task_id}
    assert silent == frozenset()
    row = await only_row(bench, "dag_tasks")
    assert (row["lease_until"], row["progress"]) == (START + timedelta(seconds=100), {"fraction": 0.5})


@every_worker_ledger
@pytest.mark.requirement("E7")
async def test_a_task_that_waits_for_a_slot_starts_when_its_handler_starts(bench):
    """Otherwise the waiting time would count towards its timeout."""
    await owned(bench, a_job(1))
    (task,) = await take(bench)
    waiting = Running(task.job_id, task.node_id, task.attempt, run_seconds=0.0)
    starts = []

    for at, run_seconds in ((40, 0.0), (60, 15.0), (70, 25.0), (80, None), (90, 89.0)):
        await bench.set_clock(at)
        await bench.ledger.renew(WORKER, [replace(waiting, run_seconds=run_seconds)], lease_seconds=LEASE)
        starts.append(((await only_row(bench, "dag_tasks"))["started_at"] - START).total_seconds())

    assert starts == [40, 45, 45, 45, 45]


@every_worker_ledger
@pytest.mark.requirement("H1")
async def test_the_last_log_lines_are_stored_with_the_task_until_a_report_has_them(bench):
    driver = await owned(bench, tiles(3))
    reported, silent, lost = await take(bench)
    lines = [{"number": 1, "at": START.isoformat(), "level": "info", "text": "a line"}]
    renewals = [Running(task.job_id, task.node_id, task.attempt, log=lines) for task in (reported, silent, lost)]

    await bench.ledger.renew(WORKER, renewals, lease_seconds=LEASE)
    await bench.ledger.renew(WORKER, [replace(each, log=None) for each in renewals], lease_seconds=LEASE)
    await hand_in(bench, replace(report_of(reported), metrics={"log": lines}), report_of(silent))
    await bench.set_clock(LEASE + 1)
    await bench.ledger.beat(OrchestratorInfo(driver.owner_id, "host", 1, "test"))
    await driver.run_once("overdue")

    kept = {row["task_id"]: (row["status"], row["log"]) for row in await bench.rows("dag_tasks")}
    assert kept[reported.task_id] == ("succeeded", None)
    assert kept[silent.task_id] == ("succeeded", lines)
    assert kept[lost.task_id] == ("lost", lines)


@pytest.mark.requirement("E19")
async def test_set_queue_changes_only_the_given_fields(bench):
    steps = []
    for changes in ({"is_paused": True}, {"max_running": 2}, {"is_paused": False}, {"max_running": None}):
        await bench.ledger.set_queue(QUEUE, **changes)
        steps.append(await only_row(bench, "dag_queues"))

    assert [(row["max_running"], row["is_paused"]) for row in steps] == [
        (None, True),
        (2, True),
        (2, False),
        (None, False),
    ]


@every_worker_ledger
@pytest.mark.requirement("E11")
async def test_a_task_is_lost_when_its_lease_expires_and_its_report_is_late(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.set_clock(59)
    before = await bench.ledger.sweep_jobs(driver.owner_id)
    await bench.set_clock(61)
    await bench.ledger.beat(OrchestratorInfo(driver.owner_id, "host", 1, "test"))
    after = await bench.ledger.sweep_jobs(driver.owner_id)

    (update,) = await driver.run_once("overdue")
    late = await hand_in(bench, report_of(task, output="late"))

    assert (before.overdue, after.overdue) == ((), (task.job_id,))
    assert isinstance(update, Lost)
    assert (update.started_at, update.worker_id) == (START, str(WORKER))
    statuses = {row["attempt"]: row["status"] for row in await bench.rows("dag_tasks")}
    assert statuses == {1: "lost", 2: "queued"}
    assert late.late == (task.task_id,)
    result = await only_row(bench, "dag_task_results", attempt=1)
    assert (result["accepted"], result["processed"]) == (False, True)
    assert await bench.ledger.renew(WORKER, [Running(task.job_id, "work", 1)], lease_seconds=1) == {task.task_id}
    node = await only_row(bench, "dag_node_states", node_id="work")
    assert (node["status"], node["attempt"], node["retry_count"], node["loss_count"]) == ("dispatched", 2, 0, 1)


@every_worker_ledger
@pytest.mark.requirement("E11")
async def test_a_task_with_an_expired_lease_is_lost_only_when_overdue_tasks_are_read(bench):
    driver = await owned(bench, a_job(1))
    await take(bench)
    await bench.set_clock(59)
    early = await driver.run_once("overdue")
    await bench.set_clock(61)
    without_overdue = await driver.run_once("started")

    assert early == []
    assert [type(item) for item in without_overdue] == [Started]


@every_worker_ledger
@pytest.mark.requirement("E10")
async def test_a_task_that_exceeds_its_timeout_fails_even_if_its_lease_is_renewed(bench):
    driver = await owned(bench, a_job(1, a_workflow(ONE.replace("echo,", "echo, timeout_seconds: 100,"))))
    (task,) = await take(bench)
    running = [Running(task.job_id, task.node_id, task.attempt)]
    await bench.set_clock(105)
    await bench.ledger.renew(WORKER, running, lease_seconds=LEASE)
    in_time = await driver.run_once("overdue")  # the worker has some seconds to end the task itself
    await bench.set_clock(111)

    (update,) = await driver.run_once("overdue")

    assert in_time == []
    assert isinstance(update, Overran)
    assert (update.seconds, update.worker_id, update.started_at) == (100, str(WORKER), START)
    assert (await only_row(bench, "dag_tasks"))["status"] == "failed"


@pytest.mark.requirement("E10")
async def test_waiting_in_a_queue_has_its_own_timeout(bench):
    driver = await owned(bench, a_job(1, a_workflow(ONE.replace("echo,", "echo, queue_timeout_seconds: 30,"))))
    await bench.set_clock(29)
    early = await driver.run_once("overdue")
    await bench.set_clock(31)
    pending = await bench.ledger.sweep_jobs(driver.owner_id)

    (update,) = await driver.run_once("overdue")

    assert early == []
    assert pending.overdue == (driver.claim.job_id,)
    assert isinstance(update, Expired)
    assert update.seconds == 30
    assert (await only_row(bench, "dag_tasks"))["status"] == "cancelled"
    await bench.set_clock(40)
    await driver.run_once("overdue")
    again = await only_row(bench, "dag_tasks", attempt=2)
    assert (again["status"], again["expires_at"]) == ("queued", START + timedelta(seconds=70))


@pytest.mark.requirement("E12")
async def test_a_node_whose_delay_is_over_is_reported_as_pending_work(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, TaskStatus.FAILED, error={"message": "no", "blame": "handler"}))
    await driver.run_once()
    waiting = await bench.ledger.sweep_jobs(driver.owner_id)
    early = await driver.run_once("overdue")
    await bench.set_clock(5)
    due = await bench.ledger.sweep_jobs(driver.owner_id)

    (update,) = await driver.run_once("overdue")

    assert waiting.overdue == ()
    assert waiting.next_due_seconds == pytest.approx(5)
    assert early == []
    assert (due.overdue, due.next_due_seconds) == ((task.job_id,), None)
    assert isinstance(update, Due)
    assert (update.attempt, update.status, update.retry_count) == (1, NodeStatus.READY, 1)
    assert (await only_row(bench, "dag_tasks", attempt=2))["retry_count"] == 1
    assert (await only_row(bench, "dag_node_states", node_id="work"))["not_before"] is None


@every_worker_ledger
async def test_a_task_that_has_run_for_a_while_is_shown_as_running(bench):
    driver = await owned(bench, a_job(1))
    queued = await bench.ledger.sweep_jobs(driver.owner_id)
    await take(bench)
    fresh = await bench.ledger.sweep_jobs(driver.owner_id, started_after_seconds=2)
    await bench.set_clock(3)
    old = await bench.ledger.sweep_jobs(driver.owner_id, started_after_seconds=2)

    (update,) = await driver.run_once("started")
    again = await driver.run_once("started")

    assert (queued.started, fresh.started, old.started) == ((), (), (driver.claim.job_id,))
    assert isinstance(update, Started)
    assert again == []
    node = await only_row(bench, "dag_node_states", node_id="work")
    assert (node["status"], node["started_at"]) == ("running", START)


@pytest.mark.requirement("E1")
async def test_a_failing_job_withdraws_queued_tasks_and_waiting_retries(bench):
    driver = await owned(bench, tiles(4))
    retried, running = await take(bench, replace(SERVED, light=2))
    await hand_in(bench, report_of(retried, TaskStatus.FAILED, error={"message": "no", "blame": "environment"}))
    await driver.run_once()

    updates = await driver.run_once("withdraw")

    kinds = {item.node_id: type(item) for item in updates}
    queued = {f"tiles__{n}" for n in range(4)} - {retried.node_id, running.node_id}
    assert kinds == {retried.node_id: Due} | dict.fromkeys(queued, Withdrawn)
    statuses = {row["node_id"]: row["status"] for row in await bench.rows("dag_tasks") if row["attempt"] == 1}
    assert statuses == {retried.node_id: "failed", running.node_id: "running"} | dict.fromkeys(queued, "cancelled")


@every_worker_ledger
@pytest.mark.requirement("E14")
async def test_requests_to_stop_a_task_are_repeated_until_it_has_ended(bench):
    """The response with the first request may be lost."""
    driver = await owned(bench, tiles(2))
    (task,) = await take(bench, replace(SERVED, light=1))

    updates = await driver.run_once("withdraw stop_running")
    stops = await bench.ledger.take_stops(WORKER)
    await bench.set_clock(5)
    again = await bench.ledger.take_stops(WORKER)
    others = await bench.ledger.take_stops(OTHER_WORKER)
    running = next(row for row in await bench.rows("dag_tasks") if row["status"] == "running")
    await hand_in(bench, report_of(task, TaskStatus.CANCELLED))
    afterwards = await bench.ledger.take_stops(WORKER)

    assert [(item.node_id, type(item)) for item in updates] == [("tiles__1", Withdrawn)]
    assert (stops, again, others, afterwards) == ({task.task_id}, {task.task_id}, frozenset(), frozenset())
    assert running["stop_requested_at"] == running["stop_seen_at"] == START


@every_worker_ledger
@pytest.mark.requirement("E14")
async def test_a_task_that_was_stopped_counts_as_returned(bench):
    driver = await owned(bench, tiles(1))
    (task,) = await take(bench, replace(SERVED, light=1))
    await driver.run_once("stop_running")

    response = await hand_in(bench, report_of(task, TaskStatus.CANCELLED))
    updates = await driver.run_once()

    assert not response.late
    assert [type(item) for item in updates] == [Returned]


@pytest.mark.requirement("E14")
async def test_a_cancel_request_is_pending_work_until_the_owner_has_started_to_stop_the_job(bench):
    driver = await owned(bench, a_job(1))
    job_id = driver.claim.job_id

    first = await bench.ledger.request_cancel(job_id, by="ana", reason="wrong file")
    second = await bench.ledger.request_cancel(job_id, by="ben", reason=None)
    reported = await bench.ledger.reported_jobs(driver.owner_id)
    async with bench.ledger.open_reported_jobs(driver.owner_id, [driver.claim], StepScope()) as step:
        await step.commit([])

    assert (first, second) == ((JobStatus.RUNNING, True), (JobStatus.RUNNING, False))
    assert reported == (job_id,)
    assert step.jobs[job_id].stop == StopRequest(Stop.CANCELLED, "ana", "wrong file")

    await driver.run_once()
    await driver.run_once("withdraw")
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["stopping"]) == ("cancelled", "cancelled")
    assert await bench.ledger.reported_jobs(driver.owner_id) == ()
    assert await bench.ledger.request_cancel(job_id, by=None, reason=None) == (JobStatus.CANCELLED, False)
    with pytest.raises(NotFound):
        await bench.ledger.request_cancel(uuid4(), by=None, reason=None)


@pytest.mark.requirement("E13")
async def test_a_job_past_its_deadline_is_pending_work_and_reported_as_overdue(bench):
    driver = await owned(bench, a_job(1, a_workflow(ONE, head="timeout_seconds: 50\n")))
    before = await bench.ledger.sweep_jobs(driver.owner_id)
    await bench.set_clock(51)
    after = await bench.ledger.sweep_jobs(driver.owner_id)

    await driver.run_once()
    await driver.run_once("withdraw")

    assert driver.claim.job_id not in before.overdue
    assert driver.claim.job_id in after.overdue
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["error_message"]) == ("failed", "the job did not end within its timeout of 50 s")


# --- running again ---------------------------------------------------------------------------------------------------


async def failed_tiles(bench: Bench, count: int, failing: int) -> Driver:
    """A job that failed because some children of its fan_out failed."""
    strict = a_workflow(TILES.format(mode="collect").replace("    tolerate: 1.0\n", ""), head=INPUTS)
    driver = await owned(bench, a_job(1, strict, input_params={"list": list(range(count))}))
    tasks = await take(bench, replace(SERVED, light=count))
    error = {"message": "no", "blame": "data"}
    for number, task in enumerate(sorted(tasks, key=lambda task: task.node_id)):
        bad = number < failing
        await hand_in(bench, report_of(task, TaskStatus.FAILED, error=error) if bad else report_of(task, output=number))
    while (await only_row(bench, "dag_jobs"))["status"] == "running":
        await driver.run_once("withdraw")
    return driver


def choose_resume(job: LoadedJob) -> Rerun:
    return resume(job.view())


@pytest.mark.requirement("E15")
async def test_an_ended_job_resumes_with_the_nodes_that_are_missing(bench):
    driver = await failed_tiles(bench, 4, 2)
    job_id = driver.claim.job_id
    assert (await only_row(bench, "dag_jobs"))["status"] == "failed"

    rerun, count = await bench.ledger.rerun(job_id, choose_resume, {"by": "ana"})

    assert (rerun.children, count) == ({"tiles": 2}, 1)
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["owner_id"], job["error_message"], job["completed_at"]) == ("running", None, None, None)
    states = {row["node_id"]: row for row in await bench.rows("dag_node_states")}
    assert {node_id: states[node_id]["status"] for node_id in ("tiles__0", "tiles__1", "tiles__2", "tiles__3")} == {
        "tiles__0": "pending",
        "tiles__1": "pending",
        "tiles__2": "completed",
        "tiles__3": "completed",
    }
    tile = states["tiles"]
    assert (tile["remaining"], tile["failed_count"], tile["idle_count"]) == (2, 0, 2)

    owner = await an_owner(bench, 2)
    (claim,) = await claim_all(bench, owner)
    again = Driver(bench, owner, claim, [])
    await again.run_once()
    scope = StepScope(wake={(job_id, "tiles"): 1})
    async with bench.ledger.open_jobs(owner, [claim], scope) as step:
        pass  # without a commit, nothing is written
    assert [(type(item), item.node_id, item.attempt) for item in step.jobs[job_id].updates] == [(Idle, "tiles__0", 1)]

    await again.run_once(wake={(job_id, "tiles"): 2})
    tasks = await take(bench, replace(SERVED, light=9))
    assert sorted((task.node_id, task.attempt) for task in tasks) == [("tiles__0", 2), ("tiles__1", 2)]
    for task in tasks:
        await hand_in(bench, report_of(task, output=7))
    await again.run_once()
    await again.run_once()  # with the result of the fan_in
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["resume_count"]) == ("completed", 1)
    assert all(row["idle_count"] in (None, 0) for row in await bench.rows("dag_node_states"))


@pytest.mark.requirement("E15")
async def test_a_fan_out_that_runs_again_reuses_its_old_children_in_their_order(bench):
    driver = await owned(bench, tiles(3))
    for task in await take(bench, replace(SERVED, light=9)):
        await hand_in(bench, report_of(task, output=task.node_id))
    await driver.run_once()
    await driver.run_once()
    job_id = driver.claim.job_id
    assert (await only_row(bench, "dag_jobs"))["status"] == "completed"

    await bench.ledger.rerun(job_id, lambda job: retry(job.view(), node="tiles"), {})

    states = {row["node_id"]: row for row in await bench.rows("dag_node_states")}
    tile = states["tiles"]
    assert (tile["status"], tile["run"], tile["total"], tile["expanded"], tile["stale_count"]) == (
        "pending",
        2,
        None,
        None,
        3,
    )
    child = states["tiles__1"]
    assert (child["status"], child["output"], child["is_idle"], child["attempt"]) == ("pending", None, True, 1)
    owner = await an_owner(bench, 2)
    (claim,) = await claim_all(bench, owner)
    again = Driver(bench, owner, claim, [])
    await again.run_once()
    await again.run_once(wake={(job_id, "tiles"): 2})
    tile = next(row for row in await bench.rows("dag_node_states") if row["node_id"] == "tiles")
    assert (tile["status"], tile["expanded"], tile["stale_count"], tile["remaining"]) == ("ready", 2, 1, 3)
    await again.run_once(wake={(job_id, "tiles"): 2})
    tasks = await take(bench, replace(SERVED, light=9))
    assert sorted((task.node_id, task.attempt) for task in tasks) == [(f"tiles__{n}", 2) for n in range(3)]
    for task in tasks:
        await hand_in(bench, report_of(task, output=7))
    await again.run_once()
    await again.run_once()
    assert (await only_row(bench, "dag_jobs"))["status"] == "completed"


@pytest.mark.requirement("E15")
async def test_one_child_and_the_nodes_after_it_run_again(bench):
    driver = await owned(bench, tiles(3))
    for task in await take(bench, replace(SERVED, light=9)):
        await hand_in(bench, report_of(task, output=task.node_id))
    await driver.run_once()
    await driver.run_once()

    await bench.ledger.rerun(driver.claim.job_id, lambda job: retry(job.view(), node="tiles__1"), {})

    states = {row["node_id"]: row for row in await bench.rows("dag_node_states")}
    tile = states["tiles"]
    assert (tile["status"], tile["remaining"], tile["failed_count"], tile["idle_count"]) == ("completed", 1, 0, 1)
    assert [states[f"tiles__{n}"]["status"] for n in range(3)] == ["completed", "pending", "completed"]
    assert (states["gather"]["status"], states["gather"]["output"]) == ("pending", None)


@pytest.mark.requirement("E15")
async def test_a_running_or_unknown_job_cannot_be_resumed_and_is_not_changed(bench):
    driver = await owned(bench, a_job(1))
    before = await all_rows(bench)

    with pytest.raises(Conflict):
        await bench.ledger.rerun(driver.claim.job_id, choose_resume, {})
    with pytest.raises(NotFound):
        await bench.ledger.rerun(uuid4(), choose_resume, {})

    assert await all_rows(bench) == before


# --- jobs that cannot be advanced ------------------------------------------------------------------------------------


async def half_done_tiles(bench: Bench) -> Driver:
    """Of five children, one has completed, one waits for its retry, one has reported, one runs, and one is queued."""
    text = TILES.format(mode="collect").replace("max_attempts: 0", "max_attempts: 1, initial_delay_seconds: 60")
    driver = await owned(bench, a_job(1, a_workflow(text, head=INPUTS), input_params={"list": list(range(5))}))
    tasks = sorted(await take(bench, replace(SERVED, light=4)), key=lambda task: task.node_id)
    error = {"message": "no", "blame": "handler"}
    await hand_in(bench, report_of(tasks[0], output=0), report_of(tasks[1], TaskStatus.FAILED, error=error))
    await driver.run_once()
    await hand_in(bench, report_of(tasks[2], output=2))
    return driver


@pytest.mark.requirement("E27")
async def test_failing_a_job_that_cannot_be_advanced_also_ends_its_open_nodes_and_tasks(bench):
    driver = await half_done_tiles(bench)

    is_failed = await bench.ledger.fail_job(driver.owner_id, driver.claim, "it cannot be read")
    again = await bench.ledger.fail_job(driver.owner_id, driver.claim, "it cannot be read")

    assert (is_failed, again) == (True, False)
    job = await only_row(bench, "dag_jobs")
    assert (job["status"], job["error_message"], job["owner_id"]) == ("failed", "it cannot be read", None)
    states = {row["node_id"]: row for row in await bench.rows("dag_node_states")}
    assert [states[f"tiles__{n}"]["status"] for n in range(5)] == ["completed", *["cancelled"] * 4]
    tile = states["tiles"]
    assert (tile["status"], tile["remaining"], tile["cancelled_count"]) == ("completed", 0, 4)
    assert states["gather"]["status"] == states["end"]["status"] == "cancelled"
    assert all(row["not_before"] is None for row in states.values())
    tasks = [row["status"] for row in await bench.rows("dag_tasks")]
    assert sorted(tasks) == ["cancelled", "cancelled", "failed", "succeeded", "succeeded"]
    assert all(row["processed"] for row in await bench.rows("dag_task_results"))
    events = sorted(await bench.rows("dag_job_events"), key=lambda event: event["sequence"])
    assert [event["sequence"] for event in events] == list(range(1, job["last_sequence"] + 1))
    assert events[-1]["event_data"] == {"error_message": "it cannot be read", "reason": "not_advanced"}
    if isinstance(bench, PostgresBench):
        report = await verify(bench.dsn)
        assert report.is_clean, report.findings


@pytest.mark.requirement("E27")
async def test_a_job_that_was_ended_as_failed_can_be_resumed(bench):
    driver = await half_done_tiles(bench)
    job_id = driver.claim.job_id
    await bench.ledger.fail_job(driver.owner_id, driver.claim, "it cannot be read")

    await bench.ledger.rerun(job_id, choose_resume, {})
    owner = await an_owner(bench, 2)
    (claim,) = await claim_all(bench, owner)
    if isinstance(bench, PostgresBench):
        report = await verify(bench.dsn)
        assert report.is_clean, report.findings
    # The job fails again while children wait to run: they are counted too.
    assert await bench.ledger.fail_job(owner, claim, "again")
    await bench.ledger.rerun(job_id, choose_resume, {})
    (claim,) = await claim_all(bench, owner)
    resumed = Driver(bench, owner, claim, [])
    await resumed.run_once()
    await resumed.run_once(wake={(job_id, "tiles"): 5})
    for task in await take(bench, replace(SERVED, light=9)):
        await hand_in(bench, report_of(task, output=7))
    await resumed.run_once()
    await resumed.run_once()

    assert (await only_row(bench, "dag_jobs"))["status"] == "completed"
    gathered = await only_row(bench, "dag_node_states", node_id="gather")
    assert gathered["output"] == {"results": [0, 7, 7, 7, 7], "count": 5}
    if isinstance(bench, PostgresBench):
        report = await verify(bench.dsn)
        assert report.is_clean, report.findings


# --- gathering -------------------------------------------------------------------------------------------------------

# The outputs that a worker accepts from a handler: JSON with 64-bit integers and without NUL.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
OUTPUTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(TEXTS, parts, max_size=4),
    max_leaves=8,
)


async def gathered(
    bench: Bench, outputs: list[Any], failed: set[int], mode: str
) -> tuple[dict[str, Any], list[ChildResult]]:
    """Run a fan_out whose children have these outputs. Returns the row of the fan_in, and the input of `aggregate`."""
    driver = await owned(bench, tiles(len(outputs), mode))
    tasks = {task.node_id: task for task in await take(bench)}
    reports = []
    for index, output in enumerate(outputs):
        task = tasks[f"tiles__{index}"]
        error = {"message": f"no {index}", "blame": "data"}
        reports.append(
            report_of(task, TaskStatus.FAILED, error=error) if index in failed else report_of(task, output=output)
        )
    await hand_in(bench, *reports)
    await driver.run_once()
    children = [
        ChildResult(
            i, f"tiles__{i}", "failed" if i in failed else "completed", output, f"no {i}" if i in failed else None
        )
        for i, output in enumerate(outputs)
    ]
    return await only_row(bench, "dag_node_states", node_id="gather"), children


def alike(value: Any, expected: Any) -> bool:
    """Equal as JSON: jsonb writes large floats as integers, which equal the float only after rounding."""
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(alike(value[key], expected[key]) for key in expected)
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(alike, value, expected))
    if isinstance(expected, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) == expected
    return bool(value == expected) and type(value) is type(expected)


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("mode", [mode.value for mode in Aggregation])
@pytest.mark.parametrize(
    ("outputs", "failed"),
    [
        ([], set()),
        ([1, 2.5, {"a": [3, {"b": -1}]}, "4", True, None], set()),
        ([[1, [2]], [], {"x": None}, None], set()),
        (["ü€😀", {"ключ": '\\ " \n \u2028'}, 2**63 - 1, -(2**63), 1e300, 5e-324], set()),
        (["a", "b", "c"], {0, 2}),
        (["a"], {0}),
    ],
    ids=["none", "numbers", "lists", "odd", "some failed", "all failed"],
)
async def test_a_fan_in_has_the_same_result_as_aggregate(bench, outputs, failed, mode):
    row, children = await gathered(bench, outputs, failed, mode)

    expected = aggregate(Aggregation(mode), children)
    assert row["status"] == "completed"
    assert row["output_ref"] is None
    assert alike(row["output"], expected), (row["output"], expected)


@pytest.mark.requirement("W8")
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    outputs=st.lists(OUTPUTS, max_size=5), failed=st.sets(st.integers(0, 4)), mode=st.sampled_from(list(Aggregation))
)
def test_gather_in_postgresql_has_the_same_result_as_aggregate_for_any_json(database, outputs, failed, mode):
    """Calls the SQL function directly, with rows as a fan_out leaves them."""
    job_id = uuid4()
    failed &= set(range(len(outputs)))
    with psycopg.connect(database) as connection:
        connection.execute("SET session_replication_role = replica")
        insert = (
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, fan_out_index, total, output, error_message)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)"
        )
        connection.execute(insert, [job_id, "tiles", "completed", None, len(outputs), None, None])
        for index, output in enumerate(outputs):
            status = "failed" if index in failed else "completed"
            text = orjson.dumps(output).decode()
            connection.execute(insert, [job_id, f"tiles__{index}", status, index, None, text, None])
        gather = "SELECT dagapp.gather(%s, 'tiles', %s)::text"
        children = [
            ChildResult(i, f"tiles__{i}", "failed" if i in failed else "completed", output)
            for i, output in enumerate(outputs)
        ]
        try:
            expected = aggregate(mode, children)
        except SumOutOfRange as refused:
            with pytest.raises(psycopg.Error, match=refused.message) as error:
                connection.execute(gather, [job_id, mode.value])
            assert (error.value.sqlstate, error.value.diag.message_detail) == ("DM003", f"{job_id} tiles")
            connection.rollback()
            return
        (gathered,) = connection.execute(gather, [job_id, mode.value]).fetchone() or ()
        connection.rollback()

    assert alike(orjson.loads(gathered), expected), (gathered, expected)


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("outputs", [[1e308, {"a": 1e308}], [[2**63, 2**63]], [-(2**63), -1]])
async def test_a_sum_out_of_range_is_refused_and_changes_nothing(bench, outputs):
    driver = await owned(bench, tiles(len(outputs), "sum"))
    for task in await take(bench):
        await hand_in(bench, report_of(task, output=outputs[int(task.node_id.rpartition("__")[2])]))
    before = await all_rows(bench)

    with pytest.raises(SumOutOfRange) as refused:
        await driver.run_once()

    assert refused.value.facts == {"job_id": driver.claim.job_id, "fan_out": "tiles"}
    assert await all_rows(bench) == before


@pytest.mark.requirement("E18")
async def test_a_large_collected_output_is_a_reference_that_can_be_resolved(bench):
    outputs = [Random(n).randbytes(INLINE_BYTES // 4).hex() for n in range(3)]
    row, children = await gathered(bench, outputs, set(), "collect")

    loaded = await bench.ledger.load_outputs(row["job_id"], ["gather"])

    assert row["output"] is None
    assert (row["output_ref"]["results_of"], row["output_ref"]["aggregation"]) == ("tiles", "collect")
    assert row["output_ref"]["bytes"] > INLINE_BYTES
    assert loaded == {"gather": aggregate(Aggregation.COLLECT, children)}


@pytest.mark.requirement("E18")
async def test_a_collected_output_that_is_too_large_for_a_template_is_refused(bench):
    outputs = ["x" * (LOADABLE_BYTES // 2 + 1000)] * 2
    row, _ = await gathered_unread(bench, outputs)

    with pytest.raises(DagmasterError) as refusal:
        await bench.ledger.load_outputs(row["job_id"], ["gather"])

    assert refusal.value.code == "output.too-large"


async def gathered_unread(bench: Bench, outputs: list[Any]) -> tuple[dict[str, Any], None]:
    """As `gathered`, without reading the output of the fan_in."""
    driver = await owned(bench, tiles(len(outputs)))
    reports = [report_of(task, output=outputs[0]) for task in await take(bench)]
    for report in reports:
        await hand_in(bench, report)
    await driver.run_once()
    return await only_row(bench, "dag_node_states", node_id="gather"), None


# --- payloads --------------------------------------------------------------------------------------------------------


def large(text: str) -> bytes:
    """JSON that is too large for a row."""
    return orjson.dumps({"text": text * (INLINE_BYTES // len(text) + 1)})


@pytest.mark.requirement("E18")
async def test_a_payload_is_read_as_it_was_stored_and_equal_content_is_stored_once(bench):
    job_id, other = a_job(1).job_id, a_job(2).job_id
    content = large("ü€😀") * 12  # several parts

    first = await bench.ledger.store_payload(job_id, content)
    await bench.set_clock(50)
    second = await bench.ledger.store_payload(job_id, bytearray(content))
    await bench.ledger.store_payload(other, content)

    assert first == second == reference_to(content)
    assert bytes(await bench.ledger.load_payload(job_id, first)) == content
    (row,) = await bench.rows("dag_payloads", job_id)
    assert (row["sha256"], row["size_bytes"], row["is_kept"]) == (first["sha256"], len(content), False)
    assert row["stored_at"] == START + timedelta(seconds=50)
    assert len(await bench.rows("dag_payloads")) == 2


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"bytes": 3}], ids=["unknown", "another size"])
async def test_a_payload_that_does_not_match_its_reference_is_an_error(bench, wrong):
    job_id = a_job(1).job_id
    reference = await bench.ledger.store_payload(job_id, large("x")) | wrong

    with pytest.raises(DagmasterError) as refusal:
        await bench.ledger.load_payload(job_id, reference)
    with pytest.raises(DagmasterError) as of_others:
        await bench.ledger.load_payload(a_job(2).job_id, reference)

    assert refusal.value.code == ("payload.missing" if "sha256" in wrong else "payload.damaged")
    assert of_others.value.code == "payload.missing"
    assert refusal.value.facts["job_id"] == str(job_id)


async def report_with_payload(bench: Bench, task: TaskMessage, content: bytes) -> Report:
    """The report of a worker that has stored its output."""
    return report_of(task, output_ref=await bench.ledger.store_payload(task.job_id, content))


@every_worker_ledger
@pytest.mark.requirement("E18")
async def test_an_output_by_reference_becomes_that_of_its_node_and_is_kept(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    content = large("x")

    response = await hand_in(bench, await report_with_payload(bench, task, content))
    (update,) = await driver.run_once()

    assert response.late == ()
    assert (update.output, update.has_output) == (None, False)
    node = await only_row(bench, "dag_node_states", node_id="work")
    assert (node["output"], node["output_ref"]) == (None, reference_to(content))
    assert [row["is_kept"] for row in await bench.rows("dag_payloads")] == [True]
    loaded = await bench.ledger.load_outputs(task.job_id, ["work"])
    referred = await bench.ledger.load_output_references(task.job_id, ["work"])
    assert loaded == {"work": orjson.loads(content)}
    assert referred == {"work": {"output_ref": reference_to(content)}}
    (job,) = await bench.ledger.load_jobs([driver.claim.job_id])
    assert "work" not in job.outputs


@pytest.mark.requirement("E18")
async def test_an_output_that_is_too_large_for_a_template_is_refused_with_size_and_limit(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await hand_in(bench, await report_with_payload(bench, task, orjson.dumps("x" * LOADABLE_BYTES)))
    await driver.run_once()

    with pytest.raises(DagmasterError) as refusal:
        await bench.ledger.load_outputs(task.job_id, ["work"])

    assert refusal.value.code == "output.too-large"
    assert refusal.value.message.endswith(
        f"has {LOADABLE_BYTES + 2} bytes; a template can load at most {LOADABLE_BYTES}"
    )


@every_worker_ledger
@pytest.mark.requirement("E18")
async def test_a_report_with_a_missing_payload_is_refused_and_its_task_still_runs(bench):
    await owned(bench, a_job(1))
    (task,) = await take(bench)

    with pytest.raises(NotFound) as refusal:
        await hand_in(bench, report_of(task, output_ref=reference_to(large("x"))))

    assert refusal.value.code == "payload.missing"
    assert (await only_row(bench, "dag_tasks"))["status"] == "running"
    assert await bench.rows("dag_task_results") == []


@every_worker_ledger
@pytest.mark.requirement("E18")
async def test_the_payload_of_a_late_report_is_kept(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    report = await report_with_payload(bench, task, large("x"))
    await bench.set_clock(LEASE + 10)
    await driver.run_once("overdue")

    response = await hand_in(bench, report)

    assert response.late == (task.task_id,)
    result = await only_row(bench, "dag_task_results", attempt=1)
    assert (result["accepted"], result["output_ref"]) == (False, report.output_ref)
    assert [row["is_kept"] for row in await bench.rows("dag_payloads")] == [True]


@every_worker_ledger
@pytest.mark.requirement("E18")
async def test_the_payload_of_a_report_for_a_deleted_task_is_not_marked_as_kept(bench):
    await owned(bench, a_job(1))
    (task,) = await take(bench)
    report = await report_with_payload(bench, task, large("x"))

    await hand_in(bench, replace(report, node_id="deleted"))

    assert [row["is_kept"] for row in await bench.rows("dag_payloads")] == [False]


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("mode", [mode.value for mode in Aggregation])
async def test_the_output_of_a_fan_in_over_payloads_is_a_reference_that_can_be_resolved(bench, mode):
    """The first of three children is large; it is part of the result in every mode except `last`."""
    driver = await owned(bench, tiles(3, mode))
    contents = [large("a"), b"[1,2]", b"3"]
    by_index = {int(task.node_id[-1]): task for task in await take(bench)}
    await hand_in(bench, await report_with_payload(bench, by_index[0], contents[0]))
    for index in (1, 2):
        await hand_in(bench, report_of(by_index[index], output=orjson.loads(contents[index])))
    await driver.run_once()

    row = await only_row(bench, "dag_node_states", node_id="gather")
    loaded = await bench.ledger.load_outputs(row["job_id"], ["gather"])

    values = [
        ChildResult(index, f"tiles__{index}", "completed", orjson.loads(each)) for index, each in enumerate(contents)
    ]
    expected = aggregate(Aggregation(mode), values)
    assert loaded == {"gather": expected}
    assert (row["output_ref"] is None) == (mode == "last")
    if row["output_ref"]:
        assert (row["output_ref"]["results_of"], row["output_ref"]["aggregation"]) == ("tiles", mode)
        read = {"first": contents[0]}.get(mode, b"".join(contents))
        assert row["output_ref"]["bytes"] == pytest.approx(len(read), abs=100)


@pytest.mark.requirement("E18")
async def test_results_are_read_in_pages_of_limited_size(bench, monkeypatch):
    module = "testing.memory_ledger" if isinstance(bench, MemoryBench) else "database.ledger.payloads"
    monkeypatch.setattr(f"dagmaster.{module}.PAGE_BYTES", 400_000)
    driver = await owned(bench, tiles(4))
    tasks = await take(bench)
    contents = {task.node_id: large(task.node_id) for task in tasks}
    for task in tasks:
        await hand_in(bench, await report_with_payload(bench, task, contents[task.node_id]))
    await driver.run_once()
    job_id = driver.claim.job_id

    (first,) = await bench.ledger.read_results(job_id, "tiles", 0, 100)
    (raw,) = await bench.ledger.read_encoded_results(job_id, "tiles", 2, 100)
    monkeypatch.setattr(f"dagmaster.{module}.PAGE_BYTES", 600_000)
    pair = await bench.ledger.read_results(job_id, "tiles", 1, 100)

    assert first.output == orjson.loads(contents["tiles__0"])
    assert orjson.dumps(raw.output) == contents["tiles__2"]
    assert [result.index for result in pair] == [1, 2]


LARGE_PARAMS = """
  start: {type: start, next: work}
  work:
    handler: echo
    params: {text: "{{ inputs.text }}", count: 1}
    next: end
    retry: {max_attempts: 1, initial_delay_seconds: 5, jitter: false}
  end: {type: end}
"""


@every_worker_ledger
@pytest.mark.requirement("E18")
async def test_large_params_are_passed_by_reference_to_the_next_attempt_too(bench):
    workflow = a_workflow(LARGE_PARAMS, head="inputs: {text: {type: string}}\n")
    params = {"text": "x" * INLINE_BYTES, "count": 1}
    driver = await owned(bench, a_job(1, workflow, input_params={"text": params["text"]}))
    (task,) = await take(bench)

    error = {"message": "no", "blame": "handler", "code": "handler.failed"}
    await hand_in(bench, report_of(task, TaskStatus.FAILED, error=error))
    await driver.run_once()
    await bench.set_clock(6)
    await driver.run_once("overdue")
    (again,) = await take(bench)

    assert (task.params, task.params_ref) == ({}, reference_to(orjson.dumps(params)))
    assert (again.attempt, again.params_ref) == (2, task.params_ref)
    assert orjson.loads(await bench.ledger.load_payload(task.job_id, task.params_ref)) == params
    assert [row["is_kept"] for row in await bench.rows("dag_payloads")] == [True]
    node = await only_row(bench, "dag_node_states", node_id="work")
    assert node["input_params"] == {"params_ref": task.params_ref}


@pytest.mark.requirement("E18")
async def test_payloads_of_a_decision_that_is_not_committed_are_not_stored(bench):
    driver = await owned(bench, a_job(1))

    async def decide() -> None:
        async with bench.ledger.open_jobs(driver.owner_id, [driver.claim], StepScope()) as step:
            ((job_id, job),) = step.jobs.items()
            changes = Changes(job_id, job.epoch, job.sequence, payloads={"0" * 64: large("x")})
            changes.nodes.append(NodeChange("unknown", NodeStatus.READY))
            changes.record(EventType.NODE_READY, node="unknown")
            await step.commit([changes])

    with pytest.raises((psycopg.Error, KeyError, AssertionError)):
        await decide()

    assert await bench.rows("dag_payloads") == []


@pytest.mark.requirement("W7")
async def test_children_are_read_in_slices_by_index(bench):
    row, _ = await gathered(bench, ["a", "b", None, {"d": 1}], {1}, "collect")
    job_id = row["job_id"]

    every = await bench.ledger.read_results(job_id, "tiles", 0, 100)
    middle = await bench.ledger.read_results(job_id, "tiles", 1, 2)
    beyond = await bench.ledger.read_results(job_id, "tiles", 4, 5)
    unknown = await bench.ledger.read_results(job_id, "unknown", 0, 5)

    assert [(r.index, r.node_id, r.status, r.output, r.error_message) for r in every] == [
        (0, "tiles__0", "completed", "a", None),
        (1, "tiles__1", "failed", None, "no 1"),
        (2, "tiles__2", "completed", None, None),
        (3, "tiles__3", "completed", {"d": 1}, None),
    ]
    assert [r.index for r in middle] == [1, 2]
    assert (beyond, unknown) == ([], [])


@pytest.mark.requirement("W7")
async def test_the_counters_of_a_fan_out_follow_its_children(bench):
    driver = await owned(bench, tiles(3))
    tasks = sorted(await take(bench), key=lambda task: task.node_id)
    started = await only_row(bench, "dag_node_states", node_id="tiles")
    await hand_in(bench, report_of(tasks[0], output=0))
    await driver.run_once()
    one = await only_row(bench, "dag_node_states", node_id="tiles")
    await hand_in(bench, report_of(tasks[1], TaskStatus.FAILED, error={"message": "no", "blame": "data"}))
    await driver.run_once()
    two = await only_row(bench, "dag_node_states", node_id="tiles")

    columns = ("status", "total", "expanded", "remaining", "failed_count", "cancelled_count")
    assert [[row[name] for name in columns] for row in (started, one, two)] == [
        ["completed", 3, 3, 3, 0, 0],
        ["completed", 3, 3, 2, 0, 0],
        ["completed", 3, 3, 1, 1, 0],
    ]


async def test_a_failed_fan_out_keeps_its_error_while_its_children_end(bench):
    """The second batch of children cannot be created while the first is still running."""
    text = TILES.format(mode="collect").replace(
        "handler: echo,", 'handler: echo, params: {x: "{{ 1 // (1 - index) }}"},'
    )
    job = a_job(1, a_workflow(text, head=INPUTS), input_params={"list": [0, 1]})
    await bench.ledger.create_jobs([job])
    owner = await an_owner(bench)
    (claim,) = await claim_all(bench, owner)
    driver = Driver(bench, owner, claim, [], a_planner(chunk=1))
    await driver.run_once()
    await driver.run_once()
    before = await only_row(bench, "dag_node_states", node_id="tiles")
    (task,) = await take(bench)
    await hand_in(bench, report_of(task, output=1))
    await driver.run_once()
    after = await only_row(bench, "dag_node_states", node_id="tiles")

    assert before["status"] == after["status"] == "failed"
    assert before["error_message"]
    assert (after["error_message"], after["error"]) == (before["error_message"], before["error"])


# --- checkpoints -----------------------------------------------------------------------------------------------------


@every_worker_ledger
@pytest.mark.requirement("E22")
async def test_a_checkpoint_is_kept_for_later_attempts_and_saved_only_by_the_holder_of_the_task(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    mine = Running(task.job_id, task.node_id, task.attempt)
    file = {"uri": "file:///a", "facts": {"size_bytes": 1}}
    first = await bench.ledger.save_checkpoint(mine, "download", {"bytes": 1})
    await bench.set_clock(1)
    second = await bench.ledger.save_checkpoint(mine, "tile", [1, None], [file])
    await bench.set_clock(2)
    again = await bench.ledger.save_checkpoint(mine, "download", {"bytes": 2})
    await bench.set_clock(61)
    await driver.run_once("overdue")

    lost = await bench.ledger.save_checkpoint(mine, "tile", "too late")
    (retry,) = await take(bench)
    kept = await bench.ledger.load_checkpoints(retry.job_id, retry.node_id)

    assert (first, second, again, lost) == (True, True, True, False)
    assert [(c.name, c.data, c.attempt, c.artifacts) for c in kept] == [
        ("tile", [1, None], 1, [file]),
        ("download", {"bytes": 2}, 1, None),
    ]
    assert await bench.ledger.load_checkpoints(retry.job_id, "end") == []


@every_worker_ledger
@pytest.mark.requirement("E22")
async def test_the_last_checkpoint_is_that_of_the_last_attempt_even_if_the_clock_went_back(bench):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.set_clock(30)
    await bench.ledger.save_checkpoint(Running(task.job_id, task.node_id, 1), "ahead", None)
    await bench.set_clock(61)
    await driver.run_once("overdue")
    (retry,) = await take(bench)
    await bench.set_clock(10)
    await bench.ledger.save_checkpoint(Running(retry.job_id, retry.node_id, 2), "behind", None)

    kept = await bench.ledger.load_checkpoints(task.job_id, task.node_id)

    assert [c.name for c in kept] == ["ahead", "behind"]


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("is_retry", [False, True])
async def test_a_resume_keeps_checkpoints_and_a_retry_deletes_those_of_its_nodes(bench, is_retry):
    driver = await owned(bench, a_job(1))
    (task,) = await take(bench)
    await bench.ledger.save_checkpoint(Running(task.job_id, task.node_id, 1), "done", 1)
    await hand_in(bench, report_of(task, TaskStatus.FAILED, error={"message": "bad", "blame": "data"}))
    await driver.run_once()
    assert (await only_row(bench, "dag_jobs"))["status"] == "failed"

    def choose(job):
        view = job.view()
        return retry(view, node=task.node_id) if is_retry else resume(view)

    await bench.ledger.rerun(task.job_id, choose, {})

    kept = await bench.ledger.load_checkpoints(task.job_id, task.node_id)
    assert [c.name for c in kept] == ([] if is_retry else ["done"])


# --- guards ----------------------------------------------------------------------------------------------------------


def illegal_changes(job_id: UUID) -> dict[str, Changes]:
    """Changes that no planner may request, each with an event, so that the event is not the reason for the refusal."""

    def changes(**parts: Any) -> Changes:
        changes = Changes(job_id, 1, 5, **parts)
        changes.record(EventType.NODE_READY, node="work", status="ready")
        return changes

    again = NewTask("work", 2, QUEUE, "echo", {}, 10, 0)
    return {
        "a node from pending to completed": changes(nodes=[NodeChange("end", NodeStatus.COMPLETED)]),
        "a node back to pending": changes(nodes=[NodeChange("work", NodeStatus.PENDING)]),
        "a job back to pending": changes(job_moves=[JobTransition(JobStatus.PENDING)]),
        "a second live task": changes(tasks=[again]),
        "the same attempt again": changes(tasks=[replace(again, attempt=1)]),
        "an unknown node": changes(nodes=[NodeChange("unknown", NodeStatus.READY)]),
        "an event with a wrong number": Changes(job_id, 1, 2, events=[changes().events[0]], nodes=[]),
    }


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("what", list(illegal_changes(UUID(int=0))))
async def test_illegal_changes_are_refused_and_nothing_is_written(bench, what):
    driver = await owned(bench, a_job(1))
    before = await all_rows(bench)
    change = illegal_changes(driver.claim.job_id)[what]
    if what == "an event with a wrong number":
        change.events[0] = change.events[0]._replace(sequence=2)

    async def write() -> None:
        async with bench.ledger.open_jobs(driver.owner_id, [driver.claim], StepScope()) as step:
            await step.commit([change])

    with pytest.raises((RefusedByGuard, psycopg.Error, KeyError)):
        await write()

    if isinstance(bench, PostgresBench):
        await bench.set_clock(0)
    assert await all_rows(bench) == before


@every_worker_ledger
async def test_a_worker_is_listed_with_its_last_heartbeat_until_it_retires(bench):
    info = WorkerInfo(WORKER, "host", 1, "1.0", "general", (QUEUE,), ("echo",), {"running": 1})

    await bench.ledger.beat_worker(info)
    await bench.ledger.beat_worker(replace(info, stats={"running": 2}))
    (listed,) = await bench.rows("workers")
    await bench.ledger.retire_worker(WORKER)
    await bench.ledger.retire_worker(WORKER)

    assert (listed["worker_id"], listed["host"], listed["queues"]) == (WORKER, "host", [QUEUE])
    assert listed["stats"] == {"running": 2}
    assert await bench.rows("workers") == []


@pytest.mark.requirement("D3")
async def test_the_clock_of_the_ledger_is_that_of_the_database(bench):
    await bench.set_clock(12.5)

    assert await bench.ledger.now() == START + timedelta(seconds=12.5)


@pytest.mark.requirement("E5")
async def test_concurrent_claims_never_share_a_job(database):
    """This needs a real database, because only there two claims can run at the same time."""
    ledgers = [PostgresLedger(database, f"test{n}") for n in range(4)]
    await ledgers[0].create_jobs([a_job(n) for n in range(40)])
    owners = [uuid4() for _ in ledgers]
    for ledger, owner in zip(ledgers, owners, strict=True):
        await ledger.beat(OrchestratorInfo(owner, "host", 1, "test"))

    async def claim_until_none(ledger: PostgresLedger, owner: UUID) -> list[UUID]:
        mine: list[UUID] = []
        while claims := await ledger.claim_orphans(
            owner, limit=3, orphan_after_seconds=60, unclaimed_after_seconds=0.0
        ):
            mine += [claim.job_id for claim in claims]
        return mine

    claimed = await asyncio.gather(*map(claim_until_none, ledgers, owners))
    for ledger in ledgers:
        await ledger.close()

    assert sorted(job for mine in claimed for job in mine) == [a_job(n).job_id for n in range(40)]


async def test_a_loaded_job_has_the_traceparent_of_its_submission(bench):
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    traced, untraced = a_job(1, traceparent=traceparent), a_job(2)

    await bench.ledger.create_jobs([traced, untraced])
    loaded = await bench.ledger.load_jobs([traced.job_id, untraced.job_id])

    assert {job.job_id: job.traceparent for job in loaded} == {traced.job_id: traceparent, untraced.job_id: None}


class RecordingNotifier:
    """Records the topics instead of sending them."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def notify(self, *topics: str) -> None:
        self.topics += topics

    def drain(self) -> list[str]:
        topics, self.topics = self.topics, []
        return topics


@pytest.mark.requirement("E8")
async def test_every_call_that_commits_work_for_other_processes_notifies_them(bench):
    """Callers cannot forget it: the ledger notifies after its commit, and only where something changed."""
    recorder = RecordingNotifier()
    bench.ledger._notifier = recorder
    job = a_job(1, submitted_by="ana", idempotency_key="once")

    job_id = await bench.ledger.create_once(job, "hash")
    assert recorder.drain() == [JOBS]
    await bench.ledger.create_once(a_job(2, submitted_by="ana", idempotency_key="once"), "hash")
    assert recorder.drain() == []

    await bench.ledger.enqueue_message("m1", "dag-jobs", {})
    assert recorder.drain() == [JOBS]
    await bench.ledger.enqueue_message("m1", "dag-jobs", {})
    assert recorder.drain() == []

    await bench.ledger.set_queue(QUEUE, max_running=1)
    assert recorder.drain() == [tasks_topic(QUEUE)]

    await bench.ledger.request_cancel(job_id, by=None, reason=None)
    assert recorder.drain() == [RESULTS]

    owner_id = await an_owner(bench)
    await claim_all(bench, owner_id)
    assert await bench.ledger.release_unknown(owner_id, []) == 1
    assert recorder.drain() == [JOBS]
    assert await bench.ledger.retire(owner_id) == 0
    assert recorder.drain() == []


@pytest.mark.requirement("E8")
async def test_a_rerun_and_the_retirement_of_an_owner_notify_orchestrators(bench):
    driver = await failed_tiles(bench, 2, 2)
    recorder = RecordingNotifier()
    bench.ledger._notifier = recorder

    await bench.ledger.rerun(driver.claim.job_id, lambda job: retry(job.view(), node="tiles"), {})
    assert recorder.drain() == [JOBS]

    other = await an_owner(bench, 2)
    await claim_all(bench, other)
    assert await bench.ledger.retire(other) == 1
    assert recorder.drain() == [JOBS]
