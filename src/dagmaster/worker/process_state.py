"""Process state that a handler may change, restored before the next task runs in the same process.

Working directory, umask, environment, import path, standard streams, signal handlers and timers are restored. Changed
resource limits or priority, removed modules and processes that still run cannot be undone: such a process runs no other
task. Changes that modules make while a handler is imported are kept, because they happen once and apply to all of its
tasks.
"""

import os
import resource
import signal
import sys
from typing import cast

_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


class ProcessState:
    """The state of this process's main thread when it was last saved."""

    def __init__(self) -> None:
        self._folder = -1
        self.save()

    def save(self) -> None:
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
        self._search_entries = [list(entries) for entries in self._search]
        self._modules = dict(sys.modules)
        self._limits_and_priority = _limits_and_priority()
        self._processes = _processes()

    def restore(self) -> bool:
        """Restore the saved state. Returns False if something cannot be restored: the process then runs no other
        task."""
        try:
            self._restore()
            return self._is_restored()
        except Exception:  # the handler may have broken anything
            return False

    def _restore(self) -> None:
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        os.fchdir(self._folder)  # by descriptor, because its path may be deleted
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
        for entries, saved in zip(self._search, self._search_entries, strict=True):
            cast("list[object]", entries)[:] = saved

    def _is_restored(self) -> bool:
        return (
            not any(stream.closed for stream in self._streams)
            and self._limits_and_priority == _limits_and_priority()
            and self._modules.items() <= sys.modules.items()
            and self._processes >= _processes()
        )


def _limits_and_priority() -> list[object]:
    """Resource limits, priority and CPU affinity. The soft memory limit differs by task and is left out."""
    limits = [resource.getrlimit(kind) for kind in _LIMITS if kind != resource.RLIMIT_DATA]
    _, max_memory = resource.getrlimit(resource.RLIMIT_DATA)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return [limits, max_memory, os.getpriority(os.PRIO_PROCESS, 0), affinity]


def _processes() -> set[bytes]:
    """Processes that this one started, and their orphans, which its supervisor has adopted."""
    supervisor = os.getppid()
    try:
        own = os.listdir("/proc/self/task")  # noqa: PTH208 - called after every task, so speed matters
        started = _children(f"/proc/{supervisor}/task/{supervisor}").union(
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
