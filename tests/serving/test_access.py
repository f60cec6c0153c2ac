"""Every route is requested by every kind of caller in every state of a version, and compared with tables of this test.

    STATES   what was done to the dataset of this name, and what each caller may read of it
    OF_…     the request for each route; a route that is in no table fails the test

The response for something that a caller may not read is the same as for something that does not exist: status,
headers and body.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import psycopg
import pytest
from fastapi.routing import iter_route_contexts
from morecantile import tms
from starlette.testclient import TestClient

from dagmaster.serving import stac
from dagmaster.serving.access import ExpectedPublication, expected_publication
from dagmaster.serving.app import create_app
from dagmaster.serving.searches import encode
from dagmaster.settings import load
from dagmaster.storage.location import Edition
from tests.serving.assets import Assets, asset_id
from tests.serving.callers import CALLERS, authenticate_by_name, key
from tests.serving.conftest import BOX
from tests.serving.data import collection, item, stored

pytestmark = pytest.mark.requirement("C2", "C3")

PLATFORM = "ddh"
X, Y, Z = tms.get("WebMercatorQuad").tile(10.5, 50.5, 9)
FEATURE = {
    "type": "Feature",
    "properties": {},
    "geometry": {"type": "Polygon", "coordinates": [[[10.2, 50.2], [10.8, 50.2], [10.8, 50.8], [10.2, 50.2]]]},
}


@dataclass(frozen=True)
class State:
    """`readers` may read the requested revision, `listed_for` may see its items in the catalogue.

    `twin` is a request for a dataset, version or revision that does not exist. All other callers must get the same
    response for both.
    """

    readers: str
    listed_for: str
    actions: Callable[[Assets, str], None]
    version: int = 0
    revision: int = 1
    twin: tuple[str, int, int] = ("unknown", 0, 1)
    collection_for: str | None = None  # who may see the collection, if other items of it are listed


STAFF = "reviewer operator admin"
INTERNAL = f"viewer {STAFF}"
EVERYONE = " ".join(CALLERS)


def approve(clearance: str) -> Callable[[Assets, str], None]:
    return lambda assets, dataset: assets.approve(dataset, 0, clearance)


def in_order(*actions: Callable[[Assets, str], None]) -> Callable[[Assets, str], None]:
    def act(assets: Assets, dataset: str) -> None:
        for action in actions:
            action(assets, dataset)

    return act


def submit_again(assets: Assets, dataset: str) -> None:
    assets.submit(dataset, documents(dataset, 0, 2), revision=2, platform=PLATFORM)


def add_version(assets: Assets, dataset: str) -> None:
    assets.submit(dataset, documents(dataset, 1, 1), ordinal=1, platform=PLATFORM)
    assets.approve(dataset, 1)


STATES = {
    "pending": State(STAFF, "", lambda _assets, _dataset: None),
    "rejected": State(STAFF, "", lambda assets, dataset: assets.reject(dataset)),
    "public": State(EVERYONE, EVERYONE, approve("public")),
    "ouo": State(INTERNAL, INTERNAL, approve("ouo")),
    "uncleared": State(STAFF, "", in_order(approve("public"), lambda a, d: a.clear(d, "uncleared"))),
    "unpublished": State("", "", in_order(approve("public"), lambda a, d: a.unpublish(d))),
    "unpublished-version": State("", "", in_order(approve("public"), lambda a, d: a.unpublish(d, 0))),
    "unpublished-newer-revision": State(
        STAFF, "", in_order(approve("public"), submit_again, lambda a, d: a.unpublish(d)), revision=2
    ),
    "deleted": State("", "", in_order(approve("public"), lambda a, d: a.delete(d))),
    "deleted-version": State("", "", in_order(approve("public"), lambda a, d: a.delete(d, 0))),
    "newer-revision": State(
        STAFF,
        "",
        in_order(approve("public"), submit_again),
        revision=2,
        twin=("newer-revision", 0, 9),
        collection_for=EVERYONE,
    ),
    "older-revision": State(
        STAFF,
        "",
        in_order(approve("public"), submit_again, lambda a, d: a.approve(d)),
        twin=("older-revision", 0, 9),
        collection_for=EVERYONE,
    ),
    "revised": State(EVERYONE, EVERYONE, in_order(approve("public"), submit_again)),
    "older-version": State(
        STAFF, "", in_order(approve("public"), add_version), twin=("older-version", 9, 1), collection_for=EVERYONE
    ),
    "latest-version": State(EVERYONE, EVERYONE, in_order(approve("public"), add_version), version=1),
    "all-versions": State(
        EVERYONE, EVERYONE, in_order(approve("public"), lambda a, d: a.expose(d, "all-versions"), add_version)
    ),
}


def documents(dataset: str, ordinal: int, revision: int) -> list[dict[str, Any]]:
    edition = Edition(dataset, ordinal, revision)
    document = item(edition, STORED[edition], BOX)
    return [collection(dataset, BOX, **{"dagmaster:version_ordinal": ordinal}), document]


STORED: dict[Edition, Any] = {}


@pytest.fixture(scope="module")
def dsn(shared_catalog, storage, tmp_path_factory) -> str:
    """A database with a dataset in each state."""
    folder, assets = tmp_path_factory.mktemp("access"), Assets(shared_catalog)
    for name, state in STATES.items():
        for edition in (Edition(name), Edition(name, 0, 2), Edition(name, 1, 1)):
            pixels = np.full((1, 64, 64), 7, np.uint8)
            STORED[edition] = stored(storage, folder, edition.cog("x.tif"), pixels, BOX)
        assets.submit(name, documents(name, 0, 1), platform=PLATFORM)
        state.actions(assets, name)
    return shared_catalog


@pytest.fixture(scope="module")
def app(dsn, storage):
    return authenticate_by_name(create_app(load(auth_enabled=True), dsn, storage=storage))


@pytest.fixture(scope="module")
def client(app) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://localhost:8003", follow_redirects=False) as client:
        yield client


@dataclass(frozen=True)
class RequestedRevision:
    dataset: str
    version: int
    revision: int

    @property
    def item(self) -> str:
        return f"{self.dataset}-v{self.version}"

    @property
    def search(self) -> dict[str, Any]:
        return {"ids": [self.item], "collections": [self.dataset]}


def tiles(path: str, **options: Any) -> Callable[[RequestedRevision], dict[str, Any]]:
    def request(revision: RequestedRevision) -> dict[str, Any]:
        sign = "&" if "?" in path else "?"
        query = f"{sign}version={revision.version}&rev={revision.revision}"
        return {"url": f"/tiles/{revision.dataset}/{path}{query}", **options}

    return request


def search_tiles(path: str) -> Callable[[RequestedRevision], dict[str, Any]]:
    return lambda revision: {"url": f"/searches/{encode(revision.search)}/{path}"}


def of_revision(path: str) -> Callable[[RequestedRevision], dict[str, Any]]:
    return lambda revision: {
        "url": f"/stac/collections/{revision.dataset}{path.format(item=revision.item)}",
        "params": {"version": revision.version, "rev": revision.revision},
    }


def listed(path: str) -> Callable[[RequestedRevision], dict[str, Any]]:
    return lambda revision: {"url": f"/stac/collections/{revision.dataset}{path.format(item=revision.item)}"}


def always(url: str, **options: Any) -> Callable[[RequestedRevision], dict[str, Any]]:
    return lambda _revision: {"url": url, **options}


TILE, SIZED = f"WebMercatorQuad/{Z}/{X}/{Y}", "16x16.png"
IN_TILES: dict[str, Callable[[RequestedRevision], dict[str, Any]]] = {
    "/tiles/{tileMatrixSetId}/{z}/{x}/{y}.{format}": tiles(f"tiles/{TILE}.png"),
    "/tiles/{tileMatrixSetId}/{z}/{x}/{y}": tiles(f"tiles/{TILE}"),
    "/{tileMatrixSetId}/tilejson.json": tiles("WebMercatorQuad/tilejson.json"),
    "/map": tiles("map"),
    "/info": tiles("info"),
    "/info.geojson": tiles("info.geojson"),
    "/preview/{width}x{height}.{format}": tiles(f"preview/{SIZED}"),
    "/preview.{format}": tiles("preview.png?max_size=16"),
    "/preview": tiles("preview?max_size=16"),
    "/bbox/{minx},{miny},{maxx},{maxy}/{width}x{height}.{format}": tiles(f"bbox/10.2,50.2,10.8,50.8/{SIZED}"),
    "/bbox/{minx},{miny},{maxx},{maxy}.{format}": tiles("bbox/10.2,50.2,10.8,50.8.png?max_size=16"),
    "/tiles": tiles("tiles"),
    "/tiles/{tileMatrixSetId}": tiles("tiles/WebMercatorQuad"),
    "/WMTSCapabilities.xml": tiles("WMTSCapabilities.xml"),
    "/point/{lon},{lat}": tiles("point/10.5,50.5"),
    "/statistics": tiles("statistics?max_size=16"),
}
POSTED = {
    "/feature/{width}x{height}.{format}": tiles(f"feature/{SIZED}", json=FEATURE),
    "/feature.{format}": tiles("feature.png?max_size=16", json=FEATURE),
    "/feature": tiles("feature?max_size=16", json=FEATURE),
    "/statistics": tiles("statistics?max_size=16", json=FEATURE),
}
SEARCHED = {
    "/tiles/{tileMatrixSetId}/{z}/{x}/{y}.{format}": search_tiles(f"tiles/{TILE}.png"),
    "/tiles/{tileMatrixSetId}/{z}/{x}/{y}": search_tiles(f"tiles/{TILE}"),
    "/{tileMatrixSetId}/tilejson.json": search_tiles("WebMercatorQuad/tilejson.json"),
    "/tiles/{z}/{x}/{y}.{format}": search_tiles(f"tiles/{Z}/{X}/{Y}.png"),
    "/tiles/{z}/{x}/{y}": search_tiles(f"tiles/{Z}/{X}/{Y}"),
    "/tilejson.json": search_tiles("tilejson.json"),
}
FILES = "/files/{zone}/{container}/{blob:path}"
STAC_COLLECTION = "/stac/collections/{collection_id}"

# Data of one revision.
OF_REVISION = {
    **{(m, f"/tiles/{{asset_id}}{path}"): make for path, make in IN_TILES.items() for m in ("GET", "HEAD")},
    **{("POST", f"/tiles/{{asset_id}}{path}"): make for path, make in POSTED.items()},
    **{
        (method, FILES): lambda revision: {
            "url": f"/files/silver/silver/cogs/{revision.dataset}/v{revision.version}/r{revision.revision}/x.tif"
        }
        for method in ("GET", "HEAD")
    },
    ("GET", STAC_COLLECTION): of_revision(""),
    ("GET", f"{STAC_COLLECTION}/items"): of_revision("/items"),
    ("GET", f"{STAC_COLLECTION}/items/{{item_id}}"): of_revision("/items/{item}"),
}
# Items that the catalogue lists, or their collection.
OF_CATALOGUE = {
    **{(m, f"/searches/{{search_id}}{path}"): make for path, make in SEARCHED.items() for m in ("GET", "HEAD")},
    ("GET", f"{STAC_COLLECTION}/items/{{item_id}}"): listed("/items/{item}"),
}
OF_COLLECTION = {
    ("GET", STAC_COLLECTION): listed(""),
    ("GET", f"{STAC_COLLECTION}/items"): listed("/items"),
    ("GET", f"{STAC_COLLECTION}/queryables"): listed("/queryables"),
}
# Routes that list everything that a caller may see; tests below check them separately.
OF_ALL = {
    ("GET", "/stac/search"),
    ("POST", "/stac/search"),
    ("GET", "/stac/collections"),
    ("GET", "/stac/queryables"),
    ("POST", "/searches/register"),
}
# Routes with the same response for everyone: they contain nothing about datasets, or only repeat the request.
WITHOUT_DATA = {
    ("GET", "/"): always("/"),
    ("GET", "/maps"): always("/maps"),
    ("GET", "/maps/openapi.json"): always("/maps/openapi.json"),
    ("GET", "/pages/{name}"): always("/pages/map.js"),
    ("GET", "/livez"): always("/livez"),
    ("GET", "/openapi.json"): always("/openapi.json"),
    ("HEAD", "/openapi.json"): always("/openapi.json"),
    ("GET", "/tileMatrixSets"): always("/tileMatrixSets"),
    ("GET", "/tileMatrixSets/{tileMatrixSetId}"): always("/tileMatrixSets/WebMercatorQuad"),
    ("GET", "/colorMaps"): always("/colorMaps"),
    ("GET", "/colorMaps/{colorMapId}"): always("/colorMaps/viridis"),
    ("GET", "/colormaps/{name}.png"): always("/colormaps/viridis.png"),
    ("GET", "/conformance"): always("/conformance"),
    ("", "/stac"): always("/stac"),
    ("", "/stac/"): always("/stac/"),
    ("GET", "/stac/"): always("/stac/"),
    ("GET", "/stac/api"): always("/stac/api"),
    ("HEAD", "/stac/api"): always("/stac/api"),
    ("GET", "/stac/api.html"): always("/stac/api.html"),
    ("GET", "/stac/conformance"): always("/stac/conformance"),
    ("GET", "/stac/_mgmt/ping"): always("/stac/_mgmt/ping"),
    ("GET", "/tiles/{asset_id}/WebMercatorQuad/map.html"): tiles("WebMercatorQuad/map.html"),
    ("HEAD", "/tiles/{asset_id}/WebMercatorQuad/map.html"): tiles("WebMercatorQuad/map.html"),
    ("GET", "/searches/{search_id}/info"): search_tiles("info"),
    ("HEAD", "/searches/{search_id}/info"): search_tiles("info"),
}
# Routes about the state of the server. Only operators get details; others only learn whether it is ready.
OF_OPERATORS = {
    ("GET", "/readyz"): always("/readyz"),
    ("GET", "/metrics"): always("/metrics"),
    ("GET", "/stac/_mgmt/health"): always("/stac/_mgmt/health"),
}
# The mount of the STAC API, whose routes are listed too.
STAC_MOUNT = {("", "/stac/{path:path}")}


def test_every_route_is_in_a_table_of_this_test(app):
    routes = {
        (method, context.path)
        for routes in (app.routes, stac.create_stac(None, None).routes)
        for context in iter_route_contexts(routes)
        for method in (context.methods or {""})
    }

    assert routes == {*OF_REVISION, *OF_CATALOGUE, *OF_COLLECTION, *OF_ALL, *WITHOUT_DATA, *OF_OPERATORS, *STAC_MOUNT}


def request_of(
    route: tuple[str, str],
    make: Callable[[RequestedRevision], dict[str, Any]],
    revision: RequestedRevision,
    caller: str,
) -> dict[str, Any]:
    return {"method": route[0] or "GET", "headers": {**key(caller), "X-Request-ID": "same"}, **make(revision)}


def send(
    client: TestClient,
    route: tuple[str, str],
    make: Callable[[RequestedRevision], dict[str, Any]],
    revision: RequestedRevision,
    caller: str,
):
    return client.request(**request_of(route, make, revision, caller))


def send_all(client: TestClient, requests: Sequence[dict[str, Any]]) -> list[httpx2.Response]:
    """Send requests in the thread of the app, which is faster: a TestClient switches threads ten times per request."""

    async def send() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(client.app)
        async with httpx2.AsyncClient(transport=transport, base_url=client.base_url) as direct:
            return [await direct.request(**each) for each in requests]

    assert client.portal is not None
    return client.portal.call(send)


def described(response: Any, revision: RequestedRevision) -> tuple[int, dict[str, str], str]:
    """Everything that a client can see of a response, except names that it has sent itself."""
    text = response.text
    for own in (encode(revision.search), revision.item, revision.dataset):
        text = text.replace(own, "…")
    text = re.sub(r"\b[vr]\d+\b", "…", text)
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return response.status_code, headers, text


MISSING: dict[tuple[Any, ...], tuple[int, dict[str, str], str]] = {}


def responses_to_missing(client, routes, twin: RequestedRevision) -> list[tuple[int, dict[str, str], str]]:
    """The responses to requests for something that does not exist; each is sent only once."""
    places = [(route, make, twin, caller) for route, make in routes.items() for caller in CALLERS]
    new = [place for place in places if place not in MISSING]
    responses = send_all(client, [request_of(*place) for place in new])
    MISSING.update(zip(new, (described(response, twin) for response in responses), strict=True))
    return [MISSING[place] for place in places]


def check_all(client, routes, state: State, name: str, readers: str) -> None:
    revision, twin = RequestedRevision(name, state.version, state.revision), RequestedRevision(*state.twin)
    places = [(route, make, revision, caller) for route, make in routes.items() for caller in CALLERS]
    responses = send_all(client, [request_of(*place) for place in places])
    wrong = []
    for (route, _, _, caller), response, expected in zip(
        places, responses, responses_to_missing(client, routes, twin), strict=True
    ):
        if caller in readers.split():
            is_right = response.status_code == 200
        else:
            is_right = expected[0] == 404 and described(response, revision) == expected
        if not is_right:
            wrong.append((route, caller, response.status_code, response.text[:200]))
    assert wrong == []


@pytest.mark.parametrize("name", STATES)
def test_only_allowed_callers_can_read_a_revision(client, name):
    check_all(client, OF_REVISION, STATES[name], name, STATES[name].readers)


# In the other two states, the item belongs to another revision, which is listed.
@pytest.mark.parametrize("name", [name for name in STATES if name not in ("newer-revision", "older-revision")])
def test_only_allowed_callers_find_items_of_the_catalogue(client, name):
    check_all(client, OF_CATALOGUE, STATES[name], name, STATES[name].listed_for)


@pytest.mark.parametrize("name", STATES)
def test_a_collection_is_visible_to_callers_who_may_see_one_of_its_items(client, name):
    state = STATES[name]
    twin = State("", "", state.actions)
    check_all(client, OF_COLLECTION, twin, name, state.collection_for or state.listed_for)


@pytest.mark.parametrize("route", WITHOUT_DATA, ids=" ".join)
def test_routes_without_data_respond_the_same_to_all_callers(client, route):
    for dataset in ("ouo", "unknown"):
        revision = RequestedRevision(dataset, 0, 1)
        responses = [
            described(send(client, route, WITHOUT_DATA[route], revision, caller), revision) for caller in CALLERS
        ]
        assert responses[0][0] in (200, 307)
        assert [each == responses[0] for each in responses] == [True] * len(CALLERS)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("caller", CALLERS)
def test_only_operators_and_monitors_see_the_state_of_the_server(client, caller):
    def status(path: str) -> int:
        return client.get(path, headers=key(caller)).status_code

    ready = client.get("/readyz", headers=key(caller))

    is_allowed = caller in ("operator", "admin", "author", "monitor")
    refused = 401 if caller == "anonymous" else 403
    assert ready.status_code == 200
    assert bool(ready.json()["checks"]) is is_allowed
    assert status("/metrics") == status("/stac/_mgmt/health") == (200 if is_allowed else refused)


def visible(caller: str) -> set[str]:
    return {name for name, state in STATES.items() if caller in (state.collection_for or state.listed_for).split()}


def items_of(caller: str) -> set[str]:
    """The items that a caller can see: the approved revisions of exposed versions of each visible dataset."""
    versions = {"older-version": [1], "latest-version": [1], "all-versions": [0, 1]}
    return {f"{name}-v{ordinal}" for name in visible(caller) for ordinal in versions.get(name, [0])}


@pytest.mark.parametrize("caller", CALLERS)
def test_the_list_of_collections_contains_exactly_those_visible_to_the_caller(client, caller):
    everything = client.get("/stac/collections?limit=100", headers=key(caller)).json()
    page = client.get("/stac/collections?limit=2&offset=1", headers=key(caller)).json()

    assert {each["id"] for each in everything["collections"]} == visible(caller)
    assert everything["numberMatched"] == everything["numberReturned"] == len(visible(caller))
    assert page["numberMatched"] == len(visible(caller))
    assert any(link["rel"] == "next" for link in page["links"])
    last = client.get(f"/stac/collections?limit=100&offset={len(visible(caller)) - 1}", headers=key(caller)).json()
    assert (len(last["collections"]), any(link["rel"] == "next" for link in last["links"])) == (1, False)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_search_finds_exactly_the_items_visible_to_the_caller(client, caller, method):
    features = search(client, caller, method, limit=100)

    assert {each["id"] for each in features["features"]} == items_of(caller)
    assert features["numberReturned"] == len(items_of(caller))
    assert features.get("numberMatched", len(items_of(caller))) == len(items_of(caller))
    assert not any(link["rel"] in ("next", "previous") for link in features["links"])


def search(client, caller, method="POST", **body):
    if method == "GET":
        return client.get("/stac/search", params=body, headers=key(caller)).json()
    return client.post("/stac/search", json=body, headers=key(caller)).json()


@pytest.mark.parametrize("caller", CALLERS)
def test_the_pages_of_a_search_contain_exactly_the_visible_items(client, caller):
    seen, url = [], "/stac/search?limit=2&sortby=id"
    while url:
        page = client.get(url, headers=key(caller)).json()
        seen += [each["id"] for each in page["features"]]
        url = next((link["href"] for link in page["links"] if link["rel"] == "next"), None)

    assert seen == sorted(items_of(caller))


HIDDEN = {name for name, state in STATES.items() if "anonymous" not in (state.collection_for or state.listed_for)}
# Searches for one hidden item.
REVEALING = [
    {"ids": ["ouo-v0"]},
    {"collections": ["ouo"]},
    {"collections": ["ouo", "unknown"], "ids": ["ouo-v0"]},
    {"filter": {"op": "=", "args": [{"property": "collection"}, "ouo"]}},
    {"filter": {"op": "=", "args": [{"property": "id"}, "ouo-v0"]}},
    {"filter": {"op": "like", "args": [{"property": "title"}, "ouo%"]}},
    {
        "filter": {
            "op": "or",
            "args": [
                {"op": "=", "args": [{"property": "collection"}, "ouo"]},
                {"op": "=", "args": [{"property": "id"}, "ouo-v0"]},
            ],
        }
    },
    {
        "filter": {
            "op": "and",
            "args": [
                {"op": "=", "args": [{"property": "collection"}, "ouo"]},
                # Fails for any row whose title is not a number.
                {"op": ">", "args": [{"op": "+", "args": [{"property": "title"}, 1]}, 0]},
            ],
        }
    },
    {"query": {"title": {"startsWith": "ouo"}}},
    {"collections": ["ouo"], "fields": {"include": ["id"]}},
    {"collections": ["ouo"], "sortby": [{"field": "title", "direction": "asc"}], "limit": 1},
]


@pytest.mark.parametrize("body", REVEALING, ids=str)
def test_no_search_reveals_a_hidden_item(client, body):
    """The response is the same as for a dataset that does not exist."""
    twin = json.loads(json.dumps(body).replace("ouo", "qqq"))
    responses = [
        client.post("/stac/search", json=each, headers={**key("anonymous"), "X-Request-ID": "same"})
        for each in (body, twin)
    ]

    assert responses[0].status_code == responses[1].status_code
    assert responses[0].text.replace("ouo", "qqq") == responses[1].text
    assert responses[0].json().get("features", []) == []


def test_a_page_token_of_a_hidden_item_is_refused_like_one_of_a_missing_item(client):
    def token(dataset: str) -> str:
        return f"next:{dataset.encode().hex()}:{f'{dataset}-v0'.encode().hex()}"

    responses = [
        client.get("/stac/search", params={"token": token(name)}, headers={**key("anonymous"), "X-Request-ID": "same"})
        for name in ("ouo", "qqq", "pending")
    ]

    assert {response.status_code for response in responses} == {400}
    assert len({response.text for response in responses}) == 1
    assert client.get("/stac/search", params={"token": token("ouo")}, headers=key("viewer")).status_code == 200
    assert client.get("/stac/search", params={"token": token("public")}).status_code == 200


@pytest.mark.parametrize("column", ["id = 'ouo'", "title LIKE '%ouo%'", "id = 'ouo' AND title + 1 > 0"])
def test_no_search_for_collections_reveals_a_hidden_collection(client, column):
    responses = [
        client.get(
            "/stac/collections",
            params={"filter": column.replace("ouo", name), "filter-lang": "cql2-text"},
            headers={"X-Request-ID": "same"},
        )
        for name in ("ouo", "qqq")
    ]

    assert responses[0].status_code == responses[1].status_code
    assert responses[0].text.replace("ouo", "qqq") == responses[1].text


def test_access_to_a_registered_search_is_checked_for_each_caller(client):
    body = {"collections": ["ouo"]}
    registered = {
        name: client.post("/searches/register", json=body, headers=key(name)).json()["id"] for name in CALLERS
    }
    (search_id,) = set(registered.values())
    statuses = {
        name: client.get(f"/searches/{search_id}/tiles/{Z}/{X}/{Y}.png", headers=key(name)).status_code
        for name in CALLERS
    }

    assert statuses == {name: 200 if name in INTERNAL.split() else 404 for name in CALLERS}


def test_a_registered_search_without_conditions_shows_only_visible_items(client):
    search_id = client.post("/searches/register", json={}).json()["id"]
    attributions = {
        name: client.get(f"/searches/{search_id}/tiles/{Z}/{X}/{Y}.png", headers=key(name)).headers["etag"]
        for name in ("viewer", "anonymous", "viewer", "admin")
    }

    assert attributions["viewer"] == attributions["admin"] != attributions["anonymous"]


@pytest.mark.parametrize("caller", CALLERS)
def test_queryables_contain_only_those_of_visible_collections(client, dsn, caller):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pgstac, public")
        connection.execute(
            "INSERT INTO queryables (name, collection_ids, definition) VALUES "
            """('only_ouo', '{ouo}', '{"type": "string"}') ON CONFLICT DO NOTHING"""
        )
    try:
        queryables = client.get("/stac/queryables", headers=key(caller)).json()["properties"]
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM pgstac.queryables WHERE name = 'only_ouo'")

    assert ("only_ouo" in queryables) == (caller in INTERNAL.split())


@pytest.fixture(scope="module")
def two_places(dsn, storage, tmp_path_factory) -> Iterator[dict[int, tuple[float, float, float, float]]]:
    """A public asset whose two versions are at different places. Only the latest version is exposed."""
    places = {0: BOX, 1: (20.0, 40.0, 21.0, 41.0)}
    folder, assets = tmp_path_factory.mktemp("places"), Assets(dsn)
    for ordinal, box in places.items():
        edition = Edition("two-places", ordinal)
        location = stored(storage, folder, edition.cog("x.tif"), np.full((1, 64, 64), 7, np.uint8), box)
        own = [collection("two-places", box, **{"dagmaster:version_ordinal": ordinal}), item(edition, location, box)]
        assets.submit("two-places", own, ordinal=ordinal, platform=PLATFORM)
        assets.approve("two-places", ordinal, None if ordinal else "public")
    yield places
    assets.remove("two-places")


@pytest.mark.parametrize("caller", CALLERS)
def test_the_extent_of_a_collection_is_that_of_its_listed_items(client, two_places, caller):
    document = client.get("/stac/collections/two-places", headers=key(caller)).json()
    newest = client.get("/stac/collections/two-places/items/two-places-v1", headers=key(caller)).json()

    assert document["dagmaster:version_ordinal"] == 1
    assert document["extent"]["spatial"]["bbox"] == [list(two_places[1])]
    assert not any("v0" in link["href"] for link in newest["links"])


@pytest.mark.parametrize("name", STATES)
def test_access_by_asset_id_is_the_same_as_by_dataset_id(client, name):
    state = STATES[name]
    path = f"/tiles/{asset_id(name, PLATFORM)}/info?version={state.version}&rev={state.revision}"

    readers = {caller for caller in CALLERS if client.get(path, headers=key(caller)).status_code == 200}

    assert readers == set(state.readers.split())


@pytest.mark.parametrize("name", STATES)
def test_latest_is_the_latest_published_version(client, name):
    state = STATES[name]
    readers = {c for c in CALLERS if client.get(f"/tiles/{name}/info", headers=key(c)).status_code == 200}

    expected = set((state.collection_for or state.listed_for).split())
    assert readers == (set(STAFF.split()) if name == "uncleared" else expected)


@pytest.mark.parametrize("name", ["pending", "rejected", "newer-revision", "revised", "uncleared"])
def test_staff_reads_the_served_or_newest_processed_revision_by_default(client, name):
    tilejson = client.get(f"/tiles/{name}/WebMercatorQuad/tilejson.json?version=0", headers=key("reviewer")).json()

    assert tilejson["dagmaster"]["revision"] == 1
    assert tilejson["dagmaster"]["is_published"] == (name in ("newer-revision", "revised"))


def test_a_revision_that_is_not_processed_cannot_be_read(client, dsn):
    assets = Assets(dsn)
    assets.submit("running", documents("public", 0, 1), platform=PLATFORM, state="processing")
    try:
        for rev in ("", "&rev=1"):
            assert client.get(f"/tiles/running/info?version=0{rev}", headers=key("admin")).status_code == 404
    finally:
        assets.remove("running")


@pytest.mark.parametrize(
    "path",
    [
        "recipes/public/v0/r1/recipe.json",  # the options of the edition
        "cogs/job-00000000-0000-7000-8000-000000000000/v0/r1/x.tif",  # a file of a job without an asset
        "cogs/nothing/v0/r1/x.tif",
        "cogs/public/v00/r1/x.tif",
        "cogs/public/v0/r01/x.tif",
        "cogs/public/v0/r1",
        "cogs/public/x.tif",
        "other/public/v0/r1/x.tif",
        "x.tif",
        f"cogs/{asset_id('public', PLATFORM)}/v0/r1/x.tif",
        "3f1b9a52-0000-4000-8000-000000000000/part.tif",
    ],
)
def test_files_outside_of_revisions_are_not_served(client, storage, path):
    from dagmaster.storage.location import Location, Zone

    storage.put(Location(Zone.SILVER, "silver", path if path.count("/") != 3 else f"{path}/x"), b"found")

    for caller in CALLERS:
        response = client.get(f"/files/silver/silver/{path}", headers=key(caller))
        assert (response.status_code, response.json()["code"]) == (404, "file.not-found")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/tiles/dem/info", ("dem", None, None)),
        ("/tiles/dem/WebMercatorQuad/tilejson.json?version=latest&tilesize=512", ("dem", None, None)),
        ("/tiles/dem/tiles/WebMercatorQuad/1/2/3.png?version=3&rev=4-abc", ("dem", 3, 4)),
        ("/tiles/dem/info?rev=2", ("dem", None, 2)),
        ("/files/silver/silver/cogs/dem/v3/r4/a/b.tif", ("dem", 3, 4)),
        ("/files/external/public/stac/dem/v0/r1/item.json?version=9", ("dem", 0, 1)),
        ("/tiles/dem", None),
        ("/tiles/dem/info?version=-1", None),
        ("/tiles/dem/info?version=99999999999", None),
        ("/tiles/dem/info?rev=x", None),
        ("/files/silver/silver/cogs/dem/v3/x", None),
        ("/files/silver/silver/cogs/dem/v99999999999/r1/x.tif", None),
        ("/stac/collections/dem", None),
        ("/livez", None),
    ],
)
def test_the_expected_version_is_read_from_the_url(url, expected):
    path, _, query = url.partition("?")

    publication = expected_publication(path, query)

    assert publication == (ExpectedPublication(*expected) if expected else None)
