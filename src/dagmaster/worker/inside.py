"""The inside of a child process: takes one task at a time, runs its handler in the main thread, answers.

A second thread reads the channel, so that cancel and shutdown are seen while the handler computes.
"""

import itertools
import os
import queue
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from dagmaster.database.ledger import ChildResult
from dagmaster.errors import DagmasterError, Fenced, InvalidRequest, NotFound, Unavailable
from dagmaster.handlers import calling
from dagmaster.handlers.context import GiveBack, IsValid, TaskLogger
from dagmaster.handlers.registry import Registration
from dagmaster.worker.frames import BrokenChannel, Channel, Frame
from dagmaster.worker.outcome import describe

_MB = 1024 * 1024
OWN_THREADS = 2  # the main one, and the reader of the channel
_REFUSALS: dict[str, type[DagmasterError]] = {kind.__name__: kind for kind in (Fenced, InvalidRequest, NotFound)}


def serve(descriptor: int, guard: int) -> None:
    """Run tasks until the worker closes the channel."""
    channel = Channel(socket.socket(fileno=descriptor))
    inbox = Inbox(channel)
    start = channel.receive()
    sys.path[:] = start["path"]  # handlers are found where the worker finds them
    threading.Thread(target=inbox.read, name="channel", daemon=True).start()
    channel.send({"kind": "ready", "guard": guard})
    plans: dict[str, calling.Plan] = {}
    me = os.getpid()
    while True:
        task = inbox.next_task()
        answer = _answer_to(task, inbox, plans)
        if os.getpid() != me:
            os._exit(0)  # a copy that the handler forked: the answer is not its to give
        # A thread that the handler left behind would go on beside the next task.
        is_reusable = threading.active_count() <= OWN_THREADS
        channel.send({**answer, "task": task["task_id"], "is_reusable": is_reusable})


class Inbox:
    """What the worker said and nobody has looked at yet."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.cancelled = False
        self.shutting_down = False
        self._tasks: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._answers: dict[int, queue.SimpleQueue[Frame]] = {}
        self._numbers = itertools.count(1)

    def next_task(self) -> Frame:
        return self._tasks.get()

    def ask(self, task_id: str, verb: str, **details: Any) -> Any:
        """Let the worker do something for the handler, and wait for its answer."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.SimpleQueue()
        self.channel.send({"kind": "ask", "id": number, "task": task_id, "verb": verb, **details})
        frame = answer.get()
        if error := frame.get("error"):
            raise _REFUSALS.get(frame["type"], Unavailable)(error, code=frame["code"])
        return frame["value"]

    def read(self) -> None:
        """Reader thread. When the worker is gone, so is everything we have started."""
        while True:
            try:
                frame = self.channel.receive()
            except (BrokenChannel, OSError):
                os.killpg(0, signal.SIGKILL)
                return
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        match frame["kind"]:
            case "run":
                self.cancelled = self.shutting_down = False
                self._tasks.put(frame)
            case "answer":
                self._answers.pop(frame["id"]).put(frame)
            case "cancel":
                self.cancelled = True
            case "shutdown":
                self.shutting_down = True


class ChildContext:
    """The SyncContext of a plain handler."""

    def __init__(self, inbox: Inbox, task: Frame) -> None:
        self._inbox = inbox
        self.task_id: str = task["task_id"]
        self.job_id = UUID(task["job_id"])
        self.node_id: str = task["node_id"]
        self.attempt: int = task["attempt"]
        self.retry_count: int = task["retry_count"]
        self.params: Any = task["params"]
        self.logger = TaskLogger(self._log)

    @property
    def cancelled(self) -> bool:
        return self._inbox.cancelled

    @property
    def shutting_down(self) -> bool:
        return self._inbox.shutting_down

    def give_back(self) -> GiveBack:
        return GiveBack("stopped early, as it was told")

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        self._tell({"kind": "progress", "fraction": fraction, "message": message, "counts": counts})

    def save_checkpoint(self, name: str, data: Any = None) -> None:
        self._inbox.ask(self.task_id, "save_checkpoint", name=name, data=calling.to_json(data, "checkpoint"))

    def load_checkpoint(self, is_valid: IsValid | None = None) -> tuple[str, Any] | None:
        saved = self._inbox.ask(self.task_id, "load_checkpoints")
        return next(((name, data) for name, data in reversed(saved) if is_valid is None or is_valid(name, data)), None)

    def results(self, page: int = 500) -> Iterator[ChildResult]:
        offset = 0
        while rows := self._inbox.ask(self.task_id, "results", skip=offset, page=page):
            yield from (ChildResult(**row) for row in rows)
            offset += len(rows)

    def connect(self) -> Any:
        import psycopg  # only handlers that ask for it pay for it

        return psycopg.connect(self._inbox.ask(self.task_id, "database"))

    def _log(self, level: str, event: str, facts: dict[str, Any]) -> None:
        self._tell({"kind": "log", "level": level, "event": event, "facts": facts})

    def _tell(self, frame: Frame) -> None:
        """Every frame names its task: what comes after the end of one is not taken for the next one's."""
        self._inbox.channel.send({**frame, "task": self.task_id})


def _answer_to(task: Frame, inbox: Inbox, plans: dict[str, calling.Plan]) -> Frame:
    """Run one task. The catch-all here is the far half of the one in worker/run."""
    usage = Usage()
    _limit_memory(task["memory_mb"])
    try:
        context = ChildContext(inbox, task)
        plan = _plan_of(task, plans)
        context.params = params = plan.parse(task["params"])
        returned = calling.accept(plan.call(context, params))
    except GiveBack:
        return {"kind": "returned", "metrics": usage.metrics()}
    except BaseException as error:  # whatever a handler raises is an answer, sys.exit() included
        _limit_memory(None)  # else telling that memory ran out may run out of memory
        return {"kind": "failed", "error": describe(error), "metrics": usage.metrics()}
    finally:
        sys.stdout.flush()
    metrics = usage.metrics() | (returned.metrics or {})
    return {"kind": "done", "output": orjson.Fragment(returned.encoded), "metrics": metrics}


def _plan_of(task: Frame, plans: dict[str, calling.Plan]) -> calling.Plan:
    target = task["target"]
    if target not in plans:
        plans[target] = calling.plan(Registration(task["handler"], target, is_async=False))
    return plans[target]


def _limit_memory(megabytes: int | None) -> None:
    """Limit what this process may allocate. The soft limit: a child runs handlers with different ones in turn."""
    limit = resource.RLIM_INFINITY if megabytes is None else megabytes * _MB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


class Usage:
    """What one task took: processor time with that of the programs it started, and the most memory it had at once."""

    def __init__(self) -> None:
        self._cpu_before = _cpu_seconds()
        _forget_peak()

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


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not on every system; the peak is then the process's own
        return


def _memory_mb() -> dict[str, float]:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith(("VmHWM", "VmRSS")))
    return {name: round(int(value.split()[0]) / 1024, 1) for name, value in pairs}
