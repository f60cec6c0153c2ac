"""Handlers that write to the STAC catalogue: what was promised is there, or the job is told what is not."""

from typing import Any

import orjson
import pytest

from dagmaster.database.catalog.pgstac import StacCatalog
from dagmaster.database.connect import pool
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers import calling, stac
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.registry import installed
from dagmaster.jobs.model import NodeState, TaskMessage, child_id
from dagmaster.jobs.states import NodeStatus
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
    """Calls handlers as a worker does, on a real catalogue; the results of children are in memory."""

    def __init__(self, connections) -> None:
        self.catalog = StacCatalog(connections)
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


@pytest.fixture
async def bench(catalog_database):
    async with pool(catalog_database, "handlers", 0, 4) as connections:
        yield Bench(connections)


TILES = {"results_of": {"node_id": "tiles"}}


@pytest.mark.requirement("C1")
async def test_a_single_raster_is_registered_and_finalized(bench):
    assert await bench.call("ensure_collection", collection=a_collection()) == {
        "stac_collection_id": "dem",
        "is_new": True,
    }
    assert await bench.call("register_item", item=an_item("dem-v0")) == {
        "stac_item_id": "dem-v0",
        "stac_collection_id": "dem",
    }

    told = await bench.call("finalize", collection_id="dem", item_ids=["dem-v0"])

    extent = {
        "spatial": {"bbox": [[1.0, 2.0, 2.0, 3.0]]},
        "temporal": {"interval": [["2024-05-01T00:00:00Z", "2024-05-01T00:00:00Z"]]},
    }
    assert told == {
        "stac_collection_id": "dem",
        "item_count": 1,
        "removed_count": 0,
        "collection_item_count": 1,
        "extent": extent,
    }
    assert (await bench.catalog.get_collection("dem"))["extent"] == extent


@pytest.mark.requirement("C1")
async def test_items_are_taken_from_the_results_of_children_and_run_twice_are_there_once(bench, monkeypatch):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 2)
    bench.completed(*({"stac_item": an_item(f"t{n}", west=n)} for n in range(3)), {"stac_item": None})
    bench.completed({"stac_item": [an_item("t8"), an_item("t9")]})
    bench.completed({"error": "x"}, status=NodeStatus.FAILED)
    await bench.call("ensure_collection", collection=a_collection())

    for _ in range(2):
        context = bench.context(TILES)
        told = await bench.call("register_items", context)
        assert told == {"stac_collection_id": "dem", "item_count": 5}
        assert context.running().progress["items"] == 5
    final = await bench.call("finalize", collection_id="dem", expected_count=5, **TILES)

    assert (final["item_count"], final["collection_item_count"]) == (5, 5)
    assert await bench.catalog.missing_items("dem", ["t0", "t1", "t2", "t8", "t9"]) == []


@pytest.mark.requirement("C1")
async def test_a_slice_of_the_results_is_enough_for_one_batch_of_many(bench):
    bench.completed(*({"tile": an_item(f"t{n}")} for n in range(10)))
    await bench.call("ensure_collection", collection=a_collection())

    some = {"node_id": "tiles", "offset": 3, "limit": 4}
    told = await bench.call("register_items", results_of=some, item_field="tile")

    assert told["item_count"] == 4
    assert await bench.catalog.missing_items("dem", [f"t{n}" for n in range(10)]) == [
        "t0",
        "t1",
        "t2",
        "t7",
        "t8",
        "t9",
    ]


@pytest.mark.requirement("C1")
async def test_items_may_be_given_and_may_be_none(bench):
    await bench.call("ensure_collection", collection=a_collection())

    assert (await bench.call("register_items", items=[an_item("a"), an_item("b")]))["item_count"] == 2
    assert await bench.call("register_items", items=[]) == {"stac_collection_id": None, "item_count": 0}


@pytest.mark.requirement("C1")
async def test_a_missing_item_fails_the_job_by_its_name(bench):
    bench.completed(*({"stac_item": an_item(f"t{n:02}")} for n in range(30)))
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[an_item(f"t{n:02}") for n in range(29)])

    with pytest.raises(HandlerFailed) as told:
        await bench.call("finalize", collection_id="dem", **TILES)
    with pytest.raises(HandlerFailed) as many:
        await bench.call("finalize", collection_id="dem", item_ids=[f"x{n:02}" for n in range(12)])

    assert told.value.code == "stac.items-missing"
    assert told.value.message == "1 of 30 items are not in collection 'dem': t29"
    assert many.value.message.endswith("x08, x09 and 2 more")


@pytest.mark.requirement("C1")
async def test_a_wrong_count_or_a_name_promised_twice_is_an_error(bench):
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[an_item("a")])

    with pytest.raises(HandlerFailed) as wrong:
        await bench.call("finalize", collection_id="dem", item_ids=["a"], expected_count=2)
    with pytest.raises(UnfitData) as doubled:
        await bench.call("finalize", collection_id="dem", item_ids=["a", "a"])

    assert (wrong.value.code, doubled.value.code) == ("stac.wrong-count", "stac.duplicate-items")


@pytest.mark.requirement("C1")
async def test_tiles_that_a_new_revision_no_longer_has_are_removed(bench):
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[an_item("t0"), an_item("t1", west=50)])
    await bench.call("register_items", items=[an_item("t0", revision=2)])

    told = await bench.call("finalize", collection_id="dem", item_ids=["t0"], version_ordinal=0, revision=2)

    assert (told["removed_count"], told["collection_item_count"]) == (1, 1)
    assert told["extent"]["spatial"]["bbox"] == [[1.0, 2.0, 2.0, 3.0]]


@pytest.mark.requirement("C1")
async def test_what_is_not_there_yet_removes_nothing(bench):
    """An earlier revision is served until the new one is whole."""
    await bench.call("ensure_collection", collection=a_collection())
    await bench.call("register_items", items=[an_item("t0")])

    with pytest.raises(HandlerFailed):
        await bench.call("finalize", collection_id="dem", item_ids=["t1"], version_ordinal=0, revision=2)

    assert await bench.catalog.count_items("dem") == 1


@pytest.mark.requirement("C1")
async def test_a_child_that_reports_no_item_is_named(bench):
    bench.completed({"cog_blob": "x"})
    await bench.call("ensure_collection", collection=a_collection())

    with pytest.raises(UnfitData) as told:
        await bench.call("register_items", **TILES)

    assert "tiles__0" in told.value.message


@pytest.mark.requirement("C1")
async def test_items_of_several_collections_are_refused_before_any_more_is_written(bench, monkeypatch):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 1)
    for name in ("dem", "other"):
        await bench.call("ensure_collection", collection=a_collection(name))

    with pytest.raises(UnfitData):
        await bench.call("register_items", items=[an_item("a"), an_item("b", collection="other")])

    assert await bench.catalog.count_items("other") == 0


@pytest.mark.requirement("E14")
async def test_registering_stops_between_batches_when_cancelled(bench, monkeypatch):
    monkeypatch.setattr(stac, "BATCH_ITEMS", 1)
    await bench.call("ensure_collection", collection=a_collection())
    context = bench.context({"items": [an_item("a"), an_item("b")]})
    context.cancel()

    with pytest.raises(GiveBack):
        await bench.call("register_items", context)

    assert await bench.catalog.count_items("dem") == 1
