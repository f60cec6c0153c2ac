import pytest
from rasterio.enums import Resampling

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.cog.profiles import (
    ANALYSIS,
    CogProfile,
    Tier,
    overview_resampling_for,
    profile_of,
    require_fit,
    resampling_for,
)
from dagmaster.raster.source.facts import RasterType

pytestmark = pytest.mark.requirement("R6")

RGB = ["red", "green", "blue"]


def test_analysis_is_the_default_and_lossless() -> None:
    assert CogProfile() == ANALYSIS == profile_of("analysis")
    assert ANALYSIS.options("uint8") == {"compress": "DEFLATE", "zlevel": 6, "predictor": 2}
    assert ANALYSIS.options("float32")["predictor"] == 3


def test_archive_uses_cool_storage_and_a_compression_for_the_type() -> None:
    archive = profile_of("archive")

    assert archive.storage_tier == "cool"
    assert not archive.is_lossy
    assert (archive.compression("uint8"), archive.compression("float32")) == ("DEFLATE", "ZSTD")
    assert archive.options("uint16")["predictor"] == 2


@pytest.mark.parametrize(
    ("dtype", "colors", "message"),
    [
        ("uint16", RGB, "uint16"),
        ("uint8", ["gray"], "1 band"),
        ("uint8", ["palette"], "palette"),
        ("uint8", [*RGB, "undefined"], "not alpha"),
        ("uint8", [*RGB, "undefined", "undefined"], "5 bands"),
        ("float32", ["gray"], "float32"),
    ],
)
def test_jpeg_is_refused_with_the_reason(dtype: str, colors: list[str], message: str) -> None:
    with pytest.raises(UnfitData, match=message) as refused:
        require_fit(profile_of(Tier.VISUALIZATION), dtype, colors)

    assert refused.value.code == "raster.not-for-jpeg"
    assert "analysis" in str(refused.value.hint)


@pytest.mark.parametrize("colors", [RGB, [*RGB, "alpha"]])
def test_jpeg_is_accepted_for_pictures(colors: list[str]) -> None:
    profile = profile_of("visualization", jpeg_quality=70)

    require_fit(profile, "uint8", colors)

    assert profile.options("uint8") == {"compress": "JPEG", "jpeg_quality": 70, "photometric": "YCBCR"}


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(UnfitData, match="complex"):
        require_fit(ANALYSIS, "complex64", ["gray"])


@pytest.mark.parametrize("wrong", ["best", "", "ANALYSIS"])
def test_the_error_for_an_unknown_tier_lists_the_tiers(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="visualization, analysis, archive"):
        profile_of(wrong)


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_outside_1_to_100_is_refused(quality: int) -> None:
    with pytest.raises(InvalidRequest, match="quality"):
        profile_of("visualization", jpeg_quality=quality)


@pytest.mark.parametrize(
    ("raster_type", "has_palette", "warp", "overview"),
    [
        (RasterType.RGB, False, Resampling.bilinear, Resampling.average),
        (RasterType.DEM, False, Resampling.bilinear, Resampling.average),
        (RasterType.CATEGORICAL, False, Resampling.nearest, Resampling.mode),
        (RasterType.RGB, True, Resampling.nearest, Resampling.mode),
        (RasterType.UNKNOWN, False, Resampling.bilinear, Resampling.average),
    ],
)
def test_classes_use_nearest_and_mode_and_measurements_are_interpolated(
    raster_type: RasterType, has_palette: bool, warp: Resampling, overview: Resampling
) -> None:
    assert resampling_for(raster_type, has_palette) is warp
    assert overview_resampling_for(raster_type, has_palette) is overview
