"""The history of workflows: earlier definitions as texts that can be compared, and statistics of recent jobs."""

import difflib
from typing import Any

import pytest
import yaml

from dagmaster.api.workflow_history import text_of
from dagmaster.workflows.load import read
from tests.api.serving import V1, api, ok, pages_of
from tests.engine.harness import engine, workflow

pytestmark = pytest.mark.requirement("O1")

WORK = """
    workflow_id: work
    inputs: {zeta: {type: integer, default: 1}, fail: {type: boolean, default: false}}
    nodes:
      start: {type: start, next: zebra}
      zebra: {handler: echo, params: {b: 2, a: 1}, next: ant}
      ant: {handler: give, params: {fail: "{{ inputs.fail }}"}, retry: {max_attempts: 1}, next: end}
      end: {type: end}
"""


def variant(text: str = "a: 1") -> Any:
    return workflow(WORK.replace("a: 1", text))


async def test_earlier_definitions_can_be_listed_read_and_compared(database):
    async with engine(database) as running, api(database, running) as client:
        running.library.workflows["work"] = variant("a: 7")
        for definition in (variant(), variant("a: 3"), variant(), variant("a: 7")):
            await running.run(definition)
        base = f"{V1}/workflows/work/definitions"
        pages = await pages_of(client, base, limit=2)
        listed = [item for page in pages for item in page]
        texts = [(await ok(client.get(f"{base}/{item['definition_hash']}")))["yaml"] for item in listed]
        current = await ok(client.get(f"{base}/current"))
        unknown = await ok(client.get(f"{base}/{'0' * 64}"), 404)
        other = await ok(client.get(f"{V1}/workflows/unknown/definitions"), 404)
        bad = await ok(client.get(base, params={"after": "x~y"}), 400)

    assert [len(page) for page in pages] == [2, 1]
    assert [item["jobs"] for item in listed] == [1, 1, 2]
    assert [item["is_current"] for item in listed] == [True, False, False]
    assert all(item["first_used_at"] <= item["last_used_at"] for item in listed)
    changed = [line for line in difflib.ndiff(texts[2].splitlines(), texts[1].splitlines()) if line[0] in "+-"]
    assert [line.split() for line in changed] == [["-", "a:", "1"], ["+", "a:", "3"]]
    assert current["yaml"] == texts[0]
    assert (unknown["code"], other["code"], bad["code"]) == (
        "definition.not-found",
        "workflow.not-found",
        "request.bad-cursor",
    )


def test_the_text_of_a_definition_is_a_workflow_with_the_same_content():
    definition = variant()
    shuffled = {name: definition.body()[name] for name in sorted(definition.body())}
    shuffled["nodes"] = {name: shuffled["nodes"][name] for name in sorted(shuffled["nodes"])}

    text = text_of(shuffled)

    assert text == text_of(definition.body())
    assert list(yaml.safe_load(text)["nodes"]) == ["start", "zebra", "ant", "end"]
    assert read(text, "again.yaml").content_hash() == definition.content_hash()


def test_a_stored_definition_that_is_no_longer_valid_is_shown_unchanged():
    assert yaml.safe_load(text_of({"steps": [1], "name": "old"})) == {"name": "old", "steps": [1]}


async def test_statistics_have_rates_durations_and_recent_jobs(database):
    async with engine(database) as running, api(database, running) as client:
        running.library.workflows["work"] = variant()
        empty = await ok(client.get(f"{V1}/workflows/work/statistics"))
        for fail in (False, True, False, False):
            last = await running.run(variant(), fail=fail)
        statistics = await ok(client.get(f"{V1}/workflows/work/statistics", params={"days": 1}))
        await ok(client.get(f"{V1}/workflows/unknown/statistics"), 404)

    assert (empty["jobs"], empty["success_rate"], empty["p50_seconds"]) == (0, None, None)
    assert (statistics["jobs"], statistics["success_rate"], statistics["is_complete"]) == (4, 0.75, True)
    assert statistics["by_status"]["failed"] == 1
    assert 0 < statistics["p50_seconds"] <= statistics["p95_seconds"]
    assert statistics["recent"][0]["job_id"] == str(last["job_id"])
    nodes = {node["node_id"]: node for node in statistics["nodes"]}
    assert (nodes["ant"]["runs"], nodes["start"]["runs"]) == (3, nodes["start"]["runs"])
    assert 0 <= nodes["ant"]["p50_seconds"] <= nodes["ant"]["p95_seconds"]


async def test_a_submission_can_be_checked_without_creating_a_job(database):
    async with engine(database, workers=0) as running, api(database, running) as client:
        running.library.workflows["work"] = variant()
        checked = await ok(client.post(f"{V1}/jobs/check", json={"workflow_id": "work", "inputs": {"fail": True}}))
        refused = await ok(
            client.post(f"{V1}/jobs/check", json={"workflow_id": "work", "inputs": {"zeta": "x", "fial": 1}}), 400
        )
        jobs = (await ok(client.get(f"{V1}/jobs")))["items"]

    assert checked["inputs"] == {"zeta": 1, "fail": True}
    assert set(refused["facts"]["faults"]) == {"zeta", "fial"}
    assert refused["facts"]["faults"]["zeta"] == "'zeta' must be an integer, not 'x'"
    assert jobs == []
