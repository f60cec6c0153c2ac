"""Render the children of a fan_out: its source, and the params, the label and the task of each child."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs import fan
from dagmaster.jobs.changes import NewChild, NewTask
from dagmaster.jobs.model import child_id
from dagmaster.jobs.rendering import TemplateRendering
from dagmaster.jobs.routing import Route, Router
from dagmaster.jobs.task_params import ParamsWriter
from dagmaster.jobs.view import JobView
from dagmaster.workflows.expressions import TemplateContext
from dagmaster.workflows.model import FanOutNode
from dagmaster.workflows.storable import encode

_CHILD_NAMES = frozenset({"item", "index", "items"})  # names whose values differ between children


class Expansion:
    """A fan_out in one decision: its source is rendered once.

    With `results_of`, `items` is None: the children read the results of the other fan_out from the database.
    """

    def __init__(
        self,
        view: JobView,
        node_id: str,
        router: Router,
        params: ParamsWriter,
        rendering: TemplateRendering,
        *,
        max_children: int,
    ) -> None:
        node = view.graph.workflow.nodes[node_id]
        assert isinstance(node, FanOutNode)
        self.node_id = node_id
        self.node = node
        self.graph = view.graph
        self.params = params
        self._router = router
        self._rendering = rendering
        self._context = view.template_context()
        self._shared_params: dict[str, Any] | None = None
        self.items: Sequence[Any] | None = None
        if node.results_of is None:
            source = self.graph.sources[node_id]
            self.items = _array(rendering.render((node_id, "source"), source, self._context))
        self._length = len(self.items) if self.items is not None else view.nodes[node.results_of or ""].total
        self.total = fan.batch_count(self._length, node.batch_size)
        if self.total > max_children:
            raise InvalidRequest(
                f"the source of the fan_out makes {self.total} children, more than the limit of {max_children}",
                code="fan-out.too-large",
                hint="set batch_size so that each child takes several items",
            )

    @cached_property
    def _route(self) -> Route:
        return self._router.route(self.node.task)

    def child(self, index: int, attempt: int = 1) -> tuple[NewChild, NewTask]:
        route, work, name = self._route, self.node.task, child_id(self.node_id, index)
        try:
            params, label = self._rendered(index)
            task = self.params.task(
                NewTask(
                    name,
                    attempt,
                    route.queue,
                    work.handler,
                    params,
                    route.timeout_seconds,
                    0,
                    work.queue_timeout_seconds,
                )
            )
        except DagmasterError as error:
            raise InvalidRequest(f"child {index}: {error.message}", code=error.code, hint=error.hint) from error
        return NewChild(name, index, label, work.retry.max_attempts), task

    def _rendered(self, index: int) -> tuple[dict[str, Any], str | None]:
        """The params and the label of a child."""
        size = self.node.batch_size or 1
        names: dict[str, Any] = {"index": index}
        extra: dict[str, Any] = {}
        if self.items is None:
            limit = min(size, self._length - index * size)
            extra = {"results_of": results_slice(self.node.results_of or "", index * size, limit)}
        elif self.node.batch_size:
            names["items"] = self.items[index * size : (index + 1) * size]
            extra = {"items": names["items"]}
        else:
            names["item"] = self.items[index]
        context = self._context.having(**names)
        params = self._rendered_params(index, context)
        label = None
        if self.node_id in self.graph.labels:
            label = self._rendering.render((self.node_id, "label", index), self.graph.labels[self.node_id], context)
        encode(label, "its label")
        return {**extra, **params} if extra else params, None if label is None else str(label)

    def _rendered_params(self, index: int, context: TemplateContext) -> dict[str, Any]:
        """A child's params; rendered once for all children if they do not depend on the child."""
        compiled = self.graph.params[self.node_id]
        if compiled.names & _CHILD_NAMES:
            return self._rendering.render((self.node_id, "params", index), compiled, context)  # type: ignore[no-any-return]
        if self._shared_params is None:
            shared: dict[str, Any] = self._rendering.render((self.node_id, "params"), compiled, context)
            self._shared_params = shared
            self.params.share(shared)
        return self._shared_params


def _array(items: Any) -> Sequence[Any]:
    if not isinstance(items, list | tuple):
        raise InvalidRequest(
            f"the source of the fan_out is {type(items).__name__}, not an array", code="fan-out.not-an-array"
        )
    return items


def results_slice(node_id: str, offset: int, limit: int) -> dict[str, Any]:
    """A reference to children's results, instead of the results."""
    return {"node_id": node_id, "offset": offset, "limit": limit}
