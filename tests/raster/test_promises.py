"""Every fix that a verdict names is applied in the COG, verified by another tool where there is one."""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp, MaskFlags

from dagmaster.errors import InvalidRequest
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.profiles import ANALYSIS, profile_of
from dagmaster.raster.cog.write import CogFacts, make_cog, write_cog
from dagmaster.raster.source.bands import Bands
from dagmaster.raster.source.facts import RasterType, facts_of, read_facts
from dagmaster.raster.source.pixels import Validity, source_of
from dagmaster.raster.source.sample import take_sample
from dagmaster.raster.validation.check import Fix, check
from dagmaster.raster.validation.pixel_rules import judge_pixels
from tests.raster.rasters import TRANSFORM, UTM33, hills, noise, write_raster
from tests.raster.test_cog import require_valid

pytestmark = pytest.mark.requirement("R2")

ROTATED = Affine.translation(500_000, 5_000_000) @ Affine.rotation(30) @ Affine.scale(10, -10)


@dataclass(frozen=True, slots=True)
class FixCase:
    """A file that needs a fix, and a function that checks that it was applied."""

    content: dict[str, Any]
    is_applied: Callable[[Any, CogFacts], bool]
    target_crs: str = UTM33
    source_crs: str | None = None
    driver: str = "GTiff"


def collar(values: Any, value: float) -> Any:
    values[..., :20, :], values[..., -20:, :] = value, value
    return values


def gdalinfo(path: str) -> dict[str, Any]:
    completed = subprocess.run(["gdalinfo", "-json", path], check=True, capture_output=True, text=True)
    return dict(json.loads(completed.stdout))


def with_alpha(values: Any, alpha: Any) -> Any:
    return np.concatenate([values, np.broadcast_to(alpha, (1, *values.shape[1:])).astype(values.dtype)])


def masked(dataset: Any) -> None:
    dataset.write_mask(np.tile(np.arange(120) < 60, (120, 1)))


def is_masked_outside(cog: Any, written: CogFacts) -> bool:
    mask = cog.dataset_mask()
    return written.validity is Validity.MASK and 0.2 < (mask == 0).mean() < 0.8 and (cog.read(1)[mask == 0] == 0).all()


PICTURE = {"values": noise(3, 120, 120), "photometric": "RGB"}
FIX_CASES: dict[Fix, FixCase] = {
    Fix.ASSUME_CRS: FixCase({**PICTURE, "crs": None}, lambda cog, _: cog.crs.to_epsg() == 32633, source_crs=UTM33),
    Fix.DECLARE_NODATA: FixCase(
        {"values": collar(hills(120, 120), -9999)},
        lambda cog, _: cog.nodata == -9999 and gdalinfo(cog.name)["bands"][0]["noDataValue"] == -9999,
    ),
    Fix.ADD_MASK: FixCase({**PICTURE, "transform": ROTATED}, is_masked_outside),
    Fix.NARROW_DTYPE: FixCase(
        {"values": noise(120, 120, dtype="int32", high=9), "nodata": 0},
        lambda cog, _: (
            cog.dtypes == ("uint8",)
            and cog.nodata == 0
            and np.array_equal(cog.read(1), noise(120, 120, dtype="int32", high=9))
        ),
    ),
    Fix.UNSET_ALPHA: FixCase(
        {"values": noise(4, 120, 120), "photometric": "RGB", "alpha": "YES"},
        lambda cog, written: (
            ColorInterp.alpha not in cog.colorinterp
            and written.validity is Validity.ALL
            and np.array_equal(cog.read(4), noise(4, 120, 120)[3])
        ),
    ),
    Fix.USE_ALPHA: FixCase(
        {
            "values": with_alpha(noise(3, 120, 120), np.where(np.arange(120) < 60, 255, 0)),
            "photometric": "RGB",
            "alpha": "YES",
            "nodata": 7,
        },
        lambda cog, _: (
            cog.nodata is None and (cog.dataset_mask()[:, :60] == 255).all() and not cog.dataset_mask()[:, 60:].any()
        ),
    ),
    Fix.USE_MASK: FixCase(
        {**PICTURE, "nodata": 7, "after": masked},
        lambda cog, _: (
            cog.nodata is None and (cog.dataset_mask()[:, :60] == 255).all() and not cog.dataset_mask()[:, 60:].any()
        ),
    ),
    Fix.DROP_NODATA: FixCase(
        {"values": noise(120, 120), "GDAL_NODATA": "-9999"}, lambda cog, _: cog.nodata in (0, 255, None)
    ),
    Fix.RESAMPLE_NORTH_UP: FixCase(
        {**PICTURE, "transform": ROTATED, "nodata": 0},
        lambda cog, _: cog.transform.b == cog.transform.d == 0 and cog.transform.a > 0 > cog.transform.e,
    ),
    Fix.RETILE: FixCase(
        {"values": noise(3, 600, 600), "photometric": "RGB"}, lambda cog, _: set(cog.block_shapes) == {(512, 512)}
    ),
    Fix.WRAP_LONGITUDES: FixCase(
        {**PICTURE, "crs": "EPSG:4326", "transform": Affine(0.1, 0, 190, 0, -0.1, 10)},
        lambda cog, _: (
            -170.1 < cog.bounds.left < -169.9 and gdalinfo(cog.name)["cornerCoordinates"]["upperLeft"][0] < 0
        ),
        target_crs="EPSG:4326",
    ),
}


def source(folder: Path, content: dict[str, Any]) -> Path:
    content = dict(content)
    declared = content.pop("GDAL_NODATA", None)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_raster(folder / "source.tif", **content)
    if declared is not None:  # a value that rasterio would not write
        subprocess.run(["gdal_edit.py", "-a_nodata", declared, str(path)], check=True)
    return path


def checked_and_written(
    path: Path, target_crs: str, source_crs: str | None, **how: Any
) -> tuple[set[Fix | None], CogFacts]:
    """The fixes that the check names, and the COG that is written with its parameters."""
    checked = check(path, source_crs=source_crs)
    assert checked.facts is not None
    grid = output_grid(checked.facts, target_crs)
    parameters = {name: value for name, value in asdict(checked.fixes).items() if value is not None}
    written = make_cog(path, path.with_name("cog.tif"), grid, raster_type=checked.raster_type, **parameters, **how)
    require_valid(written.path)
    return {finding.fix for finding in checked.findings}, written


@pytest.mark.parametrize("fix", FIX_CASES)
def test_every_named_fix_is_applied(tmp_path: Path, fix: Fix) -> None:
    case = FIX_CASES[fix]
    path = source(tmp_path, case.content)

    fixes, written = checked_and_written(path, case.target_crs, case.source_crs)

    assert fix in fixes
    with rasterio.open(written.path) as cog:
        assert case.is_applied(cog, written)


def test_bands_of_different_types_get_one_that_holds_all(tmp_path: Path) -> None:
    """Fix.COMMON_DTYPE. A GeoTIFF has one type; a VRT, which is not supported, replaces the formats with many."""
    files = [write_raster(tmp_path / f"{dtype}.tif", noise(60, 60, dtype=dtype)) for dtype in ("uint8", "int16")]
    bands = "".join(
        f'<VRTRasterBand dataType="{dtype}" band="{band}"><SimpleSource><SourceFilename>{path}</SourceFilename>'
        "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for band, (path, dtype) in enumerate(zip(files, ("Byte", "Int16"), strict=True), 1)
    )
    vrt = tmp_path / "mixed.vrt"
    vrt.write_text(
        f'<VRTDataset rasterXSize="60" rasterYSize="60"><SRS>{UTM33}</SRS>'
        f"<GeoTransform>500000,10,0,5000000,0,-10</GeoTransform>{bands}</VRTDataset>"
    )

    with rasterio.open(vrt) as dataset:
        facts = facts_of(dataset, vrt, crs_override=None, size_bytes=0)
        _, fixes = judge_pixels(facts, take_sample(dataset, facts), RasterType.MULTISPECTRAL)
        written = write_cog(
            source_of(dataset, RasterType.MULTISPECTRAL, dtype=fixes.dtype),
            Bands.of(dataset, RasterType.MULTISPECTRAL, dtype=fixes.dtype),
            tmp_path / "cog.tif",
            output_grid(facts, UTM33),
            raster_type=RasterType.MULTISPECTRAL,
        )

    assert fixes.dtype == written.dtype == "int16"
    with rasterio.open(written.path) as cog:
        assert cog.dtypes == ("int16", "int16")
        assert np.array_equal(cog.read(1), noise(60, 60))


def test_every_fix_is_tested() -> None:
    assert {*FIX_CASES, Fix.COMMON_DTYPE} == set(Fix)


@pytest.mark.parametrize("tier", ["visualization", "analysis", "archive"])
def test_an_ordinary_picture_passes_and_gets_a_mask_if_the_output_is_larger(tmp_path: Path, tier: str) -> None:
    path = write_raster(tmp_path / "source.tif", noise(3, 400, 400), photometric="RGB")

    checked = check(path)
    fixes, written = checked_and_written(path, "EPSG:4326", None, profile=profile_of(tier))
    _, within = checked_and_written(path, UTM33, None, profile=profile_of(tier))

    assert checked.warnings == ()
    assert Fix.ADD_MASK in fixes
    assert written.validity is Validity.MASK
    assert within.validity is Validity.ALL  # the output is not larger than the source


def test_values_that_do_not_fit_are_clamped_and_reported(tmp_path: Path) -> None:
    """They are clamped as by gdal_translate; nodata pixels are not counted."""
    values = noise(200, 200, dtype="int32", low=-50, high=300)
    values[0] = -9
    path = write_raster(tmp_path / "source.tif", values, nodata=-9)
    grid = output_grid(read_facts(path), UTM33)

    written = make_cog(path, tmp_path / "cog.tif", grid, raster_type=RasterType.DEM, dtype="int8")

    theirs = tmp_path / "theirs.tif"
    subprocess.run(["gdal_translate", "-q", "-ot", "Int16", "-co", "NBITS=16", path, theirs], check=True)
    with rasterio.open(written.path) as cog, rasterio.open(theirs) as oracle:
        assert np.array_equal(cog.read(1), np.clip(oracle.read(1), -128, 127))
        assert (cog.nodata, cog.dtypes) == (-9, ("int8",))
    assert written.clamped == (values > 127).sum()


def test_masked_pixels_are_not_counted_as_clamped(tmp_path: Path) -> None:
    values = noise(60, 60, dtype="uint16")
    values[:30] = 60_000
    path = source(tmp_path, {"values": values, "after": lambda dataset: dataset.write_mask(values < 60_000)})

    grid = output_grid(read_facts(path), UTM33)
    written = make_cog(path, tmp_path / "cog.tif", grid, raster_type=RasterType.DEM, dtype="uint8")

    assert (written.clamped, written.dtype, written.validity) == (0, "uint8", Validity.MASK)


@pytest.mark.parametrize(
    ("dtype", "values", "nodata"),
    [
        ("uint8", hills(20, 20), None),
        ("float32", noise(20, 20, dtype="int32"), None),
        ("uint8", noise(20, 20, dtype="int32"), -9999),
        ("nonsense", noise(20, 20), None),
    ],
    ids=["floats", "to floats", "nodata out of range", "unknown type"],
)
def test_an_impossible_type_is_refused(tmp_path: Path, dtype: str, values: Any, nodata: float | None) -> None:
    path = write_raster(tmp_path / "source.tif", values, nodata=nodata)
    grid = output_grid(read_facts(path), UTM33)

    with pytest.raises(InvalidRequest) as refused:
        make_cog(path, tmp_path / "cog.tif", grid, profile=ANALYSIS, raster_type=RasterType.DEM, dtype=dtype)

    assert refused.value.code == "raster.bad-dtype"


def test_values_with_alpha_are_not_narrowed(tmp_path: Path) -> None:
    """In 16 bits opaque is 65535, which would be clamped."""
    values = with_alpha(noise(3, 60, 60, dtype="uint16"), 65535)
    path = write_raster(tmp_path / "source.tif", values, photometric="RGB", alpha="YES")

    assert check(path).fixes.dtype is None


def test_the_narrowed_type_can_hold_the_nodata_value(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "source.tif", noise(60, 60, dtype="int32", high=9), nodata=-9999)

    checked = check(path)

    assert checked.fixes.dtype == "int16"
    assert math.isclose(checked_and_written(path, UTM33, None)[1].nodata or 0, -9999)
    with rasterio.open(tmp_path / "cog.tif") as cog:
        assert cog.dtypes == ("int16",)
        assert MaskFlags.nodata in cog.mask_flag_enums[0]
        assert cog.transform == TRANSFORM
