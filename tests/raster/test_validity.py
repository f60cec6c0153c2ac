"""Every reader uses the same rule for valid pixels, for random arrays and every way to mark nodata."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dagmaster.raster.analysis.footprint import footprint
from dagmaster.raster.analysis.statistics import measure
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.pixels import source_of
from dagmaster.raster.source.reading import data_bands, read_with_validity
from dagmaster.raster.source.sample import take_sample
from dagmaster.raster.source.window import Window
from dagmaster.raster.validation.check import check
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R7")

MARKS = ("none", "nodata", "nan nodata", "inf nodata", "impossible nodata", "mask", "alpha", "mask and nodata")
DTYPES = ("uint8", "int16", "uint16", "int32", "int64", "uint64", "float32", "float64")
SIZE = 60


class Scene:
    """A random raster with one way to mark nodata, and which pixels of its bands are valid."""

    def __init__(self, path: Path, seed: int) -> None:
        chance = random.Random(seed)
        rng = np.random.default_rng(seed)
        self.mark, self.dtype, bands = chance.choice(MARKS), chance.choice(DTYPES), chance.choice((1, 2, 3))
        is_float = self.dtype.startswith("float")
        values = rng.integers(1, 100, (bands, SIZE, SIZE)).astype(self.dtype)
        if is_float:
            for special in (np.nan, np.inf, -np.inf):
                values[rng.random(values.shape) < 0.02] = special
        values[rng.random(values.shape) < 0.2] = 7
        is_visible = rng.random((SIZE, SIZE)) < 0.7
        self.valid = ~np.isnan(values) if is_float else np.ones(values.shape, bool)
        options: dict[str, Any] = {}
        match self.mark:
            case "nodata":
                options["nodata"] = 7
                self.valid &= values != 7
            case "nan nodata" if is_float:
                options["nodata"] = math.nan
            case "inf nodata" if is_float:
                options["nodata"] = math.inf
                self.valid &= values != np.inf
            case "mask" | "mask and nodata":
                options["after"] = lambda dataset: dataset.write_mask(is_visible)
                self.valid &= is_visible
                if self.mark == "mask and nodata":
                    options["nodata"] = 7  # the mask is used
            case "alpha":
                full = 255 if self.dtype != "int16" else 100
                values = np.concatenate([values, np.where(is_visible, full, 0).astype(self.dtype)[np.newaxis]])
                self.valid &= is_visible
                options["alpha"] = "YES"  # the alpha band is the last of two or four bands
                if bands == 2:
                    values = np.concatenate([values[:1], values])
                    self.valid = np.concatenate([self.valid[:1], self.valid])
                    bands = 3
                if bands == 3:
                    options["photometric"] = "RGB"
        self.values = values[:bands]
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
            self.path = write_raster(path, values, **options)
        if self.mark == "impossible nodata" and self.dtype == "uint8":
            _declare(self.path, "-9999")

    def __str__(self) -> str:
        return f"{self.dtype} {len(self.values)} bands, {self.mark}"


def _declare(path: Path, nodata: str) -> None:
    """Write a nodata value that rasterio refuses to write."""
    with rasterio.open(path) as dataset:
        profile, values = dataset.profile | {"nodata": 111}, dataset.read()
    with rasterio.open(path, "w", **profile) as dataset:
        dataset.write(values)
    raw = path.read_bytes()
    assert raw.count(b"111\0") == 1
    path.write_bytes(raw.replace(b"111\0", nodata[:3].encode() + b"\0"))


@pytest.mark.parametrize("seed", range(120))
def test_all_readers_agree_on_the_valid_pixels(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path / "scene.tif", seed)

    with rasterio.open(scene.path) as dataset:
        read = np.stack([read_with_validity(dataset, band)[1] for band in data_bands(dataset)])
        sample = take_sample(dataset, read_facts(scene.path))
        source = source_of(dataset, RasterType.UNKNOWN)
        block = source.read(Window(0, 0, SIZE, SIZE))
        written = [source.rules.valid_in_band(block, band) for band in range(len(scene.values))]

    assert np.array_equal(read, scene.valid), scene
    assert [band.valid for band in sample.bands.values()] == scene.valid.sum(axis=(1, 2)).tolist(), scene
    for band, expected in zip(written, scene.valid, strict=True):
        assert np.array_equal(np.ones((SIZE, SIZE), bool) if band is None else band, expected), scene
    is_visible = np.ones((SIZE, SIZE), bool) if block.valid is None else block.valid.any(axis=0)
    assert np.array_equal(is_visible, scene.valid.any(axis=0)), scene


@pytest.mark.parametrize("seed", range(40))
def test_a_cog_keeps_the_valid_pixels_and_its_statistics_count_the_finite_ones(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path / "scene.tif", seed)
    grid = output_grid(read_facts(scene.path), "EPSG:32633")

    cog = make_cog(scene.path, tmp_path / "cog.tif", grid, raster_type=RasterType.UNKNOWN)

    with rasterio.open(cog.path) as dataset:
        bands = [read_with_validity(dataset, band) for band in data_bands(dataset)]
    expected = np.zeros((len(scene.values), cog.height, cog.width), bool)
    expected[:, :SIZE, :SIZE] = scene.valid
    assert np.array_equal([valid for _, valid in bands], expected), scene
    for at, (values, valid) in enumerate(bands):
        assert np.array_equal(values[valid], scene.values[at][scene.valid[at]])
        finite = values[valid & np.isfinite(values)].astype("float64")
        for partial in (cog.statistics[at], measure(cog.path)[at]):
            assert (partial.count, partial.infinite) == (finite.size, int(valid.sum()) - finite.size)
            assert (partial.minimum, partial.maximum) == (finite.min(), finite.max())
            assert (partial.mean, partial.deviation) == pytest.approx((finite.mean(), finite.std()), rel=1e-12)


def test_infinity_is_data_and_is_reported(tmp_path: Path) -> None:
    values = np.full((40, 40), 5.0, "float32")
    values[3, :7], values[4, 0], values[5, 0] = np.inf, -np.inf, np.nan
    source = write_raster(tmp_path / "a.tif", values, nodata=-1)

    checked = check(source)
    cog = make_cog(
        source, tmp_path / "cog.tif", output_grid(read_facts(source), "EPSG:32633"), raster_type=RasterType.DEM
    )

    assert [finding.message for finding in checked.findings if finding.code == "raster.infinite"] == [
        "8 values are infinite; they are kept, and left out of the statistics"
    ]
    assert checked.fixes.nodata is None
    with rasterio.open(cog.path) as dataset:
        assert np.isinf(dataset.read(1)).sum() == 8
    [partial] = cog.statistics
    assert (partial.infinite, partial.count, partial.minimum, partial.maximum) == (8, 1591, 5, 5)


def test_a_raster_with_only_infinity_has_a_footprint_and_no_statistics(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "a.tif", np.full((40, 40), np.inf, "float32"), nodata=-1)

    assert check(source).has("raster.infinite")
    assert not check(source).errors
    assert footprint(source) is not None
    assert [partial.count for partial in measure(source)] == [0]


@pytest.mark.parametrize(("dtype", "end"), [("int64", "min"), ("int64", "max"), ("uint64", "max")])
def test_extreme_64_bit_nodata_values_are_exact(tmp_path: Path, dtype: str, end: str) -> None:
    """rasterio passes nodata as a float, and GDAL writes it with an exponent, of which only the first digit is read."""
    nodata = getattr(np.iinfo(dtype), end)
    values = np.arange(1, 1601).reshape(40, 40).astype(dtype)
    values[:10] = nodata
    values[20, 20] = 9  # GDAL would read 9 as the nodata value
    source = write_raster(tmp_path / "a.tif", values)
    fixes = check(source).fixes

    cog = make_cog(
        source,
        tmp_path / "cog.tif",
        output_grid(read_facts(source), "EPSG:32633"),
        raster_type=RasterType.DEM,
        nodata=float(nodata),
    )

    assert fixes.nodata is None or abs(fixes.nodata) <= 2**53
    with rasterio.open(cog.path) as dataset:
        values_read, valid = read_with_validity(dataset, 1)
    assert valid[:40, :40].sum() == 30 * 40
    assert np.array_equal(values_read[10:40, :40], values[10:])
    assert cog.statistics[0].count == 30 * 40
