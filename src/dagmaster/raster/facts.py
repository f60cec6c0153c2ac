"""What a raster file says of itself, from its headers alone."""

from dataclasses import dataclass
from enum import StrEnum


class RasterType(StrEnum):
    """What the numbers are: it decides on resampling, overviews, compression and colours."""

    RGB = "rgb"
    RGBA = "rgba"
    DEM = "dem"
    CATEGORICAL = "categorical"
    MULTISPECTRAL = "multispectral"
    NIR = "nir"
    VEGETATION_INDEX = "vegetation_index"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BandFacts:
    dtype: str  # numpy's name
    color: str = "undefined"  # GDAL's colour interpretation: red, gray, palette, alpha, …
    nodata: float | None = None  # may be NaN
    description: str | None = None
    unit: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    block_shape: tuple[int, int] = (0, 0)  # rows, columns
    overviews: tuple[int, ...] = ()
    mask: tuple[str, ...] = ()  # GDAL's flags: all_valid, per_dataset, alpha, nodata
    bits: int | None = None  # where fewer are used than the type has
    palette: dict[int, tuple[int, int, int, int]] | None = None


@dataclass(frozen=True, slots=True)
class RasterFacts:
    """`transform` is affine's six numbers (a b c d e f); None where the file has no georeference."""

    path: str
    driver: str
    width: int
    height: int
    bands: tuple[BandFacts, ...]
    crs: str | None = None  # "EPSG:32633" where there is a code, else WKT
    transform: tuple[float, float, float, float, float, float] | None = None
    bounds: tuple[float, float, float, float] | None = None  # in its own CRS: west, south, east, north
    bounds_4326: tuple[float, float, float, float] | None = None  # west > east: it crosses the antimeridian
    gcp_count: int = 0
    has_rpc: bool = False
    compression: str | None = None
    interleave: str | None = None
    is_tiled: bool = False
    is_cog: bool = False
    size_bytes: int = 0
    is_point: bool = False  # AREA_OR_POINT=Point
    tags: dict[str, str] | None = None

    @property
    def count(self) -> int:
        return len(self.bands)

    @property
    def dtype(self) -> str:
        return self.bands[0].dtype

    @property
    def nodata(self) -> float | None:
        return self.bands[0].nodata

    @property
    def is_rotated(self) -> bool:
        return self.transform is not None and (self.transform[1] != 0 or self.transform[3] != 0)
