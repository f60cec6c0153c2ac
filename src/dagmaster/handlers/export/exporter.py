"""Copy the objects of a revision to the external zone, with the worker or with a pipeline of Azure Data Factory.

The handlers verify the checksums afterwards.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from dagmaster.errors import HandlerFailed
from dagmaster.handlers.export.data_factory import DataFactory, Sleep
from dagmaster.settings import Settings
from dagmaster.storage.location import Location
from dagmaster.storage.zones import Storage

SUCCEEDED: Final = "Succeeded"


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """All objects of a revision. `file_list` is a blob of the source container with one object name per line; an object
    has the same name in both containers. `edition` is the same for all exports of a revision."""

    export_id: str
    edition: str
    source_container: str
    target_container: str
    file_list: str


class Stopped(Exception):
    """The transfer was stopped on request."""


class Exporter(Protocol):
    @property
    def is_pipeline(self) -> bool:
        """Whether another system copies all objects at once, and needs a list of them."""
        ...

    async def transfer(
        self, order: TransferOrder, should_stop: Callable[[], bool], is_cancelled: Callable[[], bool]
    ) -> str | None:
        """Let another system copy all objects. Returns the id of its run when the run has succeeded; None if there is
        no such system. A repeated call continues the same run."""
        ...

    def copy(self, storage: Storage, source: Location, target: Location, job_id: UUID) -> None:
        """Copy one object whose copy is missing or differs. Raises HandlerFailed if another system should have copied
        it."""
        ...

    async def stop(self, edition: str) -> int:
        """Cancel the runs that still copy objects of a revision, and wait until they end. Returns their number."""
        ...


class WorkerCopy:
    """The worker copies objects itself."""

    is_pipeline = False

    async def transfer(
        self, order: TransferOrder, should_stop: Callable[[], bool], is_cancelled: Callable[[], bool]
    ) -> str | None:
        return None

    def copy(self, storage: Storage, source: Location, target: Location, job_id: UUID) -> None:
        storage.copy(source, target, job_id)

    async def stop(self, edition: str) -> int:
        return 0


class PipelineCopy:
    """A pipeline of Azure Data Factory copies all objects. It has the parameters export_id, edition, source_container,
    target_container and file_list."""

    is_pipeline = True

    def __init__(self, factory: DataFactory, sleep: Sleep, poll_seconds: float) -> None:
        self._factory = factory
        self._sleep = sleep
        self._poll_seconds = poll_seconds

    async def transfer(
        self, order: TransferOrder, should_stop: Callable[[], bool], is_cancelled: Callable[[], bool]
    ) -> str | None:
        parameters = {
            "export_id": order.export_id,
            "edition": order.edition,
            "source_container": order.source_container,
            "target_container": order.target_container,
            "file_list": order.file_list,
        }
        run_id = await self._factory.start(parameters)
        while (run := await self._factory.run(run_id)).is_active:
            if is_cancelled():
                await self._factory.cancel(run_id)
                raise Stopped
            if should_stop():
                raise Stopped  # the next attempt finds the run by its parameters
            await self._sleep(self._poll_seconds)
        if run.status != SUCCEEDED:
            raise HandlerFailed(
                f"the pipeline run {run_id} has ended as {run.status}{f': {run.message}' if run.message else ''}",
                code="adf.run-failed",
                hint="see the run in the monitor of Azure Data Factory",
            )
        return run_id

    def copy(self, storage: Storage, source: Location, target: Location, job_id: UUID) -> None:
        raise HandlerFailed(
            f"the pipeline has not copied {source.path} to {target.path}, or not completely",
            code="export.not-copied",
            hint="check the pipeline: it must copy each object of file_list under the same name",
        )

    async def stop(self, edition: str) -> int:
        runs = [run for run in await self._factory.runs({"edition": edition}) if run.is_active]
        for run in runs:
            await self._factory.cancel(run.run_id)
        for run in runs:
            while (await self._factory.run(run.run_id)).is_active:
                await self._sleep(self._poll_seconds)
        return len(runs)


def open_exporter(settings: Settings) -> Exporter:
    if settings.exporter == "copy":
        return WorkerCopy()
    return PipelineCopy(DataFactory.of(settings), asyncio.sleep, settings.adf_poll_sec)
