"""An owner that holds an old view of its job decides nothing on it."""

import asyncio

import pytest

from tests.engine.harness import engine

pytestmark = [pytest.mark.requirement("E7"), pytest.mark.alone]


async def test_a_view_behind_the_events_is_read_again_and_loses_no_result(database):
    async with engine(database, workers=0) as running:
        (orchestrator,) = running.orchestrators
        job_id = await running.submit("echo_test", message="hi")
        while not await running.tasks(job_id):
            await asyncio.sleep(0.02)
        owned = orchestrator._owned[job_id]
        stale, owned.sequence = owned.view, owned.sequence - 1

        await running.start_worker()
        job = await running.wait(job_id)

        assert job["status"] == "completed"
        assert owned.view is not stale
        assert orchestrator.counters.errors == 0
