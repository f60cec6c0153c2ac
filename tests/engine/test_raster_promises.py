"""The fixes that validation announces are applied in the COG of a job."""

import numpy as np
import pytest
import rasterio

from tests.engine.test_raster_jobs import UTM, Hub, hub

pytestmark = pytest.mark.requirement("R2")

__all__ = ["hub"]


async def test_values_that_fit_are_stored_in_a_smaller_data_type(hub: Hub) -> None:
    path = hub.folder / "bronze" / "bronze" / "classes.tif"
    path.parent.mkdir(parents=True)
    values = np.kron(np.arange(1, 10).reshape(3, 3), np.ones((100, 100))).astype("int32")
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=300,
        height=300,
        count=1,
        dtype="int32",
        crs="EPSG:32633",
        transform=UTM,
        nodata=0,
    ) as dataset:
        dataset.write(values, 1)

    job = await hub.process("classes", "classes.tif", target_crs="EPSG:32633")

    assert job["status"] == "completed", job
    (cog,) = hub.cogs("classes")
    with rasterio.open(cog) as dataset:
        assert (dataset.dtypes, dataset.nodata) == (("uint8",), 0)
        assert np.array_equal(dataset.read(1), values)
