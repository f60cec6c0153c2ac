"""The default transport: the task row is the message, and the bell says which queue has some.

A single task is told first to the worker that is near it (the one that just finished the step before): if all woke up for
each step of a chain, all but one would look in vain. The others hear of it a moment later, in case it was not taken.

The bell must be this transport's own: whoever waits on it takes the rings.
"""

import asyncio
from collections.abc import Sequence

from dagmaster.database.notify.notifier import Notifier, tasks_topic
from dagmaster.transports.transport import Delivery, Ticket

STAND_BY_SECONDS = 0.02


class PostgresTransport:
    def __init__(self, notifier: Notifier, queues: Sequence[str] = (), worker_id: str | None = None) -> None:
        self._notifier = notifier
        self._queues = topics_of(queues, worker_id)
        self._standing_by: dict[Ticket, asyncio.TimerHandle] = {}

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        if topics := self.topics(tickets):
            self._notifier.notify(*topics)

    def topics(self, tickets: Sequence[Ticket]) -> Sequence[str]:
        for ticket in tickets:
            if ticket.near:
                self._stand_by(ticket)
        return sorted({tasks_topic(ticket.queue, ticket.near) for ticket in tickets})

    def _stand_by(self, ticket: Ticket) -> None:
        """Whoever is near once more has finished what it was told of before: about that the others need not hear."""
        if before := self._standing_by.pop(ticket, None):
            before.cancel()
        loop = asyncio.get_running_loop()
        self._standing_by[ticket] = loop.call_later(STAND_BY_SECONDS, self._tell_the_others, ticket)

    def _tell_the_others(self, ticket: Ticket) -> None:
        self._standing_by.pop(ticket, None)
        self._notifier.notify(tasks_topic(ticket.queue))

    async def receive(self, timeout_seconds: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while (left := deadline - loop.time()) > 0:
            rung = await self._notifier.wait(left)
            if found := sorted({self._queues[topic] for topic in rung & self._queues.keys()}):
                return [Delivery(queue) for queue in found]
        return ()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: a claimed row is no longer queued."""

    async def close(self) -> None:
        await self._notifier.close()


def topics_of(queues: Sequence[str], worker_id: str | None = None) -> dict[str, str]:
    """What the bell of a worker must listen to, each with the queue it is about."""
    near = {tasks_topic(queue, worker_id): queue for queue in queues} if worker_id else {}
    return near | {tasks_topic(queue): queue for queue in queues}
