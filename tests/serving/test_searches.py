"""Mosaics of searches: the id contains the search, and a tile shows the items that the search finds there."""

import base64
import json
import zlib
from contextlib import suppress
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pytest
from morecantile import tms

from dagmaster.errors import NotFound
from dagmaster.serving import searches
from dagmaster.storage.location import Edition
from tests.serving.conftest import load_again, remove_item
from tests.serving.data import decoded, item, stored

pytestmark = pytest.mark.requirement("C2")

GRID = tms.get("WebMercatorQuad")
ZOOM = 9
# `tiled`: 10 in the north-west, 20 north-east, 30 south-west, 40 south-east; `plain`: 100 everywhere
NORTH_WEST = GRID.tile(10.25, 50.75, ZOOM)


@pytest.fixture
def overlapping(served, storage, tmp_path):
    """Two items that cover the same area: the older has data everywhere, the newer only in its western half."""
    box = (10.0, 50.5, 10.5, 51.0)
    half = np.full((1, 256, 256), 200, np.uint8)
    half[:, :, 128:] = 0
    older, newer = Edition("tiled", 7), Edition("tiled", 8)
    cogs = [
        stored(storage, tmp_path, older.cog("o.tif"), np.full((1, 256, 256), 50, np.uint8), box, nodata=0),
        stored(storage, tmp_path, newer.cog("n.tif"), half, box, nodata=0),
    ]
    items = [
        item(older, cogs[0], box, "-o", datetime="2025-01-01T00:00:00Z"),
        item(newer, cogs[1], box, "-n", datetime="2025-02-01T00:00:00Z"),
    ]
    load_again(served, *items)
    yield [one["id"] for one in items]
    for one in items:
        with suppress(psycopg.Error):  # a test removed it
            remove_item(served, one["id"])


def register(client, **search):
    answer = client.post("/searches/register", json=search)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def tile_of(client, search_id, tile=NORTH_WEST, **parameters):
    return client.get(f"/searches/{search_id}/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.png", params=parameters)


def value_at(answer, lon, lat, tile=NORTH_WEST):
    """The value that a tile shows at a position; None where it is transparent."""
    assert answer.status_code == 200, answer.text
    picture, bounds, (x, y) = decoded(answer.content), GRID.xy_bounds(tile), GRID.xy(lon, lat)
    row = int((bounds.top - y) / (bounds.top - bounds.bottom) * 256)
    column = int((x - bounds.left) / (bounds.right - bounds.left) * 256)
    return int(picture[0][row, column]) if picture[-1][row, column] else None


WEST, EAST = (10.2, 50.75), (10.4, 50.75)


def displayed_value(client, search_id, position):
    tile = GRID.tile(*position, ZOOM)
    return value_at(tile_of(client, search_id, tile), *position, tile)


def test_the_newest_item_with_data_is_shown(client, overlapping):
    search_id = register(client, ids=overlapping)

    assert displayed_value(client, search_id, WEST) == 200
    assert displayed_value(client, search_id, EAST) == 50


def test_the_order_of_the_search_decides_which_item_is_on_top(client, overlapping):
    search_id = register(client, ids=overlapping, sortby=[{"field": "datetime", "direction": "asc"}])

    assert (displayed_value(client, search_id, WEST), displayed_value(client, search_id, EAST)) == (50, 50)


def test_the_highest_of_several_versions_with_the_same_time_is_shown(client, served, storage, tmp_path):
    box, items = (10.0, 50.5, 10.5, 51.0), []
    for ordinal in (9, 10, 2):
        edition = Edition("tiled", ordinal)
        cog = stored(storage, tmp_path, edition.cog("v.tif"), np.full((1, 256, 256), 10 * ordinal, np.uint8), box)
        items.append(item(edition, cog, box, "-v", deprecated=True) if ordinal == 2 else item(edition, cog, box, "-v"))
    load_again(served, *items)
    ids = [one["id"] for one in items]
    valid = {"op": "isNull", "args": [{"property": "deprecated"}]}
    try:
        assert displayed_value(client, register(client, ids=ids), WEST) == 100
        assert displayed_value(client, register(client, ids=ids[:1] + ids[2:], filter=valid), WEST) == 90
        assert tile_of(client, register(client, ids=ids[2:], filter=valid)).status_code == 404
    finally:
        for item_id in ids:
            remove_item(served, item_id)


@pytest.mark.parametrize(
    "search",
    [
        {"filter": {"op": "=", "args": [{"property": "dagmaster:version_ordinal"}, 7]}, "filter-lang": "cql2-json"},
        {"query": {"dagmaster:version_ordinal": {"eq": 7}}},
        {"datetime": "2025-01-01T00:00:00Z/2025-01-15T00:00:00Z"},
        {
            "query": {"dagmaster:version_ordinal": {"gte": 7}},
            "filter": {"op": "<", "args": [{"property": "dagmaster:version_ordinal"}, 8]},
        },
    ],
)
def test_a_filter_selects_the_items(client, overlapping, search):
    search_id = register(client, collections=["tiled"], **search)

    assert (displayed_value(client, search_id, WEST), displayed_value(client, search_id, EAST)) == (50, 50)


def test_all_items_that_touch_a_tile_are_shown_and_others_are_not(client):
    """Compared with the dataset's own mosaic, pixel by pixel."""
    search_id = register(client, collections=["tiled"])
    for tile in GRID.tiles(10.01, 50.01, 10.99, 50.99, ZOOM):
        of_dataset = client.get(f"/tiles/tiled/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.png")
        assert np.array_equal(decoded(tile_of(client, search_id, tile).content), decoded(of_dataset.content))


def test_a_box_of_the_search_selects_items_but_does_not_cut_them(client):
    search_id = register(client, collections=["tiled"], bbox=[10.1, 50.6, 10.2, 50.7])

    assert displayed_value(client, search_id, (10.45, 50.95)) == 10
    outside = GRID.tile(10.9, 50.1, ZOOM + 2)
    assert tile_of(client, search_id, outside).status_code == 404


def test_the_render_of_the_catalogue_is_used_unless_the_request_sets_one(client):
    search_id = register(client, ids=["scene-v0"])
    tile = GRID.tile(10.5, 50.5, ZOOM)
    default = decoded(tile_of(client, search_id, tile).content)
    own = decoded(tile_of(client, search_id, tile, bidx=4, rescale="0,8000", assets="data").content)
    of_expression = decoded(tile_of(client, search_id, tile, expression="b4-b1", rescale="0,6000").content)

    assert [int(band.max()) for band in default[:3]] == [63, 127, 191]
    assert int(own[0].max()) == 127
    assert int(of_expression[0].max()) == 127


@pytest.mark.parametrize(
    ("search", "tile"), [({"collections": ["plain"]}, GRID.tile(-60, -20, ZOOM)), ({"ids": ["nonsense"]}, NORTH_WEST)]
)
def test_a_tile_without_items_is_not_found(client, search, tile):
    of_search = tile_of(client, register(client, **search), tile)
    of_dataset = client.get(f"/tiles/plain/tiles/WebMercatorQuad/{ZOOM}/0/0.png")

    assert (of_search.status_code, of_search.json()["code"]) == (404, "tiles.outside")
    assert of_search.json()["code"] == of_dataset.json()["code"]
    assert of_search.headers["content-type"] == "application/problem+json"


def test_links_and_tilejson_lead_to_tiles(client):
    registered = client.post("/searches/register", json={"collections": ["tiled"], "bbox": None}).json()
    hrefs = {link["rel"]: link["href"] for link in registered["links"]}
    info = client.get(hrefs["metadata"]).json()
    tilejson = client.get(hrefs["tilejson"], params={"rescale": "0,100", "tile_format": "png"}).json()
    short = client.get(f"/searches/{registered['id']}/tilejson.json").json()
    (template,) = tilejson["tiles"]
    answer = client.get(template.format(z=ZOOM, x=NORTH_WEST.x, y=NORTH_WEST.y))

    assert info["search"] == {
        "hash": registered["id"],
        "search": {"collections": ["tiled"]},
        "metadata": {"type": "mosaic"},
    }
    assert tilejson["bounds"] == [10.0, 50.0, 11.0, 51.0]
    assert tilejson["minzoom"] <= ZOOM
    assert tilejson["raster_layers"][0]["data_type"] == "uint8"
    assert "rescale=0,100" in template
    assert answer.status_code == 200
    assert urlsplit(short["tiles"][0]).path == urlsplit(template).path.removesuffix(".png")


@pytest.mark.parametrize("suffix", ["", ".png", ".jpg"])
def test_paths_without_a_grid_use_web_mercator(client, suffix):
    search_id = register(client, collections=["plain"])
    name = f"{ZOOM}/{NORTH_WEST.x}/{NORTH_WEST.y}{suffix}"
    long, short = (client.get(f"/searches/{search_id}/{path}/{name}") for path in ("tiles/WebMercatorQuad", "tiles"))

    assert (long.status_code, short.status_code) == (200, 200)
    assert long.content == short.content


def test_other_grids_have_tiles_too(client):
    grid = tms.get("WorldCRS84Quad")
    tile = grid.tile(10.25, 50.75, 8)
    path = f"/searches/{register(client, collections=['tiled'])}/tiles/WorldCRS84Quad/8/{tile.x}/{tile.y}.png"

    assert np.array_equal(
        decoded(client.get(path).content),
        decoded(client.get(f"/tiles/tiled/tiles/WorldCRS84Quad/8/{tile.x}/{tile.y}.png").content),
    )


def test_responses_are_cached_for_seconds_and_revalidated(client, overlapping, served):
    search_id = register(client, ids=overlapping)
    first = tile_of(client, search_id)
    path = f"/searches/{search_id}/tiles/WebMercatorQuad/{ZOOM}/{NORTH_WEST.x}/{NORTH_WEST.y}.png"
    known = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=known)
    remove_item(served, overlapping[1])
    changed = client.get(path, headers=known)

    assert "max-age=10" in first.headers["cache-control"]
    assert (again.status_code, changed.status_code) == (304, 200)
    assert client.head(path).status_code == 200


def test_equal_searches_have_the_same_id_and_nothing_is_written(client, served):
    with psycopg.connect(served) as connection:
        count = "SELECT count(*) FROM pgstac.searches"
        before = connection.execute(count).fetchone()
        one = register(client, collections=["plain"], bbox=[10, 50, 11, 51])
        other = register(client, bbox=[10, 50, 11, 51], collections=["plain"], ids=None)
        tile_of(client, one)
        client.post("/stac/search", json={"ids": ["a-search-that-was-never-done"]})

        assert one == other
        assert connection.execute(count).fetchone() == before


def packed(content, letter="a"):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return letter + base64.urlsafe_b64encode(zlib.compress(text, 9)).decode().rstrip("=")


VALID = packed({"collections": ["plain"]})
HOSTILE = {
    "empty": "a",
    "truncated": VALID[:-5],
    "one character missing": VALID[:-1],
    "extended": VALID + "AAAA",
    "other letter": "b" + VALID[1:],
    "no letter": VALID[1:],
    "bomb": packed(b'{"ids":["' + b"x" * 2_000_000 + b'"]}'),
    "bomb of spaces": packed(b" " * 1_000_000 + b"{}"),
    "too long": "a" + "A" * 5000,
    "not compressed": "a" + base64.urlsafe_b64encode(b'{"ids":["x"]}').decode(),
    "not an object": packed([1]),
    "not JSON": packed(b"{"),
    "deep": packed(b"[" * 9000),
    "not base64": "a%%%",
    "other alphabet": "a++++",
    "not ASCII": "aé※",
    "unknown field": packed({"collections": ["plain"], "conf": {"nohydrate": False}}),
    "limit": packed({"limit": 100_000}),
}


@pytest.mark.parametrize("search_id", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_search_id_is_not_found(client, search_id):
    quoted = search_id.replace("%", "%25")
    paths = ("info", "tilejson.json", f"tiles/{ZOOM}/{NORTH_WEST.x}/{NORTH_WEST.y}")
    for path in paths:
        answer = client.get(f"/searches/{quoted}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "search.not-found"), path
    with pytest.raises(NotFound):
        searches.decode(search_id)


INVALID = {
    "bbox": {"bbox": [1, 2]},
    "both areas": {"bbox": [1, 2, 3, 4], "intersects": {"type": "Point", "coordinates": [1, 2]}},
    "datetime": {"datetime": "yesterday"},
    "operator": {"filter": {"op": "explode", "args": [1, 2]}},
    "text": {"filter": "id = 'x'"},
    "types": {"collections": "plain"},
    "zero": {"ids": ["\0"]},
    "query": {"query": {"id": {"explode": 1}}},
    "sort": {"sortby": [{"field": "id", "direction": "sideways"}]},
}


def deep(levels):
    document = {"op": "=", "args": [{"property": "id"}, "x"]}
    for _ in range(levels):
        document = {"op": "not", "args": [document]}
    return {"filter": document}


@pytest.mark.parametrize("search", [*INVALID.values(), deep(200)], ids=[*INVALID, "deep"])
def test_an_invalid_search_is_refused_when_it_is_registered_and_when_it_is_used(client, search):
    refused = [client.post("/searches/register", json=search), tile_of(client, packed(search))]
    refused.append(client.get(f"/searches/{packed(search)}/tilejson.json"))

    for answer in refused:
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("search", "code"),
    [
        ({"limit": 5}, "search.no-field"),
        ({"collections": ["plain"], "filter-lang": "cql2-text"}, "search.no-field"),
        ({"ids": [f"{n * 7919 % 100_003}-{n * 104_729 % 99_991}" for n in range(3000)]}, "search.too-large"),
        ({"ids": ["x" * 30_000]}, "search.too-large"),
        ({"bbox": [10**30, 0, 1, 1]}, "request.invalid"),
    ],
)
def test_searches_that_an_id_cannot_contain_are_refused(client, search, code):
    answer = client.post("/searches/register", json=search)

    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_the_deepest_filter_that_can_be_registered_can_be_used(client):
    """Tiles add a condition to the filter, which must not exceed the limit because of that."""
    statuses = {levels: client.post("/searches/register", json=deep(levels)).status_code for levels in range(20, 34)}
    assert set(statuses.values()) == {200, 400}
    deepest = max(levels for levels, status in statuses.items() if status == 200)

    assert tile_of(client, register(client, **deep(deepest), ids=["plain-v0"])).status_code == 200


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"version": "0"}, "tiles.no-parameter"),
        ({"rev": "1"}, "tiles.no-parameter"),
        ({"assets": "other"}, "tiles.bad-parameter"),
        ({"bidx": "9"}, "tiles.no-band"),
        ({"tilesize": "4096"}, "tiles.bad-parameter"),
    ],
)
def test_parameters_are_limited_like_those_of_dataset_tiles(client, parameters, code):
    answer = tile_of(client, register(client, collections=["plain"]), **parameters)

    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_items_with_different_bands_need_a_selection_of_bands(client):
    search_id = register(client, ids=["scene-v0", "plain-v0"], sortby=[{"field": "id", "direction": "asc"}])
    tile = GRID.tile(10.9, 50.9, 7)  # the tile is partly outside the first item, so that both are read
    mixed, selected = tile_of(client, search_id, tile), tile_of(client, search_id, tile, bidx=1, rescale="0,4000")

    assert (mixed.status_code, mixed.json()["code"]) == (422, "mosaic.mixed-bands")
    assert selected.status_code == 200


def test_items_with_files_on_other_servers_are_refused(client, served):
    foreign = item(Edition("plain", 5), _location(), (10.0, 50.0, 11.0, 51.0), "-foreign")
    foreign["assets"]["data"]["href"] = "http://elsewhere.example/secret.tif"
    load_again(served, foreign)
    try:
        answer = tile_of(client, register(client, ids=[foreign["id"]]))
    finally:
        remove_item(served, foreign["id"])

    assert (answer.status_code, answer.json()["code"]) == (422, "tiles.elsewhere")


def test_items_without_an_image_are_left_out(client, served):
    table = item(Edition("plain", 6), _location(), (10.0, 50.0, 11.0, 51.0), "-table", datetime="2026-01-01T00:00:00Z")
    table["assets"]["data"]["type"] = "application/vnd.apache.parquet"
    load_again(served, table)
    try:
        answer = tile_of(client, register(client, ids=[table["id"], "plain-v0"]))
    finally:
        remove_item(served, table["id"])

    assert value_at(answer, *WEST) == 100


def _location():
    from dagmaster.storage.location import Location, Zone

    return Location(Zone.SILVER, "silver", "cogs/plain/v0/r1/plain.tif")


def test_a_tile_reads_a_limited_number_of_items(client, monkeypatch):
    search_id = register(client, collections=["tiled"])
    monkeypatch.setattr(searches, "MAX_ITEMS", 1)
    whole = GRID.tile(10.5, 50.5, 6)
    picture = decoded(tile_of(client, search_id, whole).content)

    assert len({int(v) for v in np.unique(picture[0][picture[-1] > 0])}) == 1


def test_the_routes_are_in_the_openapi_document(client):
    paths = client.get("/openapi.json").json()["paths"]

    assert "post" in paths["/searches/register"]
    for path in ("info", "tilejson.json", "tiles/{z}/{x}/{y}", "tiles/{tileMatrixSetId}/{z}/{x}/{y}.{format}"):
        assert "get" in paths[f"/searches/{{search_id}}/{path}"]
