"""From a claimed task to its report, as a chain of named steps: resolve, parse, run with a deadline, store what is large,
classify.

Whatever a handler does, the answer is a report. The catch-all of the worker is here and only here (its far half, for
plain handlers, is in `inside`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from dagmaster import faults
from dagmaster.database.ledger.protocol import Report
from dagmaster.errors import HandlerFailed, NotFound, TimedOut, Unavailable
from dagmaster.handlers import calling
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.registry import Registration, Registry
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.states import TaskStatus
from dagmaster.observe import log
from dagmaster.worker.context import HANDLING, TaskContext
from dagmaster.worker.outcome import CANCELLED, RETURNED, Outcome, failed, succeeded
from dagmaster.worker.process_pool import Pool
from dagmaster.worker.watchdog import Blocked

T = TypeVar("T")
PAUSE_SECONDS = (0.05, 5.0)  # between tries to reach the database
_log = log.get("worker")


class Runner:
    """Runs tasks: async handlers in this loop, plain ones in the pool's processes."""

    def __init__(self, registry: Registry, pool: Pool) -> None:
        self._registry = registry
        self._pool = pool
        self._plans: dict[str, calling.Plan] = {}

    async def run(self, context: TaskContext) -> tuple[Report, int]:
        """The report of one attempt, and its size in bytes."""
        task = context.task
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = _settle(await self._classified(task, context), context)
        metrics = {"seconds": round(loop.time() - started, 6)}
        if outcome.metrics:
            metrics |= outcome.metrics
        return _report(task, outcome, metrics, context.log_lines()), outcome.size_bytes

    async def _classified(self, task: TaskMessage, context: TaskContext) -> Outcome:
        try:
            registration = self._find(task)
            if task.params_ref is not None:
                await _through_outages(context.load_params)
            return await _stored(await self._outcome(registration, context), context)
        except GiveBack:
            return RETURNED
        except asyncio.CancelledError:
            if _is_from_outside():
                if context.cancelled or context.shutting_down:
                    return RETURNED
                raise
            return failed(HandlerFailed("the handler was cancelled from within", code="handler.cancelled"))
        except Blocked as blocked:
            return failed(blocked.error.with_traceback(blocked.__traceback__))
        except BaseException as error:  # the catch-all: a handler's failure is an answer, whatever it raises
            return failed(error)

    async def _outcome(self, registration: Registration, context: TaskContext) -> Outcome:
        task = context.task
        if registration.is_async:
            return await self._run_here(registration, task, context)
        return await self._pool.run(registration, task, task.timeout_seconds, context)

    def _find(self, task: TaskMessage) -> Registration:
        try:
            return self._registry[task.handler]
        except NotFound as error:
            raise Unavailable(f"this worker has {error.message}", code=calling.UNLOADABLE) from None

    async def _run_here(self, registration: Registration, task: TaskMessage, context: TaskContext) -> Outcome:
        plan = self._plan(registration)
        context.params = params = plan.parse(task.params)
        HANDLING.set(context)
        deadline = asyncio.timeout(task.timeout_seconds)
        try:
            async with deadline:
                value = await plan.call(context, params)
        except TimeoutError:
            if not deadline.expired():
                raise  # the handler's own
        if deadline.expired():  # also when the handler swallowed its cancellation and went on
            raise TimedOut(f"stopped after {task.timeout_seconds:g} s", timeout_seconds=task.timeout_seconds)
        return succeeded(calling.accept(value))

    def _plan(self, registration: Registration) -> calling.Plan:
        plan = self._plans.get(registration.name)
        if plan is None:
            plan = self._plans[registration.name] = calling.plan(registration)
        return plan


async def _stored(outcome: Outcome, context: TaskContext) -> Outcome:
    """A large output is stored before it is reported: what a report refers to is there."""
    encoded = outcome.encoded
    if encoded is None:
        return outcome
    faults.reach("worker.before-store")
    reference = await _through_outages(lambda: context.store_output(encoded))
    faults.reach("worker.after-store")
    return replace(outcome, encoded=None, output_ref=reference)


async def _through_outages(call: Callable[[], Awaitable[T]]) -> T:
    """Try until the database is there again. The lease is kept meanwhile, as that of a report which waits: an outage costs no
    attempt. A worker that stops cancels this."""
    seconds, longest = PAUSE_SECONDS
    while True:
        try:
            return await call()
        except (Unavailable, OSError) as error:
            _log.warning("a payload has to wait for the database", error=str(error))
            await asyncio.sleep(seconds)
            seconds = min(longest, 2 * seconds)


def _is_from_outside() -> bool:
    """Whether someone cancelled this very task; a handler may also leak the cancellation of something it awaited."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _settle(outcome: Outcome, context: TaskContext) -> Outcome:
    if outcome.status is TaskStatus.RETURNED and not (context.cancelled or context.shutting_down):
        # Else a handler could go round for ever without it counting as an attempt.
        return failed(HandlerFailed("the handler gave its task back unasked", code="handler.gave-back"))
    if outcome.status is not TaskStatus.SUCCEEDED and context.cancelled:
        return CANCELLED  # whatever it stumbled over, it was told to stop
    return outcome


def _report(task: TaskMessage, outcome: Outcome, metrics: dict[str, Any], lines: list[dict[str, Any]] | None) -> Report:
    metrics.pop("log", None)  # the name is ours
    if lines:
        metrics["log"] = lines
    return Report(
        task.job_id, task.node_id, task.attempt, outcome.status, outcome.output, outcome.error, metrics, outcome.output_ref
    )  # fmt: skip
