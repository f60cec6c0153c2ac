"""Write docs/reference from the code: the API, the command line, the fields of workflow files, the built-in handlers.

With --check, only report which pages are not up to date.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
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
from dagmaster.api.app import create_app
from dagmaster.cli import main as command_line
from dagmaster.cli.command import CommaSeparatedChoice
from dagmaster.handlers import shipped
from dagmaster.handlers.registry import DEFAULT_TIMEOUT_SECONDS, Registration, installed
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.settings import Settings
from dagmaster.web import problems, validation
from dagmaster.workflows import model

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
PACKAGES = ("api", "web", "assets", "database", "operations", "jobs", "workflows")
Schema = dict[str, Any]


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table, or an empty text if there are no rows."""
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

This page lists every path, parameter and response of the API. `make docs` writes it from the OpenAPI description, which
a running platform serves as `/openapi.json`; `/docs` is a short overview, and `/docs/try` is Swagger UI.
Lists have pages: pass `next` of a page as `after` to get the following page. The response to a request that fails is a
problem (RFC 9457) with one of the [codes](#problem-codes) below.

"""
PROBLEMS_INTRODUCTION = """\
## Problem codes

The status of each code, and its message, with … for the values in it. If a code has several messages, one of them is
listed. Codes are stable across releases.

"""
MODELS_INTRODUCTION = """\
## Models

The bodies of requests and responses. A required field of a response is always sent; if it has no value, it is null.

"""


def api_page() -> str:
    # The description needs no database, and does not depend on the environment.
    openapi = create_app(
        Settings.model_construct(), "postgresql://nowhere/nothing", WorkflowLibrary({}), installed()
    ).openapi()
    common = _common(openapi)
    parts = [API_INTRODUCTION, f"Every path may respond with a problem of status {', '.join(sorted(common))}.\n\n"]
    for tag in openapi["tags"]:
        operations = list(_operations_of(openapi, tag["name"], common))
        if operations:
            parts += [f"## {tag['name'][:1].upper()}{tag['name'][1:]}\n\n{tag['description']}.\n\n", *operations]
    parts.append(MODELS_INTRODUCTION)
    parts += [_model(name, schema) for name, schema in sorted(openapi["components"]["schemas"].items())]
    parts.append(_problem_codes())
    return "".join(parts).rstrip() + "\n"


def _common(openapi: Schema) -> set[str]:
    """The statuses of problems that every operation may respond with."""
    operations = [operation for methods in openapi["paths"].values() for operation in methods.values()]
    return set.intersection(*(_problems_of(operation) for operation in operations))


def _problems_of(operation: Schema) -> set[str]:
    return {
        status
        for status, response in operation["responses"].items()
        if problems.MEDIA_TYPE in response.get("content", {})
    }


def _operations_of(openapi: Schema, tag: str, common: set[str]) -> Iterator[str]:
    for path, operations in openapi["paths"].items():
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
        shapes = [
            f"{_without_null(content['schema']) or 'any JSON'} as `{media}`"
            for media, content in body["content"].items()
        ]
        parts.append(f"Body{'' if body.get('required') else ' (optional)'}: {', or '.join(shapes)}.\n\n")
    responses = [
        _response(status, response) for status, response in operation["responses"].items() if status not in common
    ]
    parts.append(table(("status", "body", "meaning"), responses))
    return "".join(parts)


def _parameter(parameter: Schema) -> tuple[str, ...]:
    schema = parameter["schema"]
    name = f"`{parameter['name']}`" + (" (required)" if parameter.get("required") else "")
    return name, parameter["in"], _without_null(schema), _default(schema), parameter.get("description", "")


def _without_null(schema: Schema) -> str:
    """The type of a parameter or a body: one that is optional is left out, not sent as null."""
    return _kind(schema).removesuffix(" or null").removesuffix(",")


def _response(status: str, response: Schema) -> tuple[str, str, str]:
    content = response.get("content", {})
    shapes = [_kind(described.get("schema", {})) or f"`{media}`" for media, described in content.items()]
    return status, ", ".join(dict.fromkeys(shapes)), response["description"]


def _default(schema: Schema) -> str:
    return f"`{_literal(schema['default'])}`" if schema.get("default") is not None else ""


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plural(kind: str) -> str:
    """The plural of a type in words, such as `object with …`; links and values stay as they are, and alternatives get
    parentheses."""
    if " or " in kind:
        return f"({kind})"
    return re.sub(r"^(\w+)(?=[ ,]|$)", r"\1s", kind)


def _alternatives(kinds: Iterable[str]) -> str:
    """Several types in words. A comma ends a type that has commas itself."""
    first, *others = dict.fromkeys(kinds)
    text = first
    for kind in others:
        text += f", or {kind}" if "," in text else f" or {kind}"
    return text


def _kind(schema: Schema) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return _alternatives(_kind(alternative) for alternative in alternatives)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"list of {_plural(_kind(schema['items']))}" if schema.get("items") else "list"
        case "object" if isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
            return f"object of {_kind(schema['additionalProperties'])}"
        case str(kind):
            return schema.get("format", kind) + _bounds(schema)
    return "any JSON" if schema and not schema.keys() - {"title", "description", "default", "readOnly"} else ""


def _bounds(schema: Schema) -> str:
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "maxLength": "up to {} characters",
    }
    bounds = [text.format(_number(schema[name])) for name, text in words.items() if name in schema]
    return f", {', '.join(bounds)}" if bounds else ""


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _model(name: str, schema: Schema) -> str:
    parts = [f"### {name}\n\n"]
    if text := schema.get("description"):
        parts.append(f"{' '.join(text.split())}\n\n")
    if "enum" in schema:
        parts.append(f"One of {_kind(schema)}.\n\n")
    if not schema:
        parts.append("Any JSON value.\n\n")
    required = set(schema.get("required", ()))
    rows = (
        (
            f"`{name}`" + (" (required)" if name in required else ""),
            _kind(field),
            _default(field),
            _meaning(field),
        )
        for name, field in schema.get("properties", {}).items()
    )
    return "".join([*parts, table(("field", "value", "default", "meaning"), rows)])


def _meaning(field: Schema) -> str:
    """The description of a field, or of its type."""
    alternatives = [field, *field.get("anyOf", ())]
    return next((str(alternative["description"]) for alternative in alternatives if "description" in alternative), "")


# The messages of codes whose messages in the code are only values, or are about a special case.
MESSAGES = {
    "database.unavailable": "the database is not available: …",
    "external.not-found": "asset '…' has no version …",
    "inputs.invalid": "the inputs of workflow '…' are not valid: …",
    "job.not-resumable": "job … cannot be resumed: …",
    "key.revoked": "the key … was revoked",
    "legacy.bad-response": "the response of the old system cannot be used: …",
    "legacy.no-response": "the old system did not respond, or not completely: …",
    "revision.reviewed": "… was reviewed: its documents cannot change",
    "session.refused": "the issuer or the platform has refused the sign-in: …",
    "settings.invalid": "a setting is not valid: …",
    "source.invalid": "the source is not valid: …",
    "version.not-published": "version … is not published",
    "workflow.not-found": "no workflow is named '…'",
}
DETAILS = {
    "request.invalid": "every error in the request, with the field; `errors` lists them",
    "request.not-storable": "a value cannot be stored: …",
    "workflow.invalid": "every error in the workflow file; `errors` lists them with line and column",
}


def _problem_codes() -> str:
    rows = [(f"`{code}`", str(_status(code, name)), MESSAGES.get(code, message)) for code, name, message in _raised()]
    rows += [
        (f"`{code}`", str(status), HTTPStatus(status).phrase.lower())
        for status, code in problems.CODES_BY_STATUS.items()
    ]
    rows += [(f"`{code}`", str(status), detail) for status, code, detail in _sent_directly()]
    invalid_workflow = errors.InvalidWorkflow.default_code
    rows.append((f"`{invalid_workflow}`", str(_status(invalid_workflow, "InvalidWorkflow")), DETAILS[invalid_workflow]))
    return PROBLEMS_INTRODUCTION + table(("code", "status", "detail"), sorted(rows))


def _status(code: str, name: str) -> HTTPStatus | int:
    kind: type[errors.DagmasterError] = getattr(errors, name)
    own_status = problems.STATUSES_BY_CODE.get(code)
    return int(own_status or next(problems.STATUSES[base] for base in kind.__mro__ if base in problems.STATUSES))


def _raised() -> set[tuple[str, str, str]]:
    """Every error that is raised with its own code: code, class, and the shortest of its messages."""
    families = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    raised: dict[str, tuple[str, str, str]] = {}
    for file in _files_of_requests():
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in families):
                continue
            codes = [k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)]
            for code in codes:
                entry = (str(code), node.func.id, _text(node.args[0]) if node.args else "")
                raised[entry[0]] = min(raised.get(entry[0], entry), entry, key=lambda t: (not t[2], len(t[2]), t[2]))
    return set(raised.values())


def _sent_directly() -> Iterator[tuple[int, str, str]]:
    """The problems that the API sends without raising a DagmasterError, except those of HTTP: status, code, detail."""
    texts = [Path(module.__file__).read_text() for module in (validation, problems)]
    for node in ast.walk(ast.parse("\n".join(texts))):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="response"),
                args=[ast.Attribute(attr=name), ast.Constant(value=str(code)), detail, *_],
            ) if code not in problems.CODES_BY_STATUS.values():
                yield int(HTTPStatus[name]), code, DETAILS.get(code) or _text(detail)


def _files_of_requests() -> list[Path]:
    """The files whose errors a request may cause."""
    folder = Path(dagmaster.__path__[0])
    files = [file for package in PACKAGES for file in (folder / package).rglob("*.py")]
    return sorted(file for file in files if file.name != "embedded.py")


def _text(node: ast.expr) -> str:
    """A message as it is written in the code, with … for the values in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return re.sub(r"…[\s…]*…", "…", "".join(_text(part) for part in parts))
        case ast.Call(func=ast.Attribute(value=ast.JoinedStr() as inner)):
            return _text(inner)
    return "…"


# ---------------------------------------------------------------------------------------------------- the command line

CLI_INTRODUCTION = """\
# Command line

This page lists every command with its options. `make docs` writes it from the commands; `--help` shows the same text.
The first table has the options that all commands accept.

"""


def cli_page() -> str:
    root = command_line.cli
    context = click.Context(root, info_name="dagmaster")
    shared = {_spelling(option) for option in command_line.Group().params}
    shared_options = [option for option in root.params if _spelling(option) in shared]
    parts = [CLI_INTRODUCTION, table(("option", "value", "default", "meaning"), map(_option, shared_options))]
    parts.append("## Exit codes\n\n" + table(("code", "meaning"), _exit_codes()))
    parts += _commands(root, context, shared)
    return "".join(parts).rstrip() + "\n"


def _exit_codes() -> list[tuple[str, str]]:
    """The exit codes, from the docstring of the module that returns them."""
    pairs = re.findall(r"(\d+)\s+(\S.*?)(?=\s{2,}\d|\n|$)", command_line.__doc__ or "")
    return [(code, meaning) for code, meaning in sorted(pairs, key=lambda pair: int(pair[0]))]


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
    """The help text. A paragraph that begins with \\b has lines of its own, such as examples of commands."""
    text = inspect.cleandoc((command.help or "").split("\f")[0])
    return "".join(f"{_paragraph(part)}\n\n" for part in text.split("\n\n") if part)


def _paragraph(text: str) -> str:
    if not text.startswith("\b\n"):
        return " ".join(text.split())
    example = inspect.cleandoc(text.removeprefix("\b\n"))
    return f"```text\n{example}\n```"


def _spelling(option: click.Parameter) -> str:
    return ", ".join([*option.opts, *option.secondary_opts])


def _option(option: click.Parameter) -> tuple[str, ...]:
    assert isinstance(option, click.Option)
    is_plain = option.is_flag or option.count
    value = "" if is_plain else (option.metavar or _choices(option.type))
    default = option.default if isinstance(option.default, str | int | float | Path) and not is_plain else None
    repeated = " (may be repeated)" if option.multiple and "repeated" not in (option.help or "") else ""
    names = f"`{_spelling(option)}`" + (" (required)" if option.required else "")
    return names, value, "" if default is None else f"`{default}`", f"{option.help or ''}{repeated}"


def _choices(kind: click.ParamType) -> str:
    if isinstance(kind, CommaSeparatedChoice):
        kind = kind.choice
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        bounds = [
            f"{'above' if kind.min_open else 'at least'} {kind.min}" if kind.min is not None else "",
            f"at most {kind.max}" if kind.max is not None else "",
        ]
        return ", ".join(["number", *filter(None, bounds)])
    return kind.name


# ---------------------------------------------------------------------------------------------------- workflow files

WORKFLOW_INTRODUCTION = """\
# Fields of a workflow file

This page lists every field of a workflow file, with its type and default. `make docs` writes it from the models that
read the file. [workflows.md](../workflows.md) explains how the fields work together. A field that is not listed is
refused.

"""

# The heading and introduction of each model, in the order of the page.
PARTS: Mapping[type[BaseModel], tuple[str, str]] = {
    model.Workflow: ("The file", "The outermost fields."),
    model.Input: ("An input", "A value of `inputs`."),
    model.StartNode: ("A `start` node", "The start of the job. A workflow has exactly one."),
    model.EndNode: ("An `end` node", "The end of a path. A workflow has one or more."),
    model.TaskNode: ("A `task` node", "Runs a handler with params. A node with a `handler` and no `type` is a task."),
    model.ConditionalNode: ("A `conditional` node", "Selects the next nodes by a condition or by branches."),
    model.Branch: ("A branch", "An item of `branches`."),
    model.FanOutNode: ("A `fan_out` node", "Runs one child for each item, or each batch of items, of an array."),
    model.Work: ("The task of a fan_out", "The value of `task`: the handler that each child runs."),
    model.FanInNode: ("A `fan_in` node", "Waits for the children of a fan_out and collects their results."),
    model.Retry: ("Retries", "The value of `retry`."),
    model.DependsOn: ("Dependencies", "The value of `depends_on`."),
}
MEANINGS: Mapping[str, str] = {
    "workflow_id": "the id of the workflow: a letter, then up to 63 letters, digits, `_`, `.` or `-`",
    "name": "a name for people",
    "version": "the version of the workflow: any text; it is stored with each job and not interpreted",
    "description": "a description for people",
    "timeout_seconds": "the longest run time of an attempt; by default the handler's timeout, or 3600",
    "Workflow.timeout_seconds": "the longest duration of a job; after it, the job is stopped and fails",
    "idempotent": "a submission with the same inputs as an earlier one returns the earlier job",
    "fail_fast": "when a critical node has failed, running tasks are stopped too",
    "inputs": "the inputs of a job, by name",
    "outputs": "templates of the job's result, by name",
    "nodes": "the nodes, by id",
    "Input.type": "the type of the value",
    "required": "a submission without it is refused",
    "reserved": "only the platform itself sets it; a submission that sets it is refused",
    "default": "the value if a submission has none",
    "type": "the type of the node",
    "next": "the nodes that follow: a name or a list of names",
    "Branch.next": "the nodes that follow in this branch: a name or a list of names",
    "depends_on": "the nodes that this node waits for; replaces the dependencies from the `next` of other nodes",
    "stage": "a label that groups nodes for display and for retries on request; by default the node's id",
    "importance": "the effect of its failure on the job",
    "handler": "the name of a registered handler",
    "FanInNode.handler": "a handler that reads the children's results as a stream",
    "queue": "the queue of its tasks; by default the handler's queue, or `DEFAULT_QUEUE`",
    "params": "the params of the handler: a JSON object whose texts may be templates",
    "queue_timeout_seconds": "the longest time that an attempt waits in its queue; after it, the attempt fails",
    "retry": "the retries after a failure",
    "condition": "an expression that is true or false",
    "Branch.condition": "a comparison with the value of `condition_field`, such as `> 100`",
    "Branch.default": "this branch is taken if no other branch is",
    "on_true": "the nodes that follow if the condition is true",
    "on_false": "the nodes that follow if the condition is false",
    "condition_field": "an expression; the branches compare its value",
    "branches": "a list of branches; the first one whose condition is true is taken",
    "source": "an array, or an expression whose value is an array; either this or `results_of`",
    "results_of": "an earlier fan_out; the results of its children are the items; either this or `source`",
    "task": "the task of each child",
    "batch_size": "the number of items per child",
    "max_parallel": "the largest number of children that are queued, running or waiting for a retry, over all workers",
    "tolerate": "how many children may fail: a whole number of children, or a share written as `10%` or `0.1`",
    "label": "a template of a readable name for each child",
    "fan_out": "the fan_out whose children it collects; by default the nearest fan_out upstream",
    "aggregation": "how the children's outputs are combined, if there is no handler",
    "max_attempts": "the number of retries after the first attempt; 0 means a single attempt",
    "backoff": "`exponential` doubles the delay after each retry, `fixed` keeps it",
    "initial_delay_seconds": "the delay before the first retry",
    "max_delay_seconds": "the longest delay",
    "jitter": "the actual delay is random, between half of the computed delay and the whole delay",
    "all_of": "the node waits for all of these",
    "any_of": "the node waits until one of these has completed",
}
# Fields that a model inherits, and that the check refuses.
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
    label = f"`{field.alias or name}`" + (" (required)" if field.is_required() else "")
    return label, _type(field.annotation, field.metadata), _initial(field), meaning_of(part, name)


def meaning_of(part: type[BaseModel], name: str) -> str:
    return MEANINGS.get(f"{part.__name__}.{name}") or MEANINGS[name]


def _initial(field: FieldInfo) -> str:
    value = field.default
    if value is None or value is PydanticUndefined or value in ("", (), {}):
        return "none" if not field.is_required() else ""
    if isinstance(value, BaseModel):
        return "the defaults of its fields"
    return f"`{_literal(value.value if isinstance(value, StrEnum) else value)}`"


def _type(kind: Any, notes: Iterable[Any] = ()) -> str:
    """An annotation in a few words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(arguments[0], [*arguments[1:], *notes])
    if origin in {Union, UnionType}:
        return _alternatives(_type(argument) for argument in arguments if argument is not NoneType) + _limits(notes)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if origin is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
        return f"list of objects, see [{PARTS[arguments[0]][0]}](#{anchor(PARTS[arguments[0]][0])})"
    if origin is tuple and arguments and all(argument in {int, float} for argument in arguments):
        return f"list of {len(arguments)} numbers"
    if origin is tuple:
        return "name or list of names" if arguments[0] is not Any and "str" in str(arguments[0]) else "list"
    if origin is list:
        return f"list of {_plural(_type(arguments[0]))}"
    if origin is dict:
        return "object"
    if is_dataclass(kind):
        return f"object with {', '.join(f'`{field.name}`' for field in fields(kind))}"
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in PARTS:
        return f"object with {', '.join(f'`{name}`' for name in kind.model_fields)}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"object, see [{PARTS[kind][0]}](#{anchor(PARTS[kind][0])})"
    return _WORDS[kind] + _limits(notes)


def _limits(notes: Iterable[Any]) -> str:
    limits: list[str] = []
    for note in (part for entry in notes for part in (entry.metadata if isinstance(entry, FieldInfo) else [entry])):
        match note:
            case Gt(gt=limit):
                limits.append(f"above {limit}")
            case Ge(ge=limit):
                limits.append(f"at least {limit}")
            case Le(le=limit):
                limits.append(f"at most {limit}")
    return f", {', '.join(limits)}" if limits else ""


# ---------------------------------------------------------------------------------------------------- handlers

HANDLERS_INTRODUCTION = """\
# Built-in handlers

This page lists the handlers that are part of dagmaster: those of the raster workflows, and some for tests and as
examples. `make docs` writes it from their registrations. [handlers.md](../handlers.md) explains how to add others.

"""


def handlers_page() -> str:
    registrations = sorted(shipped.REGISTRATIONS, key=lambda registration: registration.name)
    return HANDLERS_INTRODUCTION + "".join(map(_handler, registrations))[:-1]


def _handler(registration: Registration) -> str:
    function = registration.resolve()
    where = "in the worker's event loop" if registration.is_async else "in a child process"
    queue = f"`{registration.queue}`" if registration.queue else "`DEFAULT_QUEUE`"
    timeout = registration.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    parts = [
        f"## {registration.name}\n\n{' '.join((inspect.getdoc(function) or '').split())}\n\n",
        f"It runs {where}. Unless the workflow sets others, its queue is {queue} and its timeout is {timeout:g} s.\n\n",
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
    texts = {folder / name: render() for name, render in PAGES.items()}
    if "--check" not in arguments:
        folder.mkdir(parents=True, exist_ok=True)
        for page, text in texts.items():
            page.write_text(text)
        return 0
    stale = [page.name for page, text in texts.items() if not page.exists() or page.read_text() != text]
    print(
        f"not up to date: {', '.join(stale)}: run scripts/write_reference.py"
        if stale
        else "the reference is up to date"
    )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
