"""The STAC catalogue: deployed safely, written to by many at once without losing anything, true extents."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dagmaster.database.catalog import pgstac as module
from dagmaster.database.catalog.pgstac import (
    StacCatalog,
    catalog_status,
    deploy_catalog,
    ensure_catalog,
    software_version,
)
from dagmaster.database.connect import pool
from dagmaster.database.queries import all_queries, numbered
from dagmaster.errors import Conflict, NotFound, Unavailable, UnfitData
from dagmaster.local import platform
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
    notify = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": collection_id,
        "geometry": {"type": "Polygon", "coordinates": [notify]},
        "bbox": [west, south, east, north],
        "properties": {"datetime": f"{at:%Y-%m-%dT%H:%M:%SZ}", **properties},
        "links": [],
        "assets": {"data": {"href": f"https://example.org/{item_id}.tif", "type": "image/tiff", "roles": ["data"]}},
    }


@asynccontextmanager
async def opened(dsn: str, size: int = 4, **options):
    async with pool(dsn, "handlers", 0, size) as connections:
        yield StacCatalog(connections, **options)


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", sorted(name for name in all_queries() if name.startswith("catalog_")))
def test_every_statement_fits_the_deployed_catalogue(cluster, catalog_template, name):
    text, names = numbered(name)

    with psycopg.connect(cluster.dsn_of(catalog_template), autocommit=True) as connection:
        connection.execute(f"PREPARE it AS {text}")
        types = connection.execute("SELECT parameter_types FROM pg_prepared_statements").fetchone()[0]

    assert len(types) == len(names)


# Deploying


@pytest.mark.requirement("C1")
def test_deploying_twice_or_concurrently_does_no_harm(cluster, database):
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
def test_a_server_without_postgis_is_reported_clearly(empty_database, monkeypatch):
    monkeypatch.setitem(all_queries(), "catalog_extensions", "SELECT 'postgis' AS name")

    with pytest.raises(Unavailable) as raised:
        deploy_catalog(empty_database)

    assert raised.value.code == "catalog.no-extension"
    assert "PostGIS" in raised.value.hint
    assert catalog_status(empty_database).deployed is None


@pytest.mark.requirement("C1")
def test_the_catalogue_can_be_done_without(database, monkeypatch):
    messages = []

    assert ensure_catalog(database, is_enabled=False) is None
    monkeypatch.setitem(all_queries(), "catalog_extensions", "SELECT 'postgis' AS name")
    platform.ensure_catalog(database, messages.append, is_wanted=True)

    assert catalog_status(database).deployed is None
    assert len(messages) == 1
    assert messages[0].startswith(
        "no STAC catalogue: this server lacks extensions that the STAC catalogue needs: postgis"
    )


@pytest.mark.requirement("C1")
def test_a_newer_catalogue_is_left_alone(catalog_database):
    with psycopg.connect(catalog_database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pgstac.migrations (version, datetime) VALUES ('99.1.0', now() + interval '1 s')"
        )

    with pytest.raises(Conflict) as refused:
        deploy_catalog(catalog_database)

    assert refused.value.code == "catalog.newer"


@pytest.mark.requirement("C1")
def test_without_the_extra_it_says_what_to_install(empty_database, monkeypatch):
    monkeypatch.setattr(module, "software_version", lambda: None)

    with pytest.raises(Unavailable) as raised:
        deploy_catalog(empty_database)

    assert raised.value.code == "catalog.not-installed"


@pytest.mark.requirement("C1")
async def test_a_database_without_a_catalogue_is_reported_as_such(database):
    async with opened(database) as catalog:
        for call in (
            catalog.count_items("dem"),
            catalog.get_item("dem", "a"),
            catalog.ensure_collection(a_collection()),
            catalog.upsert_items([an_item("a")]),
        ):
            with pytest.raises(Unavailable) as raised:
                await call
            assert raised.value.code == "catalog.not-deployed"


# One writer


@pytest.mark.requirement("C1")
async def test_an_item_comes_back_as_it_went_in(catalog_database):
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
        await catalog.ensure_collection(a_collection())
        await catalog.upsert_items([item])
        stored, missing = await catalog.get_item("dem", "a"), await catalog.get_item("dem", "b")

    assert stored == item
    assert missing is None


@pytest.mark.requirement("C1")
async def test_registering_again_replaces_and_never_doubles(catalog_database):
    async with opened(catalog_database) as catalog:
        assert await catalog.ensure_collection(a_collection())
        assert await catalog.upsert_items([an_item("a"), an_item("b")]) == 2
        await catalog.upsert_items([an_item("a", at=START + timedelta(days=400), title="new"), an_item("b")])

        assert await catalog.count_items("dem") == 2
        assert (await catalog.get_item("dem", "a"))["properties"]["title"] == "new"
        assert await catalog.missing_items("dem", ["a", "b", "c", "d"]) == ["c", "d"]
        assert await catalog.upsert_items([]) == 0


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "shared", ["a text with file:size", 7, True, 1.5, ["file:size", "b"], [{"file:size": 1}]], ids=str
)
async def test_an_item_may_have_an_object_where_its_collection_has_another_value(catalog_database, shared):
    """pypgstac reads the shared value as an object: it fails, or stores a mark for each character of a text."""
    assets = {"data": {"title": shared, "bands": [{"name": shared}], "roles": ["data"]}}
    items = [an_item("a"), an_item("b"), an_item("c")]
    items[0]["assets"]["data"] |= {"title": {"file:size": 5, "x": {"y": 1}}, "bands": [{"name": {"file:size": 5}}]}
    items[1]["assets"]["data"] |= {"title": shared, "bands": [{"name": shared}]}
    items[2]["assets"]["data"] |= {"title": "other", "bands": [{"name": "other"}]}
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection(item_assets=assets))
        await catalog.upsert_items(items)
        stored = [await catalog.get_item("dem", item["id"]) for item in items]

    assert stored == items
    with psycopg.connect(catalog_database) as connection:
        connection.execute("SET search_path = pgstac, public")
        page = connection.execute(SEARCH_UNHYDRATED).fetchone()[0]
    assert {item["id"]: item["assets"] for item in read_page(page)["features"]} == {
        item["id"]: item["assets"] for item in items
    }


async def test_a_collection_that_has_items_keeps_their_extent(catalog_database):
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        await catalog.upsert_items([an_item("a")])
        extent = await catalog.refresh_extent("dem")

        is_new = await catalog.ensure_collection(a_collection(description="better"))
        stored = await catalog.get_collection("dem")

    assert not is_new
    assert (stored["description"], stored["extent"]) == ("better", extent)
    assert extent["spatial"]["bbox"] == [[10.0, 46.0, 10.5, 46.5]]


SHARED = {"data": {"type": "image/tiff", "title": "Heights"}, "more": {}}


def a_titled_item(item_id: str) -> dict:
    item = an_item(item_id)
    item["assets"]["data"]["title"] = "Heights"
    return item


@pytest.mark.requirement("C1")
async def test_items_survive_that_their_collection_changes_what_they_share(catalog_database):
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        await catalog.upsert_items([a_titled_item("a")])
        await catalog.ensure_collection(a_collection(item_assets=SHARED))
        await catalog.upsert_items([a_titled_item("b")])

        assert await catalog.get_item("dem", "a") == a_titled_item("a")
        assert await catalog.get_item("dem", "b") == a_titled_item("b")


@pytest.mark.requirement("C1")
async def test_a_collection_that_changes_while_items_wait_damages_none_of_them(catalog_database):
    async with opened(catalog_database) as catalog, await psycopg.AsyncConnection.connect(catalog_database) as holder:
        await catalog.ensure_collection(a_collection(item_assets=SHARED))
        await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:dem', 0))")
        waiting = asyncio.create_task(catalog.upsert_items([a_titled_item("a")]))
        await until_someone_waits(holder)
        await holder.execute("SELECT pgstac.upsert_collection(%s)", [Jsonb(a_collection())])
        await holder.commit()
        await waiting

        assert await catalog.get_item("dem", "a") == a_titled_item("a")


async def until_someone_waits(connection: psycopg.AsyncConnection) -> None:
    waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not (await connection.execute(waiting)).rowcount:
        await asyncio.sleep(0.01)


@pytest.mark.requirement("C1")
async def test_the_extent_is_that_of_the_items_also_when_some_go(catalog_database):
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        assert await catalog.refresh_extent("dem") is None
        await catalog.upsert_items(
            [an_item(f"i{n}", west=n, at=START + timedelta(days=n), **revision(n // 2 + 1)) for n in range(6)]
        )
        await catalog.upsert_items(
            [
                an_item(
                    "long",
                    west=0,
                    start_datetime="2023-06-01T00:00:00Z",
                    end_datetime="2025-01-01T00:00:00Z",
                    **revision(1),
                )
            ]
        )
        whole = await catalog.refresh_extent("dem")

        deleted = await catalog.delete_older("dem", ordinal=0, revision=3)
        other = await catalog.delete_older("dem", ordinal=1, revision=9)
        rest = await catalog.refresh_extent("dem")

    assert whole["spatial"]["bbox"] == [[0, 46.0, 5.5, 46.5]]
    assert whole["temporal"]["interval"] == [["2023-06-01T00:00:00Z", "2025-01-01T00:00:00Z"]]
    assert (sorted(deleted), other) == (["i0", "i1", "i2", "i3", "long"], [])
    assert rest["spatial"]["bbox"] == [[4, 46.0, 5.5, 46.5]]
    assert rest["temporal"]["interval"] == [["2024-01-05T00:00:00Z", "2024-01-06T00:00:00Z"]]


def revision(number: int) -> dict:
    return {"dagmaster:version_ordinal": 0, "dagmaster:revision": number}


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([an_item("a"), an_item("a")], "catalog.duplicate-item"),
        ([an_item("a"), an_item("b", "other")], "catalog.bad-item"),
        ([{**an_item("a"), "collection": None}], "catalog.bad-item"),
        ([{**an_item("a"), "geometry": None}], "catalog.bad-item"),
        ([{**an_item("a"), "id": ""}], "catalog.bad-item"),
        ([an_item("a"), {**an_item("b"), "properties": {"datetime": None}}], "catalog.bad-item"),
        ([an_item("a"), {**an_item("b"), "properties": {"datetime": "yesterday-ish"}}], "catalog.bad-item"),
        (
            [an_item("a"), {**an_item("b"), "geometry": {"type": "Polygon", "coordinates": [[1, 2]]}}],
            "catalog.bad-item",
        ),
        ([an_item("a", title="a\0b")], "catalog.bad-item"),
    ],
)
async def test_what_cannot_be_stored_is_the_datas_fault_and_nothing_of_it_is(catalog_database, items, code):
    async with opened(catalog_database, patience_seconds=0) as catalog:
        await catalog.ensure_collection(a_collection())

        with pytest.raises(UnfitData) as refused:
            await catalog.upsert_items(items)

        assert refused.value.code == code
        assert await catalog.count_items("dem") == 0


@pytest.mark.requirement("C1")
async def test_items_need_their_collection(catalog_database):
    async with opened(catalog_database) as catalog:
        with pytest.raises(NotFound) as refused:
            await catalog.upsert_items([an_item("a")])

    assert refused.value.code == "catalog.no-collection"


# Many writers


@pytest.mark.requirement("C1")
async def test_eight_writers_into_one_collection_lose_nothing(catalog_database):
    """Each adds its own items of several years, so that constraints are rebuilt under the others,
    and renews shared ones."""
    shared = [an_item(f"shared-{n}", west=n) for n in range(5)]
    async with opened(catalog_database, size=8) as catalog:
        await catalog.ensure_collection(a_collection())

        async def write(writer: int) -> None:
            moments = [START + timedelta(days=365 * ((n * 7 + writer) % 9 - 4)) for n in range(45)]
            own = [an_item(f"w{writer}-{n:02}", west=n, at=at) for n, at in enumerate(moments)]
            await catalog.upsert_items(own + shared, batch=10)

        await asyncio.gather(*(write(writer) for writer in range(8)))
        expected = [f"w{writer}-{n:02}" for writer in range(8) for n in range(45)] + [item["id"] for item in shared]

        assert await catalog.count_items("dem") == len(expected) == 365
        assert await catalog.missing_items("dem", expected) == []
        extent = await catalog.refresh_extent("dem")
    assert extent["temporal"]["interval"] == [["2020-01-02T00:00:00Z", "2027-12-31T00:00:00Z"]]


@pytest.mark.requirement("C1")
async def test_concurrent_writers_of_new_collections_do_not_fail(catalog_database):
    """Every new partition locks the table of all items, while searches hold it."""
    async with opened(catalog_database, size=10) as catalog:
        searching = asyncio.create_task(_search_on(catalog_database))

        async def write(number: int) -> None:
            await catalog.ensure_collection(a_collection(f"c{number}"))
            await catalog.upsert_items([an_item(f"i{n}", f"c{number}") for n in range(10)], batch=5)

        await asyncio.gather(*(write(number) for number in range(8)))
        counts = [await catalog.count_items(f"c{number}") for number in range(8)]
        searching.cancel()

    assert counts == [10] * 8


async def _search_on(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while True:
            await connection.execute("""SELECT pgstac.search('{"limit": 5}')""")


PROCESS = """
import asyncio, sys
from dagmaster.database.connect import pool
from tests.database.test_catalog import StacCatalog, an_item
async def main(dsn, writer):
    async with pool(dsn, "handlers", 0, 2) as connections:
        await StacCatalog(connections).upsert_items([an_item(f"p{writer}-{n}", west=n) for n in range(10)], batch=5)
asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("processes", [4, pytest.param(20, marks=pytest.mark.slow)])
async def test_processes_at_once_lose_nothing(catalog_database, processes):
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        writers = [
            subprocess.Popen([sys.executable, "-c", PROCESS, catalog_database, str(writer)])
            for writer in range(processes)
        ]

        ends = await asyncio.gather(*(asyncio.to_thread(writer.wait, 100) for writer in writers))

        assert ends == [0] * processes
        expected = [f"p{writer}-{n}" for writer in range(processes) for n in range(10)]
        assert await catalog.missing_items("dem", expected) == []
        assert await catalog.count_items("dem") == len(expected)


@pytest.mark.requirement("C1")
async def test_a_writer_waits_for_another_one_and_reports_when_the_wait_is_too_long(catalog_database, monkeypatch):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    async with (
        opened(catalog_database, patience_seconds=30) as patient,
        opened(catalog_database, patience_seconds=0.2) as other,
    ):
        await patient.ensure_collection(a_collection())
        async with await psycopg.AsyncConnection.connect(catalog_database) as holder:
            await holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('dagmaster.catalog:dem', 0))")
            waiting = asyncio.create_task(patient.upsert_items([an_item("a")]))

            with pytest.raises(Unavailable) as raised:
                await other.upsert_items([an_item("b")])

            assert raised.value.code == "catalog.busy"
            assert not waiting.done()
            await holder.rollback()
            assert await waiting == 1
        assert await patient.missing_items("dem", ["a", "b"]) == ["b"]


@pytest.mark.requirement("C1")
async def test_what_others_made_fail_is_tried_again(catalog_database, monkeypatch):
    """A deadlock and a lost item, as pgSTAC's users have seen them."""
    faults = ["DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", "SELECT %(collection)s::text, %(items)s::jsonb"]
    query = module.query

    def faulty(name: str) -> str:
        return faults.pop() if name == "catalog_put_items" and faults else query(name)

    monkeypatch.setattr(module, "query", faulty)
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        await catalog.upsert_items([an_item("a"), an_item("b")])

        assert faults == []
        assert await catalog.missing_items("dem", ["a", "b"]) == []


@pytest.mark.requirement("C1")
async def test_waiting_for_other_writers_does_not_count_as_time_of_a_statement(catalog_database):
    """The session's own limit is shorter than the wait."""
    async with (
        pool(catalog_database, "handlers", 0, 4, statement_timeout_seconds=0.3) as connections,
        opened(catalog_database) as other,
    ):
        hurried = StacCatalog(connections)
        await other.ensure_collection(a_collection())
        async with other._database.connection() as connection, connection.transaction():
            await module.lock_collection(connection, "dem")
            writers = [asyncio.create_task(hurried.upsert_items([an_item(f"w{n}")])) for n in range(3)]
            await asyncio.sleep(1)
        await asyncio.gather(*writers)

        assert await other.count_items("dem") == 3


@pytest.mark.requirement("C1")
async def test_a_statement_that_takes_too_long_is_retried(catalog_database, monkeypatch):
    async with opened(catalog_database) as catalog:
        await catalog.ensure_collection(a_collection())
        limits = iter([0.001])
        monkeypatch.setattr(module, "STATEMENT_SECONDS", 60.0)
        lock = module.lock_collection

        async def lock_with_a_short_limit(connection, collection_id):
            await lock(connection, collection_id)
            for seconds in limits:
                await connection.execute(f"SET LOCAL statement_timeout = '{seconds * 1000:.0f}ms'")

        monkeypatch.setattr(module, "lock_collection", lock_with_a_short_limit)
        assert await catalog.upsert_items([an_item(f"i{n}") for n in range(200)]) == 200

        assert next(limits, None) is None
        assert await catalog.count_items("dem") == 200


@pytest.mark.requirement("C1")
def test_batches_are_limited_in_number_and_size(monkeypatch):
    items = [{"id": str(n), "x": "y" * 100} for n in range(10)]
    monkeypatch.setattr(module, "BATCH_BYTES", 350)

    by_size = [part.stop - part.start for part in module._batches(items, 100)]
    monkeypatch.setattr(module, "BATCH_BYTES", 50)

    assert by_size == [2, 2, 2, 2, 2]
    assert [part.stop - part.start for part in module._batches(items, 100)] == [1] * 10
    monkeypatch.undo()
    assert [part.stop - part.start for part in module._batches(items, 4)] == [4, 4, 2]


@pytest.mark.slow
@pytest.mark.requirement("C1")
async def test_fifty_writers_of_a_thousand_items_do_not_fail(catalog_database):
    async with opened(catalog_database, size=10) as catalog:
        await catalog.ensure_collection(a_collection())

        async def write(writer: int) -> None:
            await catalog.upsert_items([an_item(f"w{writer}-{n}", west=n % 100) for n in range(1000)])

        await asyncio.gather(*(write(writer) for writer in range(50)))

        assert await catalog.count_items("dem") == 50_000
