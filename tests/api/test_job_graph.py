"""The data for the page of a job: its graph with one node per fan_out, its timeline in pages, and its first failure."""

import time

import pytest

from tests.api.serving import V1, api, ok, pages_of
from tests.engine.harness import engine, workflow

pytestmark = pytest.mark.requirement("O1")

FAMILY = """
    workflow_id: family
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, stage: prepare, params: {count: 12}, next: split}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        label: "number {{ index }}"
        task:
          handler: give
          params: {fail: "{{ index == 3 }}", message: no tiles}
          retry: {max_attempts: 2, initial_delay_seconds: 0.01}
        next: gather
      gather: {type: fan_in, next: report}
      report: {handler: echo, next: end}
      end: {type: end}
"""


async def test_the_page_of_a_job_has_its_graph_timeline_and_first_failure(database):
    async with engine(database) as running, api(database, running) as client:
        job_id = (await running.run(workflow(FAMILY)))["job_id"]
        path = f"{V1}/jobs/{job_id}"
        graph = await ok(client.get(f"{path}/graph"))
        detail = await ok(client.get(path))
        top = [bar for page in await pages_of(client, f"{path}/timeline", top_level=True, limit=1) for bar in page]
        children = [bar for page in await pages_of(client, f"{path}/timeline", parent="split", limit=5) for bar in page]
        failed = await ok(client.get(f"{path}/timeline", params={"parent": "split", "status": "failed,cancelled"}))
        bad = [
            (await client.get(f"{path}/timeline", params=params)).status_code
            for params in (
                {"parent": "split", "top_level": True},
                {"parent": "prepare"},
                {"parent": "split", "after": "prepare~1"},
                {"parent": "split", "after": "split__x~1"},
            )
        ]

    nodes = {node["node_id"]: node for node in graph["nodes"]}
    assert list(nodes) == ["start", "prepare", "split", "gather", "report", "end"]
    assert nodes["split"]["children"]["done"] == 11
    assert nodes["split"]["children"]["failed"] == 1
    assert {"source": "split", "target": "gather", "kind": "all_of", "label": None} in graph["edges"]
    assert [(bar["node_id"], bar["attempt"]) for bar in top] == [("prepare", 1)]
    assert len(children) == 11 + len(failed["items"])
    assert [bar["node_id"] for bar in children if bar["attempt"] == 1] == [f"split__{index}" for index in range(12)]
    assert {bar["node_id"] for bar in failed["items"]} == {"split__3"}
    assert failed["items"][0]["error_message"] == "no tiles"
    assert failed["items"][0]["worker_host"]
    first = detail["first_failure"]
    assert (first["node_id"], first["parent_node_id"], first["label"]) == ("split__3", "split", "number 3")
    assert (first["error_message"], first["error"]["message"]) == ("no tiles", "no tiles")
    assert "report" in first["not_run"]
    assert bad == [400, 404, 400, 400]


async def test_reading_a_page_of_ten_thousand_children_takes_a_few_milliseconds(database):
    """Also with a filter that matches only the last children, which are all read by key."""
    async with engine(database, verify_history=False) as running, api(database, running) as client:
        job_id = (await running.run(workflow(FAMILY)))["job_id"]
        await running.rows(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, fan_out_index, attempt) "
            "SELECT %s, 'split__' || i, 'pending', 'split', i, 0 FROM generate_series(12, 9999) AS i",
            job_id,
        )
        await running.rows("ALTER TABLE dagapp.dag_node_states DISABLE TRIGGER USER")
        await running.rows(
            "UPDATE dagapp.dag_node_states "
            "SET status = CASE WHEN fan_out_index > 9990 THEN 'failed' ELSE 'completed' END "
            "WHERE job_id = %s AND fan_out_index > 11",
            job_id,
        )
        await running.rows(
            "UPDATE dagapp.dag_node_states SET total = 10000, expanded = 10000, failed_count = 10 "
            "WHERE job_id = %s AND node_id = 'split'",
            job_id,
        )
        await running.rows("ALTER TABLE dagapp.dag_node_states ENABLE TRIGGER USER")
        path = f"{V1}/jobs/{job_id}"
        seconds = {}
        for name, url in {
            "graph": f"{path}/graph",
            "first page": f"{path}/nodes?parent=split",
            "failed": f"{path}/nodes?parent=split&status=failed",
            "timeline": f"{path}/timeline?parent=split",
        }.items():
            best = 9.9
            for _ in range(3):
                started = time.perf_counter()
                response = await ok(client.get(url))
                best = min(best, time.perf_counter() - started)
            seconds[name] = best
            if name == "failed":
                assert [node["fan_out_index"] for node in response["items"]] == [3, *range(9991, 10000)]

    # A few milliseconds each; the machine may be busy.
    assert max(seconds.values()) < 1.0, seconds
