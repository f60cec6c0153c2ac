"""The `query` of a search, as a CQL2 filter.

pgSTAC evaluates the comparisons of STAC's query extension, but not `startsWith`, `endsWith`, `contains`. As a
filter, all operators work, and a search may have both a query and a filter.
"""

from collections.abc import Mapping
from typing import Any, Literal

import orjson
from cql2 import Expr
from pydantic import BaseModel, Field
from stac_fastapi.extensions.query import QueryExtension

from dagmaster.errors import InvalidRequest

QueryOperator = Literal["eq", "ne", "neq", "lt", "lte", "gt", "gte", "startsWith", "endsWith", "contains", "in"]
_COMPARISONS = {"eq": "=", "ne": "<>", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_PATTERNS = {"startsWith": "{}%", "endsWith": "%{}", "contains": "%{}%"}
_HINT = 'for example {"gsd": {"lt": 10}}; operators are ' + ", ".join([*_COMPARISONS, *_PATTERNS, "in"])


class QueryBody(BaseModel):
    """The part of a search's body that the extension adds."""

    query: dict[str, dict[QueryOperator, Any]] | None = Field(None, description=_HINT)


class FilteringQueryExtension(QueryExtension):
    POST = QueryBody


def filter_of(query: Any) -> dict[str, Any]:
    """The CQL2 filter with the meaning of a query."""
    if not isinstance(query, Mapping) or not all(isinstance(tests, Mapping) for tests in query.values()):
        raise _invalid("the query is not an object of properties and operators")
    tests = [_test(name, operator, value) for name, tests in query.items() for operator, value in tests.items()]
    if not tests:
        raise _invalid("the query has no operator")
    return tests[0] if len(tests) == 1 else {"op": "and", "args": tests}


def move_query(search: dict[str, Any]) -> None:
    """Move the query of a GET request into its filter, which was checked before."""
    if not search.get("query"):
        return
    expression = search.get("filter_expr")
    try:
        query = orjson.loads(search["query"])
        if expression:
            expression = (
                Expr(expression).to_json() if search.get("filter_lang") == "cql2-text" else orjson.loads(expression)
            )
    except orjson.JSONDecodeError:
        raise _invalid("the query or the filter is not JSON") from None
    except Exception:  # cql2 raises a bare Exception
        raise InvalidRequest("the filter is not valid CQL2", code="request.invalid") from None
    combined = orjson.dumps(both_filters(expression, filter_of(query))).decode()
    search |= {"query": None, "filter_expr": combined, "filter_lang": "cql2-json"}


def both_filters(one: Any, other: dict[str, Any]) -> dict[str, Any]:
    return {"op": "and", "args": [one, other]} if one else other


def _test(name: str, operator: str, value: Any) -> dict[str, Any]:
    prop = {"property": name}
    if operator in _COMPARISONS and not isinstance(value, list | dict):
        return {"op": _COMPARISONS[operator], "args": [prop, value]}
    if operator == "in" and isinstance(value, list) and value:
        return {"op": "in", "args": [prop, value]}
    if operator in _PATTERNS and isinstance(value, str):
        return {"op": "like", "args": [prop, _PATTERNS[operator].format(_escaped(value))]}
    raise _invalid("the query has an unknown operator, or a value that does not fit its operator")


def _escaped(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return text


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="request.invalid", hint=_HINT)
