"""Death at every named crash point [E2, E3, E5, E7, E11]: the process is gone as by kill -9, another one goes on."""

import pytest

from dagmaster import faults
from tests.engine.processes import CRASHED, Fleet, fleet

CHILDREN = 12
# Whatever an orchestrator decides happens here: a branch, a fan-out, retries with waits, a fan-in.
SWEPT = f"""
    workflow_id: swept
    name: Swept
    version: 1
    nodes:
      start:
        type: start
        next: items
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
        depends_on: {{any_of: [few, last]}}
    outputs:
      count: "{{{{ nodes.last.output.echoed_params.count }}}}"
    """

LOOPS = [point for point in faults.POINTS if not point.startswith("submit.")]
SUBMITS = [point for point in faults.POINTS if point.startswith("submit.")]


def test_every_named_crash_point_is_swept():
    assert set(LOOPS) | set(SUBMITS) == set(faults.POINTS)


@pytest.mark.parametrize("point", LOOPS)
async def test_a_process_dies_at_a_crash_point_and_another_one_finishes_the_job_e5_e11(point, database, tmp_path):
    """The first process dies when it gets there, the one started in its place when it gets there again."""
    await _sweep(database, tmp_path, point, visits=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("visit", range(1, 13))
@pytest.mark.parametrize("point", LOOPS)
async def test_a_process_dies_at_any_visit_to_a_crash_point_and_another_one_finishes_the_job_e5_e11(
    point, visit, database, tmp_path
):
    await _sweep(database, tmp_path, point, visits=(visit,))


async def _sweep(database, tmp_path, point: str, visits: tuple[int, ...]) -> None:
    role = point.partition(".")[0]
    peers = {"orchestrators": 1} if role == "worker" else {"workers": 1}
    async with fleet(database, tmp_path, **peers) as running:
        jobs = await running.submit(SWEPT, 2)
        doomed = running.process(role)

        for visit in visits:
            doomed.start(crash_point=f"{point}:{visit}")
            assert await doomed.ended() == CRASHED
        doomed.start()

        assert await running.wait(jobs) == ["completed"] * 2
        await _assert_complete(running, jobs)


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
            assert not await running.rows("SELECT 1 FROM dagapp.dag_node_states UNION SELECT 1 FROM dagapp.dag_job_events")
        else:
            assert len(jobs) == 3
            await running.start("orchestrator")
            await running.start("worker")
            assert await running.wait(jobs) == ["completed"] * 3
            await _assert_complete(running, jobs)
