"""Draw a workflow as a Mermaid flowchart."""

from collections.abc import Iterator

from dagmaster.quantities import shortened
from dagmaster.workflows.graph import Graph, targets
from dagmaster.workflows.model import (
    AnyNode,
    ConditionalNode,
    EndNode,
    FanInNode,
    FanOutNode,
    StartNode,
    TaskNode,
)

_LABEL_LENGTH = 60


def mermaid(graph: Graph) -> str:
    """Shapes show the kind of a node, labels on edges the branch; dotted edges are those of `any_of`."""
    names = {node_id: f"n{number}" for number, node_id in enumerate(graph.order)}
    lines = [f"    {names[node_id]}{_shape(node_id, graph.workflow.nodes[node_id])}" for node_id in graph.order]
    lines += [f"    {names[source]} {arrow} {names[target]}" for source, arrow, target in _edges(graph)]
    return "\n".join(["flowchart TD", *lines, ""])


def _shape(node_id: str, node: AnyNode) -> str:
    match node:
        case StartNode() | EndNode():
            return f"([{_quoted(node_id)}])"
        case TaskNode():
            return f"[{_quoted(node_id, node.handler)}]"
        case ConditionalNode():
            return f"{{{_quoted(node_id, node.condition or node.condition_field or '')}}}"
        case FanOutNode():
            return f"[[{_quoted(node_id, f'each: {node.task.handler}')}]]"
        case FanInNode():
            return f"[/{_quoted(node_id, node.handler or node.aggregation)}\\]"


def _quoted(*lines: str) -> str:
    """A label. Mermaid reads HTML entities in it, so that nothing in a definition can end it or become markup."""
    return '"' + "<br>".join(_escaped(line) for line in lines if line) + '"'


def _escaped(text: str) -> str:
    short = shortened(text, _LABEL_LENGTH)
    return "".join(c if c.isalnum() or c in " _-.:=…" else f"#{ord(c)};" for c in " ".join(short.split()))


def _edges(graph: Graph) -> Iterator[tuple[str, str, str]]:
    for target in graph.order:
        for source in graph.all_of[target]:
            yield source, _arrow("-->", graph, source, target), target
        for source in graph.any_of[target]:
            yield source, _arrow("-.->", graph, source, target), target


def _arrow(line: str, graph: Graph, source: str, target: str) -> str:
    node = graph.workflow.nodes[source]
    if not isinstance(node, ConditionalNode) or target not in targets(node):
        return line
    return f"{line}|{_quoted(' / '.join(_branch_names(node, target)))}|"


def _branch_names(node: ConditionalNode, target: str) -> Iterator[str]:
    if target in node.on_true:
        yield "true"
    if target in node.on_false:
        yield "false"
    for branch in node.branches:
        if target in branch.next:
            yield branch.condition or "otherwise"
