"""A template that takes long delays no other job, and one that takes too long fails its node."""

import asyncio
import time

import pytest

from dagmaster.handlers.registry import Registration
from tests.engine.harness import engine, until, workflow

pytestmark = pytest.mark.alone

COUNT = 15_000
HEAD = """
    workflow_id: slow_%s
    version: 1
    inputs: {count: {type: integer, required: true}}
    nodes:
      start: {type: start, next: a}
      a: {handler: many, params: {count: "{{ inputs.count }}"}, next: b}
"""
EXPENSIVE = "nodes.a.output.items | selectattr('k', 'in', nodes.a.output.nums) | length"
# Each place of a workflow that has a template, with the node that fails.
PLACES = {
    "params": (
        "b",
        """
      b: {handler: give, params: {value: "{{ %s }}"}, next: end}
      end: {type: end}
    """,
    ),
    "part of a text": (
        "b",
        """
      b: {handler: give, params: {deep: [{value: "there are {{ %s }}"}]}, next: end}
      end: {type: end}
    """,
    ),
    "condition": (
        "b",
        """
      b: {type: conditional, condition: "{{ %s }} > 3", on_true: c, on_false: end}
      c: {handler: noop, next: end}
      end: {type: end, depends_on: {any_of: [b, c]}}
    """,
    ),
    "field": (
        "b",
        """
      b:
        type: conditional
        condition_field: "{{ %s }}"
        branches: [{condition: "> 3", next: c}, {default: true, next: end}]
      c: {handler: noop, next: end}
      end: {type: end, depends_on: {any_of: [b, c]}}
    """,
    ),
    "source": (
        "b",
        """
      b: {type: fan_out, source: "{{ [%s] }}", task: {handler: noop}, next: c}
      c: {type: fan_in, next: end}
      end: {type: end}
    """,
    ),
    "child": (
        "b",
        """
      b: {type: fan_out, source: [1, 2], task: {handler: give, params: {value: "{{ item + (%s) }}"}}, next: c}
      c: {type: fan_in, next: end}
      end: {type: end}
    """,
    ),
    "label": (
        "b",
        """
      b: {type: fan_out, source: [1, 2], label: "{{ item }} of {{ %s }}", task: {handler: noop}, next: c}
      c: {type: fan_in, next: end}
      end: {type: end}
    """,
    ),
    "outputs": (
        None,
        """
      b: {handler: noop, next: end}
      end: {type: end}
    outputs: {n: "{{ %s }}"}
    """,
    ),
}


async def many(ctx):
    count = ctx.params["count"]
    return {"items": [{"k": n} for n in range(count)], "nums": list(range(count, 2 * count))}


MANY = Registration("many", "tests.engine.test_slow_templates:many")


def _workflow(place: str):
    return workflow(HEAD % place.replace(" ", "_") + PLACES[place][1].lstrip("\n") % EXPENSIVE)


async def _longest_pause(stop: asyncio.Event) -> float:
    """The longest time for which the event loop did not run this task, which sleeps for 2 ms each time."""
    longest, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.002)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.requirement("W5", "W11")
async def test_other_jobs_continue_while_a_template_takes_long_and_its_node_fails(database):
    async with engine(database, handlers=[MANY]) as running:
        slow = await running.submit(_workflow("params"), count=COUNT)
        stop = asyncio.Event()
        pause = asyncio.create_task(_longest_pause(stop))
        others = 0
        while (await running.job(slow))["status"] not in ("completed", "failed"):
            await running.run("hello_world")
            others += 1
        stop.set()
        job, nodes = await running.job(slow), await running.nodes(slow)
        longest = await pause

    assert job["status"] == "failed"
    assert nodes["b"]["error"]["code"] == "template.too-slow"
    assert "takes longer than 2 s of CPU time" in nodes["b"]["error"]["message"]
    assert job["epoch"] == 1  # its owner kept sending heartbeats, so the job was not claimed again
    assert others >= 3
    assert longest < 0.5


@pytest.mark.requirement("W5", "W11")
@pytest.mark.parametrize("place", PLACES)
async def test_a_template_that_takes_long_is_rendered_and_one_that_takes_too_long_fails_its_node(database, place):
    async with engine(database, handlers=[MANY], template_timeout_sec=0.6) as running:
        fine = await running.run(_workflow(place), count=3_000)
        late = await running.run(_workflow(place), count=COUNT)
        nodes = await running.nodes(late["job_id"])

    assert fine["status"] == "completed", fine["error_message"]
    assert late["status"] == "failed"
    assert "takes longer than 0.6 s of CPU time" in late["error_message"]
    if PLACES[place][0]:
        assert nodes[PLACES[place][0]]["error"]["code"] == "template.too-slow"


@pytest.mark.requirement("W5", "W11")
async def test_a_job_whose_template_is_being_rendered_can_be_cancelled(database):
    async with engine(database, handlers=[MANY], template_timeout_sec=30) as running:
        slow = await running.submit(_workflow("params"), count=COUNT)
        await until(lambda: _is_being_rendered(running, slow))
        await running.ledger.request_cancel(slow, by="me", reason=None)
        job = await running.wait(slow, timeout=5)

    assert job["status"] == "cancelled"


async def _is_being_rendered(running, job_id) -> bool:
    owned = running.orchestrators[0]._owned.get(job_id)
    return owned is not None and bool(owned.rendered)
