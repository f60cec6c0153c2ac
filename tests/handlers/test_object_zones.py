"""Raster handlers with zones in an object store write the same bytes as with folders."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from tests.handlers.test_raster_handlers import ABOUT
from tests.object_stores.servers import tier_of

from dagmaster.settings import load
from dagmaster.storage import Location, Zone, open_storage
from dagmaster.storage.location import Folder
from dagmaster.testing.trial import run_handler

pytestmark = [pytest.mark.requirement("S2"), pytest.mark.requirement("R8")]

PARAMS = {
    "source": {"blob_name": "dem.tif"},
    "about": ABOUT,
    "target_crs": "EPSG:4326",
    "output_tier": "archive",
}


def terrain(path) -> None:
    values = np.add.outer(np.arange(700), np.arange(900)).astype("float32")[None]
    profile = {"crs": "EPSG:32633", "transform": Affine(30, 0, 500_000, 0, -30, 5_500_000), "nodata": -9999}
    with rasterio.open(path, "w", driver="GTiff", width=900, height=700, count=1, dtype="float32", **profile) as file:
        file.write(values)


def cog_of(settings, file, params=PARAMS) -> tuple[dict, bytes]:
    storage = open_storage(settings)
    storage.create_containers()
    for info in list(storage.list(Folder(Zone.SILVER, "silver", f"cogs/{ABOUT['dataset_id']}"))):
        storage.delete(info.location)
    storage.put_file(storage.location("dem.tif"), file)
    output = run_handler("raster.create_cog", params, settings=settings).output
    return output, storage.get(Location(Zone.SILVER, output["cog_container"], output["cog_blob"]))


@pytest.mark.parametrize("name", ["azurite", "s3_server"])
def test_a_cog_from_an_object_store_equals_the_one_from_a_folder(name, request, tmp_path):
    server = request.getfixturevalue(name)
    file = tmp_path / "dem.tif"
    terrain(file)
    local, remote = tmp_path / "local", tmp_path / "remote"

    expected, local_bytes = cog_of(load(DAGMASTER_DATA=str(local), PUBLIC_URL="https://maps.example.org"), file)
    output, remote_bytes = cog_of(server.settings_for(remote, public_url="https://maps.example.org"), file)

    assert remote_bytes == local_bytes
    assert output["sha256"] == expected["sha256"]
    assert output["stac_item"] == expected["stac_item"]
    assert not [path for path in remote.rglob("*.tif") if path.is_file()], "no copy is left"


@pytest.mark.requirement("S3")
@pytest.mark.parametrize("name", ["azurite", "s3_server"])
def test_the_output_tier_decides_the_storage_tier(name, request, tmp_path):
    settings = request.getfixturevalue(name).settings_for(tmp_path)
    storage = open_storage(settings)
    terrain(tmp_path / "dem.tif")

    tiers = {}
    for tier in ("analysis", "archive"):
        output, _ = cog_of(settings, tmp_path / "dem.tif", {**PARAMS, "output_tier": tier})
        tiers[tier] = tier_of(storage, Location(Zone.SILVER, output["cog_container"], output["cog_blob"]))

    assert tiers["archive"] in ("Cool", "STANDARD_IA")
    assert tiers["analysis"] in ("Hot", "STANDARD", None)
