"""A connection for one background task: opened when first used, closed after a failure."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.queries import query


class OwnSession:
    """Statements and lock waits have time limits. `kind` is the prefix of its fault points."""

    def __init__(self, dsn: str, role: str, kind: str, *, statement_seconds: float, lock_seconds: float) -> None:
        self._dsn = dsn
        self._role = role
        self._kind = kind
        self._statement_seconds = statement_seconds
        self._lock_seconds = lock_seconds
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(
                    self._dsn,
                    role=self._role,
                    statement_timeout_seconds=self._statement_seconds,
                    lock_timeout_seconds=self._lock_seconds,
                )
            connection = self._connection
            try:
                with translate_errors():
                    async with connection.transaction():
                        yield connection
                        faults.reach(f"{self._kind}.before-commit")
                    faults.reach(f"{self._kind}.after-commit")
            except BaseException:
                self._connection = None
                await connection.close()
                raise


async def dicts(connection: Connection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    return await (await cursor.execute(query(name), values)).fetchall()
