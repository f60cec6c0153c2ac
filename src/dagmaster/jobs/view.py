"""A job as its owner holds it in memory: the nodes of its definition with the counters of their children.

Children themselves are not here, so a view costs the same for ten children as for a hundred thousand. Views are values: the
planner returns a new one, and the owner keeps it only once the transaction behind it is committed.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple
from uuid import UUID

from dagmaster.errors import DagmasterError
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.states import NODE_LIVE, NODE_TERMINAL, JobStatus, NodeStatus, SkipReason, Stop
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import ConditionalNode, EndNode, FanOutNode, Importance, Node, StartNode


class NodeView(NamedTuple):
    """A tuple, because every move of every node makes a new one."""

    status: NodeStatus = NodeStatus.PENDING
    attempt: int = 0
    retry_count: int = 0
    loss_count: int = 0
    reason: str | None = None
    error_message: str | None = None
    chosen: tuple[str, ...] = ()  # a conditional's branch
    total: int = 0  # a fan_out's children: how many there will be, exist, are not ended, failed, were cancelled
    expanded: int = 0
    remaining: int = 0
    failed: int = 0
    cancelled: int = 0
    idle: int = 0  # wait to run again since the job was resumed
    stale: int = 0  # of a run before, not taken up yet
    is_sized: bool = False

    @property
    def open_children(self) -> int:
        return self.expanded - (self.total - self.remaining)

    @property
    def live_children(self) -> int:
        return self.open_children - self.idle


@dataclass(frozen=True, slots=True)
class JobView:
    job_id: UUID
    graph: Graph
    inputs: dict[str, Any]
    status: JobStatus = JobStatus.PENDING
    priority: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    nodes: dict[str, NodeView] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)  # those at hand; others are loaded when a template needs them
    unloadable: dict[str, DagmasterError] = field(default_factory=dict)  # outputs that can't be had, and why
    stopping: Stop | None = None  # it is being brought to an end

    def facts(self) -> dict[str, Any]:
        """What templates see as `job`."""
        workflow = self.graph.workflow
        return {
            "job_id": str(self.job_id),
            "workflow_id": workflow.workflow_id,
            "workflow_version": workflow.version,
            "correlation_id": self.correlation_id,
            "submitted_by": self.submitted_by,
            "priority": self.priority,
        }


class Edge(Enum):
    """What a dependency says to the node that waits for it."""

    WAIT = auto()
    LIVE = auto()  # go
    EMPTY = auto()  # satisfied, but not completed: a failed optional node
    DEAD = auto()  # skipped by a branch
    BROKEN = auto()  # failed, or skipped because of a failure


def edge(view: JobView, source: str, target: str) -> Edge:
    """What `source` says to `target`."""
    node = view.graph.workflow.nodes[source]
    state = view.nodes[source]
    match state.status:
        case NodeStatus.COMPLETED:
            if isinstance(node, ConditionalNode) and not _leads_to(view, source, target):
                return Edge.DEAD
            if isinstance(node, FanOutNode):
                return _fan_out_edge(view, source, target)
            return Edge.LIVE
        case NodeStatus.SKIPPED:
            return Edge.DEAD if state.reason == SkipReason.BRANCH_NOT_TAKEN else Edge.BROKEN
        case NodeStatus.CANCELLED:
            return Edge.BROKEN
        case NodeStatus.FAILED:
            if node.importance is not Importance.OPTIONAL:
                return Edge.BROKEN
            return Edge.WAIT if state.open_children else Edge.EMPTY
        case _:
            return Edge.WAIT


def _leads_to(view: JobView, conditional: str, target: str) -> bool:
    """Whether the chosen branch leads there. Who only waits for the conditional is on none of its branches."""
    return target in view.nodes[conditional].chosen or target not in view.graph.branch_targets[conditional]


def _fan_out_edge(view: JobView, source: str, target: str) -> Edge:
    """A fan_out lets its successors go when all children have ended; its own fan_in judges failures by itself."""
    state = view.nodes[source]
    if state.remaining:
        return Edge.WAIT
    if not overdrawn(view, source) or view.graph.fan_out_of.get(target) == source:
        return Edge.LIVE
    return Edge.EMPTY if view.graph.workflow.nodes[source].importance is Importance.OPTIONAL else Edge.BROKEN


def overdrawn(view: JobView, fan_out: str) -> bool:
    """More children failed than this fan_out tolerates."""
    node = view.graph.workflow.nodes[fan_out]
    state = view.nodes[fan_out]
    return isinstance(node, FanOutNode) and state.failed + state.cancelled > tolerated(node, state.total)


class Verdict(Enum):
    WAIT = auto()
    GO = auto()
    SKIP_BRANCH = auto()
    SKIP_FAILED = auto()


def verdict(view: JobView, target: str) -> Verdict:
    """Whether a pending node may go, must wait, or will never run."""
    needed = [edge(view, source, target) for source in view.graph.all_of[target]]
    options = [edge(view, source, target) for source in view.graph.any_of[target]]
    if Edge.BROKEN in needed:
        return Verdict.SKIP_FAILED
    some = _any_of(options)
    if some is Verdict.SKIP_FAILED:
        return some
    if Edge.WAIT in needed or some is Verdict.WAIT:
        return Verdict.WAIT
    if some is Verdict.SKIP_BRANCH:
        return some
    if needed and not options and all(answer is Edge.DEAD for answer in needed):
        return Verdict.SKIP_BRANCH
    return Verdict.GO if _have_children_ended(view, target) else Verdict.WAIT


def _have_children_ended(view: JobView, target: str) -> bool:
    """Who reads the children of a fan_out waits for all of them, even where its edges would let it go before."""
    fan_out = read_by(view.graph, target)
    if fan_out is None:
        return True
    state = view.nodes[fan_out]
    if state.status is NodeStatus.COMPLETED:
        return not state.remaining
    return state.status in NODE_TERMINAL and not state.open_children


def read_by(graph: Graph, target: str) -> str | None:
    """The fan_out whose children's results this node reads."""
    node = graph.workflow.nodes[target]
    return node.results_of if isinstance(node, FanOutNode) else graph.fan_out_of.get(target)


def _any_of(options: list[Edge]) -> Verdict:
    """At least one must be completed. It goes with the first that is."""
    if not options or Edge.LIVE in options:
        return Verdict.GO
    if Edge.WAIT in options:
        return Verdict.WAIT
    return Verdict.SKIP_FAILED if Edge.BROKEN in options or Edge.EMPTY in options else Verdict.SKIP_BRANCH


def is_failing(view: JobView) -> bool:
    """A critical node has failed for good, or the job is to end: nothing new is dispatched."""
    if view.stopping:
        return True
    for node_id in view.graph.critical:
        state = view.nodes[node_id]
        if state.status is NodeStatus.FAILED or (state.failed and overdrawn(view, node_id)):
            return True
    return False


def is_busy(view: JobView) -> bool:
    """Something is with the workers, or waits for its next attempt."""
    return any(
        state.status in NODE_LIVE or state.status is NodeStatus.READY or state.open_children or state.stale
        for state in view.nodes.values()
    )


def is_ended(view: JobView) -> bool:
    return all(
        state.status in NODE_TERMINAL and not state.open_children and not state.stale for state in view.nodes.values()
    )


def is_cut_short(view: JobView) -> bool:
    """Something did not run, or not to its end, because the job was stopped."""
    return bool(view.stopping) and any(
        state.status is NodeStatus.CANCELLED or state.cancelled for state in view.nodes.values()
    )


def wakeable(view: JobView, at_most: int, *, unlimited: bool = False) -> dict[str, int]:
    """How many children of each fan_out may be taken up again now, of those that wait for it since a resume or a retry;
    `unlimited` where they are only to be closed."""
    found: dict[str, int] = {}
    for node_id, state in view.nodes.items():
        if not state.idle and not state.stale:
            continue
        node = view.graph.workflow.nodes[node_id]
        if isinstance(node, FanOutNode):
            # Nothing is there to wait for where they only make room: the fan_out has ended, or has all it needs.
            is_closing = (
                unlimited or state.status in NODE_TERMINAL or (state.is_sized and state.expanded == state.total)
            )
            limit = None if is_closing and not state.idle else node.max_parallel
            room = at_most if limit is None or unlimited else limit - state.live_children
            ready = state.stale if is_closing or (state.status is NodeStatus.READY and state.is_sized) else 0
            is_early = not _have_children_ended(view, node_id)  # what they read is being made again
            if is_early and not unlimited and (state.idle or not is_closing):
                continue
            found[node_id] = max(0, min(state.idle + ready, room, at_most))
    return {node_id: count for node_id, count in found.items() if count}


def outcome(view: JobView) -> JobStatus:
    """The job's last state, from those of its nodes. Start and end carry no work and don't count."""
    result = JobStatus.COMPLETED
    for node_id in view.nodes:
        node = view.graph.workflow.nodes[node_id]
        if isinstance(node, StartNode | EndNode) or not fell_short(view, node_id):
            continue
        if node.importance is Importance.CRITICAL:
            return JobStatus.FAILED
        if node.importance is Importance.IMPORTANT:
            result = JobStatus.PARTIAL_SUCCESS
    return result


def fell_short(view: JobView, node_id: str) -> bool:
    """It has not done what it was there for."""
    state = view.nodes[node_id]
    if state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED):
        return True
    if state.status is NodeStatus.SKIPPED:
        return state.reason == SkipReason.UPSTREAM_FAILED
    return overdrawn(view, node_id)


class LoadedNode(NamedTuple):
    """What a view needs of a node's row."""

    node_id: str
    status: NodeStatus
    attempt: int = 0
    retry_count: int = 0
    loss_count: int = 0
    reason: str | None = None
    error_message: str | None = None
    total: int | None = None
    expanded: int | None = None
    remaining: int | None = None
    failed_count: int | None = None
    cancelled_count: int | None = None
    idle_count: int | None = None
    stale_count: int | None = None
    output: Any = None  # if it is small


def node_view(state: LoadedNode, node: Node) -> NodeView:
    chosen: tuple[str, ...] = ()
    if isinstance(node, ConditionalNode) and isinstance(state.output, dict):
        chosen = tuple(str(target) for target in state.output.get("next", ()))
    return NodeView(
        status=state.status,
        attempt=state.attempt,
        retry_count=state.retry_count,
        loss_count=state.loss_count,
        reason=state.reason,
        error_message=state.error_message,
        chosen=chosen,
        total=state.total or 0,
        expanded=state.expanded or 0,
        remaining=state.remaining or 0,
        failed=state.failed_count or 0,
        cancelled=state.cancelled_count or 0,
        idle=state.idle_count or 0,
        stale=state.stale_count or 0,
        is_sized=state.total is not None,
    )
