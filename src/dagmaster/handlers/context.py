"""The context of a handler: its task, and the functions that the worker offers.

`ctx.params` is a dict, or the Pydantic model of the handler's `params: Model` annotation. Async handlers await the
methods of `Context`; plain handlers run in a child process and call the same methods of `SyncContext` without await.
"""

import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from dagmaster.handlers.artifacts import Artifact, OneOrMoreArtifacts
from dagmaster.jobs.fan import ChildResult

if TYPE_CHECKING:
    import psycopg

    from dagmaster.addresses import Addresses
    from dagmaster.database.connect import ConnectionPool
    from dagmaster.handlers.export.exporter import Exporter
    from dagmaster.storage.zones import Storage

IsValid = Callable[[str, Any], bool]  # called with the name and data of a checkpoint
ArtifactCheck = Callable[[Artifact], bool]
AsyncCheck = Callable[[Artifact], bool | Awaitable[bool]]


class HandlerResult(BaseModel):
    """For handlers that return metrics, or a failure without an exception."""

    model_config = ConfigDict(frozen=True)

    success: bool = True
    output: Any = None
    error_message: str | None = None
    metrics: dict[str, Any] | None = None


class GiveBack(Exception):
    """Raised by a handler that stops early because the worker stops or its task is cancelled. Uses up no retry."""


class TaskLogger:
    """Logs events of one attempt with the ids of its task: `ctx.logger.info("tile written", bytes=1234)`."""

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
        """The public URLs of published datasets."""
        ...

    @property
    def exporter(self) -> "Exporter":
        """Copies objects to the external zone."""
        ...

    @property
    def cancelled(self) -> bool:
        """The task was cancelled: stop at the next suitable point."""
        ...

    @property
    def shutting_down(self) -> bool:
        """The worker is stopping: save a checkpoint if useful, and return or `raise ctx.give_back()`."""
        ...

    def give_back(self) -> GiveBack:
        """An exception to raise: this attempt stops early on request."""
        ...

    def progress(self, fraction: float | None = None, message: str | None = None, **counts: int) -> None:
        """Report progress. The latest report replaces earlier ones."""
        ...


class Context(_Common, Protocol):
    @property
    def database(self) -> "ConnectionPool":
        """The worker's pool: `async with ctx.database.connection() as connection: …`."""
        ...

    async def save_checkpoint(self, name: str, data: Any = None, artifact: OneOrMoreArtifacts | None = None) -> None:
        """Save a finished phase: its data, and artifacts by which a later attempt checks whether it is still valid.

        If the worker shuts down or the task is cancelled, this also gives the task back.
        """
        ...

    async def load_checkpoint(
        self, is_valid: IsValid | None = None, check: AsyncCheck | None = None
    ) -> tuple[str, Any] | None:
        """Name and data of the last valid checkpoint, from any attempt.

        A checkpoint is valid if its artifacts are unchanged, or `check` accepts them, and if `is_valid` accepts it.
        """
        ...

    def results(self, page: int = 500) -> AsyncIterator[ChildResult]:
        """Stream the results of the children that `params.results_of` refers to, in index order."""
        ...


class SyncContext(_Common, Protocol):
    def connect(self) -> "psycopg.Connection[Any]":
        """A new connection to the database of the platform; close it (`with ctx.connect() as connection: …`)."""
        ...

    def save_checkpoint(self, name: str, data: Any = None, artifact: OneOrMoreArtifacts | None = None) -> None: ...

    def load_checkpoint(
        self, is_valid: IsValid | None = None, check: ArtifactCheck | None = None
    ) -> tuple[str, Any] | None: ...

    def results(self, page: int = 500) -> Iterator[ChildResult]: ...
