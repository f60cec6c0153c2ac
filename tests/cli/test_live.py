"""What is drawn while a job runs, from made-up snapshots [M3]."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from rich.console import Console

from dagmaster.cli.live import Lines, Picture, counts_of, state_of
from dagmaster.cli.show import jobs_table
from dagmaster.database.reads import JobLine, NodeLine, Snapshot
from dagmaster.jobs.states import JobStatus, NodeStatus
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import Workflow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPREAD = {"type": "fan_out", "source": [1], "task": {"handler": "noop"}, "next": "gather"}


def a_graph(extra: int = 0) -> Graph:
    first = {"start": {"type": "start", "next": ["spread", *(f"n{i}" for i in range(extra))]}, "spread": SPREAD}
    more = {f"n{i}": {"handler": "noop", "next": "end"} for i in range(extra)}
    last = {"gather": {"type": "fan_in", "next": "end"}, "end": {"type": "end"}}
    return build(Workflow.model_validate({"workflow_id": "made", "nodes": {**first, **more, **last}}))


def a_node(node_id: str, status: str = "pending", **more: object) -> NodeLine:
    nothing = dict.fromkeys(NodeLine.__dataclass_fields__)
    zero = dict.fromkeys(("attempt", "retry_count", "max_retries", "loss_count", "running_count", "retrying_count"), 0)
    return NodeLine(**{**nothing, **zero, "node_id": node_id, "status": NodeStatus(status), **more})


def a_snapshot(graph: Graph, *nodes: NodeLine, seconds: float = 1.0) -> Snapshot:
    known = {node.node_id: node for node in nodes}
    rows = tuple(known.get(node_id) or a_node(node_id) for node_id in graph.order)
    return Snapshot(JobStatus.RUNNING, NOW, NOW, None, None, NOW + timedelta(seconds=seconds), rows)


def a_fan_out(**more: object) -> NodeLine:
    counts = {"total": 100, "expanded": 100, "remaining": 60, "failed_count": 2, "cancelled_count": 0}
    return a_node("spread", "completed", **{**counts, "running_count": 8, "retrying_count": 3, **more})


def drawn(graph: Graph, snapshot: Snapshot, height: int = 40) -> str:
    console = Console(
        file=io.StringIO(), width=140, height=height, force_terminal=True, color_system=None, markup=False
    )
    picture = Picture(console, UUID(int=1), graph)
    picture.show(snapshot)
    picture.close()
    return console.file.getvalue()


def test_a_fan_out_is_one_line_with_its_counts_m3():
    node = a_fan_out()

    assert state_of(node) == "running"
    assert counts_of(node) == "38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed"
    assert "38/100 done" in drawn(a_graph(), a_snapshot(a_graph(), node))


def test_a_retry_says_when_and_why_m3():
    node = a_node(
        "n0", "ready", retry_count=2, max_retries=5, error_message="HTTP 503", not_before=NOW + timedelta(seconds=39)
    )

    text = drawn(a_graph(1), a_snapshot(a_graph(1), node))

    assert "retry 2 of 5 in 38.0 s; HTTP 503" in text


def test_on_a_small_screen_what_fails_and_runs_is_shown_and_the_rest_counted_m3():
    graph = a_graph(100)
    nodes = [a_node("n77", "failed", error_message="broken"), a_node("n88", "running")]

    text = drawn(graph, a_snapshot(graph, *nodes), height=15)

    assert "broken" in text
    assert "n88" in text
    assert "97 more: " in text
    assert text.count("pending") < 15


def test_what_handlers_say_is_never_markup_m3():
    node = a_node("n0", "failed", error_message="[red]:smile: not markup[/red]")

    assert "[red]:smile: not markup[/red]" in drawn(a_graph(1), a_snapshot(a_graph(1), node))


def test_lines_tell_changes_once_and_counts_once_a_second_m3():
    graph, said = a_graph(), []
    lines = Lines(said.append, graph, heartbeat_seconds=60)

    lines.show(a_snapshot(graph, a_fan_out()))
    lines.show(a_snapshot(graph, a_fan_out()))
    lines.show(a_snapshot(graph, a_fan_out(remaining=50)))
    ended = a_snapshot(graph, a_fan_out(remaining=0, running_count=0, retrying_count=0), seconds=2)
    lines.show(replace(ended, status=JobStatus.COMPLETED))

    assert [line.split("s  ", 1)[1] for line in said] == [
        "spread: running, 38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed",
        "job running",
        "spread: completed, 98/100 done, 2 failed",
        "job completed",
    ]


def test_a_list_of_jobs_keeps_ids_whole_m3():
    job = JobLine(
        UUID(int=7), "made", "1", "failed", 0, None, None, "it broke\nbadly", NOW, NOW, NOW, NOW + timedelta(hours=3)
    )
    console = Console(file=io.StringIO(), width=120, markup=False)

    console.print(jobs_table([job]))

    row = console.file.getvalue().splitlines()[1].split()
    assert row == [str(UUID(int=7)), "made", "✖", "failed", "2026-01-01", "00:00:00", "3", "h", "0.0", "it", "broke"]
