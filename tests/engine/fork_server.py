"""Start `python -m MODULE …` many times without importing the package each time, which takes longer than most tests.

A server process imports what orchestrators and workers import. For each start it forks: the child gets an environment,
a working folder, a log and a session of its own, and runs the module as its main program. It is a real process, which
can be killed and frozen, with children of its own. Like every process of a fleet, it is killed with its parent, the
server. The server itself does not ask the kernel for that: it would be killed when the thread that started it ends. It
ends when the test run has closed its channel.

    tests ── server (python -m tests.engine.fork_server FD)
               ├── orchestrator
               ╰── worker ── …

`/proc/PID/environ` and `/proc/PID/cmdline` of such a process are those of the server. Programs that it starts have its
own environment.
"""

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "dagmaster.cli.main",
    "dagmaster.cli.roles",
    "dagmaster.roles.lifecycle",
    "dagmaster.roles.orchestrator",
    "dagmaster.roles.worker",
    "tests.engine.roles",
)
_REQUEST_BYTES = 200_000
_PR_SET_PDEATHSIG = 1
# Loaded here, since between fork and exec nothing may be imported.
_LIBC = ctypes.CDLL(None)


def die_with(parent: int) -> Callable[[], None]:
    """A function with which a child asks the kernel to kill it when its parent ends."""

    def set_death_signal() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


# --- used by tests ---------------------------------------------------------------------------------------------------


class ForkedProcess:
    """The part of `subprocess.Popen` that a fleet uses."""

    def __init__(self, pid: int, exit_code: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit_code = exit_code  # the server sends the code and closes its end
        self._ended = select.poll()  # unlike select.select, for any number of open files
        self._ended.register(exit_code, select.POLLIN)

    def poll(self) -> int | None:
        if self.returncode is None and self._ended.poll(0):
            sent = self._exit_code.recv(16)
            self.returncode = int(sent) if sent else -signal.SIGKILL  # it was killed together with the server
            self._exit_code.close()
        return self.returncode

    def send_signal(self, which: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self._ended.poll(timeout * 1000)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code


def start(module: Sequence[str], environment: Mapping[str, str], folder: Path, log: int) -> ForkedProcess:
    """Run a module with its arguments as `python -m` would. Its output goes to the open file `log`."""
    return _server(os.getpid()).start(module, environment, folder, log)


class _Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engine.fork_server", str(theirs.fileno())],
                env={**_inherited(), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, module: Sequence[str], environment: Mapping[str, str], folder: Path, log: int) -> ForkedProcess:
        request = {"module": list(module), "environment": dict(environment), "folder": str(folder)}
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [log, theirs.fileno()])
            response = self._channel.recv(16)
        assert response, "the fork server has ended"
        return ForkedProcess(int(response), ours)


@cache
def _server(_pid: int) -> _Server:
    """The fork server of this process of the test run."""
    return _Server()


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


# --- the server ------------------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for each request. Returns in each child, with its request."""
    wakeup, alarm = socket.socketpair()
    for end in (wakeup, alarm):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    children: dict[int, socket.socket] = {}  # by process id: the socket to which its exit code is sent
    while True:
        readable, _, _ = select.select([channel, wakeup], [], [])
        if wakeup in readable:
            wakeup.recv(4096)
            _report_exit_codes(children)
        if channel not in readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        log, exit_code = descriptors
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(server)()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(log, 1)
            os.dup2(log, 2)
            for end in (channel, wakeup, alarm, *children.values()):
                end.close()
            for descriptor in descriptors:
                os.close(descriptor)
            return dict(json.loads(message))
        os.close(log)
        children[pid] = socket.socket(fileno=exit_code)
        channel.send(str(pid).encode())


def _report_exit_codes(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as exit_code, suppress(OSError):  # the test may have ended
            exit_code.send(str(os.waitstatus_to_exitcode(status)).encode())


def run(request: dict[str, Any]) -> None:
    """Run the requested module as `python -m` would."""
    module, *arguments = request["module"]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    sys.path[:] = [*dict.fromkeys([request["folder"], *first, *sys.path])]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    for module in PRELOADED:
        __import__(module)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
