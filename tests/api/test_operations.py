"""The routes for operators: instances, queues, dead letters, the schema, workflows, and reports over HTTP."""

import asyncio
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from dagmaster.api import health
from dagmaster.database.ledger.protocol import Demand
from dagmaster.database.reads.installation import Liveness
from dagmaster.jobs.model import Submission
from dagmaster.testing.virtual import virtual_time
from tests.api.serving import V1, api, ok, pages_of
from tests.engine.harness import engine, open_gate, until, workflow

GATED = """
    workflow_id: gated
    nodes:
      start: {type: start, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("O1")
async def test_orchestrators_and_workers_show_what_they_do(database):
    async with engine(database, orchestrators=2) as running, api(database, running) as client:
        job_id = await running.submit(workflow(GATED))
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))
        orchestrators = await pages_of(client, f"{V1}/orchestrators", limit=1)
        (workers,) = await pages_of(client, f"{V1}/workers")
        open_gate(job_id)
        await running.wait(job_id)

    assert [len(page) for page in orchestrators] == [1, 1]
    assert all(page[0]["is_alive"] and page[0]["heartbeat_age_seconds"] < 2 for page in orchestrators)
    assert all("software_version" in page[0] for page in orchestrators)
    owned = [job for page in orchestrators for job in page[0]["jobs"]]
    assert [(job["job_id"], job["workflow_id"], job["status"]) for job in owned] == [(str(job_id), "gated", "running")]
    assert sum(page[0]["job_count"] for page in orchestrators) == 1
    (worker,) = workers
    assert worker["is_alive"]
    assert "gate" in worker["handlers"]
    assert worker["queues"] == list(running.settings.worker_queue)
    assert worker["software_version"]
    assert worker["running_count"] == 1
    (task,) = worker["running"]
    assert (task["task_id"], task["handler"]) == (f"{job_id}_busy_1", "gate")
    assert task["started_at"] is not None


@pytest.mark.requirement("O1")
async def test_instances_without_heartbeats_are_listed_as_not_alive_and_the_list_of_their_jobs_is_limited(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        await running.rows(
            "INSERT INTO dagapp.workers (worker_id, host, pid, software_version, worker_type, queues, handlers, "
            "heartbeat_at) "
            "VALUES (gen_random_uuid(), 'a', 1, '1', 'general', '{q}', '{h}', dagapp.clock() - interval '1 hour')"
        )
        await running.rows(
            "INSERT INTO dagapp.orchestrators (owner_id, host, pid, software_version, heartbeat_at) "
            "VALUES (gen_random_uuid(), 'a', 1, '1', dagapp.clock() - interval '1 hour')"
        )
        await running.submit_all([Submission(workflow_id="hello_world")] * 30)
        await running.rows("UPDATE dagapp.dag_jobs SET owner_id = (SELECT owner_id FROM dagapp.orchestrators)")
        ((worker,),) = await pages_of(client, f"{V1}/workers")
        ((orchestrator,),) = await pages_of(client, f"{V1}/orchestrators")

    assert not worker["is_alive"]
    assert not orchestrator["is_alive"]
    assert 3590 < orchestrator["heartbeat_age_seconds"] < 3700
    assert (orchestrator["job_count"], len(orchestrator["jobs"])) == (30, 20)


@pytest.mark.requirement("E19")
async def test_queues_show_their_depth_and_are_paused_and_opened(database):
    async with engine(database, workers=0) as running, api(database, running) as client:
        paused = await ok(client.put(f"{V1}/queues/functionapp-tasks", json={"is_paused": True}))
        job_id = await running.submit("hello_world")
        await running.ledger.enqueue_message("m-1", "elsewhere", {})
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'queued'"))
        await running.start_worker()
        await asyncio.sleep(0.5)
        (queues,) = await pages_of(client, f"{V1}/queues")
        opened = await ok(client.put(f"{V1}/queues/functionapp-tasks", json={"max_running": 3}))
        job = await running.wait(job_id)

    by_name = {queue["queue"]: queue for queue in queues}
    assert paused["is_paused"]
    assert set(by_name) == {"dag-jobs", "dag-worker-tasks", "functionapp-tasks", "container-tasks"}
    assert by_name["functionapp-tasks"]["depth"] == 1
    assert by_name["functionapp-tasks"]["oldest_age_seconds"] > 0.4
    assert by_name["functionapp-tasks"]["live_workers"] == 1
    assert by_name["dag-jobs"]["kind"] == "submissions"
    assert by_name["container-tasks"]["oldest_age_seconds"] is None
    assert (opened["max_running"], opened["is_paused"]) == (3, False)
    assert job["status"] == "completed"


@pytest.mark.requirement("E19")
async def test_two_users_change_different_settings_of_a_queue_and_both_changes_are_kept(database):
    async with engine(database, workers=0) as running, api(database, running) as client:
        queue = f"{V1}/queues/container-tasks"
        limited = await ok(client.patch(queue, json={"max_running": 3}))
        paused = await ok(client.patch(queue, json={"is_paused": True}))
        lifted = await ok(client.patch(queue, json={"max_running": None}))
        replaced = await ok(client.put(queue, json={"max_running": 5}))
        unknown = await client.patch(f"{V1}/queues/nothing", json={"is_paused": True})

    limits = [(response["max_running"], response["is_paused"]) for response in (limited, paused, lifted, replaced)]
    assert limits == [(3, False), (3, True), (None, True), (5, False)]
    assert unknown.status_code == 404


@pytest.mark.requirement("O1")
async def test_stats_and_health_report_the_state_of_the_platform(database):
    async with engine(database, orphan_threshold_sec=60.0) as running, api(database, running) as client:
        await running.run("hello_world")
        stats = await ok(client.get(f"{V1}/stats"))
        health = await ok(client.get(f"{V1}/health"))
        ready = await ok(client.get("/readyz"))

    assert (stats["jobs"]["completed"], stats["jobs"]["failed"]) == (1, 0)
    assert stats["tasks"] == [{"queue": "functionapp-tasks", "status": "succeeded", "count": 2}]
    assert stats["recent"][0]["workflow_id"] == "hello_world"
    assert stats["recent"][0]["p50_seconds"] > 0
    assert (health["live_orchestrators"], health["live_workers"]) == (1, 1)
    assert [check["name"] for check in ready["checks"]] == ["database", "schema", "loop"]
    assert ready["is_ready"]


@pytest.mark.requirement("O1", "D4")
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ("UPDATE dagapp.schema_info SET software_version = '99.1'", "it has all columns and functions"),
        ("ALTER TABLE dagapp.dag_jobs ADD COLUMN of_the_next_release text", "it has all columns"),
        ("ALTER TABLE dagapp.dag_jobs DROP COLUMN correlation_id CASCADE", "it lacks dag_jobs.correlation_id"),
        ("DROP FUNCTION dagapp.word_query", "it lacks word_query()"),
    ],
)
async def test_an_instance_is_ready_on_another_schema_that_has_its_columns_and_functions(database, change, detail):
    async with engine(database, orphan_threshold_sec=60.0) as running, api(database, running) as client:
        await running.rows("UPDATE dagapp.schema_info SET fingerprint = 'of another release'")
        await running.rows(change)
        ready = await client.get("/readyz")

    (schema,) = (check for check in ready.json()["checks"] if check["name"] == "schema")
    assert detail in schema["detail"]
    assert ready.status_code == (503 if "lacks" in detail else 200)


@pytest.mark.requirement("O1")
@virtual_time
async def test_a_comparison_of_schemas_that_takes_too_long_is_reported_within_the_time_of_a_probe():
    """Kubernetes waits 5 seconds for a probe, so both statements share one limit."""

    class SlowReads:
        async def liveness(self, *_: object) -> Liveness:
            await asyncio.sleep(2)
            return Liveness("of another release", "dagmaster", None, 0, 0)

        async def deployed_parts(self) -> list[str]:
            return await asyncio.Future()

    services = SimpleNamespace(orchestrator=None, alive_within=60.0, reads=SlowReads())
    started = asyncio.get_running_loop().time()
    report = await health._health(services)
    seconds = asyncio.get_running_loop().time() - started

    assert seconds == pytest.approx(health.TIMEOUT_SECONDS)
    assert not report.is_ready
    assert report.checks[1].detail.endswith("cannot be read: no response within 3 s")
    assert "dagmaster db status" in report.checks[1].hint


@pytest.mark.requirement("O1")
async def test_an_instance_whose_loop_has_ended_is_not_ready(database):
    async with engine(database, verify_history=False) as running, api(database, running) as client:
        running.orchestrators[0].stop()
        await until(lambda: _is_stopped(running))
        stopped = await ok(client.get("/readyz"), 503)

    assert [check["name"] for check in stopped["checks"] if not check["is_ok"]] == ["loop"]


@pytest.mark.requirement("O1")
async def test_an_instance_whose_loop_is_stuck_is_not_ready_and_then_not_alive(database):
    """The loop waits for an event that never happens; the process still responds."""
    async with engine(database) as running, api(database, running) as client:
        (orchestrator,) = running.orchestrators
        before = await ok(client.get("/livez"))
        is_free = asyncio.Event()
        find = orchestrator._find_pending_work
        orchestrator._find_pending_work = lambda **_: is_free.wait()

        async def answers(path, status):
            response = await client.get(path)
            return response.json() if response.status_code == status else None

        unready = await until(lambda: answers("/readyz", 503))
        while_unready = await client.get("/livez")
        stuck = await until(lambda: answers("/livez", 503))
        orchestrator._find_pending_work = find
        is_free.set()
        alive_again = await until(lambda: answers("/livez", 200))

    assert before["status"] == "alive"
    assert [check["name"] for check in unready["checks"] if not check["is_ok"]] == ["loop"]
    assert "no progress" in unready["checks"][-1]["detail"]
    assert while_unready.status_code == 200
    assert stuck["status"] == "stuck"
    assert stuck["silent_seconds"] > running.settings.orphan_threshold_sec
    assert alive_again["status"] == "alive"


@pytest.mark.requirement("O1")
async def test_without_a_database_an_instance_is_alive_and_not_ready():
    """A restart would not help, so the instance stays alive."""
    async with api("postgresql://nobody@127.0.0.1:1/nothing") as client:
        alive = await ok(client.get("/livez"))
        unready = await ok(client.get("/readyz"), 503)
        health = await ok(client.get(f"{V1}/health"))

    assert alive["status"] == "alive"
    assert [check["name"] for check in unready["checks"] if not check["is_ok"]] == ["database"]
    assert not health["is_ready"]


async def _is_stopped(running):
    return not await running.rows("SELECT 1 FROM dagapp.orchestrators")


@pytest.mark.requirement("Q4")
async def test_dead_letters_are_listed_shown_and_replayed(database):
    async with engine(database, unknown_handler_timeout_sec=0) as running:
        for number in range(5):
            await running.ledger.enqueue_message(f"m-{number}", "dag-jobs", {"workflow_id": "late", "priority": number})
        await running.ledger.enqueue_message("m-bad", "dag-jobs", {"workflow_id": "hello_world", "priority": 99})
        await until(lambda: _letters(running, 6))
        running.add(workflow(GATED.replace("gated", "late")))
        async with api(database, running) as client:
            pages = await pages_of(client, f"{V1}/dead-letters", limit=4)
            malformed = await pages_of(client, f"{V1}/dead-letters", reason="Malformed")
            letter = next(letter for page in pages for letter in page if letter["message_id"] == "m-3")
            path = f"{V1}/dead-letters/{letter['dead_letter_id']}"
            shown = await ok(client.get(path))
            replayed = await ok(client.post(f"{path}/replay"), 202)
            again = await client.post(f"{path}/replay")
            (job,) = await until(lambda: running.rows("SELECT * FROM dagapp.dag_jobs WHERE message_id = 'm-3'"))
            open_gate(job["job_id"])
            await running.wait(job["job_id"])

    assert [len(page) for page in pages] == [4, 2]
    assert len({letter["dead_letter_id"] for page in pages for letter in page}) == 6
    assert [letter["message_id"] for letter in malformed[0]] == ["m-bad"]
    assert (shown["reason"], shown["body"]["priority"]) == ("WorkflowNotFound", 3)
    assert (shown["is_replayable"], shown["job_id"]) == (True, None)
    assert replayed["message_id"] == "m-3"
    assert (again.status_code, again.json()["code"]) == (404, "dead-letter.not-found")
    assert job["priority"] == 3


@pytest.mark.requirement("Q4")
async def test_replaying_a_poison_task_resumes_its_job(database):
    poison = GATED.replace("gated", "poison").replace("handler: gate", "handler: crash, params: {code: 3}")
    async with engine(database, max_losses=1) as running, api(database, running) as client:
        job = await running.run(workflow(poison))
        ((letter,),) = await pages_of(client, f"{V1}/dead-letters", reason="PoisonTask")
        replayed = await ok(client.post(f"{V1}/dead-letters/{letter['dead_letter_id']}/replay"), 202)
        busy = await client.post(f"{V1}/dead-letters/{letter['dead_letter_id']}/replay")
        again = await running.wait(job["job_id"])
        letters = await pages_of(client, f"{V1}/dead-letters", reason="PoisonTask")

    assert job["status"] == "failed"
    assert (letter["job_id"], letter["node_id"]) == (str(job["job_id"]), "busy")
    assert letter["is_replayable"]
    assert letter["body"]["params"] == {"code": 3}
    assert "exit code" in letter["description"]
    assert replayed["job_id"] == str(job["job_id"])
    assert busy.status_code == 404
    assert (again["status"], again["resume_count"]) == ("failed", 1)
    # The task killed its worker again: this is another dead letter.
    assert [each["dead_letter_id"] != letter["dead_letter_id"] for page in letters for each in page] == [True]


async def _letters(running, count):
    return await running.value("SELECT count(*) = %s FROM dagapp.dag_dead_letters", count)


@pytest.mark.requirement("D4")
async def test_the_schema_is_inspected_deployed_and_rebuilt(database):
    async with api(database, allow_rebuild=True) as client:
        submitted = await ok(client.post(f"{V1}/jobs", json={"workflow_id": "hello_world"}), 202)
        status = await ok(client.get(f"{V1}/bootstrap/status"))
        tables = await ok(client.get(f"{V1}/bootstrap/tables"))
        ddl = await client.get(f"{V1}/bootstrap/ddl")
        migrated = await ok(client.post(f"{V1}/bootstrap/migrate"))
        unconfirmed = await client.post(f"{V1}/bootstrap/rebuild", json={"confirm": "something"})
        kept = await client.get(f"{V1}/jobs/{submitted['job_id']}")
        name = database.partition("/test_")[2].partition("?")[0]
        rebuilt = await ok(client.post(f"{V1}/bootstrap/rebuild", json={"confirm": f"test_{name}"}))
        deleted = await client.get(f"{V1}/jobs/{submitted['job_id']}")

    assert (status["deployed"], status["is_current"], status["pending"]) == (True, True, [])
    assert tables["tables"]["dag_jobs"] == 1
    assert ddl.headers["content-type"].startswith("text/plain")
    assert "CREATE TABLE dagapp.dag_jobs" in ddl.text
    assert migrated == {"changes": [], "pending": [], "is_current": True, "done_by_another": False, "warnings": []}
    assert (unconfirmed.status_code, unconfirmed.json()["code"]) == (403, "bootstrap.not-confirmed")
    assert kept.status_code == 200
    assert rebuilt["is_current"]
    assert deleted.status_code == 404


@pytest.mark.requirement("E7")
async def test_a_worker_without_database_reports_over_http_and_late_reports_are_not_accepted(database):
    async with engine(database, workers=0) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")
        worker_id = uuid4()
        demand = Demand(("functionapp-tasks",), ("hello_world", "echo"), 1)

        async def claimed():
            return (await running.ledger.exchange(worker_id, [], demand, lease_seconds=60)).claimed

        (task,) = await until(claimed)
        report = {
            "task_id": task.task_id,
            "worker_id": str(worker_id),
            "status": "succeeded",
            "output": {"message": "from afar"},
        }
        foreign = await ok(client.post(f"{V1}/callbacks/task-result", json={**report, "worker_id": str(uuid4())}))
        first = await ok(client.post(f"{V1}/callbacks/task-result", json=report))
        again = await ok(client.post(f"{V1}/callbacks/task-result", json=report))
        (task,) = await until(claimed)
        failed = {"task_id": task.task_id, "worker_id": str(worker_id), "status": "failed"}
        silent = await client.post(f"{V1}/callbacks/task-result", json=failed)
        error = {"message": "the data is bad", "blame": "data"}
        second = await ok(client.post(f"{V1}/callbacks/task-result", json={**failed, "error": error}))
        job = await running.wait(job_id)
        shown = await ok(client.get(f"{V1}/jobs/{job_id}/nodes/repeat"))
        unknown = await ok(client.post(f"{V1}/callbacks/task-result", json={**report, "task_id": f"{uuid4()}_x_1"}))
        odd = await client.post(f"{V1}/callbacks/task-result", json={**report, "task_id": "x"})
        no_text = await client.post(f"{V1}/callbacks/task-result", json={**report, "task_id": f"{uuid4()}_x\0_1"})

    assert (foreign, first, again, second) == (
        {"accepted": False},
        {"accepted": True},
        {"accepted": True},
        {"accepted": True},
    )
    assert silent.json()["code"] == "task.no-error"
    assert job["status"] == "failed"
    assert shown["attempts"][0]["error"]["blame"] == "data"
    assert shown["attempts"][0]["params"] == {"message": "from afar"}
    assert unknown == {"accepted": False}
    assert (odd.json()["code"], no_text.json()["code"]) == ("task.bad-id", "value.not-text")


@pytest.mark.requirement("O1")
async def test_workflows_can_be_listed_shown_drawn_and_checked(shared_database):
    async with api(shared_database) as client:
        pages = await pages_of(client, f"{V1}/workflows", limit=3)
        shown = await ok(client.get(f"{V1}/workflows/hello_world"))
        graph = await ok(client.get(f"{V1}/workflows/demo/graph"))
        bad = (
            "workflow_id: x\nnodes:\n  start: {type: start, next: a}\n"
            "  a: {handler: nothing, nxt: end}\n  end: {type: end}\n"
        )
        checked = await ok(client.post(f"{V1}/workflows/validate", content=bad))
        fine = await ok(client.post(f"{V1}/workflows/validate", content=bad.replace("nothing, nxt", "echo, next")))

    ids = [workflow["workflow_id"] for page in pages for workflow in page]
    assert ids == sorted(ids)
    assert {"demo", "hello_world"} <= set(ids)
    assert shown["inputs_schema"]["properties"]["name"]["default"] == "world"
    assert shown["definition"]["nodes"]["greet"]["handler"] == "hello_world"
    assert {"source": "is_large", "target": "large_report", "kind": "all_of", "label": "true"} in graph["edges"]
    assert {"source": "small_report", "target": "summary", "kind": "any_of", "label": None} in graph["edges"]
    assert graph["mermaid"].startswith("flowchart TD")
    assert not checked["is_valid"]
    assert {(problem["line"], problem["node"]) for problem in checked["problems"]} == {(4, "a")}
    assert fine.pop("inputs_schema")["properties"] == {}
    assert fine == {"is_valid": True, "workflow_id": "x", "version": "1", "nodes": 3, "problems": []}


@pytest.mark.requirement("O1")
async def test_a_workflow_shows_which_inputs_are_reserved(database):
    text = (
        "workflow_id: x\ninputs: {a: {reserved: true, default: b}, c: {}}\n"
        "nodes:\n  start: {type: start, next: end}\n  end: {type: end}\n"
    )
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        checked = await ok(client.post(f"{V1}/workflows/validate", content=text))
        refused = await client.post(f"{V1}/jobs", json={"workflow_id": "x", "definition": text, "inputs": {"a": "z"}})

    assert checked["inputs_schema"]["properties"]["a"] == {
        "type": "string",
        "description": "",
        "default": "b",
        "readOnly": True,
    }
    assert "readOnly" not in checked["inputs_schema"]["properties"]["c"]
    assert (refused.status_code, refused.json()["code"]) == (400, "inputs.reserved")


@pytest.mark.requirement("E7")
async def test_two_instances_serve_the_same_job(database):
    """A request may be sent to any instance: a job that one accepted is shown by the other at once."""
    async with (
        engine(database, orchestrators=2) as running,
        api(database, running) as one,
        api(database, running) as other,
    ):
        submitted = await ok(one.post(f"{V1}/jobs", json={"workflow_id": "hello_world"}), 202)
        shown = await ok(other.get(f"{V1}/jobs/{submitted['job_id']}"))
        await running.wait(UUID(submitted["job_id"]))

    assert shown["job"]["job_id"] == submitted["job_id"]
