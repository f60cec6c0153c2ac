"""Ends a worker whose event loop hangs: an async handler that blocks in a C call must die too.

The loop ticks; a thread takes samples and counts those between which no tick came. It counts its own samples, not time,
so that a process which was stopped as a whole (SIGSTOP, a suspended machine) isn't taken for hung: its thread slept as
well. A call that also keeps the interpreter's lock stops the thread too. For that case a timer of processor time, set
anew at each tick, lets the kernel end the process, with a traceback; a stopped process uses none.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import threading
import time

from dagmaster import log

EXIT_CODE = 70
_SAMPLES = 20
_STDERR = 2

_log = log.get("worker")


class Watchdog:
    """Use as a context manager, inside the loop to watch."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._period = min(patience_seconds / _SAMPLES, 1.0)
        self._ticks = 0
        self._over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "Watchdog":
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # no usable standard error
            faulthandler.register(signal.SIGPROF, file=_STDERR, all_threads=True, chain=True)
        self._tick()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer:
            self._timer.cancel()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)

    def _tick(self) -> None:
        self._ticks += 1
        # Twice the patience: all threads' processor time counts.
        signal.setitimer(signal.ITIMER_PROF, 2 * self._patience)
        self._timer = asyncio.get_running_loop().call_later(self._period / 2, self._tick)

    def _watch(self) -> None:
        seen, silent = 0, 0
        while not self._over.is_set():
            time.sleep(self._period)
            silent = silent + 1 if self._ticks == seen else 0
            seen = self._ticks
            if silent * self._period > self._patience:
                self._end()

    def _end(self) -> None:
        if self._over.is_set():
            return
        _log.error("the worker's loop hangs in a handler; ending the process", silent_seconds=self._patience)
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        os._exit(EXIT_CODE)
