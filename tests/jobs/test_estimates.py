"""Estimates: from the rate so far, from past runs, and along the longest path. Each is a sensible number or None."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.jobs.estimates import (
    MAX_SECONDS,
    NodeHistory,
    NodeProgress,
    PastNode,
    from_past,
    from_rate,
    node_histories,
    of_all,
    of_job,
    seconds_left,
    seconds_until_end,
)
from dagmaster.workflows.graph import Graph, build
from tests.engine.harness import workflow

pytestmark = pytest.mark.requirement("E23")

any_number = st.floats(allow_nan=True, allow_infinity=True)
START = datetime(2026, 1, 1, tzinfo=UTC)


def diamond() -> Graph:
    return build(
        workflow("""
            workflow_id: diamond
            nodes:
              start: {type: start, next: [left, right]}
              left: {handler: echo, next: join}
              right: {handler: echo, next: join}
              join: {handler: echo, depends_on: {all_of: [left, right]}, next: end}
              end: {type: end}
        """)
    )


def fan() -> Graph:
    return build(
        workflow("""
            workflow_id: fan
            nodes:
              start: {type: start, next: split}
              split: {type: fan_out, source: "{{ inputs.items }}", task: {handler: echo}, next: all}
              all: {type: fan_in, next: end}
              end: {type: end}
            inputs: {items: {type: array, required: true}}
        """)
    )


@given(
    elapsed=st.none() | any_number,
    fraction=st.none() | any_number,
    usual=st.none() | any_number,
    past=st.builds(NodeHistory, st.none() | any_number, st.integers(0, 5), st.integers(0, 5)),
    is_ended=st.booleans(),
)
def test_an_estimate_is_a_sensible_number_or_none(elapsed, fraction, usual, past, is_ended):
    for estimate in (
        seconds_left(NodeProgress(is_ended, elapsed, fraction), past),
        of_job(elapsed, fraction, usual),
        from_rate(elapsed, fraction),
    ):
        assert estimate is None or (math.isfinite(estimate) and 0 <= estimate <= MAX_SECONDS)


@given(total=st.integers(2, 10_000), seconds=st.floats(0.01, 100), share=st.floats(0.1, 0.99))
def test_work_at_a_constant_rate_is_estimated_exactly(total, seconds, share):
    """Each unit of work takes equally long."""
    done = max(1, int(total * share))
    elapsed = done * seconds

    estimate = from_rate(elapsed, done / total)

    if estimate is not None:
        assert estimate == pytest.approx((total - done) * seconds, rel=1e-6, abs=1e-6)
    else:
        assert elapsed < 0.05 or done / total < 0.02


@given(left=st.lists(st.none() | st.floats(0, 1e6), min_size=5, max_size=5))
def test_a_node_ends_after_the_nodes_that_it_waits_for(left):
    graph = diamond()

    ends = seconds_until_end(graph, dict(zip(graph.order, left, strict=True)))

    for node_id in graph.order:
        for before in graph.all_of[node_id]:
            if ends[node_id] is not None:
                assert ends[before] is not None
                assert ends[node_id] >= ends[before]
            if ends[before] is None:
                assert ends[node_id] is None


def test_parallel_branches_count_once():
    graph = diamond()

    ends = seconds_until_end(graph, {"start": 0.0, "left": 10.0, "right": 3.0, "join": 2.0, "end": 0.0})

    assert (ends["left"], ends["right"], ends["join"]) == (10.0, 3.0, 12.0)
    assert of_all(ends.values()) == 12.0


def test_a_node_that_takes_longer_than_usual_has_no_estimate():
    assert from_past(4.0, 10.0) == 6.0
    assert from_past(11.0, 10.0) is None
    assert seconds_left(NodeProgress(False, 11.0), NodeHistory(10.0, 3)) is None


def test_a_node_that_waits_for_one_without_an_estimate_has_none():
    assert of_all([1.0, None]) is None
    assert of_all([]) is None


def test_a_node_that_is_mostly_skipped_takes_no_time():
    assert seconds_left(NodeProgress(False), NodeHistory(None, 0, 3)) == 0.0
    assert seconds_left(NodeProgress(False), NodeHistory(5.0, 3, 1)) == 5.0


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_fan_out_lasts_until_the_next_node_begins():
    """Its own row ends when its children exist, long before they have ended."""
    rows = [
        PastNode(run, node_id, "completed", at(begin), at(end))
        for run, scale in ((1, 1), (2, 3), (3, 2))
        for node_id, begin, end in (("split", 0, 1), ("all", 40 * scale, 40 * scale + 1))
    ]

    past = node_histories(fan(), rows)

    assert past["split"].seconds == 80.0
    assert past["all"].seconds == 1.0
    assert past["start"] == NodeHistory(None, 0, 0)


def test_failed_and_skipped_runs_are_not_used_for_durations():
    rows = [
        PastNode(1, "left", "failed", at(0), at(50)),
        PastNode(2, "left", "skipped", None, at(0)),
        PastNode(3, "left", "completed", at(0), at(7)),
        PastNode(4, "left", "completed", at(9), at(7)),  # a clock that went back
    ]

    assert node_histories(diamond(), rows)["left"] == NodeHistory(7.0, 1, 1)
