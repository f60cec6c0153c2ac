"""When the orchestrator's loop does its work other than advancing jobs. In memory, on virtual time."""

import asyncio
from typing import Any

from dagmaster.errors import Unavailable
from dagmaster.orchestrator import owned
from dagmaster.orchestrator.advance import JobAdvancing
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.testing import Kit, virtual_time


@virtual_time
async def test_maintenance_that_fails_is_repeated_after_a_minute_and_otherwise_after_an_hour():
    calls: list[int] = []

    async def maintain() -> None:
        calls.append(round(asyncio.get_running_loop().time()))
        if len(calls) < 3:
            raise Unavailable("the table is locked")

    async with Kit(orchestrator_poll_interval=1.0) as kit:
        kit.ledger.maintain = maintain  # type: ignore[method-assign]
        await asyncio.sleep(4000)

    assert calls == [0, 60, 120, 3720]


@virtual_time
async def test_a_job_that_cannot_be_advanced_and_fails_wakes_the_tasks_for_callbacks(monkeypatch):
    monkeypatch.setattr(owned, "ATTEMPTS", 2)
    woken: list[Any] = []

    def wake(orchestrator: Orchestrator) -> None:
        woken.extend(job.status for job in kit.database.jobs.values())

    def decide(*_arguments: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(JobAdvancing, "_wake_background_tasks", wake)
    monkeypatch.setattr(JobAdvancing, "_decide", decide)
    async with Kit() as kit:
        job = await kit.run("hello_world")

    job.expect("failed")
    assert woken == ["failed"]
