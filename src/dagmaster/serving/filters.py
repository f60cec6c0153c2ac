"""Limits on filters and search bodies, checked before anything parses them.

The parser of CQL2 is native code: 2,000 opening brackets overflow its stack and end the process, and already 25 of them
take minutes, because it tries every way to read them. JSON that is nested deeply fails in the middle of a search. So
length and nesting are limited here, whatever the language of the filter.
"""

import re
from typing import Any

from dagmaster.errors import InvalidRequest

MAX_CHARACTERS = 20_000
MAX_TEXT_NESTING = 10
MAX_JSON_NESTING = 60

# What is quoted does not nest. Whether a backslash escapes a quote depends on the parser, so both readings are checked.
_QUOTED = (
    re.compile(r"'(?:[^']|'')*'|\"[^\"]*\""),
    re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL),
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def require_simple_filter(expression: Any) -> None:
    """Refuse a filter that is too long or nested too deeply to be parsed safely: text, JSON as text, or parsed JSON."""
    if isinstance(expression, str):
        _require_length(expression)
        is_json = expression.lstrip().startswith("{")
        limit = MAX_JSON_NESTING if is_json else MAX_TEXT_NESTING
        _require_nesting(_deepest_nesting(expression), limit)
    elif expression is not None:
        require_flat_json(expression)


def require_flat_text(text: str | None) -> None:
    """Refuse JSON as text that is nested too deeply."""
    if isinstance(text, str):
        _require_nesting(_deepest_nesting(text), MAX_JSON_NESTING)


def require_flat_json(document: Any) -> None:
    """Refuse JSON that is nested too deeply. It is examined level by level, without recursion."""
    level, depth = [document], 0
    while level:
        depth += 1
        _require_nesting(depth, MAX_JSON_NESTING)
        level = [child for parent in level for child in _children(parent)]


def _children(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [item for item in items if isinstance(item, dict | list | tuple)]


def _deepest_nesting(text: str) -> int:
    return max(_text_nesting(quoted.sub("", text)) for quoted in _QUOTED)


def _text_nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif character in _CLOSING:
            depth = max(0, depth - 1)
    return deepest


def _require_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(
            f"the filter has {len(text):,} characters; {MAX_CHARACTERS:,} are allowed",
            code="request.filter-too-large",
            hint="use a simpler filter, or send a geometry as `intersects` of a POST search",
        )


def _require_nesting(depth: int, limit: int) -> None:
    if depth > limit:
        raise InvalidRequest(
            f"the filter or search is nested more than {limit} levels deep",
            code="request.nested-too-deep",
            hint="remove brackets that are not needed, or split the search",
        )
