"""The bell: hints between processes that something may have changed. Never data, never needed for correctness.

The first ring of a topic goes out at once; rings that follow within `COALESCE_SECONDS` are gathered into one. Whoever
listens must look by itself after connecting, and now and then anyway.
"""

from typing import Protocol

COALESCE_SECONDS = 0.01

JOBS = "jobs"  # a job was created or given back
RESULTS = "results"  # a worker reported, or a task has run for a while


def tasks_topic(queue: str) -> str:
    return f"tasks:{queue}"


class Bell(Protocol):
    def ring(self, *topics: str) -> None:
        """Tell the others, soon; never waits, never fails."""
        ...

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        """The topics that rang since the last call; empty after the timeout."""
        ...

    async def close(self) -> None: ...
