"""Start of a child: `python -m dagmaster.worker.supervisor CHANNEL LIFELINE`.

A child consists of two processes, forked before anything large is imported. The worker starts the supervisor. It adopts
every descendant whose parent dies, and kills all of them when the runner has ended or when the worker's end of the
lifeline is closed, because the worker closed it or died. So no process that a handler starts outlives the handler, not
even one in another session. When all are dead, the supervisor confirms it on the lifeline; if it cannot, the worker
searches for them itself. The runner imports the handlers and runs tasks.

    worker ── supervisor ── runner ── programs of the handler
                   ╰── programs whose parent has ended
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

ALL_DEAD = b"."  # the supervisor's confirmation that every process has ended


def main(channel: int, lifeline: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _adopt_orphans()
    # Wakes a supervisor that a handler has stopped, so that it sees the lifeline close.
    _signal_when_parent_dies(signal.SIGCONT)
    supervisor = os.getpid()
    runner = os.fork()
    if runner:
        os.close(channel)
        _supervise(runner, lifeline)
    else:
        os.close(lifeline)
        _run(channel, supervisor)


# The runner


def _run(channel: int, supervisor: int) -> None:
    os.setsid()  # a handler that signals its process group must not reach the supervisor
    _die_with_parent(supervisor)
    # Programs that a handler starts must not hold the channel open.
    os.set_inheritable(channel, False)
    from dagmaster.worker import child_main

    child_main.serve(channel)


def _die_with_parent(parent: int) -> None:
    _signal_when_parent_dies(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the signal was set up
        os._exit(1)


def _signal_when_parent_dies(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


# The supervisor


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _supervise(runner: int, lifeline: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake = _wake_on_deaths()
    status = _reap()[1].get(runner)
    while status is None:
        ready, _, _ = select.select([lifeline, wake], [], [])
        if lifeline in ready:  # the worker has ended or asks for the end
            break
        os.read(wake, 4096)
        status = _reap()[1].get(runner)
    status = _kill_all(runner, status)
    with contextlib.suppress(OSError):  # the worker has ended
        os.write(lifeline, ALL_DEAD)
    _exit_like(status)


def _wake_on_deaths() -> int:
    """A descriptor that becomes readable when a child process ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _reap() -> tuple[bool, dict[int, int]]:
    """Reap ended child processes. Returns whether others still run, and the wait status of each ended one."""
    statuses: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True, statuses
            statuses[pid] = status
    except ChildProcessError:
        return False, statuses


def _kill_all(runner: int, status: int | None) -> int | None:
    """Kill until no child process is left. Returns the wait status of the runner.

    Only direct children are killed. The children of a killed process are adopted here, and a pid that has not been
    reaped cannot belong to another process.
    """
    pause_seconds = 0.001
    while True:
        for pid in _children(runner if status is None else None):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        has_live_children, dead = _reap()
        status = dead.get(runner, status)
        if not has_live_children:
            return status
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, 0.05) if not dead else 0.001


def _children(runner: int | None) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # not available on every system
        return [runner] if runner else []


def _exit_like(status: int | None) -> None:
    """Exit as the runner did, so that the worker sees its exit code or signal."""
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if status is not None else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
