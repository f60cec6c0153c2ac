"""Filters are limited before native code parses them."""

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import InvalidRequest
from dagmaster.serving.filters import (
    MAX_CHARACTERS,
    MAX_JSON_NESTING,
    MAX_TEXT_NESTING,
    require_flat_json,
    require_simple_filter,
)

pytestmark = pytest.mark.requirement("C1", "X3")


def nested(depth: int) -> object:
    document: object = 1
    for _ in range(depth):
        document = [document]
    return document


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 2000,
        "(" * (MAX_TEXT_NESTING + 1),
        "'" + ")" * 50 + "' = a AND " + "(" * (MAX_TEXT_NESTING + 1),
        "'a\\' = b OR " + "(" * (MAX_TEXT_NESTING + 1) + "'",
        "(')' = a AND " * (MAX_TEXT_NESTING + 1),
        "id = '" + "x" * MAX_CHARACTERS + "'",
        "{" + '"args":[{' * 500,
        nested(MAX_JSON_NESTING + 1),
        {"op": "not", "args": nested(450)},
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_too_long_or_nested_too_deeply_is_refused(expression: object) -> None:
    with pytest.raises(InvalidRequest):
        require_simple_filter(expression)


@pytest.mark.parametrize(
    "expression",
    [
        None,
        "id = 'a' AND (x > 1 OR (y < 2 AND NOT (z = 3)))",
        "id = '" + "(" * 100 + "'",
        "S_INTERSECTS(geometry, MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)), ((2 2, 3 2, 3 3, 2 2))))",
        nested(MAX_JSON_NESTING - 1),
    ],
)
def test_ordinary_filters_pass(expression: object) -> None:
    require_simple_filter(expression)


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_nesting_is_measured_as_json_writes_it(document: object) -> None:
    """An independent measure: brackets in the written document, outside of strings."""
    text, depth, deepest, is_quoted, is_escaped = json.dumps(document), 0, 0, False, False
    for character in text:
        if is_quoted:
            is_quoted = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
            continue
        is_quoted = character == '"'
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)

    if deepest > MAX_JSON_NESTING:
        with pytest.raises(InvalidRequest):
            require_flat_json(document)
    else:
        require_flat_json(document)


FUZZ = """
import random, sys, time
import cql2
from dagmaster.errors import InvalidRequest
from dagmaster.serving.filters import require_simple_filter

dice = random.Random(int(sys.argv[1]))
pieces = ["(", ")", "[", "]", "a", "=", "==", "'", '"', " AND ", " OR ", "NOT ", "1", ",", "f(", "S_INTERSECTS(",
          "POLYGON((", "^", "-", "*", " IN (", " BETWEEN ", " LIKE ", "CASEI(", "\\\\", "\\x00", "TIMESTAMP('", "é"]
pieces += ["(" * 10, ")" * 10]
slowest = parsed = 0
for _ in range(int(sys.argv[2])):
    text = "".join(dice.choices(pieces, k=dice.randint(1, 60)))
    try:
        require_simple_filter(text)
    except InvalidRequest:
        continue
    parsed += 1
    began = time.perf_counter()
    try:
        cql2.parse_text(text)
    except Exception:
        pass
    slowest = max(slowest, time.perf_counter() - began)
print(parsed, slowest)
"""


def test_no_filter_within_the_limits_crashes_or_hangs_the_parser() -> None:
    """In a process of its own: a crash of native code would end the tests."""
    began = time.monotonic()
    command = [sys.executable, "-c", FUZZ, "7", "2000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert result.returncode == 0, result.stderr[-500:]
    parsed, slowest = result.stdout.split()
    assert int(parsed) > 200
    assert float(slowest) < 2
    assert time.monotonic() - began < 90


def test_a_search_with_such_a_filter_is_refused_as_a_problem(client) -> None:
    requests = [
        client.get("/stac/search", params={"filter-lang": "cql2-text", "filter": "(" * 2000}),
        client.get("/stac/collections/plain/items", params={"filter-lang": "cql2-text", "filter": "(" * 25}),
        client.get("/stac/collections", params={"filter-lang": "cql2-text", "filter": "(" * 25}),
        client.post("/stac/search", json={"filter-lang": "cql2-json", "filter": {"op": "not", "args": nested(450)}}),
        client.post("/stac/search", json={"intersects": nested(450)}),
        client.post("/stac/search", content="[" * 100_000, headers={"Content-Type": "application/json"}),
        client.post(
            "/stac/search", content='{"filter": ' * 450 + "1" + "}" * 450, headers={"Content-Type": "application/json"}
        ),
    ]

    for position, response in enumerate(requests):
        assert response.status_code in (400, 422), response.text[:200]
        assert response.headers["content-type"] == "application/problem+json", (position, response.text[:200])
