"""Handlers can use the platform's database themselves."""

import pytest

from dagmaster.database.connect import pool
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage, new_job_id
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker.context import TaskContext
from dagmaster.worker.process_pool import Pool

pytestmark = pytest.mark.requirement("H1")


async def count_jobs(ctx):
    async with ctx.database.connection() as connection:
        row = await (await connection.execute("SELECT count(*) FROM dagapp.dag_jobs")).fetchone()
    return {"jobs": row[0]}


def count_jobs_blocking(ctx):
    with ctx.connect() as connection:
        return {"jobs": connection.execute("SELECT count(*) FROM dagapp.dag_jobs").fetchone()[0]}


def a_task() -> TaskMessage:
    job_id = new_job_id(1)
    return TaskMessage(
        task_id=f"{job_id}_a_1",
        job_id=job_id,
        node_id="a",
        attempt=1,
        handler="count_jobs",
        params={},
        queue="q",
        timeout_seconds=20,
    )


async def test_an_async_handler_uses_the_pool_of_the_worker(database):
    async with pool(database, "handlers", 0, 2) as connections:
        context = TaskContext(a_task(), PostgresLedger(database), connections)

        assert await count_jobs(context) == {"jobs": 0}


async def test_a_plain_handler_connects_from_its_own_process(database):
    processes = Pool(memory_mb=2048)
    registration = Registration("count_jobs", f"{__name__}:count_jobs_blocking", is_async=False)
    task = a_task()
    try:
        async with pool(database, "handlers", 0, 2) as connections:
            context = TaskContext(task, PostgresLedger(database), connections)
            outcome = await processes.run(registration, task, 20, context)
    finally:
        await processes.close()

    assert (outcome.status, outcome.output) == (TaskStatus.SUCCEEDED, {"jobs": 0}), outcome
