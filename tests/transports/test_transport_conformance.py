"""What every transport promises: one suite, run over each of them.

A delivery is a hint to poll; so what counts is that one arrives for each queue that has news, and for those only
who listen to it.
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
from dagmaster.transports.transport import Delivery, Ticket, Transport

pytestmark = pytest.mark.requirement("Q3")

End = Callable[..., Transport]
SOON = 5.0
_JOB = UUID(int=1)


@pytest.fixture(params=["memory", "postgres over a memory notifier", "postgres", "servicebus"])
async def end(request: pytest.FixtureRequest) -> AsyncIterator[End]:
    """Makes ends of one transport, each listening to the queues it is given."""
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
    """Over the SDK and the stand-in. Its queues are emptied before each test."""
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
        request.getfixturevalue("database")  # before the loop runs
    return {
        "memory": lambda *queues: MemoryTransport(broker, queues),
        "postgres over a memory notifier": lambda *queues: PostgresTransport(
            exchange.notifier(*map(tasks_topic, queues)), queues
        ),
        "postgres": postgres,
        "servicebus": partial(_servicebus, request),
    }


async def quiet(transport: Transport) -> None:
    """Take what comes at the beginning: a transport may deliver a hint when it starts to listen."""
    while await transport.receive(0.5):
        pass


def tickets(queue: str, count: int = 1) -> list[Ticket]:
    return [Ticket(queue, f"{_JOB}_node_{number}") for number in range(count)]


def _number(delivery: Delivery) -> int:
    assert delivery.task_id is not None
    return int(delivery.task_id.rpartition("_")[2])


async def test_a_published_task_reaches_a_listener_at_once(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await quiet(worker)
    receiving = asyncio.create_task(worker.receive(SOON))
    await asyncio.sleep(0.05)
    started = time.monotonic()

    await orchestrator.publish(tickets("light"))

    assert {delivery.queue for delivery in await receiving} == {"light"}
    assert time.monotonic() - started < 1


async def test_what_is_published_before_anyone_receives_is_not_lost(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await quiet(worker)

    await orchestrator.publish(tickets("light", 3))
    await asyncio.sleep(0.2)

    assert await worker.receive(SOON)


async def test_queues_are_separate(end: End) -> None:
    light, heavy, orchestrator = end("light"), end("heavy"), end()
    await quiet(light)
    await quiet(heavy)

    await orchestrator.publish(tickets("heavy"))

    assert {delivery.queue for delivery in await heavy.receive(SOON)} == {"heavy"}
    assert not await light.receive(0.2)


async def test_an_end_may_listen_to_several_queues(end: End) -> None:
    worker, orchestrator = end("light", "heavy"), end()
    await quiet(worker)

    await orchestrator.publish([*tickets("light"), *tickets("heavy")])

    queues: set[str] = set()
    while queues != {"light", "heavy"}:
        deliveries = await worker.receive(SOON)
        assert deliveries, f"only {queues}"
        queues |= {delivery.queue for delivery in deliveries}


async def test_an_empty_receive_takes_its_time_and_no_longer(end: End) -> None:
    worker = end("light")
    await quiet(worker)
    started = time.monotonic()

    assert not await worker.receive(0.2)

    assert 0.15 < time.monotonic() - started < 1


async def test_nothing_published_is_nothing_delivered(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await quiet(worker)

    await orchestrator.publish([])

    assert not await worker.receive(0.2)


async def test_settling_is_idempotent_and_settled_deliveries_do_not_come_again(end: End) -> None:
    worker, other, orchestrator = end("light"), end("light"), end()
    await quiet(worker)
    await quiet(other)
    await orchestrator.publish(tickets("light"))
    deliveries = await worker.receive(SOON) or await other.receive(SOON)
    await quiet(other)

    await worker.settle(deliveries)
    await worker.settle(deliveries)

    assert not await worker.receive(0.2)


async def test_a_cancelled_receive_harms_nothing(end: End) -> None:
    worker, orchestrator = end("light"), end()
    await quiet(worker)
    receiving = asyncio.create_task(worker.receive(SOON))
    await asyncio.sleep(0.05)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)

    await orchestrator.publish(tickets("light"))

    assert await worker.receive(SOON)


async def test_the_memory_transport_delivers_each_ticket_once_and_again_if_its_receiver_leaves() -> None:
    broker = Broker()
    one, two = MemoryTransport(broker, ["q"], batch=3), MemoryTransport(broker, ["q"])
    await one.publish(tickets("q", 5))

    first: Any = await one.receive(0)
    second: Any = await two.receive(0)
    await two.settle(second)
    await one.settle(first[:1])
    await one.close()

    assert [_number(delivery) for delivery in first] == [0, 1, 2]
    assert [_number(delivery) for delivery in second] == [3, 4]
    assert [_number(delivery) for delivery in await two.receive(0)] == [1, 2]


async def test_a_single_task_is_announced_to_the_nearest_worker_first() -> None:
    exchange = MemoryExchange()

    def an_end(worker_id: str | None, *queues: str) -> PostgresTransport:
        return PostgresTransport(exchange.notifier(*topics_of(queues, worker_id)), queues, worker_id)

    near, far, orchestrator = an_end("near", "light"), an_end("far", "light"), an_end(None)
    receiving = asyncio.create_task(far.receive(SOON))
    await asyncio.sleep(0)

    await orchestrator.publish([Ticket("light", near="near")])

    assert [delivery.queue for delivery in await near.receive(SOON)] == ["light"]
    assert not receiving.done()
    assert [delivery.queue for delivery in await receiving] == ["light"]  # in case the other one could not take it


async def test_a_task_near_a_dead_worker_reaches_the_others() -> None:
    exchange = MemoryExchange()
    far = PostgresTransport(exchange.notifier(*topics_of(["light"], "far")), ["light"], "far")

    await PostgresTransport(exchange.notifier()).publish([Ticket("light", near="gone")])

    assert [delivery.queue for delivery in await far.receive(SOON)] == ["light"]


async def test_a_worker_that_keeps_up_wakes_no_others(monkeypatch) -> None:
    """Only for its own tasks: a task near a worker that does not respond still reaches the others."""
    monkeypatch.setattr(postgres, "STAND_BY_SECONDS", 0.2)
    exchange = MemoryExchange()
    listener = exchange.notifier("tasks:light")
    orchestrator = PostgresTransport(exchange.notifier())

    for _ in range(4):
        await orchestrator.publish([Ticket("light", near="busy")])
        assert await listener.wait(0.08) == frozenset()
    await orchestrator.publish([Ticket("light", near="silent")])
    for _ in range(2):
        await orchestrator.publish([Ticket("light", near="busy")])
        await asyncio.sleep(0.05)

    assert await listener.wait(SOON) == {"tasks:light"}


def test_notifications_sent_by_the_ledger_equal_those_of_the_transport() -> None:
    transport = PostgresTransport(MemoryExchange().notifier())

    assert transport.topics([Ticket("light"), Ticket("heavy"), Ticket("light")]) == ["tasks:heavy", "tasks:light"]
    assert MemoryTransport(Broker()).topics([Ticket("light")]) == ()
