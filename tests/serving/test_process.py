"""The map server as a process, used by other programs."""

import json
import signal
import socket
import subprocess
import urllib.request

import pytest
import rasterio

from tests.cli.processes import call, start
from tests.serving.data import PUBLIC

pytestmark = pytest.mark.requirement("C2")


@pytest.fixture(scope="module")
def server(served, storage, tmp_path_factory):
    """Its address and the process."""
    process = start(
        "serving",
        "--port",
        "0",
        DATABASE_URL=served,
        STORAGE_FOLDER=str(folder_of(storage)),
        LOG_FORMAT="json",
        LOG_LEVEL="info",
        DAGMASTER_DATA=str(tmp_path_factory.mktemp("data")),
    )
    try:
        yield wait_for_event(process, "maps are served")["url"], process
    finally:
        process.kill()
        process.communicate()


def folder_of(storage):
    from pathlib import Path

    from dagmaster.storage.location import Location, Zone

    return Path(storage.gdal_path(Location(Zone.SILVER, "silver", "x"))).parents[2]


def wait_for_event(process: subprocess.Popen, event: str) -> dict:
    assert process.stderr is not None
    for line in process.stderr:
        fact = json.loads(line)
        if fact["event"] == event:
            return fact
    raise AssertionError(f"the process ended with {process.wait()}")


def test_gdal_reads_a_cog_by_its_url(server):
    url, _ = server
    options = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_TIMEOUT": "60"}
    with rasterio.Env(**options), rasterio.open(f"/vsicurl/{url}/files/silver/silver/cogs/dem/v0/r1/dem.tif") as cog:
        heights = cog.read(1)

    assert heights.shape == (600, 600)
    assert heights[300, 300] == pytest.approx(1000, abs=5)


def test_pystac_client_searches_and_follows_links(server):
    from pystac_client import Client

    url, _ = server
    catalog = Client.open(f"{url}/stac")
    items = {
        item.id: item for item in catalog.search(bbox=[10.1, 50.1, 10.2, 50.2], collections=["tiled", "plain"]).items()
    }

    collections = {collection.id for collection in catalog.get_collections()}
    assert collections == {"across", "plain", "dem", "scene", "tiled", "grown"}
    assert set(items) == {"plain-v0", "tiled-v0-r1c0"}
    assert items["plain-v0"].get_collection().title == "The plain"
    assert items["plain-v0"].assets["data"].href.startswith(f"{PUBLIC}/files/silver/")
    ordered = catalog.search(
        collections=["dem"], sortby="-id", filter={"op": ">=", "args": [{"property": "dagmaster:version_ordinal"}, 0]}
    )
    assert [item.id for item in ordered.items()] == ["dem-v1", "dem-v0"]


def test_cogeo_mosaic_reads_a_tile_by_the_url_of_the_mosaic(server):
    """It gets only the URL of the asset in the catalogue."""
    import httpx2
    from cogeo_mosaic.backends import MosaicBackend
    from morecantile import tms

    url, _ = server
    collection = httpx2.get(f"{url}/stac/collections/across").json()  # the stored URL has another port
    options = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_TIMEOUT": "10"}
    with rasterio.Env(**options), MosaicBackend(collection["assets"]["mosaic"]["href"]) as mosaic:
        for longitude, value in ((179.0, 10), (-179.0, 20)):
            tile = tms.get("WebMercatorQuad").tile(longitude, 1.0, 8)
            image, assets = mosaic.tile(tile.x, tile.y, tile.z)
            assert (image.data == value).all()
            assert all(asset.startswith(f"{url}/files/silver/") for asset in assets)


def test_gdal_reads_the_tiles(server):
    """Through a TMS of XYZ tiles, as in QGIS."""
    url, _ = server
    tiles = f"{url}/tiles/plain/tiles/WebMercatorQuad/${{z}}/${{x}}/${{y}}.png".replace("&", "&amp;")
    service = (
        f'<GDAL_WMS><Service name="TMS"><ServerUrl>{tiles}</ServerUrl></Service><DataWindow>'
        "<UpperLeftX>-20037508.34</UpperLeftX><UpperLeftY>20037508.34</UpperLeftY>"
        "<LowerRightX>20037508.34</LowerRightX><LowerRightY>-20037508.34</LowerRightY>"
        "<TileLevel>9</TileLevel><TileCountX>1</TileCountX><TileCountY>1</TileCountY><YOrigin>top</YOrigin></DataWindow>"
        "<Projection>EPSG:3857</Projection><BlockSizeX>256</BlockSizeX><BlockSizeY>256</BlockSizeY>"
        "<BandsCount>2</BandsCount><ZeroBlockHttpCodes>404</ZeroBlockHttpCodes></GDAL_WMS>"
    )
    with rasterio.open(service) as shown:
        row, column = shown.index(1168860, 6541000)  # in the middle of the tile
        window = rasterio.windows.Window(column, row, 4, 4)
        assert (shown.read(1, window=window) == 100).all()


def test_the_server_stops_on_a_signal(served, storage, tmp_path):
    process = start(
        "serving",
        "--port",
        "0",
        DATABASE_URL=served,
        STORAGE_FOLDER=str(folder_of(storage)),
        LOG_FORMAT="json",
        LOG_LEVEL="info",
        DAGMASTER_DATA=str(tmp_path),
    )
    url = wait_for_event(process, "maps are served")["url"]
    assert urllib.request.urlopen(f"{url}/readyz", timeout=20).status == 200

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)

    assert process.returncode == 0
    assert "Traceback" not in errors


def test_a_port_in_use_is_reported(served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = call("serving", "--port", str(taken.getsockname()[1]), "--json", DATABASE_URL=served)

    assert refused.returncode == 4
    assert json.loads(refused.stderr)["error"]["code"] == "serving.port-taken"


def test_the_map_server_listens_on_loopback_only(served):
    refused = call("serving", "--host", "0.0.0.0", "--port", "0", "--json", DATABASE_URL=served)

    assert refused.returncode == 2
    assert json.loads(refused.stderr)["error"]["code"] == "serving.not-loopback"
