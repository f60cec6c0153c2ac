"""MosaicJSON documents: which COGs cover a tile or a point.

A mosaic names its assets relative to the folder of the COGs of the same edition (`mosaics/x/v0/r1/…` →
`cogs/x/v0/r1/…`), or by the URL under which this server serves them. Any other asset is refused.

`with_asset_urls` returns the document for other programs, with the URLs of the COGs.

Quadkeys are sorted: those of the tiles inside a tile begin with its quadkey, so that a binary search finds them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, urlsplit

import orjson
from cogeo_mosaic.mosaic import MosaicJSON
from pydantic import ValidationError
from rio_tiler.constants import WEB_MERCATOR_TMS

from dagmaster.access.links import PARAMETER
from dagmaster.addresses import Addresses, rebased
from dagmaster.bbox import BBox
from dagmaster.dataset_urls import GRID
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.serving.sources import location_of
from dagmaster.storage.location import Edition, Location, edition_named
from dagmaster.web_mercator import quadkey

# The limit for one image. A tile below the mosaic's `minzoom` could need every COG.
MAX_ASSETS = 500
_MAX_CACHED = 32


@dataclass(frozen=True, slots=True)
class Mosaic:
    """Its assets are COGs. `extents` has those of the assets that were opened: readers leave out assets of a quadkey
    that do not touch the requested tile."""

    bounds: BBox
    minzoom: int
    maxzoom: int
    quadkey_zoom: int
    quadkeys: tuple[str, ...]
    assets: dict[str, tuple[Location, ...]]
    extents: dict[Location, BBox] = field(default_factory=dict, compare=False)

    def assets_for_tile(self, x: int, y: int, z: int) -> list[Location]:
        """The assets that may touch a tile, in the order of the mosaic, without duplicates."""
        key = quadkey(x, y, z)[: self.quadkey_zoom]
        if z >= self.quadkey_zoom:
            return list(self.assets.get(key, ()))
        first = bisect_left(self.quadkeys, key)
        end = bisect_left(self.quadkeys, f"{key}4")  # the digits of a quadkey are 0 to 3
        return _unique(self.assets[each] for each in self.quadkeys[first:end])

    def assets_in(self, box: BBox) -> list[Location]:
        """The assets that may touch a box in degrees."""
        if self.quadkey_zoom == 0:
            return self.all_assets()
        south, north = (max(-85.05, min(85.05, edge)) for edge in (box.south, box.north))
        west, east = (max(-180.0, min(179.999999, edge)) for edge in (box.west, box.east))
        left, top, _ = WEB_MERCATOR_TMS.tile(west, north, self.quadkey_zoom)
        right, bottom, _ = WEB_MERCATOR_TMS.tile(east, south, self.quadkey_zoom)
        groups = []
        for key in self.quadkeys:
            x, y = _column_and_row(key)
            if left <= x <= right and top <= y <= bottom:
                groups.append(self.assets[key])
        return _unique(groups)

    def all_assets(self) -> list[Location]:
        return _unique(self.assets.values())


def _column_and_row(key: str) -> tuple[int, int]:
    """The reverse of `quadkey`: the digits are pairs of bits, the row's first."""
    return int("".join(str(int(digit) & 1) for digit in key), 2), int("".join(str(int(digit) >> 1) for digit in key), 2)


class MosaicCache:
    """The mosaics that were used last, so that each is read once."""

    def __init__(self, read: Callable[[Location], bytes]) -> None:
        self._load = lru_cache(_MAX_CACHED)(lambda location, _tag: parse(read(location), location))

    def load(self, location: Location, tag: str) -> Mosaic:
        """`tag` is that of the `TileSource`: a preview may be processed again under the same name."""
        return self._load(location, tag)


def parse(document: bytes, location: Location) -> Mosaic:
    try:
        mosaic = MosaicJSON.model_validate_json(document)
    except ValidationError as error:
        raise UnfitData("the mosaic is not valid MosaicJSON", code="mosaic.invalid") from error
    if mosaic.tilematrixset is not None and mosaic.tilematrixset.id != GRID:
        raise UnfitData(f"the mosaic's tile matrix set is not {GRID}", code="mosaic.other-grid")
    prefix = mosaic.asset_prefix or ""
    return Mosaic(
        bounds=BBox(*mosaic.bounds),
        minzoom=mosaic.minzoom,
        maxzoom=mosaic.maxzoom,
        quadkey_zoom=mosaic.quadkey_zoom if mosaic.quadkey_zoom is not None else mosaic.minzoom,
        quadkeys=tuple(sorted(mosaic.tiles)),
        assets={key: tuple(_asset(prefix + name, location) for name in names) for key, names in mosaic.tiles.items()},
    )


def with_asset_urls(document: bytes, location: Location, base: str, token: str | None = None) -> bytes:
    """The mosaic with an `asset_prefix` that makes its assets URLs of this server, for programs that read it by HTTP.

    The token of the request is part of these URLs, because the assets need it too. A document that is not a mosaic, or
    whose assets are not those of its edition, is returned unchanged.
    """
    query = f"?{PARAMETER}={quote(token)}" if token else ""
    try:
        mosaic = orjson.loads(document)
        prefix = mosaic.get("asset_prefix") or ""
        names = {name for tile in mosaic["tiles"].values() for name in tile}
        if _is_url(prefix):
            prefix = rebased(prefix, base, urlsplit(base).hostname)
            renamed = {name: name + (query if prefix.startswith(base) else "") for name in names}
        elif any(map(_is_url, names)):
            renamed = {name: _own_url(name, base, query) for name in names}
        else:
            for name in names:
                _asset(prefix + name, location)
            prefix = Addresses(base).file(_cog_of(location, "x")).removesuffix("x") + quote(prefix)
            renamed = {name: quote(name) + query for name in names}
        tiles = {key: [renamed[name] for name in tile] for key, tile in mosaic["tiles"].items()}
        mosaic |= {"tiles": tiles, **({"asset_prefix": prefix} if prefix else {})}
    except (AttributeError, KeyError, TypeError, orjson.JSONDecodeError, UnfitData):
        return document
    return orjson.dumps(mosaic)


def _is_url(name: str) -> bool:
    """An absolute URL, or a path of this server."""
    return "://" in name or name.startswith("/")


def _own_url(name: str, base: str, query: str) -> str:
    """A URL of this server gets the token; URLs of other servers never do."""
    url = rebased(name, base, urlsplit(base).hostname)
    return url + query if url.startswith(base) else url


def _asset(name: str, mosaic: Location) -> Location:
    return location_of(name) if _is_url(name) else _cog_of(mosaic, name)


def _cog_of(mosaic: Location, name: str) -> Location:
    try:
        return Location(mosaic.zone, mosaic.container, _edition_of(mosaic).cog(name))
    except InvalidRequest:
        raise _foreign_asset() from None


@lru_cache(_MAX_CACHED)  # a mosaic may have thousands of COGs
def _edition_of(mosaic: Location) -> Edition:
    kind, edition = edition_named(mosaic.blob)
    if edition is None or kind != "mosaics":
        raise _foreign_asset()
    return edition


def _foreign_asset() -> UnfitData:
    return UnfitData("the mosaic names files that do not belong to it", code="mosaic.foreign-asset")


def _unique(groups: Iterable[Iterable[Location]]) -> list[Location]:
    return list(dict.fromkeys(location for group in groups for location in group))
