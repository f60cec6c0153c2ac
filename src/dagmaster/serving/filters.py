"""Limits on filters and search bodies, checked before anything parses them.

The parser of CQL2 is native code: 2,000 opening brackets overflow its stack and end the process, and already 25 of them
take minutes, because it backtracks. JSON that is nested deeply fails in the middle of a search. So length and nesting
are limited here, whatever the language of the filter. PostGIS compares a geometry with that of every item, which takes
longer the more vertices it has, and fails for coordinates that overflow.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_plus

import orjson

from dagmaster.errors import InvalidRequest

MAX_CHARACTERS = 20_000
MAX_TEXT_NESTING = 10
MAX_JSON_NESTING = 60
# In all geometries of one request.
MAX_VERTICES = 10_000
# Beyond 180, because a geometry across the antimeridian may continue there.
_MAX_DEGREES = 360
_MAX_HEIGHT = 1e9

# Quoted text does not count. Whether a backslash escapes a quote depends on the parser, so both readings are checked.
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
        if is_json:
            require_simple_geometries(_parsed(expression, "filter"))
    elif expression is not None:
        require_simple_json(expression)


def require_simple_json(document: Any) -> None:
    """Refuse a search, or a part of one, that is nested too deeply or has geometries that are not simple enough."""
    require_flat_json(document)
    require_simple_geometries(document)


def require_simple_geometry(text: str | None) -> None:
    """Refuse the text of `intersects` if its GeoJSON is not simple enough."""
    if text:
        require_simple_json(_parsed(unquote_plus(text), "intersects"))  # stac-fastapi decodes it too


def require_simple_geometries(document: Any) -> None:
    """Refuse GeoJSON anywhere in a document with too many vertices, or coordinates that are not in degrees."""
    vertices = 0
    for position in _positions(document):
        vertices += 1
        if not _is_position(position):
            raise InvalidRequest(
                "a geometry has coordinates that are not in degrees",
                code="request.bad-geometry",
                hint="a position is longitude, latitude and optionally a height, as finite numbers",
            )
    if vertices > MAX_VERTICES:
        raise InvalidRequest(
            f"the geometries have {vertices:,} vertices; {MAX_VERTICES:,} are allowed",
            code="request.bad-geometry",
            hint="simplify the geometry, or use its bbox",
        )


def _parsed(text: str, name: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"{name} is not JSON", code="request.invalid") from None


def _positions(document: Any) -> Iterator[Any]:
    """The innermost arrays of the coordinates of all geometries in a document."""
    pending = [(document, False)]
    while pending:
        value, is_coordinates = pending.pop()
        if isinstance(value, dict):
            is_geometry = "type" in value
            pending += [(child, is_geometry and name == "coordinates") for name, child in value.items()]
        elif isinstance(value, list | tuple):
            if is_coordinates and value and not isinstance(value[0], list | tuple):
                yield value
            else:
                pending += [(child, is_coordinates) for child in value]
        elif is_coordinates:
            yield value


def _is_position(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        return False
    limits = (_MAX_DEGREES, _MAX_DEGREES, _MAX_HEIGHT)
    return all(isinstance(n, int | float) and abs(n) <= limit for n, limit in zip(value, limits, strict=False))


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
