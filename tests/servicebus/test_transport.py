"""The transport over the real SDK and the stand-in: sizes, settling, errors, and what the broker does to messages."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx2
import pytest

from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.jobs.model import task_id
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import load
from dagmaster.transports import servicebus
from dagmaster.transports.servicebus import Malformed, ServiceBusTransport, task_id_of
from dagmaster.transports.servicebus_client import (
    BrokerMessage,
    IdentityCredential,
    QueueReceiver,
    ServiceBus,
    host_of,
    translation,
)
from tests.servicebus.broker import BrokerOptions, BrokerThread

pytestmark = pytest.mark.requirement("Q3", "E18")
JOB = UUID(int=7)


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerThread]:
    with BrokerThread(["q", "other", "closed"], BrokerOptions(lock_seconds=2.0)) as broker:
        broker.service.unauthorized.add("closed")
        yield broker


@pytest.fixture
def broker(running: BrokerThread) -> BrokerThread:
    for queue in running.queues.values():
        queue.waiting.clear()
        queue.locked.clear()
        queue.counters.__init__()  # type: ignore[misc]
        assert queue.dead_letters is not None
        queue.dead_letters.waiting.clear()
    return running


@pytest.fixture
async def service_bus(broker: BrokerThread) -> AsyncIterator[ServiceBus]:
    opened = ServiceBus(load(transport="servicebus", service_bus_connection_string=broker.connection_string))
    yield opened
    await opened.close()


def ids(count: int, node_id: str = "node") -> list[str]:
    return [task_id(JOB, f"{node_id}__{number}", 1) for number in range(count)]


async def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (value := holds()):
            await asyncio.sleep(0.02)
        return value


class Tasks:
    """The tasks that are queued, in place of the database."""

    def __init__(self, queued: Sequence[str]) -> None:
        self.queued = set(queued)
        self.is_database_unavailable = False

    async def still_queued(self, task_ids: Sequence[str]) -> frozenset[str]:
        if self.is_database_unavailable:
            raise Unavailable("the database is unavailable")
        return frozenset(task_ids) & self.queued


async def test_ids_are_sent_in_batches_within_the_size_limit(broker: BrokerThread, service_bus: ServiceBus) -> None:
    wanted = ids(1500, "n" * 200)  # about 400 KB, more than one message can have

    await service_bus.send_tasks("q", wanted)

    bodies = [bytes(stored.message.body) for stored in broker.queues["q"].waiting.values()]
    assert [json.loads(body)["task_id"] for body in bodies] == wanted
    assert max(map(len, bodies)) < 1000


async def test_the_stand_in_works_in_a_process_with_many_open_files() -> None:
    """`select`, which its library uses, does not: the process of these tests may have many."""
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path(os.devnull).open())
        broker = files.enter_context(BrokerThread(["q"]))
        opened = ServiceBus(load(transport="servicebus", service_bus_connection_string=broker.connection_string))
        await opened.send_tasks("q", ids(1))
        await opened.close()

        assert len(broker.queues["q"].waiting) == 1


@pytest.mark.parametrize(
    ("given", "text"), [("m", "m"), (None, None), (JOB, str(JOB)), (7, "7"), (b"m", "m"), (b"\xff", "\ufffd")]
)
def test_the_id_of_a_message_is_text_whatever_type_its_sender_has_used(given: Any, text: str | None) -> None:
    message = BrokerMessage(SimpleNamespace(message_id=given), receiver=None)  # type: ignore[arg-type]

    assert message.message_id == text


async def test_a_message_has_the_id_of_its_task_and_expires_after_a_minute(
    broker: BrokerThread, service_bus: ServiceBus
) -> None:
    """The broker may detect duplicates by the id. A longer one than Azure accepts is replaced by its hash."""
    wanted = [*ids(1), *ids(1, "n" * 200)]

    await service_bus.send_tasks("q", wanted)

    short, long = (stored.message for stored in broker.queues["q"].waiting.values())
    assert (short.ttl, long.ttl) == (60, 60)
    assert short.id == wanted[0]
    assert len(long.id) == 64


async def test_a_sender_is_kept_and_replaced_after_a_failure(broker: BrokerThread, service_bus: ServiceBus) -> None:
    await service_bus.send_tasks("q", ids(1))
    first = service_bus._senders["q"]
    await service_bus.send_tasks("q", ids(1))
    assert service_bus._senders["q"] is first

    broker.cut()
    for _ in range(3):
        try:
            await service_bus.send_tasks("q", ids(1))
            break
        except Unavailable:
            continue

    assert service_bus._senders["q"] is not first
    assert broker.queues["q"].counters.sent >= 3


async def test_permanent_and_transient_errors_are_distinguished(broker: BrokerThread, service_bus: ServiceBus) -> None:
    with pytest.raises(InvalidRequest) as missing:
        await service_bus.send_tasks("nowhere", ids(1))
    with pytest.raises(InvalidRequest) as denied:
        await service_bus.send_tasks("closed", ids(1))
    with pytest.raises(InvalidRequest) as large:
        await service_bus.send_tasks("q", [*ids(2), task_id(JOB, "n" * 300_000, 1)])
    broker.options.faults.busy = 1.0
    try:
        with pytest.raises(Unavailable) as busy:
            await service_bus.send_tasks("other", ids(1))
    finally:
        broker.options.faults.busy = 0.0

    assert missing.value.code in {"servicebus.queue-not-found", "servicebus.access-denied"}
    assert denied.value.code == "servicebus.access-denied"
    assert "Data Sender" in str(denied.value)
    assert large.value.code == "servicebus.message-too-large"
    assert busy.value.code == "servicebus.unavailable"


async def test_a_broker_that_does_not_respond_is_reported_as_unavailable_within_seconds(
    broker: BrokerThread, service_bus: ServiceBus
) -> None:
    broker.leave()
    try:
        with pytest.raises(Unavailable):
            await service_bus.send_tasks("q", ids(1))
    finally:
        broker.come_back()

    await service_bus.send_tasks("q", ids(1))
    assert len(broker.queues["q"].waiting) == 1


async def test_a_message_is_settled_when_its_task_is_claimed(broker: BrokerThread, service_bus: ServiceBus) -> None:
    (wanted,) = ids(1)
    tasks = Tasks([wanted])
    worker = ServiceBusTransport(service_bus, ["q"], tasks.still_queued)
    await service_bus.send_tasks("q", [wanted])

    deliveries = await worker.receive(30)
    locked = len(broker.queues["q"].locked)
    tasks.queued.clear()  # claimed
    await worker.settle(deliveries)
    await until(lambda: broker.queues["q"].counters.completed == 1)
    await worker.close()

    assert [delivery.task_id for delivery in deliveries] == [wanted]
    assert locked == 1
    assert not broker.queues["q"].locked


async def test_outdated_messages_are_completed_and_the_worker_claims_tasks(
    broker: BrokerThread, service_bus: ServiceBus
) -> None:
    """A task whose message is behind many outdated ones does not wait for them."""
    (wanted,) = ids(1, "wanted")
    worker = ServiceBusTransport(service_bus, ["q"], Tasks([wanted]).still_queued)
    await service_bus.send_tasks("q", [*ids(60), wanted])

    first = await worker.receive(30, 20)
    received = worker.counters.received
    deliveries = list(first)
    while wanted not in [delivery.task_id for delivery in deliveries]:
        further = await worker.receive(30, 20)
        assert further
        deliveries += further
        await worker.settle(further)
    await until(lambda: broker.queues["q"].counters.completed == 60)
    await worker.close()

    assert [(delivery.queue, delivery.task_id) for delivery in first] == [("q", None)]
    assert received == 1
    assert worker.counters.stale == 60


async def test_outdated_messages_are_received_together_only_while_there_are_many(
    broker: BrokerThread, service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For several messages, the SDK waits up to a fifth of a second although the first one is there. The next message
    of a queued task must not be delayed by that."""
    calls: list[tuple[int, float]] = []
    responses = iter([1, 1, 20, 8, 1])

    async def receive(_self: QueueReceiver, count: int, wait_seconds: float) -> list[Any]:
        calls.append((count, wait_seconds))
        if (number := next(responses, None)) is None:
            await asyncio.sleep(3600)
        return [SimpleNamespace(body=b'{"task_id": "%s"}' % task.encode()) for task in ids(number or 0)]

    async def complete(_self: QueueReceiver, _messages: Sequence[Any]) -> None: ...

    monkeypatch.setattr(QueueReceiver, "receive", receive)
    monkeypatch.setattr(QueueReceiver, "complete", complete)
    worker = ServiceBusTransport(service_bus, ["q"], Tasks(()).still_queued)
    while worker.counters.stale < 31:
        await worker.receive(1, 20)
    await worker.receive(0.05, 20)
    await worker.close()

    single, many = (1, servicebus.WAIT_SECONDS), (20, servicebus.DRAIN_SECONDS)
    assert calls == [single, single, many, many, single, single]
    assert servicebus.DRAIN_SECONDS < 0.1


@pytest.mark.parametrize("is_database_unavailable", [False, True], ids=["no room", "no database"])
async def test_a_message_whose_task_could_not_be_claimed_is_delivered_again(
    broker: BrokerThread, service_bus: ServiceBus, is_database_unavailable: bool
) -> None:
    (wanted,) = ids(1)
    tasks = Tasks([wanted])
    worker = ServiceBusTransport(service_bus, ["q"], tasks.still_queued)
    await service_bus.send_tasks("q", [wanted])

    first = await worker.receive(30)
    tasks.is_database_unavailable = is_database_unavailable
    await worker.settle(first)
    second = await worker.receive(30)
    await worker.close()

    assert [delivery.task_id for delivery in (*first, *second)] == [wanted, wanted]
    assert broker.queues["q"].counters.expired_locks == 1


async def test_messages_that_a_busy_worker_does_not_fetch_are_delivered_to_others(
    broker: BrokerThread, service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicebus, "HOLD_SECONDS", 0.2)
    busy = ServiceBusTransport(service_bus, ["q"])
    await service_bus.send_tasks("q", ids(1))
    await busy.settle(await busy.receive(30))
    assert not await busy.receive(0.05)  # its request for a message has been sent
    await service_bus.send_tasks("q", ids(1))
    await until(lambda: broker.queues["q"].counters.delivered == 2)

    other = ServiceBusTransport(service_bus, ["q"])
    deliveries = await other.receive(30)
    await busy.close()
    await other.close()

    assert len(deliveries) == 1
    assert busy.counters.abandoned == 1


async def test_a_malformed_message_becomes_a_dead_letter_with_a_reason(
    broker: BrokerThread, service_bus: ServiceBus
) -> None:
    from azure.servicebus import ServiceBusMessage

    sender = service_bus._client.get_queue_sender("q")
    for body in ("no JSON", "[]", '{"task_id": "x"}', '{"task_id": 5}'):
        await sender.send_messages(ServiceBusMessage(body))
    await sender.close()
    worker = ServiceBusTransport(service_bus, ["q"])
    receiving = asyncio.create_task(worker.receive(30))

    dead_letters = broker.queues["q"].dead_letters
    assert dead_letters is not None
    await until(lambda: len(dead_letters.waiting) == 4)
    receiving.cancel()
    await worker.close()

    for letter in dead_letters.waiting.values():
        assert letter.message.properties["DeadLetterReason"] == "Malformed"
        assert "not the id of a task" in letter.message.properties["DeadLetterErrorDescription"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b'{"task_id": null}', b'{"task_id": "1_2_3"}', b"\xff"),
        *(b'{"task_id": "%s_node_2147483648"}' % str(JOB).encode(), b'{"task_id": "%s_\\u0000_1"}' % str(JOB).encode()),
    ],
)
def test_only_ids_of_tasks_are_accepted(body: bytes) -> None:
    with pytest.raises(Malformed):
        task_id_of(body)


async def test_the_sdk_uses_the_managed_identity_as_its_credential() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={"access_token": "secret", "expires_on": "4102444800"})

    settings = load(transport="servicebus", service_bus_namespace="example-bus")
    endpoint = IdentityEndpoint.of(settings, "https://servicebus.azure.net")
    credential = IdentityCredential(ManagedIdentity(endpoint))
    credential._http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    token = await credential.get_token("https://servicebus.azure.net//.default")
    await credential.close()

    assert (token.token, token.expires_on) == ("secret", 4102444800)
    assert requests[0].url.params["resource"] == "https://servicebus.azure.net"
    assert host_of(settings) == "example-bus.servicebus.windows.net"


def test_exactly_one_namespace_is_required() -> None:
    with pytest.raises(InvalidRequest, match="exactly one of SERVICE_BUS_FQDN"):
        load(transport="servicebus")
    with pytest.raises(InvalidRequest, match="exactly one of"):
        load(transport="servicebus", service_bus_fqdn="a.example.net", service_bus_namespace="example-bus")


def test_an_unknown_error_is_transient() -> None:
    assert isinstance(translation("q", RuntimeError("what?")), Unavailable)
    assert isinstance(translation("q", TimeoutError()), Unavailable)


async def test_an_invalid_connection_string_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ServiceBus(load(transport="servicebus", service_bus_connection_string="Endpoint=sb://x;Secret=canary"))

    assert "canary" not in str(refused.value)
