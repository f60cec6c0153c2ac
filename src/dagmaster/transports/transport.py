"""What a transport is: publish a batch, receive, settle.

A delivery is an invitation to claim, not a right: a doubled, late or lost one does no harm, since the worker starts nothing
that it has not claimed in PostgreSQL. `task_id` is None where the transport only says which queue has work (postgres), and
an id where a broker carries one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ticket:
    queue: str
    task_id: str | None = None  # None: the queue as a whole
    near: str | None = None  # the worker that would best take it; the others hear of it a little later


@dataclass(frozen=True, slots=True)
class Delivery:
    queue: str
    task_id: str | None = None
    receipt: str | None = None


class Transport(Protocol):
    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """Announce tasks that are committed already."""
        ...

    def topics(self, tickets: Sequence[Ticket]) -> Sequence[str]:
        """What the ledger may ring itself, in the same breath as it commits these tasks; `publish` is then not called.
        Nothing, where announcing takes more than the bell."""
        ...

    async def receive(self, timeout_seconds: float) -> Sequence[Delivery]:
        """What arrived for the queues this end listens to; empty after the timeout."""
        ...

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """These need not be delivered again."""
        ...

    async def close(self) -> None: ...
