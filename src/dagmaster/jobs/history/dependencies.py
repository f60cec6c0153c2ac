"""The states of a node's dependencies after the events so far: the rules of the graph, written a second time."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import floor

from dagmaster.jobs.history.rebuilt import RebuiltJob
from dagmaster.jobs.history.rows import NodeRow
from dagmaster.jobs.states import NODE_TERMINAL, NodeStatus, SkipReason
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import ConditionalNode, FanOutNode, Importance


class Dependency(StrEnum):
    """The state of a dependency at the moment its successor changes state."""

    WAIT = "has not ended"
    COMPLETED = "completed"
    NOT_TAKEN = "was skipped by a branch"
    OPTIONAL_FAILED = "failed but is optional"
    FAILED = "failed"


@dataclass(slots=True)
class Dependencies:
    """`rows` are those of the definition's own nodes. They have values that events of older versions do not have."""

    rebuilt: RebuiltJob
    graph: Graph | None
    rows: Mapping[str, NodeRow]

    def of(self, target: str) -> tuple[dict[str, Dependency], dict[str, Dependency]]:
        """The states of the dependencies of `target`: those in all_of, and those in any_of."""
        assert self.graph is not None
        all_of, any_of = self.graph.all_of.get(target, ()), self.graph.any_of.get(target, ())
        return {name: self.state(name, target) for name in all_of}, {name: self.state(name, target) for name in any_of}

    def state(self, source: str, target: str) -> Dependency:
        assert self.graph is not None
        node = self.graph.workflow.nodes[source]
        state = self.rebuilt.nodes.get(source)
        if state is None or state.status not in NODE_TERMINAL:
            return Dependency.WAIT
        match state.status:
            case NodeStatus.SKIPPED:
                return Dependency.NOT_TAKEN if state.reason == SkipReason.BRANCH_NOT_TAKEN else Dependency.FAILED
            case NodeStatus.CANCELLED:
                return Dependency.FAILED
            case NodeStatus.FAILED if node.importance is not Importance.OPTIONAL:
                return Dependency.FAILED
            case NodeStatus.COMPLETED if isinstance(node, ConditionalNode):
                return Dependency.COMPLETED if self._was_chosen(source, target) else Dependency.NOT_TAKEN
            case NodeStatus.COMPLETED if not isinstance(node, FanOutNode):
                return Dependency.COMPLETED
        if self.has_open_children(source):
            return Dependency.WAIT
        if state.status == NodeStatus.COMPLETED and (
            not self.exceeds_tolerance(source) or self.graph.fan_out_of.get(target) == source
        ):
            return Dependency.COMPLETED
        return Dependency.OPTIONAL_FAILED if node.importance is Importance.OPTIONAL else Dependency.FAILED

    def _was_chosen(self, conditional: str, target: str) -> bool:
        """From its event, or else from its row, which describes only the last run. True for a target on no branch."""
        assert self.graph is not None
        if target not in self.graph.branch_targets[conditional]:
            return True
        chosen = self.rebuilt.nodes[conditional].chosen
        if chosen is not None:
            return target in chosen
        row = self.rows.get(conditional)
        if row is None or row.chosen is None or row.run != self.rebuilt.nodes[conditional].run:
            return True
        return target in row.chosen

    def has_open_children(self, fan_out: str) -> bool:
        counts = self.rebuilt.children_of(fan_out)
        if counts.ended < counts.expanded:
            return True
        return self.rebuilt.nodes[fan_out].status == NodeStatus.COMPLETED and counts.expanded < self.total(fan_out)

    def total(self, fan_out: str) -> int:
        """How many children it has in this run: from its event, or else from its row, which describes only the last."""
        row, node = self.rows.get(fan_out), self.rebuilt.nodes[fan_out]
        if node.total is not None:
            return node.total
        if row is not None and row.total is not None and row.run == node.run:
            return row.total
        return self.rebuilt.children_of(fan_out).expanded

    def _is_size_known(self, fan_out: str) -> bool:
        row, node = self.rows.get(fan_out), self.rebuilt.nodes[fan_out]
        return node.total is not None or row is None or row.run == node.run

    def exceeds_tolerance(self, fan_out: str) -> bool:
        node = self.graph.workflow.nodes[fan_out] if self.graph else None
        counts = self.rebuilt.child_counts.get(fan_out)
        if counts is None or not isinstance(node, FanOutNode):
            return False
        share = node.tolerate
        if isinstance(share, float) and not self._is_size_known(fan_out):
            return False
        allowed = floor(share * self.total(fan_out)) if isinstance(share, float) else share
        return counts.failed_count + counts.cancelled_count > allowed
