"""The queues of shipped workflows, and workers that serve some queues, or a few tasks of each."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagmaster.assets.states import Clearance
from dagmaster.database.assets.store import AssetStore
from dagmaster.errors import InvalidRequest
from dagmaster.handlers.shipped import HEAVY, LIGHT, REGISTRATIONS
from dagmaster.jobs.routing import Route
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.settings import DEFAULT_QUEUES, load
from dagmaster.workflows.load import read_all, shipped
from dagmaster.workflows.model import work_of
from tests.api.serving import api, ok
from tests.catalog import CatalogReader
from tests.engine.harness import engine, open_gate, until, workflow
from tests.engine.test_raster_jobs import Hub
from tests.published import ADMIN

pytestmark = pytest.mark.requirement("Q1")

LOADED = read_all(shipped(), handlers={each.name for each in REGISTRATIONS}, queues=DEFAULT_QUEUES).workflows
ALIASES = {"adf_export", "raster_tiled_processing"}
EXAMPLES = ("echo_test", "hello_world", "conditional_test", "fan_out_test", "multi_phase_test", "retry_fan_out_test")


@pytest.mark.parametrize("name", sorted(LOADED))
def test_every_node_of_a_shipped_workflow_names_its_queue(name):
    works = [work for node in LOADED[name].nodes.values() if (work := work_of(node)) is not None]

    assert works
    assert {work.queue for work in works} <= {LIGHT, HEAVY}


@pytest.mark.requirement("W4")
def test_shipped_handlers_are_routed_as_in_shipped_workflows():
    """So a workflow of a user that names no queue uses the same queues."""
    registered = {each.name: each.queue for each in REGISTRATIONS}
    used = {
        (work.handler, work.queue)
        for each in LOADED.values()
        for node in each.nodes.values()
        if (work := work_of(node)) is not None
    }

    assert {(handler, registered[handler]) for handler, _ in used if "." in handler} == {
        (handler, queue) for handler, queue in used if "." in handler
    }
    assert registered["raster.create_cog"] == HEAVY
    assert registered["raster.validate"] == LIGHT


@pytest.mark.requirement("W4")
def test_the_queue_of_the_workflow_wins_over_that_of_the_handler():
    router = RegistryRouter({each.name: each for each in REGISTRATIONS}, DEFAULT_QUEUES, "dag-worker-tasks")
    nodes = workflow("""
        workflow_id: own
        nodes:
          start: {type: start, next: [named_in_workflow, from_handler, without_queue]}
          named_in_workflow: {handler: raster.create_cog, queue: functionapp-tasks, next: end}
          from_handler: {handler: raster.create_cog, next: end}
          without_queue: {handler: echo, next: end}
          end: {type: end}
        """).nodes

    def routed(name: str) -> str:
        work = work_of(nodes[name])
        assert work is not None
        route: Route = router.route(work)
        return route.queue

    assert [routed(name) for name in ("named_in_workflow", "from_handler", "without_queue")] == [
        LIGHT,
        HEAVY,
        "dag-worker-tasks",
    ]


@pytest.mark.timeout(240)
async def test_a_light_and_a_heavy_worker_complete_all_shipped_workflows_together(
    catalog_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    options = {"task_lease_sec": 20.0, "lease_renew_sec": 5.0}
    async with engine(catalog_database, workers=0, **options) as running, AssetStore(catalog_database) as store:
        light, heavy = await running.start_worker([LIGHT]), await running.start_worker([HEAVY])
        hub = Hub(tmp_path, running, CatalogReader(catalog_database), store)
        jobs = [await running.submit(name) for name in (*EXAMPLES, "retry_test", "demo")]
        await _raster_jobs(hub)
        await asyncio.gather(*(running.wait(job_id, 60) for job_id in jobs))
        rows = await running.rows(
            "SELECT j.workflow_id, j.status, j.error_message, t.queue, t.handler, t.worker_id "
            "FROM dagapp.dag_jobs j LEFT JOIN dagapp.dag_tasks t ON t.job_id = j.job_id AND t.status = 'succeeded'"
        )

    assert {(row["workflow_id"], row["error_message"]) for row in rows if row["status"] != "completed"} == set()
    assert {row["workflow_id"] for row in rows} >= LOADED.keys() - ALIASES
    assert {(row["queue"], row["worker_id"]) for row in rows} == {(LIGHT, light.worker_id), (HEAVY, heavy.worker_id)}


async def _raster_jobs(hub: Hub) -> None:
    """Run each workflow that processes or publishes rasters at least once."""
    scene = hub.file("scene.tif", width=1200, height=1100, bands=1)
    one = await hub.run("raster_ingest", 60, blob_name=scene)
    await hub.run("stac_register", 60, dataset_id=f"job-{one['job_id']}")
    await hub.run("raster_validate", 60, blob_name=scene)
    await hub.process("tiled", scene, "process_large_raster", tile_size=1024, overlap=512)
    await hub.process("parts", [hub.file(f"part {n}.tif", width=300, height=260, bands=1) for n in range(2)])
    await clear(hub.publisher.store, "tiled", Clearance.PUBLIC, caller=ADMIN)
    await hub.run("external_export", 60, asset_id="tiled", version_ordinal=0)
    await unpublish(hub.publisher.store, "tiled", 0, caller=ADMIN)
    await hub.run("unpublish", 60, asset_id="tiled", version_ordinal=0)


async def test_a_job_shows_within_seconds_that_no_worker_serves_its_queue(database):
    async with engine(database, workers=0) as running, api(database, running) as http:
        await running.start_worker([LIGHT])
        job_id = await running.submit(_fan_out_on(HEAVY, "give"))

        async def reasons() -> Any:
            waiting = await ok(http.get(f"/api/v1/jobs/{job_id}/waiting"))
            listed = [each for node in waiting["nodes"] for each in node["reasons"]]
            return next((each for each in listed if each["code"] == "no_worker"), None)

        reason = await until(reasons, timeout=3)
        await running.start_worker([HEAVY])
        await running.wait(job_id)

    assert reason["detail"] == f"no live worker serves queue {HEAVY}"


def _fan_out_on(queue: str, handler: str, count: int = 1) -> Any:
    """A fan_out with `count` children on a queue."""
    return workflow(f"""
        workflow_id: many_on_{queue.replace("-", "_")}
        nodes:
          start: {{type: start, next: split}}
          split:
            type: fan_out
            source: {list(range(count))}
            task: {{handler: {handler}, queue: {queue}}}
            next: end
          end: {{type: end}}
        """)


# Concurrency


async def test_a_worker_can_limit_each_of_its_queues_separately(database):
    limits = {"worker_queue_concurrency": (f"{HEAVY}=2", f"{LIGHT}=3")}
    async with engine(database, workers=0) as running:
        worker = await running.start_worker([LIGHT, HEAVY, "dag-worker-tasks"], **limits)
        jobs = {
            queue: await running.submit(_fan_out_on(queue, "gate", 8)) for queue in (HEAVY, LIGHT, "dag-worker-tasks")
        }
        most: Counter[str] = Counter()

        def running_now() -> Counter[str]:
            counted = Counter(held_task.context.task.queue for held_task in worker.held_tasks)
            most.update({queue: max(0, count - most[queue]) for queue, count in counted.items()})
            return counted

        expected = {HEAVY: 2, LIGHT: 3, "dag-worker-tasks": 8}
        await until(lambda: _soon(running_now() == expected))
        for index in range(8):
            open_gate(jobs[HEAVY], f"split__{index}")
            open_gate(jobs[LIGHT], f"split__{index}")
            await asyncio.sleep(0.05)
            running_now()
        open_gate(jobs["dag-worker-tasks"])
        for job_id in jobs.values():
            await running.wait(job_id)

    assert most == expected


async def test_a_full_queue_does_not_delay_another_and_is_refilled_at_once(database):
    """Polls are 30 s apart: the report of a task claims the next one in the same exchange."""
    async with engine(database, workers=0, worker_poll_interval=30.0) as running:
        await running.start_worker([LIGHT, HEAVY], worker_queue_concurrency=(f"{HEAVY}=1",))
        heavy = await running.submit(_fan_out_on(HEAVY, "gate", 20))
        light = await running.submit(_fan_out_on(LIGHT, "give", 20))
        ended = [await running.wait(light, 5)]
        open_gate(heavy)
        ended.append(await running.wait(heavy, 10))

    assert [job["status"] for job in ended] == ["completed", "completed"]


@pytest.mark.requirement("M2")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("container-tasks", "must be pairs QUEUE=COUNT, separated by commas"),
        ("container-tasks=0", "must be pairs QUEUE=COUNT, separated by commas"),
        ("container-tasks=x", "must be pairs QUEUE=COUNT, separated by commas"),
        ("container-tasks=1,container-tasks=2", "a queue is given twice"),
        ("other=1", "names other, which WORKER_QUEUE does not name"),
    ],
)
def test_invalid_limits_are_refused_at_startup(value, message, monkeypatch):
    monkeypatch.setenv("WORKER_QUEUE_CONCURRENCY", value)

    with pytest.raises(InvalidRequest, match="WORKER_QUEUE_CONCURRENCY") as refusal:
        load()

    assert message in str(refusal.value)


async def _soon(holds: bool) -> bool:
    return holds
