"""MosaicJSON as it is served: which COGs a tile or a point is made of.

A mosaic's asset is named relative to the folder of the COGs of its own edition (`mosaics/x/v0/r1/…` → `cogs/x/v0/r1/…`), or by
our own address of it. Anything else is not served.

Quadkeys are kept sorted: those below a tile begin with its own, so that they are neighbours, however many there are.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from cogeo_mosaic.mosaic import MosaicJSON
from pydantic import ValidationError

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.serving.sources import location_of
from dagmaster.storage.location import Location

# What one answer may be made of. Lower zooms are for overviews, and the mosaic's `minzoom` says where they begin.
MOST_ASSETS = 500
_MOST_KEPT = 32
_TILE_MATRIX_SET = "WebMercatorQuad"


@dataclass(frozen=True, slots=True)
class Mosaic:
    """`extents` fills up as assets are opened: most of a quadkey's assets lie beside the tile that is asked for."""

    bounds: BBox
    minzoom: int
    maxzoom: int
    quadkey_zoom: int
    quadkeys: tuple[str, ...]
    assets: dict[str, tuple[Location, ...]]
    extents: dict[Location, BBox] = field(default_factory=dict, compare=False)

    def below(self, x: int, y: int, z: int) -> list[Location]:
        """The assets that may touch a tile, in the mosaic's order, each once."""
        key = quadkey(x, y, z)[: self.quadkey_zoom]
        if z >= self.quadkey_zoom:
            return list(self.assets.get(key, ()))
        first = bisect_left(self.quadkeys, key)
        after = bisect_left(self.quadkeys, f"{key}4")  # the digits of a quadkey are 0 to 3
        return _each_once(self.assets[found] for found in self.quadkeys[first:after])

    def all(self) -> list[Location]:
        return _each_once(self.assets.values())


def quadkey(x: int, y: int, z: int) -> str:
    return "".join(str(((x >> bit) & 1) | (((y >> bit) & 1) << 1)) for bit in range(z - 1, -1, -1))


class Mosaics:
    """The mosaics that were asked for last, read once each."""

    def __init__(self, read: Callable[[Location], bytes]) -> None:
        self._load = lru_cache(_MOST_KEPT)(lambda location, _tag: parse(read(location), location))

    def load(self, location: Location, tag: str) -> Mosaic:
        """`tag` tells revisions apart that were begun anew under the same name."""
        return self._load(location, tag)


def parse(document: bytes, location: Location) -> Mosaic:
    try:
        read = MosaicJSON.model_validate_json(document)
    except ValidationError as error:
        raise UnfitData("the mosaic is not MosaicJSON", code="mosaic.invalid") from error
    if read.tilematrixset is not None and read.tilematrixset.id != _TILE_MATRIX_SET:
        raise UnfitData(f"the mosaic's index is not {_TILE_MATRIX_SET}", code="mosaic.other-grid")
    prefix = read.asset_prefix or ""
    return Mosaic(
        bounds=BBox(*read.bounds),
        minzoom=read.minzoom,
        maxzoom=read.maxzoom,
        quadkey_zoom=read.quadkey_zoom if read.quadkey_zoom is not None else read.minzoom,
        quadkeys=tuple(sorted(read.tiles)),
        assets={key: tuple(_asset(prefix + name, location) for name in names) for key, names in read.tiles.items()},
    )


def _asset(name: str, mosaic: Location) -> Location:
    if "://" in name:
        return location_of(name)
    kind, _, edition = mosaic.blob.rpartition("/")[0].partition("/")
    if kind != "mosaics":
        raise _outside()
    try:
        return Location(mosaic.zone, mosaic.container, f"cogs/{edition}/{name}")
    except InvalidRequest:
        raise _outside() from None


def _outside() -> UnfitData:
    return UnfitData("the mosaic names files that are not its own", code="mosaic.foreign-asset")


def _each_once(groups: Iterable[Iterable[Location]]) -> list[Location]:
    return list(dict.fromkeys(location for group in groups for location in group))
