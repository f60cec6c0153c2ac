"""The roles as child processes of a local platform: started, watched, restarted, stopped.

    held ──▶ starting ──▶ running ──▶ ended by itself ──▶ waiting (longer each time) ──▶ starting
                             │                └──▶ usage error or not allowed ──▶ given up
                             └──▶ asked to stop ──▶ ended, or killed after its grace period

A held process has loaded its software, which takes longest, and waits until it is released.

Each process has its own session, so that Ctrl-C in a terminal reaches only the parent. The kernel kills it when the
parent dies, for whatever reason.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

Say = Callable[[str], None]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
# Loaded here, because nothing may be imported between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.5, 15.0
_HEALTHY_AFTER_SECONDS = 20.0
# The exit codes for a usage error and for "not allowed": the process would end the same way again.
_REFUSALS = frozenset({2, 3})
_TICK_SECONDS = 0.05


@dataclass(slots=True)
class ChildProcess:
    """One process; it serves on the socket `listening`, if there is one. `failures` counts how often it has ended
    unexpectedly since it last ran for a while."""

    role: str
    number: int
    environment: Mapping[str, str]
    listening: socket.socket | None = None
    is_held: bool = False
    failures: int = 0
    is_given_up: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _started_at: float = 0.0
    _start_at: float | None = None
    _gate: BinaryIO | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Must be called from the main thread: the kernel sends the death signal when the forking thread ends."""
        descriptors = {"--fd": self.listening.fileno()} if self.listening else {}
        if self.is_held:
            descriptors["--hold"], write_end = os.pipe()
            self._gate = os.fdopen(write_end, "wb", buffering=0)
        with stop_signals_blocked():
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dagmaster",
                    self.role,
                    *(f"{name}={number}" for name, number in descriptors.items()),
                ],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                pass_fds=tuple(descriptors.values()),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  only system calls, and no import, in the child
            )
        if self.is_held:
            os.close(descriptors["--hold"])
        self._started_at, self._start_at = time.monotonic(), None

    def release(self) -> None:
        """Let a held process begin."""
        self.is_held = False
        if self._gate:
            # If the process has ended, the pipe is broken; the restarted process is not held.
            with suppress(BrokenPipeError), self._gate as gate:
                gate.write(b"!")

    def supervise(self, say: Say) -> None:
        """Detect that the process has ended by itself, and restart it after a delay."""
        if self._start_at is not None:
            if time.monotonic() >= self._start_at:
                self.start()
                say(f"{self.name} was restarted (process {self.pid})")
        elif self._process is not None and (code := self._process.poll()) is not None and not self.is_given_up:
            if code in _REFUSALS:
                self.is_given_up = True
                say(f"{self.name} (process {self.pid}) {ending(code)}; it is not restarted: it would end the same way")
            else:
                self._schedule_restart(code, say)

    def _schedule_restart(self, code: int, say: Say) -> None:
        now = time.monotonic()
        if now - self._started_at > _HEALTHY_AFTER_SECONDS:
            self.failures = 0
        wait = min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** min(self.failures, 10))
        self.failures += 1
        self._start_at = now + wait
        say(f"{self.name} (process {self.pid}) {ending(code)}; restarting in {wait:g} s")

    def signal(self, signum: signal.Signals) -> None:
        if self.is_running and self._process:
            self._process.send_signal(signum)


def stop_all(
    children: Iterable[ChildProcess], grace_seconds: float, is_stopped_again: Callable[[], bool]
) -> list[ChildProcess]:
    """Ask all processes to stop, wait, kill those that still run; returns the killed ones."""
    children = list(children)
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(child.is_running for child in children) and time.monotonic() < deadline and not is_stopped_again():
        time.sleep(_TICK_SECONDS)
    killed = [child for child in children if child.is_running]
    for child in killed:
        child.signal(signal.SIGKILL)
    while any(child.is_running for child in killed):
        time.sleep(_TICK_SECONDS)
    return killed


def ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Delay stop signals until the process that the block starts is recorded; otherwise it would not be stopped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """The function that a child process calls first: it asks the kernel for this signal when its parent dies. Stop
    signals, which the parent may have blocked, are unblocked."""

    def set_death_signal() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
