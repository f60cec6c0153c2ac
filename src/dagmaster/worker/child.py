"""Start of a child process: `python -m dagmaster.worker.child CHANNEL LIFELINE PARENT`.

Arranges first that nothing outlives the worker, then imports what is heavy and serves. Two arrangements, since neither
suffices alone: the kernel kills this process when its parent dies (even while a C call holds the interpreter's lock),
and a guard, forked while the process is still small, kills the whole group when the worker's end of the lifeline
closes: that takes along whatever programs a handler has started.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(channel: int, lifeline: int, parent: int) -> None:
    _die_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard = _start_guard(channel, lifeline)
    os.close(lifeline)
    # Programs that a handler starts must not hold the channel open.
    os.set_inheritable(channel, False)
    from dagmaster.worker import inside

    inside.serve(channel, guard)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def _start_guard(channel: int, lifeline: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.close(channel)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(lifeline, 1)  # returns when the worker is gone
    os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
