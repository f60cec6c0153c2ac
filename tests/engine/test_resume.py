"""Resume and retry: a job that has ended continues with exactly the nodes that are missing or requested."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from dagmaster.client.models.jobs import JobPart
from dagmaster.database.notify.notifier import JOBS
from dagmaster.errors import Conflict, HandlerFailed, NotFound
from dagmaster.handlers.registry import Registration
from dagmaster.operations.cancel import cancel
from dagmaster.operations.rerun import resume, retry
from tests.engine.harness import Engine, engine, until, workflow

pytestmark = pytest.mark.requirement("E15")

_broken: set[str] = set()  # the names that fail, until the test removes them
_runs: list[str] = []


async def fail_if_broken(ctx: Any) -> dict[str, Any]:
    name = f"{ctx.params.get('name')}"
    _runs.append(name)
    if name in _broken:
        raise HandlerFailed(f"{name} is broken")
    await asyncio.sleep(ctx.params.get("seconds", 0))
    return {"name": name}


HANDLERS = (Registration("fail_if_broken", "tests.engine.test_resume:fail_if_broken"),)

DIAMOND = """
    workflow_id: diamond
    nodes:
      start: {type: start, next: first}
      first: {handler: fail_if_broken, params: {name: first}, retry: {max_attempts: 0}, next: [left, right]}
      left: {handler: fail_if_broken, params: {name: left}, retry: {max_attempts: 0}, next: last}
      right: {handler: fail_if_broken, params: {name: right}, retry: {max_attempts: 0}, next: last}
      last: {handler: fail_if_broken, params: {name: last}, retry: {max_attempts: 0}, next: end}
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
        task: {handler: fail_if_broken, params: {name: "{{ item }}", seconds: SECONDS}, retry: {max_attempts: 0}}
        next: join
      join: {type: fan_in, next: last}
      last: {handler: fail_if_broken, params: {name: last}, next: end}
      end: {type: end}
"""


def tiles(max_parallel: int | None = None, seconds: float = 0) -> str:
    limit = f"max_parallel: {max_parallel}" if max_parallel else ""
    return TILES.replace("LIMIT", limit).replace("SECONDS", str(seconds))


@pytest.fixture(autouse=True)
def reset():
    _broken.clear()
    _runs.clear()


async def resume_job(running: Engine, job_id: UUID, **facts: Any):
    response = await resume(running.ledger, job_id, **facts)
    running.notifier.notify(JOBS)
    return response


async def test_only_failed_nodes_and_those_after_them_run_again(database):
    _broken.add("right")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(DIAMOND))
        job_id = failed["job_id"]
        would = await resume(running.ledger, job_id, is_dry_run=True)
        untouched = await running.job(job_id)
        _broken.clear()
        _runs.clear()

        response = await resume_job(running, job_id, by="ana", reason="disk was full")
        job = await running.wait(job_id)

        assert failed["status"] == "failed"
        assert (would.status, would.nodes, would.resume_count) == ("dry_run", ("right", "last", "end"), 0)
        assert untouched == failed
        assert (response.status, response.nodes, response.resume_count) == ("resumed", would.nodes, 1)
        assert (job["status"], job["resume_count"], job["error_message"]) == ("completed", 1, None)
        assert sorted(_runs) == ["last", "right"]
        nodes = await running.nodes(job_id)
        assert {name: nodes[name]["run"] for name in ("first", "left", "right", "last")} == {
            "first": 1,
            "left": 1,
            "right": 2,
            "last": 2,
        }
        # The old attempt stays visible, and the event names the user who resumed the job.
        attempts = [
            (task["attempt"], task["status"]) for task in await running.tasks(job_id) if task["node_id"] == "right"
        ]
        assert attempts == [(1, "failed"), (2, "succeeded")]
        resumption = next(event for event in await running.events(job_id) if event["event_type"] == "job_resumed")
        assert resumption["event_data"] == {"by": "ana", "why": "disk was full"}


async def test_only_the_missing_of_hundreds_of_children_run_again(database):
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

        response = await resume_job(running, failed["job_id"])
        job = await running.wait(failed["job_id"], timeout=60)

        assert failed["status"] == "failed"
        assert len(missing) >= 1
        assert response.children == {"split": len(missing)}
        assert job["status"] == "completed"
        assert sorted(_runs) == sorted([name.removeprefix("split__") for name in missing] + ["last"])


async def test_a_resumed_fan_out_keeps_its_limit(database):
    _broken.update(map(str, range(30)))
    text = tiles(max_parallel=3, seconds=0.02).replace("task: {handler", "tolerate: 1.0\n        task: {handler")
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        _broken.add("last")
        failed = await running.run(workflow(text), count=30, timeout=60)
        assert failed["status"] == "failed"  # `last` failed; the children's failures are tolerated
        # The fan_in has combined the results without the failed children: they are not run again.
        assert (await resume(running.ledger, failed["job_id"], is_dry_run=True)).children == {}

        strict = workflow(tiles(max_parallel=3, seconds=0.02).replace("workflow_id: tiles", "workflow_id: strict"))
        _broken.clear()
        _broken.update(map(str, range(0, 30, 7)))
        failed = await running.run(strict, count=30, timeout=60)
        _broken.clear()
        before = await running.value("SELECT max(dispatched_at) FROM dagapp.dag_node_states")
        await resume_job(running, failed["job_id"])
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


async def test_a_cancelled_job_is_resumed(database):
    async with engine(database, workers=2, handlers=HANDLERS) as running:
        job_id = await running.submit(workflow(tiles(max_parallel=4, seconds=0.02)), count=60)
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'succeeded' LIMIT 1 OFFSET 9"))
        await cancel(running.ledger, job_id, by="ana")
        cancelled = await running.wait(job_id)
        done = await running.value(
            "SELECT count(*) FROM dagapp.dag_node_states WHERE job_id = %s AND "
            "parent_node_id = 'split' AND status = 'completed'",
            job_id,
        )
        _runs.clear()

        await resume_job(running, job_id)
        job = await running.wait(job_id, timeout=60)

        assert (cancelled["status"], job["status"]) == ("cancelled", "completed")
        assert 10 <= done < 60
        assert len(_runs) == 60 - done + 1


async def test_only_one_of_two_concurrent_resumes_is_accepted(database):
    _broken.add("right")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(DIAMOND))
        _broken.clear()
        other = Engine(running.dsn, running.settings)

        responses = await asyncio.gather(
            resume(running.ledger, failed["job_id"]), resume(other.ledger, failed["job_id"]), return_exceptions=True
        )
        running.notifier.notify(JOBS)
        job = await running.wait(failed["job_id"])
        await other.ledger.close()

        assert sorted(type(response).__name__ for response in responses) == ["Conflict", "Resumed"]
        assert (job["status"], job["resume_count"]) == ("completed", 1)


async def test_a_completed_or_unknown_job_cannot_be_resumed(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(DIAMOND))

        with pytest.raises(Conflict, match="has completed"):
            await resume(running.ledger, job["job_id"])
        with pytest.raises(NotFound):
            await resume(running.ledger, UUID(int=7))
        with pytest.raises(NotFound):
            await resume(running.ledger, UUID(int=7), is_dry_run=True)


async def test_a_partly_expanded_fan_out_keeps_its_source(database):
    """A failed optional node does not run again if a fan_out has started without its output."""
    text = """
        workflow_id: half
        nodes:
          start: {type: start, next: maybe}
          maybe:
            {handler: give_items, importance: optional, params: {fail: true}, retry: {max_attempts: 0}, next: split}
          split:
            type: fan_out
            source: "{{ nodes.maybe.output.items | default([0, 1, 2, 3]) }}"
            max_parallel: 1
            task: {handler: fail_if_broken, params: {name: "{{ item }}", seconds: 0.2}, retry: {max_attempts: 0}}
            next: join
          join: {type: fan_in, next: end}
          end: {type: end}
    """
    _broken.add("give_items")
    async with engine(database, handlers=ALL_HANDLERS) as running:
        job_id = await running.submit(workflow(text))
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'succeeded'"))
        await cancel(running.ledger, job_id)
        await running.wait(job_id)
        _broken.clear()
        _items[:] = list("abcdefg")

        response = await resume_job(running, job_id)
        job = await running.wait(job_id)

        assert "maybe" not in response.nodes
        assert job["status"] == "completed"
        assert (await running.nodes(job_id))["join"]["output"]["count"] == 4


async def test_a_tolerated_child_runs_again_if_a_child_that_reads_it_does(database):
    """Children read the results of other children. One failure was tolerated, but the child that reads it failed."""
    text = """
        workflow_id: nested
        nodes:
          start: {type: start, next: first}
          first:
            type: fan_out
            source: [0, 1, 2]
            tolerate: 1
            task: {handler: fail_if_broken, params: {name: "{{ item }}"}, retry: {max_attempts: 0}}
            next: second
          second:
            type: fan_out
            results_of: first
            batch_size: 1
            task: {handler: read_results, retry: {max_attempts: 0}}
            next: join
          join: {type: fan_in, next: end}
          end: {type: end}
    """
    _broken.add("1")
    async with engine(database, handlers=ALL_HANDLERS) as running:
        failed = await running.run(workflow(text))
        _broken.clear()
        _runs.clear()

        response = await resume_job(running, failed["job_id"])
        job = await running.wait(failed["job_id"])

        assert (failed["status"], job["status"]) == ("failed", "completed")
        assert response.children == {"first": 1, "second": 1}
        assert _runs == ["1"]


# --- retry -----------------------------------------------------------------------------------------------------------


async def retry_part(running: Engine, job_id: UUID, **part: str):
    response = await retry(running.ledger, job_id, JobPart(**part), by="ana")
    running.notifier.notify(JOBS)
    return response


async def test_a_retried_node_runs_again_with_everything_downstream_and_nothing_else(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(DIAMOND))
        _runs.clear()
        would = await retry(running.ledger, job["job_id"], JobPart(node="left"), is_dry_run=True)

        response = await retry_part(running, job["job_id"], node="left")
        again = await running.wait(job["job_id"])

        assert (would.nodes, response.nodes) == (("left", "last", "end"), ("left", "last", "end"))
        assert (job["status"], again["status"], again["resume_count"]) == ("completed", "completed", 1)
        assert _runs == ["left", "last"]
        resumption = next(
            event for event in await running.events(job["job_id"]) if event["event_type"] == "job_resumed"
        )
        assert resumption["event_data"] == {"by": "ana", "retry": {"node": "left"}}


async def test_a_retry_of_a_stage_runs_all_its_nodes_again(database):
    staged = DIAMOND.replace("left: {", "left: {stage: middle, ").replace("right: {", "right: {stage: middle, ")
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(staged))
        _runs.clear()

        response = await retry_part(running, job["job_id"], stage="middle")
        await running.wait(job["job_id"])

        assert set(response.nodes) == {"left", "right", "last", "end"}
        assert sorted(_runs) == ["last", "left", "right"]
        with pytest.raises(NotFound, match="no stage 'nowhere'"):
            await retry(running.ledger, job["job_id"], JobPart(stage="nowhere"))


async def test_a_retry_of_failed_children_runs_only_them_and_the_nodes_after_them(database):
    _broken.update({"3", "7"})
    text = tiles().replace("task: {handler: fail_if_broken", "tolerate: 0.5\n        task: {handler: fail_if_broken")
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(text), count=20)
        _broken.clear()
        _runs.clear()

        response = await retry_part(running, job["job_id"], failed_children="split")
        again = await running.wait(job["job_id"])

        assert (job["status"], again["status"]) == ("completed", "completed")
        assert (response.children, response.nodes) == ({"split": 2}, ("join", "last", "end"))
        assert sorted(_runs) == ["3", "7", "last"]
        assert (await running.nodes(job["job_id"]))["join"]["output"]["count"] == 20
        with pytest.raises(Conflict, match="no child of 'split' has failed"):
            await retry(running.ledger, job["job_id"], JobPart(failed_children="split"))


async def test_one_child_can_be_retried(database):
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(tiles()), count=5)
        _runs.clear()

        response = await retry_part(running, job["job_id"], node="split__3")
        again = await running.wait(job["job_id"])

        assert (response.children, again["status"]) == ({"split": 1}, "completed")
        assert sorted(_runs) == ["3", "last"]
        for unknown in ("split__5", "split__03", "split__x", "start", "unknown"):
            with pytest.raises(NotFound):
                await retry(running.ledger, job["job_id"], JobPart(node=unknown))


async def test_a_retry_of_a_child_is_refused_if_too_many_others_have_failed(database):
    """Two children have failed and one may fail: one of the two can be retried, another child cannot."""
    _broken.update({"3", "7"})
    text = tiles().replace("task: {handler: fail_if_broken", "tolerate: 1\n        task: {handler: fail_if_broken")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(text), count=10)
        _broken.clear()

        for is_dry_run in (True, False):
            with pytest.raises(Conflict, match="have failed, and at most 1 may fail") as refused:
                await retry(running.ledger, failed["job_id"], JobPart(node="split__5"), is_dry_run=is_dry_run)
            assert "failed children of 'split'" in str(refused.value.hint)
        assert (await running.job(failed["job_id"]))["resume_count"] == 0
        _runs.clear()
        await retry_part(running, failed["job_id"], node="split__3")
        again = await running.wait(failed["job_id"])
        await retry_part(running, failed["job_id"], node="split__5")
        third = await running.wait(failed["job_id"])

        assert (failed["status"], again["status"], third["status"]) == ("failed", "completed", "completed")
        assert _runs == ["3", "last", "5", "last"]


async def test_a_retry_is_refused_if_the_job_has_run_again_since_it_was_read(database):
    _broken.add("3")
    async with engine(database, handlers=HANDLERS) as running:
        failed = await running.run(workflow(tiles()), count=5)
        _broken.clear()

        class SlowLedger:
            """Another caller resumes the job between the read and the decision."""

            def __getattr__(self, name: str) -> Any:
                return getattr(running.ledger, name)

            async def load_output_references(self, *arguments: Any, **options: Any) -> Any:
                outputs = await running.ledger.load_output_references(*arguments, **options)
                await resume_job(running, failed["job_id"])
                await running.wait(failed["job_id"])
                return outputs

        with pytest.raises(Conflict, match="has run again in the meantime"):
            await retry(SlowLedger(), failed["job_id"], JobPart(node="split__3"))


GROWING = """
    workflow_id: growing
    nodes:
      start: {type: start, next: count}
      count: {handler: give_items, next: split}
      split:
        type: fan_out
        source: "{{ nodes.count.output.items }}"
        label: "tile {{ item }}"
        LIMIT
        task: {handler: fail_if_broken, params: {name: "{{ item }}"}, retry: {max_attempts: 0}}
        next: join
      join: {type: fan_in, next: end}
      end: {type: end}
"""
_items: list[str] = []


async def give_items(_ctx: Any) -> dict[str, Any]:
    if "give_items" in _broken:
        raise HandlerFailed("counting failed")
    return {"items": list(_items)}


async def read_results(ctx: Any) -> dict[str, Any]:
    async for child in ctx.results():
        if child.status != "completed":
            raise HandlerFailed(f"{child.node_id} is missing")
    return {}


ALL_HANDLERS = (
    *HANDLERS,
    Registration("give_items", "tests.engine.test_resume:give_items"),
    Registration("read_results", "tests.engine.test_resume:read_results"),
)


@pytest.mark.parametrize("limit", ["", "max_parallel: 2"])
@pytest.mark.parametrize("after", [["x", "y"], ["a", "b", "c", "d"], ["p", "q", "r", "s", "t", "u", "v"], []])
async def test_a_fan_out_that_runs_again_has_one_child_for_each_item_of_its_new_source(database, after, limit):
    _items[:] = ["a", "b", "c", "d"]
    async with engine(database, handlers=ALL_HANDLERS) as running:
        job = await running.run(workflow(GROWING.replace("LIMIT", limit)))
        _runs.clear()
        _items[:] = after

        await retry_part(running, job["job_id"], node="count")
        again = await running.wait(job["job_id"])

        assert again["status"] == "completed"
        assert sorted(_runs) == sorted(after)
        nodes = await running.nodes(job["job_id"])
        assert [result["name"] for result in nodes["join"]["output"]["results"]] == after
        assert nodes["split"]["total"] == len(after)
        children = {row["fan_out_index"]: row for row in nodes.values() if row["parent_node_id"]}
        assert [children[index]["label"] for index in range(len(after))] == [f"tile {item}" for item in after]
        left_out = [row["status"] for index, row in children.items() if index >= len(after)]
        assert left_out == ["skipped"] * max(0, 4 - len(after))
        # Children that ran twice have two attempts.
        attempts = {row["fan_out_index"]: row["attempt"] for row in children.values()}
        assert all(attempts[index] == (2 if index < 4 else 1) for index in range(len(after)))


async def test_a_retry_that_fails_in_the_middle_can_be_resumed(database):
    _items[:] = ["a", "b", "c", "d", "e", "f"]
    async with engine(database, handlers=ALL_HANDLERS) as running:
        job = await running.run(workflow(GROWING.replace("LIMIT", "max_parallel: 1")))
        _items[:] = ["u", "v", "w", "x", "y", "z"]
        _broken.add("w")
        await retry_part(running, job["job_id"], node="split")  # its source is the old output of `count`
        same = await running.wait(job["job_id"])
        await retry_part(running, job["job_id"], node="count")
        failed = await running.wait(job["job_id"])
        _broken.clear()
        _runs.clear()
        await resume_job(running, job["job_id"])
        again = await running.wait(job["job_id"])

        assert (same["status"], failed["status"], again["status"]) == ("completed", "failed", "completed")
        nodes = await running.nodes(job["job_id"])
        assert [result["name"] for result in nodes["join"]["output"]["results"]] == ["u", "v", "w", "x", "y", "z"]
        assert "u" not in _runs
        assert {"w", "x", "y", "z"} <= set(_runs)


async def test_a_conditional_can_take_another_branch_after_a_retry(database):
    text = """
        workflow_id: branching
        nodes:
          start: {type: start, next: count}
          count: {handler: give_items, next: many}
          many:
            type: conditional
            condition: "{{ nodes.count.output.items | length > 2 }}"
            on_true: wide
            on_false: narrow
          wide:
            type: fan_out
            source: "{{ nodes.count.output.items }}"
            task: {handler: fail_if_broken, params: {name: "{{ item }}"}}
            next: join
          join: {type: fan_in, next: end}
          narrow: {handler: fail_if_broken, params: {name: narrow}, next: end}
          end: {type: end, depends_on: {any_of: [join, narrow]}}
    """
    _items[:] = ["a", "b", "c"]
    async with engine(database, handlers=ALL_HANDLERS) as running:
        job = await running.run(workflow(text))
        _items[:] = ["a"]
        _runs.clear()
        await retry_part(running, job["job_id"], node="count")
        again = await running.wait(job["job_id"])
        nodes = await running.nodes(job["job_id"])
        _items[:] = ["d", "e", "f", "g"]
        await retry_part(running, job["job_id"], node="count")
        third = await running.wait(job["job_id"])

        assert (job["status"], again["status"], third["status"]) == ("completed", "completed", "completed")
        assert sorted(_runs) == sorted(["narrow", "d", "e", "f", "g"])
        assert (nodes["wide"]["status"], nodes["wide__0"]["status"], nodes["narrow"]["status"]) == (
            "skipped",
            "skipped",
            "completed",
        )


async def test_a_retry_is_refused_if_another_failed_node_would_block_the_job(database):
    _broken.add("right")
    async with engine(database, handlers=HANDLERS) as running:
        job = await running.run(workflow(DIAMOND))

        with pytest.raises(Conflict, match="'right' has failed too"):
            await retry(running.ledger, job["job_id"], JobPart(node="left"))
        with pytest.raises(ValueError, match="name either a node"):
            JobPart(node="left", stage="middle")
