"""A job's events as they happen, over any number of connections.

Each connection continues after the last event that was received, and sequence numbers have no gaps: no event is missed
or received twice, however often the connection is lost.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator

from dagmaster.client.client import Client, StreamedEvent
from dagmaster.errors import DagmasterError, Unavailable

OUTAGE_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


class Reconnection:
    """Waits while the platform cannot be reached, up to a limit. `note` shows a line to the user once per outage."""

    def __init__(self, note: Callable[[str], None], job_id: str) -> None:
        self._note = note
        self._job_id = job_id
        self._since: float | None = None

    def wait(self, error: Unavailable) -> None:
        """Wait a moment, or raise the error once the outage has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._note(f"{error.message}; waiting up to {OUTAGE_PATIENCE_SECONDS:.0f} s for it")
        if now - self._since > OUTAGE_PATIENCE_SECONDS:
            hint = f"the job continues when its platform does; then watch it with: dagmaster jobs watch {self._job_id}"
            raise Unavailable(error.message, code=error.code, hint=hint) from None
        time.sleep(_PAUSE_SECONDS)

    def succeeded(self) -> None:
        if self._since is not None:
            self._since = None
            self._note("the platform answers again")


def resumed(
    client: Client,
    job_id: str,
    after: int,
    on_outage: Callable[[Unavailable], None],
    *,
    on_connected: Callable[[], None] = lambda: None,
    on_progress: Callable[[], None] = lambda: None,
) -> Iterator[StreamedEvent]:
    """Every event after a sequence number, once and in order, until the job has ended. `on_outage` waits, or raises."""
    while True:
        first_after = after
        try:
            with client.stream(job_id, after) as events:
                on_connected()
                if events is None:
                    return
                for event in events:
                    if event.sequence is None:
                        on_progress()
                        continue
                    if event.sequence > after + 1:
                        break  # the next connection sends the missing events
                    if event.sequence == after + 1:
                        yield event
                        after = event.sequence
        except Unavailable as error:
            on_outage(error)
        else:
            if after == first_after:
                time.sleep(_PAUSE_SECONDS)  # a platform that is stopping ends its streams at once


class Feed:
    """Signals from its own thread that a job has changed. It hides errors: the next request raises them."""

    def __init__(self, client: Client, job_id: str, after: int) -> None:
        self._client = client.copy()
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, args=(job_id, after), name="feed", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to this time. Returns whether the job has changed."""
        try:
            self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        while not self._signals.empty():
            self._signals.get()
        return True

    def close(self) -> None:
        """Stop the thread. It ends when its connection ends, or with the process."""
        self._is_closed = True

    def _run(self, job_id: str, after: int) -> None:
        try:
            while not self._is_closed:
                for event in resumed(self._client, job_id, after, self._on_outage, on_progress=self._signal):
                    after = event.sequence or after
                    self._signal()
                    if self._is_closed:
                        return
                self._signal()
                time.sleep(_PAUSE_SECONDS)  # the job has ended, but it may be resumed
        except DagmasterError:
            return  # the next request of the caller raises the same error
        finally:
            self._client.close()

    def _signal(self) -> None:
        self._signals.put(None)

    def _on_outage(self, error: Unavailable) -> None:
        if self._is_closed:
            raise error
        time.sleep(_PAUSE_SECONDS)
