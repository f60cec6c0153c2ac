"""A catalogue and a storage with a few datasets, and a map server for them.
They are created once, because the tests do not change them.

plain   one band of bytes, everywhere 100                    v0
dem     heights from 0 to 2000, a corner without data        v0, v1
scene   16 bits, four bands of which the last is infrared    v0
tiled   four COGs of 10, 20, 30, 40 and their mosaic         v0
grown   a COG of 30 and its mosaic, east of an older version with one of 10    v0, v1, both tiled
across  two COGs of 10 and 20 at the antimeridian, and their mosaic; catalogued when the server had another port    v0
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from pypgstac.db import PgstacDB
from pypgstac.load import Loader, Methods
from starlette.testclient import TestClient

from dagmaster.bbox import BBox
from dagmaster.local.embedded import Cluster
from dagmaster.serving.app import create_app
from dagmaster.settings import load
from dagmaster.stac.versions import joined
from dagmaster.storage.location import Edition, Zone
from dagmaster.storage.zones import Storage, open_storage
from tests.conftest import fresh_database
from tests.serving.assets import Assets
from tests.serving.data import FORMER, PUBLIC, collection, href, item, stored
from tests.web.conftest import plain_logs

NODATA = -9999.0
BOX = BBox(10.0, 50.0, 11.0, 51.0)


@pytest.fixture(scope="session")
def catalogue(cluster: Cluster, catalog_template: str) -> Iterator[str]:
    """The address of a database with pgSTAC."""
    with fresh_database(cluster, catalog_template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return open_storage(load(storage_folder=tmp_path_factory.mktemp("storage")))


@pytest.fixture(scope="session")
def served(catalogue: str, storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the database with all datasets."""
    folder = tmp_path_factory.mktemp("cogs")
    for make in (_plain, _dem, _scene, _tiled, _grown, _across):
        Assets(catalogue).publish(*make(storage, folder))
    storage.put(storage.location("secret.tif", zone=Zone.BRONZE), b"raw data")
    storage.put(storage.location("stac/plain/v0/r1/note.html", zone=Zone.SILVER), b"<script>alert(1)</script>")
    storage.put(storage.location("3f1b9a52-0000-4000-8000-000000000000/part.tif", zone=Zone.SILVER), b"intermediate")
    return catalogue


@pytest.fixture(scope="session")
def app(served: str, storage: Storage):
    return create_app(load(), served, storage=storage)


@pytest.fixture(scope="session")
def running(app) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://localhost:8003") as client:
        yield client


@pytest.fixture
def client(running: TestClient) -> TestClient:
    """A client of the map server, whose caches are empty."""
    running.app.state.services.resolver.clear()
    return running


@pytest.fixture
def assets(served: str) -> Assets:
    return Assets(served)


def load_again(dsn: str, *items: dict) -> None:
    with PgstacDB(dsn=dsn) as database:
        Loader(db=database).load_items(iter(items), insert_mode=Methods.upsert)


def remove_item(dsn: str, item_id: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pgstac, public")
        connection.execute("SELECT pgstac.delete_item(%s)", [item_id])


def _plain(storage: Storage, folder: Path):
    edition = Edition("plain")
    cog = stored(storage, folder, edition.cog("plain.tif"), np.full((1, 512, 512), 100, np.uint8), BOX)
    return collection("plain", BOX), [item(edition, cog, BOX)]


def _dem(storage: Storage, folder: Path):
    heights = np.linspace(0, 2000, 600, dtype=np.float32)[None, None, :].repeat(600, axis=1)
    heights[:, :50, :50] = NODATA
    renders = {
        "default": {"assets": ["data"], "rescale": [[0, 2000]], "colormap_name": "terrain", "resampling": "bilinear"}
    }
    band = {"name": "b1", "data_type": "float32", "statistics": {"minimum": 0, "maximum": 2000}}
    items = []
    for ordinal in (0, 1):
        edition = Edition("dem", ordinal)
        pixels = np.where(heights == NODATA, NODATA, heights + ordinal).astype(np.float32)
        cog = stored(storage, folder, edition.cog("dem.tif"), pixels, BOX, nodata=NODATA)
        items.append(item(edition, cog, BOX, bands=[band], renders=renders))
    return collection("dem", BOX), items


def _scene(storage: Storage, folder: Path):
    pixels = np.stack([np.full((512, 512), value, np.uint16) for value in (1000, 2000, 3000, 4000)])
    edition = Edition("scene")
    cog = stored(storage, folder, edition.cog("scene.tif"), pixels, BOX, photometric="rgb", alpha="unspecified")
    bands = [
        {"name": f"b{n}", "data_type": "uint16", "statistics": {"minimum": 0, "maximum": 4000}} for n in (1, 2, 3, 4)
    ]
    renders = {"default": {"assets": ["data"], "bidx": [1, 2, 3], "rescale": [[0, 4000]] * 3}}
    return collection("scene", BOX), [item(edition, cog, BOX, bands=bands, renders=renders)]


def _tiled(storage: Storage, folder: Path):
    """Two rows of two COGs, of half a degree each."""
    edition, items, tiles = Edition("tiled"), [], {}
    for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)], 1):
        west, south = 10 + column / 2, 50.5 - row / 2
        box = (west, south, west + 0.5, south + 0.5)
        name = f"r{row}c{column}"
        cog = stored(storage, folder, edition.cog(f"{name}.tif"), np.full((1, 256, 256), 10 * number, np.uint8), box)
        items.append(item(edition, cog, box, f"-{name}"))
        for tile in _grid().tiles(*_inside(box), 8):
            tiles.setdefault(_grid().quadkey(tile), []).append(f"{name}.tif")
    mosaic = {
        "mosaicjson": "0.0.3",
        "minzoom": 6,
        "maxzoom": 10,
        "quadkey_zoom": 8,
        "bounds": BOX,
        "tiles": tiles,
        "asset_type": "COG",
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(mosaic).encode())
    assets = {"mosaic": {"href": href(location), "type": "application/json", "roles": ["index"]}}
    return collection("tiled", BOX, assets=assets), items


def _grown(storage: Storage, folder: Path):
    """A dataset as it is after a job has added a second version."""
    items, collections = [], []
    for ordinal, value in ((0, 10), (1, 30)):
        edition, box = Edition("grown", ordinal), (10.0 + ordinal, 50.0, 11.0 + ordinal, 51.0)
        cog = stored(storage, folder, edition.cog("a.tif"), np.full((1, 256, 256), value, np.uint16), box)
        items.append(item(edition, cog, box, "-a"))
        tiles = {_grid().quadkey(tile): ["a.tif"] for tile in _grid().tiles(*_inside(box), 8)}
        mosaic = {"mosaicjson": "0.0.3", "minzoom": 6, "maxzoom": 10, "quadkey_zoom": 8, "bounds": box, "tiles": tiles}
        location = storage.location(edition.mosaic(), zone=Zone.SILVER)
        storage.put(location, json.dumps(mosaic).encode())
        asset = {
            "href": href(location),
            "type": "application/json",
            "roles": ["index"],
            "dagmaster:revision": 1,
            "dagmaster:version_ordinal": ordinal,
            "dagmaster:bbox": list(box),
        }
        renders = {"default": {"assets": ["data"], "rescale": [[0, 2 * value]]}}
        more = {"assets": {"mosaic": asset}, "renders": renders, "dagmaster:version_ordinal": ordinal}
        collections.append(collection("grown", (10.0, 50.0, 12.0, 51.0), **more))
    return joined(*collections), items


def _across(storage: Storage, folder: Path):
    """Two degrees on each side of the antimeridian; the west edge is at 178°."""
    edition, items, tiles = Edition("across"), [], {}
    span = {"datetime": None, "start_datetime": "2024-01-01T00:00:00Z", "end_datetime": "2024-02-01T00:00:00Z"}
    for name, box, value in (("a", (178.0, 0.0, 180.0, 2.0), 10), ("b", (-180.0, 0.0, -178.0, 2.0), 20)):
        cog = stored(storage, folder, edition.cog(f"{name}.tif"), np.full((1, 256, 256), value, np.uint8), box)
        document = item(edition, cog, box, f"-{name}", **span)
        document["assets"]["data"]["href"] = href(cog, FORMER)
        document["assets"]["foreign"] = {"href": "http://elsewhere.example/files/silver/x.tif"}
        document["links"] = [
            {"rel": "tilejson", "href": f"{FORMER}/tiles/across/WebMercatorQuad/tilejson.json"},
            {"rel": "about", "href": "http://127.0.0.1:9/notes/tiles/"},
        ]
        items.append(document)
        for tile in _grid().tiles(*_inside(box), 6):
            tiles.setdefault(_grid().quadkey(tile), []).append(f"{name}.tif")
    mosaic = {
        "mosaicjson": "0.0.3",
        "minzoom": 4,
        "maxzoom": 8,
        "quadkey_zoom": 6,
        "bounds": (-180, 0, 180, 2),
        "tiles": tiles,
        "asset_type": "COG",
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(mosaic).encode())
    assets = {"mosaic": {"href": href(location, FORMER), "type": "application/json", "roles": ["index"]}}
    return collection("across", (178.0, 0.0, -178.0, 2.0), assets=assets), items


def _inside(box):
    return box[0] + 1e-9, box[1] + 1e-9, box[2] - 1e-9, box[3] - 1e-9


def _grid():
    from morecantile import tms

    return tms.get("WebMercatorQuad")


__all__ = ["PUBLIC", "plain_logs"]
