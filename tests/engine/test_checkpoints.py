"""Handlers that are interrupted in any phase continue after the last checkpoint whose artifact is unchanged."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagmaster.client.models.jobs import JobPart
from dagmaster.database.ledger.protocol import Running
from dagmaster.errors import UnfitData
from dagmaster.handlers.registry import Registration
from dagmaster.operations.rerun import resume, retry
from tests.engine.harness import engine, until, workflow
from tests.engine.processes import Fleet, fleet

pytestmark = pytest.mark.requirement("E22")

PHASES = """
    workflow_id: phases_WHAT
    inputs:
      file: {type: string}
      folder: {type: string}
      hold: {type: integer}
    nodes:
      start: {type: start, next: work}
      work:
        handler: WHAT
        params: {file: "{{ inputs.file }}", folder: "{{ inputs.folder }}", hold: "{{ inputs.hold }}"}
        retry: {max_attempts: 0}
        next: end
      end: {type: end}
    """


async def _kill_children(running: Fleet, pids: dict[UUID, int]) -> None:
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)


async def _kill_worker(running: Fleet, _pids: dict[UUID, int]) -> None:
    running.processes[1].kill()
    await running.start("worker")


async def _stop_worker(running: Fleet, _pids: dict[UUID, int]) -> None:
    stopped = running.processes[1]
    stopped.signal(signal.SIGTERM)
    await running.start("worker")
    assert await stopped.ended(15) == 0


async def _pids_in_phase(running: Fleet, phase_of: dict[UUID, int]) -> dict[UUID, int]:
    """The process of each job, once each job is in the phase in which it waits."""
    lines = (
        [line.split() for line in running.executions.read_text().splitlines()] if running.executions.exists() else []
    )
    pids_by_job = {UUID(job): int(pid) for job, _, _, pid, phase in lines if phase_of[UUID(job)] == int(phase)}
    return pids_by_job if len(pids_by_job) == len(phase_of) else {}


@pytest.mark.parametrize(
    ("interrupt", "kinds", "losses"),
    [
        pytest.param(_kill_children, ["phases"], 1, id="child-killed"),
        pytest.param(_kill_worker, ["phases", "phases_async"], 1, id="worker-killed"),
        pytest.param(_stop_worker, ["phases", "phases_async"], 0, id="worker-stopped"),
    ],
)
async def test_a_phase_with_a_checkpoint_is_not_repeated_wherever_the_handler_is_interrupted(
    database, tmp_path, interrupt: Callable[..., Awaitable[None]], kinds: list[str], losses: int
) -> None:
    """Each job waits in another phase. One artifact of one job is deleted meanwhile: that phase is repeated."""
    async with fleet(
        database, tmp_path, orchestrators=1, workers=1, worker_processes=4, shutdown_grace_sec=0.5
    ) as running:
        params = {"file": str(running.executions), "folder": str(tmp_path)}
        holds = {
            await running.submit_one(PHASES.replace("WHAT", kind), **params, hold=hold): hold
            for kind in kinds
            for hold in (1, 2, 3)
        }
        interrupted = await running.submit_one(PHASES.replace("WHAT", kinds[0]), **params, hold=3)
        pids = await running.until(
            lambda: _pids_in_phase(running, holds | {interrupted: 3}), 30, "the handlers to be in their phases"
        )
        (tmp_path / f"{interrupted}_2").unlink()

        await interrupt(running, pids)
        states = await running.wait([*holds, interrupted], 30)

        assert set(states) == {"completed"}
        worked = Counter(
            tuple(line.split()[i] for i in (0, 2, 4)) for line in running.executions.read_text().splitlines()
        )
        expected = [(job_id, 1, phase) for job_id, hold in holds.items() for phase in range(1, hold + 1)]
        expected += [(job_id, 2, phase) for job_id, hold in holds.items() for phase in range(hold, 4)]
        expected += [
            (interrupted, 1, 1),
            (interrupted, 1, 2),
            (interrupted, 1, 3),
            (interrupted, 2, 2),
            (interrupted, 2, 3),
        ]
        assert worked == Counter(tuple(map(str, line)) for line in expected)
        for job_id in (*holds, interrupted):
            node = (await running.nodes(job_id))["work"]
            assert (node["attempt"], node["retry_count"], node["loss_count"]) == (2, 0, losses)
        assert "no longer exists" in await _log_of(running, interrupted)


async def _log_of(running: Fleet, job_id: UUID) -> str:
    rows = await running.rows("SELECT metrics FROM dagapp.dag_task_results WHERE job_id = %s AND attempt = 2", job_id)
    return " ".join(line["text"] for line in rows[0]["metrics"].get("log", ()))


async def test_tasks_in_c_calls_are_given_back_and_a_second_signal_ends_the_grace_period(database, tmp_path) -> None:
    """The grace period is an hour; a second signal ends it at once, and no retry or loss is counted."""
    async with fleet(
        database, tmp_path, orchestrators=1, workers=1, shutdown_grace_sec=3600, task_lease_sec=30, lease_renew_sec=1
    ) as running:
        stopped = running.processes[1]
        params = {"file": str(running.executions), "folder": str(tmp_path)}
        jobs = [await running.submit_one(PHASES.replace("WHAT", "pause_once"), **params, hold=1)]
        jobs.append(await running.submit_one(PHASES.replace("WHAT", "phases"), **params, hold=2))
        await running.until(
            lambda: _pids_in_phase(running, dict(zip(jobs, (1, 2), strict=True))),
            30,
            "the handlers to be in their phases",
        )

        stopped.signal(signal.SIGTERM)
        await running.until(lambda: _has_logged(stopped.log, "worker is stopping"), 10, "the worker to stop")
        await running.start("worker")
        assert stopped.is_running
        stopped.signal(signal.SIGTERM)
        code = await stopped.ended(10)
        states = await running.wait(jobs, 20)

        assert (code, states) == (0, ["completed"] * 2)
        for job_id in jobs:
            assert [task["status"] for task in await running.tasks(job_id)] == ["returned", "succeeded"]
            node = (await running.nodes(job_id))["work"]
            assert (node["retry_count"], node["loss_count"]) == (0, 0)


async def _has_logged(log: Path, words: str) -> bool:
    return words in log.read_text()


async def test_an_attempt_that_is_being_replaced_saves_no_checkpoint(database) -> None:
    """The transaction that marks the task as lost has not committed yet: saving a checkpoint waits for it."""
    async with engine(database, verify_history=False) as running:
        job_id = await running.submit(GATED)
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))
        async with await psycopg.AsyncConnection.connect(database) as taker:
            await taker.execute("UPDATE dagapp.dag_tasks SET status = 'lost', finished_at = now(), lease_until = NULL")
            saving = asyncio.create_task(running.ledger.save_checkpoint(Running(job_id, "work", 1), "late", None))
            await until(lambda: running.rows(WAITING_TO_SAVE))
        is_kept = await saving

        assert not is_kept
        assert not await running.rows("SELECT * FROM dagapp.dag_checkpoints")


WAITING_TO_SAVE = """
    SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO dagapp.dag_checkpoints%'
    """
GATED = workflow("""
    workflow_id: gated
    nodes:
      start: {type: start, next: work}
      work: {handler: gate, next: end}
      end: {type: end}
    """)


# Resumed and retried


async def careful(ctx: Any) -> list[str]:
    """Two phases; between them the data may be refused as unfit."""
    last = await ctx.load_checkpoint()
    done = ["phase_1"] if last else []
    if not last:
        await ctx.save_checkpoint("phase_1", {})
    if not Path(ctx.params["file"]).exists():
        raise UnfitData("nothing there")
    await asyncio.sleep(0)
    return done


CAREFUL = workflow("""
    workflow_id: careful
    inputs: {file: {type: string}}
    nodes:
      start: {type: start, next: work}
      work: {handler: careful, params: {file: "{{ inputs.file }}"}, next: end}
      end: {type: end}
    """)


async def test_a_resume_uses_checkpoints_and_a_retry_does_not(database, tmp_path) -> None:
    repaired = tmp_path / "repaired"
    registration = Registration("careful", "tests.engine.test_checkpoints:careful")
    async with engine(database, handlers=[registration]) as running:
        job_id = (await running.run(CAREFUL, file=str(repaired)))["job_id"]
        failed = await running.job(job_id)
        repaired.touch()

        await resume(running.ledger, job_id)
        await running.wait(job_id)
        resumed = (await running.nodes(job_id))["work"]["output"]
        await retry(running.ledger, job_id, JobPart(node="work"))
        await running.wait(job_id)
        retried = (await running.nodes(job_id))["work"]["output"]

        assert failed["status"] == "failed"
        assert (resumed, retried) == (["phase_1"], [])
        (kept,) = await running.rows("SELECT attempt FROM dagapp.dag_checkpoints WHERE job_id = %s", job_id)
        assert kept["attempt"] == 3
