"""Orchestrators of different releases run together: a node waits for an orchestrator that knows its handler."""

import asyncio

import pytest

from dagmaster.handlers.registry import Registration, Registry
from dagmaster.orchestrator.loop import Orchestrator
from tests.engine.harness import Engine, engine, until, workflow

pytestmark = pytest.mark.requirement("E22")

NEW = Registration("give_new", "tests.engine.harness:give")
ONE = """
    workflow_id: release
    nodes:
      start: {type: start, next: first}
      first: {handler: give, params: {value: 1}, next: second}
      second: {handler: give_new, QUEUE params: {value: "{{ nodes.first.output }}"}, retry: {max_attempts: 2}}
      end: {type: end, depends_on: {all_of: [second]}}
    """
SPREAD = """
    workflow_id: spread
    nodes:
      start: {type: start, next: spread}
      spread: {type: fan_out, source: [1, 2, 3], task: {handler: give_new, params: {value: "{{ item }}"}}, next: gather}
      gather: {type: fan_in, next: end}
      end: {type: end}
    """


def one(queue: str = "") -> str:
    return ONE.replace("QUEUE", f"queue: {queue}," if queue else "")


async def start_older(running: Engine, *, worker: bool = False) -> Orchestrator:
    """Start an orchestrator, and if requested a worker, of the previous release, without the new handler."""
    registry = running.registry
    running.registry = Registry(handler for handler in registry.values() if handler.name != NEW.name)
    try:
        if worker:
            await running.start_worker()
        return await running.start_orchestrator()
    finally:
        running.registry = registry


async def deferred(running: Engine, job_id) -> list[dict]:
    return await until(lambda: running.value("SELECT deferred_work FROM dagapp.dag_jobs WHERE job_id = %s", job_id))


async def events_of(running: Engine, job_id, node_id: str) -> list[str]:
    return [event["event_type"] for event in await running.events(job_id) if event["node_id"] == node_id]


@pytest.mark.parametrize("definition", [one(), SPREAD], ids=["task", "fan_out"])
async def test_a_node_waits_for_an_orchestrator_that_knows_its_handler(database, definition):
    async with engine(database, handlers=[NEW], orchestrators=0) as running:
        old = await start_older(running)
        job_id = await running.submit(workflow(definition))
        (work,) = await deferred(running, job_id)
        nodes = await running.nodes(job_id)
        owner = (await running.job(job_id))["owner_id"]
        new = await running.start_orchestrator()
        job = await running.wait(job_id)

    assert (work["handler"], work["queue"]) == ("give_new", None)
    assert nodes[work["node_id"]]["status"] == "ready"
    assert owner == old.owner_id
    assert job["status"] == "completed"
    assert job["deferred_work"] is None
    assert old.counters.finished == 0
    assert new.counters.finished == 1
    assert new.counters.errors == old.counters.errors == 0


async def test_an_orchestrator_releases_a_job_for_another_one_that_knows_its_handler(database):
    """Both are alive from the beginning, and the old one was started first."""
    async with engine(database, handlers=[NEW], orchestrators=0) as running:
        await start_older(running)
        await running.start_orchestrator()
        await until(lambda: running.rows("SELECT 1 FROM dagapp.orchestrators HAVING count(*) = 2"))
        ended = [await running.run(workflow(one()), timeout=60) for _ in range(6)]
        epochs = [job["epoch"] for job in ended]

    assert {job["status"] for job in ended} == {"completed"}
    assert max(epochs) <= 2, "a job was passed back and forth between its owners"


async def test_a_job_ends_although_no_orchestrator_knows_all_its_handlers(database):
    other = Registration("give_other", "tests.engine.harness:give")
    both = one().replace("workflow_id: release", "workflow_id: both").replace("handler: give,", "handler: give_other,")
    async with engine(database, handlers=[NEW, other], orchestrators=0) as running:
        every = running.registry
        for missing in (NEW, other):
            running.registry = Registry(handler for handler in every.values() if handler is not missing)
            await running.start_orchestrator()
        running.registry = every
        job = await running.run(workflow(both), timeout=60)

    assert job["status"] == "completed"
    assert job["epoch"] <= 3


async def test_a_node_fails_when_no_live_process_knows_its_handler_for_the_configured_time(database):
    async with engine(database, handlers=[NEW], orchestrators=0, workers=0, unknown_handler_timeout_sec=0.5) as running:
        await start_older(running, worker=True)
        job = await running.run(workflow(one()))
        nodes, events = await running.nodes(job["job_id"]), await events_of(running, job["job_id"], "second")

    assert job["status"] == "failed"
    assert nodes["second"]["error"]["code"] == "handler.unknown"
    assert "give_new" in job["error_message"]
    assert events == ["node_ready", "node_failed"], "a node with an unknown handler must not be retried"
    assert job["deferred_work"] is None


async def test_a_live_worker_that_knows_the_handler_keeps_the_node_waiting(database):
    async with engine(database, handlers=[NEW], orchestrators=0, unknown_handler_timeout_sec=0.5) as running:
        await start_older(running)
        job_id = await running.submit(workflow(one()))
        await deferred(running, job_id)
        await asyncio.sleep(2.5)
        waiting = await running.nodes(job_id)
        await running.start_orchestrator()
        job = await running.wait(job_id)

    assert waiting["second"]["status"] == "ready"
    assert job["status"] == "completed"


async def test_a_node_waits_for_an_orchestrator_that_knows_its_queue(database):
    async with engine(database, orchestrators=0) as running:
        await running.start_orchestrator()
        job_id = await running.submit(workflow(one("gpu").replace("give_new", "give")))
        (work,) = await deferred(running, job_id)
        running.settings = running.settings.model_copy(update={"known_queues": (*running.settings.known_queues, "gpu")})
        await running.start_orchestrator()
        await running.start_worker(["gpu", *running.settings.worker_queue])
        job = await running.wait(job_id)

    assert (work["handler"], work["queue"]) == ("give", "gpu")
    assert job["status"] == "completed"


async def test_a_job_is_not_passed_back_and_forth_if_no_orchestrator_can_route_it(database):
    """One knows the handler and not its queue, the other the queue and not the handler: neither can route the node."""
    far = Registration("give_new", "tests.engine.harness:give", queue="gpu")
    async with engine(database, handlers=[far], orchestrators=0, workers=0) as running:
        known, every = running.settings.known_queues, running.registry
        await running.start_orchestrator()
        running.settings = running.settings.model_copy(update={"known_queues": (*known, "gpu")})
        running.registry = Registry(handler for handler in every.values() if handler.name != "give_new")
        await running.start_orchestrator()
        running.registry = every
        job_id = await running.submit(workflow(one()))
        await running.start_worker(["gpu", *known])
        await deferred(running, job_id)
        await asyncio.sleep(1.5)
        before = await running.job(job_id)
        await running.start_orchestrator()
        job = await running.wait(job_id)

    assert before["epoch"] <= 2
    assert job["status"] == "completed"


async def test_a_job_that_waits_for_a_handler_can_be_cancelled_and_has_a_deadline(database):
    late = one().replace("workflow_id: release", "workflow_id: late\n    timeout_seconds: 1")
    async with engine(database, handlers=[NEW], orchestrators=0) as running:
        await start_older(running)
        cancelled, overdue = await running.submit(workflow(one())), await running.submit(workflow(late))
        await deferred(running, cancelled)
        await running.ledger.request_cancel(cancelled, by=None, reason=None)
        jobs = [await running.wait(job_id) for job_id in (cancelled, overdue)]

    assert [job["status"] for job in jobs] == ["cancelled", "failed"]
    assert [job["deferred_work"] for job in jobs] == [None, None]


async def test_a_message_of_an_unknown_workflow_waits_for_an_orchestrator_that_knows_it(database):
    async with engine(database, orchestrators=0) as running:
        old = await running.start_orchestrator()
        old.library = running.library
        await running.ledger.enqueue_message("m-new", "dag-jobs", {"workflow_id": "later"})
        for number in range(3):
            await running.ledger.enqueue_message(f"m-{number}", "dag-jobs", {"workflow_id": "echo_test"})
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_jobs HAVING count(*) = 3"))
        waiting = await running.rows("SELECT message_id FROM dagapp.dag_job_messages")
        library = running.library
        running.orchestrators.remove(old)
        running.add(workflow(ONE.replace("release", "later").replace("QUEUE", "").replace("give_new", "give")))
        assert old.library is library
        await running.start_orchestrator()
        running.orchestrators.append(old)
        (row,) = await until(lambda: running.rows("SELECT * FROM dagapp.dag_jobs WHERE message_id = 'm-new'"))
        job = await running.wait(row["job_id"])
        letters = await running.rows("SELECT * FROM dagapp.dag_dead_letters")
        for row in await running.rows("SELECT job_id FROM dagapp.dag_jobs"):
            await running.wait(row["job_id"])

    assert [row["message_id"] for row in waiting] == ["m-new"]
    assert job["status"] == "completed"
    assert letters == []
