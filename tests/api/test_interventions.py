"""Cancel and resume over HTTP."""

from uuid import UUID, uuid4

import pytest

from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, open_gate, until, workflow

GATED = """
    workflow_id: gated
    nodes:
      start: {type: start, next: busy}
      busy: {handler: gate, next: after}
      after: {handler: noop, next: end}
      end: {type: end}
"""
FAILING = """
    workflow_id: failing
    idempotent: true
    nodes:
      start: {type: start, next: good}
      good: {handler: noop, next: bad}
      bad: {handler: fail, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""
WIDE = """
    workflow_id: wide
    nodes:
      start: {type: start, next: many}
      many:
        type: fan_out
        source: ITEMS
        max_parallel: 3
        task: {handler: gate}
        next: end
      end: {type: end}
""".replace("ITEMS", str(list(range(30))))
LOSING = """
    workflow_id: losing
    idempotent: true
    nodes:
      start: {type: start, next: many}
      many:
        type: fan_out
        source: [1, 2, 3, 4]
        tolerate: 1
        task: {handler: fail, retry: {max_attempts: 0}}
        next: end
      end: {type: end}
"""


@pytest.mark.requirement("E14")
async def test_a_cancel_shows_which_worker_acknowledged(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(GATED))
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))
        body = {"by": "someone else", "reason": "wrong file"}

        response = await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 10}, json=body), 202)
        shown = (await ok(client.get(f"{V1}/jobs/{job_id}")))["job"]
        read = await ok(client.get(f"{V1}/jobs/{job_id}/cancel"))
        again = await client.post(f"{V1}/jobs/{job_id}/cancel")
        unknown = await client.post(f"{V1}/jobs/{uuid4()}/cancel")

    assert (response["status"], response["is_over"]) == ("cancelled", True)
    assert (response["requested_by"], response["reason"]) == ("local", "wrong file")
    (task,) = response["tasks"]
    assert task["worker_id"] == str(running.workers[0].worker_id)
    assert task["requested_at"] <= task["acknowledged_at"] <= task["finished_at"]
    assert (shown["status"], shown["stopping"], shown["cancel_requested_by"]) == ("cancelled", "cancelled", "local")
    assert (again.status_code, again.json()) == (202, response)
    assert read == response
    assert (unknown.status_code, unknown.json()["code"]) == (404, "job.not-found")


@pytest.mark.requirement("E14")
async def test_a_second_cancel_request_changes_nothing(database):
    async with engine(database, workers=0) as running, api(database, running) as client:
        job_id = await running.submit(workflow(GATED))
        first = await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 0}, json={"reason": "a"}), 202)
        second = await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 0}, json={"reason": "b"}), 202)
        await running.wait(job_id)

    assert first["reason"] == "a"
    assert second["reason"] == "a"


@pytest.mark.requirement("E14")
async def test_a_job_that_has_already_ended_is_not_cancelled(database):
    async with engine(database) as running, api(database, running) as client:
        done = await running.run("hello_world")
        response = await client.post(f"{V1}/jobs/{done['job_id']}/cancel")

    assert (response.status_code, response.json()["code"]) == (409, "job.ended")


@pytest.mark.requirement("E14")
async def test_a_second_cancel_shows_only_its_own_tasks(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(GATED))
        url, tasks = f"{V1}/jobs/{job_id}", "SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"
        await until(lambda: running.rows(tasks))
        first = await ok(client.post(f"{url}/cancel", params={"wait": 10}), 202)
        await ok(client.post(f"{url}/resume"), 202)
        await until(lambda: running.rows(tasks))
        second = await ok(client.post(f"{url}/cancel", params={"wait": 10}), 202)

    assert [task["attempt"] for task in first["tasks"]] == [1]
    assert [task["attempt"] for task in second["tasks"]] == [2]


@pytest.mark.requirement("E7")
async def test_a_cancel_request_to_an_instance_that_does_not_own_the_job_is_carried_out_at_once(database):
    """The API runs without an orchestrator. The owner polls rarely, so it must be notified of the request."""
    async with (
        engine(database, orchestrators=2, orchestrator_poll_interval=30) as running,
        api(database) as client,
    ):
        job_id = await running.submit(workflow(GATED))
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))

        await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 0}), 202)

        statement = (
            "SELECT stop_requested_at - (SELECT cancel_requested_at FROM dagapp.dag_jobs) AS after "
            "FROM dagapp.dag_tasks"
        )
        (stop,) = await until(lambda: running.rows(f"{statement} WHERE stop_requested_at IS NOT NULL"))
        await running.wait(job_id)

    assert stop["after"].total_seconds() < 1


@pytest.mark.requirement("E15")
async def test_a_resume_reports_which_nodes_run_and_a_dry_run_runs_none(database):
    async with engine(database) as running, api(database, running) as client:
        failed = await running.run(workflow(FAILING))
        url = f"{V1}/jobs/{failed['job_id']}/resume"
        dry_run = await ok(client.post(url, params={"dry_run": True}), 202)
        still = await running.job(failed["job_id"])
        resumed = await ok(client.post(url, json={"by": "ada"}), 202)
        again = await running.wait(failed["job_id"])
        unknown = await client.post(f"{V1}/jobs/{uuid4()}/resume", params={"dry_run": True})

    assert (dry_run["status"], dry_run["nodes"], dry_run["children"]) == ("dry_run", ["bad", "end"], {})
    assert (still["status"], still["resume_count"]) == ("failed", 0)
    assert (resumed["status"], resumed["nodes"], resumed["resume_count"]) == ("resumed", ["bad", "end"], 1)
    assert (again["status"], again["resume_count"]) == ("failed", 1)
    assert unknown.status_code == 404


@pytest.mark.requirement("E15")
async def test_a_resume_counts_children_that_are_not_created_yet(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(WIDE))
        url = f"{V1}/jobs/{job_id}"
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running' HAVING count(*) = 3"))
        await ok(client.post(f"{url}/cancel", params={"wait": 10}), 202)
        dry_run = await ok(client.post(f"{url}/resume", params={"dry_run": True}), 202)
        resumed = await ok(client.post(f"{url}/resume"), 202)
        open_gate(job_id)
        done = await running.wait(job_id)
        ran = await running.value(
            "SELECT count(*)::int FROM dagapp.dag_node_states WHERE parent_node_id = 'many' AND status = 'completed'"
        )

    assert (dry_run["children"], resumed["children"]) == ({"many": 30}, {"many": 30})
    assert (done["status"], ran) == ("completed", 30)


@pytest.mark.requirement("E16")
async def test_a_stage_whose_children_failed_is_not_complete(database):
    async with engine(database) as running:
        running.add(
            workflow(LOSING), workflow(LOSING.replace("losing", "bearing").replace("tolerate: 1", "tolerate: 4"))
        )
        async with api(database, running) as client:
            responses, shown = {}, {}
            for name in ("losing", "bearing"):
                first = await ok(client.post(f"{V1}/jobs", json={"workflow_id": name}), 202)
                await running.wait(UUID(first["job_id"]))
                responses[name] = await ok(client.post(f"{V1}/jobs", json={"workflow_id": name}))
                shown[name] = await ok(client.get(f"{V1}/jobs/{first['job_id']}"))

    states = {name: {n["node_id"]: n["state"] for n in job["nodes"]} for name, job in shown.items()}
    assert (responses["losing"]["failed_stage"], responses["losing"]["completed_stages"]) == ("many", ["start"])
    assert states["losing"]["many"] == "failed"
    assert next(s["status"] for s in shown["losing"]["stages"] if s["name"] == "many") == "failed"
    assert (responses["bearing"]["status"], responses["bearing"]["failed_stage"]) == ("already_completed", None)
    assert responses["bearing"]["completed_stages"] == ["start", "many", "end"]
    assert states["bearing"]["many"] == "completed"


@pytest.mark.requirement("E15")
async def test_a_node_of_a_job_can_be_retried(database):
    async with engine(database) as running, api(database, running) as client:
        job = await running.run("echo_test", message="hi")
        url = f"{V1}/jobs/{job['job_id']}/retry"
        node = next(name for name, row in (await running.nodes(job["job_id"])).items() if row["attempt"])
        dry_run = await ok(client.post(url, params={"dry_run": True}, json={"node": node}), 202)
        response = await ok(client.post(url, json={"node": node, "by": "ada"}), 202)
        again = await running.wait(job["job_id"])
        both = await client.post(url, json={"node": node, "stage": "x"})
        unknown = await client.post(url, json={"node": "unknown"})

    assert dry_run["nodes"] == response["nodes"]
    assert node in response["nodes"]
    assert (again["status"], again["resume_count"]) == ("completed", 1)
    assert both.status_code == 422
    assert (unknown.status_code, unknown.json()["code"]) == (404, "node.not-found")


@pytest.mark.requirement("E16")
async def test_a_repeated_submission_resumes_the_failed_job(database):
    async with engine(database) as running:
        running.add(workflow(FAILING), workflow(GATED))
        async with api(database, running) as client:
            body = {"workflow_id": "failing"}
            first = await ok(client.post(f"{V1}/jobs", json=body), 202)
            job_id = UUID(first["job_id"])
            await running.wait(job_id)
            failed = await ok(client.post(f"{V1}/jobs", json=body))
            resumed = await ok(client.post(f"{V1}/jobs", params={"resume": True}, json=body), 202)
            await running.wait(job_id)

            keyed = {"workflow_id": "gated", "idempotency_key": "k"}
            gated = UUID((await ok(client.post(f"{V1}/jobs", json=keyed), 202))["job_id"])
            await until(
                lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE job_id = %s AND status = 'running'", gated)
            )
            await ok(client.post(f"{V1}/jobs/{gated}/cancel", params={"wait": 10}), 202)
            cancelled = await ok(client.post(f"{V1}/jobs", json=keyed))
            back = await ok(client.post(f"{V1}/jobs", params={"resume": True}, json=keyed), 202)
            open_gate(gated)
            done = await running.wait(gated)
            over = await ok(client.post(f"{V1}/jobs", params={"resume": True}, json=keyed))

    assert (failed["status"], failed["job_status"], failed["completed_stages"]) == (
        "previously_failed",
        "failed",
        ["start", "good"],
    )
    assert failed["failed_stage"] == "bad"
    assert (resumed["status"], resumed["job_id"], resumed["resume_count"]) == ("resumed", str(job_id), 1)
    assert (cancelled["status"], cancelled["job_status"]) == ("previously_failed", "cancelled")
    assert (back["status"], back["job_id"]) == ("resumed", str(gated))
    assert done["status"] == "completed"
    assert over["status"] == "already_completed"
