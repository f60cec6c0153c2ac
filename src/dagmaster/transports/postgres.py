"""The default transport: the task row is the message, and the bell says which queue has some.

The bell must be this transport's own: whoever waits on it takes the rings.
"""

import asyncio
from collections.abc import Sequence

from dagmaster.database.bell import Bell, tasks_topic
from dagmaster.transports.transport import Delivery, Ticket


class PostgresTransport:
    def __init__(self, bell: Bell, queues: Sequence[str] = ()) -> None:
        self._bell = bell
        self._queues = {tasks_topic(queue): queue for queue in queues}

    @property
    def topics(self) -> tuple[str, ...]:
        """What the bell must listen to."""
        return tuple(self._queues)

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        if tickets:
            self._bell.ring(*sorted({tasks_topic(ticket.queue) for ticket in tickets}))

    async def receive(self, timeout_seconds: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while (left := deadline - loop.time()) > 0:
            rung = await self._bell.wait(left)
            if found := [Delivery(self._queues[topic]) for topic in sorted(rung & self._queues.keys())]:
                return found
        return ()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: a claimed row is no longer queued."""

    async def close(self) -> None:
        await self._bell.close()
