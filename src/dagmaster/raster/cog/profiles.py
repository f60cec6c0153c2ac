"""The tiers of COGs, and the resampling for each type of raster.

A profile determines how pixels are stored, not their values or positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rasterio.enums import Resampling

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.source.facts import RasterType


class Tier(StrEnum):
    VISUALIZATION = "visualization"  # small, quick to display; lossy
    ANALYSIS = "analysis"  # lossless, quick to write and read everywhere
    ARCHIVE = "archive"  # lossless, smallest


@dataclass(frozen=True, slots=True)
class CogProfile:
    """How the blocks of a COG are stored. `storage_tier` is the access tier for an object store."""

    tier: Tier = Tier.ANALYSIS
    jpeg_quality: int = 85
    storage_tier: str = "hot"

    def __post_init__(self) -> None:
        if not 1 <= self.jpeg_quality <= 100:
            raise InvalidRequest(
                f"the JPEG quality {self.jpeg_quality} is not possible",
                code="raster.bad-quality",
                hint="pass 1 to 100; 85 is usual",
            )

    @property
    def is_lossy(self) -> bool:
        return self.tier is Tier.VISUALIZATION

    def compression(self, dtype: str) -> str:
        """GDAL's name of the compression."""
        match self.tier:
            case Tier.VISUALIZATION:
                return "JPEG"
            case Tier.ANALYSIS:
                return "DEFLATE"
            case Tier.ARCHIVE:
                # Measured, with a predictor: DEFLATE 12 is smaller than ZSTD 22 for bytes, and larger for wider types.
                return "DEFLATE" if _is_byte(dtype) else "ZSTD"

    def options(self, dtype: str) -> dict[str, str | int]:
        """Creation options of GDAL's GTiff driver for the blocks."""
        predictor = 3 if dtype.startswith("float") else 2
        match self.compression(dtype):
            case "JPEG":
                return {"compress": "JPEG", "jpeg_quality": self.jpeg_quality, "photometric": "YCBCR"}
            case "ZSTD":
                return {"compress": "ZSTD", "zstd_level": 9, "predictor": predictor}
            case _:
                level = 12 if self.tier is Tier.ARCHIVE else 6
                return {"compress": "DEFLATE", "zlevel": level, "predictor": predictor}


ANALYSIS = CogProfile()


def profile_of(tier: str | Tier, jpeg_quality: int = 85) -> CogProfile:
    """The profile of a tier by its name.

    >>> profile_of("archive").storage_tier
    'cool'
    """
    try:
        valid_tier = Tier(tier)
    except ValueError:
        raise InvalidRequest(
            f"there is no tier '{tier}'", code="raster.unknown-tier", hint=f"use one of {', '.join(Tier)}"
        ) from None
    return CogProfile(valid_tier, jpeg_quality, "cool" if valid_tier is Tier.ARCHIVE else "hot")


def require_fit(profile: CogProfile, dtype: str, colors: Sequence[str]) -> None:
    """Refuse data that a tier cannot store: JPEG is for pictures and would damage measurements."""
    if dtype.startswith("complex"):
        raise UnfitData(
            "complex numbers are not supported", code="raster.complex", hint="compute amplitude or phase first"
        )
    if not profile.is_lossy:
        return
    if dtype != "uint8":
        reason = f"the bands are {dtype}"
    elif "palette" in colors:
        reason = "the band is a palette of classes"
    elif len(colors) == 4 and "alpha" not in colors:
        reason = "the fourth band is not alpha"
    elif len(colors) not in (3, 4):
        reason = f"it has {len(colors)} {'band' if len(colors) == 1 else 'bands'}"
    else:
        return
    raise UnfitData(
        f"the visualization tier uses JPEG, which requires 8-bit RGB or RGBA: {reason}",
        code="raster.not-for-jpeg",
        hint="use the analysis tier",
    )


def resampling_for(raster_type: RasterType, has_palette: bool = False) -> Resampling:
    """How pixels are resampled to another grid: classes by nearest neighbour, other values by interpolation."""
    return Resampling.nearest if _are_classes(raster_type, has_palette) else Resampling.bilinear


def overview_resampling_for(raster_type: RasterType, has_palette: bool = False) -> Resampling:
    return Resampling.mode if _are_classes(raster_type, has_palette) else Resampling.average


def _are_classes(raster_type: RasterType, has_palette: bool) -> bool:
    return has_palette or raster_type is RasterType.CATEGORICAL


def _is_byte(dtype: str) -> bool:
    return dtype in ("uint8", "int8")
