"""What the worker knows of one running attempt: an async handler's Context, and the worker's half of a plain one's."""

import asyncio
import inspect
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson

from dagmaster.database.connect import Database
from dagmaster.database.ledger.protocol import ChildResult, Ledger, Running
from dagmaster.errors import Fenced, InvalidRequest, Unavailable
from dagmaster.handlers import checkpoints
from dagmaster.handlers.artifacts import Places, problem_of
from dagmaster.handlers.calling import least_bytes, to_json
from dagmaster.handlers.checkpoints import Phase
from dagmaster.handlers.context import AsyncCheck, GiveBack, IsValid, TaskLogger
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.payload import Encoded, Reference
from dagmaster.observe import log
from dagmaster.worker.outcome import bounded

MAX_LOG_LINES = 100
MAX_LOG_LINE = 500
MAX_PROGRESS_BYTES = 4096
LIVE_LOG_LINES = 20  # of an attempt that still runs

OnSignal = Callable[[str], None]


class TaskContext:
    """Progress and log lines stay here until the next renewal of the lease takes the latest along."""

    __slots__ = (
        "_cancelled", "_database", "_has_lines", "_ledger", "_line_count", "_lines", "_logger", "_progress", "_shutting_down",
        "_signal", "attempt", "has_news", "job_id", "node_id", "params", "retry_count", "task", "task_id",
    )  # fmt: skip

    def __init__(self, task: TaskMessage, ledger: Ledger, database: Database | None = None) -> None:
        self.task = task
        self.task_id: str = task.task_id
        self.job_id: UUID = task.job_id
        self.node_id: str = task.node_id
        self.attempt: int = task.attempt
        self.retry_count: int = task.retry_count
        self.params: Any = task.params
        self.has_news = False
        self._ledger = ledger
        self._database = database
        self._cancelled = False
        self._shutting_down = False
        self._signal: OnSignal | None = None
        self._progress: dict[str, Any] | None = None
        self._logger: Any = None
        self._lines: deque[dict[str, Any]] | None = None
        self._line_count = 0
        self._has_lines = False  # that nobody was told yet

    # What a handler sees

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def shutting_down(self) -> bool:
        return self._shutting_down

    @property
    def logger(self) -> TaskLogger:
        return TaskLogger(self.log)

    @property
    def database(self) -> Database:
        if self._database is None:
            raise Unavailable("this worker has no database for its handlers", code="worker.no-database")
        return self._database

    def give_back(self) -> GiveBack:
        return GiveBack("stopped early, as it was told")

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        told: dict[str, Any] = dict(to_json(counts, "progress"))
        if least_bytes(told) > MAX_PROGRESS_BYTES:  # it travels with the leases of all tasks
            told = {"dropped": f"counts of more than {MAX_PROGRESS_BYTES:,} bytes"}
        if fraction is not None and math.isfinite(fraction):
            told["fraction"] = min(max(float(fraction), 0.0), 1.0)
        if message is not None:
            told["message"] = bounded(message, MAX_LOG_LINE)
        self._progress = told
        self.has_news = True

    async def save_checkpoint(self, name: str, data: Any = None, artifact: Places | None = None) -> None:
        packing = (name, data, artifact)
        phase = checkpoints.pack(*packing) if artifact is None else await _apart(checkpoints.pack, *packing)
        await self.keep_checkpoint(phase)
        if self.is_told_to_stop:
            raise self.give_back()

    async def load_checkpoint(
        self, is_valid: IsValid | None = None, check: AsyncCheck | None = None
    ) -> tuple[str, Any] | None:
        for phase in reversed(await self.load_checkpoints()):
            problem = checkpoints.refusal(phase, is_valid) or await _problem_of(phase, check)
            if problem is None:
                return phase.name, phase.data
            checkpoints.tell_distrust(self.logger.warning, phase, problem)
        return None

    async def results(self, page: int = 500) -> AsyncIterator[ChildResult]:
        offset = 0
        while rows := await self.read_results(offset, page):
            for row in rows:
                yield row
            offset += len(rows)

    # What the worker does with it

    @property
    def is_told_to_stop(self) -> bool:
        return self._cancelled or self._shutting_down

    async def keep_checkpoint(self, phase: Phase) -> None:
        """Fenced: the task is someone else's by now, and this attempt counts for nothing."""
        is_kept = await self._ledger.save_checkpoint(self._running(None), **phase.as_json())
        if not is_kept:
            raise Fenced(
                f"checkpoint '{phase.name}' refused: this attempt no longer holds its task", task_id=self.task_id
            )

    async def load_checkpoints(self) -> list[Phase]:
        """Every checkpoint, oldest first."""
        saved = await self._ledger.load_checkpoints(self.job_id, self.node_id)
        return [checkpoints.phase_of(vars(row)) for row in saved]

    async def load_params(self) -> None:
        """Params that were too large for the message."""
        if self.task.params_ref is not None:
            encoded = await self._ledger.load_payload(self.job_id, self.task.params_ref)
            self.params = orjson.loads(encoded)
            self.task = self.task.model_copy(update={"params": self.params})

    async def store_output(self, encoded: Encoded) -> Reference:
        return await self._ledger.store_payload(self.job_id, encoded)

    async def read_results(self, skip: int, page: int, *, decode: bool = True) -> list[ChildResult]:
        """One page of the results that the params refer to; empty at the end. Without `decode` large outputs come as JSON."""
        node, offset, limit = _reference(self.task)
        count = page if limit is None else min(page, limit - skip)
        if count <= 0:
            return []
        return await self._ledger.read_results(self.job_id, node, offset + skip, count, decode=decode)

    def cancel(self) -> None:
        self._cancelled = True
        self._tell("cancel")

    def shut_down(self) -> None:
        self._shutting_down = True
        self._tell("shutdown")

    def on_signal(self, tell: OnSignal | None) -> None:
        """Pass cancel and shutdown on, also those that came before."""
        self._signal = tell
        if self._cancelled:
            self._tell("cancel")
        if self._shutting_down:
            self._tell("shutdown")

    def running(self) -> Running:
        lines = (self.log_lines() or [])[-LIVE_LOG_LINES:] if self._has_lines else None
        self.has_news = self._has_lines = False
        return self._running(self._progress, lines)

    def log(self, level: str, event: str, facts: dict[str, Any]) -> None:
        if self._logger is None:
            self._logger = log.get("handler").bind(
                job_id=str(self.job_id), node_id=self.node_id, task_id=self.task_id, attempt=self.attempt
            )
        getattr(self._logger, level)(event, **facts)
        self._keep(level, event, facts)

    def log_lines(self) -> list[dict[str, Any]] | None:
        """The last lines this attempt logged, without secrets: number, time, level and text of each."""
        return list(self._lines) if self._lines else None

    def _keep(self, level: str, event: str, facts: dict[str, Any]) -> None:
        text = " ".join([event, *(f"{name}={value}" for name, value in facts.items())])
        if self._lines is None:
            self._lines = deque(maxlen=MAX_LOG_LINES)
        self._line_count += 1
        self._lines.append(
            {
                "number": self._line_count,
                "at": datetime.now(UTC).isoformat(),
                "level": level,
                "text": bounded(text, MAX_LOG_LINE),
            }
        )
        self.has_news = self._has_lines = True

    def _running(self, progress: dict[str, Any] | None, lines: list[dict[str, Any]] | None = None) -> Running:
        return Running(self.job_id, self.node_id, self.attempt, progress, lines)

    def _tell(self, what: str) -> None:
        if self._signal is not None:
            self._signal(what)


# Whose handler runs: known to every step of it, and to what it has started in the loop, even after its end.
HANDLING: ContextVar[TaskContext] = ContextVar("handling")


class _Daemons(Executor):
    """Threads that hold up no end of the process: a large file may take longer than the grace at a stop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        threading.Thread(target=self._run, args=(future, fn, args, kwargs), daemon=True).start()
        return future

    def _run(self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)


_DAEMONS = _Daemons()


async def _apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """In a thread: what reads files would hold up every other handler."""
    return await asyncio.get_running_loop().run_in_executor(_DAEMONS, call, *arguments)


async def _problem_of(phase: Phase, check: AsyncCheck | None) -> str | None:
    for artifact in phase.artifacts:
        if check is None:
            if problem := await _apart(problem_of, artifact):
                return str(problem)
            continue
        answer = check(artifact)
        if not (await answer if inspect.isawaitable(answer) else answer):
            return checkpoints.refused_by_check(artifact)
    return None


def _reference(task: TaskMessage) -> tuple[str, int, int | None]:
    reference = task.params.get("results_of")
    if not isinstance(reference, dict) or "node_id" not in reference:
        raise InvalidRequest(
            f"node '{task.node_id}' has no `results_of` to read results from", code="params.no-results-of"
        )
    return reference["node_id"], reference.get("offset") or 0, reference.get("limit")
