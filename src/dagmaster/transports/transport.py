"""The interface of a transport: publish a batch, receive, settle.

A delivery is a hint to claim: a duplicate, late or lost one does no harm, since a worker starts only tasks that it has
claimed in PostgreSQL. `task_id` is None if the transport only names a queue with tasks (postgres), and an id if a
broker carries one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement to send: of one queued task, or of a queue that has tasks."""

    queue: str
    task_id: str | None = None  # None: the queue as a whole
    first_worker: str | None = None  # the worker that is notified first; the others follow a little later


@dataclass(frozen=True, slots=True)
class Delivery:
    """An announcement that a worker has received. `receipt` identifies it when it is settled."""

    queue: str
    task_id: str | None = None
    receipt: str | None = None


class Transport(Protocol):
    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Announce committed tasks."""
        ...

    def topics(self, announcements: Sequence[Announcement]) -> Sequence[str]:
        """The topics that the ledger notifies right after it has committed these tasks; `publish` is then not called.
        Empty where a notification does not announce tasks."""
        ...

    async def receive(self, timeout_seconds: float, limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        """The deliveries for the queues of this transport; empty after the timeout. At most `limit` messages are
        requested from a broker at once: as many as the worker has free slots."""
        ...

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Confirm these deliveries, so that they are not delivered again."""
        ...

    async def close(self) -> None: ...
