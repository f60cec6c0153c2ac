"""The graph: dependencies, order, stages, and which nodes read which."""

import random

import pytest

from dagmaster.workflows.expressions import TemplateContext
from dagmaster.workflows.graph import OUTPUTS, build
from dagmaster.workflows.model import Workflow

from .builders import a_graph

DIAMOND = """\
  start: {type: start, next: [left, right]}
  left: {handler: echo, next: join, stage: work}
  right: {handler: echo, next: join, stage: work}
  join: {handler: echo, params: {l: "{{ nodes.left.output }}"}, next: end}
  end: {type: end}
"""
ROUTED = """\
  start: {type: start, next: [check, route]}
  check: {type: conditional, condition: "{{ inputs.n }} > 1", on_true: [big, big2], on_false: small}
  big: {handler: echo}
  big2: {handler: echo}
  small: {handler: echo}
  joined: {handler: echo, depends_on: {any_of: [big, small], all_of: [big2, route]}, next: end}
  route:
    type: conditional
    condition_field: inputs.n
    branches: [{condition: "< 1", next: few}, {default: true, next: [many, few]}]
  few: {handler: echo, next: end}
  many: {handler: echo, next: end}
  end: {type: end}
"""
NUMBER = "inputs: {n: {type: integer}}\n"


@pytest.mark.requirement("W3")
def test_several_incoming_edges_mean_all_of():
    graph = a_graph(DIAMOND)

    assert graph.start == "start"
    assert graph.all_of == {
        "start": (),
        "left": ("start",),
        "right": ("start",),
        "join": ("left", "right"),
        "end": ("join",),
    }
    assert not any(graph.any_of.values())
    assert graph.successors["start"] == ("left", "right")
    assert graph.successors["end"] == ()
    assert graph.upstream["join"] == {"start", "left", "right"}


@pytest.mark.requirement("W3")
def test_depends_on_of_a_node_overrides_the_next_of_others():
    graph = a_graph(DIAMOND.replace("join: {", "join: {depends_on: {any_of: [left, right], all_of: left}, "))

    assert (graph.all_of["join"], graph.any_of["join"]) == (("left",), ("left", "right"))
    assert graph.successors["left"] == ("join",)


@pytest.mark.requirement("W6")
def test_branches_are_edges_and_their_targets_are_known():
    graph = a_graph(ROUTED, head=NUMBER)

    assert graph.branch_targets == {"check": {"big", "big2", "small"}, "route": {"few", "many"}}
    assert graph.all_of["small"] == ("check",)
    assert graph.any_of["joined"] == ("big", "small")
    assert set(graph.all_of["end"]) == {"joined", "few", "many"}
    condition, targets = graph.branches["route"][0]
    assert condition.render(TemplateContext(value=0)) is True
    assert targets == ("few",)
    assert graph.branches["route"][1] == (None, ("many", "few"))
    assert graph.fields["route"].render(TemplateContext(inputs={"n": 3})) == 3
    assert graph.conditions["check"].render(TemplateContext(inputs={"n": 3})) is True


@pytest.mark.requirement("W4")
def test_stages_are_numbered_in_topological_order_of_first_appearance():
    graph = a_graph(DIAMOND)

    assert graph.order == ("start", "left", "right", "join", "end")
    assert graph.stages == {
        "start": (1, "start"),
        "left": (2, "work"),
        "right": (2, "work"),
        "join": (3, "join"),
        "end": (4, "end"),
    }


@pytest.mark.requirement("W4")
def test_a_stage_with_the_name_of_a_node_is_a_different_stage():
    graph = a_graph(DIAMOND.replace("stage: work", "stage: join"))

    assert graph.stages["left"] == (2, "join")
    assert graph.stages["join"] == (3, "join")


@pytest.mark.requirement("W9")
def test_a_stored_definition_gives_the_same_graph_although_the_order_of_its_keys_is_lost():
    graph = a_graph(ROUTED, head=NUMBER)
    body = graph.workflow.body()
    names = list(body["nodes"])

    for seed in range(20):
        random.Random(seed).shuffle(names)
        again = build(Workflow.model_validate({**body, "nodes": {name: body["nodes"][name] for name in names}}))

        assert again.order == graph.order
        assert again.stages == graph.stages
        assert again.successors == graph.successors
        assert again.all_of == graph.all_of


@pytest.mark.requirement("W3")
def test_every_node_comes_after_the_nodes_that_it_waits_for():
    graph = a_graph(ROUTED, head=NUMBER)

    for node_id in graph.order:
        before = graph.order[: graph.order.index(node_id)]
        assert {*graph.all_of[node_id], *graph.any_of[node_id]} <= set(before)


@pytest.mark.requirement("W8")
def test_a_fan_in_gathers_the_nearest_fan_out_or_the_one_it_names():
    graph = a_graph(
        """\
  start: {type: start, next: one}
  one: {type: fan_out, source: [1], task: {handler: echo}, next: [first, two]}
  first: {type: fan_in, next: end}
  two: {type: fan_out, results_of: one, task: {handler: echo}, next: pause}
  pause: {handler: echo, next: [second, both]}
  second: {type: fan_in, next: end}
  both: {type: fan_in, fan_out: one, handler: echo, params: {a: 1}, next: end}
  end: {type: end}
"""
    )

    assert graph.fan_out_of == {"first": "one", "second": "two", "both": "one"}
    assert set(graph.params) == {"one", "two", "pause", "both"}
    assert graph.params["both"].render(TemplateContext()) == {"a": 1}
    assert set(graph.sources) == {"one"}


@pytest.mark.requirement("E18")
def test_needs_and_consumers_name_the_nodes_whose_outputs_are_read():
    graph = a_graph(
        """\
  start: {type: start, next: [a, b, c]}
  a: {handler: echo, next: fan}
  b: {handler: echo, next: fan}
  c: {handler: echo, next: fan}
  fan:
    type: fan_out
    source: nodes.a.output.items
    label: "{{ nodes.b.output.name }} {{ index }}"
    task: {handler: echo, params: {x: ["{{ nodes['c'].output }}", "{{ item.items }}"]}}
    next: check
  check: {type: conditional, condition: "{{ nodes.a.output.n }} > 1", on_true: route, on_false: end}
  route:
    type: conditional
    condition_field: nodes.b.output.n
    branches: [{condition: "< {{ nodes.c.output.n }}", next: end}, {default: true, next: end}]
  end: {type: end}
""",
        head="outputs: {x: '{{ nodes.a.output }}'}\n",
    )

    assert graph.needs == {
        "start": set(),
        "a": set(),
        "b": set(),
        "c": set(),
        "end": set(),
        "fan": {"a", "b", "c"},
        "check": {"a"},
        "route": {"b", "c"},
        OUTPUTS: {"a"},
    }
    assert graph.consumers["a"] == {"fan", "check", OUTPUTS}
    assert graph.consumers["start"] == set()
    assert graph.outputs["x"].render(TemplateContext(outputs={"a": 5})) == 5
    assert graph.labels["fan"].render(TemplateContext(outputs={"b": {"name": "n"}}, index=2)) == "n 2"
    context = TemplateContext(outputs={"a": {"items": [1]}, "c": 3}, item={"items": 9})
    assert graph.sources["fan"].render(context) == [1]
    assert graph.params["fan"].render(context) == {"x": [3, 9]}


@pytest.mark.requirement("E26")
def test_a_workflow_without_outputs_has_none():
    graph = a_graph(DIAMOND)

    assert graph.outputs is None
    assert graph.needs[OUTPUTS] == frozenset()


@pytest.mark.requirement("W7")
def test_a_literal_source_can_contain_templates():
    graph = a_graph(
        "  start: {type: start, next: fan}\n"
        "  fan: {type: fan_out, source: [1, '{{ inputs.n }}'], task: {handler: echo}, next: end}\n  end: {type: end}\n",
        head=NUMBER,
    )

    assert graph.sources["fan"].render(TemplateContext(inputs={"n": 7})) == [1, 7]
