"""Whole jobs over the SDK and the stand-in: with messages that are lost, duplicated, late or out of order, without a
broker, and with processes that die while they send."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dagmaster import faults
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.handlers.registry import installed
from dagmaster.jobs.model import Submission
from dagmaster.settings import DEFAULT_QUEUES, load
from tests.engine.harness import Engine, engine, submit, until
from tests.engine.processes import CRASHED, fleet
from tests.servicebus.broker import BrokerOptions, BrokerThread
from tests.servicebus.queues import Faults
from tests.workflow_library import library_of

pytestmark = pytest.mark.requirement("E2", "E3", "Q3")
QUEUES = (*DEFAULT_QUEUES, "dag-jobs")
RARE = 60.0  # seconds between polls: what happens earlier was caused by a message


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(QUEUES, BrokerOptions(lock_seconds=2.0)) as running:
        yield running


@asynccontextmanager
async def engine_with(broker: BrokerThread, dsn: str, **settings: Any) -> AsyncIterator[Engine]:
    chosen = {"transport": "servicebus", "service_bus_connection_string": broker.connection_string, **settings}
    async with engine(dsn, **chosen) as running:
        yield running


async def outbox_is_empty(running: Engine) -> bool:
    return bool(await running.value("SELECT count(*) = 0 FROM dagapp.dag_outbox"))


async def test_workers_learn_of_tasks_through_messages_and_settle_them(database, broker):
    async with engine_with(broker, database, workers=2, worker_poll_interval=RARE) as running:
        done = [await running.run("fan_out_test", 25) for _ in range(2)]
        await until(lambda: outbox_is_empty(running))

        counters = [queue.counters for queue in broker.queues.values()]
        await until(lambda: _all_settled(broker), 15)
        relayed = sum(orchestrator.info().stats["relay"]["sent"] for orchestrator in running.orchestrators)

    assert [job["status"] for job in done] == ["completed", "completed"]
    assert sum(each.sent for each in counters) == relayed > 0
    assert sum(each.completed for each in counters) >= relayed


async def _all_settled(broker: BrokerThread) -> bool:
    return not any(queue.waiting or queue.locked for queue in broker.queues.values())


async def test_jobs_complete_with_lost_duplicated_late_and_reordered_messages(database, broker):
    for name, share in (("drop", 0.3), ("duplicate", 0.3), ("delay", 0.3), ("reorder", 0.3), ("busy", 0.1)):
        setattr(broker.options.faults, name, share)
    broker.options.faults.delay_seconds = 1.0
    async with engine_with(broker, database, orchestrators=2, workers=2) as running:
        jobs = [await running.submit("fan_out_test") for _ in range(6)]
        done = [await running.wait(job_id, 40) for job_id in jobs]
        again = await running.value("SELECT count(*) FROM dagapp.dag_tasks WHERE attempt > 1")

    assert {job["status"] for job in done} == {"completed"}
    assert again == 0, "messages must not cause further attempts"


async def test_without_a_broker_jobs_continue_by_polling_and_messages_are_sent_later(database, broker):
    async with engine_with(broker, database) as running:
        await running.run("hello_world")
        broker.leave()

        # A worker that polls can claim all tasks of a job before one of their ids is sent.
        during, errors = [], {}
        while not errors and len(during) < 50:
            during.append(await running.run("fan_out_test", 25))
            errors = running.orchestrators[0].info().stats["relay"]["queue_errors"]
        broker.come_back()
        await until(lambda: outbox_is_empty(running), 60)
        after = await running.run("hello_world")

    assert {job["status"] for job in (*during, after)} == {"completed"}
    assert "cannot be reached" in " ".join(errors.values())


async def test_a_missing_queue_is_reported_and_does_not_stop_jobs(database):
    with BrokerThread(["dag-jobs"]) as broker:
        # A worker could claim the task before its id is sent, so there is none until the error is stored.
        async with engine_with(broker, database, workers=0) as running:
            job_id = await running.submit("hello_world")
            postponed = "SELECT queue, error FROM dagapp.dag_outbox WHERE error IS NOT NULL"
            waiting = await until(lambda: running.rows(postponed), 10)
            await running.start_worker()
            job = await running.wait(job_id)

    assert job["status"] == "completed"
    assert {row["error"] for row in waiting} == {f"the Service Bus queue '{waiting[0]['queue']}' does not exist"}


async def test_submissions_from_the_queue_become_one_job_or_a_dead_letter(database, broker):
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    async with engine_with(broker, database, orchestrators=2, unknown_handler_timeout_sec=0) as running:
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        sender = client.get_queue_sender("dag-jobs")
        good = {
            "workflow_id": "echo_test",
            "input_params": {"message": "hi"},
            "idempotency_key": "k",
            "message_id": "m",
        }
        bodies = [good, good, {**good, "message_id": "m2"}, {"workflow_id": "unknown", "message_id": "m3"}, 5]
        await sender.send_messages([ServiceBusMessage(json.dumps(body)) for body in bodies])
        await client.close()

        async def handled() -> bool:
            letters = await running.value("SELECT count(*) FROM dagapp.dag_dead_letters")
            return letters == 2 and await _all_settled(broker)

        await until(handled, 20)
        jobs = await running.rows("SELECT job_id, message_id, idempotency_key FROM dagapp.dag_jobs")
        letters = await running.rows("SELECT reason FROM dagapp.dag_dead_letters ORDER BY reason")
        await running.wait(jobs[0]["job_id"], 20)

    assert [(job["message_id"], job["idempotency_key"]) for job in jobs] in ([("m", "k")], [("m2", "k")])
    assert [letter["reason"] for letter in letters] == ["Malformed", "WorkflowNotFound"]


POINTS = ["relay.after-send", "relay.after-store"]
MORE_POINTS = [point for name in ("outbox_claim", "outbox_delete", "outbox_forget") for point in faults.around(name)]
OUTAGE_POINTS = list(faults.around("outbox_postpone"))
LARGE_POINTS = list(faults.around("fail_tasks"))


def test_every_crash_point_of_the_relay_is_tested():
    ours = {point for point in faults.POINTS if point.startswith(("relay.", "outbox_", "fail_tasks."))}

    assert ours == {*POINTS, *MORE_POINTS, *OUTAGE_POINTS, *LARGE_POINTS}


@pytest.mark.parametrize(
    "point",
    [*POINTS, *(pytest.param(each, marks=pytest.mark.slow) for each in (*MORE_POINTS, *OUTAGE_POINTS, *LARGE_POINTS))],
)
async def test_an_orchestrator_that_dies_while_it_relays_loses_nothing(database, tmp_path, broker, point):
    """There is no worker before the crash, so every task is still queued when its id is sent."""
    if point in OUTAGE_POINTS:
        broker.options.faults.busy = 1.0
    if point in LARGE_POINTS:
        broker.options.max_message_bytes = 60
    settings = {"transport": "servicebus", "service_bus_connection_string": broker.connection_string}
    async with fleet(database, tmp_path, **settings, worker_poll_interval=0.5) as running:
        if point in faults.around("outbox_forget"):  # a message whose task was claimed is deleted
            await running.rows(
                "INSERT INTO dagapp.dag_outbox (job_id, node_id, attempt, queue)"
                " VALUES (gen_random_uuid(), 'claimed', 1, 'dag-worker-tasks') RETURNING queue"
            )
        doomed = running.process("orchestrator")
        doomed.start(crash_point=point)
        if point == "relay.after-store":
            await _send_submission(broker)
        else:
            await _submit(database)
        assert await doomed.ended(40) == CRASHED

        broker.options.faults.busy = 0.0
        await running.rows("UPDATE dagapp.dag_outbox SET not_before = clock_timestamp()")
        await running.start("orchestrator")
        await running.start("worker")

        async def has_ended() -> Any:
            rows = await running.rows("SELECT status FROM dagapp.dag_jobs")
            return [row["status"] for row in rows] if rows and rows[0]["status"] in ("completed", "failed") else None

        statuses = await running.until(has_ended, 40, "the job to end")

    # A task that was failed because its message is too large stays failed; before that commit, a worker may run it.
    ends = {"fail_tasks.before-commit": {"failed", "completed"}, "fail_tasks.after-commit": {"failed"}}
    assert len(statuses) == 1
    assert statuses[0] in ends.get(point, {"completed"})


async def _submit(dsn: str) -> None:
    ledger = PostgresLedger(dsn, "test")
    try:
        await submit(ledger, library_of(load(), installed()), [Submission(workflow_id="hello_world")])
    finally:
        await ledger.close()


async def _send_submission(broker: BrokerThread) -> None:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    client = ServiceBusClient.from_connection_string(broker.connection_string)
    sender = client.get_queue_sender("dag-jobs")
    await sender.send_messages(ServiceBusMessage('{"workflow_id": "hello_world"}', message_id="once"))
    await client.close()
    await asyncio.sleep(0)


def test_faults_are_off_by_default():
    assert not Faults().is_any
