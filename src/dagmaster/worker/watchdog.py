"""Deals with an async handler that blocks the worker's loop, so that it alone pays for it.

The loop ticks; a thread takes samples and counts those between which neither a tick came nor the step changed that the
loop is at. It counts its own samples, not time, so that a process which was stopped as a whole (SIGSTOP, a suspended
machine) isn't taken for hung: its thread slept as well. Samples that could not be taken while the loop used the processor
count too. Three things happen, in parts of its patience, which is a lease:

    a half           a signal raises Blocked in the very step that hangs: the task fails, the worker goes on. It ends what
                     waits in Python, or in a system call made from there: sleep, recv, a program, a lock, a regex.
    soon after       a C call that hears no signal is still there. From the thread, with a connection of its own, the task
                     is reported failed and all others are given back, before their leases lapse; the process ends.
    all of it        it is no handler's step that hangs, or there was no way to give anything back: the process ends.

What a handler has left in the loop is its own, also when it has ended.

A call that also keeps the interpreter's lock stops the thread. For that case there are two timers of processor time, set
anew at each tick: the first sends the same signal, which some such calls look for (regexes, large integers), early, since
on a busy machine processor time passes slowly; the second lets the kernel end the process, with a traceback. A stopped
process uses no processor time.
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
_INTERRUPT, _RESCUE = 0.5, 0.6  # of the patience; when it began, a lease was up to a quarter old already
_LOOK = 0.25  # of the patience, in processor time: when a step that lets no sample be taken is looked at
_SHARE = 4  # how many may share the processor with a loop that hangs, and its samples still be counted in full
_STEP = asyncio.Handle._run.__code__

Rescue = Callable[[TaskContext, HandlerFailed], Coroutine[Any, Any, None]]

_log = log.get("worker")


class Blocked(BaseException):
    """Raised in a handler that blocks the loop. No Exception: those are what handlers catch and go on after."""

    def __init__(self, error: HandlerFailed) -> None:
        super().__init__(error.message)
        self.error = error


def _blocked(context: TaskContext, seconds: float) -> HandlerFailed:
    return HandlerFailed(
        f"handler '{context.task.handler}' blocked the worker's event loop for {seconds:.3g} s",
        code="handler.blocked-loop",
        hint="make it a plain `def`, which runs in a process of its own, or await what takes long",
        handler=context.task.handler,
    )


class Watchdog:
    """Use as a context manager, inside the loop to watch, in the main thread.

    `rescue` is told whose handler blocks the loop for good, in a loop of another thread, and gives the other tasks back.
    """

    def __init__(self, patience_seconds: float, rescue: Rescue | None = None) -> None:
        self._patience = patience_seconds
        self._rescue = rescue
        self._period = min(patience_seconds / _SAMPLES, 1.0)
        self._ticks = 0
        self._over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = threading.get_ident()
        self._stuck: tuple[asyncio.Handle, float] | None = None  # a step that hangs, and since how many seconds
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
        # All threads' processor time counts: the last means has twice the patience.
        self._set_timers(_LOOK * self._patience, 2 * self._patience)
        self._timer = asyncio.get_running_loop().call_later(self._period / 2, self._tick)

    def _set_timers(self, interrupt_seconds: float, end_seconds: float) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, interrupt_seconds, self._period if interrupt_seconds else 0)
        signal.setitimer(signal.ITIMER_PROF, end_seconds)

    # In the thread

    def _watch(self) -> None:
        ticks, step, silent = 0, None, 0.0
        clock = time.pthread_getcpuclockid(self._thread_id)
        used = time.clock_gettime(clock)
        while not self._over.is_set():
            time.sleep(self._period)
            ticks_before, ticks = ticks, self._ticks
            step_before, step = step, _step(sys._current_frames().get(self._thread_id))
            used_before, used = used, time.clock_gettime(clock)
            now = time.monotonic()
            silent = silent + self._period if ticks == ticks_before and step is step_before else 0.0
            # Whoever kept this thread from its samples, and used the processor, is still at it.
            missed = min(now - self._sampled_at, _SHARE * (used - used_before)) - self._period
            silent += max(0.0, missed)
            self._sampled_at = now
            self._act(step, silent)

    def _act(self, step: asyncio.Handle | None, seconds: float) -> None:
        self._stuck = None
        culprit = _handling(step)
        if step is not None and culprit is not None and not self._over.is_set():
            if seconds > _INTERRUPT * self._patience:
                self._stuck = (step, seconds)
                signal.pthread_kill(self._thread_id, signal.SIGVTALRM)
            if seconds > _RESCUE * self._patience and self._rescue:
                self._give_back(self._rescue(culprit, _blocked(culprit, seconds)))
                self._end(seconds)
        if seconds > self._patience:
            self._end(seconds)

    def _give_back(self, rescue: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(asyncio.wait_for(rescue, (1 - _RESCUE) * self._patience))
        except Exception as error:  # whatever it is: the leases lapse, and the process must end
            _log.error("tasks could not be given back; their leases will lapse", error=str(error))

    def _end(self, seconds: float) -> None:
        if self._over.is_set():
            return
        _log.error("the worker's loop hangs; ending the process", silent_seconds=round(seconds, 1))
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        os._exit(EXIT_CODE)

    # In the step that hangs

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is _STEP:
            return  # it has just ended
        step = _step(frame)
        culprit = _handling(step)
        if culprit is None:
            return
        if self._stuck is not None and self._stuck[0] is step:
            raise Blocked(_blocked(culprit, self._stuck[1]))
        seconds = time.monotonic() - self._sampled_at
        if seconds > _INTERRUPT * self._patience:
            # The thread could not run: this very step has kept the interpreter's lock.
            raise Blocked(_blocked(culprit, seconds))


def _step(frame: FrameType | None) -> asyncio.Handle | None:
    """What the loop is at, from a frame of its thread. None while it waits."""
    while frame is not None:
        if frame.f_code is _STEP:
            step: asyncio.Handle = frame.f_locals["self"]
            return step
        frame = frame.f_back
    return None


def _handling(step: asyncio.Handle | None) -> TaskContext | None:
    """Whose handler a step belongs to."""
    return step._context.get(HANDLING) if step is not None else None  # type: ignore[attr-defined]
