"""The export of a job: one file with all of its data, read from the database in pages, without secrets."""

import io
import json

import pytest

from dagmaster.api import export
from dagmaster.client import AsyncClient as DagmasterClient
from tests.api.serving import V1, api, app_of, ok, served
from tests.engine.harness import engine, workflow

pytestmark = pytest.mark.requirement("O1")

FAMILY = """
    workflow_id: family
    inputs: {place: {type: string, default: ""}}
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: 12}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        tolerate: 100%
        task:
          handler: give
          params: {value: "https://{{ inputs.place }}", fail: "{{ index == 3 }}"}
          retry: {max_attempts: 1}
        next: end
      end: {type: end}
"""
SECRET = "hunter2hunter2"


@pytest.mark.parametrize("page", [1, 5, 500])
async def test_an_export_contains_every_row_of_the_job_once(database, monkeypatch, page):
    monkeypatch.setattr(export, "_PAGE", page)
    async with engine(database) as running, api(database, running) as client:
        job_id = (await running.run(workflow(FAMILY), place=f"host/x?sig={SECRET}"))["job_id"]
        response = await client.get(f"{V1}/jobs/{job_id}/export")
        nodes, tasks, events = await running.nodes(job_id), await running.tasks(job_id), await running.events(job_id)

    assert response.headers["content-disposition"] == f'attachment; filename="job-{job_id}.json"'
    exported = json.loads(response.text)
    assert (exported["format"], exported["format_version"], exported["is_complete"]) == ("dagmaster-job", 1, True)
    assert exported["job"]["job_id"] == str(job_id)
    assert exported["definition"]["workflow_id"] == "family"
    assert {node["node_id"] for node in exported["nodes"]} == set(nodes)
    assert len(exported["nodes"]) == len(nodes)
    assert len(exported["attempts"]) == len(tasks)
    assert [event["sequence"] for event in exported["events"]] == [event["sequence"] for event in events]
    assert exported["janitor_actions"] == []
    assert SECRET not in response.text
    assert "claim_token" not in response.text


async def test_only_a_job_that_exists_can_be_exported(shared_database):
    async with api(shared_database) as client:
        await ok(client.get(f"{V1}/jobs/0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01/export"), 404)


async def test_the_python_client_writes_an_export_to_a_file(database):
    async with engine(database) as running, served(app_of(database, running)) as server:
        job_id = (await running.run(workflow(FAMILY)))["job_id"]
        file = io.BytesIO()
        async with DagmasterClient(server.url) as client:
            size = await client.export_job(job_id, file)

    assert size == len(file.getvalue())
    assert json.loads(file.getvalue())["is_complete"] is True
