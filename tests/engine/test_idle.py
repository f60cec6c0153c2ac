"""Processes without work send few queries, and still find new work."""

import asyncio
from functools import wraps

import pytest

from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.errors import Unavailable
from tests.engine.harness import engine, open_gate, workflow

pytestmark = pytest.mark.alone

HOLD = """
    workflow_id: hold
    nodes:
      start: {type: start, next: hold}
      hold: {handler: gate, next: end}
      end: {type: end}
"""


def record_calls(monkeypatch, owner, name, *, delay_seconds=0.0):
    """Record the calls of a method, and delay each of them."""
    calls, original = [], getattr(owner, name)

    @wraps(original)
    async def call(*values, **options):
        calls.append(options)
        await asyncio.sleep(delay_seconds)
        return await original(*values, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.requirement("E9")
async def test_an_orchestrator_without_jobs_seldom_counts_its_rows(database, monkeypatch):
    async with engine(database, orchestrator_poll_interval=0.02) as running:
        (orchestrator,) = running.orchestrators
        await asyncio.sleep(0.2)
        sweeps = record_calls(monkeypatch, orchestrator.ledger, "sweep_jobs")
        cycles = orchestrator.counters.cycles

        await asyncio.sleep(0.5)

        assert orchestrator.counters.cycles - cycles > 5
        assert len(sweeps) <= 1


@pytest.mark.requirement("E5")
async def test_a_job_is_released_at_once_when_the_response_to_its_claim_was_lost(database, monkeypatch):
    async with engine(database) as running:
        (orchestrator,) = running.orchestrators
        lost = []
        while not orchestrator._next_count:  # it has counted its rows, and the next count is due later
            await asyncio.sleep(0.02)

        def losing(claim):
            async def call(*values, **options):
                claims = await claim(*values, **options)
                if claims and not lost:
                    lost.extend(claims)
                    raise Unavailable("the response was lost")
                return claims

            return call

        for name in ("claim_jobs", "claim_orphans"):
            monkeypatch.setattr(orchestrator.ledger, name, losing(getattr(orchestrator.ledger, name)))
        job = await running.run("echo_test", message="hi", timeout=5)

        assert lost
        assert job["status"] == "completed"


@pytest.mark.requirement("E9")
async def test_slow_sweeps_are_run_less_often(database, monkeypatch):
    async with engine(database, orchestrator_poll_interval=5) as running:
        (orchestrator,) = running.orchestrators
        job_id = await running.submit(workflow(HOLD))
        while not orchestrator._owned:
            await asyncio.sleep(0.02)
        sweeps = record_calls(monkeypatch, orchestrator.ledger, "sweep_jobs", delay_seconds=0.05)
        for _ in range(40):
            running.notifier.notify("jobs")
            await asyncio.sleep(0.05)

        open_gate(job_id)
        await running.wait(job_id)

        assert 1 <= len(sweeps) <= 4, "without a limit there would be eight or more"


@pytest.mark.requirement("E8")
async def test_a_listener_without_notifications_sleeps(database, monkeypatch):
    notifier = PostgresNotifier(database, ["jobs"])
    notifier.start()
    try:
        assert await notifier.wait(5) == {"jobs"}  # now it listens
        loop, timers = asyncio.get_running_loop(), []
        original = loop.call_at
        monkeypatch.setattr(
            loop, "call_at", lambda *values, **options: (timers.append(values), original(*values, **options))[1]
        )
        await asyncio.sleep(0.5)
        timer_count = len(timers)

        notifier.notify("jobs")

        assert await notifier.wait(5) == {"jobs"}
        assert timer_count <= 2, "one timer belongs to the sleep of this test"
    finally:
        await notifier.close()
