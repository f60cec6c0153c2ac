"""Limits of a queue apply to all workers together; priorities decide which task is claimed first."""

import asyncio

import pytest

from dagmaster.database.notify.notifier import JOBS
from dagmaster.jobs.model import Submission
from tests.engine.harness import engine, submit, workflow

pytestmark = pytest.mark.requirement("E19")

SLEEPERS = """
    workflow_id: sleepers
    inputs: {count: {type: integer, default: 40}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, queue: functionapp-tasks, params: {count: "{{ inputs.count }}"}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: sleep, queue: container-tasks, params: {seconds: 0.03}}
        next: end
      end: {type: end}
"""


async def most_at_once(running, job_id) -> int:
    """The largest number of tasks of the queue that ran at the same time."""
    rows = await running.rows(
        "SELECT started_at, finished_at FROM dagapp.dag_tasks WHERE job_id = %s AND queue = 'container-tasks'", job_id
    )
    steps = sorted([(row["started_at"], 1) for row in rows] + [(row["finished_at"], -1) for row in rows])
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


async def test_all_workers_together_run_no_more_tasks_than_the_limit_of_a_queue(database):
    async with engine(database, workers=3) as running:
        await running.ledger.set_queue("container-tasks", max_running=4, is_paused=False)

        job = await running.run(workflow(SLEEPERS), timeout=40)

        assert job["status"] == "completed"
        assert await most_at_once(running, job["job_id"]) == 4


async def test_a_paused_queue_waits_and_continues(database):
    async with engine(database) as running:
        await running.ledger.set_queue("container-tasks", max_running=None, is_paused=True)
        job_id = await running.submit(workflow(SLEEPERS), count=3)
        await asyncio.sleep(1.0)
        tasks = await running.tasks(job_id)

        await running.ledger.set_queue("container-tasks", max_running=None, is_paused=False)
        job = await running.wait(job_id)

        assert {task["status"] for task in tasks if task["queue"] == "container-tasks"} == {"queued"}
        assert job["status"] == "completed"


ONE = """
    workflow_id: one
    nodes:
      start: {type: start, next: work}
      work: {handler: noop, next: end}
      end: {type: end}
"""


async def test_a_higher_priority_is_claimed_first(database):
    async with engine(database, workers=0) as running:
        running.add(workflow(ONE))
        submissions = [Submission(workflow_id="one", priority=priority) for priority in (0, 5, 10, 0, 5, 10)]
        await submit(running.ledger, running.library, submissions)
        running.notifier.notify(JOBS)
        while len(await running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'queued'")) < len(submissions):
            await asyncio.sleep(0.05)

        await running.start_worker(worker_slots=1)
        while await running.rows("SELECT 1 FROM dagapp.dag_jobs WHERE status <> 'completed'"):
            await asyncio.sleep(0.05)

        rows = await running.rows("SELECT priority FROM dagapp.dag_tasks ORDER BY started_at")
        assert [row["priority"] for row in rows] == [10, 10, 5, 5, 0, 0]
