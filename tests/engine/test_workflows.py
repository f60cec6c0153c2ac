"""The workflow language, end to end on a real PostgreSQL. Fan-outs are in test_fan_out.py."""

import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.handlers.registry import Registration
from dagmaster.workflows.load import shipped
from tests.engine.harness import engine, open_gate, until, workflow


def _task_per_node(tasks):
    return {task["node_id"]: task for task in tasks}


# Versions, inputs and the job timeout


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(("written", "kept"), [("2", "2"), ("1.5", "1.5"), ('"2024-05"', "2024-05")])
async def test_a_version_is_kept_as_text(database, written, kept):
    definition = workflow(f"""
        workflow_id: versioned
        version: {written}
        nodes:
          start: {{type: start, next: end}}
          end: {{type: end}}
        """)

    async with engine(database, workers=0) as running:
        job = await running.run(definition)

    assert job["workflow_version"] == kept


TYPED = """
    workflow_id: typed
    version: 1
    inputs:
      name: {type: string, required: true}
      count: {type: integer, default: 3}
      share: {type: number, default: 0.5}
      is_fine: {type: boolean, default: true}
      files: {type: array, default: []}
      box: {type: object, default: {west: -1}}
      note: {type: string}
    nodes:
      start: {type: start, next: say}
      say:
        handler: echo
        params:
          count: "{{ inputs.count }}"
          note: "{{ inputs.note | default('none') }}"
        next: end
      end: {type: end}
    """


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ({}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x", "count": 1.5}, "count"),
        ({"name": "x", "count": True}, "count"),
        ({"name": "x", "share": "half"}, "share"),
        ({"name": "x", "is_fine": "yes"}, "is_fine"),
        ({"name": "x", "files": "a.tif"}, "files"),
        ({"name": "x", "box": []}, "box"),
        ({"name": "x", "cuont": 1}, "cuont"),
    ],
)
async def test_invalid_inputs_are_refused_with_the_name_of_the_field_and_no_job_is_created(database, inputs, field):
    async with engine(database, orchestrators=0, workers=0) as running:
        with pytest.raises(InvalidRequest) as refusal:
            await running.submit(workflow(TYPED), **inputs)

        assert f"'{field}'" in str(refusal.value)
        assert refusal.value.facts["fields"] == [field]
        assert await running.value("SELECT count(*) FROM dagapp.dag_jobs") == 0


@pytest.mark.requirement("W1")
async def test_inputs_that_are_left_out_have_their_defaults(database):
    async with engine(database) as running:
        job = await running.run(workflow(TYPED), name="x", count=7)

    assert job["input_params"] == {
        "name": "x",
        "count": 7,
        "share": 0.5,
        "is_fine": True,
        "files": [],
        "box": {"west": -1},
    }
    assert job["result_data"]["say"]["echoed_params"] == {"count": 7, "note": "none"}


@pytest.mark.requirement("W1")
async def test_the_timeout_of_a_workflow_becomes_the_deadline_of_its_job(database):
    short = workflow("""
        workflow_id: short
        version: 1
        timeout_seconds: 90
        nodes:
          start: {type: start, next: end}
          end: {type: end}
        """)

    async with engine(database, workers=0) as running:
        timed = await running.run(short)
        default = await running.job(await running.submit("echo_test"))

    assert (timed["deadline_at"] - timed["created_at"]).total_seconds() == pytest.approx(90, abs=0.1)
    assert (default["deadline_at"] - default["created_at"]).total_seconds() == pytest.approx(7200, abs=0.1)


# Types of nodes


EVERY_TYPE = """
    workflow_id: every_type
    version: 1
    nodes:
      start: {type: start, next: untyped}
      untyped: {handler: make_list, params: {count: 3}, next: typed}
      typed: {type: task, handler: echo, next: choose}
      choose:
        type: conditional
        condition: "{{ nodes.untyped.output.count }} > 1"
        on_true: spread
        on_false: few_end
      spread:
        type: fan_out
        source: "{{ nodes.untyped.output.items }}"
        task: {handler: give, params: {value: "{{ item }}"}}
        next: gathered
      gathered: {type: fan_in, next: streamed_spread}
      streamed_spread:
        type: fan_out
        source: [1, 2]
        task: {handler: chunk_processor, params: {value: "{{ item }}"}}
        next: streamed
      streamed: {type: fan_in, handler: collect_results, next: end}
      few_end: {type: end}
      end: {type: end}
    """


@pytest.mark.requirement("W2")
async def test_workers_run_only_tasks_children_and_handlers_of_fan_ins(database):
    async with engine(database) as running:
        job = await running.run(workflow(EVERY_TYPE))
        nodes, tasks = await running.nodes(job["job_id"]), await running.tasks(job["job_id"])

    assert job["status"] == "completed"
    children = {"spread__0", "spread__1", "spread__2", "streamed_spread__0", "streamed_spread__1"}
    assert {task["node_id"] for task in tasks} == {"untyped", "typed", "streamed"} | children
    assert nodes["few_end"]["status"] == "skipped"
    assert nodes["streamed"]["output"] == {"count": 2, "total": 6}


# Edges


@pytest.mark.requirement("W3")
async def test_depends_on_of_a_node_overrides_the_next_of_others(database):
    definition = workflow("""
        workflow_id: overriding
        version: 1
        nodes:
          start: {type: start, next: [slow, quick]}
          slow: {handler: gate, next: [early, end]}
          quick: {handler: echo}
          early: {handler: echo, depends_on: {all_of: [quick]}, next: end}
          end: {type: end}
        """)

    async with engine(database) as running:
        job_id = await running.submit(definition)

        async def early_is_done():
            return (await running.nodes(job_id))["early"]["status"] == "completed"

        await until(early_is_done)
        assert (await running.nodes(job_id))["slow"]["status"] in ("dispatched", "running")
        open_gate(job_id)
        job = await running.wait(job_id)

    assert job["status"] == "completed"


@pytest.mark.requirement("W3")
async def test_several_incoming_edges_mean_all_of(database):
    definition = workflow("""
        workflow_id: joining
        version: 1
        nodes:
          start: {type: start, next: [left, right]}
          left: {handler: gate, next: joined}
          right: {handler: gate, next: joined}
          joined: {handler: echo, next: end}
          end: {type: end}
        """)

    async with engine(database) as running:
        job_id = await running.submit(definition)
        open_gate(job_id, "left")

        async def left_is_done():
            return (await running.nodes(job_id))["left"]["status"] == "completed"

        await until(left_is_done)
        assert (await running.nodes(job_id))["joined"]["status"] == "pending"
        open_gate(job_id, "right")
        job = await running.wait(job_id)
        nodes = await running.nodes(job_id)

    assert job["status"] == "completed"
    assert nodes["joined"]["dispatched_at"] >= nodes["right"]["completed_at"]


@pytest.mark.requirement("W3")
async def test_any_of_starts_a_node_when_the_first_dependency_completes(database):
    definition = workflow("""
        workflow_id: racing
        version: 1
        nodes:
          start: {type: start, next: [left, right]}
          left: {handler: gate}
          right: {handler: echo}
          first: {handler: echo, depends_on: {any_of: [left, right]}, next: end}
          end: {type: end, depends_on: {all_of: [first, left]}}
        """)

    async with engine(database) as running:
        job_id = await running.submit(definition)

        async def first_is_done():
            return (await running.nodes(job_id))["first"]["status"] == "completed"

        await until(first_is_done)
        assert (await running.nodes(job_id))["left"]["status"] in ("dispatched", "running")
        open_gate(job_id)
        job = await running.wait(job_id)

    assert job["status"] == "completed"


# Fields of a task


ROUTED = """
    workflow_id: routed
    version: 1
    nodes:
      start: {type: start, next: [said, registered, default, spread]}
      said: {handler: routed, queue: container-tasks, timeout_seconds: 5, next: end}
      registered: {handler: routed, next: end}
      default: {handler: give, next: end}
      spread:
        type: fan_out
        source: [1]
        task: {handler: routed, queue: container-tasks}
        next: joined
      joined: {type: fan_in, handler: collect_results, queue: functionapp-tasks, timeout_seconds: 9, next: end}
      end: {type: end}
    """


@pytest.mark.requirement("W4")
async def test_queue_and_timeout_come_from_yaml_then_registration_then_default(database):
    routed = Registration("routed", "tests.engine.harness:give", queue="functionapp-tasks", timeout_seconds=77)

    async with engine(database, handlers=[routed]) as running:
        job = await running.run(workflow(ROUTED))
        tasks = _task_per_node(await running.tasks(job["job_id"]))

    assert job["status"] == "completed"
    assert {name: (task["queue"], task["timeout_seconds"]) for name, task in tasks.items()} == {
        "said": ("container-tasks", 5),
        "registered": ("functionapp-tasks", 77),
        "default": ("dag-worker-tasks", 3600),
        "spread__0": ("container-tasks", 77),
        "joined": ("functionapp-tasks", 9),
    }


@pytest.mark.requirement("W4")
async def test_each_node_has_the_retry_policy_of_its_yaml(database):
    definition = workflow("""
        workflow_id: policies
        version: 1
        nodes:
          start: {type: start, next: [plain, patient, spread]}
          plain: {handler: echo, next: end}
          patient: {handler: echo, retry: {max_attempts: 9}, next: end}
          spread: {type: fan_out, source: [1], task: {handler: echo, retry: {max_attempts: 1}}, next: end}
          end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    allowed = {name: nodes[name]["max_retries"] for name in ("plain", "patient", "spread__0")}
    assert allowed == {"plain": 3, "patient": 9, "spread__0": 1}


@pytest.mark.requirement("W4")
async def test_stage_and_importance_are_stored_in_the_definition_of_the_job(database):
    definition = workflow("""
        workflow_id: staged
        version: 1
        nodes:
          start: {type: start, next: one}
          one: {handler: echo, stage: prepare, importance: important, next: end}
          end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        body = await running.value(
            "SELECT body FROM dagapp.dag_workflow_definitions WHERE definition_hash = %s", job["definition_hash"]
        )

    assert body["nodes"]["one"] == {
        "handler": "echo",
        "stage": "prepare",
        "importance": "important",
        "next": ["end"],
    }


# Templates


TEMPLATES = """
    workflow_id: templates
    version: 1
    inputs:
      files: {type: array}
      box: {type: object}
      count: {type: integer}
      note: {type: string}
    nodes:
      start: {type: start, next: first}
      first:
        handler: give
        params: {value: {items: [1, 2], keys: k, values: v, get: g, count: 4, is_fine: false, nothing: null}}
        next: second
      second:
        handler: echo
        params:
          files: "{{ inputs.files }}"
          box: "{{ inputs.box }}"
          count: "{{ inputs.count }}"
          more: "{{ inputs.count + 1 }}"
          text: "{{ inputs.count }} files"
          items: "{{ nodes.first.output.items }}"
          keys: "{{ nodes.first.output.keys }}"
          values: "{{ nodes.first.output.values }}"
          get: "{{ nodes.first.output.get }}"
          is_fine: "{{ nodes.first.output.is_fine }}"
          nothing: "{{ nodes.first.output.nothing }}"
          note: "{{ inputs.note | default('none') }}"
          workflow: "{{ job.workflow_id }}"
          nested: {list: ["{{ inputs.count }}", 2]}
        next: end
      end: {type: end}
    """


@pytest.mark.requirement("W5")
async def test_an_expression_that_is_the_whole_value_keeps_its_type_and_keys_hide_methods(database):
    async with engine(database) as running:
        job = await running.run(workflow(TEMPLATES), files=["a", "b"], box={"west": 1.5}, count=3)

    assert job["status"] == "completed", job["error_message"]
    assert job["result_data"]["second"]["echoed_params"] == {
        "files": ["a", "b"],
        "box": {"west": 1.5},
        "count": 3,
        "more": 4,
        "text": "3 files",
        "items": [1, 2],
        "keys": "k",
        "values": "v",
        "get": "g",
        "is_fine": False,
        "nothing": None,
        "note": "none",
        "workflow": "templates",
        "nested": {"list": [3, 2]},
    }


@pytest.mark.requirement("W5")
async def test_a_missing_value_fails_the_node_and_the_error_names_it(database):
    definition = workflow("""
        workflow_id: missing
        version: 1
        nodes:
          start: {type: start, next: first}
          first: {handler: give, params: {value: {size: 1}}, next: second}
          second:
            handler: echo
            params: {width: "{{ nodes.first.output.width }}"}
            retry: {max_attempts: 0}
            next: end
          end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert "width" in nodes["second"]["error_message"]
    assert nodes["second"]["error_message"] in job["error_message"]
    assert nodes["second"]["attempt"] == 0


@pytest.mark.requirement("W5")
async def test_a_template_that_fails_is_retried_like_any_failure(database):
    definition = workflow("""
        workflow_id: retried_template
        version: 1
        inputs: {note: {type: string}}
        nodes:
          start: {type: start, next: say}
          say:
            handler: echo
            params: {note: "{{ inputs.note }}"}
            retry: {max_attempts: 2, backoff: fixed, initial_delay_seconds: 0.05}
            next: end
          end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        events = [event["event_type"] for event in await running.events(job["job_id"]) if event["node_id"] == "say"]

    assert job["status"] == "failed"
    assert events == ["node_ready", "node_failed", "node_retried", "node_failed", "node_retried", "node_failed"]


# Conditionals


def _conditional(condition):
    return workflow(f"""
        workflow_id: conditional
        version: 1
        inputs: {{size: {{type: number}}}}
        nodes:
          start: {{type: start, next: measure}}
          measure: {{handler: give, params: {{value: {{mb: "{{{{ inputs.size }}}}"}}}}, next: choose}}
          choose:
            type: conditional
            condition: "{condition}"
            on_true: large
            on_false: small
          large: {{handler: echo, next: large_more}}
          large_more: {{handler: echo}}
          small: {{handler: echo}}
          joined: {{handler: echo, depends_on: {{any_of: [large_more, small]}}, next: end}}
          end: {{type: end}}
        """)


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    "condition",
    [
        "{{ nodes.measure.output.mb }} > 100",
        "{{ nodes.measure.output.mb > 100 }}",
        "{{ nodes.measure.output.mb > 100 and inputs.size > 1 }}",
    ],
)
@pytest.mark.parametrize("size", [250, 100])
async def test_a_condition_takes_one_branch_and_skips_the_nodes_of_the_other(database, condition, size):
    async with engine(database) as running:
        job = await running.run(_conditional(condition), size=size)
        nodes = await running.nodes(job["job_id"])

    taken, left_out = ("large", "small") if size > 100 else ("small", "large")
    assert job["status"] == "completed", job["error_message"]
    assert nodes["choose"]["output"]["next"] == [taken]
    assert (nodes[taken]["status"], nodes[left_out]["status"]) == ("completed", "skipped")
    assert nodes["joined"]["status"] == nodes["end"]["status"] == "completed"
    skipped = [node for node in nodes.values() if node["status"] == "skipped"]
    assert {node["reason"] for node in skipped} == {"branch_not_taken"}
    assert len(skipped) == (1 if size > 100 else 2)


BRANCHES = """
    workflow_id: branches
    version: 1
    inputs: {size: {type: number}}
    nodes:
      start: {type: start, next: measure}
      measure: {handler: give, params: {value: {mb: "{{ inputs.size }}"}}, next: choose}
      choose:
        type: conditional
        condition_field: nodes.measure.output.mb
        branches:
          - {condition: "< 100", next: direct}
          - {condition: "< 1000", next: [tiled, noted]}
          - {default: true, next: refused}
      direct: {handler: echo}
      tiled: {handler: echo}
      noted: {handler: echo}
      refused: {handler: echo}
      end: {type: end, depends_on: {any_of: [direct, tiled, noted, refused]}}
    """


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("size", "taken"), [(99, {"direct"}), (100, {"tiled", "noted"}), (999, {"tiled", "noted"}), (1000, {"refused"})]
)
async def test_the_first_branch_whose_condition_holds_is_taken_otherwise_the_default(database, size, taken):
    async with engine(database) as running:
        job = await running.run(workflow(BRANCHES), size=size)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "completed", job["error_message"]
    targets = {"direct", "tiled", "noted", "refused"}
    assert {name for name in targets if nodes[name]["status"] == "completed"} == taken
    assert {nodes[name]["reason"] for name in targets - taken} == {"branch_not_taken"}
    assert nodes["end"]["status"] == "completed"


@pytest.mark.requirement("W6")
async def test_a_skipped_node_satisfies_all_of_but_any_of_needs_a_completed_one(database):
    definition = workflow("""
        workflow_id: skipping
        version: 1
        nodes:
          start: {type: start, next: [choose, always]}
          always: {handler: echo}
          choose: {type: conditional, condition: "{{ 1 > 2 }}", on_true: [left, right], on_false: other}
          left: {handler: echo}
          right: {handler: echo}
          other: {handler: echo, next: end}
          all_join: {handler: echo, depends_on: {all_of: [left, always]}, next: end}
          any_join: {handler: echo, depends_on: {any_of: [left, right]}, next: end}
          end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "completed"
    assert nodes["all_join"]["status"] == "completed"
    assert (nodes["any_join"]["status"], nodes["any_join"]["reason"]) == ("skipped", "branch_not_taken")


@pytest.mark.requirement("W6")
async def test_a_condition_with_values_that_cannot_be_compared_fails_the_node(database):
    async with engine(database) as running:
        definition = _conditional("{{ nodes.measure.output.name }} > 100")
        job = await running.run(definition, size=1)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert nodes["choose"]["status"] == "failed"
    assert "name" in nodes["choose"]["error_message"]


# Stored definitions


@pytest.mark.requirement("W9")
async def test_a_job_keeps_its_definition_when_a_newer_one_is_deployed(database):
    def version(number, last):
        return workflow(f"""
            workflow_id: evolving
            version: {number}
            nodes:
              start: {{type: start, next: wait}}
              wait: {{handler: gate, next: {last}}}
              {last}: {{handler: echo, params: {{version: {number}}}, next: end}}
              end: {{type: end}}
            """)

    async with engine(database) as running:
        old = await running.submit(version(1, "before"))
        hash_at_start = (await running.job(old))["definition_hash"]
        await running.wait(old, until=("running",))
        new = await running.submit(version(2, "after"))
        running.orchestrators[0].stop()
        await running.start_orchestrator()
        open_gate(old)
        open_gate(new)
        jobs = {number: await running.wait(job_id) for number, job_id in ((1, old), (2, new))}

    assert jobs[1]["definition_hash"] == hash_at_start != jobs[2]["definition_hash"]
    assert jobs[1]["result_data"] == {"before": {"echoed_params": {"version": 1}}}
    assert jobs[2]["result_data"] == {"after": {"echoed_params": {"version": 2}}}
    assert (jobs[1]["workflow_version"], jobs[2]["workflow_version"]) == ("1", "2")


@pytest.mark.requirement("W9")
async def test_the_same_definition_is_stored_once(database):
    async with engine(database) as running:
        jobs = [await running.run("echo_test", message=text) for text in ("a", "b")]

        assert jobs[0]["definition_hash"] == jobs[1]["definition_hash"]
        assert await running.value("SELECT count(*) FROM dagapp.dag_workflow_definitions") == 1


# Workflows that ship


SHIPPED = {
    "echo_test": ({"message": "hi"}, {"echoed": {"message": "hi"}}),
    "hello_world": ({"name": "Ada"}, {"message": "Hello, Ada!"}),
    "conditional_test": ({"size_mb": 250}, {"size_mb": 250, "path": "large", "route": "tiled"}),
    "fan_out_test": ({"count": 12}, {"count": 12}),
    "retry_test": ({}, None),
    "retry_fan_out_test": ({"count": 20}, {"count": 20}),
    "demo": ({"count": 20}, {"total": 570, "chunks": 20, "category": "small"}),
    "multi_phase_test": ({"seconds_per_phase": 0}, None),
}
# They need files and the catalogue: tests/engine/test_raster_jobs.py
OF_RASTERS = {
    "process_large_raster",
    "raster_collection",
    "raster_ingest",
    "raster_tiled_processing",
    "raster_validate",
    "stac_register",
}


# They need a public asset: tests/external
OF_EXTERNAL_COPIES = {"adf_export", "external_export", "unpublish"}


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("workflow_id", SHIPPED)
async def test_the_shipped_test_workflows_complete(database, workflow_id):
    inputs, result = SHIPPED[workflow_id]

    async with engine(database) as running:
        job = await running.run(workflow_id, **inputs)

    assert job["status"] == "completed", job["error_message"]
    if result is not None:
        assert job["result_data"] == result


@pytest.mark.requirement("W10")
def test_every_shipped_workflow_is_run_by_these_tests():
    assert {path.stem for path in shipped()} == {*SHIPPED, *OF_RASTERS, *OF_EXTERNAL_COPIES}


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(("size_mb", "path", "route"), [(50, "small", "direct"), (5000, "large", "distributed")])
async def test_conditional_test_takes_every_route(database, size_mb, path, route):
    async with engine(database) as running:
        job = await running.run("conditional_test", size_mb=size_mb)

    assert job["result_data"] == {"size_mb": size_mb, "path": path, "route": route}


# Limits


@pytest.mark.requirement("W11")
async def test_inputs_that_are_too_large_are_refused_at_submission(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        with pytest.raises(InvalidRequest) as refusal:
            await running.submit("echo_test", message="x" * 300_000)

        assert refusal.value.code == "inputs.too-large"
        assert await running.value("SELECT count(*) FROM dagapp.dag_jobs") == 0


@pytest.mark.requirement("W11")
async def test_the_limit_on_inputs_is_a_setting(database):
    async with engine(database, orchestrators=0, workers=0, max_inputs_bytes=100) as running:
        with pytest.raises(InvalidRequest) as refusal:
            await running.submit("echo_test", message="x" * 200)

    assert refusal.value.code == "inputs.too-large"


@pytest.mark.requirement("W11")
async def test_params_that_are_too_large_fail_the_node_with_the_reason(database):
    definition = workflow("""
        workflow_id: bulky
        version: 1
        inputs: {text: {type: string}}
        nodes:
          start: {type: start, next: say}
          say:
            handler: echo
            params: {one: "{{ inputs.text }}", two: "{{ inputs.text }}"}
            retry: {max_attempts: 0}
            next: end
          end: {type: end}
        """)

    async with engine(database, max_params_bytes=300_000) as running:
        job = await running.run(definition, text="x" * 200_000)
        nodes = await running.nodes(job["job_id"])

        assert job["status"] == "failed"
        assert nodes["say"]["error"]["code"] == "params.too-large"
        assert "400,019 bytes; the limit is 300,000" in nodes["say"]["error_message"]
        assert await running.tasks(job["job_id"]) == []


# Outputs of a job


@pytest.mark.requirement("E26")
async def test_the_outputs_mapping_names_the_result(database):
    definition = workflow("""
        workflow_id: mapped
        version: 1
        inputs: {name: {type: string, default: x}}
        nodes:
          start: {type: start, next: one}
          one: {handler: give, params: {value: {path: a.tif, sizes: [1, 2]}}, next: end}
          end: {type: end}
        outputs:
          blob: "{{ nodes.one.output.path }}"
          sizes: "{{ nodes.one.output.sizes }}"
          name: "{{ inputs.name }}"
          fixed: 5
        """)

    async with engine(database) as running:
        job = await running.run(definition)

    assert job["result_data"] == {"blob": "a.tif", "sizes": [1, 2], "name": "x", "fixed": 5}


@pytest.mark.requirement("E26")
async def test_by_default_the_result_is_the_outputs_of_the_nodes_before_an_end(database):
    definition = workflow("""
        workflow_id: unmapped
        version: 1
        nodes:
          start: {type: start, next: [one, two]}
          one: {handler: give, params: {value: 1}, next: three}
          two: {handler: give, params: {value: 2}, next: end}
          three: {handler: give, params: {value: 3}, next: other_end}
          end: {type: end}
          other_end: {type: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)

    assert job["result_data"] == {"two": 2, "three": 3}


@pytest.mark.requirement("E26")
async def test_an_output_without_a_value_fails_the_job_with_the_reason(database):
    definition = workflow("""
        workflow_id: unmappable
        version: 1
        nodes:
          start: {type: start, next: one}
          one: {handler: give, params: {value: {a: 1}}, next: end}
          end: {type: end}
        outputs: {b: "{{ nodes.one.output.b }}"}
        """)

    async with engine(database) as running:
        job = await running.run(definition)

    assert job["status"] == "failed"
    assert job["error_message"] == "the workflow's outputs could not be rendered: `nodes.one.output.b` is undefined"


@pytest.mark.requirement("E17")
async def test_outputs_of_failed_nodes_are_null_in_a_partial_success(database):
    text = """
        workflow_id: partly
        outputs: {good: "{{ nodes.good.output.echoed_params.n }}", bad: "{{ nodes.bad.output.n }}"}
        nodes:
          start: {type: start, next: [good, bad]}
          good: {handler: echo, params: {n: 1}, next: end}
          bad: {handler: fail, importance: important, retry: {max_attempts: 0}, next: end}
          end: {type: end}
    """
    async with engine(database) as running:
        job = await running.run(workflow(text))

        assert (job["status"], job["result_data"]) == ("partial_success", {"good": 1, "bad": None})
