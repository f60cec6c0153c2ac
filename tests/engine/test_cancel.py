"""Cancel and deadline: waiting tasks never start; running handlers are asked to stop, and killed if they do not."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagmaster.errors import Conflict
from dagmaster.handlers.registry import Registration
from dagmaster.operations.cancel import cancel
from tests.engine.harness import engine, open_gate, until, workflow

_ran: list[str] = []


async def listening(ctx: Any) -> None:
    while not ctx.cancelled:
        await asyncio.sleep(0.01)
    _ran.append("cancelled")
    raise RuntimeError("was asked to stop")


async def counting(ctx: Any) -> None:
    _ran.append(ctx.node_id)


def ignores_stop(ctx: Any) -> None:
    """Ignores all requests to stop."""
    Path(ctx.params["file"]).write_text(str(os.getpid()))
    time.sleep(600)


HANDLERS = (
    Registration("listening", "tests.engine.test_cancel:listening"),
    Registration("counting", "tests.engine.test_cancel:counting"),
    Registration("ignores_stop", "tests.engine.test_cancel:ignores_stop", is_async=False),
)
TWO_STEPS = """
    workflow_id: two_steps
    TIMEOUT
    nodes:
      start: {type: start, next: work}
      work: {handler: HANDLER, PARAMS next: after}
      after: {handler: counting, next: end}
      end: {type: end}
"""


def two_steps(handler: str, timeout: float | None = None, params: str = "") -> str:
    times = f"timeout_seconds: {timeout}" if timeout else ""
    return TWO_STEPS.replace("HANDLER", handler).replace("TIMEOUT", times).replace("PARAMS", params)


@pytest.fixture(autouse=True)
def no_handler_ran():
    _ran.clear()


async def running_task(running, job_id):
    async def is_started():
        return [task for task in await running.tasks(job_id) if task["status"] == "running"]

    return (await until(is_started))[0]


@pytest.mark.alone
@pytest.mark.requirement("E14")
async def test_a_running_handler_is_notified_within_a_second_and_waiting_nodes_never_start(database):
    async with engine(database, handlers=HANDLERS) as running:
        job_id = await running.submit(workflow(two_steps("listening")))
        await running_task(running, job_id)
        requested_at = time.monotonic()

        response = await cancel(running.ledger, job_id, by="ana", reason="wrong file")
        await until(lambda: asyncio.sleep(0, _ran))
        notified_seconds = time.monotonic() - requested_at
        job = await running.wait(job_id)

        assert response.is_new
        assert notified_seconds < 1.5  # the orchestrator's poll, then the worker's
        assert job["status"] == "cancelled"
        assert _ran == ["cancelled"]
        nodes = await running.nodes(job_id)
        assert {name: nodes[name]["status"] for name in ("work", "after", "end")} == dict.fromkeys(
            ("work", "after", "end"), "cancelled"
        )
        task = (await running.tasks(job_id))[0]
        assert task["stop_seen_at"] >= task["stop_requested_at"]
        stopping = next(event for event in await running.events(job_id) if event["event_type"] == "job_stopping")
        assert stopping["event_data"] == {"reason": "cancelled", "by": "ana", "why": "wrong file"}
        assert not (await cancel(running.ledger, job_id)).is_new  # a client may repeat its request


@pytest.mark.requirement("E14")
async def test_a_completed_job_cannot_be_cancelled(database):
    async with engine(database) as running:
        job = await running.run("echo_test", message="hi")

        with pytest.raises(Conflict, match="ended already"):
            await cancel(running.ledger, job["job_id"])


@pytest.mark.requirement("E14")
async def test_a_handler_that_ignores_the_cancel_is_killed_after_its_grace_period(database, tmp_path):
    file = tmp_path / "pid"
    async with engine(database, handlers=HANDLERS) as running:
        job_id = await running.submit(workflow(two_steps("ignores_stop", params=f"params: {{file: '{file}'}},")))
        await running_task(running, job_id)
        await until(lambda: asyncio.sleep(0, file.exists() and file.read_text()))
        pid = int(file.read_text())

        await cancel(running.ledger, job_id)
        job = await running.wait(job_id, timeout=20)

        assert job["status"] == "cancelled"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.requirement("E14")
async def test_a_job_waiting_in_a_queue_without_workers_is_cancelled_at_once(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test", message="hi")
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks"))

        await cancel(running.ledger, job_id)
        job = await running.wait(job_id, timeout=5)

        assert job["status"] == "cancelled"
        assert [task["status"] for task in await running.tasks(job_id)] == ["cancelled"]


@pytest.mark.requirement("E14")
async def test_an_unclaimed_job_is_cancelled_when_it_is_claimed(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        job_id = await running.submit("echo_test", message="hi")
        await cancel(running.ledger, job_id)
        again = await cancel(running.ledger, job_id)

        await running.start_orchestrator()
        job = await running.wait(job_id)

        assert not again.is_new
        assert job["status"] == "cancelled"
        assert await running.tasks(job_id) == []


@pytest.mark.requirement("E14")
async def test_a_dead_worker_does_not_delay_the_cancel(database):
    async with engine(database, handlers=HANDLERS, workers=0) as running:
        worker = await running.start_worker()
        job_id = await running.submit(workflow(two_steps("listening")))
        await running_task(running, job_id)
        worker._keeper._ledger.take_stops = _never  # gets no requests to stop, and renews no leases
        worker._keeper._ledger.renew = _never
        await cancel(running.ledger, job_id)

        job = await running.wait(job_id, timeout=15)

        assert job["status"] == "cancelled"
        assert (await running.tasks(job_id))[0]["status"] == "lost"


async def _never(*_: Any, **__: Any) -> Any:
    await asyncio.sleep(3600)


@pytest.mark.requirement("E14")
async def test_a_result_that_arrives_before_the_cancel_is_kept(database):
    async with engine(database) as running:
        gated = workflow(two_steps("gate").replace("handler: counting", "handler: gate"))
        job_id = await running.submit(gated)
        await running_task(running, job_id)
        keeper = running.workers[0]._keeper
        keeper._held_tasks = replace(keeper._held_tasks, on_stop=lambda _: None)
        await cancel(running.ledger, job_id)
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_jobs WHERE stopping IS NOT NULL"))
        open_gate(job_id)

        job = await running.wait(job_id)

        nodes = await running.nodes(job_id)
        assert (job["status"], nodes["work"]["status"], nodes["after"]["status"]) == (
            "cancelled",
            "completed",
            "cancelled",
        )


@pytest.mark.requirement("E13")
async def test_a_job_past_its_deadline_fails_and_its_tasks_are_stopped(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(two_steps("listening", timeout=0.5)))

        assert job["status"] == "failed"
        assert job["error_message"] == "the job did not end within its timeout of 0.5 s"
        assert _ran == ["cancelled"]


@pytest.mark.requirement("E14")
async def test_fail_fast_notifies_running_handlers(database):
    text = """
        workflow_id: fast
        fail_fast: true
        nodes:
          start: {type: start, next: [bad, long]}
          bad: {handler: fail, retry: {max_attempts: 0}, next: end}
          long: {handler: listening, next: end}
          end: {type: end}
    """
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(text))

        assert job["status"] == "failed"
        assert _ran == ["cancelled"]
        assert (await running.nodes(job["job_id"]))["long"]["status"] == "cancelled"
