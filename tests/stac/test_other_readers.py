"""Items can be read by stackstac and odc-stac, without configuration for this project."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import odc.stac
import pystac
import pytest
import rasterio
import stackstac

from dagmaster.dataset_ids import job_dataset_id
from dagmaster.testing.trial import JOB_ID, run_handler
from tests.raster.rasters import hills, write_raster

pytestmark = pytest.mark.requirement("C1")

PUBLIC = "https://maps.example.org"


@pytest.fixture(params=["EPSG:32633", "EPSG:4326"])
def item(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return _item(tmp_path, monkeypatch, hills(90, 120), request.param)


def _item(
    folder: Path, monkeypatch: pytest.MonkeyPatch, values: Any, target_crs: str, **described: Any
) -> dict[str, Any]:
    """The item of a COG, with the path of the file instead of its URL, and without links to a server."""
    monkeypatch.setenv("STORAGE_FOLDER", str(folder))
    monkeypatch.setenv("PUBLIC_URL", PUBLIC)
    bronze = folder / "bronze" / "bronze"
    bronze.mkdir(parents=True)
    write_raster(bronze / "dem.tif", values, nodata=-9999)
    when = {"when": {"start": "2024-05-01T00:00:00Z"}, "processed_at": "2024-06-01T00:00:00Z"}
    about = {"dataset_id": job_dataset_id(JOB_ID), **when, **described}
    source = {"blob_name": "dem.tif", "raster_type": "dem"}
    trial = run_handler("raster.create_cog", {"source": source, "about": about, "target_crs": target_crs})
    assert trial.error is None, trial.error
    text = json.dumps(trial.output["stac_item"])
    return {**json.loads(text.replace('"/files/silver', f'"{folder}/silver')), "links": []}


def test_stackstac_reads_an_item_given_as_a_dictionary(item):
    stack = stackstac.stack([item], assets=["data"], snap_bounds=False)

    _check(stack, item)


def test_stackstac_reads_a_pystac_item_whose_epsg_code_is_restored(item):
    """pystac removes `proj:epsg`, which stackstac needs to locate the pixels."""
    read = pystac.Item.from_dict(item)

    read.properties["proj:epsg"] = int(read.properties["proj:code"].removeprefix("EPSG:"))
    stack = stackstac.stack([read], assets=["data"], snap_bounds=False)

    _check(stack, item)


def test_stackstac_resamples_a_pystac_item_if_only_the_crs_is_given(item):
    read = pystac.Item.from_dict(item)

    stack = stackstac.stack([read], assets=["data"], epsg=int(read.properties["proj:code"].removeprefix("EPSG:")))

    with rasterio.open(item["assets"]["data"]["href"]) as dataset:
        assert float(stack.mean()) == pytest.approx(dataset.read(1, masked=True).mean(), rel=0.02)


def test_odc_stac_loads_the_bands_of_an_item_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """odc-stac reads CRS, grid and band names from the item, and needs no configuration."""
    values = np.stack([hills(90, 120), hills(90, 120, 1000.0, 2000.0)])
    item = _item(tmp_path, monkeypatch, values, "EPSG:32633", band_names=["red", "nir"])

    loaded = odc.stac.load([pystac.Item.from_dict(item)], bands=["red", "nir"])

    with rasterio.open(item["assets"]["data"]["href"]) as dataset:
        expected, crs, transform = dataset.read(), dataset.crs, dataset.transform
    assert list(loaded.data_vars) == ["red", "nir"]
    assert loaded.odc.geobox.crs.epsg == crs.to_epsg()
    assert loaded.odc.geobox.transform.almost_equals(transform)
    assert np.array_equal(loaded.red.values[0], expected[0])
    assert np.array_equal(loaded.nir.values[0], expected[1])


def _check(stack: Any, item: dict[str, Any]) -> None:
    """Check that the loaded array has the CRS, the pixels and the coordinates of the file."""
    with rasterio.open(item["assets"]["data"]["href"]) as dataset:
        expected = dataset.read(1, masked=True).filled(np.nan)
        crs, bounds = dataset.crs, dataset.bounds
    assert stack.attrs["crs"] == f"epsg:{crs.to_epsg()}"
    assert stack.shape == (1, 1, *expected.shape)
    assert (float(stack.x[0]), float(stack.y[0])) == pytest.approx(
        (bounds.left, bounds.top), abs=1e-9 * abs(bounds.top)
    )
    assert np.array_equal(stack.compute().values[0, 0], expected, equal_nan=True)
