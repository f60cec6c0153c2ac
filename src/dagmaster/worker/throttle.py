"""Limits the rate at which a plain handler's progress and log lines are sent to the worker.

Only the latest progress is sent, at most ten times a second. Log lines are sent at once until there are too many in a
second; then only the last ones are kept, with a count of those dropped. Lines and progress that were held back are sent
when the worker asks for them, about once a second, and before the task's result.
"""

import threading
import time
from collections import deque
from typing import Any

from dagmaster.worker import reported
from dagmaster.worker.frames import Channel, Frame, pack

PROGRESS_SECONDS = 0.1
LINES_A_SECOND = 100


class ReportThrottle:
    """Progress and log lines of one task. Called by the handler's threads and by the channel's reader thread."""

    def __init__(self, channel: Channel, task_id: str) -> None:
        self._channel = channel
        self._task_id = task_id
        self._lock = threading.RLock()  # a signal handler may log, too
        self._progress: tuple[float | None, str | None, dict[str, int]] | None = None
        self._progress_at = 0.0  # when progress may be sent again
        self._delayed: deque[bytes] = deque(maxlen=LINES_A_SECOND)
        self._dropped = 0
        self._lines_left = LINES_A_SECOND  # lines that may still be sent in this second
        self._second_ends = 0.0

    def progress(self, fraction: float | None, message: str | None, counts: dict[str, int]) -> None:
        with self._lock:
            self._progress = (fraction, message, counts)
            if time.monotonic() >= self._progress_at:
                self._send_progress()

    def log(self, level: str, event: str, details: dict[str, Any]) -> None:
        line = self._line(level, reported.text(event, reported.MAX_LOG_TEXT), reported.log_facts(details))
        with self._lock:
            self._send_line(line)

    def flush(self) -> None:
        """Send progress and log lines that were held back."""
        with self._lock:
            self._send_delayed()
            self._send_progress()

    def _send_progress(self) -> None:
        latest, self._progress = self._progress, None
        if latest is not None:
            self._progress_at = time.monotonic() + PROGRESS_SECONDS
            self._channel.send_packed(self._packed({"kind": "progress", "progress": reported.progress(*latest)}))

    def _send_line(self, line: bytes) -> None:
        now = time.monotonic()
        if now >= self._second_ends:
            self._second_ends = now + 1.0
            self._lines_left = LINES_A_SECOND
            self._send_delayed()
        if self._lines_left:
            self._lines_left -= 1
            self._channel.send_packed(line)
        else:
            self._dropped += len(self._delayed) == LINES_A_SECOND
            self._delayed.append(line)

    def _send_delayed(self) -> None:
        if self._dropped:
            details = self._line(
                "warning", "too many log lines in a second; some were dropped", {"lines": self._dropped}
            )
            self._channel.send_packed(details)
        self._dropped = 0
        while self._delayed:
            self._channel.send_packed(self._delayed.popleft())

    def _line(self, level: str, event: str, details: dict[str, Any]) -> bytes:
        return self._packed({"kind": "log", "level": level, "event": event, "facts": details})

    def _packed(self, frame: Frame) -> bytes:
        """Every frame names its task, so that a late frame is not attributed to the next task."""
        return pack({**frame, "task": self._task_id})
