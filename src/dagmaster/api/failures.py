"""The first failure of a job and its cause."""

from collections.abc import Sequence
from uuid import UUID

from dagmaster.api.services import ApiServices
from dagmaster.client.models.jobs import FirstFailure
from dagmaster.client.models.nodes import NodeSummary, PublicNode, error_facts
from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.graph import Graph


async def first_failure(
    services: ApiServices, job_id: UUID, graph: Graph, nodes: Sequence[PublicNode]
) -> FirstFailure | None:
    """The node that failed first; for a fan_out, its failed child with the lowest index. A fan_in that failed because
    of the children is not the cause."""
    failed = [node for node in nodes if node.status is NodeStatus.FAILED or node.failed_count]
    first = min(failed, key=lambda node: (_failed_at(node), graph.place.get(node.node_id, 0)), default=None)
    if first is None:
        return None
    cause: NodeSummary = first
    if first.failed_count:
        children = await services.reads.page_children(
            job_id, first.node_id, limit=1, after=-1, statuses=[NodeStatus.FAILED]
        )
        cause = children[0] if children else first
    state = await services.reads.node(job_id, cause.node_id)
    return FirstFailure(
        node_id=cause.node_id,
        parent_node_id=cause.parent_node_id,
        label=cause.label,
        attempt=cause.attempt,
        failed_at=cause.completed_at,
        error_message=cause.error_message,
        error=error_facts(state.error) if state.error else None,
        not_run=_not_run(graph, first.node_id, nodes),
    )


def _failed_at(node: NodeSummary) -> float:
    """When a node failed. For a fan_out with failed children, when the fan_out started: its children are the cause of
    the failures of later nodes, so it must come before them."""
    begun_at = node.dispatched_at or node.started_at or node.completed_at
    moment = begun_at if node.failed_count else node.completed_at
    return moment.timestamp() if moment else float("inf")


def _not_run(graph: Graph, node_id: str, nodes: Sequence[PublicNode]) -> list[str]:
    not_run = [node.node_id for node in nodes if node.status in {NodeStatus.SKIPPED, NodeStatus.CANCELLED}]
    return [name for name in not_run if node_id in graph.upstream.get(name, ())]
