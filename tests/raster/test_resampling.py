"""The rule for measurements: bilinear, or the average of a pixel's area if the grid is at least 1.5 times coarser.

Truth is the mean of a finer surface over the area of each output pixel. The rule must be close to the better of plain
bilinear and gdalwarp's default, on smooth surfaces and on noise, at every ratio.
"""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import Resampling

from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType
from tests.raster.rasters import UTM33, write_raster

pytestmark = pytest.mark.requirement("R8")

SIZE, FINE = 240, 6  # pixels of the source, and how many finer pixels each is the mean of
PIXEL, WEST, NORTH = 60.0, 500_000.0, 5_000_000.0


def surface(kind: str) -> Any:
    y, x = np.mgrid[0 : SIZE * FINE, 0 : SIZE * FINE] / FINE
    match kind:
        case "smooth":
            return np.sin(2 * np.pi * x / 60) * np.cos(2 * np.pi * y / 50)
        case "rough":
            return fractal(SIZE * FINE, 3.6)
        case "picture":
            return fractal(SIZE * FINE, 2.2)
        case _:
            pixels = np.random.default_rng(1).normal(0, 1, (SIZE, SIZE))
            return np.repeat(np.repeat(pixels, FINE, 0), FINE, 1)


def fractal(size: int, slope: float) -> Any:
    """A surface with the spectrum of terrain (3.6) or of a photograph (2.2)."""
    frequency = np.fft.fftfreq(size)
    radius = np.hypot(frequency[:, None], frequency[None])
    radius[0, 0] = 1
    waves = np.fft.fft2(np.random.default_rng(2).normal(size=(size, size))) * radius ** (-slope / 2)
    values = np.fft.ifft2(waves).real
    return (values - values.mean()) / values.std()


def errors(folder: Path, kind: str, ratio: float) -> dict[str, float]:
    """Root mean square errors, relative to the spread of the data, of our rule, of plain bilinear and of gdalwarp."""
    fine = surface(kind)
    values = fine.reshape(SIZE, FINE, SIZE, FINE).mean((1, 3)).astype("float32")
    source = write_raster(folder / "s.tif", values, transform=Affine(PIXEL, 0, WEST, 0, -PIXEL, NORTH))
    size, count = ratio * PIXEL, int((SIZE - 20) / ratio)
    corner = 7 * PIXEL + 20
    grid = OutputGrid(UTM33, (WEST + corner, NORTH - corner), (size, size), count, count)
    steps = np.round((corner + size * np.arange(count + 1)) / PIXEL * FINE).astype(int)
    sums = np.pad(fine.cumsum(0).cumsum(1), ((1, 0), (1, 0)))[np.ix_(steps, steps)]
    truth = np.diff(np.diff(sums, axis=0), axis=1) / np.outer(np.diff(steps), np.diff(steps))
    results = {}
    for name, resampling in (("ours", None), ("bilinear", Resampling.bilinear)):
        make_cog(source, folder / "c.tif", grid, raster_type=RasterType.DEM, resampling=resampling)
        with rasterio.open(folder / "c.tif") as cog:
            results[name] = cog.read(1)
    west, north = grid.origin
    box = map(str, (west, north - count * size, west + count * size, north))
    words = ["gdalwarp", "-q", "-overwrite", "-r", "bilinear", "-te", *box, "-ts", str(count), str(count)]
    subprocess.run([*words, source, folder / "g.tif"], check=True)
    with rasterio.open(folder / "g.tif") as warped:
        results["gdalwarp"] = warped.read(1)
    inner = np.s_[4:-4, 4:-4]
    return {
        name: float(np.sqrt(((result - truth)[inner] ** 2).mean()) / values.std()) for name, result in results.items()
    }


@pytest.mark.parametrize("ratio", [1.2, 1.4, 1.5, 1.8, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("kind", ["smooth", "rough", "picture"])
def test_surfaces_are_about_as_accurate_as_with_the_better_of_two_rules(
    tmp_path: Path, kind: str, ratio: float
) -> None:
    error = errors(tmp_path, kind, ratio)

    assert error["ours"] <= 1.3 * min(error.values()) + 0.004, error


@pytest.mark.parametrize("ratio", [1.5, 1.8, 2.0, 3.0, 5.0])
def test_noise_is_averaged_above_the_limit(tmp_path: Path, ratio: float) -> None:
    error = errors(tmp_path, "noise", ratio)

    assert error["ours"] < 0.06, error
    assert error["ours"] <= error["gdalwarp"] + 1e-3, error


def test_noise_is_interpolated_below_the_limit(tmp_path: Path) -> None:
    error = errors(tmp_path, "noise", 1.4)

    assert error["ours"] == error["bilinear"]
    assert error["ours"] < 0.35


@pytest.mark.parametrize("ratio", [1.0, 1.4, 1.6, 3.0])
def test_a_pixel_is_valid_if_its_centre_is_in_the_source(tmp_path: Path, ratio: float) -> None:
    values = np.ones((1, 200, 300), "float32")
    source = write_raster(tmp_path / "s.tif", values, transform=Affine(10, 0, WEST, 0, -10, NORTH))
    size = 10 * ratio
    grid = OutputGrid(UTM33, (WEST - 4.2 * size, NORTH + 4.7 * size), (size, size), 400, 300)

    make_cog(source, tmp_path / "c.tif", grid, raster_type=RasterType.DEM)

    with rasterio.open(tmp_path / "c.tif") as cog:
        valid = cog.read_masks(1) != 0
    x, y = (np.arange(400) + 0.5 - 4.2) * size, (np.arange(300) + 0.5 - 4.7) * size
    assert np.array_equal(valid, np.outer((y > 0) & (y < 2000), (x > 0) & (x < 3000)))


def test_the_result_names_the_resampling_that_was_used(tmp_path: Path) -> None:
    values = np.ones((1, 300, 300), "float32")
    source = write_raster(tmp_path / "s.tif", values, transform=Affine(10, 0, WEST, 0, -10, NORTH))
    rotation = Affine.translation(WEST, NORTH) @ Affine.rotation(30) @ Affine.scale(10, -10)
    rotated = write_raster(tmp_path / "r.tif", values, transform=rotation)
    rgba = write_raster(
        tmp_path / "a.tif",
        np.full((4, 300, 300), 255, "uint8"),
        transform=Affine(10, 0, WEST, 0, -10, NORTH),
        photometric="RGB",
        alpha="YES",
    )

    def resampling_of(path: Path, size: tuple[float, float], kind: RasterType = RasterType.DEM) -> str:
        grid = OutputGrid(UTM33, (WEST + 3, NORTH - 3), size, 50, 50)
        return make_cog(path, tmp_path / "c.tif", grid, raster_type=kind).resampling

    assert resampling_of(source, (14, 14)) == "bilinear"
    assert resampling_of(source, (16, 16)) == "average"
    assert resampling_of(source, (16, 10)) == "average"
    assert resampling_of(source, (30, 5)) == "bilinear", "finer in one direction"
    assert resampling_of(rotated, (30, 30)) == "bilinear", "GDAL averages boxes"
    assert resampling_of(rgba, (30, 30), RasterType.RGBA) == "bilinear", "alpha may be partial"
    assert resampling_of(source, (30, 30), RasterType.CATEGORICAL) == "nearest"
