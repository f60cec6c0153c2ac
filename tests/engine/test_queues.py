"""Queues: submissions of producers that can only send messages, and tasks that are routed to workers."""

import asyncio

import pytest

from dagmaster.database.ledger.protocol import Demand
from dagmaster.database.notify.notifier import JOBS
from dagmaster.jobs.model import Submission, task_id
from dagmaster.operations.submit import submit_once
from tests.engine.harness import engine, until, workflow

QUEUE = "dag-jobs"
MESSAGE = {
    "workflow_id": "echo_test",
    "input_params": {"message": "hi"},
    "correlation_id": "request-7",
    "submitted_by": "hub",
    "callback_url": "https://hub.example/done",
    "idempotency_key": "key-7",
    "priority": 4,
    "submitted_at": "2026-05-01T12:00:00Z",
}


UNKEYED = {name: value for name, value in MESSAGE.items() if name != "idempotency_key"}


async def _wait_until_empty(running):
    async def is_empty():
        return await running.value("SELECT count(*) = 0 FROM dagapp.dag_job_messages")

    await until(is_empty)


async def _letters(running):
    return await running.rows("SELECT * FROM dagapp.dag_dead_letters ORDER BY message_id")


@pytest.mark.requirement("E2")
async def test_a_message_becomes_a_job_with_all_its_fields(database):
    async with engine(database) as running:
        assert await running.ledger.enqueue_message("m-1", QUEUE, MESSAGE)
        running.notifier.notify(JOBS)
        await _wait_until_empty(running)
        (row,) = await running.rows("SELECT * FROM dagapp.dag_jobs")
        job = await running.wait(row["job_id"])

    kept = ("workflow_id", "correlation_id", "submitted_by", "callback_url", "idempotency_key", "priority")
    assert {name: job[name] for name in kept} == {name: MESSAGE[name] for name in kept}
    assert job["message_id"] == "m-1"
    assert job["status"] == "completed"
    assert job["result_data"] == {"echoed": {"message": "hi"}}


@pytest.mark.requirement("E2")
async def test_a_message_becomes_one_job_however_often_it_arrives(database):
    async with engine(database) as running:
        taken = [await running.ledger.enqueue_message("m-1", QUEUE, MESSAGE) for _ in range(2)]
        await _wait_until_empty(running)
        taken.append(await running.ledger.enqueue_message("m-1", QUEUE, MESSAGE))
        await _wait_until_empty(running)
        jobs = await running.rows("SELECT * FROM dagapp.dag_jobs")

        assert (taken[0], taken[2]) == (True, True)
        assert len(jobs) == 1
        assert await _letters(running) == []
        await running.wait(jobs[0]["job_id"])


@pytest.mark.requirement("Q1")
@pytest.mark.parametrize(
    ("body", "reason", "named"),
    [
        (["not", "an", "object"], "Malformed", "workflow_id"),
        ({}, "Malformed", "workflow_id"),
        ({"workflow_id": 5}, "Malformed", "workflow_id"),
        ({**MESSAGE, "priority": 11}, "Malformed", "priority"),
        ({**MESSAGE, "correlation_id": "x" * 65}, "Malformed", "correlation_id"),
        ({**MESSAGE, "callback_url": "https://x/" + "x" * 512}, "Malformed", "callback_url"),
        ({**MESSAGE, "surprise": 1}, "Malformed", "surprise"),
        ({**MESSAGE, "workflow_id": "no_such"}, "WorkflowNotFound", "no_such"),
        ({**MESSAGE, "input_params": {"message": 5}}, "InvalidSubmission", "message"),
        ({**MESSAGE, "input_params": {"message": "x" * 300_000}}, "InvalidSubmission", "262144"),
    ],
)
async def test_a_message_that_cannot_become_a_job_is_stored_with_the_reason(database, body, reason, named):
    async with engine(database, unknown_handler_timeout_sec=0) as running:
        await running.ledger.enqueue_message("good", QUEUE, UNKEYED)
        await running.ledger.enqueue_message("bad", QUEUE, body)
        await running.ledger.enqueue_message("good-too", QUEUE, UNKEYED)
        await _wait_until_empty(running)
        jobs, letters = await running.rows("SELECT * FROM dagapp.dag_jobs"), await _letters(running)
        for job in jobs:
            await running.wait(job["job_id"])

    assert {job["message_id"] for job in jobs} == {"good", "good-too"}
    (letter,) = letters
    assert (letter["message_id"], letter["queue"], letter["reason"]) == ("bad", QUEUE, reason)
    assert named in letter["description"]
    assert letter["body"] == body


@pytest.mark.requirement("Q1")
async def test_competing_orchestrators_take_each_message_once(database):
    async with engine(database, orchestrators=3, workers=2) as running:
        await asyncio.gather(*(running.ledger.enqueue_message(f"m-{n}", QUEUE, UNKEYED) for n in range(60)))
        running.notifier.notify(JOBS)
        await _wait_until_empty(running)
        jobs = await running.rows("SELECT * FROM dagapp.dag_jobs")
        ended = [await running.wait(job["job_id"]) for job in jobs]

    assert {job["message_id"] for job in jobs} == {f"m-{n}" for n in range(60)}
    assert len(jobs) == 60
    assert {job["status"] for job in ended} == {"completed"}


@pytest.mark.requirement("Q1")
async def test_the_name_of_the_queue_is_a_setting(database):
    async with engine(database, job_queue_name="other-jobs") as running:
        await running.ledger.enqueue_message("elsewhere", QUEUE, MESSAGE)
        await running.ledger.enqueue_message("here", "other-jobs", MESSAGE)

        async def has_job():
            return await running.rows("SELECT * FROM dagapp.dag_jobs")

        (job,) = await until(has_job)
        await running.wait(job["job_id"])
        left = await running.rows("SELECT message_id FROM dagapp.dag_job_messages")

    assert job["message_id"] == "here"
    assert [row["message_id"] for row in left] == ["elsewhere"]


TWO_QUEUES = """
    workflow_id: two_queues
    version: 1
    nodes:
      start: {type: start, next: [light, heavy]}
      light: {handler: echo, queue: functionapp-tasks, next: end}
      heavy: {handler: echo, queue: container-tasks, next: end}
      end: {type: end}
    """


@pytest.mark.requirement("Q1")
async def test_a_node_runs_on_a_worker_of_its_queue(database):
    async with engine(database, workers=0) as running:
        light = await running.start_worker(["functionapp-tasks"])
        heavy = await running.start_worker(["container-tasks"])
        job = await running.run(workflow(TWO_QUEUES))
        tasks = {task["node_id"]: task for task in await running.tasks(job["job_id"])}

    assert job["status"] == "completed"
    assert tasks["light"]["worker_id"] == light.worker_id
    assert tasks["heavy"]["worker_id"] == heavy.worker_id


@pytest.mark.requirement("Q1")
async def test_an_unknown_queue_fails_the_node(database):
    definition = workflow("""
        workflow_id: lost_queue
        version: 1
        nodes:
          start: {type: start, next: say}
          say: {handler: echo, queue: no-such-queue, retry: {max_attempts: 0}, next: end}
          end: {type: end}
        """)

    async with engine(database, unknown_handler_timeout_sec=0) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert nodes["say"]["error"]["code"] == "queue.unknown"
    assert "no-such-queue" in job["error_message"]


@pytest.mark.requirement("Q2")
async def test_a_claimed_task_has_the_fields_of_the_specified_message(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test", message="hi")

        async def is_queued():
            return [t for t in await running.tasks(job_id) if t["status"] == "queued"]

        (task,) = await until(is_queued)
        demand = Demand((task["queue"],), light_handlers=("echo",), light=1)
        (message,) = (await running.ledger.exchange(job_id, (), demand, lease_seconds=30)).claimed

    assert message._asdict() == {
        "task_id": task_id(job_id, "echo", 1),
        "job_id": job_id,
        "node_id": "echo",
        "attempt": 1,
        "handler": "echo",
        "params": {"message": "hi"},
        "queue": "functionapp-tasks",
        "timeout_seconds": 3600,
        "retry_count": 0,
        "losses": 0,
        "params_ref": None,
        "traceparent": None,
    }
    assert message.task_id == f"{job_id}_echo_1"


@pytest.mark.requirement("Q2")
async def test_a_higher_priority_is_claimed_first(database):
    async with engine(database, workers=0) as running:
        ranks = [0, 3, 10, 0, 7]
        job_ids = await running.submit_all([Submission(workflow_id="echo_test", priority=rank) for rank in ranks])

        async def all_are_queued():
            return await running.value("SELECT count(*) = 5 FROM dagapp.dag_tasks WHERE status = 'queued'")

        await until(all_are_queued)
        await running.start_worker(worker_slots=1)
        for job_id in job_ids:
            await running.wait(job_id)
        started = await running.rows("SELECT priority FROM dagapp.dag_tasks ORDER BY started_at")

    assert [row["priority"] for row in started] == [10, 7, 3, 0, 0]


@pytest.mark.requirement("Q1")
async def test_an_idempotency_key_names_one_job_for_the_queue_and_the_api(database):
    keyed = {**MESSAGE, "idempotency_key": "k-1", "submitted_by": "ada"}
    other = {**keyed, "input_params": {"message": "other"}}
    async with engine(database, orchestrators=2) as running:
        response = await submit_once(running.ledger, running.library, Submission.model_validate(keyed))
        for number, body in enumerate((keyed, other, keyed)):
            await running.ledger.enqueue_message(f"m-{number}", QUEUE, body)
        running.notifier.notify(JOBS)
        await _wait_until_empty(running)
        jobs, letters = await running.rows("SELECT * FROM dagapp.dag_jobs"), await _letters(running)
        await running.wait(response.job_id)

    assert [job["job_id"] for job in jobs] == [response.job_id]
    assert [(letter["message_id"], letter["reason"]) for letter in letters] == [("m-1", "KeyConflict")]


@pytest.mark.requirement("Q1")
async def test_messages_for_idempotent_workflows_need_no_key(database):
    definition = workflow("""
        workflow_id: once
        idempotent: true
        inputs: {n: {type: integer}}
        nodes:
          start: {type: start, next: end}
          end: {type: end}
        """)
    async with engine(database) as running:
        running.add(definition)
        for number, value in enumerate((1, 1, 2)):
            await running.ledger.enqueue_message(f"m-{number}", QUEUE, {"workflow_id": "once", "inputs": {"n": value}})
        running.notifier.notify(JOBS)
        await _wait_until_empty(running)
        jobs = await running.rows("SELECT * FROM dagapp.dag_jobs")
        for job in jobs:
            await running.wait(job["job_id"])

    assert sorted(job["input_params"]["n"] for job in jobs) == [1, 2]


@pytest.mark.requirement("Q1")
async def test_a_refused_message_becomes_one_dead_letter_however_often_it_arrives(database):
    async with engine(database, orchestrators=3) as running:
        stored = 0
        while stored < 20:
            stored += await running.ledger.enqueue_message("bad", QUEUE, {**MESSAGE, "priority": "high"})
            running.notifier.notify(JOBS)
        await _wait_until_empty(running)
        letters = await _letters(running)

    assert [(letter["message_id"], letter["reason"]) for letter in letters] == [("bad", "Malformed")]


@pytest.mark.requirement("Q1")
async def test_a_message_with_a_forbidden_callback_url_is_refused(database):
    async with engine(database) as running:
        body = {**MESSAGE, "callback_url": "http://169.254.169.254/latest"}
        await running.ledger.enqueue_message("bad", QUEUE, body)
        await _wait_until_empty(running)
        letters = await _letters(running)

    assert [(letter["reason"], "callback_url" in letter["description"]) for letter in letters] == [
        ("InvalidSubmission", True)
    ]
