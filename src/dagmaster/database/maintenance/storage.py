"""What `verify-storage` reads from the database, and the comparison with the objects of the zones.

Objects and the rows that name them are copied into two temporary tables, and statements compare these: memory holds one
batch, however many objects there are. Nothing else is written. What the database names is read in one snapshot, after
the objects were listed.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any
from uuid import UUID

from psycopg import IsolationLevel
from psycopg.rows import dict_row

from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.queries import query

Row = dict[str, Any]

FETCH_ROWS = 2_000
_OBJECT = (
    "zone",
    "container",
    "blob",
    "size_bytes",
    "modified_at",
    "kind",
    "dataset_id",
    "version_ordinal",
    "revision",
    "job_id",
)
_REFERENCE = (
    "zone",
    "container",
    "blob",
    "kind",
    "size_bytes",
    "sha256",
    "dataset_id",
    "version_ordinal",
    "revision",
    "document_id",
    "asset_key",
    "is_served",
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that exists. `kind`, edition and job are those in its name."""

    zone: str
    container: str
    blob: str
    size_bytes: int
    modified_at: datetime
    kind: str | None = None
    dataset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StorageReference:
    """A row that names an object. `kind` is document, copy, source, upload or input."""

    zone: str
    container: str
    blob: str
    kind: str
    size_bytes: int | None = None
    sha256: str | None = None
    dataset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    document_id: str | None = None
    asset_key: str | None = None
    is_served: bool = False


class StorageComparison:
    """One connection with the two tables."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add_objects(self, objects: Iterable[StoredObject]) -> None:
        await self._copy("storage_objects", _OBJECT, objects)

    async def add_references(self, references: Iterable[StorageReference]) -> None:
        await self._copy("storage_references", _REFERENCE, references)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """A transaction in which everything is read from one snapshot."""
        with translate_errors():
            async with self._connection.transaction():
                yield

    async def stream(self, name: str, values: Mapping[str, Any] | None = None) -> AsyncIterator[list[Row]]:
        """The rows of a statement, some at a time. Outside of a snapshot it keeps no transaction open."""
        is_held = self._connection.info.transaction_status.name == "IDLE"
        with translate_errors():
            async with self._connection.cursor(name=name, row_factory=dict_row, withhold=is_held) as cursor:
                await cursor.execute(query(name), values or {})
                while rows := await cursor.fetchmany(FETCH_ROWS):
                    yield rows

    async def rows(self, name: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        with translate_errors():
            cursor = self._connection.cursor(row_factory=dict_row)
            return await (await cursor.execute(query(name), values or {})).fetchall()

    async def run(self, name: str, values: Mapping[str, Any] | None = None) -> int:
        """Run a statement that fills one of the tables. Returns the number of its rows."""
        with translate_errors():
            return (await self._connection.execute(query(name), values or {})).rowcount

    async def analyze(self) -> None:
        """Without statistics, PostgreSQL would compare each object with each reference."""
        with translate_errors():
            await self._connection.execute("ANALYZE storage_objects, storage_references")

    async def _copy(self, table: str, columns: tuple[str, ...], records: Iterable[object]) -> None:
        with translate_errors():
            async with (
                self._connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy,
            ):
                for record in records:
                    await copy.write_row([getattr(record, column) for column in columns])


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[StorageComparison]:
    """A comparison with empty tables. After they were created, the connection can write to nothing else."""
    connection = await connect(dsn, role="storage", statement_timeout_seconds=0, idle_in_transaction_seconds=600)
    try:
        with translate_errors():
            await connection.execute(_tables())
            await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            await connection.execute("SET default_transaction_read_only = on")
        yield StorageComparison(connection)
    finally:
        await connection.close()


def _tables() -> bytes:
    return files("dagmaster.database").joinpath("sql", "storage", "tables.sql").read_bytes()
