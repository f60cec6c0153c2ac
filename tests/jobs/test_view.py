"""Whether a node can start, has to wait, or will never start: one table for each rule."""

from uuid import UUID

import pytest

from dagmaster.jobs.states import JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, NodeView, Readiness, is_busy, is_ended, is_failing, outcome, readiness
from tests.workflows.builders import a_graph

DONE = NodeView(NodeStatus.COMPLETED)
FAILED = NodeView(NodeStatus.FAILED)
CANCELLED = NodeView(NodeStatus.CANCELLED)
RUNNING = NodeView(NodeStatus.RUNNING)
READY = NodeView(NodeStatus.READY)
BRANCHED = NodeView(NodeStatus.SKIPPED, reason=SkipReason.BRANCH_NOT_TAKEN)
LOST = NodeView(NodeStatus.SKIPPED, reason=SkipReason.UPSTREAM_FAILED)

TWO = """
  start: {{type: start, next: [a, b]}}
  a: {{handler: echo, importance: {importance}}}
  b: {{handler: echo, importance: {importance}}}
  c: {{handler: echo, depends_on: {{{how}: [a, b]}}, next: end}}
  end: {{type: end}}
"""
BRANCH = """
  start: {type: start, next: choose}
  choose: {type: conditional, condition: "{{ 1 }} > 0", on_true: left, on_false: right}
  left: {handler: echo}
  right: {handler: echo}
  beside: {handler: echo, depends_on: {all_of: [choose]}}
  join: {handler: echo, depends_on: {any_of: [left, right]}}
  end: {type: end, depends_on: {all_of: [join, beside]}}
"""
FAN = """
  start: {{type: start, next: [tiles, other]}}
  other: {{handler: echo}}
  tiles: {{type: fan_out, source: [1, 2, 3], tolerate: {tolerate}, importance: {importance}, task: {{handler: echo}}}}
  gather: {{type: fan_in, fan_out: tiles, depends_on: {{any_of: [tiles, other]}}}}
  after: {{handler: echo, depends_on: {{all_of: [tiles]}}}}
  end: {{type: end, depends_on: {{all_of: [gather, after]}}}}
"""


def a_view(text, **nodes):
    graph = a_graph(text)
    return JobView(UUID(int=1), graph, {}, nodes={name: nodes.get(name, NodeView()) for name in graph.workflow.nodes})


def two(how, first, second, importance="critical"):
    return readiness(a_view(TWO.format(how=how, importance=importance), start=DONE, a=first, b=second), "c")


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (DONE, DONE, Readiness.START),
        (DONE, RUNNING, Readiness.WAIT),
        (DONE, BRANCHED, Readiness.START),
        (BRANCHED, BRANCHED, Readiness.SKIP_BRANCH),
        (BRANCHED, RUNNING, Readiness.WAIT),
        (DONE, FAILED, Readiness.SKIP_FAILED),
        (RUNNING, FAILED, Readiness.SKIP_FAILED),
        (DONE, LOST, Readiness.SKIP_FAILED),
        (DONE, CANCELLED, Readiness.SKIP_FAILED),
        (BRANCHED, LOST, Readiness.SKIP_FAILED),
    ],
)
def test_all_of_needs_every_dependency_and_one_skipped_by_a_branch_counts(first, second, expected):
    assert two("all_of", first, second) is expected
    assert two("all_of", second, first) is expected


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (DONE, RUNNING, Readiness.START),
        (DONE, FAILED, Readiness.START),
        (DONE, BRANCHED, Readiness.START),
        (RUNNING, FAILED, Readiness.WAIT),
        (RUNNING, BRANCHED, Readiness.WAIT),
        (BRANCHED, BRANCHED, Readiness.SKIP_BRANCH),
        (BRANCHED, FAILED, Readiness.SKIP_FAILED),
        (LOST, CANCELLED, Readiness.SKIP_FAILED),
    ],
)
def test_any_of_needs_one_completed_dependency(first, second, expected):
    assert two("any_of", first, second) is expected
    assert two("any_of", second, first) is expected


@pytest.mark.requirement("E1")
@pytest.mark.parametrize(
    ("importance", "how", "expected"),
    [
        ("optional", "all_of", Readiness.START),
        ("important", "all_of", Readiness.SKIP_FAILED),
        ("optional", "any_of", Readiness.SKIP_FAILED),
        ("important", "any_of", Readiness.SKIP_FAILED),
    ],
)
def test_a_failed_node_satisfies_all_of_only_if_it_is_optional_and_never_any_of(importance, how, expected):
    assert two(how, FAILED, FAILED, importance) is expected


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("left", Readiness.START),
        ("right", Readiness.SKIP_BRANCH),
        ("beside", Readiness.START),
        ("join", Readiness.WAIT),
    ],
)
def test_a_conditional_starts_its_chosen_branch_and_nodes_on_no_branch(target, expected):
    view = a_view(BRANCH, start=DONE, choose=NodeView(NodeStatus.COMPLETED, chosen=("left",)))

    assert readiness(view, target) is expected


def fan(target, importance="critical", tolerate=0, other=RUNNING, **tiles):
    tiles = {"status": NodeStatus.COMPLETED, "total": 3, "expanded": 3, "is_sized": True, **tiles}
    text = FAN.format(tolerate=tolerate, importance=importance)
    return readiness(a_view(text, start=DONE, other=other, tiles=NodeView(**tiles)), target)


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("target", ["gather", "after"])
def test_everything_after_a_fan_out_waits_for_all_children(target):
    assert fan(target, remaining=1) is Readiness.WAIT
    assert fan(target, remaining=0) is Readiness.START


@pytest.mark.requirement("W8")
def test_a_fan_in_waits_for_all_children_even_if_its_dependencies_are_satisfied():
    assert fan("gather", other=DONE, remaining=1) is Readiness.WAIT
    assert fan("gather", other=DONE, status=NodeStatus.READY, expanded=1, remaining=3) is Readiness.WAIT
    assert fan("gather", other=DONE, remaining=0) is Readiness.START


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("importance", "tolerate", "failed", "expected"),
    [
        ("critical", 0, 1, Readiness.SKIP_FAILED),
        ("important", 0, 1, Readiness.SKIP_FAILED),
        ("optional", 0, 1, Readiness.START),
        ("critical", 1, 1, Readiness.START),
        ("critical", 1, 2, Readiness.SKIP_FAILED),
        ("critical", 0.5, 1, Readiness.START),
    ],
)
def test_more_failed_children_than_tolerated_stop_the_nodes_after_the_fan_out(importance, tolerate, failed, expected):
    assert fan("after", importance, tolerate, failed_count=failed) is expected
    assert (
        fan("gather", importance, tolerate, failed_count=failed) is Readiness.START
    )  # the fan_in itself reports what failed


@pytest.mark.requirement("E17")
@pytest.mark.parametrize(
    ("a", "b", "importance", "expected"),
    [
        (DONE, DONE, "critical", JobStatus.COMPLETED),
        (DONE, BRANCHED, "critical", JobStatus.COMPLETED),
        (DONE, FAILED, "critical", JobStatus.FAILED),
        (DONE, LOST, "critical", JobStatus.FAILED),
        (DONE, CANCELLED, "critical", JobStatus.FAILED),
        (DONE, FAILED, "important", JobStatus.PARTIAL_SUCCESS),
        (DONE, LOST, "important", JobStatus.PARTIAL_SUCCESS),
        (FAILED, FAILED, "optional", JobStatus.COMPLETED),
    ],
)
def test_the_outcome_follows_from_the_importance_of_failed_nodes(a, b, importance, expected):
    text = TWO.format(how="any_of", importance=importance)

    assert outcome(a_view(text, start=DONE, a=a, b=b, c=DONE, end=DONE)) is expected


@pytest.mark.requirement("E17")
def test_the_end_node_does_not_count_for_the_outcome():
    text = TWO.format(how="any_of", importance="important")
    view = a_view(text, start=DONE, a=DONE, b=DONE, c=DONE, end=LOST)

    assert outcome(view) is JobStatus.COMPLETED


@pytest.mark.requirement("E1")
@pytest.mark.parametrize(("importance", "expected"), [("critical", True), ("important", False), ("optional", False)])
def test_only_a_critical_failure_makes_a_job_fail_immediately(importance, expected):
    assert is_failing(a_view(TWO.format(how="any_of", importance=importance), a=FAILED)) is expected


def test_a_job_is_busy_while_a_node_runs_or_waits_and_has_ended_otherwise():
    text = TWO.format(how="any_of", importance="critical")

    assert is_busy(a_view(text, start=DONE, a=READY))
    assert is_busy(a_view(text, start=DONE, a=RUNNING))
    assert not is_busy(a_view(text, start=DONE, a=DONE))
    assert not is_ended(a_view(text, start=DONE, a=DONE))
    assert is_ended(a_view(text, start=DONE, a=DONE, b=LOST, c=CANCELLED, end=BRANCHED))


def test_a_fan_out_that_failed_while_it_expanded_ends_after_its_children():
    tiles = NodeView(NodeStatus.FAILED, total=3, expanded=2, remaining=2, is_sized=True)
    view = a_view(FAN.format(tolerate=0, importance="optional"), start=DONE, other=DONE, tiles=tiles)

    assert tiles.live_children == 1
    assert readiness(view, "after") is Readiness.WAIT
    assert is_busy(view)
