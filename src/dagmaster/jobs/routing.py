"""The route of a node's work: its queue and its timeout."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dagmaster.errors import InvalidRequest
from dagmaster.workflows.model import Work


@dataclass(frozen=True, slots=True)
class Route:
    queue: str
    timeout_seconds: float


class DeferredWork(NamedTuple):
    """What a process must know to route a node. The queue is None if only the handler's registration names it."""

    handler: str
    queue: str | None = None


class UnknownRoute(InvalidRequest):
    """This process does not know the handler or the queue of a node. The node waits, because others may know them."""

    def __init__(self, message: str, work: DeferredWork, *, code: str, hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.work = work


class Router(Protocol):
    @property
    def queues(self) -> Collection[str]: ...

    def route(self, work: Work) -> Route:
        """Queue and timeout of this work: from the workflow, else from the handler's registration, else the default."""
        ...

    def routable_handlers(self) -> list[str]:
        """The handlers whose default queue this process also knows."""
        ...
