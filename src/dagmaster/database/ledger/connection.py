"""The connection of a ledger, and the functions that run its statements."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from psycopg.rows import namedtuple_row

from dagmaster import faults
from dagmaster.database import pipeline
from dagmaster.database.connect import BY_KEY, Connection
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.notify.postgres import channel_of
from dagmaster.database.queries import query
from dagmaster.database.session import Session


class LedgerConnection(Session):
    def __init__(self, dsn: str, role: str = "ledger", notifier: Notifier | None = None) -> None:
        super().__init__(dsn, role, notifier, settings=BY_KEY)

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


async def fetch(connection: Connection, name: str, values: Mapping[str, Any]) -> list[Any]:
    """The rows of a prepared statement, by column name."""
    cursor = connection.cursor(row_factory=namedtuple_row)
    await cursor.execute(query(name), values, prepare=True)
    return await cursor.fetchall()


def notification(topics: Sequence[str]) -> list[pipeline.PipelineStep]:
    """The steps that follow a COMMIT in its round trip: NOTIFY in a transaction of its own.

    A transaction that notifies blocks all others that notify until it is on disk, so one that changes state never
    notifies.
    """
    if not topics:
        return []
    return [pipeline.BREAK, pipeline.Call("notify_channels", {"channels": [channel_of(topic) for topic in topics]})]


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def columns_of(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Rows as one array for each column, as `unnest` takes them."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
