"""Reads by key that a server needs for every request: the caller, and the publication that the caller asks for.

A pool's checkout and psycopg's cursors together take longer than such a statement. Here a few connections stay open,
each with its statements prepared, and a call is one round trip. The statement runs each time: nothing is cached.

A request with a key reads twice: the key, then the requested rows. The second read is often known from the beginning.
A caller that knows it announces it, and both are sent in one round trip:

    with reads.expecting(Call("publication_of_dataset", …)):
        await reads.dicts("find_key", …)                  # both, in one round trip
        await reads.dicts("publication_of_dataset", …)    # the rows that came with it, once
"""

import asyncio
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dagmaster.database.connect import BY_KEY, Connection, connect
from dagmaster.database.pipeline import Call, Rows, execute
from dagmaster.errors import Unavailable

Dicts = list[dict[str, Any]]
_MAX_CONNECTIONS = 4
_MAX_WAIT_SECONDS = 10.0


@dataclass(slots=True)
class _Expected:
    """A call that a request will make, and its rows if they were read together with another call."""

    call: Call
    rows: Dicts | None = None
    is_open: bool = True


class PreparedReads:
    """Opens connections when they are needed, and keeps them until it is closed."""

    def __init__(self, dsn: str, role: str, *, statement_timeout_seconds: float = 15) -> None:
        self._dsn = dsn
        self._role = role
        self._statement_timeout_seconds = statement_timeout_seconds
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._expected: ContextVar[_Expected | None] = ContextVar(f"expected-{role}", default=None)

    @contextmanager
    def expecting(self, call: Call) -> Iterator[None]:
        """The request that is handled in this context will make this call. If it reads something else before, both are
        read in one round trip. The rows are used once, by the request that has read them."""
        expected = _Expected(call)
        token = self._expected.set(expected)
        try:
            yield
        finally:
            expected.is_open = False  # tasks that the request has started may still see it
            self._expected.reset(token)

    async def dicts(self, name: str, values: Mapping[str, Any]) -> Dicts:
        """The rows of a statement of `sql/`, as `session.dicts` returns them."""
        call, expected = Call(name, values), self._expected.get()
        if expected is not None and expected.is_open:
            if call == expected.call:
                expected.is_open = False
                if expected.rows is not None:
                    return expected.rows
            elif expected.rows is None and name != expected.call.name:
                rows, expected.rows = await self._read_all([call, expected.call])
                return rows
        return (await self._read_all([call]))[0]

    async def _read_all(self, calls: Sequence[Call]) -> list[Dicts]:
        await self._acquire()
        try:
            rows = await self._read(calls)
            return [[row._asdict() for row in rows[call.name]] for call in calls]
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

    async def _read(self, calls: Sequence[Call]) -> dict[str, Rows]:
        connection = await self._connection()
        try:
            rows = await execute(connection, calls)
        except BaseException:  # also if the request is cancelled: its rows still arrive on this connection
            await connection.close()
            raise
        self._idle.append(connection)
        return rows

    async def _connection(self) -> Connection:
        """The connection that was used last, so that surplus connections stay idle."""
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
    """Whether there is something to read although no query was sent: the server's last message, or the end."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
