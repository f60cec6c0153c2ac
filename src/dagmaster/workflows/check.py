"""The rules of a workflow beyond its shape. Each rule yields every problem with its node and place.

A rule is a generator over a `Case`. Rules about single nodes always run. Rules about the whole graph run only if all
edges could be read; otherwise they would report correct nodes because of a misspelt name.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import orjson

from dagmaster.errors import WorkflowProblem
from dagmaster.workflows import graph
from dagmaster.workflows.document import Document, DocumentLimits, DocumentPath, strings
from dagmaster.workflows.expressions import (
    Compiled,
    TemplateInvalid,
    compile_branch,
    compile_condition,
    compile_expression,
    compile_value,
    has_template,
)
from dagmaster.workflows.inputs import value_error
from dagmaster.workflows.model import (
    AnyNode,
    ConditionalNode,
    EndNode,
    FanInNode,
    FanOutNode,
    StartNode,
    TaskNode,
    Work,
    Workflow,
    work_of,
)
from dagmaster.workflows.nearest import did_you_mean, nearest, or_known

UNREAD = "?"
"""Stands for a handler that could not be read; its absence has been reported already."""

MAX_PROBLEMS = 200
"""Further problems are not listed: searching for them could take too long."""

_N = TypeVar("_N")
_COMMON = frozenset({"inputs", "nodes", "job"})
_CHILD_LIKE = re.compile(r"__\d+$")


@dataclass(frozen=True, slots=True)
class WorkflowLimits:
    max_bytes: int = 262_144
    max_nodes: int = 500
    max_params_bytes: int = 16_777_216
    max_depth: int = 30
    max_yaml_nodes: int = 20_000

    @property
    def document_limits(self) -> DocumentLimits:
        return DocumentLimits(self.max_bytes, self.max_depth, self.max_yaml_nodes)


@dataclass(frozen=True)
class Case:
    """A workflow under examination. `broken` nodes have a wrong shape, which is reported elsewhere.

    `edges` are the dependencies as written. In `waits` a misspelt name counts as the node that was probably meant, so
    that one typing mistake does not also make half of the graph unreachable. `suggestions` has these nodes by name.
    """

    workflow: Workflow
    document: Document
    limits: WorkflowLimits
    handlers: Mapping[str, Any] | None
    queues: Collection[str] | None
    broken: frozenset[str]
    edges_known: bool
    suggestions: Mapping[str, str | None] = field(init=False)
    edges: graph.Edges = field(init=False)
    waits: graph.Edges = field(init=False)
    upstream: Mapping[str, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        suggestions = _suggestions(self.workflow)
        edges = graph.waits_for(self.workflow)
        waits = _with_suggestions(self.workflow, edges, suggestions)
        # Nodes on or behind a cycle have no order; the cycle itself is the problem to solve first.
        upstream = graph.upstream(graph.topological(waits), waits)
        for name, value in {"suggestions": suggestions, "edges": edges, "waits": waits, "upstream": upstream}.items():
            object.__setattr__(self, name, value)

    def problem(self, message: str, *path: str | int, key: bool = False) -> WorkflowProblem:
        node = str(path[1]) if len(path) > 1 and path[0] == "nodes" else None
        return WorkflowProblem(message, *self.document.place(path, key=key), node=node)

    def well_formed(self, kind: type[_N]) -> Iterator[tuple[str, _N]]:
        """The nodes of one kind whose shape is right."""
        for node_id, node in self.workflow.nodes.items():
            if isinstance(node, kind) and node_id not in self.broken:
                yield node_id, node


WorkflowRule = Callable[[Case], Iterable[WorkflowProblem]]


def check(
    workflow: Workflow,
    document: Document | None = None,
    *,
    limits: WorkflowLimits | None = None,
    handlers: Mapping[str, Any] | None = None,
    queues: Collection[str] | None = None,
    broken: frozenset[str] = frozenset(),
    edges_known: bool = True,
) -> list[WorkflowProblem]:
    """Every problem. Handlers and queues are not checked where None is given."""
    case = Case(workflow, document or Document(), limits or WorkflowLimits(), handlers, queues, broken, edges_known)
    rules = NODE_RULES + (GRAPH_RULES if edges_known else ())
    return list(islice((problem for rule in rules for problem in rule(case)), MAX_PROBLEMS))


# --- names and edges -------------------------------------------------------------------------------------------------


def _references(node: AnyNode) -> Iterator[tuple[DocumentPath, str]]:
    """Every name of another node, with the path of its field."""
    fields: dict[DocumentPath, tuple[str, ...]] = {("next",): node.next}
    if node.depends_on:
        fields |= {("depends_on", "all_of"): node.depends_on.all_of, ("depends_on", "any_of"): node.depends_on.any_of}
    if isinstance(node, ConditionalNode):
        fields |= {("on_true",): node.on_true, ("on_false",): node.on_false}
        fields |= {("branches", n, "next"): branch.next for n, branch in enumerate(node.branches)}
    if isinstance(node, FanOutNode) and node.results_of:
        yield ("results_of",), node.results_of
    if isinstance(node, FanInNode) and node.fan_out:
        yield ("fan_out",), node.fan_out
    for path, names in fields.items():
        for index, name in enumerate(names):
            yield (*path, index), name


def _suggestions(workflow: Workflow) -> dict[str, str | None]:
    """For each name that is not a node, the node that was probably meant."""
    names = (name for node in workflow.nodes.values() for _, name in _references(node) if name not in workflow.nodes)
    return {name: nearest(name, workflow.nodes) for name in islice(dict.fromkeys(names), MAX_PROBLEMS)}


def _with_suggestions(workflow: Workflow, edges: graph.Edges, suggestions: Mapping[str, str | None]) -> graph.Edges:
    waits = {node_id: list(others) for node_id, others in edges.items()}
    for node_id, node in workflow.nodes.items():
        for path, name in _references(node):
            meant = suggestions.get(name)
            if meant is None:
                continue
            if path[0] == "depends_on":
                waits[node_id].append(meant)
            elif len(path) > 1 and workflow.nodes[meant].depends_on is None:
                waits[meant].append(node_id)
    return {node_id: tuple(others) for node_id, others in waits.items()}


def _unknown_names(case: Case) -> Iterator[WorkflowProblem]:
    nodes = case.workflow.nodes
    for node_id, node in nodes.items():
        for path, name in _references(node):
            if name not in nodes:
                field = next(part for part in reversed(path) if isinstance(part, str))
                hint = f"; did you mean '{case.suggestions[name]}'?" if case.suggestions.get(name) else ""
                yield case.problem(f"`{field}` names '{name}', which does not exist{hint}", "nodes", node_id, *path)


def _ids(case: Case) -> Iterator[WorkflowProblem]:
    for node_id in case.workflow.nodes:
        if _CHILD_LIKE.search(node_id):
            yield case.problem(
                f"'{node_id}' ends like the child of a fan_out (__ and digits); give it another name",
                "nodes",
                node_id,
                key=True,
            )


def _starts(case: Case) -> Iterator[WorkflowProblem]:
    starts = [node_id for node_id, node in case.workflow.nodes.items() if isinstance(node, StartNode)]
    if not starts and case.edges_known:
        yield case.problem("there is no node of type start; add one", "nodes", key=True)
    for extra in starts[1:]:
        yield case.problem(f"there are several start nodes; keep only '{starts[0]}'", "nodes", extra, key=True)
    for start in starts:
        if case.edges[start] or case.workflow.nodes[start].depends_on:
            before = ", ".join(f"'{node_id}'" for node_id in case.edges[start])
            verb = "leads" if len(case.edges[start]) == 1 else "lead"
            detail = f": {before} {verb} to it" if before else "; remove depends_on"
            yield case.problem(
                f"a start node cannot have dependencies{detail}",
                *("nodes", start, "depends_on"),
                key=True,
            )


def _ends(case: Case) -> Iterator[WorkflowProblem]:
    ends = [node_id for node_id, node in case.workflow.nodes.items() if isinstance(node, EndNode)]
    if not ends and case.edges_known:
        yield case.problem("there is no node of type end; add one", "nodes", key=True)
    for node_id in ends:
        if case.workflow.nodes[node_id].next:
            yield case.problem("an end node cannot have a `next`; remove it", "nodes", node_id, "next", key=True)


def _empty_dependencies(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.workflow.nodes.items():
        if node.depends_on and not (node.depends_on.all_of or node.depends_on.any_of) and node_id not in case.broken:
            yield case.problem(
                "`depends_on` is empty; name nodes in it, or remove it", "nodes", node_id, "depends_on", key=True
            )


def _cycles(case: Case) -> Iterator[WorkflowProblem]:
    """Includes edges that a depends_on overrides: such a cycle is a mistake too."""
    nodes = case.workflow.nodes
    successors = {
        node_id: tuple(dict.fromkeys([*(t for t in graph.targets(nodes[node_id]) if t in nodes), *followers]))
        for node_id, followers in graph.inverse(case.edges).items()
    }
    acyclic = {*graph.topological(graph.inverse(successors)), *graph.topological(successors)}
    candidates = set(successors) - acyclic
    while candidates:
        first = min(candidates)
        if cycle := _shortest_cycle(first, successors, candidates):
            yield case.problem(f"a cycle: {' → '.join(cycle)}; remove one of these edges", "nodes", first, key=True)
            cycle_nodes = _reach(first, successors) & _reach(first, graph.inverse(successors))
            candidates -= cycle_nodes
        candidates.discard(first)


def _shortest_cycle(first: str, successors: graph.Edges, among: Collection[str]) -> list[str]:
    predecessors: dict[str, str] = {}
    pending = [first]
    for node_id in pending:
        for target in successors[node_id]:
            if target == first:
                path = [first, node_id] if node_id != first else [first]
                while path[-1] != first:
                    path.append(predecessors[path[-1]])
                return [*reversed(path), first] if path == [first] else list(reversed(path))
            if target in among and target not in predecessors:
                predecessors[target] = node_id
                pending.append(target)
    return []


def _reach(first: str, edges: graph.Edges) -> set[str]:
    reached = {first}
    pending = [first]
    while pending:
        new = [node_id for node_id in edges[pending.pop()] if node_id not in reached]
        reached.update(new)
        pending += new
    return reached


def _unreachable(case: Case) -> Iterator[WorkflowProblem]:
    starts = [node_id for node_id, node in case.workflow.nodes.items() if isinstance(node, StartNode)]
    if not starts:
        return
    reached = set().union(*(_reach(node_id, graph.inverse(case.waits)) for node_id in starts))
    for node_id in case.workflow.nodes:
        if node_id not in reached:
            yield case.problem(
                f"cannot be reached from '{starts[0]}'; let a node lead here with `next`, or give it a depends_on",
                *("nodes", node_id),
                key=True,
            )


def _dead_ends(case: Case) -> Iterator[WorkflowProblem]:
    nodes = case.workflow.nodes
    if not any(isinstance(node, EndNode) for node in nodes.values()):
        return
    ends = [node_id for node_id, node in nodes.items() if isinstance(node, EndNode) or _has_wrong_targets(node, nodes)]
    leading = set().union(*(_reach(node_id, case.waits) for node_id in ends))
    for node_id in case.workflow.nodes:
        if node_id not in leading:
            yield case.problem("no path leads from here to an end; add a `next`", "nodes", node_id, key=True)


def _has_wrong_targets(node: AnyNode, node_ids: Collection[str]) -> bool:
    """Whether the targets of this node are wrong and reported by another rule."""
    targets = graph.targets(node)
    return any(name not in node_ids for name in targets) or (isinstance(node, ConditionalNode) and not targets)


# --- kinds of nodes --------------------------------------------------------------------------------------------------


def _conditionals(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.well_formed(ConditionalNode):
        field_form = node.condition_field is not None or bool(node.branches)
        if (node.condition is not None) == field_form:
            yield case.problem(
                "a conditional has either `condition` with on_true / on_false, or `condition_field` with branches",
                *("nodes", node_id),
                key=True,
            )
        elif field_form:
            yield from _field_form(case, node_id, node)
        else:
            yield from _condition_form(case, node_id, node)
        if node.next:
            yield case.problem(
                "a conditional has no `next`; its branches name the next nodes", "nodes", node_id, "next", key=True
            )


def _condition_form(case: Case, node_id: str, node: ConditionalNode) -> Iterator[WorkflowProblem]:
    if not (node.on_true or node.on_false):
        yield case.problem("`condition` needs on_true or on_false", "nodes", node_id, "condition", key=True)


def _field_form(case: Case, node_id: str, node: ConditionalNode) -> Iterator[WorkflowProblem]:
    if node.condition_field is None:
        yield case.problem("`branches` need a condition_field", "nodes", node_id, "branches", key=True)
    if node.on_true or node.on_false:
        yield case.problem("on_true and on_false belong to `condition`; use branches", "nodes", node_id, key=True)
    defaults = [n for n, branch in enumerate(node.branches) if branch.default]
    if len(defaults) != 1:
        yield case.problem(
            f"exactly one branch must have `default: true`, not {len(defaults)}", "nodes", node_id, "branches", key=True
        )
    for n, branch in enumerate(node.branches):
        if branch.default == (branch.condition is not None):
            yield case.problem("a branch has either a condition or `default: true`", "nodes", node_id, "branches", n)
        if not branch.next:
            yield case.problem("a branch needs a `next`", "nodes", node_id, "branches", n)


def _branch_targets(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.well_formed(ConditionalNode):
        for target in graph.targets(node):
            if target in case.waits and node_id not in case.waits[target]:
                yield case.problem(
                    f"'{node_id}' branches to this node, but its own depends_on does not name it; "
                    f"add '{node_id}' there",
                    *("nodes", target, "depends_on"),
                    key=True,
                )


def _fan_outs(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.well_formed(FanOutNode):
        if (node.source is None) == (node.results_of is None):
            yield case.problem("a fan_out has either `source` or `results_of`", "nodes", node_id, key=True)


def _results_of(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.well_formed(FanOutNode):
        if node.results_of in case.workflow.nodes:
            yield from _check_upstream_fan_out(case, node_id, "results_of", str(node.results_of))


def _fan_ins(case: Case) -> Iterator[WorkflowProblem]:
    for node_id, node in case.well_formed(FanInNode):
        if node.fan_out:
            if node.fan_out in case.workflow.nodes:
                yield from _check_upstream_fan_out(case, node_id, "fan_out", node.fan_out)
            continue
        fan_outs = graph.fan_outs_of(case.workflow, node_id, case.waits)
        if not fan_outs:
            yield case.problem(
                "there is no fan_out before this fan_in whose results it could gather", "nodes", node_id, key=True
            )
        if len(fan_outs) > 1:
            names = ", ".join(f"'{name}'" for name in sorted(fan_outs))
            message = f"the fan_outs {names} are equally near; name one with `fan_out:`"
            yield case.problem(message, "nodes", node_id, key=True)


def _check_upstream_fan_out(case: Case, node_id: str, field: str, name: str) -> Iterator[WorkflowProblem]:
    if not isinstance(case.workflow.nodes[name], FanOutNode):
        yield case.problem(f"`{field}` names '{name}', which is not a fan_out", "nodes", node_id, field)
    elif node_id in case.upstream and name not in case.upstream[node_id]:
        yield case.problem(
            f"`{field}` names '{name}', which is not upstream; let it lead to this node", "nodes", node_id, field
        )


def _fan_in_fields(case: Case) -> Iterator[WorkflowProblem]:
    work_fields = {"params", "queue", "timeout_seconds", "queue_timeout_seconds", "retry"}
    for node_id, node in case.well_formed(FanInNode):
        for name in sorted(work_fields & node.model_fields_set if node.handler is None else ()):
            yield case.problem(f"`{name}` requires a `handler` in a fan_in", "nodes", node_id, name, key=True)
        if node.handler is not None and "aggregation" in node.model_fields_set:
            problem = (
                "`aggregation` has no effect in a fan_in with a `handler`: the handler gets the results; remove one"
            )
            yield case.problem(problem, "nodes", node_id, "aggregation", key=True)


# --- work ------------------------------------------------------------------------------------------------------------


def _works(case: Case) -> Iterator[tuple[DocumentPath, Work]]:
    for node_id, node in case.workflow.nodes.items():
        if work := work_of(node):
            yield ("nodes", node_id, "task") if isinstance(node, FanOutNode) else ("nodes", node_id), work


def _handlers(case: Case) -> Iterator[WorkflowProblem]:
    for path, work in _works(case):
        if case.handlers is not None and work.handler not in (*case.handlers, UNREAD):
            hint = or_known(work.handler, case.handlers)
            yield case.problem(f"no handler '{work.handler}' is registered{hint}", *path, "handler")


def _queues(case: Case) -> Iterator[WorkflowProblem]:
    for path, work in _works(case):
        if case.queues is not None and work.queue is not None and work.queue not in case.queues:
            hint = or_known(work.queue, case.queues)
            yield case.problem(f"there is no queue '{work.queue}'{hint}", *path, "queue")


def _retries(case: Case) -> Iterator[WorkflowProblem]:
    for path, work in _works(case):
        if work.retry.max_delay_seconds < work.retry.initial_delay_seconds:
            yield case.problem(
                f"retry: max_delay_seconds ({work.retry.max_delay_seconds:g}) is shorter than "
                f"initial_delay_seconds ({work.retry.initial_delay_seconds:g})",
                *(*path, "retry"),
            )


def _sizes(case: Case) -> Iterator[WorkflowProblem]:
    if len(case.workflow.nodes) > case.limits.max_nodes:
        count = len(case.workflow.nodes)
        yield case.problem(f"{count} nodes; at most {case.limits.max_nodes} are allowed", "nodes", key=True)
    for path, work in _works(case):
        size = len(orjson.dumps(work.params))
        if size > case.limits.max_params_bytes:
            yield case.problem(
                f"params of {size:,} bytes; at most {case.limits.max_params_bytes:,} are allowed", *path, "params"
            )


def _inputs(case: Case) -> Iterator[WorkflowProblem]:
    for name, declared in case.workflow.inputs.items():
        if not declared.has_default:
            continue
        if declared.required:
            yield case.problem(f"input '{name}' is required and has a default; choose one", "inputs", name, "required")
        if fault := value_error(name, declared, declared.default):
            yield case.problem(f"the default of input {fault}", "inputs", name, "default")


# --- templates -------------------------------------------------------------------------------------------------------

_Template = tuple[DocumentPath, str, Callable[[str], Compiled], frozenset[str]]


def _templates(case: Case) -> Iterator[WorkflowProblem]:
    for path, text, compiler, names in _all_templates(case.workflow):
        try:
            compiled = compiler(text)
        except TemplateInvalid as error:
            yield case.problem(str(error), *path)
        else:
            yield from _foreign_names(case, path, compiled, names)
            yield from _foreign_inputs(case, path, compiled)
            yield from _foreign_nodes(case, path, compiled)


def _all_templates(workflow: Workflow) -> Iterator[_Template]:
    """Every text that is rendered, with how it is compiled and the names it may use."""
    for node_id, node in workflow.nodes.items():
        path: DocumentPath = ("nodes", node_id)
        match node:
            case TaskNode() | FanInNode():
                yield from _rendered(node.params, (*path, "params"), _COMMON)
            case FanOutNode():
                yield from _fan_out_templates(node, path)
            case ConditionalNode():
                yield from _conditional_templates(node, path)
    yield from _rendered(workflow.outputs or {}, ("outputs",), _COMMON)


def _rendered(value: Any, path: DocumentPath, names: frozenset[str]) -> Iterator[_Template]:
    for where, text in strings(value, path):
        if has_template(text):
            yield where, text, compile_value, names


def _fan_out_templates(node: FanOutNode, path: DocumentPath) -> Iterator[_Template]:
    child = _COMMON | {"index"} | _names_of_items(node)
    yield from _rendered(node.task.params, (*path, "task", "params"), child)
    yield from _rendered(node.label or "", (*path, "label"), child)
    if isinstance(node.source, str):
        yield (*path, "source"), node.source, compile_expression, _COMMON
    else:
        yield from _rendered(node.source or (), (*path, "source"), _COMMON)


def _names_of_items(node: FanOutNode) -> frozenset[str]:
    """With `results_of` there are none: the results stay in the database, where each child reads its slice."""
    if node.results_of is not None:
        return frozenset()
    return frozenset({"items" if node.batch_size else "item"})


def _conditional_templates(node: ConditionalNode, path: DocumentPath) -> Iterator[_Template]:
    if node.condition is not None:
        yield (*path, "condition"), node.condition, compile_condition, _COMMON
    if node.condition_field is not None:
        yield (*path, "condition_field"), node.condition_field, compile_expression, _COMMON
    for n, branch in enumerate(node.branches):
        if branch.condition is not None:
            yield (*path, "branches", n, "condition"), branch.condition, compile_branch, _COMMON | {"value"}


def _foreign_names(
    case: Case, path: DocumentPath, compiled: Compiled, names: frozenset[str]
) -> Iterator[WorkflowProblem]:
    for name in sorted(compiled.names - names):
        if name == "value":
            problem = "exists only in the conditions of branches"
        elif "index" not in names:
            problem = "exists only in the task and the label of a fan_out"
        elif not names & {"item", "items"}:
            problem = "does not exist with results_of: the handler reads its slice with `ctx.results()`"
        else:
            other = "items" if name == "item" else "item"
            problem = (
                f"does not exist here: {'with' if other == 'items' else 'without'} batch_size, children have `{other}`"
            )
        yield case.problem(f"`{name}` {problem}", *path)


def _foreign_inputs(case: Case, path: DocumentPath, compiled: Compiled) -> Iterator[WorkflowProblem]:
    for name in sorted(compiled.inputs - case.workflow.inputs.keys()):
        hint = did_you_mean(name, case.workflow.inputs) or "; declare it under `inputs`"
        yield case.problem(f"`inputs.{name}` is not an input of this workflow{hint}", *path)


def _foreign_nodes(case: Case, path: DocumentPath, compiled: Compiled) -> Iterator[WorkflowProblem]:
    reader = path[1] if path[0] == "nodes" else None
    for name in sorted(compiled.nodes):
        if name not in case.workflow.nodes:
            hint = did_you_mean(name, case.workflow.nodes)
            yield case.problem(f"`nodes.{name}` does not exist{hint}", *path)
        elif case.edges_known and reader in case.upstream and name not in case.upstream[str(reader)]:
            yield case.problem(
                f"`nodes.{name}` is not upstream of '{reader}', so its output may not exist yet; "
                f"let '{name}' lead to '{reader}', or use another node",
                *path,
            )


NODE_RULES: tuple[WorkflowRule, ...] = (
    *(_unknown_names, _ids, _starts, _ends, _empty_dependencies, _cycles, _conditionals, _fan_outs, _fan_in_fields),
    *(_handlers, _queues, _retries, _sizes, _inputs, _templates),
)
GRAPH_RULES: tuple[WorkflowRule, ...] = (_unreachable, _dead_ends, _branch_targets, _results_of, _fan_ins)
