"""What map servers read from the catalogue: the versions of a dataset, and the item of a version."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import PoolTimeout

from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.database.connect import pool, translate_errors
from dagmaster.database.queries import query
from dagmaster.errors import Unavailable

_POOL_SIZE = 4


@dataclass(frozen=True, slots=True)
class ServedDataset:
    """A collection, and the ids of its items that are a whole version."""

    collection: dict[str, Any]
    item_ids: tuple[str, ...]


class CatalogReader:
    """Use as a context: `async with CatalogReader(dsn) as catalog`. Queries fail while the database is unavailable."""

    def __init__(self, dsn: str) -> None:
        self._pool = pool(dsn, "serving", 0, _POOL_SIZE, statement_timeout_seconds=5)

    async def __aenter__(self) -> "CatalogReader":
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def dataset(self, dataset: str) -> ServedDataset | None:
        async with self._cursor() as cursor:
            await cursor.execute(query("served_dataset"), {"dataset": dataset})
            row = await cursor.fetchone()
        return ServedDataset(row["collection"], tuple(row["item_ids"])) if row else None

    async def item(self, dataset: str, item_id: str) -> dict[str, Any] | None:
        async with self._cursor() as cursor:
            await cursor.execute(query("served_item"), {"dataset": dataset, "item_id": item_id})
            row = await cursor.fetchone()
        return row["item"] if row else None

    async def catalogue_version(self) -> str:
        async with self._cursor() as cursor:
            await cursor.execute(query("served_catalogue"))
            row = await cursor.fetchone()
        return str(row["version"]) if row else ""

    @asynccontextmanager
    async def _cursor(self) -> "AsyncIterator[psycopg.AsyncCursor[DictRow]]":
        with _translated(), translate_errors():
            async with self._pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
                yield cursor


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        raise not_deployed() from None
    except PoolTimeout:
        message = "no connection to the database was free in time"
        raise Unavailable(message, code="database.unavailable", hint="check that the server runs") from None
