"""Where the work of a node goes: its queue and its timeout."""

from dataclasses import dataclass
from typing import Protocol

from dagmaster.workflows.model import Work


@dataclass(frozen=True, slots=True)
class Route:
    queue: str
    timeout_seconds: float


class Router(Protocol):
    def route(self, work: Work) -> Route:
        """Queue and timeout of this work: from the workflow, else from the handler's registration, else the default."""
        ...
