"""A transport within one process, for tests and simulations. It carries task ids, as a broker does.

Transports that share a `Broker` share its queues: each announcement is delivered to one of them, and again to another
if that one closes without settling it.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence

from dagmaster.transports.transport import MAX_AT_ONCE, Announcement, Delivery


class Broker:
    """The queues, and the transports that wait for them."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Announcement]] = {}
        self._waiting: dict[asyncio.Event, None] = {}  # in the order of the calls, so that a run can be repeated
        self._receipts = itertools.count(1)

    def put(self, announcements: Sequence[Announcement]) -> None:
        for announcement in announcements:
            self._queues.setdefault(announcement.queue, deque()).append(announcement)
        for event in self._waiting:
            event.set()

    def take(self, queues: Sequence[str], limit: int) -> list[Delivery]:
        waiting = (queue for name in queues if (queue := self._queues.get(name)))
        announcements = itertools.islice((queue.popleft() for queue in waiting for _ in range(len(queue))), limit)
        return [
            Delivery(announcement.queue, announcement.task_id, str(next(self._receipts)))
            for announcement in announcements
        ]

    async def wait_for_announcements(self, timeout_seconds: float) -> None:
        """Wait until announcements are put, or the timeout is over."""
        event = asyncio.Event()
        self._waiting[event] = None
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return
        finally:
            self._waiting.pop(event, None)


class MemoryTransport:
    def __init__(self, broker: Broker, queues: Sequence[str] = (), *, batch: int = MAX_AT_ONCE) -> None:
        self._broker = broker
        self._queues = tuple(queues)
        self._batch = batch
        self._unsettled: dict[str, Announcement] = {}

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        self._broker.put(announcements)

    def topics(self, announcements: Sequence[Announcement]) -> Sequence[str]:
        return ()

    async def receive(self, timeout_seconds: float, limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        limit = min(limit, self._batch)
        while not (deliveries := self._broker.take(self._queues, limit)) and (left := deadline - loop.time()) > 0:
            await self._broker.wait_for_announcements(left)
        self._unsettled |= {d.receipt: Announcement(d.queue, d.task_id) for d in deliveries if d.receipt and d.task_id}
        return deliveries

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.receipt:
                self._unsettled.pop(delivery.receipt, None)

    async def close(self) -> None:
        announcements, self._unsettled = list(self._unsettled.values()), {}
        self._broker.put(announcements)
