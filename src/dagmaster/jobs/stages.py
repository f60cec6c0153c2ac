"""Stages: labels that group nodes for display, with their progress."""

from dataclasses import dataclass

from dagmaster.jobs.states import NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, exceeds_tolerance


@dataclass(frozen=True, slots=True)
class Stage:
    number: int
    label: str
    nodes: tuple[str, ...]
    is_complete: bool
    has_failed: bool


def stages_of(view: JobView) -> list[Stage]:
    """The stages in order. The states of its nodes decide whether a stage is complete or has failed."""
    members: dict[tuple[int, str], list[str]] = {}
    for node_id in view.graph.order:
        members.setdefault(view.graph.stages[node_id], []).append(node_id)
    return [
        Stage(
            number,
            label,
            tuple(ids),
            is_complete=all(_is_done(view, node_id) for node_id in ids),
            has_failed=any(_has_failed(view, node_id) for node_id in ids),
        )
        for (number, label), ids in sorted(members.items())
    ]


def _is_done(view: JobView, node_id: str) -> bool:
    node = view.nodes[node_id]
    if node.status is NodeStatus.SKIPPED:
        return node.reason == SkipReason.BRANCH_NOT_TAKEN
    return node.status is NodeStatus.COMPLETED and not node.remaining and not exceeds_tolerance(view, node_id)


def _has_failed(view: JobView, node_id: str) -> bool:
    """A fan_out fails when more of its children fail than it tolerates."""
    node = view.nodes[node_id]
    return node.status is NodeStatus.FAILED or bool(node.failed_count and exceeds_tolerance(view, node_id))
