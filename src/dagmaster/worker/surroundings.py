"""What a handler may change of its process for itself: put back before the next task, which runs in the same one.

Folder, umask, environment, standard streams, signal handlers and the alarm clock. What modules change while a handler is
imported stays: it happens once, and belongs to all of its tasks.
"""

import os
import signal
import sys

_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM,
    signal.SIGTERM, signal.SIGCHLD, signal.SIGVTALRM, signal.SIGPROF,
)  # fmt: skip


class Surroundings:
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

    def restore(self) -> None:
        os.fchdir(self._folder)  # by descriptor: its name may be gone
        os.umask(self._umask)
        sys.stdin, sys.stdout, sys.stderr = self._streams
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        signal.alarm(0)
        for number, handler in self._handlers:
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    @property
    def are_whole(self) -> bool:
        """Whether they can be put back: a closed stream can't."""
        return not any(stream.closed for stream in self._streams)
