"""How a handler is called: its params, and what it may return.

Used for handlers in the worker's loop and in child processes. A handler is `handler(ctx)` or `handler(ctx, params:
Model)`; it returns JSON values, a Pydantic model or a HandlerResult. A value that jsonb cannot store is refused here
with its path; in the database it would fail a whole batch of reports.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

import orjson
from pydantic import BaseModel, ValidationError

from dagmaster.errors import HandlerFailed, Unavailable, UnfitData
from dagmaster.extras import missing_extra
from dagmaster.handlers.context import HandlerResult
from dagmaster.handlers.registry import Registration

MAX_OUTPUT_BYTES = 100 * 1024 * 1024
MAX_METRICS_BYTES = 64 * 1024
MAX_DEPTH = 200  # orjson stops at 254, and frames add some levels
UNLOADABLE = "handler.unloadable"


@dataclass(frozen=True, slots=True)
class ResolvedHandler:
    """The function of a handler, and the model of its params if it has one."""

    function: Callable[..., Any]
    takes_params: bool = False
    model: type[BaseModel] | None = None

    def parse(self, params: dict[str, Any]) -> Any:
        """The params as the handler declares them. UnfitData names the fields that are invalid."""
        if self.model is None:
            return params
        try:
            return self.model.model_validate(params)
        except ValidationError as error:
            raise _unfit(error) from None

    def call(self, context: Any, params: Any) -> Any:
        return self.function(context, params) if self.takes_params else self.function(context)


@dataclass(frozen=True, slots=True)
class HandlerOutput:
    """The return value of a handler, as plain JSON types."""

    output: Any = None
    metrics: dict[str, Any] | None = None
    encoded: bytes = b"null"


_NO_OUTPUT = HandlerOutput()


def resolve(registration: Registration) -> ResolvedHandler:
    """Import the handler and read its signature."""
    try:
        function = registration.resolve()
    except (ImportError, AttributeError, SyntaxError) as error:
        extra = missing_extra(error, "worker") if isinstance(error, ImportError) else None
        raise Unavailable(
            f"this worker cannot load handler '{registration.name}' from {registration.target}: {error}",
            code=UNLOADABLE,
            hint=(extra and extra.hint) or "install the packages that it imports on this worker",
        ) from error
    if inspect.iscoroutinefunction(function) != registration.is_async:
        kind = "async" if registration.is_async else "plain"
        problem = f"handler '{registration.name}' is registered as {kind}, but its function is not"
        raise HandlerFailed(problem, code="handler.bad-target")
    return _read_signature(function)


def _read_signature(function: Callable[..., Any]) -> ResolvedHandler:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2 or parameters[1].kind is inspect.Parameter.KEYWORD_ONLY:
        return ResolvedHandler(function)
    annotation = get_type_hints(function).get(parameters[1].name)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return ResolvedHandler(function, True, annotation if is_model else None)


def _unfit(error: ValidationError) -> UnfitData:
    # Without the values, which may contain secrets.
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [f"{'.'.join(['params', *map(str, problem['loc'])])}: {problem['msg']}" for problem in problems]
    return UnfitData("; ".join(lines), code="params.invalid", fields=[".".join(map(str, p["loc"])) for p in problems])


def accept(returned: Any) -> HandlerOutput:
    """Check what a handler returned. Raises HandlerFailed if the value cannot be stored or reports a failure."""
    if returned is None:
        return _NO_OUTPUT
    output, metrics = check(returned)
    return HandlerOutput(output, metrics, encode(output))


def check(returned: Any) -> tuple[Any, dict[str, Any] | None]:
    """The first half of `accept`: output and metrics as plain JSON types."""
    metrics = None
    if isinstance(returned, HandlerResult):
        if not returned.success:
            raise HandlerFailed(returned.error_message or "the handler reported a failure without a message")
        returned, metrics = returned.output, to_json(returned.metrics, "metrics")
        if (at_least := least_bytes(metrics)) > MAX_METRICS_BYTES:
            raise HandlerFailed(
                f"the metrics have at least {at_least:,} bytes, more than the {MAX_METRICS_BYTES:,} allowed",
                code="handler.metrics-too-large",
                hint="put large values into the output",
            )
    output = to_json(returned, "output")
    # Checked before encoding: the JSON of a value that is far too large may not fit into memory.
    if (at_least := least_bytes(output)) > MAX_OUTPUT_BYTES:
        raise _too_large(at_least, "at least ")
    return output, metrics


def encode(output: Any) -> bytes:
    """The second half of `accept`: the output as JSON."""
    encoded = orjson.dumps(output)
    if len(encoded) > MAX_OUTPUT_BYTES:
        raise _too_large(len(encoded))
    return encoded


def least_bytes(value: Any) -> int:
    """A lower bound for the size of a value as JSON."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is dict:
        return 2 + sum(len(key) + 4 + least_bytes(item) for key, item in value.items())
    if kind is list:
        return 2 + sum(1 + least_bytes(item) for item in value)
    return 1


def _too_large(size_bytes: int, prefix: str = "") -> HandlerFailed:
    return HandlerFailed(
        f"the output has {prefix}{size_bytes:,} bytes, more than the {MAX_OUTPUT_BYTES:,} allowed",
        code="handler.output-too-large",
        size_bytes=size_bytes,
        limit_bytes=MAX_OUTPUT_BYTES,
        hint="write it to storage and return its location",
    )


def to_json(value: Any, path: str, depth: int = 0) -> Any:
    """The value as plain JSON types. Raises HandlerFailed with the path of a value that jsonb cannot store."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, path)
    if kind is int or kind is float:
        return _number(value, path)
    if depth >= MAX_DEPTH:
        raise _bad(path[:200], f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_key(key, path): to_json(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, BaseModel):
        return to_json(_dump(value, path), path, depth + 1)
    return _from_subclass(value, path)


def _from_subclass(value: Any, path: str) -> Any:
    """Enums and numpy's float64 are subclasses of str and float; any other type is refused."""
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int):
        return _number(int(value), path)
    if isinstance(value, float):
        return _number(float(value), path)
    problem = f"is a {type(value).__qualname__}, which JSON cannot represent"
    raise _bad(path, problem, hint="return JSON values or a Pydantic model")


def _dump(model: BaseModel, path: str) -> Any:
    try:
        return model.model_dump(mode="json")  # keeps NaN, which to_json then reports with its path
    except (ValueError, TypeError) as error:
        raise _bad(path, f"cannot be written as JSON: {error}") from None


def _text(value: str, path: str) -> str:
    if "\x00" in value:
        raise _bad(path, "contains a NUL character, which jsonb cannot store")
    if not value.isascii() and _has_surrogates(value):
        raise _bad(path, "is not valid Unicode (it has a lone surrogate)")
    return value


def _has_surrogates(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _number(value: float, path: str) -> float:
    if type(value) is float:
        if not math.isfinite(value):
            raise _bad(path, f"is {value}, which JSON cannot represent", hint="return None for a missing number")
    elif not -(1 << 63) <= value < 1 << 64:
        raise _bad(path, "is an integer of more than 64 bits", hint="return it as a string")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise _bad(path, f"has the key {key!r}, which is not a string")
    return _text(str.__str__(key), path)


def _bad(path: str, problem: str, hint: str | None = None) -> HandlerFailed:
    return HandlerFailed(f"{path} {problem}", code="handler.bad-output", hint=hint, path=path)
