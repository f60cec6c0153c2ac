"""What a handler may change of its process for itself: put back before the next task, which runs in the same one.

Folder, umask, environment, import path, standard streams, signal handlers and timers are put back. Limits, priority, modules
that are gone and processes that still run are not: then the process serves no other task. What modules change while a
handler is imported stays: it happens once, and belongs to all of its tasks.
"""

import os
import resource
import signal
import sys
from typing import cast

_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM,
    signal.SIGTERM, signal.SIGCHLD, signal.SIGVTALRM, signal.SIGPROF,
)  # fmt: skip
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


class ProcessState:
    """Of the main thread of this process, as they were when last noted."""

    def __init__(self) -> None:
        self._folder = -1
        self.note()

    def note(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = os.open(".", os.O_RDONLY)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._environment = dict(os.environ)
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._handlers = [(number, signal.getsignal(number)) for number in _SIGNALS]
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._search = (sys.path, sys.meta_path, sys.path_hooks)
        self._places = [list(places) for places in self._search]
        self._modules = dict(sys.modules)
        self._standing = _standing()
        self._processes = _processes()

    def put_back(self) -> bool:
        """Put back what can be. False when something can't, so that this process shall serve no other task."""
        try:
            self._restore()
            return self._are_whole()
        except Exception:  # whatever the handler did to be in the way
            return False

    def _restore(self) -> None:
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        os.fchdir(self._folder)  # by descriptor: its name may be gone
        os.umask(self._umask)
        sys.stdin, sys.stdout, sys.stderr = self._streams
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        for number, handler in self._handlers:
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        sys.path, sys.meta_path, sys.path_hooks = self._search
        for places, noted in zip(self._search, self._places, strict=True):
            cast("list[object]", places)[:] = noted

    def _are_whole(self) -> bool:
        return (
            not any(stream.closed for stream in self._streams)
            and self._standing == _standing()
            and self._modules.items() <= sys.modules.items()
            and self._processes >= _processes()
        )


def _standing() -> list[object]:
    """What the system grants this process. The soft limit of its memory differs by task."""
    limits = [resource.getrlimit(kind) for kind in _LIMITS if kind != resource.RLIMIT_DATA]
    _, most_memory = resource.getrlimit(resource.RLIMIT_DATA)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return [limits, most_memory, os.getpriority(os.PRIO_PROCESS, 0), affinity]


def _processes() -> set[bytes]:
    """Those that this one has started, and their orphans, which its keeper has taken in."""
    keeper = os.getppid()
    try:
        own = os.listdir("/proc/self/task")  # noqa: PTH208 - after every task: the short way
        started = _children(f"/proc/{keeper}/task/{keeper}").union(
            *(_children(f"/proc/self/task/{thread}") for thread in own)
        )
    except FileNotFoundError:  # not on every system
        return set()
    return started - {b"%d" % os.getpid()}


def _children(thread: str) -> set[bytes]:
    descriptor = os.open(f"{thread}/children", os.O_RDONLY)
    try:
        return set(os.read(descriptor, 65536).split())
    finally:
        os.close(descriptor)
