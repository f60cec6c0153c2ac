"""Tasks end when they are cancelled, even if a library swallows the first cancellation."""

import asyncio
from typing import Any

import pytest

from dagmaster import cancellation
from dagmaster.cancellation import cancel_and_wait
from dagmaster.transports.servicebus import ServiceBusTransport

pytestmark = pytest.mark.requirement("E18")


@pytest.fixture(autouse=True)
def short_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "RETRY_SECONDS", 0.05)


class SwallowingCall:
    """A call that swallows this number of cancellations, as `asyncio.wait_for` of Python 3.11 can do."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.calls = 0

    async def __call__(self, *_: Any) -> list[Any]:
        self.calls += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if self.losses == 0:
                raise
            self.losses -= 1
        return []

    async def forever(self) -> None:
        while True:
            await self()


@pytest.mark.parametrize("losses", [0, 1, 2])
async def test_a_loop_that_swallows_cancellations_ends(losses: int) -> None:
    call = SwallowingCall(losses)
    running = asyncio.create_task(call.forever())
    await asyncio.sleep(0)

    await cancel_and_wait(running)

    assert running.cancelled()
    assert call.calls == losses + 1


async def test_tasks_that_have_ended_in_any_way_are_accepted() -> None:
    async def fail() -> None:
        raise ValueError("an error")

    tasks = [asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fail())]
    await asyncio.sleep(0.01)

    await cancel_and_wait(*tasks)
    await cancel_and_wait()

    assert [task.cancelled() for task in tasks] == [False, False]


async def test_a_task_that_ignores_every_cancellation_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    call = SwallowingCall(100)
    running = asyncio.create_task(call.forever(), name="ignoring")
    await asyncio.sleep(0)

    await cancel_and_wait(running)

    assert not running.done()
    assert call.losses == 100 - cancellation.ATTEMPTS
    assert "ignoring" in capsys.readouterr().out
    call.losses = 0
    await cancel_and_wait(running)


class FakeServiceBus:
    """A client whose receivers swallow one cancellation."""

    def __init__(self) -> None:
        self.receivers: list[Any] = []

    def receiver(self, queue: str) -> Any:
        receiver = _FakeReceiver(queue)
        self.receivers.append(receiver)
        return receiver


class _FakeReceiver:
    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.receive = SwallowingCall(1)
        self.is_closed = False

    async def abandon(self, _messages: Any) -> None:
        return None

    async def close(self) -> None:
        self.is_closed = True


async def test_the_transport_closes_although_the_service_bus_sdk_swallows_a_cancellation() -> None:
    service_bus: Any = FakeServiceBus()
    transport = ServiceBusTransport(service_bus, ["a", "b"])
    await transport.receive(0.01)

    async with asyncio.timeout(5):
        await transport.close()

    assert [(receiver.is_closed, receiver.receive.losses) for receiver in service_bus.receivers] == [(True, 0)] * 2
