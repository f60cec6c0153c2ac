"""Outputs of any size over HTTP: complete, with their hash as ETag, and sent again only if they have changed."""

import hashlib
from uuid import uuid4

import orjson
import pytest

from dagmaster.database.ledger.protocol import Demand
from dagmaster.jobs.payload import INLINE_BYTES
from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, until, workflow

pytestmark = pytest.mark.requirement("E18")

SIZED = """
    workflow_id: sized
    inputs: {count: {type: integer}}
    nodes:
      start: {type: start, next: items}
      items: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: each}
      each:
        type: fan_out
        source: [1, 2, 3]
        tolerate: 1
        task: {handler: give, params: {value: "{{ [item, item] }}", fail: "{{ item == 2 }}"}, retry: {max_attempts: 0}}
        next: all
      all: {type: fan_in, aggregation: concat, next: end}
      end: {type: end}
"""


async def test_an_output_is_sent_with_its_hash_as_etag_and_not_sent_again_if_unchanged(database):
    async with engine(database) as running, api(database, running) as client:
        for count in (3, 60_000):
            job = await running.run(workflow(SIZED), count=count)
            path = f"{V1}/jobs/{job['job_id']}/nodes/items/output"
            response = await client.get(path)
            again = await client.get(path, headers={"If-None-Match": response.headers["etag"]})
            other = await client.get(path, headers={"If-None-Match": '"0000"'})
            detail = await ok(client.get(f"{V1}/jobs/{job['job_id']}/nodes/items"))

            assert response.json() == {"items": list(range(count)), "count": count}
            assert response.headers["etag"] == f'"{hashlib.sha256(response.content).hexdigest()}"'
            assert int(response.headers["content-length"]) == len(response.content)
            assert (again.status_code, again.content) == (304, b"")
            assert other.content == response.content
            assert (detail["output_url"] is not None) == (count > 3)
            assert detail["output_url"] is None or (await client.get(detail["output_url"])).content == response.content
            assert len(orjson.dumps(detail)) < INLINE_BYTES


async def test_the_response_for_a_missing_output_gives_the_reason(database):
    async with engine(database) as running, api(database, running) as client:
        job = await running.run(workflow(SIZED), count=3)
        of_job = f"{V1}/jobs/{job['job_id']}"
        failed = await client.get(f"{of_job}/nodes/each__1/output")
        unknown = await client.get(f"{of_job}/nodes/unknown/output")
        missing = await client.get(f"{of_job}/payloads/{'0' * 64}")
        no_hash = await client.get(f"{of_job}/payloads/abc")
        no_job = await client.get(f"{V1}/jobs/{uuid4()}/payloads/{'0' * 64}")
        gathered = await ok(client.get(f"{of_job}/nodes/all/output"))

        assert (failed.status_code, failed.json()["code"]) == (404, "node.no-output")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "node.not-found")
        assert (missing.status_code, missing.json()["code"]) == (404, "payload.missing")
        assert no_hash.status_code == 422
        assert (no_job.status_code, no_job.json()["code"]) == (404, "job.not-found")
        assert gathered["results"] == [1, 1, 3, 3]


async def test_a_worker_that_reports_over_http_does_not_need_to_know_payload_references(database):
    definition = workflow("""
        workflow_id: outside
        nodes:
          start: {type: start, next: work}
          work: {handler: give, next: end}
          end: {type: end}
        """)
    worker_id, output = uuid4(), {"text": "x" * INLINE_BYTES}
    async with engine(database, workers=0) as running, api(database, running) as client:
        job_id = await running.submit(definition)
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks"))
        demand = Demand(("dag-worker-tasks",), ("give",), 1)
        (task,) = (await running.ledger.exchange(worker_id, (), demand, lease_seconds=60)).claimed
        report = {"task_id": task.task_id, "worker_id": str(worker_id), "status": "succeeded", "output": output}
        receipt = await ok(client.post(f"{V1}/callbacks/task-result", json=report))
        await running.wait(job_id)

        assert receipt == {"accepted": True}
        assert (await running.nodes(job_id))["work"]["output_ref"]["bytes"] == len(orjson.dumps(output))
        assert await ok(client.get(f"{V1}/jobs/{job_id}/nodes/work/output")) == output
