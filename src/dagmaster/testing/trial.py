"""Test one handler: call it as a worker does, and record its output, progress, checkpoints and log."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel

from dagmaster.database.ledger.protocol import Report
from dagmaster.handlers.calling import to_json
from dagmaster.handlers.registry import DEFAULT_TIMEOUT_SECONDS, Registration, Registry, installed
from dagmaster.handlers.resources import Resources
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, NodeState, TaskMessage, child_id, task_id
from dagmaster.jobs.states import Blame, NodeStatus, TaskStatus
from dagmaster.settings import Settings
from dagmaster.testing import plain
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.virtual import virtual_time
from dagmaster.worker.context import TaskContext
from dagmaster.worker.run import Runner

Handler = Callable[..., Any]

JOB_ID = UUID("01890000-0000-7000-8000-000000000001")
START = datetime(2030, 1, 1, tzinfo=UTC)
_EARLIER = "earlier"  # the fan_out whose results the handler reads


@dataclass(frozen=True, slots=True)
class FunctionRegistration(Registration):
    """A registration that holds the function itself, so that it works for functions that cannot be imported."""

    function: Handler = field(kw_only=True)

    def resolve(self) -> Handler:
        return self.function


def registration_for(
    function: Handler, name: str | None = None, like: Registration | None = None
) -> FunctionRegistration:
    """A registration for a function, with the queue, timeout and memory of `like`, or else of its own decorator."""
    mark: Registration | None = like or getattr(function, "__dagmaster_handler__", None)
    target = f"{function.__module__}:{function.__qualname__}"
    options = (mark.queue, mark.timeout_seconds, mark.memory_mb) if mark else ()
    name = name or (mark.name if mark else function.__qualname__)
    return FunctionRegistration(name, target, inspect.iscoroutinefunction(function), *options, function=function)


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one attempt: the worker's report, and the progress, checkpoints and log lines of the handler."""

    report: Report
    progress: list[dict[str, Any]]
    saved: tuple[Checkpoint, ...]
    log: list[str]

    @property
    def status(self) -> TaskStatus:
        """`succeeded` or `failed`; `cancelled` if the handler stopped because it was cancelled; `returned` if it gave
        its task back because the worker shuts down."""
        return self.report.status

    @property
    def output(self) -> Any:
        """The value that the handler returned, as JSON. Raises AssertionError if the handler has not succeeded."""
        if self.status is not TaskStatus.SUCCEEDED:
            raise AssertionError(f"the handler {self.status}: {(self.error or {}).get('traceback') or self.error}")
        return self.report.output

    @property
    def checkpoints(self) -> dict[str, Any]:
        """Names and data of all checkpoints, including those of earlier attempts, oldest first."""
        return {checkpoint.name: checkpoint.data for checkpoint in self.saved}

    @property
    def error(self) -> dict[str, Any] | None:
        """The error as a dictionary: message, code, blame and type; hint and traceback, if there are any."""
        return self.report.error

    @property
    def blame(self) -> Blame | None:
        """The cause that the failure is attributed to. If it is the data, the task is not retried."""
        return Blame(self.error["blame"]) if self.error else None

    @property
    def metrics(self) -> dict[str, Any]:
        return self.report.metrics or {}


def run_handler(
    handler: Handler | str,
    params: Mapping[str, Any] | BaseModel | None = None,
    *,
    attempt: int | None = None,
    node_id: str = "node",
    timeout_seconds: float | None = None,
    checkpoints: Mapping[str, Any] | None = None,
    after: Trial | None = None,
    results: Sequence[Any] = (),
    cancelled_after: int | None = None,
    shutting_down_after: int | None = None,
    isolate: bool = False,
    settings: Settings | None = None,
) -> Trial:
    """Call a handler, or the installed one of this name, and return the outcome.
    Exceptions of the handler are part of the outcome and are not raised.

    `checkpoints` are those of earlier attempts, oldest first; `after` is the trial of the previous attempt, whose
    checkpoints are loaded with their artifacts. `results` is what `ctx.results()` streams: outputs, or ChildResults
    with more fields. `cancelled_after` and `shutting_down_after` say how many reads of that flag return false. Time is
    virtual. A plain handler runs in this process, without limits, or with `isolate` in a child process. `settings`
    configure `ctx.storage` and `ctx.addresses`; by default they are read from the environment.
    """
    if isolate and settings is not None:
        raise ValueError("an isolated handler has the settings of the environment: omit `isolate`")
    if isolate and not (cancelled_after is shutting_down_after is None):
        raise ValueError("reads of a flag can only be counted in this process: omit `isolate`")
    attempt = attempt or (after.report.attempt + 1 if after else 1)
    registration = installed()[handler] if isinstance(handler, str) else registration_for(handler)
    encoded = to_json({"results_of": {"node_id": _EARLIER}, **_plain(params)} if results else _plain(params), "params")
    seconds = timeout_seconds or registration.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    task = TaskMessage(
        task_id=task_id(JOB_ID, node_id, attempt),
        job_id=JOB_ID,
        node_id=node_id,
        attempt=attempt,
        handler=registration.name,
        params=encoded,
        queue="trial",
        timeout_seconds=seconds,
        retry_count=attempt - 1,
    )
    database = _database(task, checkpoints or {}, results)
    database.checkpoints[JOB_ID, node_id] |= {saved.name: saved for saved in (after.saved if after else ())}
    context = _Recorder(task, MemoryLedger(database), Resources(settings), cancelled_after, shutting_down_after)
    report = _attempt(registration, context, isolate)
    if report.output_ref is not None:
        report = replace(report, output=orjson.loads(database.payload(JOB_ID, report.output_ref)))
    saved = sorted(database.checkpoints[JOB_ID, node_id].values(), key=lambda each: (each.attempt, each.saved_at))
    lines = [f"{line['level']}: {line['text']}" for line in context.log_lines() or ()]
    return Trial(report, context.progress_reports, tuple(saved), lines)


@virtual_time
async def _attempt(registration: Registration, context: TaskContext, isolate: bool) -> Report:
    pool = plain.pool(isolate=isolate)
    try:
        report, _ = await Runner(Registry([registration]), pool).run(context)
    finally:
        await pool.close()
    return report


def _plain(params: Mapping[str, Any] | BaseModel | None) -> dict[str, Any]:
    return params.model_dump(mode="json") if isinstance(params, BaseModel) else dict(params or {})


def _database(task: TaskMessage, checkpoints: Mapping[str, Any], results: Sequence[Any]) -> MemoryDatabase:
    """A database with those rows of a job that its handler can read."""
    seconds = itertools.count()  # checkpoints get different times, so that their order is known
    database = MemoryDatabase(lambda: START + timedelta(seconds=next(seconds)))
    database.add_task(
        task.job_id,
        task.node_id,
        task.attempt,
        queue=task.queue,
        handler=task.handler,
        priority=0,
        params=task.params,
        timeout_seconds=task.timeout_seconds,
        retry_count=task.retry_count,
        expires_at=None,
    )
    database.move_task((task.job_id, task.node_id, task.attempt), TaskStatus.RUNNING)
    for name, data in checkpoints.items():
        database.checkpoints[task.job_id, task.node_id][name] = Checkpoint(
            job_id=task.job_id,
            node_id=task.node_id,
            name=name,
            attempt=task.attempt,
            data=data,
            saved_at=database.clock(),
        )
    fan_out = (task.params.get("results_of") or {}).get("node_id", _EARLIER)
    for index, result in enumerate(results):
        row = _child(fan_out, index, result)
        database.nodes[task.job_id][row.node_id] = row
    return database


def _child(fan_out: str, index: int, result: Any) -> NodeState:
    child = result if isinstance(result, ChildResult) else ChildResult(index, "", NodeStatus.COMPLETED, result)
    return NodeState(
        job_id=JOB_ID,
        node_id=child_id(fan_out, index),
        status=NodeStatus(child.status),
        parent_node_id=fan_out,
        fan_out_index=index,
        output=child.output,
        error_message=child.error_message,
    )


class _Recorder(TaskContext):
    """A context that records progress, and whose flags become true after the given numbers of reads."""

    def __init__(
        self,
        task: TaskMessage,
        ledger: MemoryLedger,
        resources: Resources,
        cancelled_after: int | None,
        shutting_down_after: int | None,
    ) -> None:
        super().__init__(task, ledger, resources=resources)
        self.progress_reports: list[dict[str, Any]] = []
        self._left = {"cancelled": cancelled_after, "shutting_down": shutting_down_after}

    @property
    def cancelled(self) -> bool:
        return self._is_set("cancelled")

    @property
    def shutting_down(self) -> bool:
        return self._is_set("shutting_down")

    def show_progress(self, facts: dict[str, Any]) -> None:
        super().show_progress(facts)
        self.progress_reports.append(self.running().progress or {})

    def _is_set(self, flag: str) -> bool:
        left = self._left[flag]
        if left == 0:
            setattr(self, f"_{flag}", True)  # from now on, saving a checkpoint also gives the task back
        elif left is not None:
            self._left[flag] = left - 1
        return left == 0
