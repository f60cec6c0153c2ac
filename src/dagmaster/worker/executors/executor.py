"""The interface of executors of plain handlers, and the choice of the one that the settings name.

With every executor, each task runs in a child process of this package, which can be killed and limited. The worker
keeps the leases: an executor that loses a task reports it as a failure of the environment.
"""

from collections.abc import Callable
from typing import Any, Protocol

from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage
from dagmaster.settings import Settings
from dagmaster.worker.context import TaskContext
from dagmaster.worker.outcome import Outcome
from dagmaster.worker.process_pool import Pool


class Executor(Protocol):
    @property
    def slots(self) -> int | None:
        """How many tasks it can run at the same time now. None: as many as WORKER_PROCESSES."""
        ...

    @property
    def is_on_this_machine(self) -> bool:
        """Whether a task that crashes its machine also ends the worker."""
        ...

    @property
    def children(self) -> list[dict[str, Any]]:
        """Every child process and the task it runs, if any. Safe from other threads."""
        ...

    def details(self) -> dict[str, Any]:
        """State for display. Safe from other threads."""
        ...

    async def start(self, on_more_slots: Callable[[], None] | None = None, /) -> None:
        """`on_more_slots` is called when there are more slots than before, so that the worker claims tasks for them."""
        ...

    async def run(
        self, registration: Registration, task: TaskMessage, timeout_seconds: float, context: TaskContext
    ) -> Outcome:
        """Run a task until it ends or is killed. When this call is cancelled, the child is killed before it returns."""
        ...

    def end_now(self) -> None:
        """Ask for the end of every child without waiting. Safe from another thread."""
        ...

    async def close(self) -> None: ...


def executor_of(settings: Settings, cancel_grace_seconds: float) -> Executor:
    if settings.worker_executor == "dask":
        from dagmaster.worker.executors.dask import DaskExecutor, cluster_of

        return DaskExecutor(
            cluster_of(settings),
            memory_mb=settings.worker_memory_mb,
            cancel_grace_seconds=cancel_grace_seconds,
            silence_seconds=settings.task_lease_sec,
        )
    return Pool(memory_mb=settings.worker_memory_mb, cancel_grace_seconds=cancel_grace_seconds)
