"""Items are read by programs that others wrote, without being told what the items say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import rasterio
import stackstac

from dagmaster.testing.trial import run_handler
from tests.raster.rasters import hills, write_raster

pytestmark = pytest.mark.requirement("C1")

PUBLIC = "https://maps.example.org"


@pytest.fixture(params=["EPSG:32633", "EPSG:4326"])
def item(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The item of a COG, with the path of the file instead of its URL, and without links to a server."""
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PUBLIC_URL", PUBLIC)
    bronze = tmp_path / "bronze" / "bronze"
    bronze.mkdir(parents=True)
    write_raster(bronze / "dem.tif", hills(90, 120), nodata=-9999)
    about = {"dataset_id": "dem", "when": {"start": "2024-05-01T00:00:00Z"}, "processed_at": "2024-06-01T00:00:00Z"}
    source = {"blob_name": "dem.tif", "raster_type": "dem"}
    trial = run_handler("raster.create_cog", {"source": source, "about": about, "target_crs": request.param})
    assert trial.error is None, trial.error
    text = json.dumps(trial.output["stac_item"])
    return {**json.loads(text.replace('"/files/silver', f'"{tmp_path}/silver')), "links": []}


def test_stackstac_reads_the_pixels_of_an_item_that_is_a_dictionary(item):
    stack = stackstac.stack([item], assets=["data"], snap_bounds=False)

    _check(stack, item)


def test_stackstac_reads_the_pixels_of_an_item_of_pystac_that_has_its_epsg_again(item):
    """pystac removes `proj:epsg`, without which stackstac does not know where the pixels are."""
    read = pystac.Item.from_dict(item)

    read.properties["proj:epsg"] = int(read.properties["proj:code"].removeprefix("EPSG:"))
    stack = stackstac.stack([read], assets=["data"], snap_bounds=False)

    _check(stack, item)


def test_stackstac_resamples_an_item_of_pystac_if_it_is_only_told_the_crs(item):
    read = pystac.Item.from_dict(item)

    stack = stackstac.stack([read], assets=["data"], epsg=int(read.properties["proj:code"].removeprefix("EPSG:")))

    with rasterio.open(item["assets"]["data"]["href"]) as dataset:
        assert float(stack.mean()) == pytest.approx(dataset.read(1, masked=True).mean(), rel=0.02)


def _check(stack: Any, item: dict[str, Any]) -> None:
    """It has the CRS, the pixels and their places of the file."""
    with rasterio.open(item["assets"]["data"]["href"]) as dataset:
        expected = dataset.read(1, masked=True).filled(np.nan)
        crs, bounds = dataset.crs, dataset.bounds
    assert stack.attrs["crs"] == f"epsg:{crs.to_epsg()}"
    assert stack.shape == (1, 1, *expected.shape)
    assert (float(stack.x[0]), float(stack.y[0])) == pytest.approx(
        (bounds.left, bounds.top), abs=1e-9 * abs(bounds.top)
    )
    assert np.array_equal(stack.compute().values[0, 0], expected, equal_nan=True)
