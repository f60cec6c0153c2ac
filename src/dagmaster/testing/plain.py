"""Run plain handlers in tests: in this process, where a debugger works, or in child processes, as a worker does."""

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from dagmaster.errors import Unavailable
from dagmaster.handlers import calling, checkpoints
from dagmaster.handlers.artifacts import OneOrMoreArtifacts
from dagmaster.handlers.context import ArtifactCheck, IsValid
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import TaskMessage
from dagmaster.testing.virtual import virtual_loop
from dagmaster.worker.context import TaskContext
from dagmaster.worker.outcome import Outcome, succeeded
from dagmaster.worker.process_pool import Pool

T = TypeVar("T")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits. Calls of the in-memory ledger do not."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a call of the in-memory ledger waited")


def pool(*, isolate: bool, memory_mb: int = 4096) -> Pool:
    # One task per child process: an idle one would keep a socket open, and time would be real time from then on.
    return IsolatedPool(memory_mb=memory_mb, recycle_after=1) if isolate else InlinePool(memory_mb=memory_mb)


class InlinePool(Pool):
    """Calls plain handlers in this process: no virtual time passes meanwhile, and time and memory are not limited."""

    async def run(
        self, registration: Registration, task: TaskMessage, timeout_seconds: float, context: TaskContext
    ) -> Outcome:
        handler = calling.resolve(registration)
        inline = InlineContext(context)
        inline.params = params = handler.parse(task.params)
        return succeeded(calling.accept(handler.call(inline, params)))


class IsolatedPool(Pool):
    """Uses child processes, as a worker does. They run in real time, so no time is skipped while one is running."""

    async def run(
        self, registration: Registration, task: TaskMessage, timeout_seconds: float, context: TaskContext
    ) -> Outcome:
        with virtual_loop().real_time():
            return await super().run(registration, task, timeout_seconds, context)


class InlineContext:
    """A SyncContext on top of the worker's context of the task."""

    params: Any

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def save_checkpoint(self, name: str, data: Any = None, artifact: OneOrMoreArtifacts | None = None) -> None:
        at_once(self._context.keep_checkpoint(checkpoints.pack(name, data, artifact)))
        if self._context.should_stop:
            raise self._context.give_back()

    def load_checkpoint(
        self, is_valid: IsValid | None = None, check: ArtifactCheck | None = None
    ) -> tuple[str, Any] | None:
        phases = at_once(self._context.load_checkpoints())
        return checkpoints.last_valid(phases, is_valid, check, self._context.logger.warning)

    def results(self, page: int = 500) -> Iterator[ChildResult]:
        offset = 0
        while rows := at_once(self._context.read_results(offset, page)):
            yield from rows
            offset += len(rows)

    def connect(self) -> Any:
        raise Unavailable("the in-memory engine has no database to connect to", code="worker.no-database")
