"""A connection that is opened when it is first used, and closed after a failure.

One object holds one connection and serves one call at a time. A caller that must not wait for another (leases,
heartbeats) has an object of its own. After a failure the next call opens a new connection: every call is safe to
repeat.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.database.connect import Connection, connect, meaning_of
from dagmaster.database.notify.notifier import Notifier, WithNotifier
from dagmaster.database.queries import query


class Session(WithNotifier):
    """`options` are those of `connect`."""

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

    def _connected(self) -> AbstractAsyncContextManager[Connection]:
        """The connection, for one call. It is closed if the call fails."""
        return _ConnectedCall(self)

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """A transaction for one call. The names of its crash points begin with `name`."""
        async with self._connected() as connection:
            async with connection.transaction():
                yield connection
                faults.reach(f"{name}.before-commit")
            faults.reach(f"{name}.after-commit")


class _ConnectedCall:
    """The context manager of `_connected`. A class, because a generator would add thirty function calls to every step
    of a job."""

    __slots__ = ("_connection", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Connection:
        session = self._session
        await session._lock.acquire()
        try:
            if session._connection is None or session._connection.closed:
                session._connection = await connect(session._dsn, role=session._role, **session._options)
        except BaseException:
            session._lock.release()
            raise
        self._connection = session._connection
        return self._connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if error is not None:
                self._session._connection = None
                await self._connection.close()
                if isinstance(error, psycopg.Error) and (meaning := meaning_of(error)):
                    raise meaning from error
        finally:
            self._session._lock.release()


async def dicts(connection: Connection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    return await (await cursor.execute(query(name), values)).fetchall()
