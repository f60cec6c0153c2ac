"""Handlers that store STAC documents: they store all of them, or fail and name the missing ones. They publish none."""

import asyncio
from typing import Any
from uuid import uuid4

import orjson
import pytest

from dagmaster.addresses import Addresses
from dagmaster.database.assets import documents
from dagmaster.database.connect import pool
from dagmaster.dataset_ids import job_dataset_id
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers import calling, stac
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.registry import installed
from dagmaster.jobs.model import NodeState, TaskMessage, child_id
from dagmaster.jobs.states import NodeStatus
from dagmaster.stac.validate import refuse_unpublishable
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.trial import JOB_ID, START
from dagmaster.worker.context import TaskContext


def a_collection(collection_id: str = "dem") -> dict:
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": collection_id,
        "description": "heights",
        "license": "CC0-1.0",
        "extent": {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}},
        "links": [],
    }


def an_item(item_id: str, *, west: float = 1.0, revision: int = 1, collection: str = "dem") -> dict:
    ring = [[west, 2.0], [west + 1, 2.0], [west + 1, 3.0], [west, 3.0], [west, 2.0]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": collection,
        "links": [],
        "assets": {},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, 2.0, west + 1, 3.0],
        "properties": {
            "datetime": "2024-05-01T00:00:00Z",
            "dagmaster:version_ordinal": 0,
            "dagmaster:revision": revision,
        },
    }


class Bench:
    """Calls handlers as a worker does, on a real database; the results of children are in memory."""

    def __init__(self, connections) -> None:
        self._connections = connections
        self._database = MemoryDatabase(lambda: START)

    def completed(self, *outputs: Any, fan_out: str = "tiles", status: NodeStatus = NodeStatus.COMPLETED) -> None:
        nodes = self._database.nodes[JOB_ID]
        for output in outputs:
            index = len(nodes)
            nodes[child_id(fan_out, index)] = NodeState(
                job_id=JOB_ID,
                node_id=child_id(fan_out, index),
                status=status,
                parent_node_id=fan_out,
                fan_out_index=index,
                output=output,
            )

    def context(self, params: dict) -> TaskContext:
        task = TaskMessage(
            task_id="t",
            job_id=JOB_ID,
            node_id="n",
            attempt=1,
            handler="h",
            params=params,
            queue="q",
            timeout_seconds=60,
        )
        return TaskContext(task, MemoryLedger(self._database), self._connections)

    async def call(self, name: str, context: TaskContext | None = None, /, **params: Any) -> Any:
        plan = calling.resolve(installed()[f"raster.stac_{name}"])
        context = context or self.context(params)
        return orjson.loads(calling.accept(await plan.call(context, plan.parse(context.params))).encoded)

    async def rows(self, text: str, *values: Any) -> list[tuple]:
        async with self._connections.connection() as connection:
            cursor = await connection.execute(text, values)
            return await cursor.fetchall() if cursor.description else []

    async def documents(self, dataset_id: str = "dem", ordinal: int = 0, revision: int = 1) -> dict[str, dict]:
        """The documents of a revision, by id; the id of the collection is the empty string."""
        text = (
            "SELECT document_id, content FROM dagapp.stac_documents "
            "WHERE (dataset_id, version_ordinal, revision) = (%s, %s, %s)"
        )
        return dict(await self.rows(text, dataset_id, ordinal, revision))

    async def make_asset(self, dataset_id: str = "dem", *, revisions: int = 1) -> None:
        """Insert an asset whose newest revision is processed by this job, and the earlier ones by other jobs."""
        asset_id = "ab" * 16
        await self.rows(
            "INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id) "
            "VALUES (%s, 'local', '{}', %s)",
            asset_id,
            dataset_id,
        )
        await self.rows(
            "INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, version_label, platform_refs, revision) "
            "VALUES (%s, 0, '0', '{}', %s)",
            asset_id,
            revisions,
        )
        for revision in range(1, revisions + 1):
            await self.rows(
                "INSERT INTO dagapp.asset_revisions (asset_id, version_ordinal, revision, job_id) "
                "VALUES (%s, 0, %s, %s)",
                asset_id,
                revision,
                JOB_ID if revision == revisions else uuid4(),
            )


@pytest.fixture
async def empty_bench(database):
    """A bench on a database without assets."""
    async with pool(database, "handlers", 0, 4) as connections:
        yield Bench(connections)


@pytest.fixture
async def bench(empty_bench):
    """A bench whose job processes the only revision of the asset with the dataset `dem`."""
    await empty_bench.make_asset()
    return empty_bench


TILES = {"results_of": {"node_id": "tiles"}}


@pytest.mark.requirement("C1")
async def test_a_single_raster_is_registered_and_finalized(bench):
    assert await bench.call("ensure_collection", collection=a_collection()) == {
        "stac_collection_id": "dem",
        "is_new": True,
    }
    assert (await bench.call("ensure_collection", collection=a_collection()))["is_new"] is False
    assert await bench.call("register_item", item=an_item("dem-v0")) == {
        "stac_item_id": "dem-v0",
        "stac_collection_id": "dem",
    }

    result = await bench.call("finalize", collection_id="dem", item_ids=["dem-v0"])

    extent = {
        "spatial": {"bbox": [[1.0, 2.0, 2.0, 3.0]]},
        "temporal": {"interval": [["2024-05-01T00:00:00Z", "2024-05-01T00:00:00Z"]]},
    }
    assert result == {
        "stac_collection_id": "dem",
        "item_count": 1,
        "removed_count": 0,
        "collection_item_count": 1,
        "extent": extent,
    }
    assert await bench.documents() == {"": a_collection() | {"extent": extent}, "dem-v0": an_item("dem-v0")}


@pytest.mark.requirement("C1")
async def test_the_extent_includes_the_intervals_of_all_items(bench):
    early, late = an_item("a", west=10), an_item("b", west=170)
    early["properties"] |= {
        "datetime": None,
        "start_datetime": "2001-01-01T00:00:00Z",
        "end_datetime": "2001-12-31T23:59:59Z",
    }
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[early, late])

    result = await bench.call("finalize", collection_id="dem", item_ids=["a", "b"])

    assert result["extent"] == {
        "spatial": {"bbox": [[10.0, 2.0, 171.0, 3.0]]},
        "temporal": {"interval": [["2001-01-01T00:00:00Z", "2024-05-01T00:00:00Z"]]},
    }
    assert (await bench.documents())[""]["extent"] == result["extent"]


@pytest.mark.requirement("C1")
async def test_items_are_read_from_results_of_children_and_can_be_registered_twice(bench, monkeypatch):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 2)
    bench.completed(*({"stac_item": an_item(f"t{n}", west=n)} for n in range(3)), {"stac_item": None})
    bench.completed({"stac_item": [an_item("t8"), an_item("t9")]})
    bench.completed({"error": "x"}, status=NodeStatus.FAILED)
    await bench.call("ensure_collection", collection=a_collection())

    for _ in range(2):
        context = bench.context(TILES)
        result = await bench.call("register_items", context)
        assert result == {"stac_collection_id": "dem", "item_count": 5}
        assert context.running().progress["items"] == 5
    final = await bench.call("finalize", collection_id="dem", expected_count=5, **TILES)

    assert (final["item_count"], final["collection_item_count"]) == (5, 5)
    assert set(await bench.documents()) == {"", "t0", "t1", "t2", "t8", "t9"}


@pytest.mark.requirement("C1")
async def test_a_slice_of_the_results_can_be_registered(bench):
    bench.completed(*({"tile": an_item(f"t{n}")} for n in range(10)))

    some = {"node_id": "tiles", "offset": 3, "limit": 4}
    result = await bench.call("register_items", results_of=some, item_field="tile")

    assert result["item_count"] == 4
    assert set(await bench.documents()) == {"t3", "t4", "t5", "t6"}


@pytest.mark.requirement("C1")
async def test_items_can_be_given_as_a_list_which_may_be_empty(bench):
    assert (await bench.call("register_items", items=[an_item("a"), an_item("b")]))["item_count"] == 2
    assert await bench.call("register_items", items=[]) == {"stac_collection_id": None, "item_count": 0}


@pytest.mark.requirement("C1")
async def test_tasks_can_register_the_same_items_concurrently(bench):
    items = [an_item(f"t{n:03}", west=n / 10) for n in range(200)]

    await asyncio.gather(
        *(bench.call("register_items", items=items if at % 2 else items[::-1]) for at in range(4)),
    )

    assert len(await bench.documents()) == 200


@pytest.mark.requirement("C1")
async def test_the_error_for_a_missing_item_names_it(bench):
    bench.completed(*({"stac_item": an_item(f"t{n:02}")} for n in range(30)))
    await bench.call("register_items", items=[an_item(f"t{n:02}") for n in range(29)])

    with pytest.raises(HandlerFailed) as failure:
        await bench.call("finalize", collection_id="dem", **TILES)
    with pytest.raises(HandlerFailed) as many:
        await bench.call("finalize", collection_id="dem", item_ids=[f"x{n:02}" for n in range(12)])

    assert failure.value.code == "stac.items-missing"
    assert failure.value.message == "1 of 30 items are not in collection 'dem': t29"
    assert many.value.message.endswith("x08, x09 and 2 more")
    assert len(await bench.documents()) == 29, "nothing is removed while items are missing"


@pytest.mark.requirement("C1")
async def test_a_wrong_count_or_a_duplicate_item_is_an_error(bench):
    await bench.call("register_items", items=[an_item("a")])

    with pytest.raises(HandlerFailed) as wrong:
        await bench.call("finalize", collection_id="dem", item_ids=["a"], expected_count=2)
    with pytest.raises(UnfitData) as doubled:
        await bench.call("finalize", collection_id="dem", item_ids=["a", "a"])
    with pytest.raises(UnfitData) as twice:
        await bench.call("register_items", items=[an_item("b"), an_item("b")])

    assert (wrong.value.code, doubled.value.code) == ("stac.wrong-count", "stac.duplicate-items")
    assert twice.value.code == "catalog.duplicate-item"


@pytest.mark.requirement("A4")
async def test_each_revision_has_its_own_documents(bench):
    """The documents of the old revision are not changed."""
    await bench.call("register_items", items=[an_item("t0"), an_item("t1", west=50)])
    await bench.call("finalize", collection_id="dem", item_ids=["t0", "t1"], version_ordinal=0, revision=1)
    await bench.rows("UPDATE dagapp.asset_revisions SET job_id = %s", uuid4())
    await bench.rows(
        "INSERT INTO dagapp.asset_revisions (asset_id, version_ordinal, revision, job_id) "
        "SELECT asset_id, version_ordinal, 2, %s FROM dagapp.asset_revisions",
        JOB_ID,
    )
    await bench.call("register_items", items=[an_item("t0", revision=2)])

    result = await bench.call("finalize", collection_id="dem", item_ids=["t0"], version_ordinal=0, revision=2)

    assert (result["removed_count"], result["collection_item_count"]) == (0, 1)
    assert result["extent"]["spatial"]["bbox"] == [[1.0, 2.0, 2.0, 3.0]]
    assert set(await bench.documents(revision=1)) == {"t0", "t1"}
    assert set(await bench.documents(revision=2)) == {"t0"}


@pytest.mark.requirement("A4")
async def test_items_that_are_not_among_the_results_are_removed_by_finalize(empty_bench):
    """An earlier attempt may have stored them."""
    bench = empty_bench
    await bench.make_asset(revisions=3)
    bench.completed({"stac_item": an_item("t0", revision=3)})
    await bench.call("ensure_collection", collection=a_collection() | {"dagmaster:revision": 3})
    await bench.call("register_items", items=[an_item("t0", revision=3), an_item("other", west=50, revision=3)])

    result = await bench.call("finalize", collection_id="dem", **TILES)

    assert (result["removed_count"], result["collection_item_count"]) == (1, 1)
    assert set(await bench.documents(revision=3)) == {"", "t0"}


@pytest.mark.requirement("A4")
async def test_only_the_job_of_a_revision_can_write_its_documents(empty_bench):
    bench = empty_bench
    await bench.make_asset(revisions=2)
    await bench.call("register_item", item=an_item("dem-v0", revision=2))

    for revision in (1, 3):
        with pytest.raises(UnfitData) as refused:
            await bench.call("register_item", item=an_item("dem-v0", revision=revision))
        assert refused.value.code == "revision.other-job"
        with pytest.raises(UnfitData) as unfinished:
            await bench.call("ensure_collection", collection=a_collection() | {"dagmaster:revision": revision})
        assert unfinished.value.code == "revision.other-job"
    assert set(await bench.documents(revision=2)) == {"dem-v0"}
    assert await bench.rows("SELECT 1 FROM dagapp.stac_documents WHERE revision <> 2") == []


@pytest.mark.requirement("A4", "X1")
async def test_a_dataset_without_an_asset_can_be_written_only_by_the_job_in_its_name(empty_bench):
    own = job_dataset_id(JOB_ID)
    assert (await empty_bench.call("ensure_collection", collection=a_collection(own)))["is_new"]

    with pytest.raises(UnfitData) as refused:
        await empty_bench.call("ensure_collection", collection=a_collection("unowned"))

    assert refused.value.code == "revision.other-job"
    assert await empty_bench.rows("SELECT dataset_id FROM dagapp.stac_documents") == [(own,)]


@pytest.mark.requirement("A5")
@pytest.mark.parametrize("decision", ["approved", "rejected"])
async def test_documents_of_a_reviewed_revision_do_not_change(bench, decision):
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[an_item("a"), an_item("b")])
    before = await bench.documents()
    await bench.rows("UPDATE dagapp.asset_revisions SET reviewed_as = %s, reviewed_at = now()", decision)

    for name, params in (
        ("ensure_collection", {"collection": a_collection() | {"title": "new"}}),
        ("register_item", {"item": an_item("a", west=7)}),
        ("register_items", {"items": [an_item("a"), an_item("c")]}),
        ("finalize", {"collection_id": "dem", "item_ids": ["a"]}),
    ):
        with pytest.raises(UnfitData) as refused:  # never retried
            await bench.call(name, **params)
        assert refused.value.code == "revision.reviewed"
        assert refused.value.hint == "submit it again: that makes a new revision"

    assert await bench.documents() == before


@pytest.mark.requirement("A5")
async def test_writing_documents_waits_for_a_concurrent_review(bench):
    """The trigger locks the revision, so that the second transaction sees the changes of the first."""
    async with bench._connections.connection() as connection:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM dagapp.asset_revisions FOR UPDATE")
            writing = asyncio.create_task(bench.call("register_item", item=an_item("a")))
            done, _ = await asyncio.wait([writing], timeout=0.3)
            await connection.execute("UPDATE dagapp.asset_revisions SET reviewed_as = 'approved'")
        assert done == set()

    with pytest.raises(UnfitData) as refused:
        await writing
    assert refused.value.code == "revision.reviewed"
    assert await bench.documents() == {}


@pytest.mark.requirement("C1")
async def test_the_error_for_a_child_without_an_item_names_the_child(bench):
    bench.completed({"cog_blob": "x"})

    with pytest.raises(UnfitData) as failure:
        await bench.call("register_items", **TILES)

    assert "tiles__0" in failure.value.message


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("other", [{"collection": "other"}, {"revision": 2}])
async def test_items_of_several_revisions_are_refused(bench, monkeypatch, other):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 1)

    with pytest.raises(UnfitData) as refused:
        await bench.call("register_items", items=[an_item("a"), an_item("b", **other)])

    assert refused.value.code == "stac.many-collections"
    assert await bench.rows("SELECT document_id FROM dagapp.stac_documents") == [("a",)]


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "properties",
    [
        {"dagmaster:version_ordinal": -1},
        {"dagmaster:version_ordinal": 0, "dagmaster:revision": 0},
        {"dagmaster:version_ordinal": "0"},
        {"dagmaster:version_ordinal": True},
        {"dagmaster:revision": 2**40},
    ],
    ids=str,
)
async def test_an_item_without_a_valid_revision_is_refused(bench, properties):
    item = an_item("a")

    with pytest.raises(UnfitData) as refused:
        await bench.call("register_item", item=item | {"properties": item["properties"] | properties})

    assert refused.value.code == "stac.no-revision"


@pytest.mark.requirement("C1")
async def test_text_that_the_database_cannot_store_is_blamed_on_the_data(bench):
    item = an_item("a")
    item["properties"]["title"] = "a\0b"

    with pytest.raises(UnfitData) as refused:
        await bench.call("register_item", item=item)

    assert refused.value.code == "catalog.bad-item"


@pytest.mark.requirement("C1")
async def test_documents_of_many_megabytes_are_written_in_several_transactions(bench, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_BYTES", 3_000)
    items = [an_item(f"t{n}") for n in range(40)]

    assert (await bench.call("register_items", items=items))["item_count"] == 40

    (count,) = await bench.rows("SELECT count(DISTINCT xmin::text) FROM dagapp.stac_documents")
    assert count[0] > 1
    assert len(await bench.documents()) == 40


@pytest.mark.requirement("E14")
async def test_registering_stops_between_batches_when_cancelled(bench, monkeypatch):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 1)
    context = bench.context({"items": [an_item("a"), an_item("b")]})
    context.cancel()

    with pytest.raises(GiveBack):
        await bench.call("register_items", context)

    assert set(await bench.documents()) == {"a"}


OURS = "http://localhost:8003/files/silver/silver/cogs/dem/v0/r1/dem.tif"


@pytest.mark.requirement("C1", "X3")
@pytest.mark.parametrize(
    "href",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "/etc/passwd",
        "/files/bronze/bronze/raw.tif",
        "/files/silver/silver/../../bronze/raw.tif",
        "/files/silver/silver/%2e%2e/raw.tif",
        "//evil.example/files/silver/silver/x.tif",
        "../../etc/passwd",
        "/vsicurl/http://169.254.169.254/latest/meta-data",
        "/vsizip//vsicurl/http://example.com/a.zip",
        "http://127.0.0.1:5432/",
        "http://127.0.0.1:8003/files/bronze/bronze/raw.tif",
        "http://[::1]/files/../livez",
        "http://localhost:8003/files/silver/silver/../../bronze/raw.tif",
        "http://localhost:8003/files/silver/silver/%2e%2e/%2e%2e/bronze/raw.tif",
        "http://localhost:8003/files/silver/silver/%252e%252e/raw.tif",
        "http://localhost:8003/files/silver/silver/..%2f..%2fraw.tif",
        "http://localhost:8003/files/silver/silver\\..\\raw.tif",
        "http://localhost:8003/files/silver/silver/vsi%63url/x.tif/../../x",
        "http://localhost:8003/files/silver/silver/a\t.tif",
        "http://localhost:8003@evil.example/files/silver/silver/x.tif",
        "http://user:secret@localhost:8003/files/silver/silver/x.tif",
        "http://localhost:8003.evil.example/files/silver/silver/x.tif",
        "https://evil.example/files/silver/silver/x.tif",
        "https://evil.example/x.tif",
        "s3://bucket/x.tif",
        "gopher://localhost:8003/files/silver/silver/x.tif",
        "javascript:alert(1)",
        "",
    ],
)
@pytest.mark.parametrize("place", ["data", "thumbnail", "alternate"])
def test_an_item_with_a_file_on_another_server_cannot_be_published(href, place):
    asset = {"href": OURS, "alternate": {"s3": {"href": href}}} if place == "alternate" else {"href": href}
    bad = an_item("dem-v0-bad") | {"assets": {"data": {"href": OURS}, place: asset}}

    message = refusal_of(bad)

    assert "dem-v0-bad" in message
    assert f"assets.{place}" in message
    assert "secret" not in message


def refusal_of(document: dict) -> str:
    return refused(document).message


def refused(document: dict) -> UnfitData:
    addresses = Addresses("http://localhost:8003")
    with pytest.raises(UnfitData) as refusal:  # never retried
        refuse_unpublishable(document, addresses.allows, addresses.serves, addresses.collection("dem"))
    assert refusal.value.code == "stac.invalid"
    return refusal.value


@pytest.mark.requirement("C1")
def test_the_hint_for_a_refused_document_matches_its_problem():
    item = an_item("dem-v0-bad")
    ours = item["properties"] | {"processing:software": {"dagmaster": "9"}, "proj:code": "EPSG:4326"}

    assert "served zone" in refused(item | {"assets": {"data": {"href": "file:///etc/passwd"}}}).hint
    assert refused(item | {"geometry": 1}).hint.startswith("correct the document")
    assert "resume the job from the node that wrote it" in refused(item | {"properties": ours}).hint


@pytest.mark.requirement("C1", "X3")
async def test_refused_documents_are_not_published(bench):
    bad = {"assets": {"data": {"href": "file:///etc/passwd"}}}
    with pytest.raises(UnfitData):
        await bench.call("ensure_collection", collection=a_collection() | bad)
    assert await bench.documents() == {}

    with pytest.raises(UnfitData):
        await bench.call("register_item", item=an_item("dem-v0") | bad)
    with pytest.raises(UnfitData):
        await bench.call("register_items", items=[an_item("dem-v0"), an_item("dem-v1") | bad])
    bench.completed({"stac_item": an_item("dem-v0") | bad})
    with pytest.raises(UnfitData):
        await bench.call("register_items", **TILES)

    assert await bench.documents() == {}


@pytest.mark.requirement("C1", "X3")
@pytest.mark.parametrize(
    "href",
    [
        "file:///etc/passwd",
        "http://127.0.0.1:5432/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://169.254.169.254/latest",
        "http://10.0.0.1/",
        "http://redis:6379/",
        "http://metadata.google.internal/",
        "javascript:alert(1)",
    ],
)
def test_a_link_to_an_internal_address_cannot_be_published(href):
    links = {"links": [{"rel": "about", "href": href}]}

    assert "links.0.href" in refusal_of(a_collection() | links)
    assert "links.0.href" in refusal_of(an_item("dem-v0") | links)


@pytest.mark.requirement("C1")
async def test_own_files_public_links_and_allowed_hosts_are_published(bench, monkeypatch):
    monkeypatch.setenv("STAC_HREF_PREFIXES", "https://data.example.org/naip, s3://naip-bucket")
    assets = {
        "data": {"href": OURS},
        "moved": {"href": "http://127.0.0.1:18103/files/external/external/a%20b.tif"},
        "preview": {"href": "http://localhost:8003/tiles/dem/preview.png?version=0"},
        "path": {"href": "/files/silver/silver/cogs/dem/v0/r1/dem.tif"},
        "other": {"href": "https://data.example.org/naip/x.tif"},
        "bucket": {"href": "s3://naip-bucket/x.tif"},
    }
    links = [{"rel": "license", "href": "https://spdx.org/licenses/CC0-1.0.html"}]
    await bench.call("ensure_collection", collection=a_collection() | {"links": links})

    await bench.call("register_items", items=[an_item("dem-v0") | {"assets": assets, "links": links}])

    assert set(await bench.documents()) == {"", "dem-v0"}
    for href in (
        "https://data.example.org/naipx/x.tif",
        "https://data.example.org/naip/../x.tif",
        "s3://naip-bucket2/",
    ):
        with pytest.raises(UnfitData):
            await bench.call("register_items", items=[an_item("dem-v1") | {"assets": {"data": {"href": href}}}])


@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    "change",
    [
        {"geometry": {"type": "Polygon", "coordinates": [[[1, 2], [3, 4]]]}},
        {"assets": {"data": {"title": "without a URL"}}},
        {"links": "none"},
        {"stac_version": "0.9"},
        {"properties": {"title": "without a datetime"}},
        {"properties": {"datetime": "2024-05-01T00:00:00Z", "x": "deep"}, "bbox": [1, 2]},
    ],
    ids=str,
)
def test_an_item_that_breaks_the_schema_cannot_be_published(change):
    assert "dem-v0" in refusal_of(an_item("dem-v0") | change)
