"""What an expression may do: operators, filters and tests, each with a bound on the work and the size it can cause.

Jinja2's sandbox prevents escapes but not exhaustion (`'x' * 10**9`). Here there are no calls and no loops, and the size
of every result is checked before it is computed. Lookups use keys and indexes only: no attribute or method of a Python
object can be reached, so a key can never be hidden by a method of the same name.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, cast

import orjson
from jinja2 import StrictUndefined, Undefined
from jinja2.filters import do_default
from jinja2.runtime import Context as JinjaContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS

from dagmaster.workflows.meter import charge, charge_for

MAX_TEXT_BYTES = 65_536
MAX_ITEMS = 100_000
MISSING: Any = object()

# The integers that a database and JSON readers of other languages support.
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
# Widths have two digits at most: '%1000000000d' would exhaust the memory.
_FORMAT = re.compile(r"%(?:%|[-+ 0#]{0,3}\d{0,2}(?:\.\d{0,2})?[sdifeEgGxX])")

Filter = Callable[..., Any]


class Refused(Exception):
    """An operation whose result would be too large, or not JSON."""


def lookup(holder: Any, key: Any) -> Any:
    """The item of a mapping, list or text, or MISSING."""
    if isinstance(holder, dict):
        return holder.get(key, MISSING) if isinstance(key, str) else MISSING
    if isinstance(holder, list | tuple | str) and type(key) is int:
        return holder[key] if -len(holder) <= key < len(holder) else MISSING
    return MISSING


def bounded_text(text: str) -> str:
    charge(len(text) // 4)
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise Refused(f"text of {size:,} bytes is too long; at most {MAX_TEXT_BYTES:,} are allowed")
    return text


def text_of(value: Any) -> str:
    charge(8)
    if isinstance(value, list | tuple | dict) and not fits(value, MAX_TEXT_BYTES):
        raise Refused(f"the text would be too long; at most {MAX_TEXT_BYTES:,} bytes are allowed")
    return bounded_text(value if isinstance(value, str) else str(value))


def finite(number: Any) -> Any:
    """The number, unchanged. Raises Refused if JSON cannot represent it."""
    if isinstance(number, int) and not _MIN_INTEGER <= number <= _MAX_INTEGER:
        raise Refused("the integer does not fit into 64 bits")
    if isinstance(number, complex) or (isinstance(number, float) and not math.isfinite(number)):
        raise Refused("the result is not a finite number")
    return number


def fits(value: Any, limit_bytes: int) -> bool:
    """Whether the value as JSON has at most about `limit_bytes`. Stops counting as soon as it has more.

    A template may use one large output many times, so its size is checked before it is serialised.
    """
    bytes_left = limit_bytes
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            bytes_left -= 2 + (len(item) if item.isascii() else len(item.encode(errors="replace")))
        elif isinstance(item, dict):
            bytes_left -= 2 + sum(len(key) + 4 for key in item)
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            bytes_left -= 2 + len(item)
            if bytes_left >= 0:
                pending.extend(item)
        else:
            bytes_left -= 1
        if bytes_left < 0:
            return False
    return True


# --- operators -------------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _power(left: Any, right: Any) -> Any:
    if isinstance(right, int) and abs(right) > 64 and abs(left) > 1 and isinstance(left, int):
        raise Refused("the power is too large")
    return left**right


def _format(template: str, values: Any) -> str:
    if "%" in _FORMAT.sub("", bounded_text(template)):
        raise Refused("only simple formats such as '%s', '%05d' and '%.2f' are allowed, with widths up to 99")
    values = tuple(values) if isinstance(values, list | tuple) else (values,)
    return bounded_text(template % tuple(v if _is_number(v) else text_of(v) for v in values))


def _on_texts(sign: str, left: Any, right: Any) -> Any:
    if sign == "%" and isinstance(left, str):
        return _format(left, right)
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return bounded_text(left + right)
    if sign == "*" and isinstance(left, str) and isinstance(right, int):
        if len(left) * right > MAX_TEXT_BYTES:
            raise Refused(f"the repeated text is too long; at most {MAX_TEXT_BYTES:,} bytes are allowed")
        return bounded_text(left * right)
    return MISSING


def operate(sign: str, left: Any, right: Any) -> Any:
    """Apply a binary operator to numbers, texts or lists, within bounds."""
    if _is_number(left) and _is_number(right):
        return finite(_power(left, right) if sign == "**" else _OPERATORS[sign](left, right))
    if (text := _on_texts(sign, left, right)) is not MISSING:
        return text
    if sign == "+" and isinstance(left, list) and isinstance(right, list):
        charge(len(left) + len(right))
        return _bounded(left) + _bounded(right)
    raise Refused(f"`{sign}` is not supported between {_kind(left)} and {_kind(right)}")


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _kind(value: Any) -> str:
    if isinstance(value, Undefined):
        _require_defined(value)
    kinds = {dict: "an object", list: "an array", tuple: "an array", str: "a text", bool: "a boolean"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _require_defined(value: Any) -> Any:
    """The value; an undefined one raises an error that names what is missing."""
    return str(value) if isinstance(value, Undefined) else value


# --- filters ---------------------------------------------------------------------------------------------------------


def _strict(function: Filter) -> Filter:
    """The filter, but an undefined argument raises an error."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _require_defined(value)
        return function(*args, **kwargs)

    return checked


def _bounded(items: list[Any]) -> list[Any]:
    if len(items) > MAX_ITEMS:
        raise Refused(f"{len(items):,} items are too many; at most {MAX_ITEMS:,} are allowed")
    return items


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return list(bounded_text(value))
    if isinstance(value, list | tuple | dict):
        charge(len(value))
        return _bounded(list(value))
    raise Refused(f"an array is required here, not {_kind(value)}")


def _attribute(item: Any, path: Any) -> Any:
    """The value under a name, a dotted path of names and positions, or a position, as in Jinja."""
    charge(20)
    value = item
    for part in _path(path):
        is_position = isinstance(part, str) and part.isdigit() and isinstance(value, list)
        value = lookup(value, int(part) if is_position else part)
    if value is MISSING:
        raise Refused(f"an item has no `{path}`")
    return value


def _path(path: Any) -> list[Any]:
    if isinstance(path, str):
        return list(bounded_text(path).split("."))
    if isinstance(path, int) and not isinstance(path, bool):
        return [path]
    raise Refused(f"`attribute` must be a name or a position, not {_kind(path)}")


def _key(attribute: str | int | None) -> Callable[[Any], Any]:
    return (lambda item: item) if attribute is None else (lambda item: _attribute(item, attribute))


def _replace(value: Any, old: str, new: str) -> str:
    text, old, new = text_of(value), text_of(old), text_of(new)
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_TEXT_BYTES:
        raise Refused(f"the text after replacing is too long; at most {MAX_TEXT_BYTES:,} bytes are allowed")
    return bounded_text(text.replace(old, new))


def _join(value: Any, separator: Any = "", *, attribute: str | int | None = None) -> str:
    between, parts, bytes_left = text_of(separator), [], MAX_TEXT_BYTES
    for item in map(_key(attribute), _items(value)):
        parts.append(text_of(_require_defined(item)))
        bytes_left -= len(parts[-1]) + len(between)
        if bytes_left + len(between) < 0:
            raise Refused(f"the joined text is too long; at most {MAX_TEXT_BYTES:,} bytes are allowed")
    return bounded_text(between.join(parts))


def _truncate(value: Any, length: int = 255, *, end: str = "…") -> str:
    text = text_of(value)
    return text if len(text) <= length else text[: max(0, length - len(end))] + end


def _split(value: Any, separator: str | None = None) -> list[str]:
    return text_of(value).split(separator)


def _length(value: Any) -> int:
    if isinstance(value, str | list | tuple | dict):
        return len(value)
    raise Refused(f"{_kind(value)} has no length")


def _first(value: Any) -> Any:
    return _end_of(value, 0, "first")


def _last(value: Any) -> Any:
    return _end_of(value, -1, "last")


def _end_of(value: Any, index: int, name: str) -> Any:
    item = lookup(value, index)
    return StrictUndefined(hint=f"there is no {name} item") if item is MISSING else item


def _int(value: Any, default: int = 0) -> int:
    try:
        return int(finite(int(text_of(value)) if isinstance(value, str) else int(value)))
    except (ValueError, TypeError, OverflowError):
        return default


def _float(value: Any, default: float = 0.0) -> float:
    try:
        return float(finite(float(text_of(value) if isinstance(value, str) else value)))
    except (ValueError, TypeError, OverflowError):
        return default


def _round(value: Any, precision: int = 0) -> Any:
    # round(5, -10**9) computes the power of ten first.
    if abs(precision) > 20:
        raise Refused("a precision of more than 20 digits is not allowed")
    return finite(round(value, precision) if precision else round(value))


def _sum(value: Any, *, attribute: str | int | None = None) -> Any:
    return finite(sum(map(_key(attribute), _items(value))))


def _extreme(choose: Callable[..., Any]) -> Filter:
    def extreme(value: Any, *, attribute: str | int | None = None) -> Any:
        items = _items(value)
        _charge_for_order(items, attribute, times=1)
        if not items:
            return StrictUndefined(hint="an empty array has no minimum and no maximum")
        return choose(items, key=_key(attribute))

    return extreme


def _sort(value: Any, *, reverse: bool = False, attribute: str | int | None = None) -> list[Any]:
    items = _items(value)
    _charge_for_order(items, attribute, times=len(items).bit_length())
    return sorted(items, key=_key(attribute), reverse=bool(reverse))


def _charge_for_order(items: list[Any], attribute: str | int | None, times: int) -> None:
    """Charge for comparing each key this many times with another."""
    charge(len(items) * times)
    for key in map(_key(attribute), items):
        if isinstance(key, list | tuple | dict):
            charge(charge_for(key) * times)


def _unique(value: Any) -> list[Any]:
    first: dict[bytes, Any] = {}
    for item in _items(value):
        charge(10 * charge_for(item))
        first.setdefault(orjson.dumps(item, option=orjson.OPT_SORT_KEYS), item)
    return list(first.values())


def _map(value: Any, *, attribute: str | int) -> list[Any]:
    return [_attribute(item, attribute) for item in _items(value)]


def _chosen(value: Any, attribute: str | int, test: str | None, args: Iterable[Any]) -> Iterable[tuple[Any, bool]]:
    holds = TESTS.get(test) if test else bool
    if holds is None:
        raise Refused(f"there is no test `{test}`")
    for item in _items(value):
        yield item, bool(holds(_attribute(item, attribute), *args))


def _selectattr(value: Any, attribute: str | int, test: str | None = None, *args: Any) -> list[Any]:
    return [item for item, chosen in _chosen(value, attribute, test, args) if chosen]


def _rejectattr(value: Any, attribute: str | int, test: str | None = None, *args: Any) -> list[Any]:
    return [item for item, chosen in _chosen(value, attribute, test, args) if not chosen]


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and len(value) <= MAX_ITEMS:
        charge(len(value))
        return value
    raise Refused(f"an object of at most {MAX_ITEMS:,} keys is required here, not {_kind(value)}")


def _tojson(value: Any) -> str:
    if not fits(value, MAX_TEXT_BYTES):
        raise Refused(f"as JSON this is longer than {MAX_TEXT_BYTES:,} bytes")
    return bounded_text(orjson.dumps(value).decode())


_FILTERS: dict[str, Filter] = {
    "abs": lambda value: finite(abs(value)),
    "capitalize": lambda value: bounded_text(text_of(value).capitalize()),
    "count": _length,
    "first": _first,
    "float": _float,
    "format": lambda value, *args: _format(text_of(value), args),
    "int": _int,
    "join": _join,
    "keys": lambda value: list(_mapping(value)),
    "last": _last,
    "length": _length,
    "list": _items,
    "lower": lambda value: bounded_text(text_of(value).lower()),
    "map": _map,
    "max": _extreme(max),
    "min": _extreme(min),
    "rejectattr": _rejectattr,
    "replace": _replace,
    "reverse": lambda value: text_of(value)[::-1] if isinstance(value, str) else _items(value)[::-1],
    "round": _round,
    "selectattr": _selectattr,
    "sort": _sort,
    "split": _split,
    "string": text_of,
    "sum": _sum,
    "title": lambda value: bounded_text(text_of(value).title()),
    "tojson": _tojson,
    "trim": lambda value: text_of(value).strip(),
    "truncate": _truncate,
    "unique": _unique,
    "upper": lambda value: bounded_text(text_of(value).upper()),
    "values": lambda value: list(_mapping(value).values()),
}
FILTERS: Mapping[str, Filter] = {
    **{name: _strict(function) for name, function in _FILTERS.items()},
    "default": do_default,
    "d": do_default,
}

# Applied to every item of a literal list or object: an undefined item must fail there, not when it is stored.
REQUIRE_DEFINED = "require_defined"

_PLAIN_TESTS = (
    *("!=", "<", "<=", "==", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge", "equalto", "lessthan", "greaterthan"),
    *("boolean", "defined", "false", "float", "in", "integer", "mapping", "none", "number", "sequence", "string"),
    *("true", "undefined"),
)


def _divisible(value: Any, by: Any) -> bool:
    # Jinja2's own tests use %, which formats when the left side is a text.
    if not (_is_number(_require_defined(value)) and _is_number(_require_defined(by))):
        raise Refused(f"only numbers are divisible, not {_kind(value)}")
    return bool(value % by == 0)


def _charge_for_comparison(left: Any, right: Any) -> None:
    if isinstance(left, list | tuple | dict) and isinstance(right, list | tuple | dict):
        charge(min(charge_for(left), charge_for(right)))


def _charge_for_search(item: Any, container: Any) -> None:
    """Searching a list compares the item with each element, which may be a text of the same length."""
    if isinstance(container, list | tuple):
        units = 1 + len(item) // 256 if isinstance(item, str) else charge_for(item)
        charge(len(container) * units)
    elif isinstance(container, str):
        charge(len(container) // 16)


_CHARGES: Mapping[str, Callable[[Any, Any], None]] = {
    "in": _charge_for_search,
    "notin": _charge_for_search,
    **dict.fromkeys(
        ("!=", "<", "<=", "==", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge", "lteq", "gteq", "equalto"),
        _charge_for_comparison,
    ),
    **dict.fromkeys(("lessthan", "greaterthan"), _charge_for_comparison),
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda item, container: item in container,
    "notin": lambda item, container: item not in container,
}

SLICE = "slice"  # what `value[start:stop:step]` becomes, so that the copy is charged


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    if not isinstance(value, list | tuple | str):
        raise Refused(f"only arrays and texts can be sliced, not {_kind(value)}")
    chosen = slice(start, stop, step)
    length = len(range(*chosen.indices(len(value))))
    charge(length // 4 if isinstance(value, str) else 4 * length)
    return value[chosen]


COMPARE = "compare"  # what a comparison becomes, so that its work is charged


def _compare(left: Any, sign: str, right: Any) -> Any:
    _CHARGES[sign](left, right)
    return _COMPARISONS[sign](left, right)


def _charged(name: str, test: Filter) -> Filter:
    """A test of two values that charges for their comparison."""
    if name not in _CHARGES:
        return test
    charge_first = _CHARGES[name]

    def charged(value: Any, other: Any) -> Any:
        charge_first(value, other)
        return test(value, other)

    return charged


TESTS: Mapping[str, Filter] = {
    **{name: _charged(name, cast(Filter, JINJA_TESTS[name])) for name in _PLAIN_TESTS},
    "divisibleby": _divisible,
    "even": lambda value: _divisible(value, 2),
    "odd": lambda value: not _divisible(value, 2),
}


class Environment(ImmutableSandboxedEnvironment):
    """Jinja2 with only these operators, filters and tests."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    intercepted_unops = frozenset({"-", "+"})

    def __init__(self) -> None:
        # Not optimised: folding constants would run operations while compiling.
        super().__init__(undefined=StrictUndefined, optimized=False, autoescape=False, keep_trailing_newline=True)
        self.globals.clear()
        self.filters = {**FILTERS, REQUIRE_DEFINED: _require_defined, COMPARE: _compare, SLICE: _strict(_slice)}
        self.tests = dict(TESTS)

    def getitem(self, obj: Any, argument: Any) -> Any:
        value = lookup(_require_defined(obj), _require_defined(argument))
        return self.undefined(hint=f"`{str(argument)[:80]}` is undefined") if value is MISSING else value

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def call_binop(self, context: JinjaContext, operator: str, left: Any, right: Any) -> Any:
        return operate(operator, _require_defined(left), _require_defined(right))

    def call_unop(self, context: JinjaContext, operator: str, arg: Any) -> Any:
        return operate(operator, 0, _require_defined(arg))

    def is_safe_callable(self, obj: Any) -> bool:
        return False
