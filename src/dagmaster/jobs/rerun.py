"""What runs again when a job that has ended is resumed, or a part of it is retried.

A resume runs nodes again that failed, were cancelled, or were skipped because of that; completed nodes stay, and so
does a failed optional node if a node after it has started. Failed children of a fan_out run again if their results are
still needed: no node that reads them has completed without them, and either more children failed than are tolerated or
a node that reads them runs again.

A retry runs the named nodes and everything downstream of them. A fan_out among them reads its source again, so it may
have other children than before. Checkpoints are deleted, because the inputs of a node may have changed; a resume uses
them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from dagmaster.errors import Conflict, NotFound
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, NodeView, exceeds_tolerance, fan_out_read_by, is_unsuccessful
from dagmaster.workflows.model import EndNode, FanOutNode, Importance, StartNode

RESUMABLE = frozenset({JobStatus.FAILED, JobStatus.PARTIAL_SUCCESS, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Rerun:
    nodes: tuple[str, ...]  # nodes of the definition, in order
    children: dict[str, int] = field(default_factory=dict)  # per fan_out, how many failed or cancelled children
    reexpanded: tuple[str, ...] = ()  # fan_outs that read their source again
    single: tuple[str, ...] = ()  # single children, by name
    timeout_seconds: float | None = None  # the job's deadline is set again
    discards_checkpoints: bool = False  # checkpoints are deleted


def resume(view: JobView) -> Rerun:
    """What a resume runs again, or an error if the job cannot be resumed."""
    if view.status not in RESUMABLE:
        problem = "has completed" if view.status is JobStatus.COMPLETED else "has not ended"
        raise Conflict(f"job {view.job_id} {problem}: it cannot be resumed", code="job.not-resumable")
    rerun_nodes = {node_id for node_id in view.nodes if _must_rerun(view, node_id)}
    children: dict[str, int] = {}
    for node_id in reversed(view.graph.order):  # whether children are needed depends on their readers
        state = view.nodes[node_id]
        # A fan_out that continues may also have stale children, which `unsuccessful_count` does not include.
        if _are_results_needed(view, node_id, rerun_nodes, children) and (
            state.unsuccessful_count or node_id in rerun_nodes
        ):
            children[node_id] = state.unsuccessful_count
    if not rerun_nodes and not children:
        raise Conflict(
            f"all nodes of job {view.job_id} have completed: no node has to run again",
            code="job.not-resumable",
            hint="submit a new job with a corrected workflow",
        )
    order = tuple(node_id for node_id in view.graph.order if node_id in rerun_nodes)
    return Rerun(order, children, timeout_seconds=view.graph.workflow.timeout_seconds)


def retry(
    view: JobView,
    *,
    node: str | None = None,
    stage: str | None = None,
    failed_children: str | None = None,
    has_completed: bool = False,
) -> Rerun:
    """What a retry of one node (or child), of a stage, or of the failed children of a fan_out runs again.

    A view has no children: the caller says whether the named child `has_completed`.
    """
    if view.status not in JOB_TERMINAL:
        raise Conflict(f"job {view.job_id} has not ended: it cannot be retried yet", code="job.not-ended")
    single: tuple[str, ...] = ()
    children: dict[str, int] = {}
    if failed_children is not None:
        children = {failed_children: _unsuccessful_children(view, failed_children)}
        rerun_nodes = _downstream(view, {failed_children})
    elif node is not None and (fan_out := fan_out_of(view, node)) is not None:
        _refuse_single_child(view, fan_out, node, has_completed=has_completed)
        single, rerun_nodes = (node,), _downstream(view, {fan_out})
    else:
        targets = {_retryable(view, node)} if node is not None else _members(view, stage or "")
        rerun_nodes = targets | _downstream(view, targets)
    _refuse_other_failures(view, rerun_nodes, {*children, *({fan_out_of(view, name) for name in single})})
    order = tuple(node_id for node_id in view.graph.order if node_id in rerun_nodes)
    reexpanded = tuple(node_id for node_id in order if isinstance(view.graph.workflow.nodes[node_id], FanOutNode))
    return Rerun(order, children, reexpanded, single, view.graph.workflow.timeout_seconds, discards_checkpoints=True)


def _refuse_single_child(view: JobView, fan_out: str, child: str, *, has_completed: bool) -> None:
    """Refuse to retry one child if more of the others have failed than the fan_out tolerates."""
    node, state = view.graph.workflow.nodes[fan_out], view.nodes[fan_out]
    assert isinstance(node, FanOutNode)
    others = state.unsuccessful_count - (0 if has_completed else 1)
    if others > tolerated(node, state.total):
        raise Conflict(
            f"{others} other children of '{fan_out}' have failed, and at most {tolerated(node, state.total)} may "
            f"fail: retrying '{child}' alone is not enough",
            code="job.other-failures",
            hint=f"retry the failed children of '{fan_out}' first, or resume the job",
        )


def _retryable(view: JobView, node_id: str) -> str:
    if node_id not in view.nodes or isinstance(view.graph.workflow.nodes[node_id], StartNode | EndNode):
        raise NotFound(f"job {view.job_id} has no node '{node_id}' that could be retried", code="node.not-found")
    return node_id


def fan_out_of(view: JobView, child: str) -> str | None:
    """The fan_out of a child such as `tiles__3`, if it has that many children; None for a node of the definition."""
    if child in view.nodes:
        return None
    parent, _, number = child.rpartition("__")
    state = view.nodes.get(parent)
    if state is None or not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        return None
    return parent if int(number) < state.expanded else None


def _members(view: JobView, stage: str) -> set[str]:
    work = {n for n, node in view.graph.workflow.nodes.items() if not isinstance(node, StartNode | EndNode)}
    members = {node_id for node_id in work if stage in map(str, view.graph.stages[node_id])}
    if not members:
        stages = sorted({view.graph.stages[node_id] for node_id in work})
        raise NotFound(
            f"job {view.job_id} has no stage '{stage}'",
            code="stage.not-found",
            hint="stages are: " + ", ".join(label for _, label in stages),
        )
    return members


def _unsuccessful_children(view: JobView, fan_out: str) -> int:
    state = view.nodes.get(fan_out)
    if state is None or not isinstance(view.graph.workflow.nodes[fan_out], FanOutNode):
        raise NotFound(f"job {view.job_id} has no fan_out '{fan_out}'", code="node.not-found")
    if not state.unsuccessful_count:
        raise Conflict(f"no child of '{fan_out}' has failed", code="job.not-resumable")
    return state.unsuccessful_count


def _downstream(view: JobView, targets: Iterable[str]) -> set[str]:
    downstream: set[str] = set()
    for node_id in view.graph.order:
        before = {*view.graph.upstream[node_id], fan_out_read_by(view.graph, node_id)}
        if before & {*targets, *downstream}:
            downstream.add(node_id)
    return downstream


def _refuse_other_failures(view: JobView, rerun_nodes: set[str], fan_outs: set[str | None]) -> None:
    """Refuse if a critical failure remains: it would keep every other node from running."""
    other_failures = [
        node_id
        for node_id in view.graph.order
        if view.graph.workflow.nodes[node_id].importance is Importance.CRITICAL
        and not isinstance(view.graph.workflow.nodes[node_id], StartNode | EndNode)
        and is_unsuccessful(view, node_id)
        and node_id not in rerun_nodes
        and node_id not in fan_outs
    ]
    if other_failures:
        raise Conflict(
            f"'{other_failures[0]}' has failed too and is not retried: the job would fail again",
            code="job.other-failures",
            hint="resume the job: that runs all failed nodes again",
            nodes=other_failures,
        )


def _must_rerun(view: JobView, node_id: str) -> bool:
    state = view.nodes[node_id]
    if state.status is NodeStatus.SKIPPED:
        return state.reason != SkipReason.BRANCH_NOT_TAKEN
    if state.status is NodeStatus.FAILED and view.graph.workflow.nodes[node_id].importance is Importance.OPTIONAL:
        # Nodes that continued without it stay as they are; a half-expanded fan_out must not get another source.
        return not any(_has_started(view.nodes[successor]) for successor in view.graph.successors[node_id])
    return state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED)


def _has_started(state: NodeView) -> bool:
    return state.status is NodeStatus.COMPLETED or state.attempt > 0 or state.is_sized


def _are_results_needed(view: JobView, fan_out: str, rerun_nodes: set[str], children: Collection[str]) -> bool:
    if not isinstance(view.graph.workflow.nodes[fan_out], FanOutNode):
        return False
    readers = {node_id for node_id in view.nodes if fan_out_read_by(view.graph, node_id) == fan_out}
    if any(view.nodes[reader].status is NodeStatus.COMPLETED and reader not in children for reader in readers):
        return False  # a node that reads them completed without them
    return fan_out in rerun_nodes or exceeds_tolerance(view, fan_out) or bool(readers & {*rerun_nodes, *children})
