"""The values that items and collections are built from.

Rasters are described by protocols: `RasterFacts`, `BandStatistics` and `Footprint` of `dagmaster.raster` fit them as
they are.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from dagmaster.bbox import BBox
from dagmaster.dataset_ids import require_dataset_id
from dagmaster.errors import InvalidRequest

Json: TypeAlias = dict[str, Any]

EXTENSIONS = {
    name: f"https://stac-extensions.github.io/{name}/v{version}/schema.json"
    for name, version in {
        "projection": "1.2.0",  # 2.0.0 has no `proj:epsg`, which stackstac reads
        "raster": "2.0.0",
        "eo": "1.1.0",  # 2.0.0 has no `eo:bands`, which odc-stac reads
        "file": "2.1.0",
        "processing": "1.2.0",
        "version": "1.2.0",
        "timestamps": "1.1.0",
        "render": "2.0.0",
        "web-map-links": "1.2.0",
        "classification": "1.1.0",
    }.items()
}

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MULTIHASH = re.compile(r"1220[0-9a-f]{64}")


class Band(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def color(self) -> str: ...
    @property
    def nodata(self) -> float | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def scale(self) -> float: ...
    @property
    def offset(self) -> float: ...
    @property
    def bits(self) -> int | None: ...
    @property
    def palette(self) -> Mapping[int, tuple[int, int, int, int]] | None: ...


class Facts(Protocol):
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def bands(self) -> Sequence[Band]: ...
    @property
    def crs(self) -> str | None: ...
    @property
    def transform(self) -> tuple[float, float, float, float, float, float] | None: ...
    @property
    def bounds(self) -> tuple[float, float, float, float] | None: ...
    @property
    def is_point(self) -> bool: ...


class HistogramLike(Protocol):
    @property
    def minimum(self) -> float: ...
    @property
    def maximum(self) -> float: ...
    @property
    def buckets(self) -> Sequence[int]: ...


class Statistics(Protocol):
    @property
    def minimum(self) -> float: ...
    @property
    def maximum(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def stddev(self) -> float: ...
    @property
    def valid_percent(self) -> float: ...
    @property
    def count(self) -> int: ...
    @property
    def percentiles(self) -> Mapping[int, float]: ...
    @property
    def histogram(self) -> HistogramLike: ...
    @property
    def infinite(self) -> int: ...
    @property
    def approximate(self) -> bool: ...
    @property
    def percentile_error(self) -> float | None: ...
    @property
    def before_compression(self) -> bool: ...


class FootprintLike(Protocol):
    @property
    def geometry(self) -> Mapping[str, Any]: ...
    @property
    def bbox(self) -> BBox: ...


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    roles: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """`id` is also the collection's: lower case, without spaces or a version."""

    id: str
    title: str | None = None
    description: str | None = None
    keywords: tuple[str, ...] = ()
    license: str = "other"  # an SPDX identifier, or `other`
    providers: tuple[Provider, ...] = ()

    def __post_init__(self) -> None:
        require_dataset_id(self.id, code="stac.dataset-id")


@dataclass(frozen=True, slots=True)
class Version:
    """`label` is the name for people; without one the ordinal is used."""

    ordinal: int = 0
    revision: int = 1
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Cog:
    """One cloud-optimised GeoTIFF with its public URL."""

    href: str
    facts: Facts
    size_bytes: int
    sha256: str  # hex
    statistics: Sequence[Statistics | None] = ()
    raster_type: str = "unknown"
    band_names: Sequence[str] = ()
    class_names: Mapping[int, str] = field(default_factory=dict)
    header_bytes: int | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Processing:
    """How the data were processed. `lineage` is a sentence for people; `workflow` is name@version."""

    at: datetime
    lineage: str
    software: Mapping[str, str]
    workflow: str | None = None
    source_sha256: str | None = None
    facility: str = "dagmaster"
    source_name: str | None = None  # without its folder
    source_crs: str | None = None  # a code or WKT
    sources: Sequence[tuple[str | None, str | None]] = ()  # name and SHA-256 of each, if there is more than one


@dataclass(frozen=True, slots=True)
class Links:
    """Public URLs. `collection` is the collection of this item; `tilejson` and `xyz` show the render `default`.

    Links to the other versions of an item are set when it is published, because they change with every version.
    """

    collection: str | None = None
    self_: str | None = None
    root: str | None = None
    parent: str | None = None
    history: str | None = None
    tilejson: str | None = None
    xyz: str | None = None
    license: str | None = None
    via: tuple[str, ...] = ()
    derived_from: tuple[str, ...] = ()


def multihash(sha256: str) -> str:
    """A SHA-256 as the file extension requires it: 0x12 for the function, 0x20 for the length, then the digest."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidRequest("a SHA-256 has 64 lower-case hexadecimal digits", code="stac.checksum")
    return f"1220{sha256}"


def is_multihash(value: object) -> bool:
    """Whether a value has the form of a SHA-256 that `multihash` returns."""
    return isinstance(value, str) and bool(_MULTIHASH.fullmatch(value))
