"""An owner with an outdated view of its job reads the view again before it decides."""

import asyncio

import pytest

from tests.engine.harness import engine

pytestmark = [pytest.mark.requirement("E7"), pytest.mark.alone]


async def test_a_view_that_lacks_the_last_event_is_read_again_and_no_result_is_lost(database):
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
