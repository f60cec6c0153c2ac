"""The STAC catalogue: pgSTAC in the same database. It has its own deployment, and many handlers write to it at once.

Writers of one collection take turns: each batch is one transaction under an advisory lock. A batch that fails because
of concurrent work (pgSTAC's own maintenance, searches) is retried, and is done only when all its items have been
counted.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeVar

import orjson
import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from dagmaster import faults
from dagmaster.bbox import BBox
from dagmaster.database.connect import Connection, Database, conninfo, require_version, translate_errors
from dagmaster.database.queries import query
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, NotAllowed, NotFound, Unavailable, UnfitData

T = TypeVar("T")
Json = dict[str, Any]
Moments = tuple[datetime, datetime]
Base = tuple[Json, int | None]
Join = Callable[[Json, Json], Json]

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 4 * 2**20  # other writers of the collection wait for a batch
UNREADABLE: Final = "unknown"  # the version of a catalogue that this role may not read
PATIENCE_SECONDS: Final = 180.0
LOCK_SECONDS: Final = 30.0
STATEMENT_SECONDS: Final = 120.0
_PAUSES_SECONDS = (0.05, 2.0)
_NAMED_AT_MOST = 10

# Deadlock, serialization failure, lock timeout, object in use. Check violation: the row has no partition, or one whose
# constraint does not cover it yet, because pgSTAC ignores errors when it creates partitions. Unique violation: another
# program added the item without our lock. Query cancelled: the statement took too long, as it does on a busy server.
_TRANSIENT = frozenset({"40P01", "40001", "55P03", "55006", "23514", "23505", "57014"})
# Errors of pgSTAC and PostGIS for an item that they cannot read: raised, internal, data and integrity errors.
_BAD_ITEM = ("P0001", "XX000", "22", "23")
_COLUMNS = frozenset({"id", "collection", "geometry", "pgstac:base_item", "private"})
_DEPLOYING = "hashtext('pgstac.deploy')"


@dataclass(frozen=True, slots=True)
class CatalogStatus:
    """Versions of pgSTAC: the deployed one, and the one of this software (None if it is not installed)."""

    deployed: str | None
    software: str | None

    @property
    def is_current(self) -> bool:
        return self.deployed is not None and self.deployed == self.software


def software_version() -> str | None:
    """The version of pgSTAC that would be deployed; None if the extras `worker` and `serving` are not installed."""
    try:
        return version("pypgstac")
    except PackageNotFoundError:
        return None


def catalog_status(dsn: str) -> CatalogStatus:
    with _connected(dsn) as connection:
        return CatalogStatus(_deployed(connection), software_version())


def deploy_catalog(dsn: str, wait_seconds: float = 60) -> CatalogStatus:
    """Migrate pgSTAC to the installed version. A second deployment waits for the first, and then has nothing to do."""
    wanted = _require_software()
    with _connected(dsn) as connection:
        _lock_deployment(connection, wait_seconds)
        deployed = _deployed(connection)
        if deployed != wanted:
            _require_extensions(connection)
            _require_older(deployed, wanted)
            _migrate(dsn)
        return CatalogStatus(_deployed(connection), wanted)


def ensure_catalog(dsn: str, *, is_enabled: bool) -> CatalogStatus | None:
    """Deploy the catalogue; None if it is disabled or not installed."""
    return deploy_catalog(dsn) if is_enabled and software_version() else None


def not_deployed() -> Unavailable:
    return Unavailable(
        "the database has no STAC catalogue",
        code="catalog.not-deployed",
        hint="run `dagmaster db deploy` where dagmaster[worker] is installed",
    )


class StacCatalog:
    """What handlers do with the catalogue, on the connections of the worker."""

    def __init__(self, database: Database, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._database = database
        self._patience_seconds = patience_seconds

    async def ensure_collection(self, collection: Json, join: Join = lambda _known, new: new) -> bool:
        """Create or replace a collection; its extent remains that of its items. True if it is new.

        `join` combines the stored collection with the new one.
        """
        collection_id = _id_of(collection, "collection")

        async def put(connection: Connection) -> bool:
            stored = await dicts(connection, "catalog_known", {"collection": collection_id})
            return await put_collection(connection, join(stored[0]["content"], collection) if stored else collection)

        return await self._exclusively(collection_id, put)

    async def upsert_items(self, items: Sequence[Json], *, batch: int = BATCH_ITEMS) -> int:
        """Add items to one collection, or replace them. Returns their number."""
        if items:
            collection_id = _collection_of(items)
            moments = [moments_of(item) for item in items]
            for part in _batches(items, batch):
                await self._upsert(collection_id, items[part], moments[part])
        return len(items)

    async def _upsert(self, collection_id: str, items: Sequence[Json], moments: Sequence[Moments]) -> None:
        async with self._connection() as connection:
            base = await _base_of(connection, collection_id)
        # The slow part is done before the lock is taken. If the base changes in the meantime, the rows name the one
        # that they need.
        rows = [_row(item, moment, base) for item, moment in zip(items, moments, strict=True)]

        async def put(connection: Connection) -> None:
            await _put_items(connection, collection_id, rows, moments)

        await self._exclusively(collection_id, put)

    async def get_item(self, collection_id: str, item_id: str) -> Json | None:
        item: Json | None = await self._one("catalog_get_item", "item", collection=collection_id, id=item_id)
        return _whole(item) if item else None

    async def get_collection(self, collection_id: str) -> Json | None:
        collection: Json | None = await self._one("catalog_get_collection", "collection", collection=collection_id)
        return collection

    async def count_items(self, collection_id: str) -> int:
        return int(await self._one("catalog_count", "items", collection=collection_id))

    async def missing_items(self, collection_id: str, item_ids: Sequence[str]) -> list[str]:
        """The ids that the collection does not have."""
        async with self._connection() as connection:
            rows = await dicts(connection, "catalog_missing", {"collection": collection_id, "ids": list(item_ids)})
        return [row["id"] for row in rows]

    async def refresh_extent(self, collection_id: str) -> Json | None:
        """Set the extent of a collection to that of its items. None, and no change, if it has no items."""

        return await self._exclusively(collection_id, partial(refresh_extent, collection_id=collection_id))

    async def delete_older(self, collection_id: str, *, ordinal: int, revision: int) -> list[str]:
        """Remove the items of earlier revisions of a version. Returns their ids."""
        values = {"collection": collection_id, "ordinal": ordinal, "revision": revision}

        async def delete(connection: Connection) -> list[str]:
            return [row["id"] for row in await dicts(connection, "catalog_delete_older", values)]

        return await self._exclusively(collection_id, delete)

    async def link_versions(self, collection_id: str, items_url: str) -> int:
        """Let every item link to the versions before and after it, and mark all but the newest version as deprecated.

        Tiles are linked to the tiles with the same name. Returns the number of items that changed.
        """
        link = partial(link_versions, collection_id=collection_id, items_url=items_url)
        return await self._exclusively(collection_id, link)

    async def _one(self, name: str, column: str, **values: Any) -> Any:
        async with self._connection() as connection:
            (row,) = await dicts(connection, name, values)
            return row[column]

    async def _exclusively(self, collection_id: str, act: Callable[[Connection], Awaitable[T]]) -> T:
        """Act as the only writer of a collection, and retry after failures that others caused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_seconds
        pause, longest = _PAUSES_SECONDS
        while True:
            try:
                async with self._connection() as connection:
                    with retryable():
                        async with connection.transaction():
                            await lock_collection(connection, collection_id)
                            result = await act(connection)
                            faults.reach("catalogue.before-commit")
                        faults.reach("catalogue.after-commit")
                        return result
            except Retry as error:
                if loop.time() > deadline:
                    raise _busy(collection_id, error) from error.__cause__
            # With jitter, so that writers that wait for the same lock do not all return at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, longest)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translate_errors(), requiring_catalog():
            async with self._database.connection() as connection:
                yield connection


class Retry(Exception):
    """A failure that concurrent work of others caused."""


# The functions below run in the transaction of the caller, who has locked the collection.


async def put_collection(connection: Connection, collection: Json) -> bool:
    """Create or replace a collection; if it has items, its extent stays. True if it is new."""
    collection_id = _id_of(collection, "collection")
    with blaming_data(f"collection '{collection_id}'"):
        values = {"collection": collection_id, "content": dumped(collection)}
        rows = await dicts(connection, "catalog_put_collection", values)
    return bool(rows and rows[0]["is_new"])


async def refresh_extent(connection: Connection, collection_id: str) -> Json | None:
    rows = await dicts(connection, "catalog_boxes", {"collection": collection_id})
    if not rows:
        return None
    extent = extent_of(rows)
    await connection.execute(query("catalog_set_extent"), {"collection": collection_id, "extent": dumped(extent)})
    return extent


async def link_versions(connection: Connection, collection_id: str, items_url: str) -> int:
    values = {"collection": collection_id, "items_url": items_url}
    return len(await dicts(connection, "catalog_link_versions", values))


async def lock_collection(connection: Connection, collection_id: str) -> None:
    """Wait for the lock without a statement timeout: the lock timeout ends the wait, and it is retried."""
    await set_limits(connection, statement_seconds=0)
    await connection.execute(query("catalog_lock"), {"collection": collection_id})
    await set_limits(connection)


async def set_limits(
    connection: Connection, *, lock_seconds: float | None = None, statement_seconds: float | None = None
) -> None:
    """The time limits of the statements that follow in this transaction."""
    lock = LOCK_SECONDS if lock_seconds is None else lock_seconds
    statement = STATEMENT_SECONDS if statement_seconds is None else statement_seconds
    limits = {"lock_ms": round(lock * 1000), "statement_ms": round(statement * 1000)}
    await connection.execute(query("catalog_timeouts"), limits)


def _batches(items: Sequence[Json], most: int) -> Iterator[slice]:
    """Items that are written in one transaction: limited in number and size."""
    start, size = 0, 0
    for place, item in enumerate(items):
        item_size = len(dumped(item))
        if place > start and (place - start == most or size + item_size > BATCH_BYTES):
            yield slice(start, place)
            start, size = place, 0
        size += item_size
    yield slice(start, len(items))


async def _base_of(connection: Connection, collection_id: str) -> Base:
    rows = await dicts(connection, "catalog_base", {"collection": collection_id})
    if not rows:
        raise NotFound(
            f"the catalogue has no collection '{collection_id}'",
            code="catalog.no-collection",
            hint="create the collection before its items are registered",
        )
    return rows[0]["base_item"], rows[0]["base_item_id"]


async def _put_items(
    connection: Connection, collection_id: str, rows: Sequence[Json], moments: Sequence[Moments]
) -> None:
    begins, ends = [begin for begin, _ in moments], [end for _, end in moments]
    with blaming_data(f"items of collection '{collection_id}'"):
        spans = {"collection": collection_id, "begins": begins, "ends": ends}
        await connection.execute(query("catalog_partitions"), spans)
        await connection.execute(query("catalog_put_items"), {"collection": collection_id, "items": dumped(rows)})
    ids = [row["id"] for row in rows]
    if lost := await dicts(connection, "catalog_missing", {"collection": collection_id, "ids": ids}):
        raise Retry(f"{len(lost)} of {len(ids)} items were not stored")


def _row(item: Json, moments: Moments, base: Base) -> Json:
    """An item as pgSTAC stores it: without the fields that it shares with its collection, and with the number of that
    base.

    Without a number, the first base of the collection applies.
    """
    from pypgstac.hydration import dehydrate

    base_item, base_item_id = base
    dehydrated = dehydrate(_comparable(base_item, item), item)
    content = {key: value for key, value in dehydrated.items() if key not in _COLUMNS}
    if base_item_id is not None:
        content["pgstac:base_item"] = base_item_id
    begin, end = moments
    return {"id": item["id"], "geometry": item["geometry"], "datetime": begin, "end_datetime": end, "content": content}


def _comparable(base: Any, item: Any) -> Any:
    """The base without what is not an object where the item has an object: pypgstac would read a text as an object,
    and fail or store a mark for each of its characters.
    """
    if isinstance(base, dict) and isinstance(item, dict):
        return {
            key: _comparable(value, item.get(key))
            for key, value in base.items()
            if isinstance(value, dict) or not isinstance(item.get(key), dict)
        }
    if isinstance(base, list) and isinstance(item, list) and len(base) == len(item):
        return [_comparable(*pair) for pair in zip(base, item, strict=True)]
    return base


def moments_of(item: Json) -> Moments:
    """The interval of an item, or its datetime twice."""
    properties = item.get("properties")
    times = properties if isinstance(properties, dict) else {}
    begin, end = times.get("start_datetime"), times.get("end_datetime")
    if begin is None or end is None:
        begin = end = times.get("datetime")
    try:
        moments = datetime.fromisoformat(begin), datetime.fromisoformat(end)  # type: ignore[arg-type]
        if None not in (moments[0].tzinfo, moments[1].tzinfo) and moments[0] <= moments[1]:
            return moments
    except (TypeError, ValueError):
        pass
    raise UnfitData(
        f"item '{item['id']}' has no valid datetime or interval",
        code="catalog.bad-item",
        hint="write 2024-01-31T12:00:00Z, in start_datetime and end_datetime if it is an interval",
    )


def _collection_of(items: Sequence[Json]) -> str:
    """The collection of all items. Items that pgSTAC would drop silently are refused."""
    seen: set[str] = set()
    for item in items:
        item_id = _id_of(item, "item")
        if item_id in seen:
            raise UnfitData(f"two items have the id '{item_id}'", code="catalog.duplicate-item")
        if item.get("geometry") is None:
            raise UnfitData(f"item '{item_id}' has no geometry", code="catalog.bad-item")
        seen.add(item_id)
    collections = {item.get("collection") for item in items}
    collection_id = next(iter(collections))
    if len(collections) > 1 or not isinstance(collection_id, str) or not collection_id:
        raise UnfitData("items that are registered together name one collection", code="catalog.bad-item")
    return collection_id


def _whole(item: Json) -> Json:
    """pgSTAC drops nulls; an item with an interval must have a `datetime` of null."""
    item["properties"].setdefault("datetime", None)
    return item


def _id_of(thing: Json, kind: str) -> str:
    value = thing.get("id")
    if not isinstance(value, str) or not value:
        raise UnfitData(f"the {kind} has no id", code=f"catalog.bad-{kind}")
    return value


def dumped(value: Any) -> str:
    return orjson.dumps(value).decode()


def extent_of(rows: Iterable[Mapping[str, Any]]) -> Json:
    rows = list(rows)
    box = BBox.union(BBox.of(row["bbox"]) for row in rows)
    begin, end = min(row["datetime"] for row in rows), max(row["end_datetime"] for row in rows)
    return {"spatial": {"bbox": [box.as_list()]}, "temporal": {"interval": [[_rfc3339(begin), _rfc3339(end)]]}}


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def retryable() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in _TRANSIENT:
            raise
        raise Retry(error.diag.message_primary) from error


@contextmanager
def requiring_catalog() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        raise not_deployed() from None


@contextmanager
def blaming_data(what: str) -> Iterator[None]:
    """Turn errors that the data cause into UnfitData."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state in _TRANSIENT or not state.startswith(_BAD_ITEM):
            raise
        raise UnfitData(f"{what} cannot be stored: {error.diag.message_primary}", code="catalog.bad-item") from error


def _busy(collection_id: str, error: Retry) -> Unavailable:
    return Unavailable(
        f"collection '{collection_id}' could not be written: {error}",
        code="catalog.busy",
        hint="look for long transactions on it in pg_stat_activity",
    )


def _require_software() -> str:
    wanted = software_version()
    if wanted is None:
        raise Unavailable(
            "pgSTAC is not installed", code="catalog.not-installed", hint="pip install 'dagmaster[worker]'"
        )
    return wanted


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


def _require_older(deployed: str | None, wanted: str) -> None:
    if deployed and _numbers(deployed) > _numbers(wanted):
        raise Conflict(
            f"the database has pgSTAC {deployed}, which is newer than the {wanted} of this software",
            code="catalog.newer",
            hint="use the newer software",
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
        with translate_errors(), psycopg.connect(_address(dsn), autocommit=True) as connection:
            require_version(connection.info.server_version)
            yield connection
    except NotAllowed as error:
        hint = (
            "let a superuser deploy it once (it creates extensions, roles and a schema), or set CATALOG_ENABLED=false"
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
    while not (connection.execute(f"SELECT pg_try_advisory_lock({_DEPLOYING})".encode()).fetchone() or [False])[0]:
        if time.monotonic() > deadline:
            raise Conflict("another deployment is running", code="database.deploying", hint="try again later")
        time.sleep(0.1)


def _migrate(dsn: str) -> None:
    """One transaction, by pgSTAC's own files."""
    from pypgstac.db import PgstacDB
    from pypgstac.migrate import Migrate

    with ConnectionPool(_address(dsn), min_size=0, max_size=1, open=True, name="dagmaster-catalog") as pool:
        database = PgstacDB(pool=pool)
        try:
            Migrate(database).run_migration()
        finally:
            database.disconnect()
