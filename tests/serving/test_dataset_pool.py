"""Files stay open between requests, and replaced files are opened again."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.errors import RasterioError, RasterioIOError
from rasterio.vrt import WarpedVRT

from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.readers import CogReader
from dagmaster.storage.location import Edition
from tests.serving.conftest import BOX
from tests.serving.data import collection, decoded, item, stored, write_cog

pytestmark = pytest.mark.requirement("C2")


def cog(path, value):
    return write_cog(path, np.full((1, 64, 64), value, np.uint8), BOX)


def value_of(pool, path):
    with pool.open(str(path)) as dataset:
        return int(dataset.read(1)[0, 0])


@pytest.fixture
def path(tmp_path):
    return cog(tmp_path / "a.tif", 7)


def test_a_second_request_gets_the_same_dataset(path):
    pool = DatasetPool()
    with pool.open(str(path)) as first:
        pass
    with pool.open(str(path)) as second:
        assert second is first
        assert not second.closed


def test_two_concurrent_requests_get_separate_datasets(path):
    pool = DatasetPool()
    with pool.open(str(path)) as one, pool.open(str(path)) as other:
        assert one is not other
    assert len(pool) == 2


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_reader_closes_its_vrt_and_returns_the_dataset(tmp_path, has_failed):
    corners = [GroundControlPoint(row, col, col, -row) for row in (0, 64) for col in (0, 64)]
    path = write_cog(tmp_path / "a.tif", np.full((1, 64, 64), 7, np.uint8), BOX)
    with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
        dataset.gcps = (corners, dataset.crs)
    pool = DatasetPool()

    with suppress(RasterioError), CogReader(str(path), datasets=pool, is_display=True) as reader:
        vrt = reader.dataset
        assert isinstance(vrt, WarpedVRT)
        assert len(pool) == 0
        if has_failed:
            raise RasterioError("cannot be read")

    assert vrt.closed
    assert len(pool) == (0 if has_failed else 1)


def test_a_closed_reader_has_returned_the_dataset(path):
    pool = DatasetPool()
    reader = CogReader(str(path), datasets=pool, is_display=True)
    reader.close()
    reader.close()

    assert len(pool) == 1


def test_many_threads_read_the_right_values(tmp_path):
    pool = DatasetPool(max_idle=4)
    paths = [cog(tmp_path / f"{value}.tif", value) for value in range(1, 7)]
    indexes = [index % len(paths) for index in range(300)]

    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda index: value_of(pool, paths[index]), indexes))

    assert read == [index + 1 for index in indexes]
    assert len(pool) <= 4


def test_a_replaced_file_is_reopened_and_the_old_one_closed(path, tmp_path):
    pool = DatasetPool()
    with pool.open(str(path)) as old:
        pass
    cog(tmp_path / "b.tif", 9).replace(path)

    assert value_of(pool, path) == 9
    assert old.closed
    assert len(pool) == 1


def test_a_file_that_was_changed_in_place_is_reopened(path, tmp_path):
    pool = DatasetPool()
    assert value_of(pool, path) == 7
    path.write_bytes(cog(tmp_path / "b.tif", 9).read_bytes())

    assert value_of(pool, path) == 9


def test_a_deleted_file_is_not_served(path):
    pool = DatasetPool()
    assert value_of(pool, path) == 7
    path.unlink()

    with pytest.raises(RasterioIOError):
        value_of(pool, path)
    assert len(pool) == 0


def test_an_unused_dataset_is_closed_after_a_while(path, tmp_path):
    now = 0.0
    pool = DatasetPool(clock=lambda: now)
    other = cog(tmp_path / "b.tif", 9)
    with pool.open(str(path)) as old:
        pass
    now = 20.0
    value_of(pool, other)

    now = 31.0
    pool.close_idle()

    assert old.closed
    assert len(pool) == 1


def test_the_least_recently_used_dataset_is_closed_first(tmp_path):
    pool = DatasetPool(max_idle=2)
    paths = [cog(tmp_path / f"{value}.tif", value) for value in (1, 2, 3)]
    opened = []
    for path in (paths[0], paths[1], paths[0], paths[2]):
        with pool.open(str(path)) as dataset:
            opened.append(dataset)

    assert [dataset.closed for dataset in opened] == [False, True, False, False]


def test_a_dataset_that_could_not_be_read_is_closed(path):
    pool = DatasetPool()
    with pytest.raises(RasterioIOError), pool.open(str(path)) as dataset:
        raise RasterioIOError("a block is broken")

    assert dataset.closed
    assert len(pool) == 0


def test_a_reader_returns_its_dataset_to_the_pool(client):
    pool = client.app.state.services.datasets
    pool.close_idle(0)

    for _ in range(3):
        assert client.get("/tiles/plain/preview.png").status_code == 200
    assert len(pool) == 1


def test_tiles_show_the_new_content_of_a_replaced_file(client, assets, storage, tmp_path):
    """The name of the file and the catalogue do not change."""
    edition, address = Edition("replaced"), "/tiles/replaced/tiles/WebMercatorQuad/9/270/172.png"
    shown = []
    try:
        for value in (10, 20):
            location = stored(storage, tmp_path, edition.cog("p.tif"), np.full((1, 256, 256), value, np.uint8), BOX)
            if value == 10:
                assets.publish(collection("replaced", BOX), [item(edition, location, BOX)])
            shown.append(int(decoded(client.get(address).content)[0].max()))
    finally:
        assets.remove("replaced")

    assert shown == [10, 20]
