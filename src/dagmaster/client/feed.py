"""Retries while the platform is unavailable, and signals that a job has changed."""

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dagmaster.client.json_client import MAX_OUTAGE_SECONDS, PAUSE_SECONDS, Connected, JsonClient, Outage
from dagmaster.errors import DagmasterError, Unavailable

T = TypeVar("T")


class Reconnection:
    """Limits how long an outage of the platform may last. `note` shows a line to the user once per outage."""

    def __init__(self, note: Callable[[str], None], job_id: str) -> None:
        self._note = note
        self._job_id = job_id
        self._since: float | None = None

    def call(self, request: Callable[[], T]) -> T:
        """The response to a request, as soon as the platform is available."""
        while True:
            try:
                response = request()
            except Unavailable as error:
                self.wait(error)
            else:
                self.succeeded()
                return response

    def wait(self, error: Unavailable) -> None:
        """Wait a moment, or raise the error once the outage has lasted too long."""
        self.failed(error)
        time.sleep(PAUSE_SECONDS)

    def failed(self, error: Unavailable) -> None:
        """Note the beginning of an outage. Raise the error if the outage has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._note(f"{error.message}; retrying for up to {MAX_OUTAGE_SECONDS:.0f} s")
        if now - self._since > MAX_OUTAGE_SECONDS:
            hint = f"the job continues when the platform runs again; watch it with: dagmaster jobs watch {self._job_id}"
            raise Unavailable(error.message, code=error.code, hint=hint) from None

    def succeeded(self) -> None:
        if self._since is not None:
            self._since = None
            self._note("the platform is available again")


class Feed:
    """Signals from its own thread that a job has changed. Errors are ignored here: the next request raises them."""

    def __init__(self, client: JsonClient, job_id: str, after: int) -> None:
        self._client = client
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
        """Stop the thread. It ends with the next event, when its connection ends, or with the process."""
        self._is_closed = True

    def _run(self, job_id: str, after: int) -> None:
        try:
            while not self._is_closed:
                for update in self._client.follow(job_id, after):
                    if self._is_closed:
                        return
                    if isinstance(update, Connected | Outage):
                        continue
                    after = update.sequence or after
                    self._signals.put(None)
                self._signals.put(None)
                time.sleep(PAUSE_SECONDS)  # the job has ended, but it may be resumed
        except DagmasterError:
            return  # the next request of the caller raises the same error
