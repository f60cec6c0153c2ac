"""Workers never claim more than the limit of a queue, even one that has just learned of the limit."""

import asyncio

import psycopg
import pytest
from tests.database.test_ledger_conformance import QUEUE, TWO_QUEUES, PostgresBench, a_job, owned, take
from tests.workflows.builders import a_workflow

from dagmaster.database.ledger.protocol import Demand

pytestmark = pytest.mark.requirement("E19")

NARROW = "container-tasks"


@pytest.fixture
async def bench(database):
    bench = PostgresBench(database)
    await bench.set_clock(0)
    yield bench
    await bench.ledger.close()


async def test_a_worker_that_knows_one_limit_also_respects_the_limit_of_another_queue(bench):
    await bench.ledger.set_queue(NARROW, max_running=1)
    await owned(bench, a_job(1, a_workflow(TWO_QUEUES)))
    assert len(await take(bench, Demand((NARROW,), ("echo",), 5))) == 1  # from now on it knows this limit
    await bench.ledger.set_queue(QUEUE, max_running=1)

    async with await psycopg.AsyncConnection.connect(bench.dsn) as other:
        await other.execute("SELECT FROM dagapp.dag_queues WHERE queue = %s FOR UPDATE", [QUEUE])
        claiming = asyncio.create_task(take(bench, Demand((QUEUE, NARROW), ("echo",), 5)))
        done, _ = await asyncio.wait([claiming], timeout=0.5)
        await other.rollback()
    taken = await claiming

    assert not done, "the claim must wait for another worker, which may be claiming"
    assert [task.queue for task in taken] == [QUEUE]


async def test_a_limited_queue_that_is_named_twice_has_one_limit(bench):
    await bench.ledger.set_queue(QUEUE, max_running=1)
    await owned(bench, a_job(1, a_workflow(TWO_QUEUES)))

    assert len(await take(bench, Demand((QUEUE, QUEUE), ("echo",), 5))) == 1
    await bench.ledger.set_queue(QUEUE, max_running=5)
    assert len(await take(bench, Demand((QUEUE, QUEUE), ("echo",), 5))) == 1
