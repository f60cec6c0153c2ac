"""Classes and measurements are distinguished by their values, if nothing else says which they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine

from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.classes import are_classes
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.validation.check import check
from tests.raster.rasters import write_raster
from tests.raster.test_resampling import fractal

pytestmark = pytest.mark.requirement("R2")

SIZE = 400


def photograph(levels: int, *, seed: int = 0, grain: float = 0.0) -> Any:
    """A picture with the spectrum of a photograph and this number of values."""
    picture = np.roll(fractal(SIZE, 3.6), seed * 37, axis=0)
    picture = picture + np.random.default_rng(seed).normal(0, grain, picture.shape)
    low, high = picture.min(), picture.max()
    return np.minimum((picture - low) / (high - low) * levels, levels - 1).astype("uint8")


def class_map(classes: int, *, seed: int = 0) -> Any:
    """Areas around random points, with codes in no order."""
    rng = np.random.default_rng(seed)
    points, codes = rng.uniform(0, SIZE, (6 * classes, 2)), rng.choice(200, classes, replace=False)
    rows, cols = np.mgrid[0:SIZE, 0:SIZE]
    nearest = np.argmin([(rows - y) ** 2 + (cols - x) ** 2 for y, x in points], axis=0)
    return codes[nearest % classes].astype("uint8")


def detected_as_classes(values: Any) -> bool:
    return are_classes([(values, np.ones(values.shape, bool))])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [20, 27, 40, 60])
def test_a_photograph_with_few_values_is_not_a_class_map(levels: int, seed: int) -> None:
    values = photograph(levels, seed=seed)

    assert np.unique(values).size >= levels * 0.9
    assert levels > 40 or (np.diff(values.astype(int)) == 0).mean() > 0.5, "as contiguous as classes"
    assert not detected_as_classes(values)
    assert not detected_as_classes(photograph(levels, seed=seed, grain=0.03))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 5, 11, 20, 27, 45, 60])
def test_areas_of_equal_codes_are_classes(classes: int, seed: int) -> None:
    assert detected_as_classes(class_map(classes, seed=seed))


def test_noise_floats_and_many_values_are_not_classes() -> None:
    rng = np.random.default_rng(1)

    assert not detected_as_classes(rng.integers(0, 20, (SIZE, SIZE)).astype("uint8"))
    assert not detected_as_classes(class_map(5).astype("float32"))
    assert not detected_as_classes(photograph(200))
    assert not detected_as_classes(np.full((SIZE, SIZE), 7, "uint8"))
    assert not are_classes([])


def test_the_type_of_a_file_is_detected_in_the_same_way(tmp_path: Path) -> None:
    photo = write_raster(tmp_path / "photo.tif", photograph(27))
    codes = write_raster(tmp_path / "codes.tif", class_map(45))

    assert check(photo).raster_type is RasterType.UNKNOWN
    assert check(codes).raster_type is RasterType.CATEGORICAL


def test_classes_that_are_detected_from_values_alone_are_reported(tmp_path: Path) -> None:
    codes = write_raster(tmp_path / "codes.tif", class_map(45))
    named = write_raster(tmp_path / "landcover.tif", class_map(45))
    palette = {code: (code, 0, 0, 255) for code in range(200)}
    coloured = write_raster(tmp_path / "c.tif", class_map(45), after=lambda file: file.write_colormap(1, palette))

    (finding,) = [finding for finding in check(codes).findings if finding.code == "raster.treated-as"]
    assert (finding.severity, "classes" in finding.message) == ("info", True)
    assert check(named).raster_type is check(coloured).raster_type is RasterType.CATEGORICAL
    assert not any(each.has("raster.treated-as") for each in (check(named), check(coloured)))
    assert not check(codes, raster_type="categorical").has("raster.treated-as")
    assert not check(write_raster(tmp_path / "p.tif", photograph(27))).has("raster.treated-as")


def test_integers_of_unknown_type_are_interpolated_unless_they_are_classes(tmp_path: Path) -> None:
    """A measurement keeps its shape, and classes get no codes that do not exist."""
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    wave = 1000 + 800 * np.sin(x / 9) * np.cos(y / 7)
    place = Affine(10, 0, 500_000, 0, -10, 5_000_000)
    measured = write_raster(tmp_path / "m.tif", wave.round().astype("uint16"), transform=place)
    codes = write_raster(tmp_path / "c.tif", class_map(27), transform=place)
    results = {}
    for name, path, kind in (
        ("unknown", measured, RasterType.UNKNOWN),
        ("nearest", measured, RasterType.CATEGORICAL),
        ("codes", codes, RasterType.UNKNOWN),
    ):
        grid = output_grid(read_facts(path), "EPSG:32633", 13)
        cog = make_cog(path, tmp_path / f"{name}.tif", grid, raster_type=kind)
        with rasterio.open(cog.path) as dataset:
            results[name] = cog, dataset.read(1), dataset.read_masks(1) != 0

    def error(name: str) -> float:
        cog, values, valid = results[name]
        affine = ~place @ Affine(*cog.transform)
        rows, cols = np.nonzero(valid)
        u, v = affine.a * (cols + 0.5) + affine.c - 0.5, affine.e * (rows + 0.5) + affine.f - 0.5
        truth = 1000 + 800 * np.sin(u / 9) * np.cos(v / 7)
        return float(np.sqrt(((values[valid] - truth) ** 2).mean()))

    unknown, codes_cog = results["unknown"][0], results["codes"][0]
    assert (unknown.treated_as, unknown.is_type_unknown, unknown.resampling) == ("measurements", True, "bilinear")
    assert (codes_cog.treated_as, codes_cog.is_type_unknown, codes_cog.resampling) == ("classes", True, "nearest")
    assert error("unknown") < error("nearest") / 4
    assert set(np.unique(results["codes"][1][results["codes"][2]])) <= set(np.unique(class_map(27)))
