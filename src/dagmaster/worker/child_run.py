"""One task in one child process: the timeout, stop requests, and the reports and requests of the handler.

The child may be a process of this worker, or one on a machine of a cluster.
"""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any, Protocol

from dagmaster.errors import DagmasterError, TimedOut, Unavailable
from dagmaster.handlers.checkpoints import phase_of
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker import frames
from dagmaster.worker.context import NO_DATABASE, TaskContext
from dagmaster.worker.frames import BrokenChannel, Frame
from dagmaster.worker.outcome import CHILD_DIED, MEMORY_HINT, RETURNED, Outcome, failed

SAMPLE_SECONDS = 1.0

_STATUSES = {"done": TaskStatus.SUCCEEDED, "failed": TaskStatus.FAILED, "returned": TaskStatus.RETURNED}


class RunningChild(Protocol):
    """A child process, here or on another machine."""

    tasks_run: int
    resident_mb: float
    peak_mb: float | None

    @property
    def is_private(self) -> bool:
        """Whether no other process can read what is sent to it."""
        ...

    def write(self, frame: Frame) -> None:
        """Write without waiting. `receive` notices if the child has ended."""
        ...

    async def receive(self) -> tuple[Frame, int]: ...

    def sample_peak(self) -> None: ...

    async def death(self, memory_mb: int) -> Unavailable:
        """The error of a child that ended before its task. All of its processes have ended when this returns."""
        ...


def run_frame(registration: Registration, task: TaskMessage, memory_mb: int, traceparent: str | None = None) -> Frame:
    return {
        "kind": "run",
        "handler": registration.name,
        "target": registration.target,
        "memory_mb": memory_mb,
        "task_id": task.task_id,
        "job_id": task.job_id,
        "node_id": task.node_id,
        "attempt": task.attempt,
        "retry_count": task.retry_count,
        "params": task.params,
        "traceparent": traceparent,
    }


class ChildRun:
    """One task in one child, from the `run` frame to the task's end. `is_clean`: the child may run another task."""

    def __init__(
        self, child: RunningChild, context: TaskContext, timeout_seconds: float, grace_seconds: float, memory_mb: int
    ) -> None:
        self.is_clean = False
        self._has_foreign_frames = False
        self._child = child
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self._memory_mb = memory_mb

    async def run(self, frame: Frame) -> Outcome:
        timeout = asyncio.timeout(self._timeout_seconds)
        try:
            async with timeout:
                self._child.write(frame)
                with self._sampling(), self._passing_signals_on(timeout):
                    return await self._handle_frames()
        except TimeoutError:
            if not timeout.expired():
                raise
            return self._timed_out()
        except BrokenChannel:
            return await self._died()

    @contextlib.contextmanager
    def _passing_signals_on(self, timeout: asyncio.Timeout) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def pass_on(kind: str) -> None:
            if timeout.expired():
                return
            self._child.write({"kind": kind})
            if kind == "cancel":
                grace_ends_at = loop.time() + self._grace_seconds
                timeout.reschedule(min(grace_ends_at, timeout.when() or grace_ends_at))

        self._context.on_signal(pass_on)
        try:
            yield
        finally:
            self._context.on_signal(None)

    def _timed_out(self) -> Outcome:
        if self._context.cancelled:
            return RETURNED  # the handler was asked to stop, and did not stop within the grace period
        seconds = self._timeout_seconds
        return failed(TimedOut(f"the handler was killed after its timeout of {seconds:g} s", timeout_seconds=seconds))

    async def _handle_frames(self) -> Outcome:
        # Writes never wait for the child to read: it may be waiting for the worker to read.
        while True:
            frame, size = await self._child.receive()
            if frame.get("task") != self._context.task_id:
                self._refuse(frame)
                continue
            match frame["kind"]:
                case "progress":
                    self._context.show_progress(frame["progress"])
                case "log":
                    self._context.log(frame["level"], frame["event"], frame["facts"])
                case frames.REQUEST:
                    self._child.write({"kind": frames.RESPONSE, "id": frame["id"], **await self._respond(frame)})
                case "done" | "failed" | "returned":
                    return self._outcome(frame, size)
                case unknown:
                    raise BrokenChannel(f"unknown frame {unknown!r}")

    def _refuse(self, frame: Frame) -> None:
        """Refuse a frame of an earlier task. A part of that task still runs, so this child gets no further task."""
        self._has_foreign_frames = True
        if frame["kind"] == frames.REQUEST:
            refusal = {"error": "this task has ended", "code": "worker.task-over", "type": "Fenced"}
            self._child.write({"kind": frames.RESPONSE, "id": frame["id"], **refusal})

    async def _respond(self, frame: Frame) -> Frame:
        try:
            return {"value": await self._carry_out(frame)}
        except DagmasterError as error:
            return {"error": error.message, "code": error.code, "type": type(error).__name__}

    async def _carry_out(self, frame: Frame) -> Any:
        match frame["verb"]:
            case "save_checkpoint":
                return await self._context.keep_checkpoint(phase_of(frame["phase"]))
            case "load_checkpoints":
                return [phase.as_json() for phase in await self._context.load_checkpoints()]
            case "results":
                return await self._context.read_encoded_results(frame["skip"], frame["page"])
            case "database":
                return await asyncio.to_thread(self._conninfo)
            case unknown:
                raise Unavailable(f"the worker does not know the request {unknown!r}", code="worker.unknown-verb")

    def _conninfo(self) -> Any:
        """The connection string of the database for the handler. It may contain a password."""
        if not self._child.is_private:
            raise Unavailable(
                "the handler needs the database, but the connection to its process is not encrypted",
                code=NO_DATABASE,
                hint="use a Dask cluster with TLS (tls://…), or run this handler on a worker with child processes",
            )
        from dagmaster.database.token_login import with_password  # imported here, because few handlers need it

        # With the current token, if tokens are used: child processes do not obtain tokens.
        return with_password(str(self._context.database.conninfo))

    def _outcome(self, frame: Frame, size: int) -> Outcome:
        self.is_clean = frame["is_reusable"] and not self._has_foreign_frames
        self._child.tasks_run += 1
        metrics = frame["metrics"]
        self._child.resident_mb = metrics.pop("resident_mb", None) or 0.0
        status, encoded = _STATUSES[frame["kind"]], frame.get("attached")
        return Outcome(status, frame.get("output"), frame.get("error"), metrics, size, encoded)

    async def _died(self) -> Outcome:
        error = await self._child.death(self._memory_mb)
        peak = self._child.peak_mb
        return failed(error, metrics={"peak_mb": peak} if peak else None)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def sample() -> None:
            nonlocal timer
            self._child.sample_peak()
            self._child.write({"kind": "flush"})
            timer = loop.call_later(SAMPLE_SECONDS, sample)

        self._child.peak_mb = None
        timer = loop.call_later(SAMPLE_SECONDS, sample)
        try:
            yield
        finally:
            timer.cancel()


def error_of_death(exit_code: int | None, peak_mb: float | None, memory_mb: int) -> Unavailable:
    signalled = exit_code is not None and exit_code < 0
    end_text = f"was killed by signal {-(exit_code or 0)}" if signalled else f"ended with exit code {exit_code}"
    memory = f" (it had used up to {peak_mb:g} MB)" if peak_mb else ""
    return Unavailable(
        f"the handler's process {end_text}{memory}",
        code=CHILD_DIED,
        hint=f"{MEMORY_HINT}: its limit is {memory_mb} MB" if _suggests_memory(exit_code) else None,
        exit_code=exit_code,
    )


def _suggests_memory(exit_code: int | None) -> bool:
    """Signals of the kernel's out-of-memory killer, and of C code that does not handle a failed allocation."""
    return exit_code is not None and -exit_code in {signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
