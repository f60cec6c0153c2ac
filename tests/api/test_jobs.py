"""Jobs over HTTP: submissions, lists, and all views of a job."""

import itertools
from typing import Any
from uuid import UUID, uuid4

import pytest

from dagmaster.database.reads.jobs import JobReads
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import Job, Submission
from tests.api.serving import V1, api, ok, pages_of
from tests.engine.harness import engine, open_gate, until, workflow

FAMILY = """
    workflow_id: family
    inputs: {count: {type: integer, default: 12}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, stage: prepare, params: {count: "{{ inputs.count }}"}, next: split}
      split:
        type: fan_out
        stage: work
        source: "{{ nodes.prepare.output.items }}"
        label: "number {{ index }}"
        tolerate: 100%
        task:
          handler: give
          params: {value: "{{ item }}", fail: "{{ index == 3 }}", message: three}
          retry: {max_attempts: 1, initial_delay_seconds: 0.01}
        next: gather
      gather: {type: fan_in, stage: work, next: end}
      end: {type: end}
"""

ONCE = """
    workflow_id: once
    inputs: {n: {type: integer, required: true}}
    nodes:
      start: {type: start, next: work}
      work: {handler: gate, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("O1")
async def test_a_job_is_submitted_and_its_result_is_read(database):
    async with engine(database) as running, api(database, running) as client:
        response = await client.post(
            f"{V1}/jobs",
            json={"workflow_id": "hello_world", "input_params": {"name": "Ada"}, "submitted_by": "me", "priority": 7},
        )
        job_id = response.json()["job_id"]
        await running.wait(UUID(job_id))
        shown = await ok(client.get(response.headers["location"]))

    assert response.status_code == 202
    assert response.json()["status"] == "accepted"
    assert response.headers["location"] == f"{V1}/jobs/{job_id}"
    assert shown["job"]["result_data"] == {"message": "Hello, Ada!"}
    assert (shown["job"]["status"], shown["job"]["priority"], shown["is_over"]) == ("completed", 7, True)
    assert "claim_token" not in shown["job"]
    assert [node["node_id"] for node in shown["nodes"]] == ["start", "greet", "repeat", "end"]
    assert {node["type"] for node in shown["nodes"]} == {"start", "task", "end"}
    assert shown["seconds"] > 0


@pytest.mark.requirement("E26")
async def test_a_job_shows_counts_of_children_and_stages(database):
    async with engine(database) as running, api(database, running) as client:
        job = await running.run(workflow(FAMILY))
        shown = await ok(client.get(f"{V1}/jobs/{job['job_id']}"))

    split = next(node for node in shown["nodes"] if node["node_id"] == "split")
    stages = {stage["name"]: stage for stage in shown["stages"]}
    assert split["children"] == {
        "total": 12,
        "done": 11,
        "running": 0,
        "retrying": 0,
        "waiting": 0,
        "failed": 1,
        "cancelled": 0,
    }
    assert split["handler"] == "give"
    assert (stages["work"]["children"], stages["work"]["children_failed"]) == (12, 1)
    assert stages["prepare"]["seconds"] is not None
    assert [node["node_id"] for node in shown["failed"]] == ["split"]
    assert len(shown["nodes"]) == 5


@pytest.mark.requirement("O1")
async def test_nodes_children_and_timeline_are_listed_in_pages(database):
    async with engine(database) as running, api(database, running) as client:
        job = await running.run(workflow(FAMILY))
        path = f"{V1}/jobs/{job['job_id']}"
        nodes = await pages_of(client, f"{path}/nodes", limit=2)
        children = await pages_of(client, f"{path}/nodes", parent="split", limit=5)
        failed = await pages_of(client, f"{path}/nodes", parent="split", status="failed")
        bars = await pages_of(client, f"{path}/timeline", limit=4)
        failed_bars = await pages_of(client, f"{path}/timeline", status="failed")
        unknown = await client.get(f"{path}/nodes", params={"parent": "prepare"})

    assert [len(page) for page in nodes] == [2, 2, 1]
    assert [node["node_id"] for node in itertools.chain(*nodes)] == ["start", "prepare", "split", "gather", "end"]
    assert [len(page) for page in children] == [5, 5, 2]
    assert [node["fan_out_index"] for node in itertools.chain(*children)] == list(range(12))
    assert [node["label"] for page in failed for node in page] == ["number 3"]
    tasks = [(bar["node_id"], bar["attempt"]) for bar in itertools.chain(*bars)]
    assert len(tasks) == len(set(tasks)) == 1 + 12 + 1
    assert all(bar["queued_at"] <= bar["started_at"] <= bar["finished_at"] for bar in itertools.chain(*bars))
    assert [(bar["parent_node_id"], bar["attempt"]) for bar in failed_bars[0]] == [("split", 1), ("split", 2)]
    assert unknown.status_code == 404
    assert unknown.json()["hint"] == "fan_outs are: split"


async def write_log(ctx: Any) -> None:
    ctx.logger.info("working", step=1)


@pytest.mark.requirement("O1")
async def test_a_node_shows_its_attempts_with_their_log_lines(database):
    text = FAMILY.replace("next: end}", "next: write_log}\n      write_log: {handler: write_log, next: end}")
    handlers = [Registration("write_log", "tests.api.test_jobs:write_log")]
    async with engine(database, handlers=handlers) as running, api(database, running) as client:
        job = await running.run(workflow(text))
        path = f"{V1}/jobs/{job['job_id']}/nodes"
        child = await ok(client.get(f"{path}/split__3"))
        parent = await ok(client.get(f"{path}/prepare"))
        task = await ok(client.get(f"{path}/write_log"))
        missing = await client.get(f"{path}/nothing")

    assert [attempt["attempt"] for attempt in child["attempts"]] == [2, 1]
    assert all(attempt["error"]["message"] == "three" for attempt in child["attempts"])
    assert child["attempts"][0]["params"] == {"value": 3, "fail": True, "message": "three"}
    assert (child["type"], child["stage"]) == ("task", "work")
    assert parent["attempts"][0]["accepted"] is True
    (line,) = task["attempts"][0]["log"]
    assert (line["number"], line["level"], line["text"]) == (1, "info", "working step=1")
    assert parent["node"]["output"] == parent["attempts"][0]["output"]
    assert missing.json()["code"] == "node.not-found"


@pytest.mark.requirement("E4")
async def test_events_are_listed_in_order_and_in_pages(database):
    async with engine(database) as running, api(database, running) as client:
        job = await running.run("hello_world")
        path = f"{V1}/jobs/{job['job_id']}/events"
        pages = await pages_of(client, path, limit=5)
        of_greet = await pages_of(client, path, node_id="greet")

    events = list(itertools.chain(*pages))
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["event_type"], events[-1]["event_type"]) == ("job_created", "job_completed")
    assert {event["node_id"] for event in of_greet[0]} == {"greet"}


@pytest.mark.requirement("O1")
async def test_jobs_are_filtered_and_paged(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        bodies = [
            Submission(
                workflow_id="hello_world" if n % 2 else "echo_test",
                submitted_by=f"person-{n % 3}",
                correlation_id=f"c-{n}",
            )
            for n in range(10)
        ]
        for submission in bodies:
            await running.submit_all([submission])
        newest_first = [
            row["job_id"] for row in await running.rows("SELECT * FROM dagapp.dag_jobs ORDER BY job_id DESC")
        ]
        middle = await running.value("SELECT created_at FROM dagapp.dag_jobs ORDER BY job_id DESC OFFSET 4 LIMIT 1")
        pages = await pages_of(client, f"{V1}/jobs", limit=4)
        hello = await pages_of(client, f"{V1}/jobs", workflow_id="hello_world", limit=2)
        mine = await pages_of(client, f"{V1}/jobs", submitted_by="person-1")
        one = await pages_of(client, f"{V1}/jobs", correlation_id="c-7")
        pending = await pages_of(client, f"{V1}/jobs", status="pending", limit=200)
        running_jobs = await pages_of(client, f"{V1}/jobs", status="running")
        later = await pages_of(client, f"{V1}/jobs", created_after=middle.isoformat())
        earlier = await pages_of(client, f"{V1}/jobs", created_before=middle.isoformat())

    assert [len(page) for page in pages] == [4, 4, 2]
    assert [UUID(job["job_id"]) for page in pages for job in page] == newest_first
    assert [len(page) for page in hello] == [2, 2, 1]
    assert len(mine[0]) == 3
    assert [job["correlation_id"] for job in one[0]] == ["c-7"]
    assert (len(pending[0]), len(running_jobs[0])) == (10, 0)
    assert (len(later[0]), len(earlier[0])) == (5, 5)


@pytest.mark.requirement("E16")
async def test_the_response_to_a_repeated_submission_has_the_state_of_the_existing_job(database):
    async with engine(database) as running:
        running.add(workflow(ONCE))
        async with api(database, running) as client:
            body = {"workflow_id": "once", "input_params": {"n": 1}, "idempotency_key": "k"}
            first = await client.post(f"{V1}/jobs", json=body)
            second = await client.post(f"{V1}/jobs", json=body)
            other = await client.post(f"{V1}/jobs", json={**body, "input_params": {"n": 2}})
            resumed = await client.post(f"{V1}/jobs", params={"resume": True}, json=body)
            open_gate(UUID(first.json()["job_id"]))
            await running.wait(UUID(first.json()["job_id"]))
            done = await client.post(f"{V1}/jobs", json=body)
            forced = await client.post(f"{V1}/jobs", params={"force": True}, json=body)
            open_gate(UUID(forced.json()["job_id"]))
            await running.wait(UUID(forced.json()["job_id"]))

    assert (first.status_code, second.status_code, done.status_code, forced.status_code) == (202, 200, 200, 202)
    assert (second.json()["status"], done.json()["status"]) == ("already_processing", "already_completed")
    assert done.json()["result_data"] == {"work": {"passed": "work"}}
    assert second.headers["location"] == first.headers["location"]
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")
    assert (resumed.status_code, resumed.json()["status"]) == (200, "already_processing")
    assert forced.json()["job_id"] != first.json()["job_id"]


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("part", ["", "/nodes", "/nodes/x", "/events", "/timeline", "/waiting", "/events/stream"])
async def test_every_part_of_an_unknown_job_is_not_found(shared_database, part):
    async with api(shared_database) as client:
        response = await client.get(f"{V1}/jobs/{uuid4()}{part}")

    assert response.status_code == 404
    assert response.json()["code"] == "job.not-found"


@pytest.mark.requirement("E1")
async def test_a_fan_out_with_running_children_is_shown_as_running(database):
    text = FAMILY.replace("handler: give", "handler: gate").replace("workflow_id: family", "workflow_id: gates")
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit(workflow(text))

        async def all_run():
            shown = await ok(client.get(f"{V1}/jobs/{job_id}"))
            split = next(node for node in shown["nodes"] if node["node_id"] == "split")
            return split if split["children"] and split["children"]["running"] == 12 else None

        split = await until(all_run)
        open_gate(job_id)
        await running.wait(job_id)

    assert (split["state"], split["children"]["done"], split["children"]["waiting"]) == ("running", 0, 0)


async def test_a_job_that_ends_while_it_is_read_is_shown_with_its_end(database, monkeypatch):
    """A client that waits for the end expects the result in the same response."""
    async with engine(database) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")
        read = JobReads.job

        async def slow(reads: JobReads, job_id: UUID) -> Job:
            job = await read(reads, job_id)
            await running.wait(job_id)
            return job

        monkeypatch.setattr(JobReads, "job", slow)
        shown = await ok(client.get(f"{V1}/jobs/{job_id}"))

    assert (shown["is_over"], shown["job"]["status"]) == (True, "completed")
    assert shown["job"]["result"] is not None
