"""All reads through a small pool: any number of requests share a handful of connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dagmaster.database.connect import BY_KEY, Connection, pool, translate_errors
from dagmaster.database.reads.callbacks import CallbackReads
from dagmaster.database.reads.changes import ChangeReads
from dagmaster.database.reads.estimates import EstimateReads
from dagmaster.database.reads.installation import InstallationReads
from dagmaster.database.reads.legacy import LegacyReads
from dagmaster.database.reads.nodes import NodeReads
from dagmaster.database.reads.queues import QueueReads
from dagmaster.database.reads.remote_workers import RemoteWorkerReads
from dagmaster.database.reads.workflows import WorkflowReads

POOL_SIZE = 6
# Filters are optional: one plan for all of them would use none of the indexes. A page is the first rows of an index; a
# bitmap scan would also collect all the others, to sort them.
PLANNING = {**BY_KEY, "enable_bitmapscan": "off", "plan_cache_mode": "force_custom_plan"}


class ApiReads(
    NodeReads,
    ChangeReads,
    EstimateReads,
    WorkflowReads,
    QueueReads,
    CallbackReads,
    LegacyReads,
    RemoteWorkerReads,
    InstallationReads,
):
    """`open` it before the first read. The server need not be available then."""

    def __init__(self, dsn: str, role: str = "api", size: int = POOL_SIZE) -> None:
        super().__init__(dsn, role)
        self._pool = pool(dsn, role, 0, size, wait_seconds=5, settings=PLANNING)

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with translate_errors():
            async with self._pool.connection() as connection:
                yield connection
