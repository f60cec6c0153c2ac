"""What can be kept as JSON in the database. PostgreSQL's jsonb takes neither NUL characters nor broken Unicode."""

import re
from typing import Any

import orjson

from dagmaster.errors import InvalidRequest

# An escaped NUL; an even number of backslashes before it would make it plain text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Any, what: str) -> bytes:
    """The value as JSON text, or an error that says why it can't be kept. `what` names it: "the inputs", "its
    params"."""
    try:
        text = orjson.dumps(value)
    except (TypeError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be stored as JSON: {error}", code="value.not-json") from error
    if _NUL.search(text):
        raise InvalidRequest(f"{what} contain a NUL character, which cannot be stored", code="value.nul")
    return text
