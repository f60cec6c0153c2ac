"""All reads through a small pool: any number of requests share a handful of connections.

With DATABASE_POOLER_URL the connections are those of a pooler in transaction mode. It hands each transaction to any of
its own connections, so there are no prepared statements, and the settings are made in each transaction.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dagmaster.database.connect import (
    BY_KEY,
    Connection,
    pool,
    pool_on_pooler,
    settings_statement,
    translate_errors,
)
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
# Filters are optional: one plan for all combinations of filters would use none of the indexes. A page is the first rows
# of an index; a bitmap scan would also collect all other rows, to sort them.
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

    def __init__(self, dsn: str, role: str = "api", size: int = POOL_SIZE, *, pooler_dsn: str | None = None) -> None:
        super().__init__(pooler_dsn or dsn, role)
        self._settings = settings_statement(PLANNING) if pooler_dsn else None
        if pooler_dsn:
            self._pool = pool_on_pooler(pooler_dsn, role, size, wait_seconds=5)
        else:
            self._pool = pool(dsn, role, 0, size, wait_seconds=5, settings=PLANNING)

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with translate_errors():
            async with self._pool.connection() as connection:
                if self._settings is None:
                    yield connection
                    return
                async with connection.transaction():
                    await connection.execute(self._settings)
                    yield connection
