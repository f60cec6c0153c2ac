"""Lists of jobs: search by words, several values of a filter, counts by status, progress and estimates."""

from typing import Any

import pytest
from httpx2 import AsyncClient

from dagmaster.client import AsyncClient as DagmasterClient
from dagmaster.database.maintenance.retention import PostgresRetention
from tests.api.serving import V1, api, app_of, ok, pages_of, served
from tests.engine.harness import engine, open_gate, until, workflow

pytestmark = pytest.mark.requirement("O1")

WORK = """
    workflow_id: WORKFLOW
    inputs: {text: {type: string, default: ""}, fail: {type: boolean, default: false}}
    nodes:
      start: {type: start, next: work}
      work:
        handler: give
        params: {value: "{{ inputs.text }}", fail: "{{ inputs.fail }}", message: "the Server 503 of Zürich was away"}
        retry: {max_attempts: 1}
        next: end
      end: {type: end}
"""
GATES = """
    workflow_id: gates
    nodes:
      start: {type: start, next: one}
      one: {handler: echo, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""


def named(workflow_id: str) -> Any:
    return workflow(WORK.replace("WORKFLOW", workflow_id))


async def search(client: AsyncClient, **params: Any) -> set[str]:
    return {job["job_id"] for page in await pages_of(client, f"{V1}/jobs", **params) for job in page}


async def test_jobs_are_found_by_words_and_by_several_values_of_a_filter(database):
    async with engine(database) as running, api(database, running) as client:
        flood = str((await running.run(named("floods"), text="s3://bronze/Rhine_2024-07.tif"))["job_id"])
        snow = str(
            (await running.run(named("snow"), text="a {very} 'odd' \"text\" & more: 50% | \\ * ! <->"))["job_id"]
        )
        failed = str((await running.run(named("ice"), fail=True))["job_id"])
        searches = {
            "rhine": {flood},
            "RHINE 2024": {flood},
            "rhi": {flood},
            "hine": set(),
            "bronze/rhine_2024": {flood},
            "rhine snow": set(),
            "odd & text": {snow},
            "50%": {snow, failed},  # the beginning of 503
            "server 503": {failed},
            flood: {flood},
            flood[:20]: {job for job in (flood, snow, failed) if job.startswith(flood[:18])},
            "snow": {snow},
            "text": {flood, snow, failed},  # the name of an input
            "!!! ---": {flood, snow, failed},
            "' | ''": {flood, snow, failed},
            "rhine\x00snow": set(),
        }
        results = {words: await search(client, q=words) for words in searches}
        filtered = await search(client, q="text", status="failed,cancelled")
        both = await search(client, workflow_id=["floods", "snow"])
        states = await search(client, status=["failed", "completed"], limit=1)
        counts = await ok(client.get(f"{V1}/jobs/counts", params={"status": "failed"}))
        counts_of_search = await ok(client.get(f"{V1}/jobs/counts", params={"q": "text", "workflow_id": "ice"}))

    assert results == searches
    assert filtered == {failed}
    assert both == {flood, snow}
    assert states == {flood, snow, failed}
    assert counts["by_status"]["completed"] == {"count": 2, "is_exact": True}
    assert counts["by_status"]["failed"] == {"count": 1, "is_exact": True}
    assert counts["by_status"]["running"] == {"count": 0, "is_exact": True}
    assert counts["total"] == {"count": 3, "is_exact": True}
    assert counts_of_search["total"] == {"count": 1, "is_exact": True}


async def test_inputs_of_any_text_can_be_submitted_and_found(database):
    texts = [
        "x" * 5000,
        "ÄÖÜ straße 東京",
        "1e5abc 0x1f -3.5e-7 v1.2.3",
        "<b>tag</b> &amp; a@b.example",
        "\U0001f30d",
        " ",
    ]
    words = [None, "äöü straße 東京", "1e5abc 0x1f 5e", "tag amp example", None, None]
    async with engine(database) as running, api(database, running) as client:
        jobs = [str((await running.run(named("texts"), text=text))["job_id"]) for text in texts]
        results = [await search(client, q=each) if each else None for each in words]

    assert results == [{job} if each else None for job, each in zip(jobs, words, strict=True)]


async def test_large_counts_are_marked_as_inexact(database, monkeypatch):
    monkeypatch.setattr("dagmaster.api.job_lists.MAX_COUNTED", 2)
    async with engine(database) as running, api(database, running) as client:
        for _ in range(3):
            await running.run(named("floods"))
        counts = await ok(client.get(f"{V1}/jobs/counts"))
        counts_of_search = await ok(client.get(f"{V1}/jobs/counts", params={"q": "floods"}))

    assert counts["by_status"]["completed"] == {"count": 2, "is_exact": False}
    assert counts["by_status"]["failed"] == {"count": 0, "is_exact": True}
    assert counts["total"] == {"count": 2, "is_exact": False}
    assert counts_of_search["by_status"]["failed"] == {"count": 0, "is_exact": False}


@pytest.mark.parametrize("params", [{"q": "x" * 201}, {"workflow_id": "x" * 65}, {"status": "lost"}])
async def test_an_invalid_filter_is_refused(shared_database, params):
    async with api(shared_database) as client:
        await ok(client.get(f"{V1}/jobs", params=params), 422)


async def lines(client: AsyncClient) -> dict[str, dict[str, Any]]:
    page = await ok(client.get(f"{V1}/jobs"))
    return {job["job_id"]: job for job in page["items"]}


@pytest.mark.requirement("E23")
async def test_running_jobs_have_progress_and_an_estimate_from_past_runs(database):
    async with engine(database) as running, api(database, running) as client:
        first = await running.submit(workflow(GATES))
        before = await until_half(client, str(first))
        open_gate(first)
        await running.wait(first)
        await running.rows(
            "UPDATE dagapp.dag_jobs SET created_at = created_at - interval '1 hour' WHERE job_id = %s", first
        )
        await running.rows(
            "UPDATE dagapp.dag_node_states SET dispatched_at = dispatched_at - interval '50 minutes' "
            "WHERE job_id = %s AND node_id = 'busy'",
            first,
        )
        async with api(database, running) as other:  # another app: the first one caches its estimates for a minute
            second = await running.submit(workflow(GATES))
            line = await until_half(other, str(second))
            detail = await ok(other.get(f"{V1}/jobs/{second}"))
            open_gate(second)
            await running.wait(second)
            ended = (await lines(other))[str(second)]

    assert before["eta_seconds"] is None or before["eta_seconds"] >= 0
    assert line["progress"]["nodes"] == 4
    assert 3500 < line["eta_seconds"] <= 3700
    assert 2900 < detail["eta_seconds"] <= 3100
    nodes = {node["node_id"]: node for node in detail["nodes"]}
    assert nodes["one"]["eta_seconds"] is None
    assert 2900 < nodes["busy"]["eta_seconds"] <= 3100
    assert detail["progress"] == line["progress"]
    assert detail["elapsed_seconds"] >= line["elapsed_seconds"] > 0
    assert {stage["name"]: stage["eta_seconds"] is None for stage in detail["stages"]}["busy"] is False
    assert (ended["eta_seconds"], ended["progress"]["fraction"]) == (None, 1.0)


async def until_half(client: AsyncClient, job_id: str) -> dict[str, Any]:
    """The row of a job in the list, once the job is half done and waits at its gate."""

    async def half() -> dict[str, Any] | None:
        line = (await lines(client))[job_id]
        return line if line["progress"]["ended"] == 2 else None

    return await until(half)


async def test_the_python_client_searches_and_counts(database):
    async with engine(database) as running, served(app_of(database, running)) as server:
        job_id = (await running.run(named("floods"), text="Rhine"))["job_id"]
        await running.run(named("snow"))
        async with DagmasterClient(server.url) as client:
            jobs = [job.job_id async for job in client.jobs(search="rhine", workflow_id=["floods", "snow"])]
            counts = await client.job_counts(workflow_id="snow")

    assert jobs == [job_id]
    assert counts.total.count == 1


async def test_search_words_are_deleted_with_their_job(database):
    async with engine(database) as running:
        await running.run(named("floods"))
        retention = PostgresRetention(database, "test")
        await retention.prune_jobs(0.0, 100)
        await retention.close()
        left = await running.rows("SELECT job_id FROM dagapp.dag_job_search")

    assert left == []
