"""The state of one running attempt: the Context of an async handler, or the worker's part of a plain handler's."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from dagmaster.daemon_threads import DaemonThreads
from dagmaster.database.ledger.protocol import PayloadLedger, Running
from dagmaster.errors import Fenced, InvalidRequest, Unavailable
from dagmaster.handlers import checkpoints
from dagmaster.handlers.artifacts import OneOrMoreArtifacts, problem_of
from dagmaster.handlers.checkpoints import Phase
from dagmaster.handlers.context import AsyncCheck, GiveBack, IsValid, TaskLogger
from dagmaster.handlers.resources import Resources
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.payload import Encoded, Reference
from dagmaster.observe import log
from dagmaster.worker import reported

if TYPE_CHECKING:
    from dagmaster.addresses import Addresses
    from dagmaster.database.connect import ConnectionPool
    from dagmaster.handlers.export.exporter import Exporter
    from dagmaster.storage.zones import Storage

MAX_LOG_LINES = 100
MAX_LOG_LINE = 500
NO_DATABASE = "worker.no-database"
LIVE_LOG_LINES = 20  # sent while an attempt still runs

OnSignal = Callable[[str], None]
_ReadResults = Callable[[UUID, str, int, int], Awaitable[list[ChildResult]]]


class TaskContext:
    """Progress and log lines are kept here until the next renewal of the lease sends the latest ones."""

    __slots__ = (
        "_cancelled",
        "_database",
        "_has_unsent_lines",
        "_is_waiting",
        "_ledger",
        "_line_count",
        "_lines",
        "_logger",
        "_progress",
        "_resources",
        "_running_since",
        "_shutting_down",
        "_signal",
        "attempt",
        "has_updates",
        "job_id",
        "node_id",
        "params",
        "retry_count",
        "task",
        "task_id",
        "traceparent",
    )

    def __init__(
        self,
        task: TaskMessage,
        ledger: PayloadLedger,
        database: "ConnectionPool | None" = None,
        resources: Resources | None = None,
    ) -> None:
        self.task = task
        self.task_id: str = task.task_id
        self.job_id: UUID = task.job_id
        self.node_id: str = task.node_id
        self.attempt: int = task.attempt
        self.retry_count: int = task.retry_count
        self.params: Any = task.params
        self.traceparent: str | None = None  # of the span of this attempt, if it is traced
        self.has_updates = False
        self._ledger = ledger
        self._database = database
        self._resources = resources or Resources()
        self._cancelled = False
        self._shutting_down = False
        self._signal: OnSignal | None = None
        self._progress: dict[str, Any] | None = None
        self._logger: Any = None
        self._lines: deque[dict[str, Any]] | None = None
        self._line_count = 0
        self._has_unsent_lines = False  # log lines that no renewal has sent yet
        self._is_waiting = False  # whether the handler waits for a slot
        self._running_since: float | None = None  # on the monotonic clock; set only if it had to wait for a slot

    # Called by handlers

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
    def database(self) -> "ConnectionPool":
        if self._database is None:
            raise Unavailable(
                "this worker has no database access for its handlers",
                code=NO_DATABASE,
                hint="register the handler with needs_database=True, so that only workers with database access claim "
                "its tasks",
            )
        return self._database

    @property
    def storage(self) -> "Storage":
        return self._resources.storage

    @property
    def addresses(self) -> "Addresses":
        return self._resources.addresses

    @property
    def exporter(self) -> "Exporter":
        return self._resources.exporter

    def give_back(self) -> GiveBack:
        return GiveBack("stopped early on request")

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        self.show_progress(reported.progress(fraction, message, counts))

    async def save_checkpoint(self, name: str, data: Any = None, artifact: OneOrMoreArtifacts | None = None) -> None:
        packing = (name, data, artifact)
        phase = checkpoints.pack(*packing) if artifact is None else await _in_thread(checkpoints.pack, *packing)
        await self.keep_checkpoint(phase)
        if self.should_stop:
            raise self.give_back()

    async def load_checkpoint(
        self, is_valid: IsValid | None = None, check: AsyncCheck | None = None
    ) -> tuple[str, Any] | None:
        for phase in reversed(await self.load_checkpoints()):
            problem = checkpoints.refusal(phase, is_valid) or await _problem_of(phase, check)
            if problem is None:
                return phase.name, phase.data
            checkpoints.log_invalid(self.logger.warning, phase, problem)
        return None

    async def results(self, page: int = 500) -> AsyncIterator[ChildResult]:
        offset = 0
        while rows := await self.read_results(offset, page):
            for row in rows:
                yield row
            offset += len(rows)

    # Called by the worker

    def show_progress(self, facts: dict[str, Any]) -> None:
        """Keep progress that `reported.progress` has checked, until the next renewal sends it."""
        self._progress = facts
        self.has_updates = True

    @property
    def should_stop(self) -> bool:
        return self._cancelled or self._shutting_down

    async def keep_checkpoint(self, phase: Phase) -> None:
        """Save a checkpoint. Raises Fenced if this attempt no longer holds its task."""
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
        """Load params that were too large for the message."""
        if self.task.params_ref is not None:
            encoded = await self._ledger.load_payload(self.job_id, self.task.params_ref)
            self.params = orjson.loads(encoded)
            self.task = self.task._replace(params=self.params)

    async def store_output(self, encoded: Encoded) -> Reference:
        return await self._ledger.store_payload(self.job_id, encoded)

    async def read_results(self, skip: int, page: int) -> list[ChildResult]:
        """One page of the results that the params refer to; empty at the end."""
        return await self._read_page(self._ledger.read_results, skip, page)

    async def read_encoded_results(self, skip: int, page: int) -> list[ChildResult]:
        """Like `read_results`, but with large outputs as fragments of JSON."""
        return await self._read_page(self._ledger.read_encoded_results, skip, page)

    async def _read_page(self, read: _ReadResults, skip: int, page: int) -> list[ChildResult]:
        node, offset, limit = _reference(self.task)
        count = page if limit is None else min(page, limit - skip)
        return await read(self.job_id, node, offset + skip, count) if count > 0 else []

    def cancel(self) -> None:
        self._cancelled = True
        self._forward_signal("cancel")

    def shut_down(self) -> None:
        self._shutting_down = True
        self._forward_signal("shutdown")

    def on_signal(self, on_signal_call: OnSignal | None) -> None:
        """Call `on_signal_call` for cancel and shutdown, including those that came before this call."""
        self._signal = on_signal_call
        if self._cancelled:
            self._forward_signal("cancel")
        if self._shutting_down:
            self._forward_signal("shutdown")

    def wait_for_slot(self) -> None:
        """Report that the handler waits for a slot. Until `start_running`, the task counts as not started."""
        self.has_updates = self._is_waiting = True

    def start_running(self) -> None:
        if self._is_waiting:
            self._is_waiting, self._running_since = False, time.monotonic()
            self.has_updates = True

    def running(self) -> Running:
        lines = (self.log_lines() or [])[-LIVE_LOG_LINES:] if self._has_unsent_lines else None
        self.has_updates, self._has_unsent_lines = self._is_waiting, False
        return self._running(self._progress, lines)

    def log(self, level: str, event: str, facts: dict[str, Any]) -> None:
        event, facts = reported.text(event, reported.MAX_LOG_TEXT), reported.log_facts(facts)
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
                "text": reported.text(text, MAX_LOG_LINE),
            }
        )
        self.has_updates = self._has_unsent_lines = True

    def _running(self, progress: dict[str, Any] | None, lines: list[dict[str, Any]] | None = None) -> Running:
        run_seconds = 0.0 if self._is_waiting else None
        if self._running_since is not None:
            run_seconds = time.monotonic() - self._running_since
        return Running(self.job_id, self.node_id, self.attempt, progress, lines, run_seconds)

    def _forward_signal(self, kind: str) -> None:
        if self._signal is not None:
            self._signal(kind)


# The context of the running handler. Tasks that a handler starts in the loop inherit it, and keep it when the handler
# has ended.
HANDLING: ContextVar[TaskContext] = ContextVar("handling")


# Daemon threads, because reading a large file may take longer than the grace period.
_DAEMON_THREADS = DaemonThreads()


async def _in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a thread, because reading files would block every other handler."""
    return await asyncio.get_running_loop().run_in_executor(_DAEMON_THREADS, call, *arguments)


async def _problem_of(phase: Phase, check: AsyncCheck | None) -> str | None:
    for artifact in phase.artifacts:
        if check is None:
            if problem := await _in_thread(problem_of, artifact):
                return str(problem)
            continue
        verdict = check(artifact)
        if not (await verdict if inspect.isawaitable(verdict) else verdict):
            return checkpoints.refused_by_check(artifact)
    return None


def _reference(task: TaskMessage) -> tuple[str, int, int | None]:
    reference = task.params.get("results_of")
    if not isinstance(reference, dict) or "node_id" not in reference:
        raise InvalidRequest(
            f"node '{task.node_id}' has no `results_of` to read results from", code="params.no-results-of"
        )
    return reference["node_id"], reference.get("offset") or 0, reference.get("limit")
