"""The STAC catalogue: pgSTAC in the same database, deployed as a step of its own, and written to by many at once.

Writers of one collection go one after another, each batch in a transaction of its own under an advisory lock; what others
(pgSTAC's own maintenance, searches) make fail is tried again, and a batch is only done when all its items were counted.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
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
UNREADABLE: Final = "unknown"  # the version of a catalogue that this role may not look at
PATIENCE_SECONDS: Final = 180.0
LOCK_SECONDS: Final = 30.0
STATEMENT_SECONDS: Final = 120.0
_PAUSES_SECONDS = (0.05, 2.0)
_NAMED_AT_MOST = 10

# Deadlock, serialization failure, no lock in time, object in use; and no partition for a row, or one whose constraint does not
# hold it yet: pgSTAC swallows the error of a partition that it could not make, and stumbles over its lack. Last, an item that
# someone has added who does not ask for our lock.
_PASSING = frozenset({"40P01", "40001", "55P03", "55006", "23514", "23505"})
# What pgSTAC and PostGIS say of an item that they can't read: raised, internal, data and integrity errors.
_BAD_ITEM = ("P0001", "XX000", "22", "23")
_COLUMNS = frozenset({"id", "collection", "geometry", "pgstac:base_item", "private"})
_DEPLOYING = "hashtext('pgstac.deploy')"


@dataclass(frozen=True, slots=True)
class CatalogStatus:
    """Versions of pgSTAC: deployed, and the one that this software brings (None where it is not installed)."""

    deployed: str | None
    software: str | None

    @property
    def is_current(self) -> bool:
        return self.deployed is not None and self.deployed == self.software


def software_version() -> str | None:
    """The version of pgSTAC that would be deployed; None where the extras `worker` and `serving` are not installed."""
    try:
        return version("pypgstac")
    except PackageNotFoundError:
        return None


def catalog_status(dsn: str) -> CatalogStatus:
    with _connected(dsn) as connection:
        return CatalogStatus(_deployed(connection), software_version())


def deploy_catalog(dsn: str, wait_seconds: float = 60) -> CatalogStatus:
    """Bring pgSTAC to the version that is installed here. Whoever comes second waits, and finds nothing to do."""
    wanted = _require_software()
    with _connected(dsn) as connection:
        _await_turn(connection, wait_seconds)
        found = _deployed(connection)
        if found != wanted:
            _require_extensions(connection)
            _require_older(found, wanted)
            _migrate(dsn)
        return CatalogStatus(_deployed(connection), wanted)


def ensure_catalog(dsn: str, *, is_enabled: bool) -> CatalogStatus | None:
    """Deploy the catalogue where it is wanted and can be; None where it is off, or not installed."""
    return deploy_catalog(dsn) if is_enabled and software_version() else None


def not_deployed() -> Unavailable:
    return Unavailable(
        "the database has no STAC catalogue", code="catalog.not-deployed",
        hint="run `dagmaster db deploy` where dagmaster[worker] is installed",
    )  # fmt: skip


class StacCatalog:
    """What handlers do with the catalogue, over the pool that they are given."""

    def __init__(self, database: Database, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._database = database
        self._patience_seconds = patience_seconds

    async def ensure_collection(self, collection: Json, join: Join = lambda _known, new: new) -> bool:
        """Create a collection, or say of it what this one says; its extent stays that of its items. True: it is new.

        `join` is given what is known of the collection and what is new, and answers what is to be said.
        """
        collection_id = _id_of(collection, "collection")

        async def put(connection: Connection) -> bool:
            known = await dicts(connection, "catalog_known", {"collection": collection_id})
            wanted = join(known[0]["content"], collection) if known else collection
            values = {"collection": collection_id, "content": _dumped(wanted)}
            with _blamed(f"collection '{collection_id}'"):
                rows = await dicts(connection, "catalog_put_collection", values)
            return bool(rows and rows[0]["is_new"])

        return await self._alone(collection_id, put)

    async def upsert_items(self, items: Sequence[Json], *, batch: int = BATCH_ITEMS) -> int:
        """Register items of one collection: new ones are added, others replaced. Answers how many there are of them."""
        if items:
            collection_id = _collection_of(items)
            moments = [_moments_of(item) for item in items]
            for start in range(0, len(items), batch):
                some = slice(start, start + batch)
                await self._upsert(collection_id, items[some], moments[some])
        return len(items)

    async def _upsert(self, collection_id: str, items: Sequence[Json], moments: Sequence[Moments]) -> None:
        async with self._connection() as connection:
            base = await _base_of(connection, collection_id)
        # What takes time is done before others have to wait. Should the base change meanwhile, the rows name the one they need.
        rows = [_row(item, moment, base) for item, moment in zip(items, moments, strict=True)]

        async def put(connection: Connection) -> None:
            await _put_items(connection, collection_id, rows, moments)

        await self._alone(collection_id, put)

    async def get_item(self, collection_id: str, item_id: str) -> Json | None:
        found: Json | None = await self._one("catalog_get_item", "item", collection=collection_id, id=item_id)
        return _whole(found) if found else None

    async def get_collection(self, collection_id: str) -> Json | None:
        found: Json | None = await self._one("catalog_get_collection", "collection", collection=collection_id)
        return found

    async def count_items(self, collection_id: str) -> int:
        return int(await self._one("catalog_count", "items", collection=collection_id))

    async def missing_items(self, collection_id: str, item_ids: Sequence[str]) -> list[str]:
        """Which of these are not there."""
        async with self._connection() as connection:
            rows = await dicts(connection, "catalog_missing", {"collection": collection_id, "ids": list(item_ids)})
        return [row["id"] for row in rows]

    async def refresh_extent(self, collection_id: str) -> Json | None:
        """Let a collection's extent be that of its items; None where it has none, and then it stays."""

        async def refresh(connection: Connection) -> Json | None:
            rows = await dicts(connection, "catalog_boxes", {"collection": collection_id})
            if not rows:
                return None
            extent = _extent_of(rows)
            values = {"collection": collection_id, "extent": _dumped(extent)}
            await connection.execute(query("catalog_set_extent"), values)
            return extent

        return await self._alone(collection_id, refresh)

    async def delete_older(self, collection_id: str, *, ordinal: int, revision: int) -> list[str]:
        """Remove what earlier revisions of a version left behind. Answers their ids."""
        values = {"collection": collection_id, "ordinal": ordinal, "revision": revision}

        async def delete(connection: Connection) -> list[str]:
            return [row["id"] for row in await dicts(connection, "catalog_delete_older", values)]

        return await self._alone(collection_id, delete)

    async def _one(self, name: str, column: str, **values: Any) -> Any:
        async with self._connection() as connection:
            (row,) = await dicts(connection, name, values)
            return row[column]

    async def _alone(self, collection_id: str, act: Callable[[Connection], Awaitable[T]]) -> T:
        """Act as the only writer of a collection; again, where others were in the way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_seconds
        pause, longest = _PAUSES_SECONDS
        while True:
            try:
                async with self._connection() as connection:
                    with _in_the_way():
                        async with connection.transaction():
                            await connection.execute(query("catalog_lock"), _lock_values(collection_id))
                            answer = await act(connection)
                            faults.reach("catalogue.before-commit")
                        faults.reach("catalogue.after-commit")
                        return answer
            except _Again as again:
                if loop.time() > deadline:
                    raise _busy(collection_id, again) from again.__cause__
            # Those who were in the way go first, and not all of us come back at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, longest)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translate_errors(), _there():
            async with self._database.connection() as connection:
                yield connection


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What the catalogue says of a version of a dataset. `properties` are one item's, of the newest other version where this one
    has none; `times` are given by item, where they differ."""

    item_id: str
    ordinal: int
    properties: Json
    revision: int | None
    created: str | None
    times: Mapping[str, Json]


def read_entry(connection: psycopg.Connection[Any], dataset: str, ordinal: int) -> CatalogEntry | None:
    """For plain handlers, over a connection of their own; None where nothing is said, or there is no catalogue."""
    try:
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(query("catalog_entry").encode(), {"collection": dataset, "ordinal": ordinal})
            row = cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    if row is None:
        return None
    return CatalogEntry(
        row["id"], row["ordinal"], row["properties"], row["revision"], row["created"], row["times"] or {}
    )


class _Again(Exception):
    """It failed because of what others did at the same time."""


def _lock_values(collection_id: str) -> Json:
    return {
        "collection": collection_id, "lock_ms": round(LOCK_SECONDS * 1000), "statement_ms": round(STATEMENT_SECONDS * 1000)
    }  # fmt: skip


async def _base_of(connection: Connection, collection_id: str) -> Base:
    rows = await dicts(connection, "catalog_base", {"collection": collection_id})
    if not rows:
        raise NotFound(
            f"the catalogue has no collection '{collection_id}'", code="catalog.no-collection",
            hint="ensure it before its items are registered",
        )  # fmt: skip
    return rows[0]["base_item"], rows[0]["base_item_id"]


async def _put_items(
    connection: Connection, collection_id: str, rows: Sequence[Json], moments: Sequence[Moments]
) -> None:
    begins, ends = [begin for begin, _ in moments], [end for _, end in moments]
    with _blamed(f"items of collection '{collection_id}'"):
        spans = {"collection": collection_id, "begins": begins, "ends": ends}
        await connection.execute(query("catalog_partitions"), spans)
        await connection.execute(query("catalog_put_items"), {"collection": collection_id, "items": _dumped(rows)})
    ids = [row["id"] for row in rows]
    if lost := await dicts(connection, "catalog_missing", {"collection": collection_id, "ids": ids}):
        raise _Again(f"{len(lost)} of {len(ids)} items were not stored")


def _row(item: Json, moments: Moments, base: Base) -> Json:
    """An item as pgSTAC keeps it: without what it shares with its collection, and with the number of that base.

    Without a number the first base is meant that the collection ever had.
    """
    from pypgstac.hydration import dehydrate

    base_item, base_item_id = base
    content = {key: value for key, value in dehydrate(base_item, item).items() if key not in _COLUMNS}
    if base_item_id is not None:
        content["pgstac:base_item"] = base_item_id
    begin, end = moments
    return {
        "id": item["id"], "geometry": item["geometry"], "datetime": begin, "end_datetime": end, "content": content
    }  # fmt: skip


def _moments_of(item: Json) -> Moments:
    """From when to when it is: its interval, or its datetime."""
    properties = item.get("properties")
    told = properties if isinstance(properties, dict) else {}
    begin, end = told.get("start_datetime"), told.get("end_datetime")
    if begin is None or end is None:
        begin = end = told.get("datetime")
    try:
        moments = datetime.fromisoformat(begin), datetime.fromisoformat(end)  # type: ignore[arg-type]
        if None not in (moments[0].tzinfo, moments[1].tzinfo) and moments[0] <= moments[1]:
            return moments
    except (TypeError, ValueError):
        pass
    raise UnfitData(
        f"item '{item['id']}' has no datetime, nor an interval, that can be understood",
        code="catalog.bad-item",
        hint="write 2024-01-31T12:00:00Z, in start_datetime and end_datetime if it is an interval",
    )


def _collection_of(items: Sequence[Json]) -> str:
    """The one collection of all items; what pgSTAC would drop without a word is refused."""
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
    """pgSTAC drops whatever is null; an item that tells an interval needs to say that it has no datetime."""
    item["properties"].setdefault("datetime", None)
    return item


def _id_of(thing: Json, kind: str) -> str:
    found = thing.get("id")
    if not isinstance(found, str) or not found:
        raise UnfitData(f"the {kind} has no id", code=f"catalog.bad-{kind}")
    return found


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()


def _extent_of(rows: Iterable[Mapping[str, Any]]) -> Json:
    rows = list(rows)
    box = BBox.union(BBox.of(row["bbox"]) for row in rows)
    begin, end = min(row["datetime"] for row in rows), max(row["end_datetime"] for row in rows)
    return {"spatial": {"bbox": [box.as_list()]}, "temporal": {"interval": [[_rfc3339(begin), _rfc3339(end)]]}}


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def _in_the_way() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in _PASSING:
            raise
        raise _Again(error.diag.message_primary) from error


@contextmanager
def _there() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        raise not_deployed() from None


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """What can't be stored because of what it is."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state in _PASSING or not state.startswith(_BAD_ITEM):
            raise
        raise UnfitData(f"{what} can't be stored: {error.diag.message_primary}", code="catalog.bad-item") from error


def _busy(collection_id: str, again: _Again) -> Unavailable:
    return Unavailable(
        f"collection '{collection_id}' could not be written: {again}", code="catalog.busy",
        hint="others write to it or hold it: look for long transactions in pg_stat_activity",
    )  # fmt: skip


def _require_software() -> str:
    found = software_version()
    if found is None:
        raise Unavailable(
            "pgSTAC is not installed here", code="catalog.not-installed", hint="pip install 'dagmaster[worker]'"
        )
    return found


def _require_extensions(connection: psycopg.Connection[Any]) -> None:
    missing = [row[0] for row in connection.execute(query("catalog_extensions").encode())]
    if missing:
        raise Unavailable(
            f"this server lacks what the STAC catalogue needs: {', '.join(missing)}",
            code="catalog.no-extension",
            hint="install PostGIS (apt-get install postgresql-15-postgis-3), or set CATALOG_ENABLED=false",
            missing=missing,
        )


def _require_older(found: str | None, wanted: str) -> None:
    if found and _numbers(found) > _numbers(wanted):
        raise Conflict(
            f"the database has pgSTAC {found}, newer than the {wanted} of this software",
            code="catalog.newer",
            hint="use the newer software",
        )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdecimal()]


def _deployed(connection: psycopg.Connection[Any]) -> str | None:
    try:
        row = connection.execute(query("catalog_version").encode()).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    except psycopg.errors.InsufficientPrivilege:
        return UNREADABLE
    return str(row[0]) if row else None


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


def _await_turn(connection: psycopg.Connection[Any], wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while not (connection.execute(f"SELECT pg_try_advisory_lock({_DEPLOYING})".encode()).fetchone() or [False])[0]:
        if time.monotonic() > deadline:
            raise Conflict("another deployment is under way", code="database.deploying", hint="try again later")
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
