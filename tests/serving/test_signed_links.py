"""A signed link gives access to one version, in any program, until the link expires or the version is withdrawn."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psycopg
import pytest
from starlette.testclient import TestClient

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.access.links import VersionLink, sign
from dagmaster.addresses import Addresses
from dagmaster.database.assets.store import AssetStore
from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.listen import SERVING, bind
from dagmaster.operations.assets.link import make_link
from dagmaster.serving.app import create_app
from dagmaster.serving.server import MapServer
from dagmaster.settings import load
from dagmaster.storage.location import Edition, Zone
from tests.serving.assets import REVIEWER, asset_id
from tests.serving.callers import authenticate_by_name, key
from tests.serving.conftest import BOX
from tests.serving.data import collection, item, stored

pytestmark = pytest.mark.requirement("C3", "X1")

HOUR = 3600.0
BASE = "http://localhost:8003"
VIEWER = Caller("v", frozenset({Scope.VIEWER}))


@pytest.fixture(scope="module")
def app(served, storage):
    return authenticate_by_name(create_app(load(), served, storage=storage))


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def linked(assets, storage, tmp_path):
    """A dataset for official use only, as a COG and a mosaic, with a newer revision that waits for its review."""
    for revision, value in ((1, 10), (2, 20)):
        edition = Edition("linked", 0, revision)
        cog = stored(storage, tmp_path, edition.cog("a b.tif"), np.full((1, 256, 256), value, np.uint8), BOX)
        mosaic = {"mosaicjson": "0.0.3", "minzoom": 0, "maxzoom": 9, "quadkey_zoom": 0, "tiles": {"": ["a b.tif"]}}
        storage.put(storage.location(edition.mosaic(), zone=Zone.SILVER), json.dumps(mosaic).encode())
        document = item(edition, cog, BOX)
        document["assets"]["data"]["href"] = f"/files/silver/silver/{edition.cog('a%20b.tif')}"
        document["assets"]["tiles"] = {"href": f"/files/silver/silver/{edition.mosaic()}"}
        document["links"] = [
            {"rel": "tilejson", "href": "/tiles/linked/WebMercatorQuad/tilejson.json?version=0"},
            {"rel": "about", "href": "https://elsewhere.example/files/silver/x"},
        ]
        assets.submit("linked", [collection("linked", BOX), document], revision=revision)
        if revision == 1:
            assets.approve("linked", clearance="ouo")
    yield
    assets.remove("linked")


def link(dsn, dataset="linked", ordinal=0, *, caller=REVIEWER, seconds=HOUR, revision=None):
    async def create():
        async with AssetStore(dsn) as store:
            return await make_link(
                store, Addresses(BASE), dataset, ordinal, caller=caller, valid_seconds=seconds, revision=revision
            )

    return asyncio.run(create())


def value(client, token, **parameters):
    """The value at a point, or the code of the error."""
    response = client.get("/tiles/linked/point/10.5,50.5", params={"version": 0, "token": token, **parameters}).json()
    return response["values"][0] if "values" in response else response["code"]


def test_a_link_gives_access_to_its_version_only(client, served, linked):
    token = link(served).token

    assert client.get("/tiles/linked/info").json()["code"] == "asset.not-found"
    assert value(client, token) == 10
    assert value(client, token, rev=1) == 10
    assert value(client, token, rev=2) == "version.replaced"
    assert client.get(f"/tiles/linked/info?version=7&token={token}").status_code == 404
    assert client.get(f"/tiles/{asset_id('linked')}/info?version=0&token={token}").status_code == 200


def test_a_link_gives_no_access_to_the_catalogue(client, served, linked):
    token = link(served).token

    assert client.get("/stac/collections/linked", params={"token": token}).status_code == 404
    assert client.get("/stac/search", params={"token": token}).status_code == 400
    assert "linked" not in client.get("/stac/collections", params={"token": token}).text


def test_a_link_to_a_preview_gives_access_to_its_revision_only(client, served, linked):
    token = link(served, revision=2).token

    assert value(client, token, rev=2) == 20
    assert value(client, token, rev=1) == value(client, token) == "asset.not-found"
    preview = client.get("/tiles/linked/info", params={"version": 0, "rev": 2, "token": token})
    assert preview.headers["cache-control"].startswith("private")


@pytest.mark.parametrize("action", ["unpublish", "delete"])
def test_a_link_ends_when_its_version_is_withdrawn(client, served, linked, assets, action):
    token, preview = link(served).token, link(served, revision=2).token
    assert (value(client, token), value(client, preview, rev=2)) == (10, 20)

    getattr(assets, action)("linked", 0)

    assert value(client, token) == value(client, preview, rev=2) == "asset.not-found"


def test_no_link_to_an_unpublished_version_is_created(served, linked, assets):
    assets.unpublish("linked", 0)

    with pytest.raises(Conflict, match="links to it do not work"):
        link(served, revision=2)


def test_a_link_ends_when_the_clearance_is_withdrawn(client, served, linked, assets):
    token = link(served).token

    assets.clear("linked", "uncleared")

    assert value(client, token) == "asset.not-found"


def test_a_link_follows_the_approved_revision_unless_it_names_one(client, served, linked, assets):
    unpinned, pinned = link(served).token, link(served, revision=1).token

    assets.approve("linked")

    assert value(client, unpinned) == 20
    assert value(client, pinned) == "asset.not-found"


def test_an_expired_link_is_refused_as_expired(client, served, linked):
    token = link(served, seconds=-1).token

    assert value(client, token) == "link.expired"
    assert client.get("/tiles/linked/info", params={"version": 0, "token": token}).status_code == 403
    assert client.get("/files/silver/silver/cogs/linked/v0/r1/a b.tif", params={"token": token}).status_code == 403
    assert client.get("/tiles/linked/info", params={"token": token}, headers=key("viewer")).status_code == 200


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "dgl1",
        sign(VersionLink(asset_id("linked"), 0, 2**40), "nokey", "secret"),
        sign(VersionLink(asset_id("linked"), 0, 2**40), "nokey", ""),
    ],
)
def test_an_invalid_token_gives_no_access(client, served, linked, token):
    link(served)
    assert value(client, token) == "asset.not-found"
    assert client.get("/tiles/plain/info", params={"token": token}).status_code == 200, (
        "public data can be read with any token"
    )


def test_all_servers_share_one_signing_key(served, linked):
    with psycopg.connect(served, autocommit=True) as connection:
        connection.execute("DELETE FROM dagapp.signing_keys")

        async def at_once():
            async with AssetStore(served) as store:
                return await asyncio.gather(*(store.signing_key() for _ in range(4)))

        keys = asyncio.run(at_once())
        (count,) = connection.execute("SELECT count(*) FROM dagapp.signing_keys").fetchone()

    assert (len(set(keys)), count) == (1, 1)
    assert len(keys[0].secret) >= 43, "256 bits"


def test_links_end_when_their_signing_key_is_deleted(client, served, linked):
    token = link(served).token
    assert value(client, token) == 10

    with psycopg.connect(served, autocommit=True) as connection:
        connection.execute("DELETE FROM dagapp.signing_keys")

    assert value(client, token) == "asset.not-found"
    assert value(client, link(served).token) == 10


@pytest.mark.parametrize(
    ("caller", "revision"),
    [(ANONYMOUS, None), (VIEWER, 2), (REVIEWER, 9), (Caller("b", frozenset({Scope.B2B}), "local"), None)],
)
def test_a_caller_can_only_create_links_to_data_that_it_may_read(served, linked, caller, revision):
    with pytest.raises(NotFound):
        link(served, caller=caller, revision=revision)


def test_a_link_to_a_preview_is_valid_for_at_most_7_days(served, linked):
    with pytest.raises(InvalidRequest, match="7 days"):
        link(served, revision=2, seconds=8 * 24 * HOUR)
    assert link(served, seconds=80 * 24 * HOUR).token


def test_the_urls_of_a_link_work_without_changes(client, served, linked):
    for preview in (link(served), link(served, revision=2)):
        assert client.get(preview.map_url).status_code == 200
        assert client.get(preview.tilejson_url).status_code == 200
        assert abs(preview.expires_at.timestamp() - time.time() - HOUR) < 60


def test_the_token_is_in_every_url_of_a_response(client, served, linked):
    """Programs without a key follow these URLs: of TileJSON, WMTS, tilesets, STAC documents and mosaics."""
    preview = link(served)
    token = {"token": preview.token}
    tilejson = client.get(preview.tilejson_url).json()
    (tile,) = tilejson["tiles"]
    assert client.get(tile.format(z=8, x=135, y=86)).status_code == 200
    assert client.get(tile.format(z=8, x=135, y=86)).headers["cache-control"].startswith("private")

    capabilities = client.get("/tiles/linked/WMTSCapabilities.xml", params={"version": 0, **token}).text
    templates = [part.split('"')[0] for part in capabilities.split('template="')[1:]]
    assert templates
    assert all(preview.token in template for template in templates)
    filled = templates[0].replace("&amp;", "&").format(TileMatrix=8, TileCol=135, TileRow=86)
    assert client.get(filled).status_code == 200

    tilesets = client.get("/tiles/linked/tiles", params={"version": 0, **token}).json()
    hrefs = [
        entry["href"] for tileset in tilesets["tilesets"] for entry in tileset["links"] if "/tiles/" in entry["href"]
    ]
    assert hrefs
    assert all(preview.token in href for href in hrefs if "linked" in href)

    document = client.get("/stac/collections/linked/items/linked-v0", params={"version": 0, **token}).json()
    links = {entry["rel"]: entry["href"] for entry in document["links"]}
    for href in (document["assets"]["data"]["href"], links["self"], links["collection"], links["tilejson"]):
        assert client.get(href).status_code == 200, href
    assert links["about"] == "https://elsewhere.example/files/silver/x"

    mosaic = client.get("/files/silver/silver/mosaics/linked/v0/r1/mosaic.json", params=token).json()
    assert client.get(mosaic["asset_prefix"] + mosaic["tiles"][""][0]).status_code == 200


def test_items_of_a_preview_can_be_paged(client, served, linked):
    preview = link(served, revision=2)
    page = client.get("/stac/collections/linked/items", params={"version": 0, "rev": 2, "token": preview.token}).json()

    (feature,) = page["features"]
    assert feature["properties"]["dagmaster:revision"] == 2
    query = parse_qs(urlsplit(feature["assets"]["data"]["href"]).query)
    assert query == {"token": [preview.token]}
    assert "next" not in {entry["rel"] for entry in page["links"]}


@pytest.fixture
def port(app):
    """The port of a real server, for programs such as gdalinfo."""
    bound = bind("127.0.0.1", 0, may_expose=False, endpoint=SERVING)
    server = MapServer(app, bound)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.stop()
    thread.join(20)


def gdalinfo(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "NO_PROXY": "*",
        "GDAL_HTTP_TIMEOUT": "20",
        "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
        "GDAL_ENABLE_WMTS_CACHE": "NO",
        **environment,
    }
    return subprocess.run(
        ["gdalinfo", "-json", "-stats", "--config", "GDAL_PAM_ENABLED", "NO", source],
        capture_output=True,
        text=True,
        timeout=60,
        env=variables,
        check=False,
    )


@pytest.mark.skipif(shutil.which("gdalinfo") is None, reason="GDAL's programs are not installed")
def test_gdal_reads_with_a_key_in_a_header_and_with_a_link(port, served, linked):
    cog = f"/vsicurl/{port}/files/silver/silver/cogs/linked/v0/r1/a%20b.tif"
    token = link(served).token

    refused = gdalinfo(cog)
    by_key = gdalinfo(cog, GDAL_HTTP_HEADERS="X-API-Key: viewer")
    by_link = gdalinfo(f"{cog}?token={token}")
    by_wmts = gdalinfo(f"WMTS:{port}/tiles/linked/WMTSCapabilities.xml?version=0&token={token}")

    assert refused.returncode != 0
    assert [json.loads(each.stdout)["bands"][0]["maximum"] for each in (by_key, by_link)] == [10, 10]
    assert json.loads(by_wmts.stdout)["size"][0] > 0, by_wmts.stderr
