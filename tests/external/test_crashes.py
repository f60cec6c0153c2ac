"""Processes die while they copy to the external zone or remove copies, and others finish the work. Tested also with a
pipeline of Azure Data Factory, whose tokens must not be stored or logged."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dagmaster.assets.states import Clearance
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.unpublish import unpublish
from tests.engine.processes import Fleet, Process, fleet
from tests.external.data_factory import CANARY, IDENTITY_SECRET, SETTINGS, AzureLike, azure
from tests.external.kit import copies, external_files, jobs, processed
from tests.operations.kit import BOB, Kit

pytestmark = [pytest.mark.requirement("A5", "E5", "S4"), pytest.mark.timeout(240)]

TILES = 3
# The objects of an exported dataset: tiles, their items, mosaic, collection, manifest.
OBJECTS = 2 * TILES + 3
SHORT_LEASES = {"orphan_threshold_sec": 0.8, "task_lease_sec": 2.0, "lease_renew_sec": 0.4, "max_losses": 100}


async def prepared(kit: Kit, *datasets: str) -> None:
    """Processed datasets. Their jobs are deleted: SQL statements ended them, so they have no valid history."""
    for dataset in datasets:
        await processed(kit, dataset, tiles=TILES)
    for table in ("dag_job_events", "dag_node_states", "dag_jobs"):
        await kit.execute(f"DELETE FROM dagapp.{table}")


async def publish(kit: Kit, dataset: str) -> None:
    await approve(kit.store, dataset, 0, caller=BOB, clearance=Clearance.PUBLIC)


async def reaches(running: Fleet, kit: Kit, dataset: str, state: str) -> None:
    async def reached() -> bool:
        return (await copies(kit, dataset)).state == state

    await running.until(reached, 60, f"{dataset} to be {state}")


async def dies(running: Fleet, worker: Process, point: str) -> None:
    """Start the worker, and wait until it or a child process of it dies at this crash point."""
    (before,) = await running.rows("SELECT clock_timestamp() AS now")
    worker.start(crash_point=point)

    async def over() -> bool:
        text = (
            "SELECT 1 FROM dagapp.dag_task_results"
            " WHERE status = 'failed' AND error ->> 'blame' = 'environment' AND reported_at > %s"
        )
        return not worker.is_running or bool(await running.rows(text, before["now"]))

    await running.until(over, 60, f"the death at {point}")
    worker.kill()


def copied(folder: Path, dataset: str) -> dict[str, str]:
    return {blob: digest for blob, digest in external_files(folder).items() if f"/{dataset}/" in blob}


async def test_if_a_worker_dies_during_a_copy_or_a_removal_the_next_worker_finishes_it(kit: Kit, tmp_path: Path):
    points = ["handler.before-publish:2", "worker.after-handler:2"]
    datasets = [f"dem-{number}" for number in range(len(points))]
    await prepared(kit, *datasets)
    async with fleet(kit.dsn, tmp_path, storage_folder=tmp_path, **SHORT_LEASES) as running:
        await running.start_one("orchestrator")
        worker = running.process("worker")
        for dataset, point in zip(datasets, points, strict=True):
            await publish(kit, dataset)
            await dies(running, worker, point)
            worker.start()
            await reaches(running, kit, dataset, "exported")
            worker.kill()
        for dataset in datasets:
            assert len(copied(tmp_path, dataset)) == OBJECTS
            silver = {
                path.name: path.read_bytes() for path in (tmp_path / f"silver/silver/cogs/{dataset}").rglob("*.tif")
            }
            outside = (tmp_path / f"external/external/cogs/{dataset}").rglob("*.tif")
            assert {path.name: path.read_bytes() for path in outside} == silver
            assert len(silver) == TILES

        await unpublish(kit.store, "dem-0", 0, caller=BOB)
        await dies(running, worker, "worker.after-handler:2")
        worker.start()
        await reaches(running, kit, "dem-0", "withdrawn")
        assert copied(tmp_path, "dem-0") == {}
        assert len(external_files(tmp_path)) == OBJECTS
    ends = [(job["workflow_id"], job["status"]) for job in await jobs(kit)]
    assert ends == [("external_export", "completed")] * 2 + [("unpublish", "completed")]


async def test_lowering_the_clearance_during_an_export_leaves_nothing_in_the_external_zone(kit: Kit, tmp_path: Path):
    await prepared(kit, "dem")
    async with fleet(kit.dsn, tmp_path, storage_folder=tmp_path, **SHORT_LEASES) as running:
        await running.start_one("orchestrator")
        worker = running.process("worker")
        await publish(kit, "dem")
        await dies(running, worker, "handler.after-publish:2")
        assert copied(tmp_path, "dem") != {}

        await clear(kit.store, "dem", Clearance.OUO, caller=BOB)
        worker.start()
        await reaches(running, kit, "dem", "withdrawn")

        assert external_files(tmp_path) == {}
        await clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB)
        await reaches(running, kit, "dem", "exported")
        assert len(copied(tmp_path, "dem")) == OBJECTS


@pytest.fixture
async def piped(kit: Kit, tmp_path: Path) -> AsyncIterator[tuple[Fleet, AzureLike]]:
    with azure(tmp_path) as cloud:
        settings: dict[str, Any] = {
            **SETTINGS,
            "adf_url": cloud.url,
            "identity_endpoint": f"{cloud.url}/metadata/identity/oauth2/token",
            "identity_header": IDENTITY_SECRET,
        }
        async with fleet(kit.dsn, tmp_path, storage_folder=tmp_path, **SHORT_LEASES, **settings) as running:
            yield running, cloud


async def test_the_run_of_a_pipeline_continues_after_the_worker_died(
    kit: Kit, tmp_path: Path, piped: tuple[Fleet, AzureLike]
):
    running, cloud = piped
    await prepared(kit, "dem", "damaged")
    cloud.statuses = ["InProgress"] * 10_000
    await running.start_one("orchestrator")
    worker = await running.start_one("worker")
    await publish(kit, "dem")

    async def started() -> bool:
        return bool(cloud.runs) and cloud.runs[0].status == "InProgress"

    await running.until(started, 60, "the run to start")
    worker.kill()
    cloud.runs[0].statuses.clear()
    cloud.runs[0].statuses += ["InProgress", "Succeeded"]
    worker.start()
    await reaches(running, kit, "dem", "exported")

    (run,) = cloud.runs
    state = await copies(kit, "dem")
    assert (state.run_id, run.parameters["export_id"]) == (run.run_id, str(state.job_id))
    assert len(copied(tmp_path, "dem")) == OBJECTS

    # Objects that the pipeline has damaged are detected and removed.
    cloud.statuses, cloud.damages = ["Succeeded"], True
    await publish(kit, "damaged")
    await reaches(running, kit, "damaged", "failed")
    assert "the pipeline has not copied" in str((await copies(kit, "damaged")).error)
    assert [blob for blob in copied(tmp_path, "damaged") if blob.endswith(".tif")] == []
    await unpublish(kit.store, "damaged", 0, caller=BOB)
    await reaches(running, kit, "damaged", "withdrawn")
    assert copied(tmp_path, "damaged") == {}

    # Tokens are neither in logs nor in the database.
    assert cloud.tokens_given
    logs = "".join(process.log.read_text() for process in running.processes)
    tables = await kit.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'dagapp'")
    for secret in (CANARY, IDENTITY_SECRET):
        assert secret not in logs
        for table in tables:
            text = f"SELECT 1 FROM dagapp.{table['tablename']} AS t WHERE t::text LIKE %s"
            assert await kit.rows(text, f"%{secret}%") == [], table
