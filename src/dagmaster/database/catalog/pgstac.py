"""The STAC catalogue: pgSTAC in the same database. It has its own deployment.

Writers of one collection take turns: each writes in a transaction under an advisory lock. `RetryableConflict`
says that concurrent work (pgSTAC's own maintenance, searches) made the transaction fail; the caller repeats it. What an
asset publishes is written by `publish.py`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import orjson
import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from dagmaster.bbox import BBox
from dagmaster.database.catalog.roles import allow_temporary_tables, join_roles
from dagmaster.database.connect import Connection, conninfo, require_version, translate_errors
from dagmaster.database.queries import query
from dagmaster.database.session import dicts
from dagmaster.database.token_login import TokenBlockingConnection
from dagmaster.errors import Conflict, NotAllowed, Unavailable, UnfitData
from dagmaster.timestamps import rfc3339

Json = dict[str, Any]

UNREADABLE: Final = "unknown"  # the version of a catalogue that this role may not read
LOCK_SECONDS: Final = 30.0
STATEMENT_SECONDS: Final = 120.0

# Deadlock, serialization failure, lock timeout, object in use. Check violation: the row has no partition, or one whose
# constraint does not cover it yet, because pgSTAC ignores errors when it creates partitions. Unique violation: another
# program added the item without our lock. Query cancelled: the statement took too long, as it does on a busy server.
_TRANSIENT = frozenset({"40P01", "40001", "55P03", "55006", "23514", "23505", "57014"})
# Errors of pgSTAC and PostGIS for an item that they cannot read: raised, internal, data and integrity errors.
_BAD_ITEM = ("P0001", "XX000", "22", "23")


@dataclass(frozen=True, slots=True)
class CatalogStatus:
    """Versions of pgSTAC: the deployed one, and the one of this software (None if it is not installed)."""

    deployed: str | None
    software: str | None

    @property
    def is_current(self) -> bool:
        return self.deployed is not None and self.deployed == self.software


def software_version() -> str | None:
    """The version of pgSTAC that would be deployed; None if it is not installed."""
    try:
        return version("pypgstac")
    except PackageNotFoundError:
        return None


def catalog_status(dsn: str) -> CatalogStatus:
    with _connected(dsn) as connection:
        return CatalogStatus(_deployed(connection), software_version())


def deploy_catalog(dsn: str, wait_seconds: float = 60) -> CatalogStatus:
    """Migrate pgSTAC to the installed version. A second deployment waits for the first, and then has nothing to do."""
    required = _require_software()
    with _connected(dsn) as connection:
        _lock_deployment(connection, wait_seconds)
        deployed = _deployed(connection)
        if deployed != required:
            _require_extensions(connection)
            _require_older(deployed, required)
            join_roles(connection)
        allow_temporary_tables(connection)
        if deployed != required:
            _migrate(dsn)
        return CatalogStatus(_deployed(connection), required)


def ensure_catalog(dsn: str, *, is_enabled: bool) -> CatalogStatus | None:
    """Deploy the catalogue; None if it is disabled or not installed."""
    return deploy_catalog(dsn) if is_enabled and software_version() else None


def not_deployed() -> Unavailable:
    return Unavailable(
        "the database has no STAC catalogue",
        code="catalog.not-deployed",
        hint="run `dagmaster db deploy` where dagmaster[orchestrator] is installed",
    )


class RetryableConflict(Exception):
    """A failure that a concurrent transaction caused."""


# The functions below run in the transaction of the caller, who has locked the collection.


async def put_collection(connection: Connection, collection: Json) -> None:
    """Create or replace a collection; if it has items, its extent stays."""
    collection_id = collection["id"]
    with blaming_data(f"collection '{collection_id}'"):
        values = {"collection": collection_id, "content": dumped(collection)}
        await connection.execute(query("catalog_put_collection"), values)


async def refresh_extent(connection: Connection, collection_id: str) -> None:
    """Set the extent of a collection to that of its items, if it has any."""
    if rows := await dicts(connection, "catalog_boxes", {"collection": collection_id}):
        values = {"collection": collection_id, "extent": dumped(extent_of(rows))}
        await connection.execute(query("catalog_set_extent"), values)


async def link_versions(connection: Connection, collection_id: str, items_url: str) -> None:
    """Let every item link to the versions before and after it, and mark all but the newest version as deprecated.

    Tiles are linked to the tiles with the same name.
    """
    values = {"collection": collection_id, "items_url": items_url}
    await connection.execute(query("catalog_link_versions"), values)


async def lock_collection(connection: Connection, collection_id: str, *, creates_partitions: bool = False) -> None:
    """Wait for the locks without a statement timeout: the lock timeout ends the wait, and the caller retries.

    Several collections can be written at once. A transaction that creates partitions runs alone: it needs a lock on the
    table of all items, which it would otherwise never get while other collections are written one after another.
    """
    await set_limits(connection, statement_seconds=0)
    await connection.execute(query("catalog_lock"), {"collection": collection_id})
    await connection.execute(query("catalog_lock_partitions" if creates_partitions else "catalog_share_partitions"))
    await set_limits(connection)


async def set_limits(
    connection: Connection, *, lock_seconds: float | None = None, statement_seconds: float | None = None
) -> None:
    """Set the time limits of the statements that follow in this transaction."""
    lock = LOCK_SECONDS if lock_seconds is None else lock_seconds
    statement = STATEMENT_SECONDS if statement_seconds is None else statement_seconds
    limits = {"lock_ms": round(lock * 1000), "statement_ms": round(statement * 1000)}
    await connection.execute(query("catalog_timeouts"), limits)


def dumped(value: Any) -> str:
    return orjson.dumps(value).decode()


def extent_of(rows: Iterable[Mapping[str, Any]]) -> Json:
    rows = list(rows)
    box = BBox.union(BBox.of(row["bbox"]) for row in rows)
    begin, end = min(row["datetime"] for row in rows), max(row["end_datetime"] for row in rows)
    return {"spatial": {"bbox": [box.as_list()]}, "temporal": {"interval": [[rfc3339(begin), rfc3339(end)]]}}


@contextmanager
def retryable() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in _TRANSIENT:
            raise
        raise RetryableConflict(error.diag.message_primary) from error


@contextmanager
def blaming_data(subject: str) -> Iterator[None]:
    """Turn errors that the data cause into UnfitData."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state in _TRANSIENT or not state.startswith(_BAD_ITEM):
            raise
        raise UnfitData(f"{subject} cannot be stored: {error.diag.message_primary}", code="catalog.bad-item") from error


def _require_software() -> str:
    version = software_version()
    if version is None:
        raise Unavailable(
            "pgSTAC is not installed", code="catalog.not-installed", hint="pip install 'dagmaster[orchestrator]'"
        )
    return version


def _require_extensions(connection: psycopg.Connection[Any]) -> None:
    rows = connection.cursor(row_factory=dict_row).execute(query("catalog_extensions").encode())
    missing = [row["name"] for row in rows]
    if missing:
        raise Unavailable(
            f"this server lacks extensions that the STAC catalogue needs: {', '.join(missing)}",
            code="catalog.no-extension",
            hint="install PostGIS (apt-get install postgresql-15-postgis-3), or set CATALOG_ENABLED=false",
            missing=missing,
        )


def _require_older(deployed: str | None, required: str) -> None:
    if deployed and _numbers(deployed) > _numbers(required):
        raise Conflict(
            f"the database has pgSTAC {deployed}, which is newer than the {required} of this software",
            code="catalog.newer",
            hint="use the release of dagmaster that deployed it",
        )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdecimal()]


def _deployed(connection: psycopg.Connection[Any]) -> str | None:
    try:
        row = connection.cursor(row_factory=dict_row).execute(query("catalog_version").encode()).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    except psycopg.errors.InsufficientPrivilege:
        return UNREADABLE
    return str(row["version"]) if row else None


@contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with translate_errors(), TokenBlockingConnection.connect(_address(dsn), autocommit=True) as connection:
            require_version(connection.info.server_version)
            yield connection
    except NotAllowed as error:
        hint = (
            "let an administrator deploy it (it creates extensions, roles and a schema), or set CATALOG_ENABLED=false"
        )
        raise NotAllowed(error.message, code=error.code, hint=hint) from error


def _address(dsn: str) -> str:
    return conninfo(
        dsn,
        "catalog",
        statement_seconds=0,
        lock_seconds=LOCK_SECONDS,
        idle_seconds=0,
        settings={"search_path": "public"},
    )


def _lock_deployment(connection: psycopg.Connection[Any], wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while not _try_lock(connection):
        if time.monotonic() > deadline:
            raise Conflict("another deployment is running", code="database.deploying", hint="try again later")
        time.sleep(0.1)


def _try_lock(connection: psycopg.Connection[Any]) -> bool:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query("catalog_try_deployment_lock").encode()).fetchone()
    return bool(row and row["is_acquired"])


def _migrate(dsn: str) -> None:
    """Run pgSTAC's own migration, in one transaction."""
    from pypgstac.db import PgstacDB
    from pypgstac.migrate import Migrate

    connections: ConnectionPool[Any] = ConnectionPool(
        _address(dsn),
        connection_class=TokenBlockingConnection,
        min_size=0,
        max_size=1,
        open=True,
        name="dagmaster-catalog",
    )
    with connections as pool:
        database = PgstacDB(pool=pool)
        try:
            Migrate(database).run_migration()
        finally:
            database.disconnect()
