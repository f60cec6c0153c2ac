"""The connection under a ledger: opened when it is needed, closed after a failure.

One object holds one connection and serves one call at a time. A caller that must not wait for another (leases,
heartbeats) has an object of its own. After a failure the next call opens a new connection: every call is safe to
repeat.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from psycopg.rows import namedtuple_row

from dagmaster import faults
from dagmaster.database import pipeline
from dagmaster.database.connect import BY_KEY, Connection, connect, translate_errors
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.notify.postgres import channel_of
from dagmaster.database.queries import query


class LedgerConnection:
    def __init__(self, dsn: str, role: str = "ledger", notifier: Notifier | None = None) -> None:
        """The notifier announces what was committed. Without one, other processes see it when they poll."""
        self._dsn = dsn
        self._role = role
        self._notifier = notifier
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
                self._connection = await connect(self._dsn, role=self._role, settings=BY_KEY)
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
        """A transaction for one call."""
        async with self._connected() as connection:
            async with connection.transaction():
                yield connection
                faults.reach(f"{name}.before-commit")
            faults.reach(f"{name}.after-commit")

    async def _fetch(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        """One statement that commits itself; rows by column name."""
        faults.reach(f"{name}.before-commit")
        async with self._connected() as connection:
            rows = await fetch(connection, name, values)
        faults.reach(f"{name}.after-commit")
        return rows

    async def _execute(self, name: str, values: Mapping[str, Any]) -> None:
        """One statement that commits itself and returns no rows."""
        faults.reach(f"{name}.before-commit")
        async with self._connected() as connection:
            await connection.execute(query(name), values)
        faults.reach(f"{name}.after-commit")

    def _notify(self, *topics: str) -> None:
        """After the commit. It never waits and never fails."""
        if self._notifier is not None:
            self._notifier.notify(*topics)


async def fetch(connection: Connection, name: str, values: Mapping[str, Any]) -> list[Any]:
    """The rows of a prepared statement, by column name."""
    cursor = connection.cursor(row_factory=namedtuple_row)
    await cursor.execute(query(name), values, prepare=True)
    return await cursor.fetchall()


def notification(topics: Sequence[str]) -> list[pipeline.Step]:
    """The steps that follow a COMMIT in its round trip: NOTIFY in a transaction of its own.

    A transaction that notifies blocks all others that do until it is on disk, so none that changes state does.
    """
    if not topics:
        return []
    return [pipeline.BREAK, pipeline.Call("notify_channels", {"channels": [channel_of(topic) for topic in topics]})]


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def columns_of(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Rows as one array for each column, as `unnest` takes them."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
