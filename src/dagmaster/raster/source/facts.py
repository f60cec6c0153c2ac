"""Facts about a raster file, from its headers alone."""

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import rasterio.shutil
from pydantic import Field
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import CRSError, RasterioError
from rasterio.io import MemoryFile

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.source.crs import describe_crs, name_crs, parse_crs, split_crs
from dagmaster.raster.source.extent import Bounds, geographic_bounds, native_bounds
from dagmaster.raster.source.opening import READ_ERRORS, opened, reason, short_name, size_of


class RasterType(StrEnum):
    """What the values mean. It determines resampling, overviews, compression and colours."""

    RGB = "rgb"
    RGBA = "rgba"
    DEM = "dem"
    CATEGORICAL = "categorical"
    MULTISPECTRAL = "multispectral"
    NIR = "nir"
    VEGETATION_INDEX = "vegetation_index"
    UNKNOWN = "unknown"

    @classmethod
    def parse(cls, text: str | None) -> "RasterType | None":
        """The type of a parameter; None for "auto" or no value."""
        try:
            return cls(text) if text and text != "auto" else None
        except ValueError:
            raise InvalidRequest(
                f"'{text}' is not a raster type", code="raster.bad-type", hint=f"use one of auto, {', '.join(cls)}"
            ) from None


_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex_int16"), 4),
    "complex128": 16,
}


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
    bits: int | None = None  # if fewer are used than the type has
    palette: dict[int, tuple[int, int, int, int]] | None = None
    impossible_nodata: float | None = None  # declared, but the type cannot hold it; `nodata` is None then

    @property
    def bytes_per_pixel(self) -> int:
        return _BYTES.get(self.dtype, 8)


@dataclass(frozen=True, slots=True)
class RasterFacts:
    """`transform` is the affine transform (a b c d e f); None if the file has no georeference."""

    path: str
    driver: str
    width: int
    height: int
    bands: tuple[BandFacts, ...]
    crs: str | None = None  # horizontal: "EPSG:32633" if there is a code, else WKT; `source_crs` if it was passed
    transform: tuple[float, float, float, float, float, float] | None = None
    bounds: Bounds | None = None  # in its own CRS: west, south, east, north
    bounds_4326: BBox | None = None
    gcp_count: int = 0
    has_rpc: bool = False
    compression: str | None = None
    interleave: str | None = None
    has_blocks: Annotated[bool, Field(alias="is_tiled")] = False  # not strips; its name in JSON stays
    is_cog: bool = False
    size_bytes: int = 0
    is_point: bool = False  # AREA_OR_POINT=Point
    tags: dict[str, str] | None = None
    file_crs: str | None = None  # the CRS in the file
    vertical_crs: str | None = None  # its name, if the CRS is a compound one
    pages: int = 1  # a TIFF may contain more images; the first is read

    @property
    def name(self) -> str:
        """The file's name without its folder: safe to show."""
        return short_name(self.path)

    @property
    def count(self) -> int:
        return len(self.bands)

    @property
    def dtype(self) -> str:
        return self.bands[0].dtype if self.bands else "unknown"

    @property
    def nodata(self) -> float | None:
        return self.bands[0].nodata if self.bands else None

    @property
    def block_shape(self) -> tuple[int, int]:
        return self.bands[0].block_shape if self.bands else (0, 0)

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def bytes_per_pixel(self) -> int:
        """Of all bands together."""
        return sum(band.bytes_per_pixel for band in self.bands)

    @property
    def raw_bytes(self) -> int:
        """Its uncompressed size."""
        return self.pixels * self.bytes_per_pixel

    @property
    def resolution(self) -> tuple[float, float] | None:
        """Width and height of a pixel, in the units of the CRS; also of a rotated grid."""
        if self.transform is None:
            return None
        a, b, _, d, e, _ = self.transform
        return math.hypot(a, d), math.hypot(b, e)

    @property
    def is_rotated(self) -> bool:
        return self.transform is not None and (self.transform[1] != 0 or self.transform[3] != 0)


def read_facts(
    path: str | Path, *, source_crs: str | None = None, remote: bool = False, size_bytes: int | None = None
) -> RasterFacts:
    """Read the headers of one raster file; no pixels, whatever its size.

        >>> facts = read_facts("scene.tif")
        >>> facts.crs, facts.width, facts.dtype
        ('EPSG:32633', 24000, 'uint8')

    `source_crs` (a code or WKT) is for a file that has no CRS or a wrong one. Raises UnfitData for a file that is not a
    raster or is damaged. `remote` accepts GDAL's paths of object stores; `size_bytes` is the size of such an object.
    """
    override = parse_crs(source_crs) if source_crs else None
    with opened(path, remote=remote) as dataset:
        try:
            return facts_of(
                dataset, path, crs_override=override, size_bytes=size_of(path) if size_bytes is None else size_bytes
            )
        except READ_ERRORS as error:
            raise UnfitData(
                f"the header of '{short_name(path)}' is invalid: {reason(error)}",
                code="raster.corrupt",
                hint="upload it again, or export it again from its source",
            ) from None


def facts_of(dataset: Any, path: str | Path, *, crs_override: CRS | None, size_bytes: int) -> RasterFacts:
    """Facts about an open dataset; see `read_facts`."""
    vrt = _vrt_of(dataset)
    transform = _transform(dataset, vrt)
    own, vertical = _own_crs(dataset)
    crs = crs_override or own
    structure = dataset.tags(ns="IMAGE_STRUCTURE")
    tags = _tags(dataset)
    bands = _bands(dataset, vrt)
    return RasterFacts(
        path=str(path),
        driver=dataset.driver,
        width=dataset.width,
        height=dataset.height,
        bands=bands,
        crs=name_crs(crs) if crs else None,
        transform=transform,
        bounds=native_bounds(transform, dataset.width, dataset.height) if transform else None,
        bounds_4326=_bounds_4326(crs, transform, dataset),
        gcp_count=len(dataset.gcps[0]),
        has_rpc=_lenient(lambda: dataset.rpcs is not None, True),
        compression=structure.get("COMPRESSION"),
        interleave=structure.get("INTERLEAVE"),
        has_blocks=bool(bands) and _has_blocks(bands[0].block_shape, dataset.width),
        is_cog=_is_cog(dataset, bands),
        size_bytes=size_bytes,
        is_point=tags.get("AREA_OR_POINT") == "Point",
        tags=tags,
        file_crs=name_crs(own) if own else None,
        vertical_crs=vertical,
        pages=max(1, len(dataset.subdatasets)),
    )


# Parts of the header

T = TypeVar("T")
_MAX_TAGS = 100
_MAX_TAG_LENGTH = 1000


def _lenient(read: Callable[[], T], otherwise: T) -> T:
    """For optional metadata: a file is not refused because its description is not UTF-8."""
    try:
        return read()
    except READ_ERRORS:
        return otherwise


def _vrt_of(dataset: Any) -> str:
    """The dataset as GDAL's XML. It has two facts that rasterio hides: that there is no geotransform (not the same as
    the identity), and a nodata value that the type cannot hold."""
    with MemoryFile(ext=".vrt") as memory:
        rasterio.shutil.copy(dataset, memory.name, driver="VRT")
        return bytes(memory.read()).decode("utf-8", errors="replace")


def _transform(dataset: Any, vrt: str) -> tuple[float, float, float, float, float, float] | None:
    if "<GeoTransform>" not in vrt or dataset.transform.is_identity:
        return None
    a, b, c, d, e, f = tuple(dataset.transform)[:6]
    return (a, b, c, d, e, f)


def _own_crs(dataset: Any) -> tuple[CRS | None, str | None]:
    crs = dataset.crs or dataset.gcps[1]
    return split_crs(crs) if crs else (None, None)


def _bounds_4326(crs: CRS | None, transform: Any, dataset: Any) -> BBox | None:
    if crs is None or transform is None or not all(map(math.isfinite, transform)):
        return None
    a, b, _, d, e, _ = transform
    if a * e - b * d == 0:
        return None
    with contextlib.suppress(CRSError, CPLE_BaseError, RasterioError):
        facts = describe_crs(name_crs(crs))
        if facts.is_earth and not facts.is_local:
            return geographic_bounds(crs, transform, dataset.width, dataset.height)
    return None


def _bands(dataset: Any, vrt: str) -> tuple[BandFacts, ...]:
    """Each list is read once, because rasterio rebuilds it on every access, and a file may have 65,535 bands."""
    undefined = (None,) * dataset.count
    nodata = dataset.nodatavals
    colors = _lenient(lambda: [color.name for color in dataset.colorinterp], ["undefined"] * dataset.count)
    descriptions = _lenient(lambda: dataset.descriptions, undefined)
    units = _lenient(lambda: dataset.units, undefined)
    declared = _declared_nodata(vrt)
    others = zip(
        dataset.dtypes, dataset.scales, dataset.offsets, dataset.block_shapes, dataset.mask_flag_enums, strict=True
    )
    return tuple(
        BandFacts(
            dtype=dtype,
            color=colors[at],
            nodata=nodata[at],
            description=descriptions[at],
            unit=units[at] or None,
            scale=scale,
            offset=offset,
            block_shape=block_shape,
            overviews=tuple(dataset.overviews(at + 1)),
            mask=tuple(flag.name for flag in mask),
            bits=_bits(dataset, at + 1),
            palette=_palette(dataset, at + 1),
            impossible_nodata=declared.get(at + 1) if nodata[at] is None else None,
        )
        for at, (dtype, scale, offset, block_shape, mask) in enumerate(others)
    )


def _bits(dataset: Any, index: int) -> int | None:
    return _lenient(lambda: int(dataset.tags(index, ns="IMAGE_STRUCTURE").get("NBITS", "")), None)


def _palette(dataset: Any, index: int) -> dict[int, tuple[int, int, int, int]] | None:
    try:
        return dict(dataset.colormap(index))
    except ValueError:  # no palette
        return None


def _declared_nodata(vrt: str) -> dict[int, float]:
    """The declared nodata values, by the number of the band."""
    values = {}
    for part in vrt.split("<VRTRasterBand ")[1:]:
        number, value = re.search(r'band="(\d+)"', part), re.search(r"<NoDataValue>([^<]*)</NoDataValue>", part)
        if number and value:
            with contextlib.suppress(ValueError):
                values[int(number[1])] = float(value[1])
    return values


def _tags(dataset: Any) -> dict[str, str]:
    tags: dict[str, str] = _lenient(dataset.tags, {})
    return {name[:_MAX_TAG_LENGTH]: text[:_MAX_TAG_LENGTH] for name, text in list(tags.items())[:_MAX_TAGS]}


def _has_blocks(block: tuple[int, int], width: int) -> bool:
    rows, columns = block
    return columns != width or rows == columns


def _is_cog(dataset: Any, bands: tuple[BandFacts, ...]) -> bool:
    """The rules of rio-cogeo and GDAL: tiles, overviews if it is larger than one tile, headers before data, and the
    coarsest data first."""
    if dataset.driver != "GTiff" or not bands:
        return False
    larger_than_a_tile = max(dataset.width, dataset.height) > 512
    if larger_than_a_tile and not (_has_blocks(bands[0].block_shape, dataset.width) and bands[0].overviews):
        return False
    levels = [None, *range(len(bands[0].overviews))]
    headers = [_offset(dataset, "IFD_OFFSET", level) for level in levels]
    data = [_offset(dataset, "BLOCK_OFFSET_0_0", level) for level in levels]
    return (
        headers[0] is not None
        and headers == sorted(headers, key=lambda offset: offset or 0)
        and _coarsest_first([offset for offset in data if offset])
        and all(offset > (headers[-1] or 0) for offset in data if offset)
    )


def _offset(dataset: Any, item: str, level: int | None) -> int | None:
    """None for a block that is not stored."""
    offset = dataset.get_tag_item(item, "TIFF", bidx=1, ovr=level)
    return int(offset) if offset else None


def _coarsest_first(offsets: list[int]) -> bool:
    return offsets == sorted(offsets, reverse=True)
