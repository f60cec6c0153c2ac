"""Jobs of workflows that the platform does not know: the submission contains the definition."""

from textwrap import dedent
from uuid import UUID

import pytest

from tests.api.serving import V1, api, ok
from tests.engine.harness import engine

MINE = dedent("""
    workflow_id: mine
    inputs: {name: {type: string, required: true}}
    nodes:
      start: {type: start, next: say}
      say: {handler: echo, params: {name: "{{ inputs.name }}"}, next: end}
      end: {type: end}
""")


@pytest.mark.requirement("O1")
async def test_a_definition_that_is_part_of_the_submission_is_run(database):
    async with engine(database) as running, api(database, running) as client:
        submission = {"workflow_id": "mine", "definition": MINE, "input_params": {"name": "Ada"}}
        job_id = (await ok(client.post(f"{V1}/jobs", json=submission), 202))["job_id"]
        await running.wait(UUID(job_id))
        shown = await ok(client.get(f"{V1}/jobs/{job_id}"))
        known = await client.get(f"{V1}/workflows/mine")

    assert (shown["job"]["workflow_id"], shown["job"]["status"]) == ("mine", "completed")
    assert shown["job"]["result_data"] == {"say": {"echoed_params": {"name": "Ada"}}}
    assert known.status_code == 404


@pytest.mark.requirement("W3")
async def test_a_wrong_definition_is_refused_with_every_mistake(database):
    wrong = MINE.replace("echo", "no_such_handler").replace("next: end", "next: nowhere")
    async with api(database) as client:
        invalid = await client.post(f"{V1}/jobs", json={"workflow_id": "mine", "definition": wrong})
        renamed = await client.post(f"{V1}/jobs", json={"workflow_id": "yours", "definition": MINE})
        without_input = await client.post(f"{V1}/jobs", json={"workflow_id": "mine", "definition": MINE})

    problem = invalid.json()
    assert (invalid.status_code, problem["code"]) == (422, "workflow.invalid")
    assert {mistake["line"] for mistake in problem["errors"]} == {6, 7}
    assert (renamed.status_code, renamed.json()["code"]) == (400, "workflow.other-id")
    assert (without_input.status_code, without_input.json()["code"]) == (400, "inputs.invalid")


@pytest.mark.requirement("O1")
async def test_the_response_to_a_valid_file_contains_its_inputs(database):
    async with api(database) as client:
        checked = await ok(client.post(f"{V1}/workflows/validate", content=MINE))

    assert checked["inputs_schema"]["properties"]["name"]["type"] == "string"
    assert checked["inputs_schema"]["required"] == ["name"]


@pytest.mark.requirement("W3")
async def test_invalid_workflow_files_are_listed_without_their_folder(database, tmp_path):
    (tmp_path / "bad.yaml").write_text("workflow_id: bad\nnodes:\n  start: {type: start, next: nowhere}\n")
    (tmp_path / "taken.yaml").write_text(
        "workflow_id: mine\nnodes: {start: {type: start, next: end}, end: {type: end}}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "workflow_id: mine\nnodes: {start: {type: start, next: end}, end: {type: end}}\n"
    )

    async with api(database, workflow_folders=[tmp_path]) as client:
        listed = await ok(client.get(f"{V1}/workflows", params={"limit": 1}))

    refused = {file["file"]: file["problems"] for file in listed["refused"]}
    assert len(listed["items"]) == 1
    assert set(refused) == {"bad.yaml", "taken.yaml"}
    assert refused["bad.yaml"][0]["line"] == 2
    assert refused["taken.yaml"][0]["message"] == "workflow_id 'mine' is already taken by mine.yaml; rename one of them"
    assert str(tmp_path) not in str(listed)
