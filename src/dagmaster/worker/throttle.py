"""How a plain handler's progress and log lines reach the worker: no faster than anyone can use them.

Of progress the latest counts: it is passed on ten times a second at most. Log lines go out at once, until there are too
many in a second; then the last of them, and how many were left out. What is held back follows when the worker asks for
it, about once a second, and before the task's answer.
"""

import threading
import time
from collections import deque
from typing import Any

from dagmaster.worker.frames import Channel, Frame, pack

PROGRESS_SECONDS = 0.1
LINES_A_SECOND = 100


class Teller:
    """For one task. Called by the handler's threads and by the reader of the channel."""

    def __init__(self, channel: Channel, task_id: str) -> None:
        self._channel = channel
        self._task_id = task_id
        self._lock = threading.RLock()  # a signal handler may log, too
        self._progress: bytes | None = None
        self._progress_at = 0.0  # when it may be told again
        self._held: deque[bytes] = deque(maxlen=LINES_A_SECOND)
        self._left_out = 0
        self._room = LINES_A_SECOND
        self._second_ends = 0.0

    def progress(self, fraction: float | None, message: str | None, counts: dict[str, int]) -> None:
        told = self._packed({"kind": "progress", "fraction": fraction, "message": message, "counts": counts})
        with self._lock:
            self._progress = told
            if time.monotonic() >= self._progress_at:
                self._tell_progress()

    def log(self, level: str, event: str, facts: dict[str, Any]) -> None:
        try:
            line = self._line(level, event, facts)
        except TypeError:  # a text that is not Unicode, or a fact that has no text
            line = self._line(level, ascii(event), {"unreadable": ascii(list(facts))})
        with self._lock:
            self._tell_line(line)

    def flush(self) -> None:
        """Tell what was held back."""
        with self._lock:
            self._tell_held()
            self._tell_progress()

    def _tell_progress(self) -> None:
        told, self._progress = self._progress, None
        if told is not None:
            self._progress_at = time.monotonic() + PROGRESS_SECONDS
            self._channel.send_packed(told)

    def _tell_line(self, line: bytes) -> None:
        now = time.monotonic()
        if now >= self._second_ends:
            self._second_ends = now + 1.0
            self._room = LINES_A_SECOND
            self._tell_held()
        if self._room:
            self._room -= 1
            self._channel.send_packed(line)
        else:
            self._left_out += len(self._held) == LINES_A_SECOND
            self._held.append(line)

    def _tell_held(self) -> None:
        if self._left_out:
            told = self._line("warning", "too many log lines: some were left out here", {"lines": self._left_out})
            self._channel.send_packed(told)
        self._left_out = 0
        while self._held:
            self._channel.send_packed(self._held.popleft())

    def _line(self, level: str, event: str, facts: dict[str, Any]) -> bytes:
        return self._packed({"kind": "log", "level": level, "event": event, "facts": facts})

    def _packed(self, frame: Frame) -> bytes:
        """Every frame names its task: what comes after the end of one is not taken for the next one's."""
        return pack({**frame, "task": self._task_id})
