"""Read the workflows again after their cache was invalidated.

    notification, or every HEARTBEAT_INTERVAL_SEC ──▶ the generation in the database has grown
        ──▶ read all workflow files (in a thread) ──▶ use them ──▶ record the generation in the row of this instance

If reading fails, the workflows that were read before stay in use, and the reload is tried again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dagmaster.database.caches import PostgresCaches
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.orchestrator.pause import pause

_log = log.get("orchestrator")


@dataclass
class WorkflowReload:
    """`load` reads the workflows; `use` replaces those in use. `owner_id` is set by the orchestrator."""

    caches: PostgresCaches
    load: Callable[[], WorkflowLibrary]
    interval_seconds: float
    use: Callable[[WorkflowLibrary], None] = lambda _library: None
    owner_id: UUID | None = None
    library: WorkflowLibrary | None = None
    generation: int | None = None  # None before the first comparison
    _is_run_requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.run_once()
            except Exception as error:  # jobs continue with the workflows that are in use
                log.failure(_log, "the workflows could not be read again; it is tried again later", error)
            await pause(self._is_run_requested, self.interval_seconds)

    def wake(self) -> None:
        self._is_run_requested.set()

    async def close(self) -> None:
        await self.caches.close()

    async def run_once(self) -> None:
        """Compare generations, and read the workflows if the one in the database is newer."""
        assert self.owner_id is not None
        state = await self.caches.state(self.owner_id)
        if self.generation is None or state.generation > self.generation:
            await self._read(state.generation, is_first=self.generation is None)
        if state.recorded != self.generation:
            await self._record(self.owner_id)

    async def _read(self, generation: int, *, is_first: bool) -> None:
        """Files may have changed between the start of this process and the first comparison, so they are read then
        too, if they were ever invalidated."""
        if not is_first or generation:
            self.library = await asyncio.to_thread(self.load)
            self.use(self.library)
        self.generation = generation

    async def _record(self, owner_id: UUID) -> None:
        assert self.library is not None
        assert self.generation is not None
        counts: dict[str, Any] = {
            "workflow_count": len(self.library.workflows),
            "refused": len(self.library.refused),
        }
        await self.caches.record(owner_id, self.generation, **counts)
