"""What map servers read: who may read a version, the documents of a revision, and which collections are published."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout

from dagmaster.assets.states import Clearance
from dagmaster.database.assets import publications
from dagmaster.database.assets.publications import AssetPublication
from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.database.connect import Connection, pool, translate_errors
from dagmaster.database.prepared_reads import PreparedReads
from dagmaster.database.session import dicts
from dagmaster.errors import Unavailable

Json = dict[str, Any]
_POOL_SIZE = 4
_STATEMENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PublishedCollections:
    """Collections that a caller may see, and whether the catalogue has others."""

    ids: tuple[str, ...]
    has_others: bool


def too_slow(seconds: float) -> Unavailable:
    return Unavailable(
        f"the catalogue did not respond within {seconds:g} s",
        code="catalog.too-slow",
        hint="narrow the search by `collections`, `bbox` or `datetime`, use a lower `limit`, or repeat it later",
    )


class CatalogReader:
    """Use as a context: `async with CatalogReader(dsn) as catalog`. Queries fail while the database is unavailable."""

    def __init__(self, dsn: str) -> None:
        self._pool = pool(dsn, "serving", 0, _POOL_SIZE, statement_timeout_seconds=_STATEMENT_SECONDS)
        # Also reads the keys of callers: a connection that was used a moment ago responds faster than another one.
        self.request_reads = PreparedReads(dsn, "serving-access", statement_timeout_seconds=_STATEMENT_SECONDS)

    async def __aenter__(self) -> "CatalogReader":
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()
        await self.request_reads.close()

    def expecting(self, name: str, ordinal: int | None, revision: int | None) -> AbstractContextManager[None]:
        """Announce that the request handled in this context will read this publication: it is read together with the
        key of the caller."""
        call = publications.publication_call(name, ordinal, revision)
        return nullcontext() if call is None else self.request_reads.expecting(call)

    async def publication(
        self, name: str, ordinal: int | None = None, revision: int | None = None
    ) -> AssetPublication | None:
        with _translated():
            return await publications.read_publication(self.request_reads.dicts, name, ordinal, revision)

    async def documents(self, dataset_id: str, ordinal: int, revision: int, ids: Sequence[str]) -> dict[str, Json]:
        async with self._connected() as connection:
            return await publications.read_documents(connection, dataset_id, ordinal, revision, ids)

    async def items(self, dataset_id: str, ordinal: int, revision: int, *, after: str, limit: int) -> list[Json]:
        async with self._connected() as connection:
            return await publications.read_items(connection, dataset_id, ordinal, revision, after=after, limit=limit)

    async def hrefs(self, dataset_id: str, ordinal: int, revision: int) -> list[str]:
        async with self._connected() as connection:
            return await publications.read_hrefs(connection, dataset_id, ordinal, revision)

    async def signing_secret(self, key_id: str) -> str | None:
        with _translated():
            return await publications.read_signing_secret(self.request_reads.dicts, key_id)

    async def collections(self, clearances: Iterable[Clearance]) -> PublishedCollections:
        async with self._connected() as connection:
            (row,) = await dicts(connection, "served_collections", {"clearances": list(clearances)})
        return PublishedCollections(tuple(row["ids"]), row["has_others"])

    async def catalogue_version(self) -> str:
        async with self._connected() as connection:
            (row,) = await dicts(connection, "served_catalogue", {})
        return str(row["version"])

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with _translated():
            async with self._pool.connection() as connection:
                yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        with translate_errors(), _limited():
            yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        raise not_deployed() from None
    except PoolTimeout:
        message = "no connection to the database was free in time"
        raise Unavailable(message, code="database.unavailable", hint="check that the server runs") from None


@contextmanager
def _limited() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise too_slow(_STATEMENT_SECONDS) from None
