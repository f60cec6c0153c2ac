"""Runs plain handlers in warm, reused child processes that can be killed.

A child is a runner of handlers and its supervisor, which kills everything that the handler started once the runner has
ended for any reason (see `supervisor`). A timeout kills it with SIGKILL, because a hung C call reacts to nothing else.
If the supervisor itself was stopped or killed, the worker kills it, and uses a marker to find the processes it leaves.

    start ─▶ idle ─▶ busy ─▶ idle …      after `recycle_after` tasks, or if it is too large: killed and replaced
                       └──▶ killed       timed out, ignored a stop, died, sent an invalid frame
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from dagmaster import faults
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage
from dagmaster.observe import log
from dagmaster.worker import frames, orphans
from dagmaster.worker.child_run import ChildRun, error_of_death, run_frame
from dagmaster.worker.context import TaskContext
from dagmaster.worker.frames import BrokenChannel, Frame
from dagmaster.worker.outcome import Outcome, failed
from dagmaster.worker.supervisor import ALL_DEAD

START_SECONDS = 60.0
DEATH_SECONDS = 10.0
SUPERVISOR_SECONDS = 3.0  # how long a supervisor may take to kill all processes; normally milliseconds
DRAIN_SECONDS = 0.2  # time to read what a process wrote before it ended

_log = log.get("worker")


class Child:
    """One child process and the channel to it."""

    is_private = True  # no other process can read the channel

    def __init__(
        self, process: asyncio.subprocess.Process, streams: "_Streams", lifeline: socket.socket, mark: str
    ) -> None:
        self.process = process  # the supervisor
        self.pid = process.pid  # replaced by the pid of the runner when that is ready
        self.tasks_run = 0
        self.resident_mb = 0.0
        self.peak_mb: float | None = None
        self._streams = streams
        self._lifeline = lifeline
        self._mark = mark
        self._end = asyncio.create_task(self._close_at_the_end(), name="end of a child")

    @classmethod
    async def start(cls) -> "Child":
        local_socket, remote_socket = socket.socketpair()
        lifeline, remote_lifeline = socket.socketpair()
        lifeline.setblocking(False)
        mark = uuid4().hex
        streams = _Streams(*await asyncio.open_connection(sock=local_socket))
        try:
            process = await _spawn(remote_socket.fileno(), remote_lifeline.fileno(), mark)
        except BaseException:
            streams.writer.close()
            lifeline.close()
            raise
        finally:
            remote_socket.close()
            remote_lifeline.close()
        child = cls(process, streams, lifeline, mark)
        try:
            await child._wait_until_ready()
        except BaseException:
            await asyncio.shield(child.kill())
            raise
        return child

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.send({"kind": "start", "path": sys.path, "crash_point": faults.armed()})
                ready, _ = await self.receive()
        except (TimeoutError, BrokenChannel) as error:
            raise Unavailable("a child process did not start", code="worker.child-not-started") from error
        self.pid = ready["pid"]

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None and not self._streams.reader.at_eof()

    def write(self, frame: Frame) -> None:
        """Write without waiting. `receive` notices if the child has ended."""
        self._streams.writer.write(frames.pack(frame))

    async def send(self, frame: Frame) -> None:
        self.write(frame)
        with contextlib.suppress(ConnectionError):
            await self._streams.writer.drain()

    async def receive(self) -> tuple[Frame, int]:
        return await frames.read(self._streams.reader)

    async def receive_packed(self) -> frames.Packed:
        """The next frame as it was sent, to be forwarded."""
        return await frames.read_packed(self._streams.reader)

    def write_packed(self, body: bytes) -> None:
        self._streams.writer.write(frames.with_length(body))

    async def kill(self) -> None:
        """Kill the child and all processes it started, and wait until they are dead."""
        self.end_now()
        try:
            await self._await_end(SUPERVISOR_SECONDS)
            if not self._are_all_dead():
                await self._kill_by_mark()
        except TimeoutError:
            _log.error("a killed child process does not end; it hangs in the kernel", pid=self.pid)
        finally:
            self._end.cancel()
            self._lifeline.close()
            self._streams.writer.close()

    def end_now(self) -> None:
        """Ask its supervisor to kill it, without waiting. Safe from another thread."""
        with contextlib.suppress(OSError):  # the child has ended
            self._lifeline.shutdown(socket.SHUT_WR)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)

    async def _await_end(self, seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self.process.wait())], timeout=seconds)

    def _are_all_dead(self) -> bool:
        try:
            return self._lifeline.recv(1) == ALL_DEAD
        except OSError:
            return False

    async def _kill_by_mark(self) -> None:
        """Kill by marker, because the supervisor was stopped, or was killed before it had killed all processes."""
        _log.warning("a child process has lost its supervisor; killing all processes it started", pid=self.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        async with asyncio.timeout(DEATH_SECONDS):
            await self.process.wait()
            await asyncio.to_thread(orphans.kill_marked, self._mark, {self.process.pid, self.pid}, DEATH_SECONDS)

    async def _close_at_the_end(self) -> None:
        """Close the channel when the child has ended; a forked copy of the runner may still hold it open."""
        await self.process.wait()
        await asyncio.sleep(DRAIN_SECONDS)
        self._streams.writer.transport.abort()

    async def death(self, memory_mb: int) -> Unavailable:
        """The error of a child that ended before its task."""
        await self.kill()
        return error_of_death(self.process.returncode, self.peak_mb, memory_mb)

    def sample_peak(self) -> None:
        """Record peak memory, in case the process is killed because of it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            self.peak_mb = round(int(status.split("VmHWM:")[1].split()[0]) / 1024, 1)


@dataclass(frozen=True, slots=True)
class _Streams:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def _spawn(channel: int, lifeline: int, mark: str) -> asyncio.subprocess.Process:
    # -P: the child's import path comes from the worker, not from the working directory.
    arguments = ("-u", "-P", "-m", "dagmaster.worker.supervisor", str(channel), str(lifeline))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        pass_fds=(channel, lifeline),
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=2,  # what a handler prints goes to the log
        env=os.environ | {orphans.MARK: mark},
    )


class Pool:
    """Runs plain handlers, each in a child process; starts children when needed and reuses them."""

    slots: int | None = None  # as many as WORKER_PROCESSES
    is_on_this_machine = True

    def __init__(self, *, memory_mb: int, recycle_after: int = 100, cancel_grace_seconds: float = 5.0) -> None:
        self._memory_mb = memory_mb
        self._recycle_after = recycle_after
        self._grace_seconds = cancel_grace_seconds
        self._idle: list[Child] = []
        self._busy: dict[Child, str] = {}
        self._is_closed = False

    @property
    def children(self) -> list[dict[str, Any]]:
        """Every child and the task it runs, if any. Safe from other threads: copying is atomic."""
        busy, idle = tuple(self._busy.items()), tuple(self._idle)
        return [
            {"pid": child.pid, "task_id": task_id, "tasks_run": child.tasks_run}
            for child, task_id in [*busy, *((child, None) for child in idle)]
        ]

    async def start(self, _on_more_slots: Callable[[], None] | None = None, /) -> None:
        """Children are started when tasks need them. The number of slots does not change."""

    def details(self) -> dict[str, Any]:
        return {"executor": "processes"}

    async def run(
        self, registration: Registration, task: TaskMessage, timeout_seconds: float, context: TaskContext
    ) -> Outcome:
        """Run a task until it ends or is killed. When this call is cancelled, the child is killed before it returns."""
        memory_mb = registration.memory_mb or self._memory_mb
        try:
            child = await self.take()
        except (DagmasterError, OSError) as error:
            return failed(
                Unavailable(f"no process for the handler could be started: {error}", code="worker.child-not-started")
            )
        child_run = ChildRun(child, context, timeout_seconds, self._grace_seconds, memory_mb)
        self._busy[child] = task.task_id
        try:
            return await child_run.run(run_frame(registration, task, memory_mb, context.traceparent))
        finally:
            del self._busy[child]
            await self.release(child, is_clean=child_run.is_clean, memory_mb=memory_mb)

    async def close(self) -> None:
        self._is_closed = True
        await self.end_idle()

    def end_now(self) -> None:
        """Ask for the end of every child without waiting. Safe from another thread."""
        for child in (*self._busy, *self._idle):
            child.end_now()

    async def take(self) -> Child:
        """An idle child, or a new one."""
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            await child.kill()
        return await Child.start()

    async def release(self, child: Child, *, is_clean: bool, memory_mb: int) -> None:
        """Keep a child for the next task if it may serve again. Otherwise kill it."""
        if is_clean and self._may_serve_again(child, memory_mb):
            self._idle.append(child)
        else:
            await asyncio.shield(child.kill())

    async def end_idle(self) -> None:
        """End the children that run no task."""
        children, self._idle = self._idle, []
        await asyncio.gather(*(child.kill() for child in children))

    def _may_serve_again(self, child: Child, memory_mb: int) -> bool:
        # A process that stays large would leave the next handler less memory than its limit.
        is_small = child.resident_mb < memory_mb / 2
        return child.is_alive and is_small and child.tasks_run < self._recycle_after and not self._is_closed
