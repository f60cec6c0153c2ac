"""Values at the limits of JSON parsers: they fail their node, and hide neither jobs nor requests."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.database.reads import lenient
from dagmaster.errors import InvalidRequest
from dagmaster.orchestrator import owned
from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, open_gate, until, workflow

SUM = """
    workflow_id: adding
    version: 1
    inputs: {numbers: {type: array, required: true}}
    nodes:
      start: {type: start, next: each}
      each:
        type: fan_out
        source: "{{ inputs.numbers }}"
        task: {handler: give, params: {value: "{{ item }}"}}
        next: all
      all: {type: fan_in, aggregation: sum, next: end}
      end: {type: end}
"""
GATED = """
    workflow_id: gated
    version: 1
    timeout_seconds: 60
    nodes:
      start: {type: start, next: first}
      first: {handler: give, params: {value: 1}, next: wait}
      wait: {handler: gate, next: last}
      last: {handler: give, params: {value: %s}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""
DEEP = "[" * 2_000 + "]" * 2_000


@pytest.mark.requirement("W8")
@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([1e308, 7e307], 1.7e308),
        ([2**63, 2**63 - 1], 2**64 - 1),
        ([-(2**62), -(2**62)], -(2**63)),
        ([2**53, 1], 2**53 + 1),
        ([1e308, 1], 1e308),
    ],
)
async def test_a_sum_that_fits_is_exact(database, numbers, total):
    async with engine(database) as running:
        job = await running.run(workflow(SUM), numbers=numbers)

    assert job["status"] == "completed"
    stored = job["result_data"]["all"]["total"]
    assert (float(stored) if isinstance(total, float) else stored) == total


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("numbers", [[1e308, 1e308], [-1e308, -1e308], [2**63, 2**63], [-(2**63), -1]])
async def test_a_sum_that_is_out_of_range_fails_the_fan_in(database, numbers):
    async with engine(database) as running, api(database, running) as client:
        bad = await running.submit(workflow(SUM), numbers=numbers)
        good = await running.run("hello_world")
        job = await running.wait(bad, timeout=60)
        shown = await ok(client.get(f"{V1}/jobs/{bad}"))
        nodes = await running.nodes(bad)

    assert good["status"] == "completed"
    assert job["status"] == shown["job"]["status"] == "failed"
    assert nodes["all"]["error"]["code"] == "fan-in.sum-out-of-range"
    assert "node 'all' failed: the sum" in job["error_message"]


async def _damage_output(running, job_id: UUID, node_id: str, value: str) -> None:
    """Write an output that cannot be read, as an older version or an administrator may have."""
    await running.rows(
        "UPDATE dagapp.dag_node_states SET output = %s::jsonb WHERE job_id = %s AND node_id = %s",
        value,
        job_id,
        node_id,
    )


unreadable_values = pytest.mark.parametrize("value", ['{"total": 2e308, "count": 2}', DEEP], ids=["number", "depth"])


@pytest.mark.requirement("E27")
@unreadable_values
async def test_a_job_with_an_unreadable_output_can_be_shown_and_cancelled_and_can_end(database, value):
    async with engine(database, verify_history=False) as running, api(database, running) as client:
        job_ids = [await running.submit(workflow(GATED % "1")) for _ in range(3)]
        reader = await running.submit(workflow((GATED % '"{{ nodes.first.output }}"').replace("gated", "reading")))
        for job_id in (*job_ids, reader):
            await until(lambda job_id=job_id: _is_waiting(running, job_id))
            await _damage_output(running, job_id, "first", value)
        for orchestrator in running.orchestrators:
            orchestrator._discard_views(orchestrator._owned)
        shown = await ok(client.get(f"{V1}/jobs/{job_ids[0]}"))
        listed = await ok(client.get(f"{V1}/jobs"))
        node = await ok(client.get(f"{V1}/jobs/{job_ids[0]}/nodes/first"))
        await ok(client.get(f"{V1}/jobs/{job_ids[0]}/events"))
        output = await client.get(f"{V1}/jobs/{job_ids[0]}/nodes/first/output")
        await client.post(f"{V1}/jobs/{job_ids[0]}/cancel")
        await running.rows("UPDATE dagapp.dag_jobs SET deadline_at = now() WHERE job_id = %s", job_ids[1])
        open_gate(job_ids[2])
        open_gate(reader)
        ended = [await running.wait(job_id, timeout=15) for job_id in (*job_ids, reader)]
        error = await running.value(
            "SELECT error FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'last'", reader
        )

    assert shown["job"]["status"] == "running"
    assert len(listed["items"]) == 4
    assert node["node"]["output"] is not None
    assert output.status_code < 500
    assert [job["status"] for job in ended] == ["cancelled", "failed", "completed", "failed"]
    assert error["code"] == "value.unreadable"
    assert "the output of 'first' cannot be read" in ended[3]["error_message"]


async def _is_waiting(running, job_id: UUID) -> bool:
    return (await running.nodes(job_id))["wait"]["status"] in ("dispatched", "running")


RESULT = """
    workflow_id: result
    version: 1
    nodes:
      start: {type: start, next: [first, wait]}
      first: {handler: give, params: {value: 1}, next: end}
      wait: {handler: gate, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("E27")
@unreadable_values
async def test_a_job_whose_result_would_be_an_unreadable_output_fails_with_that_reason(database, value):
    async with engine(database, verify_history=False) as running:
        job_id = await running.submit(workflow(RESULT))
        await until(lambda: _has_completed(running, job_id, "first"))
        await _damage_output(running, job_id, "first", value)
        running.orchestrators[0]._discard_views([job_id])
        open_gate(job_id)
        job = await running.wait(job_id, timeout=15)

    assert job["status"] == "failed"
    assert job["error_message"].startswith(
        "the workflow's outputs could not be rendered: the output of 'first' cannot be read"
    )


async def _has_completed(running, job_id: UUID, node_id: str) -> bool:
    return (await running.nodes(job_id))[node_id]["status"] == "completed"


@pytest.mark.requirement("E27")
async def test_a_job_with_an_unreadable_input_is_listed_and_fails(database, monkeypatch):
    monkeypatch.setattr(owned, "ATTEMPTS", 2)
    async with engine(database, orchestrators=0, verify_history=False) as running, api(database, running) as client:
        bad = await running.submit("hello_world")
        await running.rows("UPDATE dagapp.dag_jobs SET input_params = '{\"n\": 2e308}' WHERE job_id = %s", bad)
        await running.start_orchestrator()
        good = await running.run("hello_world")
        job = await running.wait(bad, timeout=15)
        shown = await ok(client.get(f"{V1}/jobs/{bad}"))

    assert good["status"] == "completed"
    assert job["status"] == "failed"
    assert job["error_message"].startswith("the job could not be advanced: an input of the job cannot be read")
    assert shown["job"]["input_params"] == {"n": "2e308"}


@pytest.mark.requirement("E27")
@pytest.mark.parametrize("depth", [190, 230, 250, 253, 260])
async def test_a_nested_input_runs_or_is_refused_at_submission(database, depth):
    """The JSON writer limits the depth of a value, and an input is written inside of other values."""
    text = """
        workflow_id: nested
        version: 1
        inputs: {deep: {type: array, required: true}}
        nodes:
          start: {type: start, next: work}
          work: {handler: give, params: {value: "{{ inputs.deep }}"}, retry: {max_attempts: 0}, next: end}
          end: {type: end}
    """
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    async with engine(database) as running:
        if depth > 190:
            with pytest.raises(InvalidRequest, match="cannot be stored as JSON"):
                await running.submit(workflow(text), deep=value)
            return
        job = await running.run(workflow(text), deep=value, timeout=60)
    assert job["status"] == "completed"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=3), parts, max_size=4),
    max_leaves=10,
)


@given(value=VALUES, huge=st.integers(309, 400), sign=st.sampled_from(["", "-"]))
def test_a_number_that_is_too_large_becomes_a_text_and_other_values_are_unchanged(value, huge, sign):
    text = json.dumps({"value": value, "huge": 0}).replace('"huge": 0', f'"huge": {sign}3{"0" * huge}')

    read = lenient.loads(text.encode())

    assert isinstance(read, lenient.UnreadableJson)
    assert read["huge"] == f"{sign}3e{huge}"
    assert read["value"] == json.loads(json.dumps(value), parse_int=lenient._integer, parse_float=float)


@pytest.mark.requirement("E27")
@pytest.mark.parametrize(
    "change",
    [
        "dag_jobs SET deferred_work = '5'",
        "dag_jobs SET deferred_work = '[5, {\"handler\": 5}]'",
        "dag_jobs SET input_params = '[1]'",
        "dag_node_states SET error = '7', progress = '7', input_params = '7'",
    ],
)
async def test_a_row_with_values_of_a_wrong_type_breaks_no_request_and_no_other_job(database, change):
    async with engine(database, verify_history=False) as running, api(database, running) as client:
        job_id = await running.submit(workflow(GATED % "1"))
        await until(lambda: _is_waiting(running, job_id))
        await running.rows(f"UPDATE dagapp.{change} WHERE job_id = %s", job_id)
        await running.rows("UPDATE dagapp.dag_jobs SET owner_id = NULL, claim_token = NULL WHERE job_id = %s", job_id)
        paths = [f"{V1}/jobs", *(f"{V1}/jobs/{job_id}{part}" for part in ("", "/events", "/nodes", "/nodes/first"))]
        responses = [await client.get(path) for path in paths]
        other = await running.run("hello_world")
        cancelled = await client.post(f"{V1}/jobs/{job_id}/cancel")
        job = await running.wait(job_id, timeout=15)

    assert [response.status_code for response in responses] == [200] * len(paths)
    assert other["status"] == "completed"
    assert cancelled.status_code == 202
    assert job["status"] == "cancelled"
