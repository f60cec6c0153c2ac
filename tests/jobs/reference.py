"""How a job must end: each node's last state follows from its definition and the scripts, recursively.

Written independently of the planner, and naive on purpose. It has no clock and no running attempts, and does not stop
a job after a critical failure: for such a job it returns how each node would have ended if the others had continued.
"""

from functools import cache

from dagmaster.workflows.graph import fan_outs_of, targets, waits_for
from dagmaster.workflows.model import ConditionalNode, EndNode, FanInNode, FanOutNode, Importance, StartNode, TaskNode
from tests.jobs.random_workflows import Case

DONE, FAILED, SKIPPED, LOST = "completed", "failed", "skipped by a branch", "skipped after a failure"


def succeeds(script: list[str], max_attempts: int, max_losses: int) -> bool:
    own = losses = 0
    for event in script:
        if event == "data":
            return False
        own += event in ("handler", "engine", "overran")
        losses += event in ("environment", "lost")
        if own > max_attempts or losses > max_losses:
            return False
    return True


class Reference:
    def __init__(self, case: Case, max_losses: int) -> None:
        self.case = case
        self.nodes = case.workflow.nodes
        self.max_losses = max_losses
        self.state = cache(self._state)

    def _state(self, name: str) -> str:
        node = self.nodes[name]
        declared = node.depends_on
        needed = [self._signal_of(source, name) for source in declared.all_of] if declared else []
        options = [self._signal_of(source, name) for source in declared.any_of] if declared else []
        if "broken" in needed:
            return LOST
        if options and "go" not in options:
            return LOST if "broken" in options or "empty" in options else SKIPPED
        if needed and not options and set(needed) == {"void"}:
            return SKIPPED
        return DONE if self._would_succeed(name) else FAILED

    def _signal_of(self, source: str, target: str) -> str:
        node, state = self.nodes[source], self.state(source)
        if state == SKIPPED:
            return "void"
        if state == LOST:
            return "broken"
        if state == DONE and isinstance(node, ConditionalNode):
            return "go" if target in self.chosen(source) or target not in targets(node) else "void"
        if state == DONE and (not self.exceeds_tolerance(source) or self._fan_out_of(target) == source):
            return "go"
        return "empty" if node.importance is Importance.OPTIONAL else "broken"

    def _fan_out_of(self, name: str) -> str | None:
        if not isinstance(self.nodes[name], FanInNode):
            return None
        return fan_outs_of(self.case.workflow, name, waits_for(self.case.workflow))[0]

    def _would_succeed(self, name: str) -> bool:
        node = self.nodes[name]
        read = self.case.reads.get(name)
        if read and self.state(read) != DONE:
            return False  # its template reads an output that does not exist
        if isinstance(node, FanInNode) and self.exceeds_tolerance(self._fan_out_of(name) or ""):
            return False
        if isinstance(node, TaskNode) or (isinstance(node, FanInNode) and node.handler):
            return self._script_succeeds(name, node.retry.max_attempts)
        return True

    def _script_succeeds(self, name: str, max_attempts: int) -> bool:
        return succeeds(self.case.scripts.get(name, []), max_attempts, self.max_losses)

    def chosen(self, name: str) -> tuple[str, ...]:
        node = self.nodes[name]
        assert isinstance(node, ConditionalNode)
        read = self.case.reads.get(name)
        text = node.condition_field or (node.condition or "").split("{{")[1].split("}}")[0]
        value = self.case.values[read] if read else int(text)
        if node.branches:
            return node.branches[0].next if value >= 2 else node.branches[1].next
        return node.on_true if value >= 2 else node.on_false

    # Children

    def total(self, name: str) -> int:
        node = self.nodes[name]
        assert isinstance(node, FanOutNode)
        if self.state(name) != DONE:
            return 0
        if node.results_of:
            length = self.total(node.results_of)
        elif isinstance(node.source, str):
            length = self.case.values[self.case.reads[name]]
        else:
            length = len(node.source or ())
        return -(-length // node.batch_size) if node.batch_size else length

    def failures(self, name: str) -> list[int]:
        node = self.nodes[name]
        assert isinstance(node, FanOutNode)
        retries = node.task.retry.max_attempts
        return [i for i in range(self.total(name)) if not self._script_succeeds(f"{name}__{i}", retries)]

    def exceeds_tolerance(self, name: str) -> bool:
        node = self.nodes.get(name)
        if not isinstance(node, FanOutNode):
            return False
        allowed = node.tolerate * self.total(name) if isinstance(node.tolerate, float) else node.tolerate
        return len(self.failures(name)) > allowed

    # The job

    def has_critical_failure(self) -> bool:
        return any(
            node.importance is Importance.CRITICAL and (self.state(name) == FAILED or self.exceeds_tolerance(name))
            for name, node in self.nodes.items()
        )

    def outcome(self) -> str:
        bad = {
            node.importance
            for name, node in self.nodes.items()
            if not isinstance(node, StartNode | EndNode)
            and (self.state(name) in (FAILED, LOST) or self.exceeds_tolerance(name))
        }
        if Importance.CRITICAL in bad:
            return "failed"
        return "partial_success" if Importance.IMPORTANT in bad else "completed"
