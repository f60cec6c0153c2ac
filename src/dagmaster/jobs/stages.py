"""Stages: labels that group nodes for people. How far each has come, told from its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

from dagmaster.jobs.states import NODE_TERMINAL, NodeStatus, SkipReason
from dagmaster.jobs.view import NodeView
from dagmaster.workflows.graph import Graph


@dataclass(frozen=True, slots=True)
class Stage:
    number: int
    label: str
    nodes: tuple[str, ...]
    is_complete: bool
    has_failed: bool


def stages_of(graph: Graph, nodes: Mapping[str, NodeView]) -> list[Stage]:
    """The stages in their order, with what their nodes say of them."""
    members: dict[tuple[int, str], list[str]] = {}
    for node_id in graph.order:
        members.setdefault(graph.stages[node_id], []).append(node_id)
    return [
        Stage(
            number,
            label,
            tuple(ids),
            is_complete=all(_is_done(nodes[node_id]) for node_id in ids),
            has_failed=any(nodes[node_id].status is NodeStatus.FAILED or nodes[node_id].failed for node_id in ids),
        )
        for (number, label), ids in sorted(members.items())
    ]


def _is_done(node: NodeView) -> bool:
    if node.status is NodeStatus.SKIPPED:
        return node.reason == SkipReason.BRANCH_NOT_TAKEN
    return node.status in NODE_TERMINAL and node.status is NodeStatus.COMPLETED and not node.remaining
