"""Start of a child: `python -m dagmaster.worker.supervisor CHANNEL LIFELINE`.

Two processes, forked while they are small. The keeper, which is the one that the worker started, takes in every process
whose parent dies, and ends them all when the runner has ended, or when the worker's end of the lifeline is closed, be it on
purpose or by the worker's death. So nothing that a handler starts outlives it, whatever session it has put itself in. Once
all are dead it says so on the lifeline; where it can't, the worker looks for them itself. The runner imports what is heavy
and serves.

    worker ── keeper ── runner ── programs of the handler
                 ╰── … and those whose parent has ended
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

ALL_DEAD = b"."  # the keeper's last word


def main(channel: int, lifeline: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _adopt_orphans()
    _at_the_death_of_its_parent(signal.SIGCONT)  # a keeper that a handler has stopped shall see the lifeline close
    keeper = os.getpid()
    runner = os.fork()
    if runner:
        os.close(channel)
        _keep(runner, lifeline)
    else:
        os.close(lifeline)
        _run(channel, keeper)


# The runner


def _run(channel: int, keeper: int) -> None:
    os.setsid()  # a handler that signals its group shall not reach the keeper
    _die_with(keeper)
    # Programs that a handler starts must not hold the channel open.
    os.set_inheritable(channel, False)
    from dagmaster.worker import child_main

    child_main.serve(channel)


def _die_with(parent: int) -> None:
    _at_the_death_of_its_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def _at_the_death_of_its_parent(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


# The keeper


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _keep(runner: int, lifeline: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake = _wake_on_deaths()
    status = _bury()[1].get(runner)
    while status is None:
        ready, _, _ = select.select([lifeline, wake], [], [])
        if lifeline in ready:  # the worker is gone, or wants this to end
            break
        os.read(wake, 4096)
        status = _bury()[1].get(runner)
    status = _end_all(runner, status)
    with contextlib.suppress(OSError):  # the worker is gone
        os.write(lifeline, ALL_DEAD)
    _end_like(status)


def _wake_on_deaths() -> int:
    """A descriptor that becomes readable when a child process ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _bury() -> tuple[bool, dict[int, int]]:
    """Take leave of the dead. Whether others live, and how these ended."""
    statuses: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True, statuses
            statuses[pid] = status
    except ChildProcessError:
        return False, statuses


def _end_all(runner: int, status: int | None) -> int | None:
    """Kill until nobody is left; the wait status of the runner.

    Only our own children are killed: who dies leaves its own to us, and no number that we have not taken leave of can mean
    someone else.
    """
    pause_seconds = 0.001
    while True:
        for pid in _children(runner if status is None else None):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        some_live, dead = _bury()
        status = dead.get(runner, status)
        if not some_live:
            return status
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, 0.05) if not dead else 0.001


def _children(runner: int | None) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # not on every system
        return [runner] if runner else []


def _end_like(status: int | None) -> None:
    """The worker shall see how the runner ended."""
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL can't be set
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if status is not None else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
