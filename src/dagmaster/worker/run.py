"""From a claimed task to its report: find the handler, parse params, run with a timeout, store large outputs, classify
errors.

Whatever a handler does, the result is a report. Exceptions are caught here and, for plain handlers, in `child_main`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dagmaster import faults
from dagmaster.database.ledger.protocol import Report
from dagmaster.errors import HandlerFailed, NotFound, TimedOut, Unavailable
from dagmaster.handlers import calling
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.registry import Registration, Registry
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.payload import Encoded
from dagmaster.jobs.states import TaskStatus
from dagmaster.observe import log
from dagmaster.worker.context import HANDLING, TaskContext
from dagmaster.worker.executors.executor import Executor
from dagmaster.worker.outcome import CANCELLED, RETURNED, Outcome, failed, succeeded
from dagmaster.worker.task_spans import describe_end, is_traced, span_of
from dagmaster.worker.watchdog import Blocked

T = TypeVar("T")
PAUSE_SECONDS = (0.05, 5.0)  # between attempts to reach the database
_log = log.get("worker")


class Runner:
    """Runs tasks: async handlers in this loop, plain ones in processes of the executor."""

    def __init__(self, registry: Registry, executor: Executor, traced_children: int = 0) -> None:
        """The first `traced_children` children of a fan_out are traced."""
        self._traced_children = traced_children
        self._registry = registry
        self._executor = executor
        self._handlers: dict[str, calling.ResolvedHandler] = {}

    def run(self, context: TaskContext) -> Coroutine[Any, Any, tuple[Report, int]]:
        """The report of one attempt, and its size in bytes."""
        task = context.task
        is_span_needed = is_traced(task, self._traced_children)
        return self._run_traced(task, context) if is_span_needed else self._run(task, context)

    async def _run_traced(self, task: TaskMessage, context: TaskContext) -> tuple[Report, int]:
        with span_of(task) as span:
            context.traceparent = span.traceparent or task.traceparent
            report, size_bytes = await self._run(task, context)
            describe_end(span, report)
            return report, size_bytes

    async def _run(self, task: TaskMessage, context: TaskContext) -> tuple[Report, int]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = _final_outcome(await self._outcome_of(task, context), context)
        metrics = {"seconds": round(loop.time() - started, 6)}
        if outcome.metrics:
            metrics |= outcome.metrics
        return _report(task, outcome, metrics, context.log_lines()), outcome.size_bytes

    async def _outcome_of(self, task: TaskMessage, context: TaskContext) -> Outcome:
        try:
            registration = self._registration(task)
            if task.params_ref is not None:
                await _retry_during_outage(context.load_params)
            outcome = await self._run_handler(registration, context)
            return outcome if outcome.encoded is None else await _stored(outcome, outcome.encoded, context)
        except GiveBack:
            return RETURNED
        except asyncio.CancelledError:
            if _was_cancelled_by_worker():
                if context.cancelled or context.shutting_down:
                    return RETURNED  # `_final_outcome` makes it CANCELLED if the task was cancelled
                raise  # the loop of the worker ends, and gives the task back itself
            return failed(HandlerFailed("the handler cancelled itself", code="handler.cancelled"))
        except Blocked as blocked:
            return failed(blocked.error.with_traceback(blocked.__traceback__))
        except BaseException as error:  # the catch-all: everything that a handler raises is a result
            return failed(error)

    def _run_handler(self, registration: Registration, context: TaskContext) -> Awaitable[Outcome]:
        task = context.task
        if registration.is_async:
            return self._run_async(registration, task, context)
        return self._executor.run(registration, task, task.timeout_seconds, context)

    def _registration(self, task: TaskMessage) -> Registration:
        try:
            return self._registry[task.handler]
        except NotFound as error:
            raise Unavailable(f"this worker cannot run the task: {error.message}", code=calling.UNLOADABLE) from None

    async def _run_async(self, registration: Registration, task: TaskMessage, context: TaskContext) -> Outcome:
        handler = self._handler(registration)
        context.params = params = handler.parse(task.params)
        HANDLING.set(context)
        timeout = asyncio.timeout(task.timeout_seconds)
        try:
            async with timeout:
                value = await handler.call(context, params)
        except TimeoutError:
            if not timeout.expired():
                raise  # a timeout that the handler itself has set
        if timeout.expired():  # also when the handler ignored its cancellation
            seconds = task.timeout_seconds
            raise TimedOut(f"the handler was stopped after its timeout of {seconds:g} s", timeout_seconds=seconds)
        return succeeded(calling.accept(value))

    def _handler(self, registration: Registration) -> calling.ResolvedHandler:
        handler = self._handlers.get(registration.name)
        if handler is None:
            handler = self._handlers[registration.name] = calling.resolve(registration)
        return handler


async def _stored(outcome: Outcome, encoded: Encoded, context: TaskContext) -> Outcome:
    """Store a large output before it is reported, so that a report never refers to a missing payload."""
    faults.reach("worker.before-store")
    reference = await _retry_during_outage(lambda: context.store_output(encoded))
    faults.reach("worker.after-store")
    return outcome._replace(encoded=None, output_ref=reference)


async def _retry_during_outage(call: Callable[[], Awaitable[T]]) -> T:
    """Retry until the database is available. The lease is renewed meanwhile, so an outage uses up no retry. A worker
    that stops cancels this call."""
    seconds, longest = PAUSE_SECONDS
    while True:
        try:
            return await call()
        except (Unavailable, OSError) as error:
            _log.warning("a payload cannot be stored or loaded; trying again", error=str(error))
            await asyncio.sleep(seconds)
            seconds = min(longest, 2 * seconds)


def _was_cancelled_by_worker() -> bool:
    """Whether the worker cancelled this asyncio task. A handler may also pass on the cancellation of something else."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _final_outcome(outcome: Outcome, context: TaskContext) -> Outcome:
    if outcome.status is TaskStatus.RETURNED and not (context.cancelled or context.shutting_down):
        # Otherwise a handler could give its task back forever without using up a retry.
        return failed(
            HandlerFailed("the handler gave its task back without being asked to stop", code="handler.gave-back")
        )
    if outcome.status is not TaskStatus.SUCCEEDED and context.cancelled:
        return CANCELLED  # it was asked to stop, so its error does not count
    return outcome


def _report(task: TaskMessage, outcome: Outcome, metrics: dict[str, Any], lines: list[dict[str, Any]] | None) -> Report:
    metrics.pop("log", None)  # reserved for the log lines
    if lines:
        metrics["log"] = lines
    return Report(
        task.job_id,
        task.node_id,
        task.attempt,
        outcome.status,
        outcome.output,
        outcome.error,
        metrics,
        outcome.output_ref,
    )
