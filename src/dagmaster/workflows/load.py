"""Read workflow files: text to a `Workflow`, or every mistake in it at once, each with its line and column.

Three steps: `document` reads the YAML strictly, Pydantic validates the shape, `check` applies the rules. A mistake in
one step does not hide those of the next: a part with the wrong shape is reported and removed, the others are checked.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from dagmaster.errors import InvalidRequest, InvalidWorkflow, WorkflowProblem
from dagmaster.workflows import document as yaml_document
from dagmaster.workflows.check import MAX_PROBLEMS, UNREAD, WorkflowLimits, check
from dagmaster.workflows.document import Document, DocumentPath, Unreadable
from dagmaster.workflows.model import (
    Alias,
    Branch,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    Input,
    Retry,
    StartNode,
    TaskNode,
    Work,
    Workflow,
)
from dagmaster.workflows.nearest import did_you_mean, nearest

__all__ = ["Loaded", "WorkflowLimits", "read", "read_all", "read_folder", "shipped"]

_KINDS: dict[str, type[BaseModel]] = {
    "start": StartNode,
    "end": EndNode,
    "task": TaskNode,
    "conditional": ConditionalNode,
    "fan_out": FanOutNode,
    "fan_in": FanInNode,
}
_INNER: dict[str, type[BaseModel]] = {"retry": Retry, "depends_on": DependsOn, "task": Work, "branches": Branch}
_EDGE_FIELDS = {
    "type",
    "next",
    "depends_on",
    "on_true",
    "on_false",
    "branches",
    "results_of",
    "fan_out",
    "all_of",
    "any_of",
}
_EXPECTED_VALUES = {
    "tolerate": "must be a number of children, or a share such as 10% or 0.1",
    "source": "must be an expression that gives an array, or an array",
    "version": "must be a number or a text",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The workflows that could be read, by workflow_id, and those that could not. `files` has the file of each one,
    `targets` those that an alias may name: the ones that are no aliases."""

    workflows: dict[str, Workflow] = field(default_factory=dict)
    refused: list[InvalidWorkflow] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Workflow] = field(default_factory=dict)


def shipped() -> list[Path]:
    """The files of the workflows that come with dagmaster."""
    library = resources.files("dagmaster.workflows") / "library"
    return sorted(Path(str(entry)) for entry in library.iterdir() if entry.name.endswith(".yaml"))


def read_folder(
    folder: Path,
    *,
    limits: WorkflowLimits | None = None,
    handlers: Mapping[str, Any] | None = None,
    queues: Collection[str] | None = None,
) -> Loaded:
    """Every .yaml and .yml file in a folder."""
    if not folder.is_dir():
        raise InvalidRequest(
            f"there is no folder {folder}", code="workflows.no-folder", hint="create it, or correct WORKFLOW_FOLDERS"
        )
    paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    return read_all(paths, limits=limits, handlers=handlers, queues=queues)


def read_all(
    paths: Iterable[Path],
    *,
    limits: WorkflowLimits | None = None,
    handlers: Mapping[str, Any] | None = None,
    queues: Collection[str] | None = None,
) -> Loaded:
    """Read files one by one; a bad file does not stop the others.
    If two have the same workflow_id, the first one is used."""
    loaded = Loaded()
    aliases: list[tuple[Alias, str]] = []
    for path in paths:
        try:
            text = _bytes_of(path, limits or WorkflowLimits())
            if alias := _alias_in(text, limits or WorkflowLimits()):
                aliases.append((alias, str(path)))
                continue
            workflow = read(text, str(path), limits=limits, handlers=handlers, queues=queues)
            _add(loaded, workflow, str(path))
        except InvalidWorkflow as error:
            loaded.refused.append(error)
    loaded.targets.update(loaded.workflows)
    for alias, file in aliases:
        try:
            _add(loaded, _resolve(alias, loaded.targets, file), file)
        except InvalidWorkflow as error:
            loaded.refused.append(error)
    return loaded


def read_with_aliases(
    text: bytes,
    source: str,
    find_targets: Callable[[], Mapping[str, Workflow]],
    *,
    limits: WorkflowLimits | None = None,
    handlers: Mapping[str, Any] | None = None,
    queues: Collection[str] | None = None,
) -> Workflow:
    """The workflow in a text, which may be an alias of one of the workflows that `find_targets` returns."""
    if alias := _alias_in(text, limits or WorkflowLimits()):
        return _resolve(alias, find_targets(), source)
    return read(text, source, limits=limits, handlers=handlers, queues=queues)


def _alias_in(text: bytes, limits: WorkflowLimits) -> Alias | None:
    """The alias that a file declares; None for every other file, which is then read as a workflow."""
    if b"alias_of" not in text:
        return None
    try:
        document, problems = yaml_document.parse(text, limits.document_limits)
        return None if problems else Alias.model_validate(document.value, strict=True)
    except (Unreadable, ValidationError):
        return None


def _resolve(alias: Alias, workflows: Mapping[str, Workflow], file: str) -> Workflow:
    """A copy of the workflow that the alias names, under the alias's own id, name and description."""
    target = workflows.get(alias.alias_of)
    if target is None:
        problem = f"`alias_of` names '{alias.alias_of}', which does not exist, is not valid, or is an alias itself"
        raise InvalidWorkflow(file, [WorkflowProblem(problem + did_you_mean(alias.alias_of, workflows))])
    return target.model_copy(update=alias.model_dump(exclude={"alias_of"}, exclude_unset=True))


def _add(loaded: Loaded, workflow: Workflow, file: str) -> None:
    name = workflow.workflow_id
    if name in loaded.workflows:
        message = f"workflow_id '{name}' is already taken by {loaded.files[name]}; rename one of them"
        raise InvalidWorkflow(file, [WorkflowProblem(message)])
    loaded.workflows[name] = workflow
    loaded.files[name] = file


def _bytes_of(path: Path, limits: WorkflowLimits) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except OSError as error:
        raise InvalidWorkflow(str(path), [WorkflowProblem(f"cannot be read: {error.strerror}")]) from None


def read(
    text: str | bytes,
    file: str,
    *,
    limits: WorkflowLimits | None = None,
    handlers: Mapping[str, Any] | None = None,
    queues: Collection[str] | None = None,
) -> Workflow:
    """The workflow in a text, or InvalidWorkflow with every problem. Handlers and queues are not checked if None."""
    limits = limits or WorkflowLimits()
    try:
        document, problems = yaml_document.parse(text, limits.document_limits)
    except Unreadable as error:
        raise InvalidWorkflow(file, error.problems) from None
    workflow, shape = _shaped(document)
    problems += shape.problems
    if workflow:
        problems += check(
            workflow,
            document,
            limits=limits,
            handlers=handlers,
            queues=queues,
            broken=frozenset(shape.broken),
            edges_known=shape.edges_known,
        )
    if problems or workflow is None:
        raise InvalidWorkflow(file, list(dict.fromkeys(problems)))
    return workflow


# --- shape -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shape:
    """Problems of the shape, the nodes that have them, and whether all edges could be read nevertheless."""

    problems: list[WorkflowProblem] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    edges_known: bool = True


def _shaped(document: Document) -> tuple[Workflow | None, _Shape]:
    """The workflow without the parts that have the wrong shape; None if too little is left."""
    shape = _Shape()
    value = copy.deepcopy(document.value)
    if not isinstance(value, dict):
        shape.problems.append(
            WorkflowProblem("a workflow is a mapping with workflow_id and nodes", *document.place(()))
        )
        return None, shape
    if isinstance(value.get("version"), int | float) and not isinstance(value["version"], bool):
        # The text as written, because the number 1.10 would become 1.1.
        value["version"] = document.texts["version",]
    # Removing one mistake can reveal another one, but only a few times.
    for _ in range(4):
        try:
            return Workflow.model_validate_json(orjson.dumps(value), strict=True), shape
        except ValidationError as error:
            faults = list(_faults(error, value))
            for fault in _without_misspelt(faults[:MAX_PROBLEMS], value):
                _report(shape, document, fault, value)
            for fault in faults:
                _take_out(value, fault)
    return None, shape


@dataclass(frozen=True, slots=True)
class _FieldFault:
    """One of Pydantic's errors, in terms of the document. `kind` and `expected` are Pydantic's words."""

    kind: str
    path: DocumentPath
    of_key: bool
    message: str
    expected: str
    value: Any

    @property
    def name(self) -> str:
        return str(self.path[-1]) if self.path else ""

    @property
    def node(self) -> str | None:
        return str(self.path[1]) if len(self.path) > 1 and self.path[0] == "nodes" else None


def _faults(error: ValidationError, value: Any) -> Iterator[_FieldFault]:
    seen: set[DocumentPath] = set()
    for entry in error.errors(include_url=False):
        loc = entry["loc"]
        path = _path(loc, value, missing=entry["type"] == "missing")
        # A union reports an error for each of its members.
        if path not in seen:
            seen.add(path)
            expected = str(entry.get("ctx", {}).get("expected", entry.get("ctx", {}).get("expected_tags", "")))
            yield _FieldFault(entry["type"], path, loc[-1:] == ("[key]",), entry["msg"], expected, entry["input"])


def _without_misspelt(faults: list[_FieldFault], value: dict[str, Any]) -> Iterator[_FieldFault]:
    """Leave out missing fields whose names are only misspelt: that is one problem, not two."""
    unknown = (fault for fault in faults if fault.kind == "extra_forbidden")
    meant = {(fault.path[:-1], nearest(fault.name, _fields_of(fault.path, value))) for fault in unknown}
    return (fault for fault in faults if fault.kind != "missing" or (fault.path[:-1], fault.name) not in meant)


def _path(loc: tuple[str | int, ...], value: Any, *, missing: bool) -> DocumentPath:
    """The path in the document: Pydantic's location without the names of union members."""
    steps = [step for step in loc if step != "[key]"]
    if len(steps) > 2 and steps[0] == "nodes" and steps[2] in _KINDS:
        del steps[2]
    path: list[str | int] = []
    for n, step in enumerate(steps):
        if missing and n == len(steps) - 1:
            path.append(step)
        elif isinstance(value, dict) and step in value:
            value = value[str(step)]
            path.append(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
            path.append(step)
    return tuple(path)


def _report(shape: _Shape, document: Document, fault: _FieldFault, value: dict[str, Any]) -> None:
    field_names = _fields_of(fault.path, value)
    place = document.place(fault.path, key=fault.of_key or fault.kind == "extra_forbidden" or _is_node(fault))
    if fault.kind == "missing":
        place = document.place(fault.path[:-1], key=True)
    shape.problems.append(WorkflowProblem(_message(fault, field_names), *place, node=fault.node))
    if fault.node:
        shape.broken.add(fault.node)
    if _touches_edges(fault, field_names):
        shape.edges_known = False


def _is_node(fault: _FieldFault) -> bool:
    return len(fault.path) == 2 and fault.path[0] == "nodes"


def _touches_edges(fault: _FieldFault, field_names: Collection[str]) -> bool:
    if fault.path[:1] != ("nodes",):
        return False
    if fault.kind == "extra_forbidden":
        return nearest(fault.name, field_names) in {None, *_EDGE_FIELDS}
    return len(fault.path) <= 2 or any(step in _EDGE_FIELDS for step in fault.path[2:])


def _message(fault: _FieldFault, field_names: Collection[str]) -> str:
    match fault.kind:
        case "extra_forbidden":
            return (
                f"unknown field '{fault.name}'"
                f"{did_you_mean(fault.name, field_names) or '; known names are ' + ', '.join(field_names)}"
            )
        case "missing":
            return f"the field '{fault.name}' is missing"
        case "union_tag_not_found":
            return "needs a `type` (or a `handler`, which makes it a task)"
        case "union_tag_invalid":
            kind = fault.value.get("type") if isinstance(fault.value, dict) else None
            return f"unknown type '{kind}'{did_you_mean(str(kind), _KINDS) or '; known names are ' + ', '.join(_KINDS)}"
        case "string_pattern_mismatch" if fault.path == ("workflow_id",):
            return f"'{fault.value}' is not a name: a letter, then up to 63 letters, digits, _, . or -"
        case "string_pattern_mismatch" if fault.path[:1] == ("nodes",):
            return f"'{fault.value}' is not a name: a letter, then up to 63 letters, digits, _ or -"
    return _wrong_value(fault)


def _wrong_value(fault: _FieldFault) -> str:
    field = next((str(step) for step in reversed(fault.path) if isinstance(step, str)), "the file")
    shown = orjson.dumps(fault.value).decode()[:60]
    if field in _EXPECTED_VALUES:
        return f"`{field}` {_EXPECTED_VALUES[field]}, not {shown}"
    if fault.kind in {"enum", "literal_error"}:
        guess = did_you_mean(str(fault.value), fault.expected.replace("'", "").replace(" or ", ", ").split(", "))
        return f"`{field}` must be {fault.expected}, not {shown}{guess}"
    message = fault.message.removeprefix("Input should be ").removeprefix("Value error, ")
    hint = "; put it in quotes" if fault.kind == "string_type" and isinstance(fault.value, int | float) else ""
    return f"`{field}` must be {message}, not {shown}{hint}"


def _fields_of(path: DocumentPath, value: dict[str, Any]) -> list[str]:
    """The fields that the part of the document around this path may have."""
    model: type[BaseModel] = Workflow
    match path:
        case ("inputs", _, _):
            model = Input
        case ("nodes", node_id, *inner, _):
            node = value["nodes"][node_id]
            model = _KINDS.get(node.get("type", "task") if isinstance(node, dict) else "task", TaskNode)
            for step in inner:
                model = _INNER.get(str(step), model)
    return list(model.model_fields)


_REPLACEMENTS: dict[str, Any] = {
    "handler": UNREAD,
    "task": {"handler": UNREAD},
    "next": [],
    "workflow_id": "unknown",
    "nodes": {},
}


def _take_out(value: dict[str, Any], fault: _FieldFault) -> None:
    """Remove a wrong value, or replace it if it is required, so that the other values can be checked."""
    match fault.path:
        case ("inputs", str() as name, *_):
            value["inputs"][name] = {}
        case ("nodes", str() as node_id) if not fault.of_key:
            value["nodes"][node_id] = _bare_node(value["nodes"][node_id])
        case _:
            _take_field_out(value, fault)


def _bare_node(node: Any) -> dict[str, Any]:
    edges = {key: node[key] for key in ("next", "depends_on") if key in node} if isinstance(node, dict) else {}
    return {"handler": UNREAD, **edges}


def _take_field_out(value: dict[str, Any], fault: _FieldFault) -> None:
    """Remove the whole field if an item of its list is wrong: the other items alone would mean something else."""
    path = fault.path
    while path and isinstance(path[-1], int):
        path = path[:-1]
    holder = _at(value, path[:-1])
    if not path or not isinstance(holder, dict):
        return
    if path[-1] in _REPLACEMENTS and fault.kind != "extra_forbidden":
        holder[str(path[-1])] = copy.deepcopy(_REPLACEMENTS[str(path[-1])])
    else:
        holder.pop(str(path[-1]), None)


def _at(value: Any, path: DocumentPath) -> Any:
    """The value at this path, or None if an earlier step has removed it."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else value[int(step)] if isinstance(value, list) else None
    return value
