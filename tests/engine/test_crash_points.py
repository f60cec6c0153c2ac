"""Death at every named crash point [E2, E3, E5, E7, E11]: the process is gone as by kill -9, another one goes on."""

from pathlib import Path
from uuid import UUID

import pytest
from rio_cogeo.cogeo import cog_validate

from dagmaster import faults
from dagmaster.workflows.load import shipped
from tests.conftest import fresh_database
from tests.engine.processes import CRASHED, ENDS, Fleet, Process, fleet
from tests.engine.test_raster_jobs import scene

CHILDREN = 12
QUICK = {"orphan_threshold_sec": 0.8, "task_lease_sec": 1.0, "lease_renew_sec": 0.3}
# Whatever an orchestrator decides happens here: a branch, a fan-out, retries with waits, a fan-in. One output is large.
SWEPT = f"""
    workflow_id: swept
    name: Swept
    version: 1
    nodes:
      start:
        type: start
        next: [items, bulk]
      bulk:
        handler: make_list
        params: {{count: 50000}}
        next: end
      items:
        handler: make_list
        params: {{count: {CHILDREN}}}
        next: is_many
      is_many:
        type: conditional
        condition: "{{{{ nodes.items.output.count }}}} > 5"
        on_true: each
        on_false: few
      few:
        handler: echo
        next: end
      each:
        type: fan_out
        source: "{{{{ nodes.items.output.items }}}}"
        task:
          handler: flaky_echo
          params: {{failure_rate: 0.4, seed: 7, item: "{{{{ item }}}}"}}
          retry: {{max_attempts: 5, backoff: fixed, initial_delay_seconds: 0.1}}
        next: all
      all:
        type: fan_in
        next: last
      last:
        handler: echo
        params: {{count: "{{{{ nodes.all.output.count }}}}"}}
        next: end
      end:
        type: end
        depends_on: {{all_of: [bulk], any_of: [few, last]}}
    outputs:
      count: "{{{{ nodes.last.output.echoed_params.count }}}}"
    """

LOOPS = [point for point in faults.POINTS if point.startswith(("orchestrator.", "worker."))]
RASTERS = [point for point in faults.POINTS if point.startswith(("handler.", "catalogue."))]
SUBMITS = [point for point in faults.POINTS if point.startswith("submit.")]


def test_every_named_crash_point_is_swept():
    assert {*LOOPS, *RASTERS, *SUBMITS} == set(faults.POINTS)


@pytest.mark.parametrize("point", LOOPS)
async def test_a_process_dies_at_a_crash_point_and_another_one_finishes_the_job_e5_e11(point, database, tmp_path):
    """The first process dies when it gets there, the one in its place when it gets there for the second time."""
    # One claim takes both jobs, so that a second visit never comes.
    visits = (1, 1) if point == "orchestrator.claimed" else (1, 2)

    assert await _sweep(database, tmp_path, point, visits)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", LOOPS)
async def test_a_process_dies_at_each_visit_to_a_crash_point_and_another_one_finishes_the_jobs_e5_e11(
    point, cluster, template_database, tmp_path
):
    """At the first visit, the second, … until there are no more before the jobs have ended."""
    for visit in range(1, 100):
        folder = tmp_path / str(visit)
        folder.mkdir()
        with fresh_database(cluster, template_database) as database:
            if not await _sweep(database, folder, point, visits=(visit,)):
                break
    print(f"\n{point}: {visit - 1} visits swept")
    assert visit > 1


async def _sweep(database: str, folder: Path, point: str, visits: tuple[int, ...]) -> bool:
    """Whether each process died where it should; the jobs complete in any case."""
    role = point.partition(".")[0]
    peers = {"orchestrators": 1} if role == "worker" else {"workers": 1}
    async with fleet(database, folder, **peers, **QUICK) as running:
        jobs = await running.submit(SWEPT, 2)
        doomed = running.process(role)

        deaths = 0
        for visit in visits:
            doomed.start(crash_point=f"{point}:{visit}")
            deaths += await _has_died(running, doomed, jobs)
        if not doomed.is_running:
            doomed.start()

        assert await running.wait(jobs) == ["completed"] * 2
        await _assert_complete(running, jobs)
        return deaths == len(visits)


async def _has_died(running: Fleet, doomed: Process, jobs: list[UUID]) -> bool:
    """Whether it died at its crash point before the jobs had ended."""

    async def over() -> bool:
        states = await running.rows("SELECT status FROM dagapp.dag_jobs WHERE job_id = ANY (%s)", jobs)
        return not doomed.is_running or all(row["status"] in ENDS for row in states)

    await running.until(over, 20, f"{doomed.name} to die")
    assert doomed.exit_code in (CRASHED, None)
    return not doomed.is_running


async def _assert_complete(running: Fleet, jobs) -> None:
    for job_id in jobs:
        job, nodes = await running.job(job_id), await running.nodes(job_id)
        children = [node for name, node in nodes.items() if name.startswith("each__")]
        assert job["result_data"] == {"count": CHILDREN}
        assert [child["status"] for child in children] == ["completed"] * CHILDREN
        assert nodes["few"]["status"] == "skipped"
        assert any(child["retry_count"] for child in children), "the sweep passed no retry"


@pytest.mark.parametrize("point", SUBMITS)
async def test_a_submitter_dies_and_its_jobs_exist_wholly_or_not_at_all_e2(point, database, tmp_path):
    async with fleet(database, tmp_path) as running:
        file = tmp_path / "swept.yaml"
        file.write_text(SWEPT)
        submitter = running.process("submitter", "-m", "tests.engine.roles", "submit", str(file), "3")

        submitter.start(crash_point=point)

        assert await submitter.ended() == CRASHED
        jobs = [row["job_id"] for row in await running.rows("SELECT job_id FROM dagapp.dag_jobs")]
        if point == "submit.before-commit":
            assert not jobs
            assert not await running.rows(
                "SELECT 1 FROM dagapp.dag_node_states UNION SELECT 1 FROM dagapp.dag_job_events"
            )
        else:
            assert len(jobs) == 3
            await running.start("orchestrator")
            await running.start("worker")
            assert await running.wait(jobs) == ["completed"] * 3
            await _assert_complete(running, jobs)


@pytest.mark.timeout(240)
async def test_a_raster_job_goes_on_wherever_its_uploads_publications_and_catalogue_entries_end_e5_e11_c1(
    catalog_database, tmp_path
):
    """One job, which is interrupted at every point in turn."""
    storage = tmp_path / "storage"
    file = scene(storage / "bronze" / "bronze" / "scene.tif", 1500, 700)
    (large,) = (path for path in shipped() if path.stem == "process_large_raster")
    roomy = {"task_lease_sec": 3.0, "lease_renew_sec": 0.5, "max_losses": 20, "storage_folder": storage}
    async with fleet(catalog_database, tmp_path, orchestrators=1, **roomy) as running:
        job_id = await running.submit_one(large.read_text(), blob_name=file.name, tile_size=1024, overlap=512)
        worker = running.process("worker")

        for point in RASTERS:
            await _interrupt(running, worker, job_id, point)
        worker.start()

        assert await running.wait(job_id, 120) == ["completed"]
        result = (await running.job(job_id))["result_data"]
        cogs = sorted((storage / "silver").rglob("*.tif"))
        items = await running.rows("SELECT id FROM pgstac.items")
        assert len(cogs) == len(items) == result["total_tiles"] > 1
        assert all(cog_validate(cog, strict=True, quiet=True)[0] for cog in cogs)


async def _interrupt(running: Fleet, worker: Process, job_id: UUID, point: str) -> None:
    """A handler's own process dies alone; its worker would start another that dies there too, and is killed before long."""

    async def has_died() -> bool:
        found = await running.rows(
            "SELECT error FROM dagapp.dag_task_results WHERE job_id = %s AND status = 'failed' AND reported_at > %s", job_id, since
        )  # fmt: skip
        assert all(row["error"]["blame"] == "environment" for row in found), found
        return bool(found) or not worker.is_running

    since = (await running.rows("SELECT clock_timestamp() AS now"))[0]["now"]
    worker.start(crash_point=point)
    await running.until(has_died, 60, f"a death at {point}")
    assert worker.is_running is point.startswith("handler.")
    worker.kill()
