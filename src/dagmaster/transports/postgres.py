"""The default transport: the task row is the message, and a notification names the queue.

A single task is announced first to the worker that ran the previous task: if every worker woke up for each step of a
chain, all but one would claim nothing. The others are notified a moment later, in case the task was not claimed.

The notifier must not be shared: waiting on it consumes its notifications.
"""

import asyncio
from collections.abc import Sequence

from dagmaster.database.notify.notifier import Notifier, tasks_topic
from dagmaster.transports.transport import MAX_AT_ONCE, Announcement, Delivery

OTHERS_DELAY_SECONDS = 0.02


class PostgresTransport:
    def __init__(self, notifier: Notifier, queues: Sequence[str] = (), worker_id: str | None = None) -> None:
        self._notifier = notifier
        self._queues = topics_of(queues, worker_id)
        self._timers: dict[Announcement, asyncio.TimerHandle] = {}

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        if topics := self.topics(announcements):
            self._notifier.notify(*topics)

    def topics(self, announcements: Sequence[Announcement]) -> Sequence[str]:
        for announcement in announcements:
            if announcement.first_worker:
                self._notify_others_later(announcement)
        return sorted({tasks_topic(announcement.queue, announcement.first_worker) for announcement in announcements})

    def _notify_others_later(self, announcement: Announcement) -> None:
        """Notify the other workers later. If `first_worker` is the same again, this worker has finished the previous
        task, so the others need no notification of that task."""
        if timer := self._timers.pop(announcement, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[announcement] = loop.call_later(OTHERS_DELAY_SECONDS, self._notify_others, announcement)

    def _notify_others(self, announcement: Announcement) -> None:
        self._timers.pop(announcement, None)
        self._notifier.notify(tasks_topic(announcement.queue))

    async def receive(self, timeout_seconds: float, _limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while (left := deadline - loop.time()) > 0:
            topics = await self._notifier.wait(left)
            if queues := sorted({self._queues[topic] for topic in topics & self._queues.keys()}):
                return [Delivery(queue) for queue in queues]
        return ()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: a claimed row is no longer queued."""

    async def close(self) -> None:
        await self._notifier.close()


def topics_of(queues: Sequence[str], worker_id: str | None = None) -> dict[str, str]:
    """The topics that a worker listens to, each with its queue."""
    own = {tasks_topic(queue, worker_id): queue for queue in queues} if worker_id else {}
    return own | {tasks_topic(queue): queue for queue in queues}
