"""What runs again when a job that has ended is resumed: what failed, was cancelled, or was skipped because of that [E15].

Whatever completed stays. Children of a fan_out run again where their results are still wanted: too many of them are missing, or
someone who reads them runs again.
"""

from dataclasses import dataclass, field

from dagmaster.errors import Conflict
from dagmaster.jobs.states import JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, NodeView, overdrawn, read_by
from dagmaster.workflows.model import FanOutNode

RESUMABLE = frozenset({JobStatus.FAILED, JobStatus.PARTIAL_SUCCESS, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Revival:
    nodes: tuple[str, ...]  # of the definition, in its order
    children: dict[str, int] = field(default_factory=dict)  # how many of each fan_out
    timeout_seconds: float | None = None  # the job's time starts anew


def resume(view: JobView) -> Revival:
    """What a resume runs again, or why there can be none."""
    if view.status not in RESUMABLE:
        what = "has completed" if view.status is JobStatus.COMPLETED else "has not ended"
        raise Conflict(f"job {view.job_id} {what}: there is nothing to resume", code="job.not-resumable")
    again = {node_id for node_id, state in view.nodes.items() if _fell_out(state)}
    children = {
        node_id: state.failed + state.cancelled
        for node_id, state in view.nodes.items()
        if state.failed + state.cancelled and _are_wanted(view, node_id, again)
    }
    if not again and not children:
        raise Conflict(
            f"all nodes of job {view.job_id} have completed: there is nothing to run again",
            code="job.not-resumable",
            hint="submit it anew with a corrected workflow",
        )
    order = tuple(node_id for node_id in view.graph.order if node_id in again)
    return Revival(order, children, view.graph.workflow.timeout_seconds)


def _fell_out(state: NodeView) -> bool:
    if state.status is NodeStatus.SKIPPED:
        return state.reason != SkipReason.BRANCH_NOT_TAKEN
    return state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED)


def _are_wanted(view: JobView, fan_out: str, again: set[str]) -> bool:
    if not isinstance(view.graph.workflow.nodes[fan_out], FanOutNode):
        return False
    readers = {node_id for node_id in view.nodes if read_by(view.graph, node_id) == fan_out}
    return fan_out in again or overdrawn(view, fan_out) or bool(readers & again)
