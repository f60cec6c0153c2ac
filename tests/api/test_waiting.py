"""Every node that has not ended reports what it waits for."""

import re
from typing import Any
from uuid import UUID

import pytest
from httpx2 import AsyncClient

from dagmaster.api.waiting import is_readable
from dagmaster.handlers.registry import Registration, Registry
from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, gate, open_gate, until, workflow

pytestmark = pytest.mark.requirement("O1")

SHAPES = """
    workflow_id: shapes
    nodes:
      start: {type: start, next: [busy, heavy]}
      busy: {handler: gate, next: after}
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


async def test_a_waiting_node_names_the_nodes_it_waits_for_and_a_running_one_is_shown_as_running(database):
    async with engine(database, workers=0) as running:
        await running.start_worker(["dag-worker-tasks"])
        job_id = await running.submit(workflow(SHAPES))
        async with api(database, running) as client:

            async def is_running():
                waiting_nodes = await waiting(client, job_id)
                return waiting_nodes if codes(waiting_nodes.get("busy", [])) == ["running"] else None

            waiting_nodes = await until(is_running)
            await running.start_worker(["container-tasks"])
            open_gate(job_id)
            await running.wait(job_id)
            over = await waiting(client, job_id)

    assert "start" not in waiting_nodes
    assert waiting_nodes["after"][0]["nodes"] == ["busy", "heavy"]
    assert waiting_nodes["after"][0]["detail"] == "waits for busy, heavy"
    assert codes(waiting_nodes["end"]) == ["waiting_for_nodes"]
    assert codes(waiting_nodes["heavy"]) == ["no_worker", "queued"]
    assert waiting_nodes["heavy"][0]["detail"] == "no live worker serves queue container-tasks"
    assert over == {}


async def test_a_queued_task_shows_its_position_and_what_blocks_its_queue(database):
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
    """The positions in the queue are all different: 30 children, and the task of the other job among them."""
    return [place for place in range(31) if place != heavy[-1]["count"]]


async def test_a_task_in_a_full_queue_shows_the_limit_of_the_queue(database):
    async with engine(database) as running:
        await running.ledger.set_queue("dag-worker-tasks", max_running=1, is_paused=False)
        text = SHAPES.replace("queue: container-tasks, ", "").replace(
            "handler: echo, next: after", "handler: gate, next: after"
        )
        job_id = await running.submit(workflow(text))
        async with api(database, running) as client:

            async def is_limited():
                waiting_nodes = await waiting(client, job_id)
                both = codes(waiting_nodes.get("busy", [])) + codes(waiting_nodes.get("heavy", []))
                return waiting_nodes if sorted(both) == ["queue_limited", "queued", "running"] else None

            waiting_nodes = await until(is_limited)
            open_gate(job_id)
            await running.wait(job_id)

    limited = next(
        reason for node in ("busy", "heavy") for reason in waiting_nodes[node] if reason["code"] == "queue_limited"
    )
    assert limited["detail"] == "queue dag-worker-tasks runs 1 task, its limit is 1"


async def test_a_node_that_will_be_retried_shows_when_and_why(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(FAILING))

        async def is_retried():
            return next((r for r in (await waiting(client, job_id)).get("bad", []) if r["code"] == "retry"), None)

        reason = await until(is_retried)

    assert 50 < reason["seconds"] <= 60
    assert reason["detail"].startswith("retry 1 of 3 in ")
    assert reason["detail"].endswith(": the source answers 503")


async def test_without_an_orchestrator_the_start_node_shows_that_none_is_running(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")

        waiting_nodes = await waiting(client, job_id)

    assert codes(waiting_nodes["start"]) == ["no_orchestrator"]
    assert codes(waiting_nodes["greet"]) == ["waiting_for_nodes"]


LIMITED = """
    workflow_id: limited
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: 10}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        max_parallel: 4
        task: {handler: gate}
        next: gather
      gather: {type: fan_in, next: end}
      end: {type: end}
"""


@pytest.mark.parametrize(
    ("slots", "detail"),
    [(10, "4 of max_parallel 4 are running"), (3, "4 of max_parallel 4 are active, 3 of them running")],
)
async def test_a_limited_fan_out_shows_how_many_of_its_slots_are_used(database, slots, detail):
    async with engine(database, workers=0) as running, api(database, running) as client:
        await running.start_worker(worker_slots=slots)
        job_id = await running.submit(workflow(LIMITED))

        async def is_limited():
            reasons = (await waiting(client, job_id)).get("split", [])
            return reasons if detail in [reason["detail"] for reason in reasons] else None

        reasons = await until(is_limited)
        open_gate(job_id)
        await running.wait(job_id)

    assert codes(reasons)[:2] == ["waiting_for_children", "max_parallel"]
    assert reasons[0]["detail"] == "waits for 10 of 10 children"
    assert reasons[1]["count"] == 4


async def report_and_wait(ctx: Any) -> None:
    ctx.progress(0.4, "tile 4 of 10")
    await gate(ctx)


async def test_a_running_node_shows_its_start_worker_and_progress(database):
    reporting = Registration("report_and_wait", f"{__name__}:report_and_wait")
    async with engine(database, handlers=[reporting]) as running, api(database, running) as client:
        job_id = await running.submit(workflow(SHAPES.replace("handler: gate", "handler: report_and_wait")))

        async def has_progress():
            reasons = (await waiting(client, job_id)).get("busy", [])
            return reasons[0] if reasons and reasons[0]["progress"] else None

        reason = await until(has_progress)
        (worker,) = (await ok(client.get(f"{V1}/workers")))["items"]
        open_gate(job_id)
        await running.wait(job_id)

    assert reason["code"] == "running"
    assert reason["worker_id"] == worker["worker_id"]
    assert f"on {worker['host']} (process {worker['pid']}): 40%, tile 4 of 10" in reason["detail"]
    assert reason["seconds"] > 0


async def test_a_task_shows_that_no_worker_of_its_queue_offers_its_handler(database):
    not_offered = Registration("not_offered", "tests.engine.harness:give")
    async with engine(database, orchestrators=0, workers=1, verify_history=False) as running:
        running.registry = Registry([*running.registry.values(), not_offered])  # the worker started without it
        await running.start_orchestrator()
        job_id = await running.submit(workflow(SHAPES.replace("handler: gate", "handler: not_offered")))
        async with api(database, running) as client:

            async def is_queued():
                reasons = (await waiting(client, job_id)).get("busy", [])
                return reasons if "no_worker" in codes(reasons) else None

            reasons = await until(is_queued)

    assert reasons[0]["detail"] == (
        "no live worker has handler not_offered on queue dag-worker-tasks (live workers of the queue: 1)"
    )


async def test_a_node_shows_that_its_orchestrator_does_not_know_its_handler(database):
    async with engine(database, verify_history=False) as running:
        job_id = await running.submit(workflow(SHAPES.replace("handler: gate", "handler: not_known, queue: new")))
        async with api(database, running) as client:

            async def is_deferred():
                reasons = (await waiting(client, job_id)).get("busy", [])
                return reasons if codes(reasons) == ["unknown_handler"] else None

            (reason,) = await until(is_deferred)

    assert (reason["handler"], reason["queue"]) == ("not_known", "new")
    assert reason["detail"].startswith(
        "waits for an orchestrator that knows handler not_known and queue new; "
        "the node fails if no live process has known them for 600 s ("
    )


async def test_a_job_shows_that_its_orchestrator_has_stopped(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")
        await running.rows("UPDATE dagapp.dag_jobs SET owner_id = gen_random_uuid()")
        alone = await waiting(client, job_id)
        await running.rows(
            "INSERT INTO dagapp.orchestrators (owner_id, host, pid, software_version) "
            "VALUES (gen_random_uuid(), 'b', 1, '1')"
        )
        with_another = await waiting(client, job_id)

    assert codes(alone["start"]) == ["no_orchestrator"]
    assert codes(with_another["start"]) == ["orphaned"]


async def test_a_waiting_task_shows_how_often_it_was_lost(database):
    async with engine(database, max_losses=5) as running, api(database, running) as client:
        job_id = await running.submit(workflow(SHAPES.replace("handler: gate", "handler: crash, params: {code: 3}")))

        async def is_lost():
            reasons = (await waiting(client, job_id)).get("busy", [])
            return next((reason for reason in reasons if reason["code"] == "retry"), None)

        reason = await until(is_lost, 40)
        await ok(client.post(f"{V1}/jobs/{job_id}/cancel"), 202)  # instead of waiting for the retries that remain
        await running.wait(job_id, 60)

    assert re.match(r"next attempt \(lost \d times?\) in \d+\.\d s: ", reason["detail"])


# The reasons that a node may have for waiting, by its state.
TRUE_REASONS = {
    "pending": {"waiting_for_nodes", "waiting_for_one_of", "due"},
    "ready": {
        "due",
        "retry",
        "waiting_for_children",
        "max_parallel",
        "expanding",
        "no_worker",
        "queued",
        "queue_limited",
    },
    "dispatched": {"no_worker", "queue_paused", "queue_limited", "queued", "running", "due"},
    "running": {"running", "due"},
    "completed": {"waiting_for_children", "retry", "no_worker", "queued", "queue_limited"},
}


async def test_every_node_that_has_not_ended_has_a_reason_at_all_times(database):
    """The workflow `demo` has every kind of node. It is polled continuously from its submission to its end."""
    seen: set[tuple[str, str]] = set()
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit("demo", count=40)
        while (body := await ok(client.get(f"{V1}/jobs/{job_id}/waiting")))["nodes"]:
            for node in body["nodes"]:
                assert node["reasons"], node
                assert set(codes(node["reasons"])) <= TRUE_REASONS[node["status"]], node
                seen |= {(node["status"], reason["code"]) for reason in node["reasons"]}
        await running.wait(job_id)

    assert {("pending", "waiting_for_nodes"), ("pending", "waiting_for_one_of")} <= seen
    assert "waiting_for_children" in {code for _, code in seen}


async def test_the_list_contains_every_node_that_has_not_ended(database):
    """No worker runs, so nothing changes between reading the rows and the response."""
    async with engine(database, workers=0, verify_history=False) as running, api(database, running) as client:
        job_id = await running.submit("demo", count=5)

        async def is_dispatched():
            return any(node["status"] == "dispatched" for node in (await running.nodes(job_id)).values())

        await until(is_dispatched)
        waiting_nodes = await waiting(client, job_id)
        nodes = await running.nodes(job_id)

    assert set(waiting_nodes) == {
        name for name, node in nodes.items() if node["status"] not in {"completed", "skipped"}
    }


@pytest.mark.parametrize("entry", [{}, {"known_at": "2026-01-01T00:00:00+00:00"}, {"known_at": None, "node_id": "a"}])
def test_deferred_work_in_an_unknown_form_is_ignored(entry):
    assert not is_readable(entry)
