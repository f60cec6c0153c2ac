"""Each kind of file gets its verdict, with findings that give advice."""

import doctest
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC
from rasterio.transform import from_bounds, from_origin

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.raster.source.facts import BandFacts, RasterFacts, RasterType, facts_of, read_facts
from dagmaster.raster.source.sample import BandRange, Sample, look_up_blocks, take_sample
from dagmaster.raster.validation.check import Ceilings, Checked, Severity, Verdict, check
from dagmaster.raster.validation.header_rules import judge_header
from dagmaster.raster.validation.pixel_rules import judge_pixels
from tests.raster.rasters import TRANSFORM, hills, noise, write_raster

pytestmark = pytest.mark.requirement("R2")

MOON = CRS.from_wkt(
    'GEOGCRS["Moon",DATUM["Moon",ELLIPSOID["Moon",1737400,0,LENGTHUNIT["metre",1]]],'
    'CS[ellipsoidal,2],AXIS["lat",north],AXIS["lon",east],ANGLEUNIT["degree",0.0174532925199433]]'
)
VENUS = CRS.from_proj4("+proj=merc +a=6051800 +b=6051800 +units=m +no_defs")
LOCAL = CRS.from_wkt('LOCAL_CS["site grid",UNIT["metre",1]]')
RGBA = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha)


def codes(checked: Checked, severity: Severity | None = None) -> set[str]:
    return {
        finding.code.removeprefix("raster.") for finding in checked.findings if severity in (None, finding.severity)
    }


def fixes(checked: Checked) -> set[str]:
    return {finding.fix for finding in checked.findings if finding.fix}


def with_collar(values: Any, value: float, width: int = 20) -> Any:
    values[..., :width, :] = values[..., -width:, :] = values[..., :, :width] = values[..., :, -width:] = value
    return values


def with_alpha(values: Any, alpha: int) -> Any:
    return np.concatenate([values, np.full((1, *values.shape[1:]), alpha, values.dtype)])


def degrees(west: float, south: float, east: float, north: float, side: int = 60) -> dict[str, Any]:
    return {"crs": "EPSG:4326", "transform": from_bounds(west, south, east, north, side, side)}


def scene(**changes: Any) -> dict[str, Any]:
    return {"values": noise(3, 60, 60), "photometric": "RGB", **changes}


def with_undeclared(value: float, dtype: str = "float32") -> dict[str, Any]:
    values = hills(60, 60).astype(dtype)
    values[30, 20:30] = value
    return {"values": values}


def give_palette(dataset: Any) -> None:
    dataset.write_colormap(1, {0: (0, 0, 0, 255), 1: (255, 0, 0, 255), 2: (0, 255, 0, 128)})


POINTS = [GroundControlPoint(row, col, 10 + col / 100, 50 - row / 100) for row in (0, 60) for col in (0, 60)]
COEFFICIENTS = RPC(
    height_off=0,
    height_scale=100,
    lat_off=50,
    lat_scale=0.1,
    long_off=10,
    long_scale=0.1,
    line_off=30,
    line_scale=30,
    samp_off=30,
    samp_scale=30,
    line_num_coeff=[1.0] * 20,
    line_den_coeff=[1.0] * 20,
    samp_num_coeff=[1.0] * 20,
    samp_den_coeff=[1.0] * 20,
    err_bias=0.0,
    err_rand=0.0,
)

# For each case: the content of the file, and the expected findings.
REJECTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no crs": (scene(crs=None), {"no-crs"}),
    "no geotransform": (scene(transform=None), {"no-georeference"}),
    "neither": (scene(crs=None, transform=None), {"no-crs", "no-georeference"}),
    "control points only": (scene(crs="EPSG:4326", transform=None, gcps=POINTS), {"gcp-only"}),
    "rpc only": (scene(transform=None, rpcs=COEFFICIENTS), {"rpc-only"}),
    "pixels without size": (scene(transform=Affine(10, 0, 5e5, 10, 0, 5e6)), {"bad-transform"}),
    "complex": ({"values": np.ones((60, 60), "complex64")}, {"complex"}),
    "local crs": (scene(crs=LOCAL), {"local-crs"}),
    "the moon": (scene(crs=MOON, transform=from_origin(0, 10, 0.1, 0.1)), {"not-earth"}),
    "venus": (scene(crs=VENUS), {"not-earth"}),
    "metres as degrees": (scene(crs="EPSG:4326"), {"out-of-range"}),
    "latitude first": (scene(**degrees(-40, 140, -30, 150)), {"axes-swapped"}),
    "off the earth": (scene(transform=from_origin(9e8, 9e8, 10, 10), crs="ESRI:54009"), {"off-earth"}),
    "all nodata": ({"values": np.full((60, 60), 7, "uint8"), "nodata": 7}, {"all-nodata"}),
    "all nan": ({"values": np.full((60, 60), np.nan, "float32")}, {"all-nodata"}),
    "transparent": (scene(values=with_alpha(noise(3, 60, 60), 0), alpha="YES"), {"all-nodata"}),
    "a picture": (
        {"values": noise(3, 60, 60), "driver": "PNG", "crs": None, "transform": None},
        {"no-crs", "no-georeference"},
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_unfit_files_are_rejected_for_the_right_reason(name: str, tmp_path: Path) -> None:
    content, expected = REJECTED[name]
    path = write_raster(tmp_path / "scene.tif", **content)

    checked = check(path)

    assert checked.verdict is Verdict.REJECT
    assert codes(checked, Severity.ERROR) == expected
    assert all(finding.advice for finding in checked.errors)
    assert str(tmp_path) not in " ".join(finding.message + finding.advice for finding in checked.findings)
    with pytest.raises(UnfitData) as refused:
        checked.require_fit()
    assert refused.value.code == checked.findings[0].code


ROTATED = Affine.translation(500_000, 5_000_000) @ Affine.rotation(30) @ Affine.scale(10, -10)
TILES = {"tiled": True, "blockxsize": 512, "blockysize": 512}
INFRARED = {"unset-alpha", "add-mask"}
OPAQUE = with_alpha(noise(3, 60, 60), 255)
SMALL_TILES = {"tiled": True, "blockxsize": 64, "blockysize": 64}
WARNED: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "rotated": (scene(transform=ROTATED, nodata=0), {"rotated"}, {"resample-north-up"}),
    "south up": (scene(transform=Affine(10, 0, 5e5, 0, 10, 5e6), nodata=0), {"flipped"}, {"resample-north-up"}),
    "strips": (scene(values=noise(3, 600, 600), nodata=0), {"striped"}, {"retile"}),
    "small tiles": (scene(values=noise(3, 600, 600), nodata=0, **SMALL_TILES), {"block-size"}, {"retile"}),
    "one pixel wide": (scene(values=noise(3, 60, 1), nodata=0), {"thin"}, set()),
    "no nodata, bytes": ({"values": noise(60, 60, low=0, high=256)}, {"no-nodata"}, {"add-mask"}),
    "no nodata, floats": ({"values": hills(60, 60)}, {"no-nodata"}, {"declare-nodata"}),
    "no nodata, 16 bits": (scene(values=noise(5, 60, 60, dtype="uint16")), {"no-nodata"}, {"declare-nodata"}),
    "nan undeclared": (with_undeclared(np.nan), {"undeclared-nodata"}, {"declare-nodata"}),
    "-9999 undeclared": (with_undeclared(-9999), {"undeclared-nodata"}, {"declare-nodata"}),
    "-3.4e38 undeclared": (with_undeclared(np.finfo("f4").min), {"undeclared-nodata"}, {"declare-nodata"}),
    "-32768 undeclared": (with_undeclared(-32768, "int16"), {"undeclared-nodata"}, {"declare-nodata"}),
    "two nodata values": ({"values": with_collar(hills(60, 60), -32768), "nodata": -9999}, {"second-nodata"}, set()),
    "black collar": (scene(values=with_collar(noise(3, 60, 60), 0)), {"collar"}, {"declare-nodata"}),
    "white collar": (scene(values=with_collar(noise(3, 60, 60), 255)), {"collar"}, {"declare-nodata"}),
    "the sea around an island": (
        {"values": with_collar(hills(60, 60), 0)},
        {"collar", "no-nodata"},
        {"declare-nodata"},
    ),
    "alpha and nodata": (scene(values=OPAQUE, nodata=0, alpha="YES"), {"alpha-and-nodata"}, {"use-alpha"}),
    "infrared as alpha": (scene(values=noise(4, 60, 60), alpha="YES"), {"alpha-is-picture"}, INFRARED),
    "one value": (scene(values=np.full((3, 60, 60), 9, "uint8"), nodata=0), {"constant"}, set()),
    "32-bit classes": (
        {"values": noise(60, 60, dtype="int32", high=9), "nodata": 0},
        {"wide-integers"},
        {"narrow-dtype"},
    ),
    "8-bit colours in 16 bits": (
        scene(values=noise(3, 60, 60, dtype="uint16"), nodata=0),
        {"wide-integers"},
        {"narrow-dtype"},
    ),
    "degrees called metres": (scene(transform=from_origin(10, 50, 0.01, 0.01), nodata=0), {"degrees"}, set()),
    "outside its zone": (scene(transform=from_origin(5_000_000, 500_000, 10, 10), nodata=0), {"outside-area"}, set()),
}


@pytest.mark.parametrize("name", WARNED)
def test_files_with_flaws_are_accepted_with_a_warning_and_a_fix(name: str, tmp_path: Path) -> None:
    content, expected, expected_fixes = WARNED[name]
    path = write_raster(tmp_path / "scene.tif", **content)

    checked = check(path)

    assert checked.verdict is Verdict.WARN
    assert codes(checked, Severity.WARN) == expected
    assert fixes(checked) == expected_fixes
    assert checked.require_fit() is checked


PASSED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "rgb": (scene(), {"all-data"}),
    "rgb with nodata": (scene(nodata=0), set()),
    "rgb in tiles": (scene(values=noise(3, 600, 600), nodata=0, **TILES), set()),
    "nan nodata": ({"values": with_collar(hills(60, 60), np.nan), "nodata": math.nan}, {"nan-nodata"}),
    "palette": ({"values": noise(60, 60, low=0, high=3), "nodata": 255, "after": give_palette}, {"palette"}),
    "alpha": (scene(values=with_collar(with_alpha(noise(3, 60, 60), 255), 0), alpha="YES"), set()),
    "16-bit rgb": (scene(values=noise(3, 60, 60, dtype="uint16", high=4000), nodata=0), {"wide-rgb"}),
    "in feet": (scene(crs="EPSG:2263", transform=from_origin(980_000, 200_000, 10, 10), nodata=0), {"feet"}),
    "0 to 360": (scene(**degrees(0, -90, 360, 90), nodata=0), {"longitudes", "oblong-pixels"}),
    "across the antimeridian": (scene(**degrees(175, -20, 185, -10), nodata=0), {"longitudes"}),
    "64-bit floats": ({"values": hills(60, 60).astype("f8"), "nodata": -9999.0}, {"wide-float"}),
    "a cog": (scene(values=noise(3, 600, 600), nodata=0, driver="COG"), {"cog"}),
    "4 bits": ({"values": noise(60, 60, high=15), "nodata": 0, "nbits": 4}, {"bits", "type-unknown"}),
}


@pytest.mark.parametrize("name", PASSED)
def test_good_files_pass_with_information(name: str, tmp_path: Path) -> None:
    content, expected = PASSED[name]
    path = write_raster(tmp_path / "scene.tif", **content)

    checked = check(path)

    assert checked.verdict is Verdict.PASS
    assert codes(checked) == expected


# Options of the check


def test_a_file_without_crs_passes_with_source_crs(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(3, 60, 60), crs=None, nodata=0)

    checked = check(path, source_crs="EPSG:32633")

    assert checked.verdict is Verdict.PASS
    assert codes(checked) == {"crs-given"}
    assert checked.fixes.source_crs == "EPSG:32633"


def test_a_source_crs_that_contradicts_the_file_is_a_warning(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(3, 60, 60), nodata=0)

    checked = check(path, source_crs="EPSG:32634")

    assert codes(checked, Severity.WARN) == {"crs-overridden"}
    assert checked.fixes.source_crs == "EPSG:32634"
    assert check(path, source_crs="EPSG:32633").fixes.source_crs is None


def test_source_crs_replaces_the_crs_of_another_planet(tmp_path: Path) -> None:
    path = write_raster(
        tmp_path / "scene.tif", noise(3, 60, 60), crs=MOON, transform=from_origin(0, 10, 0.1, 0.1), nodata=0
    )

    assert codes(check(path, source_crs="EPSG:4326"), Severity.ERROR) == set()


def test_invalid_options_raise_an_error_instead_of_a_verdict(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(60, 60))

    with pytest.raises(InvalidRequest):
        check(path, source_crs="nowhere")
    with pytest.raises(InvalidRequest):
        check(path, raster_type="holiday picture")
    with pytest.raises(NotFound):
        check(tmp_path / "missing.tif")


@pytest.mark.parametrize(
    ("values", "wanted", "verdict", "code"),
    [
        (noise(60, 60), "rgb", Verdict.REJECT, "type-impossible"),
        (noise(3, 60, 60), "rgba", Verdict.REJECT, "type-impossible"),
        (noise(3, 60, 60), "dem", Verdict.WARN, "type-contradicts"),
        (noise(3, 60, 60), "rgb", Verdict.PASS, None),
        (noise(60, 60), "dem", Verdict.PASS, None),
        (noise(60, 60), "auto", Verdict.PASS, "type-unknown"),
    ],
)
def test_the_submitted_type_takes_precedence_and_a_contradiction_is_reported(
    values: Any, wanted: str, verdict: Verdict, code: str | None, tmp_path: Path
) -> None:
    path = write_raster(tmp_path / "scene.tif", values, nodata=0)

    checked = check(path, raster_type=wanted)

    assert checked.verdict is verdict
    assert codes(checked) == ({code} if code else set())
    assert wanted in ("auto", checked.raster_type)


# Detection of the type


def blocky(classes: int) -> Any:
    return np.kron(noise(8, 8, high=classes + 1), np.ones((8, 8), "uint8")).astype("uint8")


def described(*words: str) -> Any:
    def set_descriptions(dataset: Any) -> None:
        dataset.descriptions = words

    return set_descriptions


TYPES: dict[str, tuple[dict[str, Any], RasterType]] = {
    "rgb": (scene(), RasterType.RGB),
    "three unnamed bands of bytes": ({"values": noise(3, 60, 60), "photometric": "MINISBLACK"}, RasterType.RGB),
    "rgba": (scene(values=with_collar(with_alpha(noise(3, 60, 60), 255), 0), alpha="YES"), RasterType.RGBA),
    "rgb and infrared": (scene(values=noise(4, 60, 60, dtype="uint16"), alpha="NO"), RasterType.NIR),
    "named infrared": ({"values": noise(60, 60, dtype="uint16"), "after": described("NIR")}, RasterType.NIR),
    "false colours": ({"values": noise(3, 60, 60), "after": described("nir", "red", "green")}, RasterType.NIR),
    "eight bands": ({"values": noise(8, 60, 60, dtype="uint16")}, RasterType.MULTISPECTRAL),
    "three bands of 16 bits": (
        {"values": noise(3, 60, 60, dtype="uint16"), "photometric": "MINISBLACK"},
        RasterType.MULTISPECTRAL,
    ),
    "hills": ({"values": hills(60, 60)}, RasterType.DEM),
    "hills as integers": ({"values": hills(60, 60).astype("int16")}, RasterType.DEM),
    "named elevation": ({"values": hills(60, 60, 0, 5), "after": described("Elevation")}, RasterType.DEM),
    "index recognised by its values": ({"values": hills(60, 60, -0.4, 0.9)}, RasterType.VEGETATION_INDEX),
    "index recognised by its name": (
        {"values": noise(60, 60), "after": described("NDVI 2024")},
        RasterType.VEGETATION_INDEX,
    ),
    "classes": ({"values": blocky(6)}, RasterType.CATEGORICAL),
    "palette": ({"values": noise(60, 60, low=0, high=3), "after": give_palette}, RasterType.CATEGORICAL),
    "named land cover": ({"values": noise(60, 60), "after": described("land_cover")}, RasterType.CATEGORICAL),
    "depths": ({"values": hills(60, 60, 0, 3)}, RasterType.UNKNOWN),
    "panchromatic": ({"values": noise(60, 60)}, RasterType.UNKNOWN),
    "noise": ({"values": noise(60, 60).astype("float32")}, RasterType.UNKNOWN),
}


@pytest.mark.parametrize("name", TYPES)
def test_the_type_follows_from_bands_names_and_values(name: str, tmp_path: Path) -> None:
    content, expected = TYPES[name]
    path = write_raster(tmp_path / "scene.tif", **content)

    assert check(path).raster_type is expected


# Damaged, incomplete, empty and oversized files


def large_scene(path: Path, **profile: Any) -> Path:
    """36 MB: too large to be read completely."""
    values = np.tile(noise(3, 500, 500), (1, 7, 7))
    return write_raster(path, values, nodata=0, interleave="pixel", **(TILES | profile))


def test_a_truncated_file_is_detected_without_reading_all_of_it(tmp_path: Path) -> None:
    """The header is complete and declares many more blocks."""
    path = large_scene(tmp_path / "scene.tif")
    assert check(path).verdict is Verdict.PASS

    for size in (path.stat().st_size - 1000, path.stat().st_size // 2):
        os.truncate(path, size)
        assert codes(check(path), Severity.ERROR) == {"truncated"}


def test_one_missing_byte_in_a_file_of_many_blocks_is_detected(tmp_path: Path) -> None:
    """Not every block is looked up, but the last one is."""
    blocks = {"tiled": True, "blockxsize": 32, "blockysize": 32}
    path = write_raster(tmp_path / "scene.tif", np.tile(noise(30, 30), (70, 70)), nodata=0, **blocks)
    assert check(path).verdict is Verdict.WARN

    os.truncate(path, path.stat().st_size - 1)

    assert codes(check(path), Severity.ERROR) == {"truncated"}


def test_a_damaged_block_is_detected_when_it_is_read(tmp_path: Path) -> None:
    path = large_scene(tmp_path / "scene.tif", compress="deflate", zlevel=1, blockxsize=256, blockysize=256)
    with rasterio.open(path) as dataset:
        last = int(dataset.get_tag_item("BLOCK_OFFSET_13_13", "TIFF", bidx=1))
        inner = int(dataset.get_tag_item("BLOCK_OFFSET_2_2", "TIFF", bidx=1))
    whole = path.read_bytes()

    path.write_bytes(whole[:last] + bytes(1000) + whole[last + 1000 :])
    assert codes(check(path), Severity.ERROR) == {"unreadable"}

    path.write_bytes(whole[:inner] + bytes(1000) + whole[inner + 1000 :])
    assert check(path).verdict is Verdict.PASS
    assert codes(check(path, every_pixel=True), Severity.ERROR) == {"unreadable"}


def test_the_result_states_how_many_pixels_were_read(tmp_path: Path) -> None:
    small = write_raster(tmp_path / "small.tif", noise(3, 60, 60), nodata=0)
    large = large_scene(tmp_path / "large.tif")

    assert check(small).seen.is_whole
    seen = check(large).seen
    assert not seen.is_whole
    assert 0 < seen.pixels < seen.of_pixels == 12_250_000
    whole = check(large, every_pixel=True).seen
    assert whole.is_whole
    assert whole.pixels == whole.of_pixels


@pytest.mark.parametrize("layout", [TILES, {"tiled": False}, {"tiled": False, "interleave": "band"}])
def test_a_complete_check_reads_every_pixel_once(layout: dict[str, Any], tmp_path: Path) -> None:
    """One pixel among 32-bit integers has a value that does not fit into a narrower type."""
    values = noise(2, 900, 2300, dtype="int32", high=200)
    path = write_raster(tmp_path / "scene.tif", values, nodata=0, **layout)
    assert check(path, every_pixel=True).fixes.dtype == "uint8"

    values[1, 777, 1313] = 70_000
    write_raster(path, values, nodata=0, **layout)
    checked = check(path, every_pixel=True)

    assert checked.seen.pixels == 900 * 2300
    assert checked.fixes.dtype is None


def test_a_type_is_narrowed_only_if_all_values_were_read(tmp_path: Path) -> None:
    values = noise(3000, 3000, dtype="int32", high=200)
    path = write_raster(tmp_path / "scene.tif", values, nodata=0, **TILES)

    sampled = check(path)
    assert codes(sampled, Severity.WARN) == {"wide-integers"}
    assert sampled.fixes.dtype is None
    assert fixes(sampled) == set()


def test_a_type_is_not_narrowed_if_the_nodata_value_does_not_fit(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(60, 60, dtype="int32"), nodata=-2147483648)

    assert not check(path).has("raster.wide-integers")


def test_the_nodata_value_of_a_narrowed_type_fits_into_it(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(60, 60, dtype="int32", high=200))

    checked = check(path)

    assert checked.fixes.dtype == "uint8"
    assert checked.fixes.nodata == 255


def test_the_fixes_contain_the_nodata_value_to_declare(tmp_path: Path) -> None:
    black = write_raster(tmp_path / "black.tif", **scene(values=with_collar(noise(3, 60, 60), 0)))
    floats = write_raster(tmp_path / "floats.tif", hills(60, 60))
    integers = write_raster(tmp_path / "integers.tif", hills(60, 60).astype("int16"))
    sea = write_raster(tmp_path / "sea.tif", with_collar(hills(60, 60).astype("int16"), 0))

    assert check(black).fixes.nodata == 0
    assert math.isnan(check(floats).fixes.nodata or 0)
    assert check(integers).fixes.nodata == -32768
    assert check(sea).fixes.nodata == -32768


def test_a_nodata_value_that_no_pixel_can_have_is_dropped(tmp_path: Path) -> None:
    import tifffile

    path = tmp_path / "scene.tif"
    geo = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 5e5, 5e6, 0.0), True)]
    tifffile.imwrite(path, noise(60, 60), extratags=[(42113, "s", 0, "-9999", True), *geo])

    checked = check(path, source_crs="EPSG:32633")

    assert codes(checked, Severity.WARN) == {"impossible-nodata", "no-nodata"}
    assert "drop-nodata" in fixes(checked)


def test_a_sparse_file_passes_and_an_empty_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    shape = {"width": 60_000, "height": 60_000, "count": 3, "dtype": "uint8", "interleave": "pixel"}
    place = {"crs": "EPSG:32633", "transform": TRANSFORM, "nodata": 0}
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK=True, compress="deflate", **shape, **place, **TILES):
        pass
    assert codes(check(path), Severity.ERROR) == {"all-nodata"}

    with rasterio.open(path, "r+") as dataset:
        dataset.write(noise(3, 512, 512), window=rasterio.windows.Window(0, 0, 512, 512))
    checked = check(path)

    assert checked.verdict is Verdict.PASS
    assert codes(checked) == {"sparse"}


def test_a_sparse_file_is_accepted_wherever_its_only_data_is(tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    shape = {"width": 60_000, "height": 60_000, "count": 3, "dtype": "uint8", "nodata": 0, "interleave": "pixel"}
    place = {"crs": "EPSG:32633", "transform": TRANSFORM}
    # Of the 118 × 118 blocks, every fourth is looked up at first; this one, with the number 359, is not among them.
    data = rasterio.windows.Window(5 * 512, 3 * 512, 512, 512)
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK=True, compress="deflate", **shape, **place, **TILES) as new:
        new.write(noise(3, 512, 512), window=data)

    checked = check(path)

    assert checked.verdict is Verdict.PASS
    assert codes(checked) == {"sparse"}


def test_a_sparse_file_whose_blocks_cannot_all_be_looked_up_in_time_is_not_refused_for_its_block_table(
    tmp_path: Path,
) -> None:
    path = tmp_path / "scene.tif"
    shape = {"width": 60_000, "height": 60_000, "count": 1, "dtype": "uint8", "nodata": 0}
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK=True, **shape, transform=TRANSFORM, **TILES):
        pass

    with rasterio.open(path) as dataset:
        facts = facts_of(dataset, path, crs_override=None, size_bytes=path.stat().st_size)
        in_time, too_late = look_up_blocks(dataset, facts), look_up_blocks(dataset, facts, seconds=0)

    assert (in_time.left_out, in_time.is_complete) == (118 * 118, True)
    assert (too_late.left_out, too_late.is_complete) == (4096, False)


def test_a_large_file_whose_sample_is_all_nodata_is_read_until_data_is_found(tmp_path: Path) -> None:
    values = np.zeros((3, 4000, 4000), "uint8")
    options = {"nodata": 0, "compress": "deflate", "interleave": "pixel", **TILES}
    empty = write_raster(tmp_path / "empty.tif", values, **options)
    values[:, 700, 700] = 9
    path = write_raster(tmp_path / "scene.tif", values, **options)

    assert codes(check(path)) == {"constant"}
    assert codes(check(empty)) == {"all-nodata"}
    assert not check(path, every_pixel=True).has("raster.all-nodata")


def test_a_file_without_data_that_takes_too_long_to_read_gets_a_warning(tmp_path: Path) -> None:
    path = write_raster(
        tmp_path / "scene.tif", np.zeros((3, 4000, 4000), "uint8"), nodata=0, compress="deflate", **TILES
    )
    facts = read_facts(path)

    with rasterio.open(path) as dataset:
        sample = take_sample(dataset, facts, seconds=-1)

    findings, _ = judge_pixels(facts, sample, RasterType.MULTISPECTRAL)
    assert [finding.code for finding in findings] == ["raster.nodata-in-sample"]


def test_absurd_dimensions_are_rejected_from_the_header(tmp_path: Path) -> None:
    facts = header_facts()

    assert "raster.too-large" not in header_codes(facts)
    for absurd in ({"width": 3_000_000}, {"width": 900_000, "height": 900_000}, {"bands": facts.bands * 500}):
        assert "raster.too-large" in header_codes(replace(facts, **absurd))  # type: ignore[arg-type]
    assert "raster.too-large" in header_codes(facts, Ceilings(side=500))
    path = write_raster(tmp_path / "scene.tif", noise(60, 60), nodata=0)
    assert codes(check(path, ceilings=Ceilings(pixels=1000)), Severity.ERROR) == {"too-large"}


def test_one_giant_compressed_block_is_rejected_from_the_header() -> None:
    band = BandFacts("uint8", block_shape=(40_000, 40_000), nodata=0)
    facts = replace(header_facts(), width=40_000, height=40_000, bands=(band,), compression="DEFLATE")

    assert "raster.block-too-large" in header_codes(facts)
    assert "raster.block-too-large" not in header_codes(replace(facts, compression=None))


# Headers that no library of the tests can write


def header_facts() -> RasterFacts:
    band = BandFacts("uint8", nodata=0, block_shape=(512, 512), mask=("nodata",))
    return RasterFacts(
        path="a.tif",
        driver="GTiff",
        width=1000,
        height=1000,
        bands=(band,) * 3,
        crs="EPSG:32633",
        file_crs="EPSG:32633",
        transform=tuple(TRANSFORM)[:6],
        bounds=(500_000, 4_990_000, 510_000, 5_000_000),
        bounds_4326=BBox(15, 45, 15.1, 45.1),
        has_blocks=True,
    )  # type: ignore[arg-type]


def header_codes(facts: RasterFacts, ceilings: Ceilings | None = None) -> set[str]:
    return {finding.code for finding in judge_header(facts, ceilings or Ceilings())}


def test_bands_that_disagree_are_reported() -> None:
    facts = header_facts()
    first = facts.bands[0]

    assert header_codes(replace(facts, bands=())) >= {"raster.no-bands"}
    assert header_codes(replace(facts, bands=(first, replace(first, dtype="float32")))) == {"raster.mixed-types"}
    assert header_codes(replace(facts, bands=(first, replace(first, nodata=5)))) == {"raster.mixed-nodata"}
    assert header_codes(replace(facts, bands=(replace(first, nodata=math.nan),) * 2)) == {"raster.nan-nodata"}
    sample = Sample({1: BandRange(9, 9, 1, 5), 2: BandRange(9, 9, 1, 5)}, is_whole=True)
    mixed = replace(facts, bands=(first, replace(first, dtype="float32")))
    assert judge_pixels(mixed, sample, RasterType.UNKNOWN)[1].dtype == "float32"


def test_units_packing_heights_and_pages_are_reported() -> None:
    facts = header_facts()
    first = facts.bands[0]

    assert header_codes(replace(facts, bands=(replace(first, scale=0.1),))) == {"raster.packed"}
    assert header_codes(replace(facts, bands=(replace(first, unit="US survey foot"),))) == {"raster.heights-in-feet"}
    assert header_codes(replace(facts, vertical_crs="EGM96 height")) == {"raster.vertical-crs"}
    assert header_codes(replace(facts, pages=3)) == {"raster.pages"}
    assert header_codes(replace(facts, is_point=True)) == {"raster.point"}
    assert header_codes(replace(facts, bands=(replace(first, mask=("per_dataset",)),))) == {"raster.mask-and-nodata"}
    assert header_codes(facts) == set()


# The result as JSON


def test_a_result_with_nan_or_a_palette_is_unchanged_after_json(tmp_path: Path) -> None:
    for content in (
        {"values": hills(60, 60), "nodata": math.nan},
        {"values": noise(60, 60, high=3), "after": give_palette},
    ):
        checked = check(write_raster(tmp_path / "scene.tif", **content))

        text = json.dumps(checked.to_dict(), allow_nan=False)

        assert repr(Checked.from_dict(json.loads(text))) == repr(checked)  # NaN does not equal itself
        assert json.loads(text)["facts"]["is_tiled"] is checked.facts.has_blocks


def test_the_docs_name_every_finding_with_its_severity() -> None:
    root = Path(__file__).parents[2]
    rows = re.findall(
        r"^\| (`raster\..*?) \| (error|warn|info) \|", (root / "docs/raster/validation.md").read_text(), re.MULTILINE
    )
    documented = {(code, severity) for names, severity in rows for code in re.findall(r"`(raster\.[a-z0-9-]+)`", names)}
    raised = set()
    for module in ("header_rules", "pixel_rules", "check"):
        text = (root / f"src/dagmaster/raster/validation/{module}.py").read_text()
        raised |= {(code, kind) for kind, code in re.findall(r'\b(error|warn|info)\(\s*"(raster\.[a-z0-9-]+)"', text)}

    assert raised - documented == set()
    not_raised = {code for code, _ in documented - raised}
    sources = "".join(
        (root / f"src/dagmaster/{name}.py").read_text()
        for name in (
            "raster/source/opening",
            "raster/source/facts",
            "raster/validation/limits",
            "raster/validation/check",
            "raster/validation/header_rules",
            "raster/source/header_limits",
            "handlers/raster/options",
            "handlers/raster/cogs",
        )
    )
    assert {code for code in not_raised if f'"{code}"' not in sources} == set()


def test_the_examples_of_the_page_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs/raster/validation.md"
    write_raster(tmp_path / "scene.tif", noise(3, 600, 700), photometric="RGB")
    (tmp_path / "damaged.tif").write_bytes((tmp_path / "scene.tif").read_bytes()[:30])
    monkeypatch.chdir(tmp_path)

    results = doctest.testfile(str(page), module_relative=False)

    assert results.attempted > 8
    assert results.failed == 0
