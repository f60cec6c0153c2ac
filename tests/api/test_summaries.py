"""Durations of nodes and stages, and the remaining time of a fan_out, computed without reading its children."""

from datetime import UTC, datetime, timedelta

import pytest

from dagmaster.api.estimates import with_estimates
from dagmaster.api.summaries import stages_of, summaries_of
from dagmaster.client.models.nodes import NodeSummary
from dagmaster.database.reads.jobs import Snapshot
from dagmaster.jobs.states import JobStatus, NodeStatus
from dagmaster.workflows.graph import build
from tests.engine.harness import workflow

pytestmark = pytest.mark.requirement("E23")

START = datetime(2026, 1, 1, tzinfo=UTC)
GRAPH = build(
    workflow("""
    workflow_id: many
    nodes:
      start: {type: start, next: list}
      list: {handler: make_list, params: {count: 100}, next: split}
      split: {type: fan_out, source: "{{ nodes.list.output.items }}", task: {handler: echo}, next: gather}
      gather: {type: fan_in, next: end}
      end: {type: end}
""")
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def node(name: str, ended: float | None, started: float | None = None, **counts: int) -> NodeSummary:
    return NodeSummary(
        node_id=name,
        status=NodeStatus.PENDING if ended is None else NodeStatus.COMPLETED,
        dispatched_at=None if started is None else at(started),
        completed_at=None if ended is None else at(ended),
        **counts,
    )


def snapshot(now: float, *later: NodeSummary) -> Snapshot:
    nodes = (node("start", 0), node("list", 4, started=1), *later)
    return Snapshot(JobStatus.RUNNING, START, START, None, None, at(now), nodes)


def seconds_of(moment: Snapshot) -> tuple[dict[str, float | None], dict[str, float | None]]:
    nodes, stages = summaries_of(GRAPH, moment), stages_of(GRAPH, moment)
    return {each.node_id: each.elapsed_seconds for each in nodes}, {each.name: each.elapsed_seconds for each in stages}


def test_a_fan_out_takes_from_the_end_of_the_node_before_it_to_the_start_of_the_node_after_it() -> None:
    split = node("split", 10, total=100, expanded=100, remaining=0)
    nodes, stages = seconds_of(snapshot(60, split, node("gather", 44), node("end", 45)))

    assert (nodes["list"], nodes["split"]) == (3, 40)
    assert (stages["list"], stages["split"]) == (3, 40)


def test_the_remaining_time_of_a_fan_out_is_estimated_from_the_children_that_have_ended() -> None:
    split = node("split", 10, total=100, expanded=100, remaining=75)
    moment = snapshot(14, split, node("gather", None), node("end", None))
    nodes, stages, eta = with_estimates(GRAPH, summaries_of(GRAPH, moment), stages_of(GRAPH, moment), {})

    by_id = {each.node_id: each for each in nodes}
    assert (by_id["split"].elapsed_seconds, by_id["split"].eta_seconds) == (10, 30)
    assert next(each for each in stages if each.name == "split").elapsed_seconds == 10
    assert eta == 30


def test_a_fan_out_without_children_takes_no_longer_than_its_expansion() -> None:
    nodes, _ = seconds_of(snapshot(60, node("split", 5, total=0, remaining=0), node("gather", 9), node("end", 9)))

    assert nodes["split"] == 1
