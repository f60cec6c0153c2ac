"""Many jobs with one request: a preview that changes nothing, a result for each job, and an entry in the audit log."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from httpx2 import AsyncClient

from dagmaster.client import AsyncClient as DagmasterClient
from dagmaster.client.models.bulk import BulkFilter, BulkRequest
from tests.api.serving import V1, api, app_of, ok, served
from tests.engine.harness import engine, open_gate, workflow

pytestmark = pytest.mark.requirement("O1")

GATE = """
    workflow_id: gates
    nodes:
      start: {type: start, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""
FAILING = """
    workflow_id: failing
    inputs: {fail: {type: boolean, default: true}}
    nodes:
      start: {type: start, next: one}
      one: {handler: echo, next: two}
      two: {handler: give, params: {fail: "{{ inputs.fail }}"}, retry: {max_attempts: 1}, next: end}
      end: {type: end}
"""


async def bulk(client: AsyncClient, status: int = 200, **request: Any) -> Any:
    return await ok(client.post(f"{V1}/jobs/bulk", json=request), status)


async def test_failed_jobs_are_resumed_by_a_filter_as_previewed(database):
    async with engine(database) as running, api(database, running) as client:
        failed = [(await running.run(workflow(FAILING)))["job_id"] for _ in range(3)]
        completed = (await running.run(workflow(FAILING), fail=False))["job_id"]
        chosen = {"workflow_id": ["failing"]}
        preview = await bulk(client, action="resume", filter=chosen, preview=True)
        untouched = [(await running.job(job_id))["resume_count"] for job_id in failed]
        report = await bulk(client, action="resume", filter=chosen, reason="the disk was full")
        for job_id in failed:
            await running.wait(job_id)
        resumed = [await running.job(job_id) for job_id in failed]
        events = await running.rows(
            "SELECT event_data FROM dagapp.dag_job_events WHERE event_type = 'job_resumed' ORDER BY job_id"
        )
        (entry,) = (await ok(client.get(f"{V1}/audit", params={"action": "jobs_resumed"})))["items"]

    assert (preview["is_preview"], preview["accepted"], untouched) == (True, 3, [0, 0, 0])
    assert [result["job_id"] for result in preview["results"]] == [str(job_id) for job_id in reversed(failed)]
    assert all(result["nodes"] == ["two", "end"] for result in preview["results"])
    assert (report["accepted"], report["refused"], report["is_complete"]) == (3, 0, True)
    assert [job["resume_count"] for job in resumed] == [1, 1, 1]
    assert len(events) == 3
    assert events[0]["event_data"] == {"by": "local", "why": "the disk was full"}
    assert (entry["actor"], entry["reason"], entry["detail"]["count"]) == ("local", "the disk was full", 3)
    assert entry["detail"]["filter"] == {"workflow_id": ["failing"]}
    assert str(completed) not in entry["detail"]["job_ids"]


async def test_each_job_that_cannot_be_changed_has_a_reason(database):
    async with engine(database) as running, api(database, running) as client:
        waiting = await running.submit(workflow(GATE))
        completed = (await running.run(workflow(FAILING), fail=False))["job_id"]
        unknown = uuid4()
        ids = [str(waiting), str(completed), str(unknown), str(waiting)]
        preview = await bulk(client, action="cancel", job_ids=ids, preview=True)
        first = await bulk(client, action="cancel", job_ids=ids)
        second = await bulk(client, action="cancel", job_ids=ids)
        await running.wait(waiting)
        retried = await bulk(client, action="retry", job_ids=ids, part={"node": "busy"}, preview=True)

    def outcomes(report: Any) -> list[tuple[str, str | None]]:
        return [(result["outcome"], result["code"]) for result in report["results"]]

    expected = [("accepted", None), ("refused", "job.ended"), ("refused", "job.not-found")]
    assert outcomes(preview) == outcomes(first) == expected
    assert outcomes(second)[0] == ("unchanged", None)
    assert [outcome for outcome, _ in outcomes(retried)] == ["accepted", "refused", "refused"]
    assert retried["results"][0]["nodes"] == ["busy", "end"]
    assert first["results"][1]["status"] == "completed"
    assert first["results"][2]["workflow_id"] is None


@pytest.mark.parametrize(
    "request_body",
    [
        {"action": "cancel"},
        {"action": "cancel", "filter": {}},
        {"action": "cancel", "job_ids": []},
        {"action": "cancel", "job_ids": [str(uuid4())], "filter": {"q": "x"}},
        {"action": "cancel", "job_ids": [str(uuid4())], "part": {"node": "x"}},
        {"action": "retry", "job_ids": [str(uuid4())]},
        {"action": "retry", "job_ids": [str(uuid4())], "part": {}},
        {"action": "delete", "job_ids": [str(uuid4())]},
        {"action": "cancel", "job_ids": [str(uuid4())] * 1001},
        {"action": "cancel", "filter": {"status": ["lost"]}},
    ],
)
async def test_an_invalid_bulk_request_is_refused(shared_database, request_body):
    async with api(shared_database) as client:
        await bulk(client, 422, **request_body)


async def test_a_filter_with_an_invalid_time_is_refused(shared_database):
    async with api(shared_database) as client:
        await bulk(client, 400, action="cancel", filter={"since": "yesterday-ish"})


async def test_each_accepted_one_of_concurrent_requests_resumes_the_job_once(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = (await running.run(workflow(FAILING)))["job_id"]
        reports = await asyncio.gather(*(bulk(client, action="resume", job_ids=[str(job_id)]) for _ in range(4)))
        await running.wait(job_id)
        resumed = (await running.job(job_id))["resume_count"]

    assert sum(report["accepted"] for report in reports) == resumed


async def test_the_python_client_changes_many_jobs(database):
    async with engine(database) as running, served(app_of(database, running)) as server:
        job_id = await running.submit(workflow(GATE))
        async with DagmasterClient(server.url) as client:
            request = BulkRequest(action="cancel", filter=BulkFilter(workflow_id=["gates"]))
            report = await client.change_jobs(request)
        open_gate(job_id)
        await running.wait(job_id)

    assert [(result.job_id, result.outcome) for result in report.results] == [(job_id, "accepted")]
