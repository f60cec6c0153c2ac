"""A connection that is opened when it is first used, and closed after a failure.

One object holds one connection and serves one call at a time. A caller that must not wait for another (leases,
heartbeats) has an object of its own. After a failure the next call opens a new connection: every call is safe to
repeat.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.queries import query


class Session:
    """`options` are those of `connect`. The notifier announces what was committed; without one, other processes see it
    when they poll."""

    def __init__(self, dsn: str, role: str, notifier: Notifier | None = None, **options: Any) -> None:
        self._dsn = dsn
        self._role = role
        self._notifier = notifier
        self._options = options
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection, for one call. It is closed if the call fails."""
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._dsn, role=self._role, **self._options)
            connection = self._connection
            try:
                with translate_errors():
                    yield connection
            except BaseException:
                self._connection = None
                await connection.close()
                raise

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """A transaction for one call. The name is that of its fault points."""
        async with self._connected() as connection:
            async with connection.transaction():
                yield connection
                faults.reach(f"{name}.before-commit")
            faults.reach(f"{name}.after-commit")

    def _notify(self, *topics: str) -> None:
        """After the commit. It never waits and never fails."""
        if self._notifier is not None:
            self._notifier.notify(*topics)


async def dicts(connection: Connection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    return await (await cursor.execute(query(name), values)).fetchall()
