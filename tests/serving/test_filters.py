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
    MAX_VERTICES,
    require_flat_json,
    require_simple_filter,
    require_simple_geometries,
    require_simple_geometry,
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
def test_filters_that_are_too_long_or_nested_too_deeply_are_refused(expression: object) -> None:
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
def test_ordinary_filters_are_accepted(expression: object) -> None:
    require_simple_filter(expression)


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_nesting_is_the_depth_of_brackets_in_the_json_document(document: object) -> None:
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
    started = time.perf_counter()
    try:
        cql2.parse_text(text)
    except Exception:
        pass
    slowest = max(slowest, time.perf_counter() - started)
print(parsed, slowest)
"""


def test_no_filter_within_the_limits_crashes_or_hangs_the_parser() -> None:
    """In a separate process, because a crash of native code would end the tests."""
    started = time.monotonic()
    command = [sys.executable, "-c", FUZZ, "7", "2000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert result.returncode == 0, result.stderr[-500:]
    parsed, slowest = result.stdout.split()
    assert int(parsed) > 200
    assert float(slowest) < 2
    assert time.monotonic() - started < 90


def test_a_search_with_a_filter_beyond_the_limits_is_refused(client) -> None:
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


def line(count: int) -> dict:
    return {"type": "LineString", "coordinates": [[n / 1000, 1.5] for n in range(count)]}


def collection_of(*geometries: dict) -> dict:
    return {"type": "GeometryCollection", "geometries": list(geometries)}


def intersecting(geometry: dict) -> dict:
    return {"op": "s_intersects", "args": [{"property": "geometry"}, geometry]}


BAD_GEOMETRIES = [
    line(MAX_VERTICES + 1),
    collection_of(line(MAX_VERTICES // 2), line(MAX_VERTICES // 2), line(2)),
    collection_of(*[{"type": "Point", "coordinates": [1, 2]}] * (MAX_VERTICES + 1)),
    {"type": "Point", "coordinates": [1e308, 0]},
    {"type": "Point", "coordinates": [0, -1e308]},
    {"type": "Point", "coordinates": [0, 0, 1e308]},
    {"type": "Point", "coordinates": [361, 0]},
    {"type": "Point", "coordinates": [1]},
    {"type": "Point", "coordinates": [1, 2, 3, 4]},
    {"type": "Point", "coordinates": ["1", None]},
    {"type": "Point", "coordinates": "1,2"},
    {"type": "LineString", "coordinates": [[0, 0], 1]},
    {"coordinates": [[[[0, 0], [0, 1e99]]]], "type": "MultiPolygon"},
]


@pytest.mark.parametrize("geometry", BAD_GEOMETRIES, ids=lambda value: json.dumps(value)[:60])
def test_geometries_with_too_many_vertices_or_bad_coordinates_are_refused(client, geometry: dict) -> None:
    text = json.dumps(geometry).replace("e+", "e")  # stac-fastapi reads a plus sign as a space
    with pytest.raises(InvalidRequest):
        require_simple_geometry(text)
    posted = [{"intersects": geometry}, {"filter-lang": "cql2-json", "filter": intersecting(geometry)}]
    responses = [client.post("/stac/search", json=body) for body in posted]
    if len(text) < 10_000:
        responses.append(client.get("/stac/search", params={"intersects": text}))
        for path in ("/stac/search", "/stac/collections/plain/items"):
            filtered = {"filter-lang": "cql2-json", "filter": json.dumps(intersecting(geometry)).replace("e+", "e")}
            responses.append(client.get(path, params=filtered))

    for response in responses[1:]:
        assert (response.status_code, response.json()["code"]) == (400, "request.bad-geometry"), response.url
    assert responses[0].status_code in (400, 422)  # the model of a search already refuses some of them


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_coordinates_that_are_not_numbers_are_refused(client, value: float) -> None:
    geometry = {"type": "Point", "coordinates": [value, 0]}
    with pytest.raises(InvalidRequest):
        require_simple_geometries(geometry)
    for response in (
        client.get("/stac/search", params={"intersects": json.dumps(geometry)}),
        client.post("/stac/search", content=json.dumps({"intersects": geometry})),
        client.post("/stac/search", content=json.dumps({"filter": intersecting(geometry)})),
    ):
        assert 400 <= response.status_code < 500
        assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "geometry",
    [
        line(MAX_VERTICES),
        {"type": "Point", "coordinates": [190.5, -90, 8848.0]},
        {"type": "MultiPolygon", "coordinates": [[[[10, 50], [11, 50], [11, 51], [10, 50]]]]},
        collection_of(line(3), {"type": "Point", "coordinates": [10.5, 50.5]}),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_ordinary_geometries_are_accepted(client, geometry: dict) -> None:
    assert client.post("/stac/search", json={"intersects": geometry}).status_code == 200
    if geometry["type"] != "GeometryCollection":  # pgSTAC's filters do not support them
        assert client.post("/stac/search", json={"filter": intersecting(geometry)}).status_code == 200
    if len(json.dumps(geometry)) < 10_000:
        assert client.get("/stac/search", params={"intersects": json.dumps(geometry)}).status_code == 200


def test_a_property_named_coordinates_is_not_treated_as_a_geometry() -> None:
    require_simple_geometries({"query": {"coordinates": {"in": [1e300, "x"]}}, "fields": ["coordinates"]})
