"""A job's events as they happen, over any number of connections.

Each connection goes on behind the last event that was seen, and numbers have no gaps: nothing is missed and nothing
comes twice, however often the connection is lost.
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
    on_trouble: Callable[[Unavailable], None],
    *,
    on_connected: Callable[[], None] = lambda: None,
    on_progress: Callable[[], None] = lambda: None,
) -> Iterator[StreamedEvent]:
    """Every event behind a number, once and in order, until the job is over. `on_trouble` waits, or raises."""
    while True:
        began_behind = after
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
                        break  # what is missing in between comes with the next connection
                    if event.sequence == after + 1:
                        yield event
                        after = event.sequence
        except Unavailable as error:
            on_trouble(error)
        else:
            if after == began_behind:
                time.sleep(_PAUSE_SECONDS)  # a platform that is just stopping ends its streams at once


class Feed:
    """Tells that something happened to a job, from a thread of its own. Trouble is left to whoever then asks what."""

    def __init__(self, client: Client, job_id: str, after: int) -> None:
        self._client = client.again()
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, args=(job_id, after), name="feed", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether anything happened within this time."""
        try:
            self._news.get(timeout=seconds)
        except queue.Empty:
            return False
        while not self._news.empty():
            self._news.get()
        return True

    def close(self) -> None:
        """The thread ends with its connection, or with the process."""
        self._is_closed = True

    def _run(self, job_id: str, after: int) -> None:
        try:
            while not self._is_closed:
                for event in resumed(self._client, job_id, after, self._on_trouble, on_progress=self._tell):
                    after = event.sequence or after
                    self._tell()
                    if self._is_closed:
                        return
                self._tell()
                time.sleep(_PAUSE_SECONDS)  # it is over, unless someone resumes it
        except DagmasterError:
            return  # whoever asks what happened is told the same
        finally:
            self._client.close()

    def _tell(self) -> None:
        self._news.put(None)

    def _on_trouble(self, error: Unavailable) -> None:
        if self._is_closed:
            raise error
        time.sleep(_PAUSE_SECONDS)
