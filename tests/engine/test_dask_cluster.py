"""A platform whose worker runs plain handlers on a Dask cluster; all processes are real, and some are killed."""

from pathlib import Path

import pytest

from tests.dask_cluster import DaskCluster
from tests.engine.processes import ROOT, fleet

pytestmark = pytest.mark.alone

NOTES = """
    workflow_id: notes
    name: Notes
    version: 1
    inputs: {file: {type: string}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: 4}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: note_blocking, params: {file: "{{ inputs.file }}", seconds: [60, 0.1]}}
        next: join
      join: {type: fan_in, next: end}
      end: {type: end}
    """


@pytest.mark.requirement("H1")
async def test_a_job_completes_although_a_dask_worker_and_the_scheduler_are_killed(
    database: str, tmp_path: Path
) -> None:
    """The first attempt of each child would take a minute, so the job can only complete if that attempt is lost."""
    cluster = DaskCluster(tmp_path)
    environment = {"PYTHONPATH": str(ROOT)}
    try:
        cluster.start_scheduler()
        cluster.start_workers(2, env=environment)
        settings = {"worker_executor": "dask", "dask_scheduler_address": cluster.address, "task_lease_sec": 5}
        async with fleet(database, tmp_path, orchestrators=1, workers=1, **settings) as running:
            job = await running.submit_one(NOTES, file=str(running.executions))

            async def noted() -> bool:
                return len(running.executed()) >= 4

            await running.until(noted, 40, "four handlers to run")
            cluster.workers[0].kill()
            assert cluster.scheduler is not None
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            cluster.start_scheduler()
            cluster.start_workers(2, env=environment)

            states = await running.wait(job, 50)

            results = await running.rows(
                "SELECT attempt, status, error FROM dagapp.dag_task_results"
                " WHERE job_id = %s AND starts_with(node_id, %s)",
                job,
                "split__",
            )
            lost = [row for row in results if row["attempt"] == 1]
            assert states == ["completed"]
            assert [row["error"]["code"] for row in lost] == ["worker.cluster-lost"] * 4
            assert {row["status"] for row in results if row["attempt"] > 1} == {"succeeded"}
    finally:
        cluster.stop()
