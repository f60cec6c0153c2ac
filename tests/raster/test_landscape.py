"""The artificial landscape for demonstrations and benchmarks."""

import numpy as np
import pytest
import rasterio

from dagmaster.errors import InvalidRequest
from dagmaster.raster.landscape import BLOCK, make_landscape
from dagmaster.raster.validation.check import Verdict, check


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("landscape") / "scene.tif"
    make_landscape(path, 1024)
    return path


def test_a_landscape_is_a_good_rgb_scene_in_utm(scene):
    response = check(scene)

    assert response.verdict is Verdict.PASS
    assert response.raster_type == "rgb"
    assert (response.facts.width, response.facts.height, response.facts.count) == (1024, 1024, 3)
    assert response.facts.crs == "EPSG:32632"
    assert response.facts.nodata == 0


def test_the_pixels_depend_on_the_seed_alone(scene, tmp_path):
    for name, seed in (("same", 11), ("other", 12)):
        make_landscape(tmp_path / name, 1024, seed=seed)

    sums = [_pixels(path).sum(dtype=np.int64) for path in (scene, tmp_path / "same", tmp_path / "other")]

    assert sums[0] == sums[1]
    assert sums[0] != sums[2]


def test_the_footprint_of_a_landscape_is_tilted_and_has_no_holes(scene):
    is_data = _pixels(scene).all(axis=0)
    first = is_data.argmax(axis=1)

    assert first[0] > first[-1]  # the left edge leans
    assert 0.8 < is_data.mean() < 0.98
    assert is_data[512, first[512] :].sum() == is_data[512].sum()  # without holes


def test_adjacent_blocks_have_no_visible_edge(scene):
    """Where two blocks meet, neighbours differ as little as elsewhere."""
    green = _pixels(scene)[1].astype(int)
    steps = np.abs(np.diff(green[:, 300:900], axis=0)).mean(axis=1)

    assert steps[BLOCK - 1] < 2 * np.median(steps)


def test_a_size_that_is_no_multiple_of_a_block_is_refused(tmp_path):
    with pytest.raises(InvalidRequest):
        make_landscape(tmp_path / "scene.tif", 1000)

    assert not (tmp_path / "scene.tif").exists()


def test_progress_is_reported(tmp_path):
    reported: list[float] = []

    make_landscape(tmp_path / "scene.tif", 1024, on_progress=reported.append)

    assert reported == [0.25, 0.5, 0.75, 1.0]


def _pixels(path):
    with rasterio.open(path) as file:
        return file.read()
