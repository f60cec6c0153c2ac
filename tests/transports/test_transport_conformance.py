"""What every transport promises: one suite, run over each of them.

A delivery is a hint to poll: one must arrive for each queue with new tasks, and only at the listeners of that queue.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from tests.servicebus.broker import BrokerThread

from dagmaster.database.notify.notifier import tasks_topic
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.settings import load
from dagmaster.testing.memory_notifier import MemoryExchange
from dagmaster.testing.memory_transport import Broker, MemoryTransport
from dagmaster.transports import postgres
from dagmaster.transports.postgres import PostgresTransport, topics_of
from dagmaster.transports.servicebus import ServiceBusTransport
from dagmaster.transports.servicebus_client import ServiceBus
from dagmaster.transports.transport import Announcement, Delivery, Transport

pytestmark = pytest.mark.requirement("Q3")

End = Callable[..., Transport]
SOON = 5.0
_JOB = UUID(int=1)


@pytest.fixture(params=["memory", "postgres over a memory notifier", "postgres", "servicebus"])
async def end(request: pytest.FixtureRequest) -> AsyncIterator[End]:
    """A function that creates ends of one transport, each of which listens to the given queues."""
    ends: list[Transport] = []
    make = _makers(request)[request.param]

    def an_end(*queues: str) -> Transport:
        ends.append(transport := make(*queues))
        return transport

    yield an_end
    for transport in ends:
        await transport.close()
    for service_bus in _opened:
        await service_bus.close()
    _opened.clear()


_opened: list[ServiceBus] = []


@pytest.fixture(scope="module")
def stand_in() -> Iterator[BrokerThread]:
    with BrokerThread(["light", "heavy"]) as broker:
        yield broker


def _servicebus(request: pytest.FixtureRequest, *queues: str) -> Transport:
    """A transport over the SDK and the stand-in, whose queues are emptied before each test."""
    broker: BrokerThread = request.getfixturevalue("stand_in")
    if not _opened:
        for queue in broker.queues.values():
            queue.waiting.clear()
            queue.locked.clear()
    settings = load(transport="servicebus", service_bus_connection_string=broker.connection_string)
    _opened.append(ServiceBus(settings))
    return ServiceBusTransport(_opened[-1], queues)


def _makers(request: pytest.FixtureRequest) -> dict[str, Callable[..., Transport]]:
    broker, exchange = Broker(), MemoryExchange()

    def postgres(*queues: str) -> Transport:
        notifier = PostgresNotifier(request.getfixturevalue("database"), [tasks_topic(queue) for queue in queues])
        notifier.start()
        return PostgresTransport(notifier, queues)

    if request.param == "postgres":
        request.getfixturevalue("database")  # a fixture must be requested before the loop runs
    return {
        "memory": lambda *queues: MemoryTransport(broker, queues),
        "postgres over a memory notifier": lambda *queues: PostgresTransport(
            exchange.notifier(*map(tasks_topic, queues)), queues
        ),
        "postgres": postgres,
        "servicebus": partial(_servicebus, request),
    }


async def receive_all(transport: Transport) -> None:
    """Receive until nothing more arrives: a transport may deliver a hint when it starts to listen."""
    while await transport.receive(0.5):
        pass


def announcements(queue: str, count: int = 1) -> list[Announcement]:
    return [Announcement(queue, f"{_JOB}_node_{number}") for number in range(count)]


def _number(delivery: Delivery) -> int:
    assert delivery.task_id is not None
    return int(delivery.task_id.rpartition("_")[2])


async def test_a_published_task_reaches_a_listener_at_once(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await receive_all(worker)
    receiving = asyncio.create_task(worker.receive(SOON))
    await asyncio.sleep(0.05)
    started = time.monotonic()

    await orchestrator.publish(announcements("light"))

    assert {delivery.queue for delivery in await receiving} == {"light"}
    assert time.monotonic() - started < 1


async def test_a_task_that_is_published_before_a_receive_is_not_lost(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await receive_all(worker)

    await orchestrator.publish(announcements("light", 3))
    await asyncio.sleep(0.2)

    assert await worker.receive(SOON)


async def test_queues_are_separate(end: End) -> None:
    light, heavy, orchestrator = end("light"), end("heavy"), end()
    await receive_all(light)
    await receive_all(heavy)

    await orchestrator.publish(announcements("heavy"))

    assert {delivery.queue for delivery in await heavy.receive(SOON)} == {"heavy"}
    assert not await light.receive(0.2)


async def test_a_listener_can_receive_from_several_queues(end: End) -> None:
    worker, orchestrator = end("light", "heavy"), end()
    await receive_all(worker)

    await orchestrator.publish([*announcements("light"), *announcements("heavy")])

    queues: set[str] = set()
    while queues != {"light", "heavy"}:
        deliveries = await worker.receive(SOON)
        assert deliveries, f"only {queues}"
        queues |= {delivery.queue for delivery in deliveries}


async def test_a_receive_without_deliveries_ends_at_its_timeout(end: End) -> None:
    worker = end("light")
    await receive_all(worker)
    started = time.monotonic()

    assert not await worker.receive(0.2)

    assert 0.15 < time.monotonic() - started < 1


async def test_an_empty_publication_delivers_nothing(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await receive_all(worker)

    await orchestrator.publish([])

    assert not await worker.receive(0.2)


async def test_settling_is_idempotent_and_settled_deliveries_are_not_repeated(end: End) -> None:
    worker, other, orchestrator = end("light"), end("light"), end()
    await receive_all(worker)
    await receive_all(other)
    await orchestrator.publish(announcements("light"))
    deliveries = await worker.receive(SOON) or await other.receive(SOON)
    await receive_all(other)

    await worker.settle(deliveries)
    await worker.settle(deliveries)

    assert not await worker.receive(0.2)


async def test_a_cancelled_receive_loses_no_delivery(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await receive_all(worker)
    receiving = asyncio.create_task(worker.receive(SOON))
    await asyncio.sleep(0.05)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)

    await orchestrator.publish(announcements("light"))

    assert await worker.receive(SOON)


async def test_the_memory_transport_repeats_deliveries_of_a_receiver_that_closes() -> None:
    broker = Broker()
    one, two = MemoryTransport(broker, ["q"], batch=3), MemoryTransport(broker, ["q"])
    await one.publish(announcements("q", 5))

    first: Any = await one.receive(0)
    second: Any = await two.receive(0)
    await two.settle(second)
    await one.settle(first[:1])
    await one.close()

    assert [_number(delivery) for delivery in first] == [0, 1, 2]
    assert [_number(delivery) for delivery in second] == [3, 4]
    assert [_number(delivery) for delivery in await two.receive(0)] == [1, 2]


async def test_the_first_worker_of_an_announcement_is_notified_before_the_others() -> None:
    exchange = MemoryExchange()

    def an_end(worker_id: str | None, *queues: str) -> PostgresTransport:
        return PostgresTransport(exchange.notifier(*topics_of(queues, worker_id)), queues, worker_id)

    first, other, orchestrator = an_end("first", "light"), an_end("other", "light"), an_end(None)
    receiving = asyncio.create_task(other.receive(SOON))
    await asyncio.sleep(0)

    await orchestrator.publish([Announcement("light", first_worker="first")])

    assert [delivery.queue for delivery in await first.receive(SOON)] == ["light"]
    assert not receiving.done()
    # The first worker may have been unable to claim the task.
    assert [delivery.queue for delivery in await receiving] == ["light"]


async def test_the_others_are_notified_if_the_first_worker_of_an_announcement_is_dead() -> None:
    exchange = MemoryExchange()
    other = PostgresTransport(exchange.notifier(*topics_of(["light"], "other")), ["light"], "other")

    await PostgresTransport(exchange.notifier()).publish([Announcement("light", first_worker="dead")])

    assert [delivery.queue for delivery in await other.receive(SOON)] == ["light"]


async def test_the_others_are_not_notified_while_the_first_worker_finishes_its_tasks(monkeypatch) -> None:
    """They are notified if the first worker of an announcement does not respond."""
    monkeypatch.setattr(postgres, "OTHERS_DELAY_SECONDS", 0.2)
    exchange = MemoryExchange()
    listener = exchange.notifier("tasks:light")
    orchestrator = PostgresTransport(exchange.notifier())

    for _ in range(4):
        await orchestrator.publish([Announcement("light", first_worker="busy")])
        assert await listener.wait(0.08) == frozenset()
    await orchestrator.publish([Announcement("light", first_worker="silent")])
    for _ in range(2):
        await orchestrator.publish([Announcement("light", first_worker="busy")])
        await asyncio.sleep(0.05)

    assert await listener.wait(SOON) == {"tasks:light"}


def test_the_topics_of_announcements_depend_on_the_transport() -> None:
    transport = PostgresTransport(MemoryExchange().notifier())

    assert transport.topics([Announcement("light"), Announcement("heavy"), Announcement("light")]) == [
        "tasks:heavy",
        "tasks:light",
    ]
    assert MemoryTransport(Broker()).topics([Announcement("light")]) == ()
