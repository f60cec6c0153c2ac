"""How long nodes, stages and jobs will still take. Everything here is pure.

    reported fraction, or children that ended ──▶ the rate so far ──┐
    the durations of past runs of the node   ──▶ their median     ──┴─▶ seconds until a node ends
    the longest path through the nodes that have not ended          ──▶ seconds until a stage or the job ends

An estimate is a finite number of at least 0, or None. Without a rate so far, it is None for a node that has no past
runs or already takes longer than usual, and then also for the nodes that wait for that node.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode

# Below these, a rate is not reliable.
MIN_FRACTION = 0.02
MIN_SECONDS = 0.05
MAX_SECONDS = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class PastNode:
    """A node of a past run."""

    run: object
    node_id: str
    status: str
    began_at: datetime | None
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """Past runs of a node: the median of its durations, and how often it ran or was skipped."""

    seconds: float | None = None
    runs: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """The progress of a node. `elapsed` are the seconds since it was dispatched, None before; `fraction` was reported
    by its handler, or is the part of its children that have ended."""

    is_ended: bool
    elapsed: float | None = None
    fraction: float | None = None
    has_work: bool = True


def node_histories(graph: Graph, nodes: Iterable[PastNode]) -> dict[str, NodeHistory]:
    """The past runs of each node. A fan_out lasts until the first node after it begins: its own row only says when its
    children were created."""
    runs: dict[object, dict[str, PastNode]] = defaultdict(dict)
    for node in nodes:
        runs[node.run][node.node_id] = node
    result: dict[str, NodeHistory] = {}
    for node_id in graph.order:
        rows = [run[node_id] for run in runs.values() if node_id in run]
        durations = [
            seconds for run in runs.values() if (seconds := _duration(graph, run, node_id)) is not None and seconds >= 0
        ]
        result[node_id] = NodeHistory(
            seconds=median(durations) if durations else None,
            runs=len(durations),
            skipped=sum(row.status == NodeStatus.SKIPPED for row in rows),
        )
    return result


def _duration(graph: Graph, run: Mapping[str, PastNode], node_id: str) -> float | None:
    row = run.get(node_id)
    if row is None or row.status != NodeStatus.COMPLETED or row.began_at is None or row.completed_at is None:
        return None
    ended_at = row.completed_at
    if isinstance(graph.workflow.nodes[node_id], FanOutNode):
        following = [run[name] for name in graph.successors[node_id] if name in run]
        starts = [at for each in following if (at := each.began_at or each.completed_at) is not None]
        ended_at = max(ended_at, min(starts, default=ended_at))
    return (ended_at - row.began_at).total_seconds()


def seconds_left(node: NodeProgress, past: NodeHistory) -> float | None:
    """Seconds until a node ends, from now or from when it can begin."""
    if node.is_ended or not node.has_work:
        return 0.0
    by_rate = from_rate(node.elapsed, node.fraction)
    if by_rate is not None:
        return by_rate
    if past.runs < past.skipped:
        return 0.0  # it is mostly skipped
    return from_past(node.elapsed or 0.0, past.seconds)


def from_rate(elapsed: float | None, fraction: float | None) -> float | None:
    """Seconds left if the node continues at its rate so far."""
    if elapsed is None or fraction is None or not math.isfinite(elapsed) or not math.isfinite(fraction):
        return None
    if fraction < MIN_FRACTION or fraction > 1 or elapsed < MIN_SECONDS:
        return None
    return plausible(elapsed * (1 - fraction) / fraction)


def from_past(elapsed: float, usual: float | None) -> float | None:
    """Seconds left if the node takes as long as usual; None if it already takes longer."""
    if usual is None or elapsed > usual:
        return None
    return plausible(usual - elapsed)


def plausible(seconds: float | None) -> float | None:
    """The estimate; None if it is negative, infinite or longer than MAX_SECONDS."""
    if seconds is None or not math.isfinite(seconds) or not 0 <= seconds <= MAX_SECONDS:
        return None
    return seconds


def seconds_until_end(graph: Graph, left: Mapping[str, float | None]) -> dict[str, float | None]:
    """Seconds until each node ends, including the nodes that it waits for. `left` has the seconds of each alone."""
    ends: dict[str, float | None] = {}
    for node_id in graph.order:
        own = left.get(node_id)
        before = [ends.get(name) for name in (*graph.all_of[node_id], *graph.any_of[node_id])]
        known = [seconds for seconds in before if seconds is not None]
        ends[node_id] = None if own is None or len(known) < len(before) else plausible(own + max(known, default=0.0))
    return ends


def of_all(ends: Iterable[float | None]) -> float | None:
    """Seconds until the last of several nodes ends; None if one of these times is not known."""
    seconds = list(ends)
    return max((each for each in seconds if each is not None), default=None) if None not in seconds else None


def of_job(elapsed: float | None, fraction: float | None, usual: float | None) -> float | None:
    """Seconds until a job ends, if only its progress and its usual duration are known."""
    by_past = from_past(elapsed or 0.0, usual)
    return by_past if by_past is not None else from_rate(elapsed, fraction)
