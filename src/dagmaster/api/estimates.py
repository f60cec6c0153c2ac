"""Estimates of the jobs that the API shows. Past runs are read at most once a minute for each workflow."""

import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from dagmaster.api.summaries import state_of
from dagmaster.client.models.nodes import NodeSummary, PublicNode, StageSummary
from dagmaster.database.reads.api import ApiReads
from dagmaster.jobs import estimates
from dagmaster.jobs.estimates import NodeHistory, NodeProgress
from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import work_of

KEPT_SECONDS = 60.0
MAX_KEPT = 256
T = TypeVar("T")
_ENDED = {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED, NodeStatus.CANCELLED}


class _Recent(Generic[T]):
    """Values that were read within the last minute, a limited number of them."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[float, T]] = {}

    def get(self, key: str) -> T | None:
        at, value = self._values.get(key, (0.0, None))
        return value if time.monotonic() - at < KEPT_SECONDS else None

    def put(self, key: str, value: T) -> None:
        self._values.pop(key, None)
        while len(self._values) >= MAX_KEPT:
            self._values.pop(next(iter(self._values)))
        self._values[key] = (time.monotonic(), value)


class RunHistory:
    """Past runs of workflows: the history of their nodes, and their usual durations."""

    def __init__(self, reads: ApiReads) -> None:
        self._reads = reads
        self._nodes: _Recent[dict[str, NodeHistory]] = _Recent()
        self._seconds: _Recent[float | str] = _Recent()

    async def nodes(self, graph: Graph, definition_hash: str) -> dict[str, NodeHistory]:
        past = self._nodes.get(definition_hash)
        if past is None:
            rows = await self._reads.past_nodes(graph.workflow.workflow_id, graph.order)
            past = estimates.node_histories(graph, rows)
            self._nodes.put(definition_hash, past)
        return past

    async def usual_seconds(self, workflow_ids: Iterable[str]) -> dict[str, float]:
        """The usual duration of jobs of these workflows, by workflow; unknown ones are left out."""
        names = set(workflow_ids)
        missing = sorted(name for name in names if self._seconds.get(name) is None)
        if missing:
            read = await self._reads.usual_seconds(missing)
            for name in missing:
                self._seconds.put(name, read.get(name, "unknown"))
        return {name: value for name in names if isinstance(value := self._seconds.get(name), float)}


def with_estimates(
    graph: Graph, nodes: list[PublicNode], stages: list[StageSummary], past: dict[str, NodeHistory]
) -> tuple[list[PublicNode], list[StageSummary], float | None]:
    """The nodes and stages of a running job with their estimates, and the estimate of the job."""
    remaining = {
        node.node_id: estimates.seconds_left(_progress_of(graph, node), past.get(node.node_id, NodeHistory()))
        for node in nodes
    }
    ends = estimates.seconds_until_end(graph, remaining)
    open_nodes = [node for node in nodes if not _is_ended(graph, node)]
    shown = [
        node.model_copy(update={"eta_seconds": _rounded(ends.get(node.node_id))}) if node in open_nodes else node
        for node in nodes
    ]

    def until_end(nodes_of_part: Iterable[PublicNode]) -> float | None:
        return _rounded(estimates.of_all(ends.get(node.node_id) for node in nodes_of_part))

    of_stages = [
        stage.model_copy(update={"eta_seconds": until_end(node for node in open_nodes if node.stage == stage.name)})
        for stage in stages
    ]
    return shown, of_stages, until_end(open_nodes)


def child_estimate(node: PublicNode) -> float | None:
    """The estimate of a running child of a fan_out, from its own progress alone."""
    if node.status in _ENDED:
        return None
    return _rounded(estimates.from_rate(node.seconds, _reported(node)))


def _progress_of(graph: Graph, node: PublicNode) -> NodeProgress:
    definition = graph.workflow.nodes.get(node.node_id)
    fraction = node.ended_count / node.total if node.total else _reported(node)
    return NodeProgress(
        is_ended=_is_ended(graph, node),
        elapsed=node.seconds,
        fraction=fraction,
        has_work=definition is not None and work_of(definition) is not None,
    )


def _is_ended(graph: Graph, node: NodeSummary) -> bool:
    return state_of(graph, node) in _ENDED


def _reported(node: NodeSummary) -> float | None:
    """The fraction that a handler reported; None if it is not a number."""
    fraction = (node.progress or {}).get("fraction")
    return float(fraction) if isinstance(fraction, int | float) and not isinstance(fraction, bool) else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
