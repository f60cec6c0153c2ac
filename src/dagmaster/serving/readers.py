"""Pixels of a source: rio-tiler's reader for a COG, and one for a mosaic of COGs that answers the same questions.

Only GeoTIFF is opened, whatever a file says that it is: other drivers would follow what it names to other files and hosts.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any

import attr
from morecantile import Tile, TileMatrixSet
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rio_tiler.constants import WEB_MERCATOR_TMS, WGS84_CRS
from rio_tiler.errors import NoAssetFoundError, PointOutsideBounds, TileOutsideBounds
from rio_tiler.io import BaseReader, Reader
from rio_tiler.models import BandStatistics, ImageData, Info, PointData
from rio_tiler.mosaic import mosaic_reader
from rio_tiler.utils import CRS_to_uri, inherit_rasterio_env

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.handles import Handles
from dagmaster.serving.mosaics import MOST_ASSETS, Mosaic, Mosaics
from dagmaster.serving.sources import Kind, Source
from dagmaster.storage.location import Location
from dagmaster.storage.zones import Storage

# COGs of one mosaic read at once: one request shall not take all cores from the others.
_AHEAD = 2
# They last: each new thread would make GDAL and PROJ begin anew.
_THREADS = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="cogs")
_DEEPEST_ZOOM = 24
_LARGEST_PICTURE = 1024

GDAL_ENVIRONMENT: Mapping[str, Any] = {
    # No look around in the folder, no side-car files: a COG is whole in itself.
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": ".tif",
    # Header and first directory in one go.
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",
    "GDAL_CACHEMAX": 128 * 2**20,  # bytes: rasterio, unlike GDAL's own variable, knows no megabytes
    "GDAL_NUM_THREADS": "1",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_TIMEOUT": 20,
}


@dataclass(frozen=True, slots=True)
class Readable:
    """A source and where its files are."""

    source: Source
    storage: Storage
    mosaics: Mosaics
    handles: Handles = field(default_factory=Handles)


def open_source(readable: Readable, tms: TileMatrixSet = WEB_MERCATOR_TMS) -> "CogReader | MosaicReader":
    source = readable.source
    if source.kind is Kind.COG:
        return CogReader(readable.storage.gdal_path(source.location), tms=tms, handles=readable.handles)
    return MosaicReader(readable, tms=tms)


@attr.s
class CogReader(Reader):
    """Shows the first three bands, or the first, where nobody chooses; an alpha band is a mask."""

    handles: Handles = attr.ib(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.dataset = self._ctx_stack.enter_context(self.handles.lend(str(self.input)))
        super().__attrs_post_init__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ctx_stack.__exit__(kind, error, trace)  # unlike rio-tiler's, which does not say that something failed

    def tile(self, tile_x: int, tile_y: int, tile_z: int, **options: Any) -> ImageData:  # type: ignore[override]
        require_tile(tile_x, tile_y, tile_z)
        return super().tile(tile_x, tile_y, tile_z, **options)

    def part(self, bbox: BBox, indexes: Sequence[int] | None = None, **options: Any) -> ImageData:  # type: ignore[override]
        return super().part(bbox, indexes=self._shown(indexes), **options)

    def preview(self, indexes: Sequence[int] | None = None, max_size: int | None = None, width: int | None = None,  # type: ignore[override]
                height: int | None = None, **options: Any) -> ImageData:  # fmt: skip
        longest: Any = max_size or _LARGEST_PICTURE
        if self._dataset.crs and self._dataset.crs.is_geographic:
            largest = max(self._dataset.width, self._dataset.height)
            width, height = _size(_shape_on_ground(BBox(*self._dataset.bounds)), min(longest, largest), width, height)
        if width or height:
            longest = None  # rio-tiler takes one or the other
        return super().preview(indexes=self._shown(indexes), max_size=longest, width=width, height=height, **options)

    def point(self, lon: float, lat: float, indexes: Sequence[int] | None = None, **options: Any) -> PointData:  # type: ignore[override]
        self._require(indexes)
        return super().point(lon, lat, indexes=indexes, **options)

    def statistics(self, indexes: Sequence[int] | None = None, **options: Any) -> dict[str, BandStatistics]:  # type: ignore[override]
        self._require(indexes)
        statistics: dict[str, BandStatistics] = super().statistics(indexes=indexes, **options)
        return statistics

    def bands(self) -> list[int]:
        return list(self._dataset.indexes)

    def extent(self) -> BBox:
        return BBox(*self.get_geographic_bounds(WGS84_CRS))

    def _shown(self, chosen: Sequence[int] | None) -> Sequence[int]:
        if chosen:
            self._require(chosen)
            return chosen
        pairs = zip(self._dataset.indexes, self._dataset.colorinterp, strict=True)
        bands = [band for band, color in pairs if color is not ColorInterp.alpha]
        return bands[:3] if len(bands) >= 3 else bands[:1]

    def _require(self, chosen: Sequence[int] | None) -> None:
        count = self._dataset.count
        if any(not 1 <= band <= count for band in chosen or ()):
            raise InvalidRequest(f"there is no such band: the dataset has {count}", code="tiles.no-band")

    @property
    def _dataset(self) -> Any:
        return self.dataset


class MosaicReader(BaseReader):
    """The COGs of a mosaic as one picture: where they overlap, the first that has data is seen."""

    def __init__(self, readable: Readable, tms: TileMatrixSet = WEB_MERCATOR_TMS) -> None:
        self.input = readable
        self.tms = tms
        self.mosaic: Mosaic = readable.mosaics.load(readable.source.location, readable.source.tag)
        self.bounds = self.mosaic.bounds
        self.crs = WGS84_CRS
        self.colormap: dict[int, Any] | None = None  # of the COG that was opened last: all have the same

    @property
    def minzoom(self) -> int:
        return self.mosaic.minzoom

    @property
    def maxzoom(self) -> int:
        return self.mosaic.maxzoom

    def tile(self, tile_x: int, tile_y: int, tile_z: int, **options: Any) -> ImageData:
        require_tile(tile_x, tile_y, tile_z)
        if not self.minzoom <= tile_z <= self.maxzoom:
            raise NotFound(
                f"tiles are made from zoom {self.minzoom} to {self.maxzoom}", code="tiles.outside-zooms",
                hint="bounds and zooms are in the TileJSON",
            )  # fmt: skip
        area = BBox(*self.tms.bounds(Tile(tile_x, tile_y, tile_z)))
        found = self._near(self.mosaic.below(tile_x, tile_y, tile_z), area)
        return self._merged(found, lambda cog: cog.tile(tile_x, tile_y, tile_z, **options))

    def preview(self, max_size: int | None = None, width: int | None = None, height: int | None = None,
                dst_crs: CRS | None = None, **options: Any) -> ImageData:  # fmt: skip
        box = self._shown_box()
        return self._picture(box, *_size(_shape_on_ground(box), max_size, width, height), dst_crs, **options)

    def _picture(self, box: BBox, width: int, height: int, dst_crs: CRS | None = None, **options: Any) -> ImageData:
        def read(cog: CogReader) -> ImageData:
            area = box if cog.extent().east > box.west else box._replace(west=box.west - 360, east=box.east - 360)
            return cog.part(
                area, bounds_crs=WGS84_CRS, dst_crs=dst_crs or WGS84_CRS, width=width, height=height, **options
            )

        return self._merged(self.mosaic.all(), read)

    def _shown_box(self) -> BBox:
        """Its bounds; across the antimeridian, where MosaicJSON can't say them, the catalogue's, on beyond 180."""
        bounds = self.input.source.bounds
        return bounds.unrolled() if bounds.crosses_antimeridian else self.mosaic.bounds

    def point(self, lon: float, lat: float, **options: Any) -> PointData:
        """Of the first COG that has data there, else of the first."""
        zoom = self.mosaic.quadkey_zoom
        x, y, _ = self.tms.tile(lon, lat, zoom)
        require_tile(x, y, zoom)
        seen: PointData | None = None
        for location in self._near(self.mosaic.below(x, y, zoom), BBox(lon, lat, lon, lat)):
            try:
                with self._opened(location) as cog:
                    found: PointData = cog.point(lon, lat, **options)
            except PointOutsideBounds:
                continue
            if not found.array.mask.all():
                return found
            seen = seen or found
        if seen is None:
            raise NoAssetFoundError("no asset here")
        return seen

    def statistics(self, max_size: int = _LARGEST_PICTURE, percentiles: list[int] | None = None,
                   hist_options: dict[str, Any] | None = None, indexes: Sequence[int] | None = None,
                   **options: Any) -> dict[str, BandStatistics]:  # fmt: skip
        with self._opened(self._first()) as cog:
            bands = indexes or cog.bands()
        box = self._shown_box()
        picture = self._picture(box, *_size(_shape(box), max_size, None, None), indexes=bands, **options)
        statistics: dict[str, BandStatistics] = picture.statistics(percentiles=percentiles, hist_options=hist_options)
        return statistics

    def info(self) -> Info:
        """As of its first COG, but for what only the whole has."""
        with self._opened(self._first()) as cog:
            told = cog.info().model_dump()
        for name in ("width", "height", "overviews", "minmax"):
            told.pop(name, None)
        told |= {"bounds": self.bounds, "crs": CRS_to_uri(WGS84_CRS), "assets": len(self.mosaic.all())}
        return Info.model_validate(told)

    def feature(self, *_: Any, **__: Any) -> ImageData:
        raise NotImplementedError

    def part(self, *_: Any, **__: Any) -> ImageData:
        raise NotImplementedError

    def _first(self) -> Location:
        if not self.mosaic.quadkeys:
            raise NoAssetFoundError("the mosaic is empty")
        return self.mosaic.assets[self.mosaic.quadkeys[0]][0]

    def _near(self, locations: list[Location], area: BBox) -> list[Location]:
        """Those that are not known to be elsewhere."""
        extents = self.mosaic.extents
        return [place for place in locations if place not in extents or extents[place].intersects(area)]

    def _merged(self, locations: list[Location], read: Callable[[CogReader], ImageData]) -> ImageData:
        if not locations:
            raise NoAssetFoundError("no asset here")
        if len(locations) > MOST_ASSETS:
            what = f"this would be made of {len(locations)} files, and {MOST_ASSETS} is the most"
            raise InvalidRequest(what, code="tiles.too-many-assets", hint="zoom in")

        @inherit_rasterio_env
        def read_one(location: Location) -> ImageData:
            with self._opened(location) as cog:
                return read(cog)

        if len(locations) == 1:
            return read_one(locations[0])
        # In threads only where there are several: most tiles lie in one COG.
        coming = iter(locations)
        reads = deque(_THREADS.submit(read_one, location) for location in islice(coming, _AHEAD))

        def read_next(_: Location) -> ImageData:
            """Which is the one that is asked for: without threads of its own rio-tiler takes them in their order."""
            read = reads.popleft()
            try:
                return read.result()
            finally:
                reads.extend(_THREADS.submit(read_one, location) for location in islice(coming, 1))

        try:
            image, _ = mosaic_reader(locations, read_next, threads=0)
            return image
        finally:
            for unwanted in reads:
                unwanted.cancel()

    def _opened(self, location: Location) -> CogReader:
        cog = CogReader(self.input.storage.gdal_path(location), tms=self.tms, handles=self.input.handles)
        self.mosaic.extents.setdefault(location, cog.extent())
        self.colormap = cog.colormap
        return cog


def require_tile(x: int, y: int, z: int) -> None:
    if not (0 <= z <= _DEEPEST_ZOOM and 0 <= x < 2**z and 0 <= y < 2**z):
        raise TileOutsideBounds("there is no such tile")


def _size(shape: float, longest: int | None, width: int | None, height: int | None) -> tuple[int, int]:
    """As wide and high as asked for; what is not said follows from the shape, which is width by height."""
    if width is None and height is None:
        longest = longest or _LARGEST_PICTURE
        width, height = (longest, None) if shape >= 1 else (None, longest)
    if width is None:
        width = max(1, min(_LARGEST_PICTURE * 2, math.floor((height or 1) * shape + 0.5)))
    if height is None:
        height = max(1, min(_LARGEST_PICTURE * 2, math.floor(width / max(shape, 1e-9) + 0.5)))
    return width, height


def _shape(box: BBox) -> float:
    return (box[2] - box[0]) / max(box[3] - box[1], 1e-9)


def _shape_on_ground(box: BBox) -> float:
    """A degree of longitude is shorter than one of latitude; near a pole not so much that nothing would be seen."""
    return _shape(box) * max(math.cos(math.radians((box[1] + box[3]) / 2)), 0.05)
