"""What a handler is given: its task, and the few things it may do besides computing.

`ctx.params` is the plain dict, or the Pydantic model that the handler's `params: Model` annotation names. In async
handlers the verbs are awaited; plain handlers run in a process of their own and call the same names without await
(`SyncContext`).
"""

import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from dagmaster.handlers.artifacts import Artifact, Places
from dagmaster.jobs.fan import ChildResult

if TYPE_CHECKING:
    import psycopg

    from dagmaster.addresses import Addresses
    from dagmaster.database.connect import Database
    from dagmaster.storage.zones import Storage

IsValid = Callable[[str, Any], bool]  # of a checkpoint's name and data
Check = Callable[[Artifact], bool]
AsyncCheck = Callable[[Artifact], bool | Awaitable[bool]]


class HandlerResult(BaseModel):
    """For handlers that want to say more than their output."""

    model_config = ConfigDict(frozen=True)

    success: bool = True
    output: Any = None
    error_message: str | None = None
    metrics: dict[str, Any] | None = None


class GiveBack(Exception):
    """Raised by a handler that stops early because the worker shuts down: costs no attempt."""


class TaskLogger:
    """Logs facts about one attempt: `ctx.logger.info("tile written", bytes=1234)`. Bound to its task already."""

    def __init__(self, sink: Callable[[str, str, dict[str, Any]], None], **facts: Any) -> None:
        self._sink = sink
        self._facts = facts

    def bind(self, **facts: Any) -> "TaskLogger":
        return TaskLogger(self._sink, **(self._facts | facts))

    def debug(self, event: str, *args: Any, **facts: Any) -> None:
        self._write("debug", event, args, facts)

    def info(self, event: str, *args: Any, **facts: Any) -> None:
        self._write("info", event, args, facts)

    def warning(self, event: str, *args: Any, **facts: Any) -> None:
        self._write("warning", event, args, facts)

    def error(self, event: str, *args: Any, **facts: Any) -> None:
        self._write("error", event, args, facts)

    def exception(self, event: str, *args: Any, **facts: Any) -> None:
        self._write("error", event, args, {"exc_info": True, **facts})

    def _write(self, level: str, event: str, args: tuple[Any, ...], facts: dict[str, Any]) -> None:
        facts = self._facts | facts
        if facts.pop("exc_info", False):
            facts["exception"] = "".join(traceback.format_exception(*sys.exc_info()))
        self._sink(level, event % args if args else event, facts)


class _Common(Protocol):
    @property
    def task_id(self) -> str: ...

    @property
    def job_id(self) -> UUID: ...

    @property
    def node_id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def retry_count(self) -> int: ...

    @property
    def params(self) -> Any: ...

    @property
    def logger(self) -> TaskLogger: ...

    @property
    def storage(self) -> "Storage":
        """The zones of the worker's configuration, and the sources that a job may read."""
        ...

    @property
    def addresses(self) -> "Addresses":
        """The public URLs of what the platform serves."""
        ...

    @property
    def cancelled(self) -> bool:
        """The task was withdrawn: stop at the next good moment."""
        ...

    @property
    def shutting_down(self) -> bool:
        """The worker stops: save what is worth saving and return or `raise ctx.give_back()`."""
        ...

    def give_back(self) -> GiveBack:
        """To be raised: this attempt stops early, because it was told to."""
        ...

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        """How far it is; people see the latest."""
        ...


class Context(_Common, Protocol):
    @property
    def database(self) -> "Database":
        """The worker's pool: `async with ctx.database.connection() as connection: …`."""
        ...

    async def save_checkpoint(self, name: str, data: Any = None, artifact: Places | None = None) -> None:
        """Keep a phase: its data, and files (or what a URI names) by which a later attempt tells whether it still stands.

        It is a good moment to stop: where the worker shuts down or the task is cancelled, the task is given back from here.
        """
        ...

    async def load_checkpoint(
        self, is_valid: IsValid | None = None, check: AsyncCheck | None = None
    ) -> tuple[str, Any] | None:
        """Name and data of the last checkpoint that can be trusted, whichever attempt saved it.

        That is one whose artifacts are still there and the same, or of which `check` says so, and that `is_valid` accepts.
        """
        ...

    def results(self, page: int = 500) -> AsyncIterator[ChildResult]:
        """Stream the children's results that `params.results_of` refers to, in index order."""
        ...


class SyncContext(_Common, Protocol):
    def connect(self) -> "psycopg.Connection[Any]":
        """A connection of one's own to the platform's database; close it (`with ctx.connect() as connection: …`)."""
        ...

    def save_checkpoint(self, name: str, data: Any = None, artifact: Places | None = None) -> None: ...

    def load_checkpoint(
        self, is_valid: IsValid | None = None, check: Check | None = None
    ) -> tuple[str, Any] | None: ...

    def results(self, page: int = 500) -> Iterator[ChildResult]: ...
