"""Submissions over the Service Bus queue are stored, then settled; a repeated one creates no second job."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from dagmaster.errors import NotAllowed, NotFound, Unavailable
from dagmaster.orchestrator.job_queue import MAX_BYTES, JobQueue
from dagmaster.settings import load
from dagmaster.transports.servicebus_client import ServiceBus
from tests.servicebus.broker import BrokerOptions, BrokerThread

pytestmark = pytest.mark.requirement("E2", "Q2", "Q4")
QUEUE = "dag-jobs"


class MessageLedger:
    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.error: Exception | None = None

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool:
        if self.error:
            raise self.error
        is_new = message_id not in self.stored
        self.stored.setdefault(message_id, body)
        return is_new

    async def has_message(self, message_id: str, queue: str) -> bool:
        if self.error:
            raise self.error
        return message_id in self.stored


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerThread]:
    with BrokerThread([QUEUE], BrokerOptions(lock_seconds=1.0)) as broker:
        yield broker


@pytest.fixture
async def service_bus(running: BrokerThread) -> AsyncIterator[ServiceBus]:
    queue = running.queues[QUEUE]
    queue.waiting.clear()
    queue.locked.clear()
    assert queue.dead_letters is not None
    queue.dead_letters.waiting.clear()
    opened = ServiceBus(load(transport="servicebus", service_bus_connection_string=running.connection_string))
    yield opened
    await opened.close()


async def send(service_bus: ServiceBus, *bodies: str, **options: Any) -> None:
    from azure.servicebus import ServiceBusMessage

    sender = service_bus._client.get_queue_sender(QUEUE)
    for body in bodies:
        await sender.send_messages(ServiceBusMessage(body, **options))
    await sender.close()


async def taken(jobs: JobQueue, count: int) -> None:
    async with asyncio.timeout(10):
        while jobs.counters.received < count:
            await jobs.run_once(1.0)


async def test_a_submission_is_stored_and_then_settled(running, service_bus):
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    body = {"workflow_id": "echo_test", "input_params": {"a": 1}, "message_id": "m-1"}

    await send(service_bus, json.dumps(body), json.dumps(body), "no JSON", message_id="of the broker")
    await taken(jobs, 3)

    queue = running.queues[QUEUE]
    assert ledger.stored == {"m-1": body, "of the broker": "no JSON"}
    assert jobs.counters.repeated == 1
    assert not queue.waiting
    assert not queue.locked


async def test_without_a_database_a_submission_stays_in_the_queue(running, service_bus):
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    ledger.error = Unavailable("away")
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")

    with pytest.raises(Unavailable):
        await jobs.run_once(2.0)
    ledger.error = None
    await taken(jobs, 2)

    assert list(ledger.stored) == ["m"]
    assert running.queues[QUEUE].counters.expired_locks == 1


async def test_no_submission_is_lost_if_the_database_refuses_the_user(running, service_bus):
    """For example after a change of the password: no message may become a dead letter because of that."""
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    ledger.error = NotAllowed("the database refuses the connection: password authentication failed")
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")

    with pytest.raises(NotAllowed):
        await jobs.run_once(2.0)
    ledger.error = None
    await taken(jobs, 2)

    assert list(ledger.stored) == ["m"]
    assert not running.queues[QUEUE].dead_letters.waiting


OUTAGES = [
    Unavailable("away"),
    NotAllowed("password authentication failed"),
    NotFound("the server has no such database", code="database.unknown"),
]


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: type(outage).__name__)
async def test_a_long_outage_of_the_database_does_not_use_up_the_deliveries_of_a_message(running, service_bus, outage):
    """The broker dead-letters a message after the maximum delivery count, which is ten locks of a minute on Azure."""
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    ledger.error = outage
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")

    for _ in range(20):
        with pytest.raises(type(outage)):
            await jobs.run_once(2.0)
    received = jobs.counters.received
    ledger.error = None
    await taken(jobs, 2)

    assert received == 1
    assert list(ledger.stored) == ["m"]
    assert jobs.counters.repeated == 1, "the message is delivered again when its lock has expired"
    assert not running.queues[QUEUE].dead_letters.waiting


async def test_a_message_that_is_stored_after_an_outage_of_a_day_is_not_dead_lettered(running, service_bus):
    """It is delivered again when it is older than messages may be."""
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    ledger.error = Unavailable("away")
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")
    with pytest.raises(Unavailable):
        await jobs.run_once(2.0)
    jobs.now = lambda: datetime.now(UTC) + timedelta(hours=25)

    ledger.error = None
    await taken(jobs, 2)

    queue = running.queues[QUEUE]
    assert list(ledger.stored) == ["m"]
    assert jobs.counters.repeated == 1
    assert not queue.waiting
    assert not queue.locked
    assert not queue.dead_letters.waiting


async def test_an_outage_does_not_use_up_the_deliveries_of_an_old_message(running, service_bus):
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    jobs.now = lambda: datetime.now(UTC) + timedelta(hours=25)
    ledger.error = Unavailable("away")
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")

    for _ in range(20):
        with pytest.raises(Unavailable):
            await jobs.run_once(2.0)

    assert jobs.counters.received == 1


async def test_a_message_that_the_database_refuses_does_not_block_those_behind_it(service_bus):
    """An error that depends on the message is not taken for an outage."""
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())
    ledger.error = psycopg.OperationalError("the row is too large")
    await send(service_bus, '{"workflow_id": "x"}', message_id="m")

    with pytest.raises(psycopg.OperationalError):
        await jobs.run_once(2.0)
    ledger.error = None
    await send(service_bus, '{"workflow_id": "x"}', message_id="n")
    await jobs.run_once(1.0)

    assert "n" in ledger.stored


async def test_an_id_that_is_too_long_for_an_index_is_shortened(service_bus):
    """The submission is refused later, where operators see it; it must not block the messages behind it."""
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())

    await send(service_bus, json.dumps({"message_id": "m" * 10_000}), '{"message_id": "short"}')
    await taken(jobs, 2)

    assert sorted(map(len, ledger.stored)) == [5, 64]


async def test_a_message_that_cannot_be_stored_becomes_a_dead_letter_with_a_reason(running, service_bus):
    ledger = MessageLedger()
    late = JobQueue(service_bus.receiver(QUEUE), ledger, now=lambda: datetime.now(UTC) + timedelta(hours=25))
    await send(service_bus, "{}")
    await taken(late, 1)
    await late.receiver.close()
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger)
    ledger.error = psycopg.DataError("a text can't contain NUL characters")
    await send(service_bus, '{"a": "\\u0000"}')
    await taken(jobs, 1)

    letters = running.queues[QUEUE].dead_letters.waiting.values()
    assert [letter.message.properties["DeadLetterReason"] for letter in letters] == ["Expired", "Malformed"]
    assert not ledger.stored


async def test_a_submission_that_is_too_large_becomes_a_dead_letter(running, service_bus, monkeypatch):
    """Other tiers than Standard deliver messages of up to 100 MB."""
    monkeypatch.setattr(running.options, "max_message_bytes", 1_000_000)
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger())

    await send(service_bus, json.dumps({"message_id": "large", "input_params": "x" * MAX_BYTES}))
    await send(service_bus, '{"message_id": "small"}')
    await taken(jobs, 2)

    letters = running.queues[QUEUE].dead_letters.waiting.values()
    assert [letter.message.properties["DeadLetterReason"] for letter in letters] == ["TooLarge"]
    assert list(ledger.stored) == ["small"]


async def test_the_submitter_may_be_set_by_the_platform(running, service_bus):
    jobs = JobQueue(service_bus.receiver(QUEUE), ledger := MessageLedger(), submitter="data hub")
    await send(service_bus, '{"workflow_id": "x", "submitted_by": "someone else"}', message_id="m")

    await taken(jobs, 1)

    assert ledger.stored["m"]["submitted_by"] == "data hub"
