"""A workflow as a graph: which nodes wait for which, which read whose output, and every template compiled.

`build` expects a definition that `load` has accepted. `check` uses the same functions to derive edges, so that a
workflow is checked with the edges that it runs with. A Graph never changes; its caller keeps and shares it.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagmaster.workflows.expressions import (
    Compiled,
    compile_branch,
    compile_condition,
    compile_expression,
    compile_value,
)
from dagmaster.workflows.model import (
    AnyNode,
    ConditionalNode,
    FanInNode,
    FanOutNode,
    Importance,
    StartNode,
    Work,
    Workflow,
    work_of,
)

Edges = dict[str, tuple[str, ...]]
Branches = tuple[tuple[Compiled | None, tuple[str, ...]], ...]

OUTPUTS = ""
"""Stands for the workflow's `outputs` among the readers of outputs."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Fields that are dicts have node ids as keys, except `outputs`, which has the names of outputs.

    `place` is a node's number in `order`. `all_of` and `any_of` are the nodes that a node effectively waits for,
    `successors` is their inverse, `upstream` has all nodes before a node. `work` is the part of a node that a worker
    runs, `critical` are the nodes whose failure fails the job. `needs` are the nodes whose outputs a node's templates
    read, `consumers` is its inverse; OUTPUTS ("") is the workflow's own `outputs`. A default branch has no condition.
    """

    workflow: Workflow
    start: str
    order: tuple[str, ...]
    place: dict[str, int]
    all_of: Edges
    any_of: Edges
    successors: Edges
    upstream: dict[str, frozenset[str]]
    branch_targets: dict[str, frozenset[str]]
    fan_out_of: dict[str, str]
    stages: dict[str, tuple[int, str]]
    work: dict[str, Work]
    critical: tuple[str, ...]
    params: dict[str, Compiled]
    sources: dict[str, Compiled]
    labels: dict[str, Compiled]
    conditions: dict[str, Compiled]
    fields: dict[str, Compiled]
    branches: dict[str, Branches]
    outputs: dict[str, Compiled] | None
    needs: dict[str, frozenset[str]]
    consumers: dict[str, frozenset[str]]


def build(workflow: Workflow) -> Graph:
    nodes = workflow.nodes
    all_of, any_of = dependencies(workflow)
    waits = waits_for(workflow)
    order = topological(waits)
    templates = _templates(nodes)
    outputs = None if workflow.outputs is None else {k: compile_value(v) for k, v in workflow.outputs.items()}
    needs = _needs(nodes, templates, outputs)
    return Graph(
        workflow=workflow,
        start=next(node_id for node_id, node in nodes.items() if isinstance(node, StartNode)),
        order=order,
        place={node_id: number for number, node_id in enumerate(order)},
        all_of=all_of,
        any_of=any_of,
        successors=inverse(waits),
        upstream=upstream(order, waits),
        branch_targets={
            node_id: frozenset(targets(node)) for node_id, node in nodes.items() if isinstance(node, ConditionalNode)
        },
        fan_out_of={
            node_id: fan_outs_of(workflow, node_id, waits)[0]
            for node_id, node in nodes.items()
            if isinstance(node, FanInNode)
        },
        stages=stages(workflow, order),
        work={node_id: work for node_id, node in nodes.items() if (work := work_of(node))},
        critical=tuple(node_id for node_id, node in nodes.items() if node.importance is Importance.CRITICAL),
        outputs=outputs,
        needs=needs,
        consumers={
            node_id: frozenset(reader for reader, read in needs.items() if node_id in read) for node_id in nodes
        },
        **templates,
    )


# --- edges -----------------------------------------------------------------------------------------------------------


def targets(node: AnyNode) -> tuple[str, ...]:
    """The nodes this one points to, each once."""
    pointed = list(node.next)
    if isinstance(node, ConditionalNode):
        pointed += [*node.on_true, *node.on_false, *(name for branch in node.branches for name in branch.next)]
    return tuple(dict.fromkeys(pointed))


def reading_order(workflow: Workflow) -> tuple[str, ...]:
    """Breadth first from the start. The order of the file is not used: a stored definition has lost it."""
    dependents: dict[str, list[str]] = {}
    for node_id, node in sorted(workflow.nodes.items()):
        for other in (*node.depends_on.all_of, *node.depends_on.any_of) if node.depends_on else ():
            dependents.setdefault(other, []).append(node_id)
    pending = deque(sorted(node_id for node_id, node in workflow.nodes.items() if isinstance(node, StartNode)))
    visited: dict[str, None] = {}
    while pending:
        name = pending.popleft()
        if name in workflow.nodes and name not in visited:
            visited[name] = None
            pending.extend((*targets(workflow.nodes[name]), *dependents.get(name, ())))
    return (*visited, *sorted(workflow.nodes.keys() - visited.keys()))


def dependencies(workflow: Workflow) -> tuple[Edges, Edges]:
    """The nodes that each node waits for, as (all_of, any_of): its own `depends_on`, else all that point to it."""
    order = reading_order(workflow)
    pointing: dict[str, list[str]] = {node_id: [] for node_id in order}
    for node_id in order:
        for target in targets(workflow.nodes[node_id]):
            pointing.setdefault(target, []).append(node_id)
    all_of: Edges = {}
    any_of: Edges = {}
    for node_id in order:
        declared = workflow.nodes[node_id].depends_on
        all_of[node_id] = tuple(dict.fromkeys(declared.all_of)) if declared else tuple(pointing[node_id])
        any_of[node_id] = tuple(dict.fromkeys(declared.any_of)) if declared else ()
    return all_of, any_of


def waits_for(workflow: Workflow) -> Edges:
    """All dependencies of each node that exist, whether all or any of them are needed."""
    all_of, any_of = dependencies(workflow)
    return {
        node_id: tuple(d for d in dict.fromkeys(all_of[node_id] + any_of[node_id]) if d in all_of) for node_id in all_of
    }


def inverse(edges: Mapping[str, Iterable[str]]) -> Edges:
    reversed_edges: dict[str, list[str]] = {node_id: [] for node_id in edges}
    for node_id, others in edges.items():
        for other in others:
            reversed_edges[other].append(node_id)
    return {node_id: tuple(others) for node_id, others in reversed_edges.items()}


def topological(waits: Edges) -> tuple[str, ...]:
    """Every node after those it waits for, else in the given order. Nodes on a cycle or behind one are missing."""
    position = {node_id: n for n, node_id in enumerate(waits)}
    successors = inverse(waits)
    open_count = {node_id: len(others) for node_id, others in waits.items()}
    ready = [position[node_id] for node_id, count in open_count.items() if not count]
    names = tuple(waits)
    order: list[str] = []
    while ready:
        order.append(names[heapq.heappop(ready)])
        for successor in successors[order[-1]]:
            open_count[successor] -= 1
            if not open_count[successor]:
                heapq.heappush(ready, position[successor])
    return tuple(order)


def upstream(order: Iterable[str], waits: Edges) -> dict[str, frozenset[str]]:
    upstream: dict[str, frozenset[str]] = {}
    for node_id in order:
        upstream[node_id] = frozenset(waits[node_id]).union(*(upstream[other] for other in waits[node_id]))
    return upstream


def fan_outs_of(workflow: Workflow, fan_in: str, waits: Edges) -> tuple[str, ...]:
    """The fan_out that a fan_in names, else the nearest before it; several if they are equally near."""
    node = workflow.nodes[fan_in]
    if isinstance(node, FanInNode) and node.fan_out:
        return (node.fan_out,)
    distance = {fan_in: 0}
    pending = deque([fan_in])
    fan_outs: list[str] = []
    while pending and not (fan_outs and distance[pending[0]] >= distance[fan_outs[0]]):
        name = pending.popleft()
        for other in waits[name]:
            if other not in distance:
                distance[other] = distance[name] + 1
                pending.append(other)
                fan_outs += [other] if isinstance(workflow.nodes[other], FanOutNode) else []
    return tuple(fan_outs)


def stages(workflow: Workflow, order: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Number and label of each node's stage, by first appearance; a node without a label is a stage of its own."""
    numbers: dict[tuple[bool, str], int] = {}
    stages: dict[str, tuple[int, str]] = {}
    for node_id in order:
        label = workflow.nodes[node_id].stage
        number = numbers.setdefault((label is None, label or node_id), len(numbers) + 1)
        stages[node_id] = (number, label or node_id)
    return stages


# --- templates -------------------------------------------------------------------------------------------------------


def _templates(nodes: Mapping[str, AnyNode]) -> dict[str, Any]:
    """Every node's templates, under the names of the Graph's fields."""
    compiled: dict[str, dict[str, Any]] = {
        name: {} for name in ("params", "sources", "labels", "conditions", "fields", "branches")
    }
    for node_id, node in nodes.items():
        if work := work_of(node):
            compiled["params"][node_id] = compile_value(work.params)
        if isinstance(node, FanOutNode):
            _fan_out(compiled, node_id, node)
        if isinstance(node, ConditionalNode):
            _conditional(compiled, node_id, node)
    return compiled


def _fan_out(compiled: dict[str, dict[str, Any]], node_id: str, node: FanOutNode) -> None:
    if isinstance(node.source, str):
        compiled["sources"][node_id] = compile_expression(node.source)
    elif node.source is not None:
        compiled["sources"][node_id] = compile_value(node.source)
    if node.label is not None:
        compiled["labels"][node_id] = compile_value(node.label)


def _conditional(compiled: dict[str, dict[str, Any]], node_id: str, node: ConditionalNode) -> None:
    if node.condition is not None:
        compiled["conditions"][node_id] = compile_condition(node.condition)
    if node.condition_field is not None:
        compiled["fields"][node_id] = compile_expression(node.condition_field)
        compiled["branches"][node_id] = tuple(
            (None if branch.condition is None else compile_branch(branch.condition), branch.next)
            for branch in node.branches
        )


def _needs(
    nodes: Iterable[str], templates: Mapping[str, dict[str, Any]], outputs: Mapping[str, Compiled] | None
) -> dict[str, frozenset[str]]:
    needed: dict[str, set[str]] = {node_id: set() for node_id in nodes}
    for name, by_node in templates.items():
        for node_id, compiled in by_node.items():
            each = [c for c, _ in compiled if c] if name == "branches" else [compiled]
            needed[node_id].update(*(c.nodes for c in each))
    needed[OUTPUTS] = set().union(*(compiled.nodes for compiled in (outputs or {}).values()))
    return {node_id: frozenset(read) for node_id, read in needed.items()}
