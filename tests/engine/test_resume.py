"""Resume [E15]: a job that has ended goes on with exactly what is missing."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from dagmaster.database.bell import JOBS
from dagmaster.errors import Conflict, HandlerFailed, NotFound
from dagmaster.handlers.registry import Registration
from dagmaster.operations.operate import cancel, resume
from tests.engine.harness import Engine, engine, until, workflow

_broken: set[str] = set()  # what fails, until the test mends it
_runs: list[str] = []


async def brittle(ctx: Any) -> dict[str, Any]:
    name = f"{ctx.params.get('name')}"
    _runs.append(name)
    if name in _broken:
        raise HandlerFailed(f"{name} is broken")
    await asyncio.sleep(ctx.params.get("seconds", 0))
    return {"name": name}


HANDLERS = (Registration("brittle", "tests.engine.test_resume:brittle"),)

DIAMOND = """
    workflow_id: diamond
    nodes:
      start: {type: start, next: first}
      first: {handler: brittle, params: {name: first}, retry: {max_attempts: 0}, next: [left, right]}
      left: {handler: brittle, params: {name: left}, retry: {max_attempts: 0}, next: last}
      right: {handler: brittle, params: {name: right}, retry: {max_attempts: 0}, next: last}
      last: {handler: brittle, params: {name: last}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""
TILES = """
    workflow_id: tiles
    inputs: {count: {type: integer, default: 300}, limit: {type: integer, default: 1000}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        LIMIT
        task: {handler: brittle, params: {name: "{{ item }}", seconds: SECONDS}, retry: {max_attempts: 0}}
        next: join
      join: {type: fan_in, next: last}
      last: {handler: brittle, params: {name: last}, next: end}
      end: {type: end}
"""


def tiles(max_parallel: int | None = None, seconds: float = 0) -> str:
    limit = f"max_parallel: {max_parallel}" if max_parallel else ""
    return TILES.replace("LIMIT", limit).replace("SECONDS", str(seconds))


@pytest.fixture(autouse=True)
def whole():
    _broken.clear()
    _runs.clear()


async def resumed(running: Engine, job_id: UUID, **facts: Any):
    answer = await resume(running.ledger, job_id, **facts)
    running.bell.ring(JOBS)
    return answer


async def test_e15_only_what_failed_and_what_followed_runs_again(database):
    _broken.add("right")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(DIAMOND))
        job_id = failed["job_id"]
        would = await resume(running.ledger, job_id, is_dry_run=True)
        untouched = await running.job(job_id)
        _broken.clear()
        _runs.clear()

        answer = await resumed(running, job_id, by="ana", reason="disk was full")
        job = await running.wait(job_id)

        assert failed["status"] == "failed"
        assert (would.status, would.nodes, would.resume_count) == ("dry_run", ("right", "last", "end"), 0)
        assert untouched == failed
        assert (answer.status, answer.nodes, answer.resume_count) == ("resumed", would.nodes, 1)
        assert (job["status"], job["resume_count"], job["error_message"]) == ("completed", 1, None)
        assert sorted(_runs) == ["last", "right"]
        nodes = await running.nodes(job_id)
        assert {name: nodes[name]["run"] for name in ("first", "left", "right", "last")} == {
            "first": 1, "left": 1, "right": 2, "last": 2,
        }  # fmt: skip
        # The old attempt stays visible, and who resumed is kept.
        attempts = [
            (task["attempt"], task["status"]) for task in await running.tasks(job_id) if task["node_id"] == "right"
        ]
        assert attempts == [(1, "failed"), (2, "succeeded")]
        told = next(event for event in await running.events(job_id) if event["event_type"] == "job_resumed")
        assert told["event_data"] == {"by": "ana", "why": "disk was full"}


async def test_e15_of_hundreds_of_children_only_the_missing_run_again(database):
    _broken.update(str(number) for number in range(0, 300, 30))
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        failed = await running.run(workflow(tiles()), timeout=60)
        nodes = await running.nodes(failed["job_id"])
        missing = {
            row["node_id"]
            for row in nodes.values()
            if row["parent_node_id"] and row["status"] in ("failed", "cancelled")
        }
        _broken.clear()
        _runs.clear()

        answer = await resumed(running, failed["job_id"])
        job = await running.wait(failed["job_id"], timeout=60)

        assert failed["status"] == "failed"
        assert len(missing) >= 1
        assert answer.children == {"split": len(missing)}
        assert job["status"] == "completed"
        assert sorted(_runs) == sorted([name.removeprefix("split__") for name in missing] + ["last"])


async def test_e15_a_resumed_fan_out_keeps_its_limit(database):
    _broken.update(map(str, range(30)))
    text = tiles(max_parallel=3, seconds=0.02).replace("task: {handler", "tolerate: 1.0\n        task: {handler")
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        _broken.add("last")
        failed = await running.run(workflow(text), count=30, timeout=60)
        assert failed["status"] == "failed"  # `last` failed; the children's failures are tolerated
        # Their results were gathered without them: that is settled.
        assert (await resume(running.ledger, failed["job_id"], is_dry_run=True)).children == {}

        strict = workflow(tiles(max_parallel=3, seconds=0.02).replace("workflow_id: tiles", "workflow_id: strict"))
        _broken.clear()
        _broken.update(map(str, range(0, 30, 7)))
        failed = await running.run(strict, count=30, timeout=60)
        _broken.clear()
        before = await running.value("SELECT max(dispatched_at) FROM dagapp.dag_node_states")
        await resumed(running, failed["job_id"])
        job = await running.wait(failed["job_id"], timeout=60)

        assert (failed["status"], job["status"]) == ("failed", "completed")
        spans = await running.rows(
            "SELECT available_at, finished_at FROM dagapp.dag_tasks WHERE job_id = %s AND node_id LIKE 'split__%%'"
            " AND available_at > %s",
            job["job_id"],
            before,
        )
        steps = sorted([(row["available_at"], 1) for row in spans] + [(row["finished_at"], -1) for row in spans])
        now = most = 0
        for _, step in steps:
            now += step
            most = max(most, now)
        assert len(spans) >= 25
        assert most <= 3


async def test_e15_a_cancelled_job_goes_on(database):
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        job_id = await running.submit(workflow(tiles(max_parallel=4, seconds=0.02)), count=60)
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'succeeded' LIMIT 1 OFFSET 9"))
        await cancel(running.ledger, job_id, by="ana")
        cancelled = await running.wait(job_id)
        done = await running.value(
            "SELECT count(*) FROM dagapp.dag_node_states WHERE job_id = %s AND parent_node_id = 'split' AND status = 'completed'",
            job_id,
        )
        _runs.clear()

        await resumed(running, job_id)
        job = await running.wait(job_id, timeout=60)

        assert (cancelled["status"], job["status"]) == ("cancelled", "completed")
        assert 10 <= done < 60
        assert len(_runs) == 60 - done + 1


async def test_e15_two_resumes_at_once_make_one(database):
    _broken.add("right")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(DIAMOND))
        _broken.clear()
        other = Engine(running.dsn, running.settings)

        answers = await asyncio.gather(
            resume(running.ledger, failed["job_id"]), resume(other.ledger, failed["job_id"]), return_exceptions=True
        )
        running.bell.ring(JOBS)
        job = await running.wait(failed["job_id"])
        await other.ledger.close()

        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Resumed"]
        assert (job["status"], job["resume_count"]) == ("completed", 1)


async def test_e15_what_has_not_ended_or_completed_is_refused(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(DIAMOND))

        with pytest.raises(Conflict, match="has completed"):
            await resume(running.ledger, job["job_id"])
        with pytest.raises(NotFound):
            await resume(running.ledger, UUID(int=7))
        with pytest.raises(NotFound):
            await resume(running.ledger, UUID(int=7), is_dry_run=True)
