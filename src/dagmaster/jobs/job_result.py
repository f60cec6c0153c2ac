"""What a job returns when it has ended: its result, or the error that explains its failure."""

from dataclasses import replace
from typing import Any

from dagmaster.errors import DagmasterError
from dagmaster.jobs.draft import Draft
from dagmaster.jobs.rendering import TemplateRendering
from dagmaster.jobs.states import NodeStatus
from dagmaster.jobs.task_params import ParamsWriter
from dagmaster.jobs.view import JobView, exceeds_tolerance
from dagmaster.workflows.expressions import Compiled, TemplateContext
from dagmaster.workflows.graph import OUTPUTS
from dagmaster.workflows.model import EndNode, Importance, StartNode


class JobResult:
    """The result is the value of the workflow's `outputs`, or else the outputs of the nodes before `end`."""

    def __init__(self, draft: Draft, params: ParamsWriter, rendering: TemplateRendering) -> None:
        self.draft = draft
        self.rendering = rendering
        self.params = params
        self.graph = draft.view.graph

    def missing_outputs(self) -> set[str]:
        """Nodes whose outputs must be loaded before the result can be rendered."""
        if self.graph.outputs is not None:
            return self.draft.view.missing_outputs(OUTPUTS)
        return {
            node_id
            for node_id in self._source_nodes()
            if not self.draft.view.is_output_known(node_id)
            and not isinstance(self.graph.workflow.nodes[node_id], StartNode)
        }

    def render(self, *, is_partial: bool) -> Any:
        if self.graph.outputs is None:
            sources = self._source_nodes()
            for error in (self.draft.view.unloadable.get(node_id) for node_id in sources):
                if error is not None:
                    raise error
            return {node_id: self.draft.view.outputs.get(node_id) for node_id in sources}
        self.draft.view.refuse_unloadable(OUTPUTS)
        context = self.draft.view.template_context()
        return {
            name: self.params.output(name, self._rendered(name, compiled, context, is_partial))
            for name, compiled in self.graph.outputs.items()
        }

    def _source_nodes(self) -> list[str]:
        """The completed nodes before `end`, in order."""
        ends = [node_id for node_id, node in self.graph.workflow.nodes.items() if isinstance(node, EndNode)]
        before = {source for end in ends for source in (*self.graph.all_of[end], *self.graph.any_of[end])}
        return [
            node_id
            for node_id in self.graph.order
            if node_id in before and self.draft.node(node_id).status is NodeStatus.COMPLETED
        ]

    def first_error(self) -> str:
        """The first failure among the most important nodes, in their order: the likely cause of the others."""
        ranks, nodes = list(Importance), self.graph.workflow.nodes
        for node_id in sorted(self.graph.order, key=lambda each: ranks.index(nodes[each].importance)):
            state = self.draft.node(node_id)
            if state.status is NodeStatus.FAILED:
                return f"node '{node_id}' failed" + (f": {state.error_message}" if state.error_message else "")
            if state.failed_count and exceeds_tolerance(self.draft.view, node_id):
                return f"{state.failed_count} of {state.total} children of '{node_id}' failed"
            if state.cancelled_count and exceeds_tolerance(self.draft.view, node_id):
                return f"{state.cancelled_count} of {state.total} children of '{node_id}' were cancelled"
        return "a node of the job failed"

    def without_unneeded_outputs(self) -> JobView:
        """The view without the outputs that no node and no result will read any more."""
        view = self.draft.view
        outputs = {node_id: output for node_id, output in view.outputs.items() if self._is_needed(view, node_id)}
        return view if len(outputs) == len(view.outputs) else replace(view, outputs=outputs)

    def _is_needed(self, view: JobView, node_id: str) -> bool:
        if self.graph.outputs is None and node_id in self._source_nodes():
            return True
        waiting = (NodeStatus.PENDING, NodeStatus.READY)
        return any(
            consumer == OUTPUTS or view.nodes[consumer].status in waiting
            for consumer in self.graph.consumers.get(node_id, ())
        )

    def _rendered(self, name: str, compiled: Compiled, context: TemplateContext, is_partial: bool) -> Any:
        """One of the workflow's outputs. If a job succeeds partially, an output that cannot be rendered is null."""
        try:
            return self.rendering.render((OUTPUTS, name), compiled, context)
        except DagmasterError:
            if is_partial:
                return None
            raise
