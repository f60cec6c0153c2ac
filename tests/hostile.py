"""Malicious requests, generated from the OpenAPI document of an app: every field of every operation."""

from collections.abc import Iterator
from typing import Any, NamedTuple

# 1789 * 1787: a response contains it only if an injected expression was evaluated.
EVALUATED = "3196943"
INJECTIONS = (
    "{{1789*1787}}",
    "${1789*1787} $(expr 1789 \\* 1787) {0.__class__} %(x)s %s",
    "'; DROP TABLE dagapp.dag_jobs; SELECT 1789*1787; --",
    "\ud800\x00\u202e",
)
BODIES = {
    "deep array": b"[" * 20_000,
    "deep object": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "deep inputs": b'{"workflow_id": "echo_test", "inputs": {"message": ' + b"[" * 400 + b"]" * 400 + b"}}",
    "deep parameters": b'{"platform_id": "ddh", "platform_refs": {"dataset_id": "d", "resource_id": "r", '
    b'"version_id": "1"}, "source": {"blob": "ddh/floods.tif"}, "parameters": {"title": '
    + b"[" * 900
    + b"]" * 900
    + b"}}",
    "nan": b'{"a": NaN}',
    "infinity": b'{"priority": Infinity, "count": -Infinity, "limit": 1e999}',
    "huge number": b'{"priority": ' + b"9" * 5000 + b"}",
    "large number": b'{"priority": 1' + b"0" * 40 + b', "inputs": {"x": 1' + b"0" * 40 + b"}}",
    "duplicate keys": b'{"workflow_id": "echo_test", "workflow_id": "other", "reason": "a", "reason": "b"}',
    "lone surrogate": b'{"workflow_id": "\\ud800", "reason": "\\udfff", "platform_id": "\\ud800"}',
    "nul": b'{"workflow_id": "a\\u0000b", "reason": "\\u0000", "name": "\\u0000"}',
    "not utf-8": b'{"workflow_id": "\xff\xfe"}',
    "array": b"[]",
    "text": b'"x"',
    "empty": b"",
}


class Operation(NamedTuple):
    method: str
    path: str
    details: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def operations(description: dict[str, Any], *methods: str) -> list[Operation]:
    return [
        Operation(method.upper(), path, details)
        for path, entries in description["paths"].items()
        for method, details in entries.items()
        if method.upper() in methods
    ]


def url_of(operation: Operation, known: dict[str, str]) -> str:
    path = operation.path
    for parameter in operation.details.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", known.get(parameter["name"], "x"))
    return path


def body_of(description: dict[str, Any], operation: Operation) -> Any:
    """A body with every field, as the schema describes it; None if the operation has none."""
    content = operation.details.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else example(content["schema"], description["components"]["schemas"])


def example(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return example(schema[choice][0], schemas, depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "array":
            return [] if depth > 5 else [example(schema.get("items", {}), schemas, depth + 1)]
        case "null":
            return None
    properties = schema.get("properties", {})
    if depth > 5:
        return {}
    return {name: example(part, schemas, depth + 1) for name, part in properties.items()} or {"x": "x"}


def with_injection(value: Any, text: str) -> Iterator[tuple[str, Any]]:
    """Copies of the value, each with one text or field name replaced, with the name of the changed field."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ((inner or name, {**value, name: changed}) for inner, changed in with_injection(part, text))
        yield "", {**value, text: text}
    elif isinstance(value, list):
        for number, part in enumerate(value):
            for inner, changed in with_injection(part, text):
                yield inner, [*value[:number], changed, *value[number + 1 :]]
    elif isinstance(value, str) or value is None:
        yield "", text


def values_named(answer: Any, name: str) -> Iterator[Any]:
    if isinstance(answer, dict):
        for key, value in answer.items():
            if key == name:
                yield value
            yield from values_named(value, name)
    elif isinstance(answer, list):
        for part in answer:
            yield from values_named(part, name)
