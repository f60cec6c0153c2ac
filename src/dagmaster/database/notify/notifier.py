"""Notifications: hints to other processes that something may have changed. Never data, never needed for correctness.

The first notification is sent at once; those that follow within `COALESCE_SECONDS` are sent as one. (A longer interval
would slow chains of short tasks down: each step notifies soon after the previous one.) A listener must read the state
after it has connected, and poll from time to time.
"""

from typing import Protocol

COALESCE_SECONDS = 0.002

JOBS = "jobs"  # a job was created or released
RESULTS = "results"  # a worker reported, or a task has run for a while
CALLBACKS = "callbacks"  # a change of an asset may have caused a callback
WORKFLOWS = "workflows"  # the workflows must be read again


def tasks_topic(queue: str, worker_id: str | None = None) -> str:
    """The topic of a queue that has tasks; with a worker, of a queue that has a task which this worker should claim."""
    return f"tasks:{queue}" if worker_id is None else f"tasks:{queue}@{worker_id}"


class Notifier(Protocol):
    def notify(self, *topics: str) -> None:
        """Notify the listeners of these topics soon. Never waits, never fails."""
        ...

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        """The topics that were notified since the last call; empty after the timeout."""
        ...

    async def close(self) -> None: ...


class WithNotifier:
    """Notifies other processes of its commits. Without a notifier they see the changes when they poll."""

    _notifier: Notifier | None

    def _notify(self, *topics: str) -> None:
        """Notify these topics; to be called after the commit. Never waits, never fails."""
        if self._notifier is not None:
            self._notifier.notify(*topics)
