"""The STAC API under its prefix, for reading."""

import psycopg
import pytest

from dagmaster.database.queries import all_queries, numbered
from dagmaster.serving import stac

pytestmark = pytest.mark.requirement("C1")


def test_every_link_of_the_landing_page_answers(client):
    front = client.get("/stac/").json()

    assert front["id"] == "dagmaster"
    rels = {link["rel"] for link in front["links"]}
    assert {"self", "root", "data", "search", "conformance", "service-desc", "service-doc"} <= rels
    for link in front["links"]:
        assert link["href"].startswith("http://localhost:8003/stac"), link
        answer = client.request(link.get("method", "GET"), link["href"], **({"json": {}} if "method" in link else {}))
        assert answer.status_code == 200, link


def test_collections_and_items_link_to_each_other(client):
    collection = client.get("/stac/collections/plain").json()
    items = client.get("/stac/collections/plain/items").json()

    assert collection["title"] == "The plain"
    assert [item["id"] for item in items["features"]] == ["plain-v0"]
    for link in [*collection["links"], *items["features"][0]["links"]]:
        assert client.get(link["href"]).status_code == 200, link


def test_search_selects_by_place_and_filter(client):
    inside = client.get("/stac/search?bbox=10.1,50.1,10.2,50.2&collections=tiled").json()
    later = client.post(
        "/stac/search",
        json={
            "collections": ["dem"],
            "filter-lang": "cql2-json",
            "filter": {"op": "=", "args": [{"property": "dagmaster:version_ordinal"}, 1]},
        },
    ).json()

    assert [item["id"] for item in inside["features"]] == ["tiled-v0-r1c0"]
    assert [item["id"] for item in later["features"]] == ["dem-v1"]


@pytest.mark.parametrize("body", ["[]", "null", "7", '"all"'])
def test_a_search_that_is_no_object_is_refused(client, body):
    answer = client.post("/stac/search", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("box", ["nan,50,11,51", "10,50,inf,51", "10,-Infinity,11,51", "10,50,0,11,1e999,1"])
def test_a_box_that_is_not_of_numbers_is_refused(client, box):
    answers = [
        client.get(f"/stac/search?bbox={box}"),
        client.get(f"/stac/collections/plain/items?bbox={box}"),
        client.get(f"/stac/collections?bbox={box}"),
        client.post(
            "/stac/search",
            content=f'{{"bbox": [{box.replace("nan", "NaN").replace("inf", "Infinity")}]}}',
            headers={"Content-Type": "application/json"},
        ),
    ]

    for answer in answers:
        assert answer.status_code == 400, answer.text


def test_a_page_has_an_end_whatever_is_asked_for(client, monkeypatch):
    monkeypatch.setattr(stac, "MAX_ITEMS", 1)

    pages = [
        client.get("/stac/search?limit=1000000").json(),
        client.get("/stac/collections/tiled/items?limit=1000000").json(),
        client.post("/stac/search", json={"limit": 1_000_000}).json(),
    ]

    for page in pages:
        assert len(page["features"]) == 1
        assert [link for link in page["links"] if link["rel"] == "next"]


def test_what_is_catalogued_links_to_its_map(client):
    def maps(found):
        return [link["href"] for link in found["links"] if link["rel"] == "alternate"]

    item = client.get("/stac/collections/dem/items/dem-v0").json()
    listed = {one["id"]: one for one in client.get("/stac/collections").json()["collections"]}

    assert maps(client.get("/stac/collections/dem").json()) == ["http://localhost:8003/tiles/dem/map"]
    assert maps(listed["tiled"]) == ["http://localhost:8003/tiles/tiled/map"]
    assert maps(item) == ["http://localhost:8003/tiles/dem/map?version=0"]
    assert client.get(maps(item)[0]).status_code == 200


def item_answers(client):
    """The same item, however it is asked for."""
    wanted = {"collections": ["across"], "ids": ["across-v0-a"]}
    return [
        client.get("/stac/collections/across/items/across-v0-a").json(),
        *(one for one in client.get("/stac/collections/across/items").json()["features"] if one["id"] == "across-v0-a"),
        *client.get("/stac/search?collections=across&ids=across-v0-a").json()["features"],
        *client.post("/stac/search", json=wanted).json()["features"],
        *client.post("/stac/search", json={**wanted, "fields": {"exclude": ["geometry"]}}).json()["features"],
    ]


def test_stored_addresses_of_the_server_begin_with_the_requested_host(client):
    answers = item_answers(client)

    assert len(answers) == 5
    for found in answers:
        links = {link["rel"]: link["href"] for link in found["links"]}
        assert found["assets"]["data"]["href"].startswith("http://localhost:8003/files/silver/")
        assert client.head(found["assets"]["data"]["href"]).status_code == 200
        assert links["tilejson"] == "http://localhost:8003/tiles/across/WebMercatorQuad/tilejson.json"
        assert found["assets"]["foreign"]["href"] == "http://elsewhere.example/files/silver/x.tif"
        assert links["about"] == "http://127.0.0.1:9/notes/tiles/"


@pytest.mark.parametrize("query", ["", "?fields=id,assets,links"])
def test_stored_addresses_of_collections_begin_with_the_requested_host(client, query):
    listed = {one["id"]: one for one in client.get(f"/stac/collections{query}").json()["collections"]}

    for found in (listed["across"], client.get("/stac/collections/across").json()):
        assert found["assets"]["mosaic"]["href"].startswith("http://localhost:8003/files/silver/")


def test_an_interval_has_a_datetime_of_null(client):
    for found in item_answers(client):
        assert found["properties"]["datetime"] is None, found
        assert found["properties"]["start_datetime"].startswith("2024-01-01")


def test_a_datetime_that_is_not_asked_for_is_not_null(client):
    (found,) = client.get("/stac/search?ids=plain-v0&fields=id,properties.title").json()["features"]
    (without,) = client.get("/stac/search?ids=plain-v0&fields=-properties.datetime").json()["features"]

    assert "datetime" not in found["properties"]
    assert "datetime" not in without["properties"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/stac/collections"),
        ("PUT", "/stac/collections/plain"),
        ("DELETE", "/stac/collections/plain"),
        ("POST", "/stac/collections/plain/items"),
        ("DELETE", "/stac/collections/plain/items/plain-v0"),
    ],
)
def test_nothing_is_written(client, method, path):
    assert client.request(method, path, json={}).status_code in (404, 405)
    assert client.get("/stac/collections/plain/items/plain-v0").status_code == 200


def test_environment_variables_have_no_effect(monkeypatch, served, storage):
    from starlette.testclient import TestClient

    from dagmaster.serving.app import create_app
    from dagmaster.settings import load

    monkeypatch.setenv("ENABLE_TRANSACTIONS_EXTENSIONS", "true")
    monkeypatch.setenv("ROOT_PATH", "/elsewhere")
    monkeypatch.setenv("PREFIX_PATH", "/elsewhere")

    with TestClient(create_app(load(), served, storage=storage), base_url="http://localhost") as client:
        assert client.get("/stac/collections/plain").status_code == 200
        assert client.post("/stac/collections", json={}).status_code in (404, 405)
        assert "elsewhere" not in client.get("/stac/").text


@pytest.mark.parametrize("name", sorted(name for name in all_queries() if name.startswith("served_")))
def test_every_statement_fits_the_catalogue(served, name):
    text, names = numbered(name)

    with psycopg.connect(served, autocommit=True) as connection:
        connection.execute(f"PREPARE it AS {text}")
        types = connection.execute("SELECT parameter_types FROM pg_prepared_statements").fetchone()[0]

    assert len(types) == len(names)


@pytest.mark.parametrize(
    "path",
    [
        "/stac/collections/a%00b",
        "/stac/collections/plain/items/a%00b",
        "/stac/collections/plain/items?limit=-1",
        "/stac/collections?limit=x",
        "/stac/search?bbox=1,2",
        "/stac/search?bbox=a,b,c,d",
        "/stac/search?bbox=10,50,9,40",
        "/stac/search?datetime=yesterday",
        "/stac/search?ids=%00",
        "/stac/search?token=next:nonsense",
        "/stac/search?filter=%3B%20DROP%20TABLE%20x",
        "/stac/search?filter=id%20=%20%27%00%27",
        "/stac/search?filter-lang=cql2-json&filter=%7B",
        "/stac/search?sortby=nothing",
        "/stac/search?fields=-id,-links",
        "/stac/search?query=%7B",
        "/stac/collections/%2e%2e/items",
        "/stac/nothing",
    ],
)
def test_a_strange_request_is_not_a_server_error(client, path):
    assert client.get(path).status_code < 500, client.get(path).text
