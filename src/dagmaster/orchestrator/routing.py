"""The queue and the timeout of a task: from the workflow, else the handler's registration, else the default."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagmaster.errors import InvalidRequest
from dagmaster.handlers.registry import DEFAULT_TIMEOUT_SECONDS, Registration
from dagmaster.jobs.routing import Route
from dagmaster.workflows.model import Work


@dataclass(frozen=True)
class RegistryRouter:
    handlers: Mapping[str, Registration]
    queues: Collection[str]
    default_queue: str

    def route(self, work: Work) -> Route:
        if work.handler not in self.handlers:
            raise InvalidRequest(f"no handler is registered as '{work.handler}'", code="handler.unknown")
        registered = self.handlers[work.handler]
        queue = work.queue or registered.queue or self.default_queue
        if queue not in self.queues:
            raise InvalidRequest(f"no queue is named '{queue}'", code="queue.unknown", hint="add it to KNOWN_QUEUES")
        return Route(queue, work.timeout_seconds or registered.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)
