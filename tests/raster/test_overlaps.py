"""Statistics of COGs that overlap, compared with the mosaic that rio-tiler renders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from rio_tiler.io import Reader
from rio_tiler.mosaic import mosaic_reader

from dagmaster.raster.analysis.mosaic import mosaic_asset
from dagmaster.raster.analysis.overlaps import CountedCog, count_once, covering
from dagmaster.raster.analysis.statistics import measure, summarize
from tests.raster.rasters import TRANSFORM, write_raster

pytestmark = pytest.mark.requirement("R7")

SIZE = 90


def cog(folder: Path, name: str, values: Any, offset: tuple[int, int], scale: float = 1, **options: Any) -> CountedCog:
    place = TRANSFORM @ Affine.translation(*offset) @ Affine.scale(scale)
    path = str(write_raster(folder / name, values, transform=place, **options))
    return CountedCog(path, measure(path))


def with_cogs_above(cogs: list[CountedCog]) -> list[CountedCog]:
    """The same COGs, each with the list of COGs above it."""
    paths = {Path(each.path).name: each.path for each in cogs}
    above = covering(mosaic_asset(path, name=name) for name, path in paths.items())
    return [replace(each, above=[paths[name] for name in above[Path(each.path).name]]) for each in cogs]


def rendered(cogs: list[CountedCog]) -> Any:
    """The pixels of the mosaic, in a box around all COGs."""
    paths = sorted(each.path for each in cogs)
    boxes = [Reader(path).dataset.bounds for path in paths]
    bounds = (*np.min(boxes, axis=0)[:2], *np.max(boxes, axis=0)[2:])

    def read(path: str) -> Any:
        with Reader(path) as reader:
            return reader.part(bounds, bounds_crs=reader.crs, dst_crs=reader.crs)

    image, _ = mosaic_reader(paths, read, threads=0)
    return image.array


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_each_pixel_of_a_mosaic_counts_once(tmp_path: Path, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    cogs, extent = [], np.zeros((4 * SIZE, 4 * SIZE), bool)
    for name in rng.permutation(["a.tif", "b.tif", "c.tif", "d.tif"]):
        values = rng.integers(1, 250, (2, *rng.integers(SIZE // 2, SIZE, 2))).astype(dtype)
        values[rng.random(values.shape) < 0.3] = 0
        col, row = (int(offset) for offset in rng.integers(0, SIZE, 2))
        extent[row : row + values.shape[1], col : col + values.shape[2]] = True
        cogs.append(cog(tmp_path, str(name), values, (col, row), nodata=0))

    statistics = summarize(count_once(with_cogs_above(cogs)))

    for band, ours in zip(rendered(cogs), statistics, strict=True):
        valid = band.compressed().astype("float64")
        assert ours is not None
        assert (ours.count, ours.minimum, ours.maximum) == (valid.size, valid.min(), valid.max())
        assert (ours.mean, ours.stddev) == pytest.approx((valid.mean(), valid.std()), rel=1e-11)
        assert ours.valid_percent == pytest.approx(100 * valid.size / extent.sum())
        assert not ours.approximate


def test_files_whose_valid_pixels_do_not_overlap_are_not_read_again(tmp_path: Path) -> None:
    values = np.full((2, SIZE, SIZE), 9, "uint8")
    values[0, :, 40:], values[1, :, :40] = 0, 0
    cogs = [cog(tmp_path, f"{at}.tif", half, (0, 0), nodata=0) for at, half in enumerate(values)]

    [ours] = summarize(count_once(with_cogs_above(cogs), max_values=0))

    assert ours is not None
    assert (ours.count, ours.valid_percent, ours.approximate) == (SIZE * SIZE, 100, False)


@pytest.mark.parametrize(("scale", "max_values"), [(2, 10**9), (1, 100)])
def test_statistics_that_cannot_be_exact_are_marked_as_approximate(
    tmp_path: Path, scale: float, max_values: int
) -> None:
    values = np.full((SIZE, SIZE), 9, "uint8")
    cogs = [cog(tmp_path, "a.tif", values, (0, 0)), cog(tmp_path, "b.tif", values, (40, 40), scale)]

    [ours] = summarize(count_once(with_cogs_above(cogs), max_values=max_values))

    assert ours is not None
    assert ours.approximate
