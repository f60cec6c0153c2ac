"""The main loop of a child process: take one task at a time, run its handler in the main thread, send the result.

A second thread reads the channel, so that cancel and shutdown arrive while the handler computes.
"""

import itertools
import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from dagmaster import faults
from dagmaster.errors import DagmasterError, Fenced, InvalidRequest, NotFound, Unavailable
from dagmaster.handlers import calling, checkpoints
from dagmaster.handlers.artifacts import OneOrMoreArtifacts
from dagmaster.handlers.context import ArtifactCheck, GiveBack, IsValid, TaskLogger
from dagmaster.handlers.registry import Registration
from dagmaster.handlers.resources import Resources
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.worker import frames
from dagmaster.worker.frames import BrokenChannel, Channel, Frame
from dagmaster.worker.outcome import describe
from dagmaster.worker.process_state import ProcessState
from dagmaster.worker.throttle import ReportThrottle

if TYPE_CHECKING:
    from dagmaster.addresses import Addresses
    from dagmaster.handlers.export.exporter import Exporter
    from dagmaster.storage.zones import Storage

_MB = 1024 * 1024
_RESOURCES = Resources()  # shared by all tasks of this process, which has the environment of its worker
OWN_THREADS = 2  # the main one, and the reader of the channel
_REFUSALS: dict[str, type[DagmasterError]] = {kind.__name__: kind for kind in (Fenced, InvalidRequest, NotFound)}


def serve(descriptor: int) -> None:
    """Run tasks until the worker closes the channel."""
    channel = Channel(socket.socket(fileno=descriptor))
    inbox = Inbox(channel)
    start = channel.receive()
    sys.path[:] = start["path"]  # handlers are imported from the same places as in the worker
    faults.arm(start["crash_point"])
    threading.Thread(target=inbox.read, name="channel", daemon=True).start()
    process_state = ProcessState()
    loaded = LoadedHandlers(process_state)
    own_pid = os.getpid()
    channel.send({"kind": "ready", "pid": own_pid})
    while True:
        task = inbox.next_task()
        result = _run_task(task, inbox, loaded)
        if os.getpid() != own_pid:
            os._exit(0)  # a process that the handler forked; only the original process sends the result
        inbox.flush_reports()
        # A thread that the handler left running would continue during the next task.
        is_reusable = process_state.restore() and threading.active_count() <= OWN_THREADS
        attached = result.pop("attached", b"")
        channel.send({**result, "task": task["task_id"], "is_reusable": is_reusable}, attached)


class Inbox:
    """Frames from the worker that have not been handled yet."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.cancelled = False
        self.shutting_down = False
        self.throttle: ReportThrottle | None = None  # of the running task
        self._tasks: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._responses: dict[int, queue.SimpleQueue[Frame]] = {}
        self._numbers = itertools.count(1)

    def next_task(self) -> Frame:
        return self._tasks.get()

    def request(self, task_id: str, verb: str, **details: Any) -> Any:
        """Send a request of the handler to the worker and wait for the response."""
        number = next(self._numbers)
        response = self._responses[number] = queue.SimpleQueue()
        self.channel.send({"kind": frames.REQUEST, "id": number, "task": task_id, "verb": verb, **details})
        frame = response.get()
        if error := frame.get("error"):
            raise _REFUSALS.get(frame["type"], Unavailable)(error, code=frame["code"])
        return frame["value"]

    def flush_reports(self) -> None:
        """Send progress and log lines that were held back, before the task's result."""
        throttle, self.throttle = self.throttle, None
        if throttle is not None:
            throttle.flush()

    def read(self) -> None:
        """Runs in the reader thread. When the worker has ended, this process ends too."""
        while True:
            try:
                frame = self.channel.receive()
            except (BrokenChannel, OSError):
                os._exit(1)
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        match frame["kind"]:
            case "run":
                self.cancelled = self.shutting_down = False
                self._tasks.put(frame)
            case frames.RESPONSE:
                self._responses.pop(frame["id"]).put(frame)
            case "cancel":
                self.cancelled = True
            case "shutdown":
                self.shutting_down = True
            case "flush" if (throttle := self.throttle) is not None:
                throttle.flush()


class ChildContext:
    """The SyncContext of a plain handler."""

    def __init__(self, inbox: Inbox, task: Frame) -> None:
        self._inbox = inbox
        self._throttle = ReportThrottle(inbox.channel, task["task_id"])
        self.task_id: str = task["task_id"]
        self.job_id = UUID(task["job_id"])
        self.node_id: str = task["node_id"]
        self.attempt: int = task["attempt"]
        self.retry_count: int = task["retry_count"]
        self.params: Any = task["params"]
        self.traceparent: str | None = task.get("traceparent")
        self.logger = TaskLogger(self._throttle.log)
        inbox.throttle = self._throttle

    @property
    def cancelled(self) -> bool:
        return self._inbox.cancelled

    @property
    def shutting_down(self) -> bool:
        return self._inbox.shutting_down

    @property
    def storage(self) -> "Storage":
        return _RESOURCES.storage

    @property
    def addresses(self) -> "Addresses":
        return _RESOURCES.addresses

    @property
    def exporter(self) -> "Exporter":
        return _RESOURCES.exporter

    def give_back(self) -> GiveBack:
        return GiveBack("stopped early on request")

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        self._throttle.progress(fraction, message, counts)

    def save_checkpoint(self, name: str, data: Any = None, artifact: OneOrMoreArtifacts | None = None) -> None:
        phase = checkpoints.pack(name, data, artifact)
        self._inbox.request(self.task_id, "save_checkpoint", phase=phase.as_json())
        if self.cancelled or self.shutting_down:
            raise self.give_back()

    def load_checkpoint(
        self, is_valid: IsValid | None = None, check: ArtifactCheck | None = None
    ) -> tuple[str, Any] | None:
        saved = self._inbox.request(self.task_id, "load_checkpoints")
        phases = [checkpoints.phase_of(facts) for facts in saved]
        return checkpoints.last_valid(phases, is_valid, check, self.logger.warning)

    def results(self, page: int = 500) -> Iterator[ChildResult]:
        offset = 0
        while rows := self._inbox.request(self.task_id, "results", skip=offset, page=page):
            yield from (ChildResult(**row) for row in rows)
            offset += len(rows)

    def connect(self) -> Any:
        import psycopg  # imported here, because few handlers need it

        return psycopg.connect(self._inbox.request(self.task_id, "database"))


def _run_task(task: Frame, inbox: Inbox, loaded: "LoadedHandlers") -> Frame:
    """Run one task and measure its resources."""
    usage = Usage()
    _limit_memory(task["memory_mb"])
    result = _call(ChildContext(inbox, task), task, loaded)
    return {**result, "metrics": usage.metrics() | result.get("metrics", {})}


def _call(context: ChildContext, task: Frame, loaded: "LoadedHandlers") -> Frame:
    """Run the handler. Catches every exception, like worker/run does for async handlers."""
    try:
        handler = loaded.of(task)
        context.params = params = handler.parse(task["params"])
        output, metrics = calling.check(handler.call(context, params))
        _limit_memory(None)  # orjson crashes if an allocation fails; what it needs is bounded by the size of an output
        encoded = calling.encode(output)
    except GiveBack:
        return {"kind": "returned"}
    except BaseException as error:  # everything that a handler raises is a result, sys.exit() included
        _limit_memory(None)  # reporting that memory ran out needs memory
        return {"kind": "failed", "error": _describe_failure(error, task["memory_mb"])}
    payload = {"output": orjson.Fragment(encoded)} if len(encoded) <= INLINE_BYTES else {"attached": encoded}
    return {"kind": "done", "metrics": metrics or {}, **payload}


def _describe_failure(error: BaseException, memory_mb: int) -> dict[str, Any]:
    facts = describe(error)
    if isinstance(error, MemoryError):
        details = "" if facts["message"] == facts["type"] else f": {facts['message']}"
        facts["message"] = f"the handler needs more memory than its limit of {memory_mb} MB{details}"
        facts["hint"] = "raise `memory_mb` where the handler is registered, or WORKER_MEMORY_MB"
    return facts


class LoadedHandlers:
    """Handlers that are loaded in this process."""

    def __init__(self, process_state: ProcessState) -> None:
        self._process_state = process_state
        self._loaded: dict[str, calling.ResolvedHandler] = {}

    def of(self, task: Frame) -> calling.ResolvedHandler:
        target = task["target"]
        if target not in self._loaded:
            self._loaded[target] = calling.resolve(Registration(task["handler"], target, is_async=False))
            self._process_state.save()  # state that its modules set at import is kept for all of its tasks
        return self._loaded[target]


def _limit_memory(megabytes: int | None) -> None:
    """Limit the memory of this process. The soft limit is set, because each handler may have its own limit."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)  # infinite, unless a handler has lowered it
    limit = hard_limit if megabytes is None else megabytes * _MB
    resource.setrlimit(
        resource.RLIMIT_DATA, (limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit), hard_limit)
    )


class Usage:
    """Resources of one task: CPU time including the programs it started, and peak memory."""

    def __init__(self) -> None:
        self._cpu_before = _cpu_seconds()
        _reset_peak()

    def metrics(self) -> dict[str, Any]:
        status = _memory_mb()
        return {
            "cpu_seconds": round(_cpu_seconds() - self._cpu_before, 4),
            "peak_mb": status.get("VmHWM"),
            "resident_mb": status.get("VmRSS"),
        }


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not supported on every system; the peak is then that of all tasks of the process
        return


def _memory_mb() -> dict[str, float]:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith(("VmHWM", "VmRSS")))
    return {name: round(int(value.split()[0]) / 1024, 1) for name, value in pairs}
