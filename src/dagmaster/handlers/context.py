"""What a handler is given: its task, and the few things it may do besides computing.

`ctx.params` is the plain dict, or the Pydantic model that the handler's `params: Model` annotation names. In async handlers the
verbs are awaited; plain handlers run in a process of their own and call the same names without await (`SyncContext`).
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol
from uuid import UUID

from pydantic import BaseModel, ConfigDict


class HandlerResult(BaseModel):
    """For handlers that want to say more than their output."""

    model_config = ConfigDict(frozen=True)

    success: bool = True
    output: Any = None
    error_message: str | None = None
    metrics: dict[str, Any] | None = None


class _Common(Protocol):
    task_id: str
    job_id: UUID
    node_id: str
    attempt: int
    retry_count: int
    params: Any
    logger: Any

    @property
    def cancelled(self) -> bool:
        """The task was withdrawn: stop at the next good moment."""
        ...

    @property
    def shutting_down(self) -> bool:
        """The worker stops: save what is worth saving and return or raise `ctx.give_back()`."""
        ...

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None: ...


class Context(_Common, Protocol):
    async def save_checkpoint(self, name: str, data: Any = None) -> None: ...

    async def load_checkpoint(self) -> tuple[str, Any] | None:
        """The last checkpoint, whichever attempt saved it."""
        ...

    def results(self, page: int = 500) -> AsyncIterator[Any]:
        """Stream the children's results that `params.results_of` refers to."""
        ...


class SyncContext(_Common, Protocol):
    def save_checkpoint(self, name: str, data: Any = None) -> None: ...

    def load_checkpoint(self) -> tuple[str, Any] | None: ...

    def results(self, page: int = 500) -> Iterator[Any]: ...


class GiveBack(Exception):  # noqa: N818 - a request, not an error
    """Raised by a handler that stops early because the worker shuts down: costs no attempt."""
