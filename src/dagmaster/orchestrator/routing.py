"""The queue and the timeout of a task: from the workflow, else the handler's registration, else the default."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dagmaster.handlers.registry import DEFAULT_TIMEOUT_SECONDS, Registration
from dagmaster.jobs.routing import DeferredWork, Route, UnknownRoute
from dagmaster.workflows.model import Work


@dataclass(frozen=True)
class RegistryRouter:
    handlers: Mapping[str, Registration]
    queues: Collection[str]
    default_queue: str

    def route(self, work: Work) -> Route:
        if work.handler not in self.handlers:
            raise UnknownRoute(
                f"no handler is registered as '{work.handler}'",
                DeferredWork(work.handler, work.queue),
                code="handler.unknown",
            )
        registered = self.handlers[work.handler]
        queue = work.queue or self._queue_of(registered)
        if queue not in self.queues:
            raise UnknownRoute(
                f"no queue is named '{queue}'",
                DeferredWork(work.handler, queue),
                code="queue.unknown",
                hint="add it to KNOWN_QUEUES",
            )
        return Route(queue, work.timeout_seconds or registered.timeout_seconds or DEFAULT_TIMEOUT_SECONDS)

    def routable_handlers(self) -> list[str]:
        return sorted(name for name in self.handlers if self._queue_of(self.handlers[name]) in self.queues)

    def _queue_of(self, registered: Registration) -> str:
        return registered.queue or self.default_queue
