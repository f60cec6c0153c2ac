"""Why is it waiting? Every node that has not ended says what would have to happen."""

from typing import Any
from uuid import UUID

from httpx2 import AsyncClient

from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, open_gate, until, workflow

SHAPES = """
    workflow_id: shapes
    nodes:
      start: {type: start, next: [door, heavy]}
      door: {handler: gate, next: after}
      heavy: {handler: echo, queue: container-tasks, next: after}
      after: {handler: echo, next: end}
      end: {type: end}
"""

MANY = """
    workflow_id: many
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: 30}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: echo, queue: container-tasks}
        next: gather
      gather: {type: fan_in, next: end}
      end: {type: end}
"""

FAILING = """
    workflow_id: failing
    nodes:
      start: {type: start, next: bad}
      bad:
        handler: give
        params: {fail: true, message: the source answers 503}
        retry: {max_attempts: 3, initial_delay_seconds: 60, jitter: false, backoff: fixed}
        next: end
      end: {type: end}
"""


async def waiting(client: AsyncClient, job_id: UUID, **params: Any) -> dict[str, list[dict[str, Any]]]:
    body = await ok(client.get(f"{V1}/jobs/{job_id}/waiting", params=params))
    return {node["node_id"]: node["reasons"] for node in body["nodes"]}


def codes(reasons: list[dict[str, Any]]) -> list[str]:
    return [reason["code"] for reason in reasons]


async def test_ux_a_node_names_the_nodes_it_waits_for_and_a_running_one_says_so(database):
    async with engine(database, workers=0) as running:
        await running.start_worker(["dag-worker-tasks"])
        job_id = await running.submit(workflow(SHAPES))
        async with api(database, running) as client:

            async def is_running():
                found = await waiting(client, job_id)
                return found if codes(found.get("door", [])) == ["running"] else None

            found = await until(is_running)
            await running.start_worker(["container-tasks"])
            open_gate(job_id)
            await running.wait(job_id)
            over = await waiting(client, job_id)

    assert "start" not in found
    assert found["after"][0]["nodes"] == ["door", "heavy"]
    assert found["after"][0]["detail"] == "waits for door, heavy"
    assert codes(found["end"]) == ["waiting_for_nodes"]
    assert codes(found["heavy"]) == ["no_worker", "queued"]
    assert found["heavy"][0]["detail"] == "no live worker offers echo on queue container-tasks"
    assert over == {}


async def test_ux_a_queued_task_tells_how_many_are_in_front_and_what_holds_its_queue(database):
    async with engine(database) as running:
        await running.ledger.set_queue("container-tasks", max_running=None, is_paused=True)
        first = await running.submit(workflow(MANY))
        second = await running.submit(workflow(SHAPES))
        async with api(database, running) as client:

            async def all_queued():
                return await running.value(
                    "SELECT count(*) = 31 FROM dagapp.dag_tasks WHERE status = 'queued' AND queue = 'container-tasks'"
                )

            await until(all_queued)
            fan_out = (await waiting(client, first))["split"]
            children = await waiting(client, first, parent="split", limit=200)
            page = await ok(client.get(f"{V1}/jobs/{first}/waiting", params={"parent": "split", "limit": 7}))
            heavy = (await waiting(client, second))["heavy"]
            await client.put(f"{V1}/queues/container-tasks", json={"max_running": None, "is_paused": False})
            open_gate(second)
            await running.wait(first)
            await running.wait(second)

    assert codes(fan_out) == ["waiting_for_children", "queue_paused", "queued"]
    assert fan_out[0]["count"] == 30
    assert len(children) == 30
    assert sorted(reasons[-1]["count"] for reasons in children.values()) == _places(children, heavy)
    assert (len(page["nodes"]), page["next"]) == (7, page["nodes"][-1]["node_id"])
    assert codes(heavy) == ["queue_paused", "queued"]
    assert heavy[1]["handler"] == "echo"


def _places(children: dict[str, list[dict[str, Any]]], heavy: list[dict[str, Any]]) -> list[int]:
    """Each place in the queue is taken once: 30 children, and the other job's task somewhere among them."""
    return [place for place in range(31) if place != heavy[-1]["count"]]


async def test_ux_a_limited_queue_is_named(database):
    async with engine(database) as running:
        await running.ledger.set_queue("dag-worker-tasks", max_running=1, is_paused=False)
        text = SHAPES.replace("queue: container-tasks, ", "").replace(
            "handler: echo, next: after", "handler: gate, next: after"
        )
        job_id = await running.submit(workflow(text))
        async with api(database, running) as client:

            async def is_limited():
                found = await waiting(client, job_id)
                both = codes(found.get("door", [])) + codes(found.get("heavy", []))
                return found if sorted(both) == ["queue_limited", "queued", "running"] else None

            found = await until(is_limited)
            open_gate(job_id)
            await running.wait(job_id)

    limited = next(reason for node in ("door", "heavy") for reason in found[node] if reason["code"] == "queue_limited")
    assert limited["detail"] == "queue dag-worker-tasks runs 1 tasks, its limit is 1"


async def test_ux_a_retry_tells_when_and_why(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(FAILING))

        async def is_retried():
            return next((r for r in (await waiting(client, job_id)).get("bad", []) if r["code"] == "retry"), None)

        reason = await until(is_retried)

    assert 50 < reason["seconds"] <= 60
    assert reason["detail"].startswith("retry 1 of 3 in ")
    assert reason["detail"].endswith(": the source answers 503")


async def test_ux_without_an_orchestrator_the_start_says_so(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")

        found = await waiting(client, job_id)

    assert codes(found["start"]) == ["no_orchestrator"]
    assert codes(found["greet"]) == ["waiting_for_nodes"]
