"""The shipped workflows, and the diagram of a workflow."""

import pytest

from dagmaster.errors import InvalidWorkflow
from dagmaster.handlers.shipped import REGISTRATIONS
from dagmaster.library.workflows import read_with_library
from dagmaster.settings import Settings
from dagmaster.testing.trial import run_handler
from dagmaster.workflows.draw import mermaid
from dagmaster.workflows.expressions import TemplateContext
from dagmaster.workflows.graph import build
from dagmaster.workflows.inputs import check_inputs
from dagmaster.workflows.load import read_all, shipped
from dagmaster.workflows.model import FanInNode, work_of

from .builders import QUEUES, a_graph

LOADED = read_all(shipped(), handlers={handler.name for handler in REGISTRATIONS}, queues=QUEUES)


@pytest.mark.requirement("W10")
def test_every_shipped_workflow_is_accepted():
    assert [str(error) for error in LOADED.refused] == []
    assert set(LOADED.workflows) >= {
        "echo_test",
        "hello_world",
        "conditional_test",
        "fan_out_test",
        "retry_test",
        "retry_fan_out_test",
        "demo",
    }


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("name", sorted(LOADED.workflows))
def test_every_shipped_workflow_is_in_the_file_of_its_name_and_has_a_description(name):
    workflow = LOADED.workflows[name]

    assert LOADED.files[name].endswith(f"/{name}.yaml")
    assert workflow.name
    assert workflow.description
    assert all(declared.description for declared in workflow.inputs.values())
    assert build(workflow).start == "start"


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("name", "node", "retries"),
    [("retry_test", "flaky", 5), ("retry_fan_out_test", "process", 5), ("demo", "verify", 5)],
)
def test_flaky_workflows_retry_often_enough_and_soon(name, node, retries):
    work = work_of(LOADED.workflows[name].nodes[node])

    assert work.retry.max_attempts == retries
    assert work.retry.max_delay_seconds <= 0.5
    assert "seed" in work.params


@pytest.mark.requirement("W10")
def test_the_retry_test_retries_by_default():
    workflow = LOADED.workflows["retry_test"]
    params = build(workflow).params["flaky"].render(TemplateContext(inputs=check_inputs(workflow, {})))

    ends = [run_handler("flaky_echo", params, node_id="flaky", attempt=attempt).status for attempt in (1, 2, 3)]

    assert ends == ["failed", "failed", "succeeded"]


@pytest.mark.requirement("W10")
def test_the_fan_out_test_has_ten_children_by_default():
    workflow = LOADED.workflows["fan_out_test"]
    graph = build(workflow)

    inputs = check_inputs(workflow, {})
    source = graph.sources["process"].render(
        TemplateContext(inputs=inputs, outputs={"make_list": {"items": list(range(10))}})
    )

    assert inputs == {"count": 10}
    assert source == list(range(10))
    assert graph.params["process"].render(TemplateContext(item=5, index=5)) == {"index": 5, "value": 5}


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("size", "path", "route"), [(50, "small", "direct"), (250, "large", "tiled"), (5000, "large", "distributed")]
)
def test_the_conditional_test_takes_one_branch_of_each_form(size, path, route):
    graph = build(LOADED.workflows["conditional_test"])
    measured = {"size_mb": size, "is_large": size > 100, "category": "x"}
    context = TemplateContext(inputs={"size_mb": size, "threshold_mb": 100}, outputs={"measure": measured})

    is_large = graph.conditions["is_large"].render(context)
    field = graph.fields["by_size"].render(context)
    taken = next(t for c, t in graph.branches["by_size"] if c is None or c.render(context.having(value=field)))

    assert ("large" if is_large else "small") == path
    assert taken == (route,)
    outputs = {"measure": measured, path: {"echoed_params": {"path": path}}, route: {"echoed_params": {"route": route}}}
    results = {key: value.render(TemplateContext(outputs=outputs)) for key, value in graph.outputs.items()}
    assert results == {"size_mb": size, "path": path, "route": route}


@pytest.mark.requirement("W10")
def test_the_demonstration_shows_every_kind_of_node():
    workflow = LOADED.workflows["demo"]

    assert check_inputs(workflow, {})["count"] == 300
    assert {node.type for node in workflow.nodes.values()} == {
        "start",
        "end",
        "task",
        "conditional",
        "fan_out",
        "fan_in",
    }
    assert any(isinstance(node, FanInNode) and node.aggregation == "sum" for node in workflow.nodes.values())


def test_a_diagram_has_the_shapes_branches_and_joins_of_its_workflow():
    drawing = mermaid(build(LOADED.workflows["conditional_test"]))

    assert drawing.startswith("flowchart TD\n")
    assert 'n0(["start"])' in drawing
    assert 'n2 -->|"true"| n3' in drawing
    assert "n3 -.-> n5" in drawing
    assert '-->|"otherwise"|' in drawing


def test_text_of_a_definition_is_escaped_in_the_diagram():
    graph = a_graph(
        "  start: {type: start, next: a}\n"
        '  a: {type: conditional, condition: "job.x == \'\\"]<script>\'", on_true: end, on_false: end}\n'
        "  end: {type: end}\n"
    )

    assert "<script>" not in mermaid(graph)
    assert '"]' not in mermaid(graph).replace('"])', "")
    assert '-->|"true #47; false"| ' in mermaid(graph)


def test_an_alias_is_the_same_workflow_under_another_name():
    alias, target = LOADED.workflows["raster_tiled_processing"], LOADED.workflows["raster_ingest"]

    assert alias.workflow_id == "raster_tiled_processing"
    assert alias.description != target.description
    assert (alias.nodes, alias.inputs, alias.outputs) == (target.nodes, target.inputs, target.outputs)
    assert alias.body()["workflow_id"] == "raster_tiled_processing"


@pytest.mark.parametrize("order", [1, -1])
def test_an_alias_of_an_alias_is_refused_in_every_order_of_the_files(tmp_path, order):
    one, two, three = tmp_path / "one.yaml", tmp_path / "two.yaml", tmp_path / "three.yaml"
    one.write_text("workflow_id: one\nnodes: {start: {type: start, next: end}, end: {type: end}}\n")
    two.write_text("workflow_id: two\nalias_of: one\n")
    three.write_text("workflow_id: three\nalias_of: two\n")

    loaded = read_all([one, two, three][::order])

    assert set(loaded.workflows) == {"one", "two"}
    (error,) = loaded.refused
    assert "'two', which does not exist, is not valid, or is an alias itself" in str(error)
    with pytest.raises(InvalidWorkflow):
        read_with_library(three, three.read_bytes(), Settings(), {})


@pytest.mark.parametrize("text", ["alias_of: nowhere", "alias_of: one\nnodes: {}", "alias_of: [one]"])
def test_an_alias_that_cannot_be_resolved_is_refused_with_its_file(tmp_path, text):
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text("workflow_id: one\nnodes: {start: {type: start, next: end}, end: {type: end}}\n")
    other.write_text(f"workflow_id: other\n{text}\n")

    loaded = read_all([other, one])

    assert set(loaded.workflows) == {"one"}
    (error,) = loaded.refused
    assert "other.yaml" in str(error)
    assert "alias_of" in str(error)
