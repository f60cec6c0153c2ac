"""Values that can be stored as JSON in the database. jsonb accepts neither NUL characters nor invalid Unicode."""

import re
from typing import Any

import orjson

from dagmaster.errors import InvalidRequest

# An escaped NUL; an even number of backslashes before it would make it plain text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


# orjson supports 254 levels. A value becomes part of others: of params, of a job's result, of a statement's values.
_MAX_DEPTH, _OUTER_LEVELS = 204, 50


def encode(value: Any, noun: str) -> bytes:
    """The value as JSON text. Raises InvalidRequest if it cannot be stored. `noun` names it in the error: "the inputs",
    "its params"."""
    try:
        text = orjson.dumps(value)
        if len(text) > 2 * _MAX_DEPTH and text.count(b"[") + text.count(b"{") > _MAX_DEPTH:
            orjson.dumps(_nested(value))
    except (TypeError, RecursionError) as error:
        raise InvalidRequest(f"{noun} cannot be stored as JSON: {error}", code="value.not-json") from error
    if _NUL.search(text):
        raise InvalidRequest(f"{noun} cannot be stored: NUL characters are not supported", code="value.nul")
    return text


def _nested(value: Any) -> Any:
    """The value with as many levels around it as others may add."""
    for _ in range(_OUTER_LEVELS):
        value = [value]
    return value
