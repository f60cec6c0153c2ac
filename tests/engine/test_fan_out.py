"""Fan-outs and fan-ins, end to end on a real PostgreSQL."""

import asyncio

import pytest

from tests.engine.harness import engine, open_gate, until, workflow


def _fan_out(task, *, source="[10, 20, 30, 40, 50]", options="", fan_in="{type: fan_in, next: end}"):
    return workflow(f"""
        workflow_id: fanned
        version: 1
        inputs: {{count: {{type: integer, default: 5}}, fails: {{type: array, default: []}}}}
        nodes:
          start: {{type: start, next: items}}
          items: {{handler: make_list, params: {{count: "{{{{ inputs.count }}}}"}}, next: each}}
          each:
            type: fan_out
            source: "{source}"
            task: {task}
            {options}
            next: all
          all: {fan_in}
          end: {{type: end}}
        """)


GIVE = '{handler: give, params: {value: "{{ item }}"}}'
ITEMS = "{{ nodes.items.output.items }}"
SOME_FAIL = (
    '{handler: give, params: {value: "{{ item }}", fail: "{{ index in inputs.fails }}", message: "no {{ index }}"}, '
    "retry: {max_attempts: 0}}"
)


async def _run(database, definition, *, timeout=30, overrides=None, **inputs):
    async with engine(database, **(overrides or {})) as running:
        job = await running.run(definition, timeout, **inputs)
        return job, await running.nodes(job["job_id"]), await running.tasks(job["job_id"])


def _children(nodes, parent="each"):
    children = [node for node in nodes.values() if node["parent_node_id"] == parent]
    return sorted(children, key=lambda node: node["fan_out_index"])


# Fan-outs


@pytest.mark.requirement("W7")
async def test_each_item_has_a_child_and_the_fan_out_lists_them(database):
    job, nodes, tasks = await _run(database, _fan_out(GIVE, source=ITEMS, options='label: "item {{ item }}"'))

    assert job["status"] == "completed"
    assert nodes["each"]["output"] == {"fan_out_count": 5, "child_node_ids": [f"each__{n}" for n in range(5)]}
    assert [(c["node_id"], c["fan_out_index"], c["label"]) for c in _children(nodes)] == [
        (f"each__{n}", n, f"item {n}") for n in range(5)
    ]
    assert {t["node_id"]: t["params"] for t in tasks if "__" in t["node_id"]} == {
        f"each__{n}": {"value": n} for n in range(5)
    }
    assert (nodes["each"]["total"], nodes["each"]["expanded"], nodes["each"]["remaining"]) == (5, 5, 0)


@pytest.mark.requirement("W7")
async def test_a_fan_out_completes_when_expanded_and_its_fan_in_waits_for_every_child(database):
    definition = _fan_out("{handler: gate}", source=ITEMS)

    async with engine(database) as running:
        job_id = await running.submit(definition)

        async def is_expanded():
            return (await running.nodes(job_id))["each"]["status"] == "completed"

        await until(is_expanded)
        for index in range(4):
            open_gate(job_id, f"each__{index}")

        async def four_are_done():
            return (await running.nodes(job_id))["each"]["remaining"] == 1

        await until(four_are_done)
        assert (await running.nodes(job_id))["all"]["status"] == "pending"
        open_gate(job_id, "each__4")
        job = await running.wait(job_id)

    assert job["status"] == "completed"


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(("count", "sizes"), [(5, [2, 2, 1]), (4, [2, 2]), (1, [1])])
async def test_with_a_batch_size_children_get_slices(database, count, sizes):
    task = '{handler: chunk_processor, params: {index: "{{ index }}"}}'

    job, nodes, tasks = await _run(database, _fan_out(task, source=ITEMS, options="batch_size: 2"), count=count)

    slices = [t["params"]["items"] for t in tasks if "__" in t["node_id"]]
    assert job["status"] == "completed", job["error_message"]
    assert [len(part) for part in slices] == sizes
    assert [item for part in slices for item in part] == list(range(count))
    assert sum(result["count"] for result in nodes["all"]["output"]["results"]) == count


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(("batching", "totals"), [("", [2 * n for n in range(7)]), ("batch_size: 3", [6, 24, 12])])
async def test_results_of_passes_the_outputs_of_children_by_reference(database, batching, totals):
    definition = workflow(f"""
        workflow_id: chained
        version: 1
        nodes:
          start: {{type: start, next: first}}
          first:
            type: fan_out
            source: [0, 1, 2, 3, 4, 5, 6]
            task: {{handler: chunk_processor, params: {{index: "{{{{ index }}}}", value: "{{{{ item }}}}"}}}}
            next: second
          second:
            type: fan_out
            results_of: first
            {batching}
            task: {{handler: collect_results}}
            next: all
          all: {{type: fan_in, fan_out: second, next: end}}
          end: {{type: end}}
        """)

    job, nodes, tasks = await _run(database, definition)

    assert job["status"] == "completed", job["error_message"]
    assert [result["total"] for result in nodes["all"]["output"]["results"]] == totals
    size = 3 if batching else 1
    references = [t["params"]["results_of"] for t in tasks if t["node_id"].startswith("second__")]
    assert references == [
        {"node_id": "first", "offset": offset, "limit": min(size, 7 - offset)} for offset in range(0, 7, size)
    ]


@pytest.mark.requirement("W7")
async def test_results_of_can_name_a_fan_out_further_upstream(database):
    definition = workflow("""
        workflow_id: chained_later
        version: 1
        nodes:
          start: {type: start, next: first}
          first:
            type: fan_out
            source: [1, 2, 3]
            task: {handler: chunk_processor, params: {value: "{{ item }}"}}
            next: all
          all: {type: fan_in, next: prepare}
          prepare: {handler: echo, next: second}
          second: {type: fan_out, results_of: first, batch_size: 2, task: {handler: collect_results}, next: last}
          last: {type: fan_in, fan_out: second, aggregation: sum, next: end}
          end: {type: end}
        """)

    job, nodes, _ = await _run(database, definition)

    assert job["status"] == "completed", job["error_message"]
    assert nodes["last"]["output"] == {
        "total": 12 + 3,
        "count": 2,
    }  # the sum of the values, and of the counts of each slice


@pytest.mark.requirement("W7")
async def test_max_parallel_holds_at_every_moment(database):
    task = "{handler: sleep, params: {seconds: 0.05}}"
    definition = _fan_out(task, source=ITEMS, options="max_parallel: 3")

    async with engine(database, workers=2) as running:
        job_id = await running.submit(definition, count=20)
        live = []
        while (await running.job(job_id))["status"] in ("pending", "running"):
            live.append(
                await running.value(
                    "SELECT count(*) FROM dagapp.dag_tasks"
                    " WHERE job_id = %s AND node_id LIKE 'each%%' AND status IN ('queued', 'running')",
                    job_id,
                )
            )
            await asyncio.sleep(0.005)
        job, tasks = await running.wait(job_id), await running.tasks(job_id)

    assert job["status"] == "completed"
    assert max(live) == 3
    spans = [(t["available_at"], t["finished_at"]) for t in tasks if "__" in t["node_id"]]
    assert len(spans) == 20
    assert max(sum(1 for begin, end in spans if begin <= moment < end) for moment, _ in spans) <= 3


@pytest.mark.requirement("W7")
async def test_a_child_that_waits_for_its_retry_counts_towards_max_parallel(database):
    task = (
        "{handler: flaky_echo, params: {failure_rate: 1, seed: 3}, "
        "retry: {max_attempts: 4, backoff: fixed, initial_delay_seconds: 0.1, jitter: false}}"
    )

    async with engine(database) as running:
        job_id = await running.submit(_fan_out(task, source=ITEMS, options="max_parallel: 2"), count=4)
        open_children = []
        while (await running.job(job_id))["status"] in ("pending", "running"):
            open_children.append(
                await running.value(
                    "SELECT count(*) FROM dagapp.dag_node_states WHERE job_id = %s AND parent_node_id = 'each'"
                    " AND status NOT IN ('completed', 'failed')",
                    job_id,
                )
            )
            await asyncio.sleep(0.01)
        job = await running.wait(job_id)

    assert job["status"] == "completed"
    assert max(open_children) == 2


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("tolerate", "fails", "status"),
    [
        ("0", [], "completed"),
        ("0", [1], "failed"),
        ("2", [0, 4], "completed"),
        ("2", [0, 2, 4], "failed"),
        ("0.4", [0, 4], "completed"),
        ("40%", [0, 4], "completed"),
        ("0.39", [0, 4], "failed"),
        ("1.0", [0, 1, 2, 3, 4], "completed"),
    ],
)
async def test_tolerate_is_a_number_or_a_percentage_of_failed_children(database, tolerate, fails, status):
    definition = _fan_out(SOME_FAIL, source=ITEMS, options=f"tolerate: {tolerate}")

    job, nodes, _ = await _run(database, definition, fails=fails)

    assert job["status"] == status, job["error_message"]
    if status == "completed":
        assert nodes["each"]["failed_count"] == len(fails)
        assert nodes["all"]["output"]["count"] == 5 - len(fails)


@pytest.mark.requirement("W7")
async def test_an_empty_source_completes_at_once(database):
    job, nodes, _ = await _run(database, _fan_out(GIVE, source=ITEMS), count=0)

    assert job["status"] == "completed"
    assert nodes["each"]["output"] == {"fan_out_count": 0, "child_node_ids": []}
    assert nodes["all"]["output"] == {"results": [], "count": 0}


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("source", "kind"), [("{{ nodes.items.output.count }}", "int"), ("{{ nodes.items.output }}", "")]
)
async def test_a_source_that_is_not_an_array_fails_the_fan_out(database, source, kind):
    job, nodes, tasks = await _run(database, _fan_out(GIVE, source=source))

    assert job["status"] == "failed"
    assert nodes["each"]["error"]["code"] == "fan-out.not-an-array"
    assert f"the source of the fan_out is {kind}" in nodes["each"]["error_message"]
    assert "not an array" in job["error_message"]
    assert [task["node_id"] for task in tasks] == ["items"]


@pytest.mark.requirement("W7")
async def test_the_error_of_a_template_names_the_child(database):
    task = '{handler: give, params: {value: "{{ 10 / (index - 3) }}"}}'

    job, nodes, tasks = await _run(database, _fan_out(task, source=ITEMS))

    assert job["status"] == "failed"
    assert nodes["each"]["error_message"].startswith("child 3: ")
    assert nodes["each"]["error_message"] in job["error_message"]
    assert [task["node_id"] for task in tasks] == ["items"]


@pytest.mark.requirement("W7")
async def test_a_template_that_fails_after_some_children_were_dispatched_keeps_its_error(database):
    """Children that were dispatched before are still counted when they end; the fan_out keeps its error."""
    task = '{handler: gate, params: {value: "{{ 10 / (index - 3) }}"}}'

    async with engine(database) as running:
        job_id = await running.submit(_fan_out(task, source=ITEMS, options="max_parallel: 3"))

        async def three_run():
            nodes = await running.nodes(job_id)
            return [n["status"] for n in nodes.values() if n["parent_node_id"]] == ["running"] * 3

        await until(three_run)
        open_gate(job_id, "each__0")

        async def has_failed():
            return (await running.nodes(job_id))["each"]["status"] == "failed"

        await until(has_failed)
        open_gate(job_id)
        job = await running.wait(job_id)
        nodes = await running.nodes(job_id)

    assert job["status"] == "failed"
    assert [child["status"] for child in _children(nodes)] == ["completed"] * 3
    assert nodes["each"]["error_message"].startswith("child 3: ")
    assert "child 3: " in job["error_message"]
    assert (nodes["each"]["expanded"], nodes["each"]["remaining"]) == (3, 2)


@pytest.mark.requirement("W7")
async def test_a_fan_out_with_more_children_than_the_limit_fails(database):
    job, nodes, _ = await _run(database, _fan_out(GIVE, source=ITEMS), overrides={"max_fan_out": 4})

    assert job["status"] == "failed"
    assert nodes["each"]["error"]["code"] == "fan-out.too-large"
    assert "5 children, more than the limit of 4" in nodes["each"]["error_message"]
    assert "batch_size" in nodes["each"]["error_message"]


@pytest.mark.requirement("W7")
async def test_a_batch_size_brings_a_long_source_below_the_limit(database):
    task = "{handler: chunk_processor}"

    job, nodes, _ = await _run(
        database, _fan_out(task, source=ITEMS, options="batch_size: 2"), count=8, overrides={"max_fan_out": 4}
    )

    assert job["status"] == "completed", job["error_message"]
    assert nodes["all"]["output"]["count"] == 4


@pytest.mark.requirement("W7")
async def test_a_large_fan_out_is_expanded_in_several_transactions(database):
    async with engine(database) as running:
        running.orchestrators[0].planner.chunk = 7
        job = await running.run(_fan_out("{handler: noop}", source=ITEMS), count=50)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "completed"
    assert [child["fan_out_index"] for child in _children(nodes)] == list(range(50))
    assert nodes["all"]["output"]["count"] == 50


@pytest.mark.requirement("W7")
async def test_a_child_is_retried_without_its_siblings(database):
    task = (
        "{handler: flaky_echo, params: {failure_rate: 0.5, seed: 5}, "
        "retry: {max_attempts: 5, backoff: fixed, initial_delay_seconds: 0.02}}"
    )

    job, nodes, tasks = await _run(database, _fan_out(task, source=ITEMS), count=12)

    attempts = {child["node_id"]: child["attempt"] for child in _children(nodes)}
    assert job["status"] == "completed"
    assert set(attempts.values()) > {1}
    assert 1 in attempts.values()
    assert len(tasks) == 1 + sum(attempts.values())


# Fan-ins


@pytest.mark.requirement("W8")
@pytest.mark.parametrize(
    ("aggregation", "values", "output"),
    [
        ("collect", [3, None, {"a": 1}, [1, 2]], {"results": [3, None, {"a": 1}, [1, 2]], "count": 4}),
        ("concat", [[1, 2], 3, [], [[4]], None], {"results": [1, 2, 3, [4], None], "count": 5}),
        ("sum", [1, 2.5, {"a": 1, "b": [2, {"c": 3}]}, True, "7", None], {"total": 9.5, "count": 6}),
        ("first", ["x", "y"], {"result": "x", "count": 2}),
        ("last", ["x", "y"], {"result": "y", "count": 2}),
        ("collect", [], {"results": [], "count": 0}),
        ("concat", [], {"results": [], "count": 0}),
        ("sum", [], {"total": 0, "count": 0}),
        ("first", [], {"result": None, "count": 0}),
        ("last", [], {"result": None, "count": 0}),
    ],
)
async def test_every_aggregation_gives_its_output(database, aggregation, values, output):
    definition = workflow(f"""
        workflow_id: aggregated
        version: 1
        inputs: {{values: {{type: array}}}}
        nodes:
          start: {{type: start, next: each}}
          each: {{type: fan_out, source: "{{{{ inputs.values }}}}", task: {GIVE}, next: all}}
          all: {{type: fan_in, aggregation: {aggregation}, next: end}}
          end: {{type: end}}
        """)

    job, nodes, _ = await _run(database, definition, values=values)

    assert job["status"] == "completed", job["error_message"]
    assert nodes["all"]["output"] == output
    assert job["result_data"] == {"all": output}


@pytest.mark.requirement("W8")
async def test_results_are_in_index_order_whichever_finished_first(database):
    task = '{handler: sleep, params: {seconds: "{{ (5 - index) * 0.04 }}"}}'

    job, nodes, _ = await _run(database, _fan_out(task, source=ITEMS))

    finished = [child["completed_at"] for child in _children(nodes)]
    assert job["status"] == "completed"
    assert finished == sorted(finished, reverse=True)
    slept = [result["slept_seconds"] for result in nodes["all"]["output"]["results"]]
    assert slept == sorted(slept, reverse=True)


@pytest.mark.requirement("W8")
async def test_a_failed_child_fails_the_fan_in_and_the_error_says_how_many_failed(database):
    job, nodes, _ = await _run(database, _fan_out(SOME_FAIL, source=ITEMS), fails=[3])

    assert job["status"] == "failed"
    assert nodes["all"]["status"] == "failed"
    assert nodes["all"]["error"]["code"] == "fan-in.children-failed"
    assert nodes["all"]["error_message"].startswith("1 of 5 children of 'each' failed")
    assert "'each'" in job["error_message"]


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("aggregation", ["collect", "concat", "sum", "first", "last"])
async def test_tolerated_failures_are_listed_in_the_output(database, aggregation):
    definition = _fan_out(
        SOME_FAIL,
        source=ITEMS,
        options="tolerate: 2",
        fan_in=f"{{type: fan_in, aggregation: {aggregation}, next: end}}",
    )

    job, nodes, _ = await _run(database, definition, fails=[0, 3])

    assert job["status"] == "completed"
    assert nodes["all"]["output"]["count"] == 3
    assert nodes["all"]["output"]["failed"] == [
        {"index": 0, "node_id": "each__0", "error_message": "no 0"},
        {"index": 3, "node_id": "each__3", "error_message": "no 3"},
    ]


@pytest.mark.requirement("W8")
async def test_a_fan_in_can_have_a_handler_that_streams_the_results(database):
    task = '{handler: chunk_processor, params: {index: "{{ index }}", value: "{{ item }}"}}'
    definition = _fan_out(task, source=ITEMS, fan_in="{type: fan_in, handler: collect_results, next: end}")

    job, nodes, tasks = await _run(database, definition, count=1200)

    assert job["status"] == "completed"
    assert nodes["all"]["output"] == {"count": 1200, "total": 1200 * 1199}
    (joined,) = [task for task in tasks if task["node_id"] == "all"]
    assert joined["params"] == {"results_of": {"node_id": "each", "offset": 0, "limit": 1200}}


@pytest.mark.requirement("W8")
async def test_a_large_collected_output_is_stored_by_reference_and_read_for_templates(database):
    definition = workflow("""
        workflow_id: bulky
        version: 1
        inputs: {count: {type: integer}, text: {type: string}}
        nodes:
          start: {type: start, next: items}
          items: {handler: make_list, params: {count: "{{ inputs.count }}"}, next: each}
          each:
            type: fan_out
            source: "{{ nodes.items.output.items }}"
            task: {handler: give, params: {value: "{{ inputs.text }}"}}
            next: all
          all: {type: fan_in, next: last}
          last: {handler: echo, params: {count: "{{ nodes.all.output.count }}"}, next: end}
          end: {type: end}
        """)

    job, nodes, _ = await _run(database, definition, count=40, text="x" * 10_000)

    assert job["status"] == "completed", job["error_message"]
    assert nodes["all"]["output"] is None
    assert nodes["all"]["output_ref"]["results_of"] == "each"
    assert job["result_data"]["last"]["echoed_params"] == {"count": 40}


# Cost of large fan-outs


@pytest.mark.requirement("E9")
async def test_ten_thousand_children_need_few_statements(database):
    children = 10_000

    async with engine(database, workers=2) as running:
        if not await running.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'pg_stat_statements'"):
            pytest.skip("this server does not have the extension pg_stat_statements")
        await running.rows("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await running.rows("SELECT pg_stat_statements_reset()")
        job = await running.run(_fan_out("{handler: noop}", source=ITEMS), timeout=100, count=children)
        statements = await running.rows("""
            SELECT query, calls::int AS calls, rows::int AS rows
              FROM pg_stat_statements s
              JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
             WHERE query LIKE '%dagapp.%'
            """)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "completed", job["error_message"]
    assert nodes["all"]["output_ref"] or nodes["all"]["output"]["count"] == children
    of_orchestrator = [s for s in statements if not _is_of_worker(s["query"])]
    calls = sum(s["calls"] for s in of_orchestrator)
    rows = sum(s["rows"] for s in of_orchestrator)
    seconds = (job["completed_at"] - job["created_at"]).total_seconds()
    print(f"{children} children: {calls} statements, {rows} rows, {seconds:.1f} s")
    assert calls < 0.3 * children
    assert rows < 1.5 * children  # each result is read once, not again in each cycle


def _is_of_worker(query):
    marks = ("dagapp.workers", "light_handlers", "locked", "pg_stat_statements", "SELECT * FROM dagapp")
    return any(mark in query for mark in marks)
