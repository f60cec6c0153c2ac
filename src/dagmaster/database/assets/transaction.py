"""Transactions on assets: repeated from their beginning if a conflict with another transaction made them fail.

Locks are taken in this order: the asset, its versions by ordinal, their revisions, the collection in pgSTAC. The row
of a job is never locked in such a transaction, because the end of a job locks the job first, then version and revision.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg

from dagmaster import faults
from dagmaster.database.assets.reads import AssetReads
from dagmaster.database.catalog.pgstac import RetryableConflict, retryable
from dagmaster.database.connect import Connection
from dagmaster.errors import Unavailable

T = TypeVar("T")
RETRY_SECONDS: Final = 30.0
_PAUSES_SECONDS = (0.02, 1.0)


class AssetTransactions(AssetReads):
    retry_seconds: float = RETRY_SECONDS

    async def _transaction(self, name: str, act: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `act` in a transaction. The names of its crash points begin with `name`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.retry_seconds
        pause, longest = _PAUSES_SECONDS
        while True:
            try:
                async with self._connected() as connection:
                    with retryable():
                        async with connection.transaction():
                            result = await act(connection)
                            faults.reach(f"{name}.before-commit")
                        faults.reach(f"{name}.after-commit")
                        return result
            except RetryableConflict as error:
                if loop.time() > deadline:
                    raise _busy(error) from error.__cause__
            # With jitter, so that transactions that wait for the same lock are not all repeated at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, longest)


def _busy(error: RetryableConflict) -> Unavailable:
    sqlstate = error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None
    return Unavailable(
        f"the asset could not be changed in time: {error}",
        code="asset.busy",
        hint="repeat the request; pg_stat_activity shows long transactions",
        sqlstate=sqlstate,
    )
