"""Read JSON that PostgreSQL holds and orjson refuses: numbers beyond 64-bit floats, and very deep nesting.

dagmaster writes no such values, but a row may have been written by hand or by an older version. One value must not hide
the others: lists, cancels and deadlines work whatever a row contains. The result is marked as `UnreadableJson`. It can
be shown, with the numbers as texts; the engine does not compute with it.
"""

import json
from typing import Any

import orjson

MAX_DEPTH = 200  # orjson writes at most 254 levels, and an API response adds some
_TOO_DEEP = "nested too deeply to be shown"


class UnreadableJson:
    """Marks a value that was not read exactly as it is stored."""


class UnreadableObject(UnreadableJson, dict[str, Any]):
    pass


class UnreadableArray(UnreadableJson, list[Any]):
    pass


class UnreadableText(UnreadableJson, str):
    __slots__ = ()


def loads(text: bytes | str) -> Any:
    """The value of this JSON text, marked as `UnreadableJson` if orjson refuses it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _lenient(text)


def loads_to_show(text: bytes | str) -> Any:
    """The same for an API response, which must also be able to write the value again."""
    value = loads(text)
    openings = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, openings)) > MAX_DEPTH and _depth_exceeds(value, MAX_DEPTH):  # type: ignore[arg-type]
        return _too_deep(text)
    return value


def _lenient(text: bytes | str) -> Any:
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_float)
    except RecursionError:
        return _too_deep(text)
    if isinstance(value, dict):
        return UnreadableObject(value)
    return UnreadableArray(value) if isinstance(value, list) else UnreadableText(value)


def _integer(text: str) -> int | float | str:
    """As orjson reads it: an integer of 64 bits, else a float; a text where that is not finite."""
    if len(text) <= 20 and -(2**63) <= int(text) < 2**64:
        return int(text)
    return _float(text)


def _float(text: str) -> float | str:
    number = float(text)
    return number if abs(number) != float("inf") else _shortened(text)


def _shortened(text: str) -> str:
    """PostgreSQL writes out all digits of a number."""
    whole = text.partition(".")[0].lstrip("-")
    digits = whole.rstrip("0")
    if len(text) <= 40 or len(digits) > 40:
        return text[:40] if len(text) <= 40 else f"{text[:40]}… ({len(whole)} digits)"
    return f"{'-' if text.startswith('-') else ''}{digits}e{len(whole) - len(digits)}"


def _too_deep(text: bytes | str) -> UnreadableJson:
    match text.lstrip()[:1]:
        case b"{" | "{":
            return UnreadableObject({"unreadable": _TOO_DEEP})
        case _:
            return UnreadableArray([_TOO_DEEP])


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Whether containers are nested more than `limit` times. Looks at one level after the other."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
