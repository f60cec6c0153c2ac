"""Reads by key that a server needs for every request: who calls, and what the caller may read.

A pool's checkout and psycopg's cursors together take longer than such a statement. Here a few connections stay open,
each with its statements prepared, and a call is one round trip. The statement runs each time: nothing is cached.
"""

import asyncio
import select
from collections.abc import Mapping
from typing import Any

from dagmaster.database.connect import BY_KEY, Connection, connect
from dagmaster.database.pipeline import Call, Rows, execute
from dagmaster.errors import Unavailable

_MAX_CONNECTIONS = 4
_MAX_WAIT_SECONDS = 10.0


class PreparedReads:
    """Opens connections when they are needed, and keeps them until it is closed."""

    def __init__(self, dsn: str, role: str, *, statement_timeout_seconds: float = 15) -> None:
        self._dsn = dsn
        self._role = role
        self._statement_timeout_seconds = statement_timeout_seconds
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def dicts(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows of a statement of `sql/`, as `session.dicts` returns them."""
        await self._acquire()
        try:
            return [row._asdict() for row in await self._read(name, values)]
        finally:
            self._free.release()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _acquire(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            message = "no connection to the database was free in time"
            raise Unavailable(message, code="database.unavailable", hint="check that the server runs") from None

    async def _read(self, name: str, values: Mapping[str, Any]) -> Rows:
        connection = await self._connection()
        try:
            rows = (await execute(connection, [Call(name, values)]))[name]
        except BaseException:  # also a request that is cancelled: the rows are still on their way
            await connection.close()
            raise
        self._idle.append(connection)
        return rows

    async def _connection(self) -> Connection:
        """The connection that was used last, so that those which are not needed are not used at all."""
        while self._idle:
            connection = self._idle.pop()
            if not _has_ended(connection):
                return connection
            await connection.close()
        return await connect(
            self._dsn,
            role=self._role,
            statement_timeout_seconds=self._statement_timeout_seconds,
            settings=BY_KEY,
        )


def _has_ended(connection: Connection) -> bool:
    """Whether there is something to read although nothing was asked for: the server's last message, or the end."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
