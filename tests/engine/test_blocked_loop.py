"""An async handler blocks the event loop of its worker for longer than a lease: only it fails, and it runs once."""

import pytest

from tests.engine.processes import fleet

pytestmark = [pytest.mark.requirement("E10"), pytest.mark.alone]

WORK = """
    workflow_id: blocking
    inputs: {file: {type: string}}
    nodes:
      start: {type: start, next: [blocks, waits, notes]}
      blocks:
        handler: block_loop
        params: {file: "{{ inputs.file }}", seconds: 3}
        retry: {max_attempts: 0}
        importance: optional
      waits: {handler: sleep, params: {seconds: 2.5}, retry: {max_attempts: 0}}
      notes: {handler: note, params: {file: "{{ inputs.file }}", seconds: 2}, retry: {max_attempts: 0}}
      end: {type: end, depends_on: {all_of: [blocks, waits, notes]}}
    """


async def test_only_the_handler_that_blocks_the_event_loop_fails_and_it_runs_once(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        job_id = await running.submit_one(WORK, file=str(running.executions))
        states = await running.wait(job_id, 30)
        nodes, tasks = await running.nodes(job_id), await running.tasks(job_id)
        executed = [node for _, node, _ in running.executed()]
        (worker,) = [process for process in running.processes if process.role == "worker"]
        after = await running.wait(
            await running.submit_one(WORK.replace("seconds: 3", "seconds: 0"), file=str(running.executions))
        )

    assert states == ["completed"]
    assert nodes["blocks"]["error"]["code"] == "handler.blocked-loop"
    assert "block_loop" in nodes["blocks"]["error"]["message"]
    assert executed.count("blocks") == 1
    assert executed.count("notes") == 1, "another task of the worker ran a second time"
    assert {task["attempt"] for task in tasks} == {1}
    assert after == ["completed"]
    assert worker.starts == 1
