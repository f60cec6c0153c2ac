import doctest
import math
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from affine import Affine
from rasterio.enums import ColorInterp, MaskFlags, Resampling
from rio_cogeo.cogeo import cog_validate

from dagmaster.errors import InvalidRequest, Unavailable, UnfitData
from dagmaster.raster.cog import tiff
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.profiles import ANALYSIS, CogProfile, Tier, profile_of
from dagmaster.raster.cog.write import CogFacts, make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.pixels import Validity
from dagmaster.raster.source.window import Window
from tests.raster.rasters import TRANSFORM, hills, noise, write_raster

pytestmark = pytest.mark.requirement("R5", "R8")

RGB = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]


def cog(
    source: Path, *, target_crs: str = "EPSG:4326", raster_type: RasterType = RasterType.RGB, **how: Any
) -> tuple[CogFacts, Any]:
    """The facts and the open dataset of a COG that every validator has accepted."""
    grid = output_grid(read_facts(source), target_crs)
    facts = make_cog(source, source.with_name("cog.tif"), grid, raster_type=raster_type, **how)
    require_valid(facts.path)
    return facts, rasterio.open(facts.path)


def require_valid(path: Path) -> None:
    is_valid, errors, warnings = cog_validate(path, strict=True, quiet=True)
    assert (is_valid, errors, warnings) == (True, [], [])
    completed = subprocess.run(["gdalinfo", str(path)], check=True, capture_output=True, text=True)
    assert "LAYOUT=COG" in completed.stdout
    assert not completed.stderr
    with tifffile.TiffFile(path) as file:
        assert file.pages[0].is_tiled


def files_besides_source(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry.name != "source.tif")


@pytest.mark.parametrize("tier", [Tier.ANALYSIS, Tier.ARCHIVE])
@pytest.mark.parametrize(
    ("dtype", "bands"),
    [
        ("uint8", 1),
        ("uint8", 3),
        ("uint8", 4),
        ("uint16", 8),
        ("int16", 1),
        ("float32", 1),
        ("float64", 2),
        ("int32", 1),
        ("int8", 1),
    ],
)
def test_lossless_tiers_keep_every_value(tmp_path: Path, dtype: str, bands: int, tier: Tier) -> None:
    values = noise(bands, 600, 700, dtype=dtype, high=100)
    source = write_raster(tmp_path / "source.tif", values)

    facts, dataset = cog(source, target_crs="EPSG:32633", raster_type=RasterType.UNKNOWN, profile=profile_of(tier))

    with dataset:
        assert np.array_equal(dataset.read(), values)
        assert dataset.dtypes == (dtype,) * bands
        assert dataset.block_shapes == [(512, 512)] * bands
        assert dataset.overviews(1) == [2]
    assert np.array_equal(np.moveaxis(np.atleast_3d(tifffile.imread(facts.path)), -1, 0), values)
    assert (facts.tier, facts.compression, facts.overviews) == (tier, profile_of(tier).compression(dtype), (2,))
    assert facts.reprojection_performed is False


def test_the_facts_agree_with_the_file(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(3, 700, 900), photometric="RGB")

    facts, dataset = cog(source)

    with dataset:
        assert (facts.width, facts.height, facts.band_count, facts.dtype) == (dataset.width, dataset.height, 3, "uint8")
        assert Affine(*facts.transform).almost_equals(dataset.transform, 1e-12)
        assert facts.bounds == pytest.approx(tuple(dataset.bounds))
        assert facts.bounds_4326 == pytest.approx(tuple(dataset.bounds))
        assert dataset.crs.to_epsg() == 4326
    digest = subprocess.run(["sha256sum", str(facts.path)], check=True, capture_output=True, text=True)
    assert facts.sha256 == digest.stdout.split()[0]
    assert facts.size_bytes == facts.path.stat().st_size
    assert facts.reprojection_performed
    assert facts.resampling == "bilinear"
    assert set(facts.seconds) == {"read_and_warp", "statistics", "overviews", "encode", "join"}
    assert files_besides_source(facts.path) == ["cog.tif"]


def test_all_metadata_of_bands_is_kept(tmp_path: Path) -> None:
    def describe(dataset: Any) -> None:
        dataset.descriptions = ("elevation", "depth")
        dataset.units = ("m", "cm")
        dataset.scales = (0.1, 2.0)
        dataset.offsets = (-5.0, 0.5)
        dataset.colorinterp = [ColorInterp.gray, ColorInterp.undefined]
        dataset.update_tags(AREA_OR_POINT="Point")

    source = write_raster(tmp_path / "source.tif", noise(2, 600, 600, dtype="int16"), nodata=-9999, after=describe)

    facts, dataset = cog(source, raster_type=RasterType.DEM)

    with dataset, rasterio.open(source) as original:
        for name in ("descriptions", "units", "scales", "offsets", "colorinterp", "nodata"):
            assert getattr(dataset, name) == getattr(original, name), name
        assert dataset.tags()["AREA_OR_POINT"] == "Point"
        assert Affine(*facts.transform).almost_equals(dataset.transform, 1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_palette_is_kept_in_every_overview(tmp_path: Path, dtype: str) -> None:
    palette = {value: (value * 20, 255 - value, value, 255) for value in range(12)}
    values = noise(1, 1300, 1300, dtype=dtype, low=0, high=12)
    source = write_raster(tmp_path / "source.tif", values, after=lambda dataset: dataset.write_colormap(1, palette))

    facts, dataset = cog(source, raster_type=RasterType.UNKNOWN)

    with dataset:
        assert dataset.colorinterp == (ColorInterp.palette,)
        assert {value: dataset.colormap(1)[value] for value in palette} == palette
        assert set(np.unique(dataset.read())) <= set(range(12))
    assert facts.resampling == "nearest"
    with rasterio.open(facts.path, overview_level=0) as overview:
        assert overview.colormap(1)[5] == palette[5]
        assert set(np.unique(overview.read())) <= set(range(12))


@pytest.mark.parametrize(
    ("dtype", "colors"), [("uint8", RGB), ("uint16", RGB), ("uint16", [ColorInterp.undefined] * 5)]
)
def test_colours_keep_their_meaning(tmp_path: Path, dtype: str, colors: list[ColorInterp]) -> None:
    def paint(dataset: Any) -> None:
        dataset.colorinterp = colors

    source = write_raster(
        tmp_path / "source.tif", noise(len(colors), 300, 300, dtype=dtype), after=paint, photometric="MINISBLACK"
    )

    _, dataset = cog(source, raster_type=RasterType.MULTISPECTRAL)

    with dataset, rasterio.open(source) as original:
        assert dataset.colorinterp == original.colorinterp


def test_alpha_marks_nodata(tmp_path: Path) -> None:
    values = noise(4, 600, 600)
    values[3] = 255
    values[3, 100:200, 100:200] = 0
    source = write_raster(tmp_path / "source.tif", values, photometric="RGB", alpha="YES")

    facts, dataset = cog(source, raster_type=RasterType.RGBA)

    with dataset:
        assert dataset.colorinterp == (*RGB, ColorInterp.alpha)
        assert dataset.nodata is None
        assert 0.02 < (dataset.dataset_mask() == 0).mean() < 0.6
    assert facts.validity is Validity.ALPHA


def test_without_nodata_a_mask_marks_pixels_outside(tmp_path: Path) -> None:
    turned = Affine.translation(500_000, 5_000_000) @ Affine.rotation(30) @ Affine.scale(10, -10)
    source = write_raster(tmp_path / "source.tif", np.full((3, 900, 900), 9, "uint8"), transform=turned)

    facts, dataset = cog(source)

    with dataset:
        assert MaskFlags.per_dataset in dataset.mask_flag_enums[0]
        mask = dataset.dataset_mask()
        assert 0.2 < (mask == 0).mean() < 0.8
        assert ((dataset.read(1) == 9) == (mask == 255)).all()
    assert (facts.validity, facts.nodata, facts.band_count) == (Validity.MASK, None, 3)
    with rasterio.open(facts.path, overview_level=0) as overview:
        small = overview.dataset_mask()
        assert abs((small == 0).mean() - (mask == 0).mean()) < 0.01
        assert set(np.unique(overview.read(1)[small == 255])) == {9}


def test_a_tile_completely_inside_the_source_has_no_mask(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 2500, 2500))
    grid = output_grid(read_facts(source))

    facts = make_cog(source, tmp_path / "cog.tif", grid, Window(1024, 512, 600, 600), raster_type=RasterType.RGB)

    assert facts.validity is Validity.ALL
    with rasterio.open(facts.path) as dataset:
        assert MaskFlags.all_valid in dataset.mask_flag_enums[0]


def test_floats_without_nodata_get_nan(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 600, 600, dtype="float32"))

    facts, dataset = cog(source, raster_type=RasterType.DEM)

    with dataset:
        assert math.isnan(dataset.nodata)
        assert np.isnan(dataset.read()).any()
    assert math.isnan(facts.nodata or 0)


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", 0), ("int16", -9999), ("float32", -9999.0), ("float32", math.nan)]
)
def test_overviews_never_mix_nodata_into_data(tmp_path: Path, dtype: str, nodata: float) -> None:
    """Every valid value is 100 … 110: any other value in an overview is mixed with nodata."""
    rng = np.random.default_rng(5)
    values = rng.integers(100, 111, (1, 2100, 2100)).astype(dtype)
    values[0][rng.random((2100, 2100)) < 0.4] = nodata
    values[0, :700, :300] = nodata
    source = write_raster(tmp_path / "source.tif", values, nodata=nodata)

    facts, dataset = cog(source, raster_type=RasterType.DEM, target_crs="EPSG:32633")

    dataset.close()
    assert len(facts.overviews) == 3
    for level in range(3):
        with rasterio.open(facts.path, overview_level=level) as overview:
            pixels = overview.read(1, masked=True)
            assert 100 <= pixels.min() <= pixels.max() <= 110
            assert pixels.mask[2, 2]
            assert not pixels.mask[-3, -3]


def test_empty_blocks_are_not_stored(tmp_path: Path) -> None:
    values = np.zeros((3, 2048, 2048), "uint8")
    values[:, :100, :100] = 77
    source = write_raster(tmp_path / "source.tif", values, nodata=0, compress="deflate")

    facts, dataset = cog(source, target_crs="EPSG:32633")

    with dataset:
        assert np.array_equal(dataset.read(), values)
    with tifffile.TiffFile(facts.path) as file:
        assert sum(size > 0 for size in file.pages[0].databytecounts) == 1


def test_a_window_without_data_is_reported(tmp_path: Path) -> None:
    values = np.zeros((1, 1500, 1500), "uint8")
    values[:, :100, :100] = 1
    source = write_raster(tmp_path / "source.tif", values, nodata=0)
    grid = output_grid(read_facts(source), "EPSG:32633")

    facts = make_cog(source, tmp_path / "cog.tif", grid, Window(1024, 1024, 400, 400), raster_type=RasterType.UNKNOWN)

    assert facts.is_empty
    require_valid(facts.path)


@pytest.mark.parametrize("alpha", [False, True])
def test_jpeg_has_a_mask_and_looks_like_the_source(tmp_path: Path, alpha: bool) -> None:
    y, x = np.mgrid[0:1100, 0:1100]
    smooth = np.stack([120 + 80 * np.sin(x / 90), 120 + 80 * np.cos(y / 70), 60 + 0 * x]).astype("uint8")
    smooth[:, 200:500, 200:500] = 0
    where = {"alpha": "YES"} if alpha else {"nodata": 0}
    values = (
        np.concatenate([smooth, np.where(smooth.any(axis=0), 255, 0)[np.newaxis].astype("uint8")]) if alpha else smooth
    )
    source = write_raster(tmp_path / "source.tif", values, photometric="RGB", **where)

    facts, dataset = cog(
        source, target_crs="EPSG:32633", profile=profile_of("visualization"), raster_type=RasterType.RGB
    )

    with dataset:
        mask = dataset.dataset_mask()
        assert dataset.count == 3
        assert dataset.colorinterp == tuple(RGB)
        assert dataset.nodata is None
        assert dataset.tags(ns="IMAGE_STRUCTURE")["COMPRESSION"] == "YCbCr JPEG"
        assert np.array_equal(mask == 255, smooth.any(axis=0))
        assert np.abs(dataset.read().astype(int) - smooth)[:, 600:, 600:].mean() < 3
        assert MaskFlags.per_dataset in dataset.mask_flag_enums[0]
    assert (facts.compression, facts.validity, facts.nodata) == ("JPEG", Validity.MASK, None)


def test_jpeg_has_the_requested_quality(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(3, 600, 600), photometric="RGB")
    sizes = []

    for quality in (30, 85, 95):
        facts, dataset = cog(source, target_crs="EPSG:32633", profile=profile_of("visualization", jpeg_quality=quality))
        dataset.close()
        sizes.append(facts.size_bytes)

    assert 2 * sizes[0] < sizes[1] < sizes[2]


def test_jpeg_of_other_data_than_pictures_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(3, 300, 300, dtype="uint16"))

    with pytest.raises(UnfitData, match="uint16"):
        cog(source, profile=profile_of("visualization"))

    assert files_besides_source(source) == []


def test_a_nodata_value_can_be_given_for_a_file_that_declares_none(tmp_path: Path) -> None:
    values = noise(1, 600, 600, dtype="int16", low=1, high=50)
    values[:, :100] = -1
    source = write_raster(tmp_path / "source.tif", values)

    facts, dataset = cog(source, raster_type=RasterType.DEM, nodata=-1)

    with dataset:
        pixels = dataset.read(1, masked=True)
        assert pixels.min() >= 1
    assert (facts.nodata, facts.validity) == (-1, Validity.NODATA)


def test_source_crs_is_used(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 600, 600), crs=None)
    grid = output_grid(read_facts(source, source_crs="EPSG:32633"))

    with pytest.raises(UnfitData, match="no CRS"):
        make_cog(source, tmp_path / "cog.tif", grid, raster_type=RasterType.RGB)
    facts = make_cog(source, tmp_path / "cog.tif", grid, raster_type=RasterType.RGB, source_crs="EPSG:32633")

    assert not facts.is_empty


def test_the_same_pixels_give_the_same_bytes(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(3, 700, 700))

    first, one = cog(source)
    one.close()
    second, other = cog(source)
    other.close()

    assert first.sha256 == second.sha256


def test_progress_is_reported_and_an_error_in_its_callback_stops_the_work(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 1600, 600))
    reported: list[float] = []

    def stop(done: float) -> None:
        reported.append(done)
        if done > 0.4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        cog(source, on_progress=stop, target_crs="EPSG:32633")

    assert reported == pytest.approx([0.25, 0.5])
    assert files_besides_source(source) == []


def test_an_existing_target_is_unchanged_until_the_new_one_is_complete(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 1100, 600))
    (tmp_path / "cog.tif").write_text("old content")

    with pytest.raises(ZeroDivisionError):
        cog(source, on_progress=lambda done: 1 / 0)

    assert (tmp_path / "cog.tif").read_text() == "old content"


def _make_slowly(source: Path, target: Path) -> None:
    grid = output_grid(read_facts(source), "EPSG:32633")
    make_cog(source, target, grid, raster_type=RasterType.RGB, on_progress=lambda done: time.sleep(60))


def test_a_process_killed_while_writing_leaves_no_target(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 1100, 600))
    process = multiprocessing.get_context("fork").Process(target=_make_slowly, args=(source, tmp_path / "cog.tif"))

    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".cog.tif-*/0.tif")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()

    assert all(name.startswith(".cog.tif-") for name in files_besides_source(source))
    assert len(files_besides_source(source)) == 1


def test_blocks_that_were_not_written_to_disk_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GDAL writes its cache late and reports no error if it cannot."""
    source = write_raster(tmp_path / "source.tif", noise(1, 1100, 600))
    monkeypatch.setattr(tiff, "_numbers", lambda kind, count, value: (0,) * count)

    with pytest.raises(Unavailable, match="not written"):
        cog(source)

    assert files_besides_source(source) == []


@pytest.mark.parametrize("limit", [2**31, 1000])
def test_blocks_are_laid_out_as_the_ghost_area_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Readers rely on the ghost area: they read a block's size before it, and check its end by the bytes after it."""
    monkeypatch.setattr(tiff, "_CLASSIC_LIMIT", limit)
    source = write_raster(tmp_path / "source.tif", noise(3, 1300, 1200), photometric="RGB")

    facts, dataset = cog(source)

    dataset.close()
    content = facts.path.read_bytes()
    head = content[8:].lstrip(b"\0")[:300] if limit > 1000 else content[16:316]
    size, _, promises = head.removeprefix(b"GDAL_STRUCTURAL_METADATA_SIZE=").partition(b" bytes\n")
    promised = promises[: int(size)].decode()
    assert promised.endswith("KNOWN_INCOMPATIBLE_EDITION=NO\n ")
    assert "BLOCK_LEADER=SIZE_AS_UINT4\nBLOCK_TRAILER=LAST_4_BYTES_REPEATED\n" in promised
    places = []
    with tifffile.TiffFile(facts.path) as file:
        for page in file.pages:
            for place, length in zip(page.dataoffsets, page.databytecounts, strict=True):
                assert int.from_bytes(content[place - 4 : place], "little") == length
                assert content[place + length : place + length + 4] == content[place + length - 4 : place + length]
                places.append((place, length))
    assert len(places) > 10
    last_place, last_length = max(places)
    assert last_place + last_length + 4 == len(content)


def test_large_files_are_bigtiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "_CLASSIC_LIMIT", 1000)
    values = noise(3, 1300, 700)
    source = write_raster(tmp_path / "source.tif", values, nodata=0)

    facts, dataset = cog(source, target_crs="EPSG:32633")

    with dataset:
        assert np.array_equal(dataset.read(), values)
    with tifffile.TiffFile(facts.path) as file:
        assert file.is_bigtiff


def test_a_window_that_is_not_of_the_grid_is_refused(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 1100, 600))

    with pytest.raises(InvalidRequest, match="not a window of the grid"):
        make_cog(
            source,
            tmp_path / "cog.tif",
            output_grid(read_facts(source)),
            Window(7, 0, 100, 100),
            ANALYSIS,
            raster_type=RasterType.RGB,
        )


def test_the_resampling_can_be_chosen(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "source.tif", noise(1, 600, 600))

    facts, dataset = cog(source, resampling=Resampling.cubic, profile=CogProfile(Tier.ARCHIVE))

    dataset.close()
    assert facts.resampling == "cubic"


@pytest.mark.parametrize("page", ["grid.md", "tiers.md"])
def test_the_examples_of_the_pages_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    text = Path(__file__).parents[2] / "docs" / "raster" / page
    write_raster(tmp_path / "scene.tif", noise(3, 1400, 1500), photometric="RGB")
    write_raster(tmp_path / "west.tif", hills(200, 200))
    write_raster(tmp_path / "east.tif", hills(200, 200), transform=TRANSFORM @ Affine.translation(200, 0))
    monkeypatch.chdir(tmp_path)

    failed, tried = doctest.testfile(str(text), module_relative=False)

    assert (failed, tried > 3) == (0, True)


@pytest.mark.requirement("R2")
def test_a_band_wrongly_marked_as_alpha_is_kept_as_data(tmp_path: Path) -> None:
    """GDAL marks the fourth band of an 8-bit picture as alpha, even if it is near infrared."""
    source, target = tmp_path / "rgbn.tif", tmp_path / "cog.tif"
    bands = np.random.default_rng(1).integers(0, 255, (4, 600, 600), dtype="uint8")
    bands[3, :300] = 0
    options = {"driver": "GTiff", "width": 600, "height": 600, "count": 4, "dtype": "uint8", "crs": "EPSG:32633"}
    with rasterio.open(
        source, "w", photometric="RGB", transform=Affine(1, 0, 500_000, 0, -1, 5_300_000), **options
    ) as dataset:
        dataset.write(bands)
    grid = output_grid(read_facts(source), "EPSG:32633")
    facts = make_cog(source, target, grid, raster_type=RasterType.NIR, unset_alpha=True)

    with rasterio.open(target) as cog:
        assert (cog.read() == bands).all()
        assert cog.read_masks(1).all()
        assert "alpha" not in [color.name for color in cog.colorinterp]
    assert facts.validity == "all"


def test_the_fourth_band_of_rgba_is_alpha_even_if_the_file_does_not_declare_it(tmp_path: Path) -> None:
    source, target = tmp_path / "rgba.tif", tmp_path / "cog.tif"
    bands = np.full((4, 600, 600), 90, dtype="uint8")
    bands[3] = 255
    bands[3, :, :200] = 0
    options = {"driver": "GTiff", "width": 600, "height": 600, "count": 4, "dtype": "uint8", "crs": "EPSG:32633"}
    place = Affine(1, 0, 500_000, 0, -1, 5_300_000)
    with rasterio.open(source, "w", photometric="MINISBLACK", alpha="NO", transform=place, **options) as dataset:
        dataset.write(bands)
    facts = make_cog(source, target, output_grid(read_facts(source), "EPSG:32633"), raster_type=RasterType.RGBA)

    with rasterio.open(target) as cog:
        assert cog.colorinterp[3] is ColorInterp.alpha
        assert (cog.read_masks(1)[:, :200] == 0).all()
    assert facts.validity == "alpha"
