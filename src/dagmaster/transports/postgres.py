"""The default transport: the task row is the message, and the bell says which queue has some.

A single task is told first to the worker that is near it (the one that just finished the step before): if all woke up for
each step of a chain, all but one would look in vain. The others hear of it a moment later, in case it was not taken.

The bell must be this transport's own: whoever waits on it takes the rings.
"""

import asyncio
from collections.abc import Sequence

from dagmaster.database.bell import Bell, tasks_topic
from dagmaster.transports.transport import Delivery, Ticket

STAND_BY_SECONDS = 0.02


class PostgresTransport:
    def __init__(self, bell: Bell, queues: Sequence[str] = (), worker_id: str | None = None) -> None:
        self._bell = bell
        self._queues = topics_of(queues, worker_id)
        self._standing_by: set[str] = set()

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        topics = sorted({tasks_topic(ticket.queue, ticket.near) for ticket in tickets})
        if topics:
            self._bell.ring(*topics)
        for queue in {ticket.queue for ticket in tickets if ticket.near} - self._standing_by:
            self._standing_by.add(queue)
            asyncio.get_running_loop().call_later(STAND_BY_SECONDS, self._tell_the_others, queue)

    def _tell_the_others(self, queue: str) -> None:
        self._standing_by.discard(queue)
        self._bell.ring(tasks_topic(queue))

    async def receive(self, timeout_seconds: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while (left := deadline - loop.time()) > 0:
            rung = await self._bell.wait(left)
            if found := sorted({self._queues[topic] for topic in rung & self._queues.keys()}):
                return [Delivery(queue) for queue in found]
        return ()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: a claimed row is no longer queued."""

    async def close(self) -> None:
        await self._bell.close()


def topics_of(queues: Sequence[str], worker_id: str | None = None) -> dict[str, str]:
    """What the bell of a worker must listen to, each with the queue it is about."""
    near = {tasks_topic(queue, worker_id): queue for queue in queues} if worker_id else {}
    return near | {tasks_topic(queue): queue for queue in queues}
