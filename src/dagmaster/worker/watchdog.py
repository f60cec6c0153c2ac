"""Ends an async handler that blocks the worker's event loop, so that only its own task fails.

A timer of the loop counts ticks. A thread takes samples, and counts consecutive samples without a tick in which the
loop is still in the same callback. It counts samples, not time: a process that was stopped as a whole (SIGSTOP, a
suspended machine) does not count as hung, because the thread slept as well. Samples that were missed while the loop
used the CPU count too. There are three reactions, at fractions of the length of a lease:

    0.5              A signal raises Blocked in the callback that hangs: the task fails and the worker continues. This
                     ends any wait in Python or in a system call made by Python: sleep, recv, a lock, a regex.
    0.6              A C call does not react to signals. The thread, with its own connection, reports the task as failed
                     and returns all other tasks before their leases expire. Then the process ends.
    1.0              The callback belongs to no handler, or the tasks could not be returned: the process ends.

Callbacks that a handler left in the loop count as the handler's, even after it has ended.

A call that holds the interpreter's lock also stops the thread. For this case there are two CPU timers, reset at each
tick. The first sends the same signal, which some such calls check for (regexes, large integers); it fires early,
because on a busy machine CPU time passes slowly. With the second, the kernel ends the process, with a traceback. A
stopped process uses no CPU time.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from dagmaster.errors import HandlerFailed
from dagmaster.observe import log
from dagmaster.worker.context import HANDLING, TaskContext

EXIT_CODE = 70
_SAMPLES = 20
_STDERR = 2
_INTERRUPT, _RESCUE = 0.5, 0.6  # fractions of a lease, which may be a quarter old when the hang begins
_CHECK = 0.25  # CPU time, as a fraction of a lease, after which a callback that prevents sampling is checked
_SHARE = 4  # a hung loop that gets at least this fraction (1/4) of a CPU is still counted in full
_RUN_CALLBACK = asyncio.Handle._run.__code__

Rescue = Callable[[TaskContext, HandlerFailed], Coroutine[Any, Any, None]]

_log = log.get("worker")


class Blocked(BaseException):
    """Raised in a handler that blocks the loop. Not an Exception, because handlers catch those and continue."""

    def __init__(self, error: HandlerFailed) -> None:
        super().__init__(error.message)
        self.error = error


def _blocked(context: TaskContext, seconds: float) -> HandlerFailed:
    return HandlerFailed(
        f"handler '{context.task.handler}' blocked the worker's event loop for {seconds:.3g} s",
        code="handler.blocked-loop",
        hint="make it a plain `def`, which runs in its own process, or await calls that take long",
        handler=context.task.handler,
    )


class Watchdog:
    """Use as a context manager inside the event loop to watch, in the main thread.

    `rescue` is called in an event loop of another thread with the context of the handler that blocks the loop. It
    reports that task as failed and returns the others.
    """

    def __init__(self, lease_seconds: float, rescue: Rescue | None = None) -> None:
        self._lease_seconds = lease_seconds
        self._rescue = rescue
        self._period = min(lease_seconds / _SAMPLES, 1.0)
        self._ticks = 0
        self._over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = threading.get_ident()
        self._stuck: tuple[asyncio.Handle, float] | None = None  # the callback that hangs, and for how many seconds
        self._sampled_at = time.monotonic()
        self._handler_before: Any = None

    def __enter__(self) -> "Watchdog":
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # no usable standard error
            faulthandler.register(signal.SIGPROF, file=_STDERR, all_threads=True, chain=True)
        self._handler_before = signal.signal(signal.SIGVTALRM, self._interrupt)
        self._tick()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer:
            self._timer.cancel()
        self._set_timers(0, 0)
        faulthandler.unregister(signal.SIGPROF)
        signal.signal(signal.SIGVTALRM, self._handler_before)

    def _tick(self) -> None:
        self._ticks += 1
        # The CPU time of all threads counts, so the second timer has twice the time.
        self._set_timers(_CHECK * self._lease_seconds, 2 * self._lease_seconds)
        self._timer = asyncio.get_running_loop().call_later(self._period / 2, self._tick)

    def _set_timers(self, interrupt_seconds: float, end_seconds: float) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, interrupt_seconds, self._period if interrupt_seconds else 0)
        signal.setitimer(signal.ITIMER_PROF, end_seconds)

    # In the thread

    def _watch(self) -> None:
        ticks, callback, silent = 0, None, 0.0
        clock = time.pthread_getcpuclockid(self._thread_id)
        used = time.clock_gettime(clock)
        while not self._over.is_set():
            time.sleep(self._period)
            ticks_before, ticks = ticks, self._ticks
            callback_before, callback = callback, _callback_of(sys._current_frames().get(self._thread_id))
            used_before, used = used, time.clock_gettime(clock)
            now = time.monotonic()
            silent = silent + self._period if ticks == ticks_before and callback is callback_before else 0.0
            # A callback that used the CPU and kept this thread from sampling still runs.
            missed = min(now - self._sampled_at, _SHARE * (used - used_before)) - self._period
            silent += max(0.0, missed)
            self._sampled_at = now
            self._act(callback, silent)

    def _act(self, callback: asyncio.Handle | None, seconds: float) -> None:
        self._stuck = None
        blocking_task = _handler_context(callback)
        if callback is not None and blocking_task is not None and not self._over.is_set():
            if seconds > _INTERRUPT * self._lease_seconds:
                self._stuck = (callback, seconds)
                signal.pthread_kill(self._thread_id, signal.SIGVTALRM)
            if seconds > _RESCUE * self._lease_seconds and self._rescue:
                self._give_back(self._rescue(blocking_task, _blocked(blocking_task, seconds)))
                self._end(seconds)
        if seconds > self._lease_seconds:
            self._end(seconds)

    def _give_back(self, rescue: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(asyncio.wait_for(rescue, (1 - _RESCUE) * self._lease_seconds))
        except Exception as error:  # the process must end in any case, and the leases will expire
            _log.error("tasks could not be returned; their leases will expire", exc_info=error)

    def _end(self, seconds: float) -> None:
        if self._over.is_set():
            return
        _log.error("the worker's event loop hangs; ending the process", silent_seconds=round(seconds, 1))
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        os._exit(EXIT_CODE)

    # In the callback that hangs

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is _RUN_CALLBACK:
            return  # the callback has just ended
        callback = _callback_of(frame)
        blocking_task = _handler_context(callback)
        if blocking_task is None:
            return
        if self._stuck is not None and self._stuck[0] is callback:
            raise Blocked(_blocked(blocking_task, self._stuck[1]))
        seconds = time.monotonic() - self._sampled_at
        if seconds > _INTERRUPT * self._lease_seconds:
            # The thread could not run, because this callback held the interpreter's lock.
            raise Blocked(_blocked(blocking_task, seconds))


def _callback_of(frame: FrameType | None) -> asyncio.Handle | None:
    """The callback that the loop runs, from a frame of its thread. None while it waits."""
    while frame is not None:
        if frame.f_code is _RUN_CALLBACK:
            callback: asyncio.Handle = frame.f_locals["self"]
            return callback
        frame = frame.f_back
    return None


def _handler_context(callback: asyncio.Handle | None) -> TaskContext | None:
    """The context of the handler that a callback belongs to."""
    return callback._context.get(HANDLING) if callback is not None else None  # type: ignore[attr-defined]
