"""Write docs/reference from the code: the API, the command line, the fields of workflow files, the handlers that ship.

With --check: only say which pages are not up to date.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import dagmaster
from dagmaster import errors
from dagmaster.api import problems as api_problems
from dagmaster.api.app import create_app
from dagmaster.cli import main as command_line
from dagmaster.handlers import shipped
from dagmaster.handlers.registry import DEFAULT_TIMEOUT_SECONDS, Registration, installed
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.settings import Settings
from dagmaster.web import problems
from dagmaster.workflows import model

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
PACKAGES = ("api", "web", "database", "operations", "jobs", "workflows")
Schema = dict[str, Any]


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, or nothing where there are no rows."""
    lines = [_line(row) for row in rows]
    names = list(headings)
    return "".join([_line(names), "|" + "---|" * len(names) + "\n", *lines, "\n"]) if lines else ""


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# ---------------------------------------------------------------------------------------------------- the API

API_INTRODUCTION = """\
# API

Every path, parameter and answer of the API, written by `make docs` from its OpenAPI description; a running platform
serves that as `/openapi.json`, and an overview as `/docs`. Lists come in pages: `next` of one is `after` of the
following one. What is refused is told as a problem (RFC 9457) with one of the [codes](#problem-codes) below.

"""


def api_page() -> str:
    # Nothing is asked of a database here, and no environment has a say.
    described = create_app(
        Settings.model_construct(), "postgresql://nowhere/nothing", WorkflowLibrary({}), installed()
    ).openapi()
    common = _common(described)
    parts = [API_INTRODUCTION, f"Any request may be answered with a problem of status {', '.join(sorted(common))}.\n\n"]
    for tag in described["tags"]:
        operations = list(_operations_of(described, tag["name"], common))
        if operations:
            parts += [f"## {tag['name'].capitalize()}\n\n{tag['description']}.\n\n", *operations]
    parts.append("## Models\n\nThe bodies of requests and answers.\n\n")
    parts += [_model(name, schema) for name, schema in sorted(described["components"]["schemas"].items())]
    parts.append(_problem_codes())
    return "".join(parts).rstrip() + "\n"


def _common(described: Schema) -> set[str]:
    """The statuses of problems that every operation has."""
    operations = [operation for found in described["paths"].values() for operation in found.values()]
    return set.intersection(*(_problems_of(operation) for operation in operations))


def _problems_of(operation: Schema) -> set[str]:
    return {
        status for status, answer in operation["responses"].items() if problems.MEDIA_TYPE in answer.get("content", {})
    }


def _operations_of(described: Schema, tag: str, common: set[str]) -> Iterator[str]:
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if tag in operation["tags"]:
                yield _operation(method.upper(), path, operation, common)


def _operation(method: str, path: str, operation: Schema, common: set[str]) -> str:
    parts = [f"### {method} {path}\n\n{operation['summary']}.".replace("?.", "?"), "\n\n"]
    if text := operation.get("description"):
        parts.append(f"{' '.join(text.split())}\n\n")
    parts.append(
        table(("parameter", "in", "value", "default", "meaning"), map(_parameter, operation.get("parameters", [])))
    )
    if body := operation.get("requestBody"):
        shapes = [f"{_kind(content['schema'])} as `{media}`" for media, content in body["content"].items()]
        parts.append(f"Body: {', or '.join(shapes)}.\n\n")
    answers = [_answer(*found) for found in operation["responses"].items() if found[0] not in common]
    parts.append(table(("answer", "body", "meaning"), answers))
    return "".join(parts)


def _parameter(parameter: Schema) -> tuple[str, ...]:
    schema = parameter["schema"]
    name = f"`{parameter['name']}`" + (" (required)" if parameter.get("required") else "")
    return name, parameter["in"], _kind(schema), _default(schema), parameter.get("description", "")


def _answer(status: str, answer: Schema) -> tuple[str, str, str]:
    shapes = [_kind(content.get("schema", {})) or f"`{media}`" for media, content in answer.get("content", {}).items()]
    return status, ", ".join(dict.fromkeys(shapes)), answer["description"]


def _default(schema: Schema) -> str:
    return f"`{_literal(schema['default'])}`" if schema.get("default") is not None else ""


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(schema: Schema) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if ways := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(way) for way in ways if way != {"type": "null"}))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
        case "object" if isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
            return f"object of {_kind(schema['additionalProperties'])}"
        case str(kind):
            return schema.get("format", kind) + _bounds(schema)
    return "any JSON" if schema and not schema.keys() - {"title", "description", "default"} else ""


def _bounds(schema: Schema) -> str:
    words = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above", "maxLength": "up to"}
    told = [f"{word} {schema[name]}" for name, word in words.items() if name in schema]
    return f", {', '.join(told)}" if told else ""


def _model(name: str, schema: Schema) -> str:
    parts = [f"### {name}\n\n"]
    if text := schema.get("description"):
        parts.append(f"{' '.join(text.split())}\n\n")
    if "enum" in schema:
        parts.append(f"One of {_kind(schema)}.\n\n")
    required = set(schema.get("required", ()))
    rows = (
        (
            f"`{field}`" + (" (required)" if field in required else ""),
            _kind(told),
            _default(told),
            told.get("description", ""),
        )
        for field, told in schema.get("properties", {}).items()
    )
    return "".join([*parts, table(("field", "value", "default", "meaning"), rows)])


DETAILS = {
    "request.invalid": "every mistake in the request, each with its place, also as `errors`",
    "request.not-storable": "a value cannot be stored: …",
    "workflow.invalid": "every mistake in the workflow file, each with its line and column, also as `errors`",
}


def _problem_codes() -> str:
    rows = [(f"`{code}`", str(_status(code, name)), message) for code, name, message in _raised()]
    rows += [(f"`{code}`", str(status), HTTPStatus(status).phrase.lower()) for status, code in problems.OF_HTTP.items()]
    rows += [(f"`{code}`", str(status), detail) for status, code, detail in _answered()]
    of_file = errors.InvalidWorkflow.default_code
    rows.append((f"`{of_file}`", str(_status(of_file, "InvalidWorkflow")), DETAILS[of_file]))
    introduction = (
        "## Problem codes\n\nWhat may be refused, and with which status. Codes stay the same across releases.\n\n"
    )
    return introduction + table(("code", "status", "detail"), sorted(rows))


def _status(code: str, name: str) -> HTTPStatus | int:
    kind: type[errors.DagmasterError] = getattr(errors, name)
    known = problems.STATUSES_BY_CODE.get(code)
    return int(known or next(problems.STATUSES[base] for base in kind.__mro__ if base in problems.STATUSES))


def _raised() -> set[tuple[str, str, str]]:
    """Every error in the code that is made with a code of its own: code, class, message.
    Of several messages the shortest."""
    families = {
        name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)
    }
    found: dict[str, tuple[str, str, str]] = {}
    for file in _within_reach():
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in families):
                continue
            codes = [k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)]
            for code in codes:
                told = (str(code), node.func.id, _text(node.args[0]) if node.args else "")
                found[told[0]] = min(found.get(told[0], told), told, key=lambda t: (not t[2], len(t[2]), t[2]))
    return set(found.values())


def _answered() -> Iterator[tuple[int, str, str]]:
    """The problems that the API makes without an error of ours, beside those of HTTP: status, code, detail."""
    texts = [Path(module.__file__).read_text() for module in (api_problems, problems)]
    for node in ast.walk(ast.parse("\n".join(texts))):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="answer"),
                args=[ast.Attribute(attr=name), ast.Constant(value=str(code)), detail, *_],
            ) if code not in problems.OF_HTTP.values():
                yield int(HTTPStatus[name]), code, DETAILS.get(code) or _text(detail)


def _within_reach() -> list[Path]:
    """The files whose errors a request may meet."""
    folder = Path(dagmaster.__path__[0])
    files = [file for package in PACKAGES for file in (folder / package).rglob("*.py")]
    return sorted(file for file in files if file.name != "embedded.py")


def _text(node: ast.expr) -> str:
    """A message as it stands in the code, with … for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.Call(func=ast.Attribute(value=ast.JoinedStr() as inner)):
            return _text(inner)
    return "…"


# ---------------------------------------------------------------------------------------------------- the command line

CLI_INTRODUCTION = """\
# Command line

Every command with its options, written by `make docs` from the commands themselves; `--help` shows the same. What all
commands understand is told once, at the beginning.

"""


def cli_page() -> str:
    root = command_line.cli
    context = click.Context(root, info_name="dagmaster")
    shared = {_spelling(option) for option in command_line.Group().params}
    everywhere = [option for option in root.params if _spelling(option) in shared]
    parts = [CLI_INTRODUCTION, table(("option", "value", "default", "meaning"), map(_option, everywhere))]
    parts.append("## Exit codes\n\n" + table(("code", "meaning"), _exit_codes()))
    parts += _commands(root, context, shared)
    return "".join(parts).rstrip() + "\n"


def _exit_codes() -> list[tuple[str, str]]:
    """From the head of the module that gives them."""
    found = re.findall(r"(\d+)\s+(\S.*?)(?=\s{2,}\d|\n|$)", command_line.__doc__ or "")
    return [(code, meaning) for code, meaning in sorted(found, key=lambda pair: int(pair[0]))]


def _commands(group: click.Group, context: click.Context, shared: set[str]) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield f"## {inner.command_path}\n\n{_help(command)}"
            yield from _commands(command, inner, shared)
        else:
            yield _command(command, inner, shared)


def _command(command: click.Command, context: click.Context, shared: set[str]) -> str:
    level = "##" if context.command_path.count(" ") == 1 else "###"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    own = [option for option in command.params if isinstance(option, click.Option) and _spelling(option) not in shared]
    shown = [option for option in own if not option.hidden]
    return "".join(
        [
            f"{level} {context.command_path}\n\n{_help(command)}```text\n{usage}\n```\n\n",
            table(("option", "value", "default", "meaning"), map(_option, shown)),
        ]
    )


def _help(command: click.Command) -> str:
    text = (command.help or "").split("\f")[0]
    paragraphs = [" ".join(part.replace("\b", "").split()) for part in text.split("\n\n")]
    return "".join(f"{part}\n\n" for part in paragraphs if part)


def _spelling(option: click.Parameter) -> str:
    return ", ".join([*option.opts, *option.secondary_opts])


def _option(option: click.Parameter) -> tuple[str, ...]:
    assert isinstance(option, click.Option)
    is_plain = option.is_flag or option.count
    value = "" if is_plain else (option.metavar or _choices(option.type))
    default = option.default if isinstance(option.default, str | int | float) and not is_plain else None
    repeated = " (may be given several times)" if option.multiple else ""
    names = f"`{_spelling(option)}`" + (" (required)" if option.required else "")
    return names, value, "" if default is None else f"`{default}`", f"{option.help or ''}{repeated}"


def _choices(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        bounds = [
            f"at least {kind.min}" if kind.min is not None else "",
            f"at most {kind.max}" if kind.max is not None else "",
        ]
        return ", ".join(["number", *filter(None, bounds)])
    return kind.name


# ---------------------------------------------------------------------------------------------------- workflow files

WORKFLOW_INTRODUCTION = """\
# Fields of a workflow file

Every field that a workflow file may have, with its type and default, written by `make docs` from the models that read
the file. How they work together is told in [workflows.md](../workflows.md). A field that is not listed is refused.

"""

# In the order of the page: what a model stands for in a file.
PARTS: Mapping[type[BaseModel], tuple[str, str]] = {
    model.Workflow: ("The file", "The outermost fields."),
    model.Input: ("An input", "A value of `inputs`."),
    model.StartNode: ("A `start` node", "Exactly one: where the job begins."),
    model.EndNode: ("An `end` node", "One or more: where paths lead to."),
    model.TaskNode: ("A `task` node", "One handler with its params. A node with a `handler` and no `type` is one."),
    model.ConditionalNode: ("A `conditional` node", "Chooses which way to go on."),
    model.Branch: ("A branch", "An item of `branches`."),
    model.FanOutNode: ("A `fan_out` node", "One child for each item of an array."),
    model.Work: ("The task of a fan_out", "The value of `task`: what each child runs."),
    model.FanInNode: ("A `fan_in` node", "Gathers the children of a fan_out."),
    model.Retry: ("Retries", "The value of `retry`."),
    model.DependsOn: ("Dependencies", "The value of `depends_on`."),
}
MEANINGS: Mapping[str, str] = {
    "workflow_id": "what the workflow is submitted under: a letter, then up to 63 letters, digits, `_`, `.` or `-`",
    "name": "for people",
    "version": "kept as it is written",
    "description": "for people",
    "timeout_seconds": "how long an attempt may run; without it the handler's own limit, then 3600",
    "Workflow.timeout_seconds": "how long a job may take; past it, the job is stopped and has failed",
    "idempotent": "a submission with the same inputs answers with the job that the first one made",
    "fail_fast": "when a critical node has failed, take running tasks back too",
    "inputs": "what a job may or must be given, by name",
    "outputs": "templates for the job's result",
    "nodes": "the nodes, by their ids",
    "Input.type": "what is accepted",
    "required": "a submission without it is refused",
    "default": "taken where a submission does not give it",
    "type": "which kind of node it is",
    "next": "who comes after this node: a name or a list of names",
    "Branch.next": "where this branch leads: a name or a list of names",
    "depends_on": "what this node waits for; replaces what the `next` of others implies",
    "stage": "a label that groups nodes for people; without it the node's id",
    "importance": "what its failure means for the job",
    "handler": "the name under which a handler is registered",
    "FanInNode.handler": "a handler of its own, which streams the children's results",
    "queue": "where its tasks wait; without it the handler's own queue, then `DEFAULT_QUEUE`",
    "params": "what the handler is given: any JSON structure, with templates in its texts",
    "queue_timeout_seconds": "how long an attempt may wait in its queue; then it counts as a failure",
    "retry": "how failures are tried again",
    "condition": "an expression that is true or false",
    "Branch.condition": "a comparison with the value of `condition_field`, such as `> 100`",
    "Branch.default": "taken where no other branch is",
    "on_true": "where it goes on if the condition holds",
    "on_false": "where it goes on if it does not",
    "condition_field": "an expression whose value the branches compare",
    "branches": "ways to go on, of which the first that holds is taken",
    "source": "an expression that gives an array, or an array; this or `results_of`",
    "results_of": "an earlier fan_out whose children's results are the items; this or `source`",
    "task": "what each child runs",
    "batch_size": "how many items one child gets",
    "max_parallel": "at most so many children are under way at a time, over all workers",
    "tolerate": "how many children may fail: a whole number counts them, `10%` or `0.1` is a share of all",
    "label": "a template for a readable name of the child",
    "fan_out": "whose children; by default the nearest fan_out upstream",
    "aggregation": "what becomes of the children's outputs, where there is no handler",
    "max_attempts": "retries after the first attempt, so 0 means one attempt in all",
    "backoff": "`exponential` doubles the wait each time, `fixed` keeps it",
    "initial_delay_seconds": "the first wait",
    "max_delay_seconds": "no wait is longer",
    "jitter": "the actual wait is between half of it and all of it, at random",
    "all_of": "each of these must have ended well",
    "any_of": "one of these is enough",
}
# What the models share with others, and the check refuses.
REFUSED = {(model.ConditionalNode, "next"), (model.EndNode, "next")}
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "time",
    Any: "any value",
    dict: "object",
}


def workflow_page() -> str:
    parts = [WORKFLOW_INTRODUCTION]
    for part, (heading, text) in PARTS.items():
        rows = (_field(part, name, field) for name, field in part.model_fields.items() if (part, name) not in REFUSED)
        parts.append(f"## {heading}\n\n{text}\n\n{table(('field', 'value', 'default', 'meaning'), rows)}")
    return "".join(parts).rstrip() + "\n"


def _field(part: type[BaseModel], name: str, field: FieldInfo) -> tuple[str, ...]:
    told = f"`{field.alias or name}`" + (" (required)" if field.is_required() else "")
    return told, _type(field.annotation, field.metadata), _initial(field), meaning_of(part, name)


def meaning_of(part: type[BaseModel], name: str) -> str:
    return MEANINGS.get(f"{part.__name__}.{name}") or MEANINGS[name]


def _initial(field: FieldInfo) -> str:
    value = field.default
    if value is None or value is PydanticUndefined or value in ("", (), {}):
        return "none" if not field.is_required() else ""
    if isinstance(value, BaseModel):
        return "as below"
    return f"`{_literal(value.value if isinstance(value, StrEnum) else value)}`"


def _type(kind: Any, notes: Iterable[Any] = ()) -> str:
    """An annotation in a few words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(arguments[0], [*arguments[1:], *notes])
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys(_type(way) for way in arguments if way is not NoneType)) + _limits(notes)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if origin is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
        return f"list of objects, see [{PARTS[arguments[0]][0]}](#{anchor(PARTS[arguments[0]][0])})"
    if origin is tuple and arguments and all(way in {int, float} for way in arguments):
        return f"list of {len(arguments)} numbers"
    if origin is tuple:
        return "name or list of names" if arguments[0] is not Any and "str" in str(arguments[0]) else "list"
    if origin is list:
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        return "object"
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in PARTS:
        return f"object with {', '.join(f'`{name}`' for name in kind.model_fields)}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"object, see [{PARTS[kind][0]}](#{anchor(PARTS[kind][0])})"
    return _WORDS[kind] + _limits(notes)


def _limits(notes: Iterable[Any]) -> str:
    told: list[str] = []
    for note in (part for given in notes for part in (given.metadata if isinstance(given, FieldInfo) else [given])):
        match note:
            case Gt(gt=limit):
                told.append(f"above {limit}")
            case Ge(ge=limit):
                told.append(f"at least {limit}")
            case Le(le=limit):
                told.append(f"at most {limit}")
    return f", {', '.join(told)}" if told else ""


# ---------------------------------------------------------------------------------------------------- handlers

HANDLERS_INTRODUCTION = """\
# Handlers that ship

The handlers that a workflow can name without any other package installed, written by `make docs` from the
registrations: those of the raster workflows, and some for tests and as examples. [handlers.md](../handlers.md) explains
how to add others.

"""


def handlers_page() -> str:
    return (
        HANDLERS_INTRODUCTION + "".join(map(_handler, sorted(shipped.REGISTRATIONS, key=lambda found: found.name)))[:-1]
    )


def _handler(found: Registration) -> str:
    function = found.resolve()
    where = "in the worker's event loop" if found.is_async else "in a child process"
    queue = f"`{found.queue}`" if found.queue else "`DEFAULT_QUEUE`"
    parts = [
        f"## {found.name}\n\n{' '.join((inspect.getdoc(function) or '').split())}\n\n",
        f"Runs {where}; its queue is {queue}, its timeout {found.timeout_seconds or DEFAULT_TIMEOUT_SECONDS:g} s, ",
        "unless the workflow sets others.\n\n",
    ]
    hints = get_type_hints(function)
    returned = hints.pop("return", None)
    if isinstance(returned, type) and issubclass(returned, BaseModel):
        parts.append(f"Returns {', '.join(f'`{name}`' for name in returned.model_fields)}.\n\n")
    params = [kind for kind in hints.values() if isinstance(kind, type) and issubclass(kind, BaseModel)]
    rows = [
        (
            f"`{name}`" + (" (required)" if field.is_required() else ""),
            _type(field.annotation, field.metadata),
            _initial(field),
        )
        for kind in params
        for name, field in kind.model_fields.items()
    ]
    return "".join([*parts, table(("param", "value", "default"), rows)])


# ----------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "cli.md": cli_page,
    "workflows.md": workflow_page,
    "handlers.md": handlers_page,
}


def main(arguments: list[str], folder: Path = FOLDER) -> int:
    written = {folder / name: render() for name, render in PAGES.items()}
    if "--check" not in arguments:
        folder.mkdir(parents=True, exist_ok=True)
        for page, text in written.items():
            page.write_text(text)
        return 0
    stale = [page.name for page, text in written.items() if not page.exists() or page.read_text() != text]
    print(
        f"not up to date: {', '.join(stale)}: run scripts/write_reference.py"
        if stale
        else "the reference is up to date"
    )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
