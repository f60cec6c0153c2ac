"""A job as its owner holds it in memory: the nodes of its definition with the counters of their children.

Children themselves are not part of a view, so it costs the same for ten children as for a hundred thousand. Views are
values: the planner returns a new one, and the owner keeps it only after the transaction is committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple
from uuid import UUID

from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.states import NODE_LIVE, NODE_TERMINAL, JobStatus, NodeStatus, SkipReason, Stop
from dagmaster.workflows.expressions import TemplateContext
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import ConditionalNode, EndNode, FanOutNode, Importance, Node, StartNode


class NodeView(NamedTuple):
    """A node of the definition, from its row to the planner. Fields have the names of the columns of `dag_node_states`;
    counters that are NULL there are 0 here.

    A tuple, because every change of every node creates a new one.
    """

    status: NodeStatus = NodeStatus.PENDING
    attempt: int = 0
    retry_count: int = 0
    loss_count: int = 0
    reason: str | None = None
    error_message: str | None = None
    chosen: tuple[str, ...] = ()  # the branch of a conditional, from its output
    total: int = 0  # how many children a fan_out will have
    expanded: int = 0  # children that were created
    remaining: int = 0  # children that have not ended, of `total`
    failed_count: int = 0
    cancelled_count: int = 0
    idle_count: int = 0  # children that wait to run again since the job was resumed
    stale_count: int = 0  # children of an earlier run that this run has not reused yet
    is_sized: bool = False  # whether `total` is set: a fan_out may have no children

    @classmethod
    def from_row(cls, node: Node, row: Mapping[str, Any]) -> "NodeView":
        """The view of a row of `dag_node_states`. A conditional's branch is in its `output`."""
        chosen: tuple[str, ...] = ()
        if isinstance(node, ConditionalNode) and isinstance(row["output"], dict):
            chosen = tuple(str(target) for target in row["output"].get("next", ()))
        return cls(
            NodeStatus(row["status"]),
            row["attempt"],
            row["retry_count"],
            row["loss_count"],
            row["reason"],
            row["error_message"],
            chosen,
            **{name: row[name] or 0 for name in COUNTERS},
            is_sized=row["total"] is not None,
        )

    @property
    def unsuccessful_count(self) -> int:
        """Children that ended without success."""
        return self.failed_count + self.cancelled_count

    @property
    def open_children(self) -> int:
        return self.expanded - (self.total - self.remaining)

    @property
    def live_children(self) -> int:
        return self.open_children - self.idle_count


COUNTERS = ("total", "expanded", "remaining", "failed_count", "cancelled_count", "idle_count", "stale_count")


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
    outputs: dict[str, Any] = field(
        default_factory=dict
    )  # the outputs that are loaded; others are loaded when a template needs them
    unloadable: dict[str, DagmasterError] = field(default_factory=dict)  # outputs that cannot be loaded, and why
    stopping: Stop | None = None  # why the job is being stopped
    deferred: dict[str, DeferredWork] = field(default_factory=dict)  # ready nodes that no owner could route so far
    refused_sums: Mapping[str, DagmasterError] = field(default_factory=dict)  # fan_outs whose sum cannot be stored

    def is_output_known(self, node_id: str) -> bool:
        """Whether the output of this node is loaded, or known to be unloadable."""
        return node_id in self.outputs or node_id in self.unloadable

    def missing_outputs(self, reader: str) -> set[str]:
        """Completed nodes whose outputs the templates of `reader` need and that are not loaded."""
        return {
            node_id
            for node_id in self.graph.needs.get(reader, ())
            if not self.is_output_known(node_id) and self.nodes[node_id].status is NodeStatus.COMPLETED
        }

    def refuse_unloadable(self, reader: str) -> None:
        """Raise the error of an output that `reader` needs and that cannot be loaded."""
        for node_id in self.graph.needs.get(reader, ()):
            if (error := self.unloadable.get(node_id)) is not None:
                raise InvalidRequest(error.message, code=error.code, hint=error.hint)

    def template_context(self, **names: Any) -> TemplateContext:
        return TemplateContext(inputs=self.inputs, outputs=self.outputs, job=self._job_facts(), **names)

    def _job_facts(self) -> dict[str, Any]:
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
    """The state of a dependency, for the node that waits for it."""

    WAIT = auto()
    COMPLETED = auto()
    OPTIONAL_FAILED = auto()  # satisfied without an output: a failed optional node
    NOT_TAKEN = auto()  # skipped by a branch
    FAILED = auto()  # failed, or skipped because of a failure


def edge(view: JobView, source: str, target: str) -> Edge:
    """The state of the dependency of `target` on `source`."""
    node = view.graph.workflow.nodes[source]
    state = view.nodes[source]
    match state.status:
        case NodeStatus.COMPLETED:
            if isinstance(node, ConditionalNode) and not _leads_to(view, source, target):
                return Edge.NOT_TAKEN
            if isinstance(node, FanOutNode):
                return _fan_out_edge(view, source, target)
            return Edge.COMPLETED
        case NodeStatus.SKIPPED:
            return Edge.NOT_TAKEN if state.reason == SkipReason.BRANCH_NOT_TAKEN else Edge.FAILED
        case NodeStatus.CANCELLED:
            return Edge.FAILED
        case NodeStatus.FAILED:
            if node.importance is not Importance.OPTIONAL:
                return Edge.FAILED
            return Edge.WAIT if state.open_children else Edge.OPTIONAL_FAILED
        case _:
            return Edge.WAIT


def _leads_to(view: JobView, conditional: str, target: str) -> bool:
    """Whether the chosen branch leads to `target`. A node on no branch only waits for the conditional."""
    return target in view.nodes[conditional].chosen or target not in view.graph.branch_targets[conditional]


def _fan_out_edge(view: JobView, source: str, target: str) -> Edge:
    """The successors of a fan_out start when all children have ended; its own fan_in decides about failures itself."""
    state = view.nodes[source]
    if state.remaining:
        return Edge.WAIT
    if not exceeds_tolerance(view, source) or view.graph.fan_out_of.get(target) == source:
        return Edge.COMPLETED
    return Edge.OPTIONAL_FAILED if view.graph.workflow.nodes[source].importance is Importance.OPTIONAL else Edge.FAILED


def exceeds_tolerance(view: JobView, fan_out: str) -> bool:
    """More children failed than this fan_out tolerates."""
    node = view.graph.workflow.nodes[fan_out]
    state = view.nodes[fan_out]
    return isinstance(node, FanOutNode) and state.unsuccessful_count > tolerated(node, state.total)


class Readiness(Enum):
    WAIT = auto()
    START = auto()
    SKIP_BRANCH = auto()
    SKIP_FAILED = auto()


def readiness(view: JobView, target: str) -> Readiness:
    """Whether a pending node may start, must wait, or will never run."""
    needed = [edge(view, source, target) for source in view.graph.all_of[target]]
    options = [edge(view, source, target) for source in view.graph.any_of[target]]
    if Edge.FAILED in needed:
        return Readiness.SKIP_FAILED
    any_of = _any_of(options)
    if any_of is Readiness.SKIP_FAILED:
        return any_of
    if Edge.WAIT in needed or any_of is Readiness.WAIT:
        return Readiness.WAIT
    if any_of is Readiness.SKIP_BRANCH:
        return any_of
    if needed and not options and all(edge is Edge.NOT_TAKEN for edge in needed):
        return Readiness.SKIP_BRANCH
    return Readiness.START if _have_children_ended(view, target) else Readiness.WAIT


def _have_children_ended(view: JobView, target: str) -> bool:
    """A node that reads the results of a fan_out's children waits for all of them, whatever the states of its edges."""
    fan_out = fan_out_read_by(view.graph, target)
    if fan_out is None:
        return True
    state = view.nodes[fan_out]
    if state.status is NodeStatus.COMPLETED:
        return not state.remaining
    return state.status in NODE_TERMINAL and not state.open_children


def fan_out_read_by(graph: Graph, target: str) -> str | None:
    """The fan_out whose children's results this node reads."""
    node = graph.workflow.nodes[target]
    return node.results_of if isinstance(node, FanOutNode) else graph.fan_out_of.get(target)


def _any_of(options: list[Edge]) -> Readiness:
    """At least one must be completed; the first one is enough."""
    if not options or Edge.COMPLETED in options:
        return Readiness.START
    if Edge.WAIT in options:
        return Readiness.WAIT
    return Readiness.SKIP_FAILED if Edge.FAILED in options or Edge.OPTIONAL_FAILED in options else Readiness.SKIP_BRANCH


def is_failing(view: JobView) -> bool:
    """Whether no new task is dispatched: a critical node has failed, or too many of its children, or the job stops."""
    if view.stopping:
        return True
    for node_id in view.graph.critical:
        state = view.nodes[node_id]
        if state.status is NodeStatus.FAILED or (state.failed_count and exceeds_tolerance(view, node_id)):
            return True
    return False


def is_busy(view: JobView) -> bool:
    """Some task is queued or running, or some node waits for its next attempt."""
    return any(
        state.status in NODE_LIVE or state.status is NodeStatus.READY or state.open_children or state.stale_count
        for state in view.nodes.values()
    )


def is_ended(view: JobView) -> bool:
    return all(
        state.status in NODE_TERMINAL and not state.open_children and not state.stale_count
        for state in view.nodes.values()
    )


def is_cut_short(view: JobView) -> bool:
    """Some node or child was cancelled because the job was stopped."""
    return bool(view.stopping) and any(
        state.status is NodeStatus.CANCELLED or state.cancelled_count for state in view.nodes.values()
    )


def rerunnable_children(view: JobView, at_most: int, *, unlimited: bool = False) -> dict[str, int]:
    """How many of the children that wait to run again since a resume or a retry may do so now, for each fan_out.

    `unlimited`: they are only closed, so `max_parallel` does not apply.
    """
    counts: dict[str, int] = {}
    for node_id, state in view.nodes.items():
        if not state.idle_count and not state.stale_count:
            continue
        node = view.graph.workflow.nodes[node_id]
        if isinstance(node, FanOutNode):
            # Stale children are closed without a limit if the fan_out has ended or has all its children.
            is_closing = (
                unlimited or state.status in NODE_TERMINAL or (state.is_sized and state.expanded == state.total)
            )
            limit = None if is_closing and not state.idle_count else node.max_parallel
            free = at_most if limit is None or unlimited else limit - state.live_children
            ready = state.stale_count if is_closing or (state.status is NodeStatus.READY and state.is_sized) else 0
            if node_id in view.deferred and not is_closing:
                ready = 0
            is_waiting = not _have_children_ended(view, node_id)  # the fan_out whose results they read runs again
            if is_waiting and not unlimited and (state.idle_count or not is_closing):
                continue
            counts[node_id] = max(0, min(state.idle_count + ready, free, at_most))
    return {node_id: count for node_id, count in counts.items() if count}


def outcome(view: JobView) -> JobStatus:
    """The final status of the job, from its nodes. Start and end do no work and are not counted."""
    result = JobStatus.COMPLETED
    for node_id in view.nodes:
        node = view.graph.workflow.nodes[node_id]
        if isinstance(node, StartNode | EndNode) or not is_unsuccessful(view, node_id):
            continue
        if node.importance is Importance.CRITICAL:
            return JobStatus.FAILED
        if node.importance is Importance.IMPORTANT:
            result = JobStatus.PARTIAL_SUCCESS
    return result


def is_unsuccessful(view: JobView, node_id: str) -> bool:
    """The node failed, was cancelled, or was skipped because of a failure."""
    state = view.nodes[node_id]
    if state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED):
        return True
    if state.status is NodeStatus.SKIPPED:
        return state.reason == SkipReason.UPSTREAM_FAILED
    return exceeds_tolerance(view, node_id)
