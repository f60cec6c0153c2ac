"""Summaries of nodes and stages, computed from their rows. Everything here is pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from dagmaster.client.models.nodes import ChildCounts, NodeSummary, ProgressCounts, PublicNode, StageSummary
from dagmaster.database.reads.jobs import Snapshot
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.states import NODE_LIVE, NODE_TERMINAL, NodeStatus
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode, Importance, work_of

TimeSpan = tuple[datetime | None, datetime | None]


def summaries_of(graph: Graph, snapshot: Snapshot) -> list[PublicNode]:
    """The nodes of a job, without the children of its fan_outs."""
    spans = _spans(graph, snapshot)
    return [summary_of(graph, node, snapshot.now, spans[node.node_id]) for node in snapshot.nodes]


def summary_of(graph: Graph, node: NodeSummary, now: datetime, span: TimeSpan | None = None) -> PublicNode:
    definition_id = node.parent_node_id or node.node_id
    definition = graph.workflow.nodes.get(definition_id)
    work = work_of(definition) if definition else None
    return PublicNode(
        **dict(node),
        type=type_of(graph, node.node_id, node.parent_node_id),
        stage=stage_of(graph, definition_id),
        importance=definition.importance if definition else Importance.CRITICAL,
        handler=work.handler if work else None,
        state=state_of(graph, node),
        seconds=_seconds(node, now, span),
        elapsed_seconds=_seconds(node, now, span),
        children=_children(node),
    )


def type_of(graph: Graph, node_id: str, parent: str | None) -> str:
    """The type of a node. A row that was changed manually may belong to a node that the definition does not have."""
    if parent:
        return "task"
    return graph.workflow.nodes[node_id].type if node_id in graph.workflow.nodes else "unknown"


def stage_of(graph: Graph, definition_id: str) -> str:
    return graph.stages[definition_id][1] if definition_id in graph.stages else ""


def state_of(graph: Graph, node: NodeSummary) -> str:
    """For the engine a fan_out completes when all its children exist. For users it completes when they have ended."""
    if node.remaining and node.status in {NodeStatus.READY, NodeStatus.COMPLETED}:
        return str(NodeStatus.RUNNING)
    if node.status is NodeStatus.COMPLETED and _exceeds_tolerance(graph, node):
        return str(NodeStatus.FAILED if node.failed_count else NodeStatus.CANCELLED)
    return str(node.status)


def _exceeds_tolerance(graph: Graph, node: NodeSummary) -> bool:
    """Whether more children failed or were cancelled than the fan_out tolerates."""
    definition = graph.workflow.nodes.get(node.parent_node_id or node.node_id)
    if node.total is None or not isinstance(definition, FanOutNode):
        return False
    return (node.failed_count or 0) + (node.cancelled_count or 0) > tolerated(definition, node.total)


def _seconds(node: NodeSummary, now: datetime, span: TimeSpan | None) -> float | None:
    started, ended = span or _own_span(node)
    return _elapsed(started, ended or (now if node.status in NODE_LIVE or node.remaining else None))


def _own_span(node: NodeSummary) -> TimeSpan:
    return node.dispatched_at or node.started_at, node.completed_at


def _spans(graph: Graph, snapshot: Snapshot) -> dict[str, TimeSpan]:
    """The start and the end of each node.

    The children of a fan_out are not read for this. It counts as running from the end of the nodes that it waits for to
    the start of the first node after it.
    """
    spans = {node.node_id: _own_span(node) for node in snapshot.nodes}
    for node in sorted(snapshot.nodes, key=lambda each: graph.place.get(each.node_id, 0)):
        if node.total is None or node.node_id not in graph.place:
            continue
        before = [*graph.all_of.get(node.node_id, ()), *graph.any_of.get(node.node_id, ())]
        starts = [at for each in before if (at := spans.get(each, (None, None))[1])]
        spans[node.node_id] = max(starts, default=node.completed_at), _end_of_children(graph, node, spans, snapshot.now)
    return spans


def _end_of_children(graph: Graph, node: NodeSummary, spans: dict[str, TimeSpan], now: datetime) -> datetime | None:
    if node.remaining or node.status not in NODE_TERMINAL:
        return None
    after = [spans[each] for each in graph.successors.get(node.node_id, ()) if each in spans]
    starts = [at for first, last in after if (at := first or last)]
    return max(min(starts, default=now), node.completed_at or now) if node.total else node.completed_at


def _children(node: NodeSummary) -> ChildCounts | None:
    if node.total is None:
        return None
    failed, cancelled = node.failed_count or 0, node.cancelled_count or 0
    retrying = min(node.retrying_count, node.waiting_count)
    return ChildCounts(
        total=node.total,
        done=node.ended_count - failed - cancelled,
        running=node.running_count,
        retrying=retrying,
        waiting=node.waiting_count - retrying,
        failed=failed,
        cancelled=cancelled,
    )


def progress_counts(graph: Graph, nodes: Sequence[NodeSummary]) -> ProgressCounts:
    """The progress of a job. The statement `job_progress` computes the same for lists."""
    ended = [node for node in nodes if has_ended(node)]
    parts = [1.0 if node in ended else node.ended_count / node.total if node.total else 0.0 for node in nodes]
    return ProgressCounts(
        nodes=len(graph.order),
        ended=len(ended),
        failed=sum(node.status is NodeStatus.FAILED for node in nodes),
        children=sum(node.total or 0 for node in nodes),
        children_ended=sum(node.ended_count for node in nodes),
        children_failed=sum(node.failed_count or 0 for node in nodes),
        fraction=round(sum(parts) / len(graph.order), 4) if graph.order else None,
    )


def has_ended(node: NodeSummary) -> bool:
    """A fan_out has ended when its children have."""
    return node.status in NODE_TERMINAL and not (node.status is NodeStatus.COMPLETED and node.remaining)


def stages_of(graph: Graph, snapshot: Snapshot) -> list[StageSummary]:
    groups: dict[tuple[int, str], list[NodeSummary]] = {}
    for node in snapshot.nodes:
        groups.setdefault(graph.stages[node.node_id], []).append(node)
    spans = _spans(graph, snapshot)
    return [_stage(graph, stage, nodes, spans, snapshot.now) for stage, nodes in sorted(groups.items())]


def _stage(
    graph: Graph, stage: tuple[int, str], nodes: Sequence[NodeSummary], spans: dict[str, TimeSpan], now: datetime
) -> StageSummary:
    number, name = stage
    states = Counter(state_of(graph, node) for node in nodes)
    starts = [at for node in nodes if (at := spans[node.node_id][0] or node.completed_at)]
    ended = [at for node in nodes if (at := spans[node.node_id][1])]
    first, last = min(starts, default=None), max(ended, default=None)
    return StageSummary(
        number=number,
        name=name,
        status=_combined(states),
        nodes=len(nodes),
        completed=states["completed"],
        failed=states["failed"],
        children=sum(node.total or 0 for node in nodes),
        children_failed=sum(node.failed_count or 0 for node in nodes),
        started_at=first,
        ended_at=last,
        seconds=round((last - first).total_seconds(), 3) if first and last else None,
        elapsed_seconds=_elapsed(first, last if all(map(has_ended, nodes)) else now),
    )


def _elapsed(first: datetime | None, last: datetime | None) -> float | None:
    return round(max(0.0, (last - first).total_seconds()), 3) if first and last else None


def _combined(states: Counter[str]) -> str:
    """The status of a stage. Failures take precedence, then nodes that run or are about to run."""
    for state in ("failed", "cancelled", "running", "dispatched", "ready"):
        if states[state]:
            return "running" if state in {"dispatched", "ready"} else state
    if states["pending"]:
        return "running" if states["completed"] else "pending"
    return "completed" if states["completed"] else "skipped"
