"""Random requests to every route of the map server, which runs as a separate process: native code (GDAL, PROJ, numpy,
PostGIS, the parsers of filters and JSON) receives every parameter, and could crash it.

Each response arrives within the time limit; an error response is a problem with a code, and never an internal error.
With --slow the test runs for minutes, each time with another seed.
"""

import json
import random
import threading
import time
from http.client import HTTPConnection
from urllib.parse import quote, urlencode, urlsplit

import orjson
import pytest

from dagmaster.serving import searches, stac
from dagmaster.serving.app import create_app
from dagmaster.settings import load
from tests.serving.test_process import server  # noqa: F401 - a fixture

pytestmark = pytest.mark.requirement("C2", "X3")

LIMIT_SECONDS = 20.0
# Server errors that a request may get: it takes too long, or other requests use all slots.
ALLOWED_CODES = {"catalog.too-slow", "serving.busy"}
RING = [[10.1, 50.1], [10.9, 50.1], [10.9, 50.9], [10.1, 50.9], [10.1, 50.1]]
POLYGON = {"type": "Polygon", "coordinates": [RING]}
FILTER = {"op": "=", "args": [{"property": "id"}, "plain-v0"]}

# Paths that are not in the OpenAPI documents.
HIDDEN = [
    "/",
    "/maps",
    "/maps/openapi.json",
    "/pages/{page}",
    "/openapi.json",
    "/metrics",
    "/tiles/{asset_id}/map",
    "/tiles/{asset_id}/WebMercatorQuad/map.html",
    "/stac",
    "/stac/api",
    "/stac/api.html",
    "/stac/{blob}",
    "/{blob}",
]

# Valid values of every parameter, by name.
VALUES: dict[str, list[str]] = {
    "asset_id": ["plain", "dem", "scene", "tiled", "across"],
    "page": ["map.js", "index.html"],
    "tileMatrixSetId": ["WebMercatorQuad", "WorldCRS84Quad", "UPSArcticWGS84Quad"],
    "minx": ["10.2", "-180"],
    "miny": ["50.2", "-90"],
    "maxx": ["10.8", "180"],
    "maxy": ["50.8", "90"],
    "expression": ["b1*2", "(b2-b1)/(b2+b1)", "where(b1>1,b1,0)"],
    "colormap": ['{"1": "#ff0000"}', "[[[0, 100], [255, 0, 0, 255]]]"],
    "colorMapId": ["viridis"],
    "orientation": ["vertical"],
    "cover_scale": ["10"],
    "minzoom": ["8"],
    "maxzoom": ["9"],
    "zooms": ["WebMercatorQuad,1,2"],
    "use_epsg": ["true"],
    "f": ["json", "html", "png"],
    "z": ["8", "9"],
    "x": ["135", "270"],
    "y": ["86", "172"],
    "format": ["png", "jpg", "webp"],
    "width": ["64", "300"],
    "height": ["64", "300"],
    "max_size": ["64", "300"],
    "lon": ["10.5", "-180", "180"],
    "lat": ["50.5", "-90", "90"],
    "zone": ["silver", "external"],
    "container": ["silver"],
    "blob": ["cogs/dem/v0/r1/dem.tif", "mosaics/tiled/v0/r1/mosaic.json", "note.html"],
    "name": ["viridis", "terrain"],
    "collection_id": ["plain", "tiled"],
    "item_id": ["plain-v0", "tiled-v0-r0c0"],
    "tilesize": ["256", "512", "1024"],
    "tile_format": ["png", "jpg"],
    "bidx": ["1", "2"],
    "nodata": ["0", "nan", "-9999"],
    "unscale": ["true", "0"],
    "return_mask": ["true", "false"],
    "resampling": ["nearest", "bilinear", "lanczos", "average"],
    "rescale": ["0,100", "-1,1"],
    "colormap_name": ["viridis", "terrain"],
    "version": ["latest", "0", "1"],
    "rev": ["1", "1-0123456789"],
    "crs": ["http://www.opengis.net/def/crs/EPSG/0/4326"],
    "dst_crs": ["EPSG:3857"],
    "coord_crs": ["EPSG:4326"],
    "p": ["2", "98"],
    "histogram_bins": ["5"],
    "collections": ["plain", "dem,tiled"],
    "ids": ["plain-v0", "dem-v0,dem-v1"],
    "bbox": ["10,50,11,51", "10,50,0,11,51,9", "170,-10,-170,10"],
    "intersects": [json.dumps(POLYGON)],
    "datetime": ["2024-06-01T00:00:00Z", "2024-01-01T00:00:00Z/..", "../2030-01-01T00:00:00Z"],
    "limit": ["1", "10", "1000"],
    "query": [json.dumps({"dagmaster:version_ordinal": {"eq": 0}})],
    "sortby": ["-id", "+datetime,id"],
    "fields": ["id,properties.datetime", "-geometry"],
    "filter": ["id = 'plain-v0'", json.dumps(FILTER)],
    "filter-crs": ["http://www.opengis.net/def/crs/OGC/1.3/CRS84"],
    "filter-lang": ["cql2-text", "cql2-json"],
    "token": ["next:plain:plain-v0"],
    "q": ["heights", "plain,dem"],
    "search_id": [searches.encode(search) for search in ({"collections": ["plain"]}, {"bbox": [10, 50, 11, 51]})],
    "assets": ["data"],
    "offset": ["0", "3"],
}
HOSTILE_VALUES = [
    *(
        "",
        " ",
        "\0",
        "\x7f",
        "'",
        '"',
        "''; DROP TABLE x; --",
        "%",
        "%s",
        "{}",
        "[]",
        "null",
        "true",
        "é※",
        "\U0001f5fa",
    ),
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e308", "-1e308", "1e999", "1e-320", "0", "-0", "-1", "0.1", "1,"),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775808", "9" * 400, "1" + "0" * 5000, "0x10", "1_000"),
    *(
        "٣",
        "１２",
        "..",
        "../..",
        "../../etc/passwd",
        "/etc/passwd",
        "/vsicurl/http://127.0.0.1/",
        "file:///etc/passwd",
    ),
    *("EPSG:4326", "EPSG:999999", "+proj=pipeline", "+proj=longlat +nadgrids=@/etc/passwd", "b1/0", "b1**9999999"),
    *("(" * 3000, "[" * 3000, '{"a":' * 500, "a" * 20_000, "x," * 5000, "1," * 5000, "a OR " * 3000, "NOT " * 3000),
    *(
        "-1,-1,-1,-1",
        "180,90,-180,-90",
        "1e308,1e308,1e308,1e308",
        "0,0,0,0",
        "1,2,3",
        "1,2,3,4,5",
        "-200,-100,200,100",
    ),
    *("2024-13-45T99:99:99Z", "/", "../..", "9999-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "-4713-01-01T00:00:00Z/.."),
    *(
        "2024-06-01T00:00:00+99:99",
        "100000-01-01T00:00:00Z",
        "next:",
        "prev:x:y:z",
        "next:plain",
        "+",
        "-",
        "+-id",
        "id desc",
    ),
    *("properties.", ".", "-", "a.b.c.d", "geometry", "assets..", "datetime", "S_INTERSECTS(geometry, POINT(1e400 0))"),
    *("S_INTERSECTS(geometry, POLYGON((0 0, 1 1)))", "id LIKE '" + "%" * 200 + "'", "CASEI(id) = 'x'", "id IN ()"),
    *("T_AFTER(datetime, TIMESTAMP('2024-99-01T00:00:00Z'))", "1 = 1", "id = id", "a BETWEEN 1 AND 'x'", "id IS NULL"),
]
GEOMETRIES = [
    {"type": "Point", "coordinates": [1e308, -1e308]},
    {"type": "Point", "coordinates": []},
    {"type": "Point", "coordinates": ["a", None]},
    {"type": "Polygon", "coordinates": []},
    {"type": "Polygon", "coordinates": [[]]},
    {"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]},
    {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]]},
    {"type": "Polygon", "coordinates": [[[0, 0, 1, 2, 3]] * 4]},
    {"type": "Polygon", "coordinates": [[[n / 100, (n * 7919) % 90] for n in range(20_000)] + [[0, 0]]]},
    {"type": "MultiPolygon", "coordinates": [[RING]] * 3000},
    {"type": "GeometryCollection", "geometries": []},
    {"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": [0, 0]}] * 2000},
    {"type": "LineString", "coordinates": [[0, 0]]},
    {"type": "Circle", "coordinates": [0, 0]},
    {"type": "Feature", "geometry": POLYGON, "properties": {}},
    POLYGON,
]
BAD_POSITIONS: list[object] = [
    *(
        [],
        [0],
        [1, 2, 3, 4],
        [1e308, -1e308],
        [float("nan"), 1],
        [1, float("inf")],
        [1e-320, 0],
        [2**70, 0],
        ["1", "2"],
    ),
    *([None, None], [True, False], [[1, 2]], {}, None, 7, "1,2", [90.0000001, 50], [10, 90.0000001], [-0.0, 0]),
]

NOT_JSON = [
    *(b"", b"{", b"\xff\xfe", b"[1,", b'{"bbox": [NaN, 1, 2, 3]}', b'"' + b"\\u0000" * 99 + b'"'),
    *(b"[" * 9000, b'{"filter":' * 3000, b'{"a":1}' * 9, b"[" + b"1," * 300_000 + b"1]", b" " * 2_000_000),
]
# The fields of a search with a valid value.
SEARCH: dict[str, object] = {
    "bbox": [10, 50, 11, 51],
    "intersects": POLYGON,
    "datetime": "2024-01-01T00:00:00Z/..",
    "ids": ["plain-v0"],
    "collections": ["plain"],
    "limit": 3,
    "sortby": [{"field": "id", "direction": "asc"}],
    "fields": {"include": ["id"], "exclude": ["links"]},
    "filter": FILTER,
    "filter-lang": "cql2-json",
    "filter-crs": None,
    "query": {"dagmaster:version_ordinal": {"gte": 0}},
    "token": "next:plain:plain-v0",
    "conf": None,
    "unknown": None,
}
HEADERS = [
    *({"Range": value} for value in ("bytes=0-", "bytes=-", "bytes=-1", "bytes=9-1", f"bytes={'9' * 30}-", "x")),
    *({"If-None-Match": value} for value in ("*", '"x"', "W/", '"' * 500)),
    *({"Accept-Encoding": value} for value in ("gzip", "br", "deflate;q=x")),
    *({"Accept": value} for value in ("text/html", "*/*;q=x")),
    {"Content-Type": "text/plain"},
    {"Host": "localhost:99999"},
]


def nested(rng: random.Random) -> object:
    document: object = rng.choice([1, "x", None, FILTER])
    for _ in range(rng.choice([5, 20, 100, 200])):
        document = rng.choice(
            [[document], {"op": "not", "args": [document]}, {"type": "GeometryCollection", "geometries": [document]}]
        )
    return document


def any_json(rng: random.Random) -> object:
    simple = [None, True, 0, -1, 1.5, 1e308, 2**53, 2**63, 2**70, -(2**200), "", "x", "\0", "é", [], {}, [[]], {"": {}}]
    pick = rng.randrange(5)
    if pick == 0:
        return nested(rng)
    if pick == 1:
        return rng.choice(GEOMETRIES)
    if pick == 2:
        return [rng.choice(simple) for _ in range(rng.choice([1, 4, 6, 3000]))]
    if pick == 3:
        operators = [
            "=",
            "and",
            "or",
            "not",
            "like",
            "in",
            "between",
            "s_intersects",
            "t_after",
            "a_contains",
            "+",
            "^",
            "x",
        ]
        arguments = [{"property": "id"}, {"property": "\0"}, rng.choice(simple), POLYGON, {"interval": ["..", ".."]}]
        return {"op": rng.choice(operators), "args": rng.choices(arguments, k=rng.choice([0, 1, 2, 3]))}
    return rng.choice(simple)


def random_geometry(rng: random.Random, depth: int = 0) -> object:
    """Mostly a geometry within or around the datasets; some have bad numbers, arrays or types."""
    bad = rng.choice([0.0, 0.0, 0.0, 0.02, 0.3])
    west, south = rng.choice([(10, 50), (10, 50), (179, 0), (-180, -90), (-400, -100)])
    size = rng.choice([1e-12, 1e-3, 1, 1, 1, 30, 360])

    def position() -> object:
        if rng.random() < bad:
            return rng.choice(BAD_POSITIONS)
        height = [rng.choice([0, -1e5, 1e12])] if rng.random() < 0.05 else []
        return [west + size * rng.random(), south + size * rng.random(), *height]

    def positions(most: int = 12) -> list[object]:
        return [position() for _ in range(rng.choice([0, 1, 2, 3, 4, 5, most]))]

    def ring() -> list[object]:
        if rng.random() < 0.3:  # valid
            east, north = west + size, south + size
            return [[west, south], [east, south], [east, north], [west, north], [west, south]]
        points = positions(rng.choice([12, 12, 12, 3000]))
        return points + points[:1] if rng.random() < 0.9 else points

    def polygon() -> list[object]:
        return [ring() for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 50]))]

    kinds = {
        "Point": position,
        "MultiPoint": positions,
        "LineString": positions,
        "MultiLineString": polygon,
        "Polygon": polygon,
        "MultiPolygon": lambda: [polygon() for _ in range(rng.choice([0, 1, 2, 5]))],
    }
    if depth < 4 and rng.random() < 0.1:
        inner = [random_geometry(rng, depth + 1) for _ in range(rng.randrange(4))]
        return {"type": "GeometryCollection", "geometries": inner}
    kind = rng.choice([*kinds, *["Polygon", "MultiPolygon"] * 4])
    geometry: dict[str, object] = {"type": kind, "coordinates": kinds[kind]()}
    if rng.random() < 0.05:
        geometry["type"] = rng.choice([*kinds, "", None, 7, "polygon", "Feature"])
    if rng.random() < 0.05:
        geometry[rng.choice(["crs", "bbox", "coordinates"])] = any_json(rng)
    return geometry


def random_geojson(rng: random.Random) -> object:
    """A feature or a collection of features, as sent to routes of crops and statistics."""

    def one_feature() -> object:
        geometry = rng.choice(GEOMETRIES) if rng.random() < 0.2 else random_geometry(rng)
        feature: dict[str, object] = {"type": "Feature", "properties": {}, "geometry": geometry}
        if rng.random() < 0.1:
            name = rng.choice(["type", "properties", "geometry", "id", "bbox", "crs", "statistics"])
            feature[name] = any_json(rng)
        if rng.random() < 0.05:
            del feature[rng.choice(["type", "properties", "geometry"])]
        return feature

    if rng.random() < 0.6:
        return one_feature()
    if rng.random() < 0.1:
        return random_geometry(rng)
    features: object = [one_feature() for _ in range(rng.choice([0, 1, 2, 3, 11]))]
    return {"type": "FeatureCollection", "features": any_json(rng) if rng.random() < 0.05 else features}


def body(rng: random.Random, *, is_area: bool) -> bytes:
    """The body for a crop, or an object with the fields of a search, some of them invalid; sometimes not even JSON."""
    if rng.random() < 0.1:
        return rng.choice(NOT_JSON)
    if is_area and rng.random() < 0.95:
        return json.dumps(random_geojson(rng)).encode("utf-8", "surrogatepass")
    search: dict[str, object] = {}
    for name in rng.sample(sorted(SEARCH), rng.randrange(1, 5)):
        if SEARCH[name] is not None and rng.random() < 0.4:
            search[name] = SEARCH[name]
        elif name in ("intersects", "filter") and rng.random() < 0.6:
            geometry = random_geometry(rng)
            within = {"op": "s_within", "args": [{"property": "geometry"}, geometry]}
            search[name] = geometry if name == "intersects" else within
        else:
            search[name] = rng.choice([any_json(rng), rng.choice(HOSTILE_VALUES)])
    return json.dumps(search).encode("utf-8", "surrogatepass")


class Operation:
    def __init__(self, method: str, path: str, queries: list[str]) -> None:
        self.method = method
        self.path = path
        self.queries = queries

    def request(self, rng: random.Random) -> tuple[str, str, bytes | None]:
        def value(name: str, bad: float) -> str:
            return rng.choice(HOSTILE_VALUES) if rng.random() < bad else rng.choice(VALUES[name])

        bad_paths = rng.choice([0.0, 0.0, 0.3])
        path = self.path
        for name in self.names_in_path():
            path = path.replace(f"{{{name}}}", quote(value(name, bad_paths)[:3000], safe=rng.choice(["", "/,"])))
        chosen = rng.sample(self.queries, min(len(self.queries), rng.randrange(4)))
        bad_queries = rng.choice([0.2, 0.6, 1.0])
        pairs = [(name, value(name, bad_queries)) for name in chosen for _ in range(rng.choice([1, 1, 1, 1, 2, 30]))]
        if rng.random() < 0.05:
            pairs.append((rng.choice(HOSTILE_VALUES)[:500], "x"))
        query = urlencode(pairs)[: rng.choice([60_000, 60_000, 300])]
        return self.method, f"{path}?{query}" if query else path, self.body(rng)

    def body(self, rng: random.Random) -> bytes | None:
        return body(rng, is_area="feature" in self.path or "statistics" in self.path) if self.method == "POST" else None

    def names_in_path(self) -> list[str]:
        return [part.split("}")[0] for part in self.path.split("{")[1:]]


def operations() -> list[Operation]:
    """Every operation of both applications, as their OpenAPI documents list them, and the hidden ones."""
    app = create_app(load(), "postgresql:///none")
    documents = [app.openapi(), stac.create_stac(None, None).openapi()]
    listed = [
        Operation(
            method.upper(), path, [item["name"] for item in described.get("parameters", ()) if item["in"] == "query"]
        )
        for document in documents
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    ]
    return [*listed, *(Operation("GET", path, ["version", "limit", "blob"]) for path in HIDDEN)]


def test_every_route_outside_of_openapi_is_listed():
    app = create_app(load(), "postgresql:///none")
    hidden = {
        route.path
        for included in app.routes
        for route in getattr(getattr(included, "original_router", None), "routes", ())
        if not route.include_in_schema and "GET" in route.methods
    }

    assert [
        path for path in hidden if not any(known.endswith(path.replace("{name}", "{page}")) for known in HIDDEN)
    ] == []


def test_every_parameter_has_valid_values():
    named = {name for operation in operations() for name in (*operation.queries, *operation.names_in_path())}

    assert named - set(VALUES) == set()


@pytest.mark.parametrize("seconds", [5, pytest.param(240, marks=pytest.mark.slow)])
def test_no_request_crashes_the_server_or_causes_an_internal_error(server, seconds):  # noqa: F811
    url, process = server
    threading.Thread(target=process.stderr.read, daemon=True).start()  # otherwise the log would fill its pipe
    seed = 1 if seconds < 60 else random.randrange(10**9)
    rng, all_operations = random.Random(seed), operations()
    known = {operation.path for operation in all_operations}
    failures: list[str] = []
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until or count < 2 * len(all_operations):
        operation = all_operations[count % len(all_operations)] if count < len(known) else rng.choice(all_operations)
        count += 1
        headers = rng.choice(HEADERS) if rng.random() < 0.2 else {}
        if problem := problem_with(url, headers, *operation.request(rng)):
            failures.append(f"seed {seed}, request {count}: {problem}")
        assert process.poll() is None, f"the server has crashed: {failures[-1:]}"
        if len(failures) >= 20:
            break

    assert failures == []


def problem_with(url: str, headers: dict[str, str], method: str, path: str, content: bytes | None) -> str | None:
    """The problem with the response to a request, or None."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_SECONDS)
    started = time.monotonic()
    shown = f"{method} {path[:300]} {headers} {(content or b'')[:300]!r}"
    try:
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
    except OSError as error:
        return f"{shown}: {error!r} after {time.monotonic() - started:.1f} s"
    finally:
        connection.close()
    if response.status < 400 or response.status == 416:  # the file has no such range
        return None
    if response.status < 500 and path.startswith("/stac/") and b'"description":' in text:
        return None  # the format of errors that the STAC standard requires
    if response.status == 404 and headers.get("Accept") == "text/html":
        return None  # a page for browsers
    if response.headers["content-type"] != "application/problem+json":
        return f"{shown}: {response.status} {response.headers['content-type']} {text[:200]!r}"
    if response.status >= 500 and orjson.loads(text)["code"] not in ALLOWED_CODES:
        return f"{shown}: {text[:300]!r}"
    return None
