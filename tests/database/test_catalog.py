"""The STAC catalogue: safe deployment, concurrent publishing without losses, and correct extents."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from pypgstac.db import PgstacDB
from pypgstac.migrate import Migrate
from tests.catalog import CatalogReader
from tests.conftest import fresh_database

from dagmaster.assets.states import VersionRevision
from dagmaster.database.assets.transaction import AssetTransactions
from dagmaster.database.catalog import pgstac as module
from dagmaster.database.catalog import publish
from dagmaster.database.catalog.pgstac import catalog_status, deploy_catalog, ensure_catalog, software_version
from dagmaster.database.catalog.publish import CollectionWriter
from dagmaster.database.connect import ConnectionPool, pool
from dagmaster.database.queries import all_queries, numbered
from dagmaster.errors import Conflict, Unavailable, UnfitData
from dagmaster.local import platform
from dagmaster.local.embedded import Cluster
from dagmaster.operations.schema import deploy_schema, grant_to_platform
from dagmaster.serving.hydration import read_page

SEARCH_UNHYDRATED = """SELECT pgstac.search('{"conf": {"nohydrate": true}}'::jsonb)::text"""
START = datetime(2024, 1, 1, tzinfo=UTC)


def a_collection(collection_id: str = "dem", **changes) -> dict:
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": collection_id,
        "description": "heights",
        "license": "CC-BY-4.0",
        "links": [],
        "item_assets": {"data": {"type": "image/tiff", "roles": ["data"]}},
        "extent": {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}},
        **changes,
    }


def an_item(
    item_id: str, collection_id: str = "dem", *, west: float = 10.0, at: datetime = START, **properties
) -> dict:
    east, south, north = west + 0.5, 46.0, 46.5
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": collection_id,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, south, east, north],
        "properties": {"datetime": f"{at:%Y-%m-%dT%H:%M:%SZ}", **properties},
        "links": [],
        "assets": {"data": {"href": f"https://example.org/{item_id}.tif", "type": "image/tiff", "roles": ["data"]}},
    }


class Catalog(AssetTransactions):
    """Documents of a dataset, published in the transactions of a review, without an asset."""

    def __init__(self, connections: ConnectionPool, dsn: str, dataset_id: str = "dem") -> None:
        super().__init__(connections)
        self.reader = CatalogReader(dsn)
        self._connections, self._dataset_id = connections, dataset_id
        self._writer = CollectionWriter(
            dataset_id, lambda _known, newer: newer, f"/stac/{dataset_id}/items/", lambda document, _layers: document
        )
        self._published: list[VersionRevision] = []
        self._reviews = asyncio.Lock()

    def of(self, dataset_id: str) -> "Catalog":
        return Catalog(self._connections, self.reader.dsn, dataset_id)

    async def write(self, items: list[dict], *, ordinal: int = 0, revision: int = 1, **collection: Any) -> None:
        """Store the documents of a revision, as its job does."""
        documents = {"": a_collection(self._dataset_id, **collection), **{item["id"]: item for item in items}}
        async with self._connected() as connection:
            for document_id, content in documents.items():
                await connection.execute(
                    "INSERT INTO dagapp.stac_documents (dataset_id, version_ordinal, revision, document_id, content) "
                    "VALUES (%s, %s, %s, %s, %s)",
                    (self._dataset_id, ordinal, revision, document_id, Jsonb(content)),
                )

    async def publish(self, *editions: VersionRevision) -> None:
        """Let the catalogue contain exactly these editions."""
        if editions:
            await self.prepare(*editions)
        await self.put(*editions)

    async def prepare(self, *editions: VersionRevision) -> None:
        await self._transaction("prepare_catalogue", partial(self._writer.prepare, editions=editions))

    async def put(self, *editions: VersionRevision) -> None:
        await self._transaction("change_asset", partial(self._writer.publish, before=self._published, after=editions))
        self._published = list(editions)

    async def add(self, edition: VersionRevision) -> None:
        """Publish one more edition, under a lock like that of an asset."""
        async with self._reviews:
            await self.put(*self._published, edition)


@asynccontextmanager
async def opened(dsn: str, size: int = 4, retry_seconds: float = 60, **options: Any) -> AsyncIterator[Catalog]:
    async with pool(dsn, "test", 0, size, **options) as connections:
        catalog = Catalog(connections, dsn)
        catalog.retry_seconds = retry_seconds
        yield catalog


@pytest.fixture
def cloud_database(cluster: Cluster) -> Iterator[dict[str, str]]:
    """An empty database with the extensions that an administrator can create in clouds. Returns the connection strings
    of that administrator, who is not a superuser, and of the role of the processes."""
    with fresh_database(cluster, "template0") as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for extension in ("postgis", "btree_gist", "unaccent"):
                connection.execute(f"CREATE EXTENSION {extension}")
            connection.execute("CREATE ROLE cloud_admin LOGIN NOSUPERUSER CREATEROLE CREATEDB")
            connection.execute("CREATE ROLE cloud_platform LOGIN")
            connection.execute(f"ALTER DATABASE {connection.info.dbname} OWNER TO cloud_admin")
        yield {name: make_conninfo(dsn, user=f"cloud_{name}") for name in ("admin", "platform")}
    with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
        connection.execute("DROP ROLE cloud_admin, cloud_platform")


@pytest.mark.requirement("M2", "D1")
async def test_an_administrator_without_superuser_deploys_and_processes_of_another_role_publish(cloud_database):
    await asyncio.to_thread(deploy_schema, cloud_database["admin"], has_catalog=True)
    await asyncio.to_thread(grant_to_platform, cloud_database["admin"], "cloud_platform")

    async with opened(cloud_database["platform"]) as catalog:
        await catalog.write([an_item("a"), an_item("b")])
        await catalog.publish((0, 1))
        with psycopg.connect(cloud_database["platform"]) as connection:
            items = connection.execute("SELECT id FROM pgstac.items ORDER BY id").fetchall()
        await catalog.publish()

    with psycopg.connect(cloud_database["platform"]) as connection:
        assert connection.execute("SELECT id FROM pgstac.items").fetchall() == []
        connection.execute("CREATE TEMPORARY TABLE compared (name text)")  # as verify-storage does
    assert items == [("a",), ("b",)]


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("before", ["0.9.12"])
def test_the_catalogue_of_an_earlier_release_is_migrated(empty_database: str, before: str):
    """That database has the role of the gateway: only roles with a grant may create temporary tables."""
    deploy_schema(empty_database, has_catalog=False)
    migrate_to(empty_database, before)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC, pgstac_admin, pgstac_ingest")
        connection.execute("SELECT pgstac.create_collection(%s)", [Jsonb(a_collection())])
        connection.execute("SELECT pgstac.create_item(%s)", [Jsonb(an_item("kept"))])
    assert catalog_status(empty_database).deployed == before

    status = deploy_schema(empty_database, has_catalog=True)

    with psycopg.connect(empty_database) as connection:
        items = connection.execute("SELECT id FROM pgstac.items").fetchall()
    assert status.catalog == software_version()
    assert items == [("kept",)]


def migrate_to(dsn: str, wanted: str) -> None:
    with psycopg_pool.ConnectionPool(dsn, min_size=0, max_size=1, open=True) as connections:
        Migrate(PgstacDB(pool=connections)).run_migration(toversion=wanted)


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", sorted(name for name in all_queries() if name.startswith("catalog_")))
def test_every_statement_can_be_prepared_in_the_deployed_catalogue(cluster, catalog_template, name):
    text, names = numbered(name)

    with psycopg.connect(cluster.dsn_of(catalog_template), autocommit=True) as connection:
        connection.execute(f"PREPARE it AS {text}")
        types = connection.execute("SELECT parameter_types FROM pg_prepared_statements").fetchone()[0]

    assert len(types) == len(names)


# Deploying


@pytest.mark.requirement("C1")
def test_deploying_twice_or_concurrently_is_safe(cluster, database):
    assert catalog_status(database).deployed is None
    start = threading.Barrier(3)

    def deploy(_number: int):
        start.wait()
        return deploy_catalog(database)

    with ThreadPoolExecutor(3) as threads:
        versions = list(threads.map(deploy, range(3)))

    assert {status.deployed for status in versions} == {software_version()}
    assert deploy_catalog(database).is_current
    assert catalog_status(database).is_current
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM pgstac.migrations").fetchone() == (1,)


@pytest.mark.requirement("C1")
def test_a_server_without_postgis_is_reported(empty_database, monkeypatch):
    monkeypatch.setitem(all_queries(), "catalog_extensions", "SELECT 'postgis' AS name")

    with pytest.raises(Unavailable) as raised:
        deploy_catalog(empty_database)

    assert raised.value.code == "catalog.no-extension"
    assert "PostGIS" in raised.value.hint
    assert catalog_status(empty_database).deployed is None


@pytest.mark.requirement("C1")
def test_the_platform_can_be_deployed_without_the_catalogue(database, monkeypatch):
    messages = []

    assert ensure_catalog(database, is_enabled=False) is None
    monkeypatch.setitem(all_queries(), "catalog_extensions", "SELECT 'postgis' AS name")
    platform.ensure_catalog(database, messages.append, is_enabled=True)

    assert catalog_status(database).deployed is None
    assert len(messages) == 1
    assert messages[0].startswith(
        "no STAC catalogue: this server lacks extensions that the STAC catalogue needs: postgis"
    )


@pytest.mark.requirement("C1")
def test_a_newer_catalogue_is_not_changed(catalog_database):
    with psycopg.connect(catalog_database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pgstac.migrations (version, datetime) VALUES ('99.1.0', now() + interval '1 s')"
        )

    with pytest.raises(Conflict) as refused:
        deploy_catalog(catalog_database)

    assert refused.value.code == "catalog.newer"


@pytest.mark.requirement("C1")
def test_without_the_extra_the_error_says_what_to_install(empty_database, monkeypatch):
    monkeypatch.setattr(module, "software_version", lambda: None)

    with pytest.raises(Unavailable) as raised:
        deploy_catalog(empty_database)

    assert raised.value.code == "catalog.not-installed"


@pytest.mark.requirement("C1")
async def test_a_database_without_a_catalogue_is_reported_as_such(database):
    async with opened(database) as catalog:
        await catalog.write([an_item("a")])
        for call in (catalog.prepare((0, 1)), catalog.put((0, 1))):
            with pytest.raises(Unavailable) as raised:
                await call
            assert raised.value.code == "catalog.not-deployed"

        await catalog.put()  # does nothing: there is nothing to withdraw


# One writer


@pytest.mark.requirement("C1")
async def test_an_item_is_read_as_it_was_written(catalog_database):
    """pgSTAC keeps only what differs from the collection, where floats, nulls and empty values are easily lost."""
    item = an_item(
        "a",
        start_datetime="2024-01-01T00:00:00Z",
        end_datetime="2024-12-31T23:59:59Z",
        gsd=0.30000000000000004,
        **{"proj:code": "EPSG:4326", "renders": {"default": {"rescale": [[13.6, 65.1]], "nodata": -9999}}, "n": 1e-12},
    )
    item["properties"]["datetime"] = None
    item["assets"]["data"] |= {
        "bands": [{"name": "b1", "nodata": "nan", "statistics": {"mean": 34.764, "count": 0}}],
        "proj:transform": [0.1, 0.0, 10.0, 0.0, -0.1, 46.5, 0.0, 0.0, 1.0],
    }
    item["stac_extensions"] = ["https://stac-extensions.github.io/projection/v2.0.0/schema.json"]

    async with opened(catalog_database) as catalog:
        await catalog.write([item])
        await catalog.publish((0, 1))

    assert await catalog.reader.get_item("dem", "a") == item
    assert await catalog.reader.get_item("dem", "b") is None


@pytest.mark.requirement("C1")
async def test_a_new_revision_replaces_its_items_without_duplicates(catalog_database):
    async with opened(catalog_database) as catalog:
        await catalog.write([an_item("a"), an_item("b"), an_item("c")])
        await catalog.publish((0, 1))
        await catalog.write([an_item("a", at=START + timedelta(days=400), title="new"), an_item("b")], revision=2)
        await catalog.publish((0, 2))

    assert await catalog.reader.item_ids("dem") == ["a", "b"]
    assert (await catalog.reader.get_item("dem", "a"))["properties"]["title"] == "new"


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "shared", ["a text with file:size", 7, True, 1.5, ["file:size", "b"], [{"file:size": 1}]], ids=str
)
async def test_an_item_can_have_an_object_where_its_collection_has_another_value(catalog_database, shared):
    """The value of the collection must not be read as an object whose keys the item omits."""
    assets = {"data": {"title": shared, "bands": [{"name": shared}], "roles": ["data"]}}
    items = [an_item("a"), an_item("b"), an_item("c")]
    items[0]["assets"]["data"] |= {"title": {"file:size": 5, "x": {"y": 1}}, "bands": [{"name": {"file:size": 5}}]}
    items[1]["assets"]["data"] |= {"title": shared, "bands": [{"name": shared}]}
    items[2]["assets"]["data"] |= {"title": "other", "bands": [{"name": "other"}]}
    async with opened(catalog_database) as catalog:
        await catalog.write(items, item_assets=assets)
        await catalog.publish((0, 1))
        stored = [await catalog.reader.get_item("dem", item["id"]) for item in items]

    assert stored == items
    with psycopg.connect(catalog_database) as connection:
        connection.execute("SET search_path = pgstac, public")
        page = connection.execute(SEARCH_UNHYDRATED).fetchone()[0]
    assert {item["id"]: item["assets"] for item in read_page(page)["features"]} == {
        item["id"]: item["assets"] for item in items
    }


SHARED = {"data": {"type": "image/tiff", "title": "Heights"}, "more": {}}


def a_titled_item(item_id: str) -> dict:
    item = an_item(item_id)
    item["assets"]["data"]["title"] = "Heights"
    return item


@pytest.mark.requirement("C1")
async def test_items_do_not_change_when_their_collection_changes_shared_values(catalog_database):
    async with opened(catalog_database) as catalog:
        await catalog.write([a_titled_item("a")])
        await catalog.publish((0, 1))
        await catalog.write([a_titled_item("b")], ordinal=1, item_assets=SHARED)
        await catalog.publish((0, 1), (1, 1))

    assert await catalog.reader.get_item("dem", "a") == a_titled_item("a")
    assert await catalog.reader.get_item("dem", "b") == a_titled_item("b")


@pytest.mark.requirement("C1")
async def test_a_collection_that_changes_while_items_wait_does_not_damage_them(catalog_database):
    async with opened(catalog_database) as catalog, await psycopg.AsyncConnection.connect(catalog_database) as holder:
        await catalog.write([a_titled_item("a")], item_assets=SHARED)
        await catalog.prepare((0, 1))
        await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:dem', 0))")
        waiting = asyncio.create_task(catalog.put((0, 1)))
        await wait_for_waiter(holder)
        await holder.execute("SELECT pgstac.upsert_collection(%s)", [Jsonb(a_collection())])
        await holder.commit()
        await waiting

    assert await catalog.reader.get_item("dem", "a") == a_titled_item("a")


async def wait_for_waiter(connection: psycopg.AsyncConnection) -> None:
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not (await connection.execute(waiting)).rowcount:
        await asyncio.sleep(0.01)


@pytest.mark.requirement("C1")
async def test_the_extent_is_that_of_the_items_after_some_were_removed(catalog_database):
    long = an_item("long", west=0, start_datetime="2023-06-01T00:00:00Z", end_datetime="2025-01-01T00:00:00Z")
    async with opened(catalog_database) as catalog:
        await catalog.write([long, *(an_item(f"i{n}", west=n, at=START + timedelta(days=n)) for n in range(4))])
        later = [an_item(f"i{n}", west=n, at=START + timedelta(days=n)) for n in (4, 5)]
        await catalog.write(later, ordinal=1, description="better")
        await catalog.publish((0, 1), (1, 1))
        whole = (await catalog.reader.get_collection("dem"))["extent"]
        await catalog.publish((1, 1))
        collection = await catalog.reader.get_collection("dem")
        await catalog.publish()
        empty = await catalog.reader.get_collection("dem")

    assert whole["spatial"]["bbox"] == [[0, 46.0, 5.5, 46.5]]
    assert whole["temporal"]["interval"] == [["2023-06-01T00:00:00Z", "2025-01-01T00:00:00Z"]]
    assert collection["description"] == "better"
    assert collection["extent"]["spatial"]["bbox"] == [[4, 46.0, 5.5, 46.5]]
    assert collection["extent"]["temporal"]["interval"] == [["2024-01-05T00:00:00Z", "2024-01-06T00:00:00Z"]]
    assert empty["description"] == "Not published"


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "change",
    [
        {"geometry": {"type": "Polygon", "coordinates": [[1, 2]]}},
        {"geometry": {"type": "Circle"}},
        {"properties": {"datetime": "not a time"}},
    ],
    ids=str,
)
async def test_an_item_that_cannot_be_stored_is_blamed_on_the_data_and_nothing_is_published(catalog_database, change):
    async with opened(catalog_database, retry_seconds=0) as catalog:
        await catalog.write([an_item("a"), {**an_item("b"), **change}])

        with pytest.raises(UnfitData) as refused:
            await catalog.put((0, 1))

    assert refused.value.code == "catalog.bad-item"
    assert await catalog.reader.get_collection("dem") is None


@pytest.mark.requirement("C1")
async def test_a_revision_without_documents_is_not_published(catalog_database):
    async with opened(catalog_database) as catalog:
        with pytest.raises(Conflict) as refused:
            await catalog.publish((0, 1))

    assert refused.value.code == "version.no-documents"


# Many writers


@pytest.mark.requirement("C1")
async def test_eight_writers_of_one_collection_lose_no_items(catalog_database):
    """Each adds items of several years, so that constraints are rebuilt while the others write."""
    editions = [(ordinal, 1) for ordinal in range(8)]
    async with opened(catalog_database, size=8) as catalog:
        for ordinal, _ in editions:
            moments = [START + timedelta(days=365 * ((n * 7 + ordinal) % 9 - 4)) for n in range(45)]
            items = [an_item(f"w{ordinal}-{n:02}", west=n, at=at) for n, at in enumerate(moments)]
            await catalog.write(items, ordinal=ordinal)

        async def write(edition: tuple[int, int]) -> None:
            await catalog.prepare(edition)
            await catalog.add(edition)

        await asyncio.gather(*(write(edition) for edition in editions))

    expected = sorted(f"w{ordinal}-{n:02}" for ordinal, _ in editions for n in range(45))
    assert await catalog.reader.item_ids("dem") == expected
    extent = (await catalog.reader.get_collection("dem"))["extent"]
    assert extent["temporal"]["interval"] == [["2020-01-02T00:00:00Z", "2027-12-31T00:00:00Z"]]


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
async def test_concurrent_writers_of_new_collections_do_not_fail(catalog_database, count):
    """Every new partition locks the table of all items, which searches have locked too."""
    async with opened(catalog_database, size=10) as catalog:
        searching = asyncio.create_task(_search_on(catalog_database))

        async def write(number: int) -> None:
            other = catalog.of(f"c{number}")
            await other.write([an_item(f"i{n}", f"c{number}") for n in range(10)])
            await other.publish((0, 1))

        await asyncio.gather(*(write(number) for number in range(count)))
        searching.cancel()

    assert [await catalog.reader.count_items(f"c{number}") for number in range(count)] == [10] * count


async def _search_on(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while True:
            await connection.execute("""SELECT pgstac.search('{"limit": 5}')""")


@pytest.mark.requirement("C1")
async def test_a_writer_waits_for_another_one_and_fails_if_the_wait_is_too_long(catalog_database, monkeypatch):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    async with (
        opened(catalog_database, retry_seconds=30) as patient,
        opened(catalog_database, retry_seconds=0.2) as other,
    ):
        await patient.write([an_item("a")])
        await patient.prepare((0, 1))
        async with await psycopg.AsyncConnection.connect(catalog_database) as holder:
            await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:dem', 0))")
            waiting = asyncio.create_task(patient.put((0, 1)))

            with pytest.raises(Unavailable) as raised:
                await other.put((0, 1))

            assert (raised.value.code, raised.value.facts["sqlstate"]) == ("asset.busy", "55P03")
            assert not waiting.done()
            await holder.rollback()
            await waiting
    assert await patient.reader.item_ids("dem") == ["a"]


@pytest.mark.requirement("C1")
async def test_a_write_that_fails_because_of_other_writers_is_retried(catalog_database, monkeypatch):
    """A deadlock and a lost item, as users of pgSTAC have reported them."""
    values = "%(collection)s::text, %(ordinals)s::int[], %(revisions)s::int[]"
    faults = ["DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", f"SELECT {values}"]
    query = publish.query

    def faulty(name: str) -> str:
        return faults.pop() if name == "catalog_publish_items" and faults else query(name)

    monkeypatch.setattr(publish, "query", faulty)
    async with opened(catalog_database) as catalog:
        await catalog.write([an_item("a"), an_item("b")])
        await catalog.publish((0, 1))

    assert faults == []
    assert await catalog.reader.item_ids("dem") == ["a", "b"]


@pytest.mark.requirement("C1")
async def test_waiting_for_other_writers_does_not_count_towards_the_statement_timeout(catalog_database):
    """The statement timeout of the session is shorter than the wait."""
    async with (
        opened(catalog_database, statement_timeout_seconds=0.3) as limited,
        await psycopg.AsyncConnection.connect(catalog_database) as holder,
    ):
        await limited.write([an_item("a")])
        await limited.prepare((0, 1))
        await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:dem', 0))")
        writers = [asyncio.create_task(limited.put((0, 1))) for _ in range(3)]
        await asyncio.sleep(1)
        await holder.rollback()
        await asyncio.gather(*writers)

    assert await limited.reader.item_ids("dem") == ["a"]


@pytest.mark.requirement("C1")
async def test_a_statement_that_takes_too_long_is_retried(catalog_database, monkeypatch):
    limits = iter([0.001])
    lock = publish.lock_collection

    async def lock_with_a_short_limit(connection, collection_id):
        await lock(connection, collection_id)
        for seconds in limits:
            await connection.execute(f"SET LOCAL statement_timeout = '{seconds * 1000:.0f}ms'")

    async with opened(catalog_database) as catalog:
        await catalog.write([an_item(f"i{n}") for n in range(200)])
        await catalog.prepare((0, 1))
        monkeypatch.setattr(publish, "lock_collection", lock_with_a_short_limit)
        await catalog.put((0, 1))

    assert next(limits, None) is None
    assert await catalog.reader.count_items("dem") == 200
