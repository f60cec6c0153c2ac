"""The bell: hints between processes that something may have changed. Never data, never needed for correctness.

The first ring goes out at once; rings that follow within `COALESCE_SECONDS` are gathered into one. (Gathering for longer slows
chains of short tasks down: each step rings soon after the one before.) Whoever
listens must look by itself after connecting, and now and then anyway.
"""

from typing import Protocol

COALESCE_SECONDS = 0.002

JOBS = "jobs"  # a job was created or given back
RESULTS = "results"  # a worker reported, or a task has run for a while


def tasks_topic(queue: str, worker_id: str | None = None) -> str:
    """A queue has tasks; or it has one that this worker should take."""
    return f"tasks:{queue}" if worker_id is None else f"tasks:{queue}@{worker_id}"


class Notifier(Protocol):
    def notify(self, *topics: str) -> None:
        """Tell the others, soon; never waits, never fails."""
        ...

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        """The topics that rang since the last call; empty after the timeout."""
        ...

    async def close(self) -> None: ...
