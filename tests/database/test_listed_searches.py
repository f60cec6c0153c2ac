"""A search in the collections that a caller may see returns the same pages as pgSTAC, forwards and backwards."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row
from tests.conftest import fresh_database

pytestmark = pytest.mark.requirement("C2", "C3")

Json = dict[str, Any]
COLLECTIONS = [f"c{number:02}" for number in range(40)]
LISTED = COLLECTIONS[::2]  # more than one part of the query
SEARCHES: list[Json] = [
    {},
    {"limit": 7},
    {"limit": 7, "sortby": [{"field": "id", "direction": "asc"}]},
    {"limit": 5, "sortby": [{"field": "properties.gsd", "direction": "desc"}]},
    {"limit": 7, "bbox": [10, 40, 25, 50]},
    {"limit": 7, "datetime": "2024-02-01T00:00:00Z/2024-03-01T00:00:00Z"},
    {"limit": 7, "filter-lang": "cql2-json", "filter": {"op": "<", "args": [{"property": "gsd"}, 20]}},
    {
        "limit": 7,
        "filter-lang": "cql2-json",
        "filter": {
            "op": "or",
            "args": [{"op": "=", "args": [{"property": "gsd"}, 3]}, {"op": "=", "args": [{"property": "gsd"}, 5]}],
        },
    },
    {"limit": 7, "ids": ["c00-0", "c01-0", "c02-1"]},
    {"limit": 3, "fields": {"include": ["id", "properties.gsd"]}},
]


@pytest.fixture(scope="module")
def connection(cluster: Any, catalog_template: str) -> Iterator[psycopg.Connection]:
    with fresh_database(cluster, catalog_template) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pgstac, public")
        for number, name in enumerate(COLLECTIONS):
            connection.execute("SELECT create_collection(%s::jsonb)", [json.dumps(collection(name))])
            for part in range(3):
                connection.execute("SELECT create_item(%s::jsonb)", [json.dumps(item(name, number, part))])
        yield connection


def collection(name: str) -> Json:
    extent = {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}}
    return {"type": "Collection", "stac_version": "1.1.0", "id": name, "description": name, "license": "other"} | {
        "links": [],
        "extent": extent,
        "item_assets": {"data": {"type": "image/tiff"}},
    }


def item(name: str, number: int, part: int) -> Json:
    west, south = number % 30, 40 + part * 4
    ring = [[west, south], [west + 1, south], [west + 1, south + 1], [west, south + 1], [west, south]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": f"{name}-{part}",
        "collection": name,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, south, west + 1, south + 1],
        "properties": {"datetime": f"2024-0{part + 1}-{number % 5 + 1:02}T00:00:00Z", "gsd": number % 7 * 5 + part},
        "links": [],
        "assets": {"data": {"href": f"/{name}/{part}", "type": "image/tiff"}},
    }


def pages(connection: psycopg.Connection, statement: str, search: Json, rel: str = "next") -> list[Json]:
    """All pages of a search, in one direction."""
    search = {**search, "conf": {"nohydrate": True}, "collections": LISTED}
    items: list[Json] = []
    while True:
        values = {"search": json.dumps(search), "listed": LISTED}
        (page,) = connection.cursor(row_factory=tuple_row).execute(statement, values).fetchone()
        items.append(page)
        tokens = [link["href"].partition("token=")[2] for link in page["links"] if link["rel"] == rel]
        if not tokens:
            return items
        search["token"] = tokens[0]


PGSTAC = "SELECT search(%(search)s::jsonb)"
OURS = "SELECT dagapp.search_listed(%(search)s::jsonb, %(listed)s)"


@pytest.mark.parametrize("search", SEARCHES, ids=json.dumps)
def test_pages_are_the_same_as_those_of_pgstac(connection: psycopg.Connection, search: Json) -> None:
    theirs, ours = (pages(connection, statement, search) for statement in (PGSTAC, OURS))

    assert [page["features"] for page in ours] == [page["features"] for page in theirs]
    assert [page["numberReturned"] for page in ours] == [len(page["features"]) for page in theirs]
    assert sum(len(page["features"]) for page in ours) > 0


def test_the_links_to_previous_pages_lead_to_the_same_pages(connection: psycopg.Connection) -> None:
    search = {"limit": 7}
    forwards = pages(connection, OURS, search)
    (last,) = [link["href"].partition("token=")[2] for link in forwards[-1]["links"] if link["rel"] == "prev"]

    backwards = pages(connection, OURS, {**search, "token": last}, rel="prev")

    assert [page["features"] for page in backwards] == [page["features"] for page in forwards[-2::-1]]


def test_a_search_in_no_collection_has_no_results(connection: psycopg.Connection) -> None:
    (page,) = connection.execute("SELECT dagapp.search_listed('{}', '{}')").fetchone()

    assert (page["features"], page["links"], page["numberReturned"]) == ([], [], 0)


def test_partitions_of_other_collections_are_not_read(connection: psycopg.Connection) -> None:
    """So a filter that would fail for items of other collections does no harm."""
    connection.execute("SELECT create_collection(%s::jsonb)", [json.dumps(collection("hidden"))])
    connection.execute("SELECT create_item(%s::jsonb)", [json.dumps(item("hidden", 1, 0))])
    (table,) = connection.execute("SELECT '_items_' || key FROM collections WHERE id = 'hidden'").fetchone()
    reads = f"SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_xact_all_tables WHERE relname = '{table}'"

    with connection.transaction():
        (before,) = connection.execute(reads).fetchone()
        connection.execute(OURS, {"search": "{}", "listed": LISTED})
        (after,) = connection.execute(reads).fetchone()

    assert after == before
