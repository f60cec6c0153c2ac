"""Readers in the sense of rio-tiler: one for a COG, and one for a mosaic of COGs with the same methods.

Only GeoTIFF is opened, whatever format a file claims to have: other drivers would follow references to other files and
hosts.
"""

import math
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.serving.caching import NotModified
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.grids import has_tile
from dagmaster.serving.mosaics import MAX_ASSETS, Mosaic, MosaicCache
from dagmaster.serving.sources import SourceKind, TileSource
from dagmaster.storage.location import Location
from dagmaster.storage.zones import Storage

# COGs of one mosaic that are read at once: one request must not take all cores from the others.
_CONCURRENT_READS = 2
# The threads are kept: GDAL and PROJ initialise their state for each new thread.
_THREADS = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="cogs")
_BANDS = re.compile(r"\bb(\d{1,3})\b")
_DEFAULT_SIZE = 1024
_MAX_SIZE = 2 * _DEFAULT_SIZE

GDAL_ENVIRONMENT: Mapping[str, Any] = {
    # Do not list the folder and do not look for side-car files: a COG is complete in itself.
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "CPL_VSIL_CURL_ALLOWED_EXTENSIONS": ".tif",
    # The header and the first directory in one read.
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",
    "GDAL_CACHEMAX": 128 * 2**20,  # bytes: rasterio, unlike GDAL's own variable, does not accept megabytes
    "GDAL_NUM_THREADS": "1",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_TIMEOUT": 20,
}


@dataclass(frozen=True, slots=True)
class ReaderInput:
    """A source and the services that open its files: what TiTiler's path dependency passes to the reader."""

    source: TileSource
    storage: Storage
    mosaics: MosaicCache
    datasets: DatasetPool = field(default_factory=DatasetPool)
    is_known: bool = False  # the client has the content of this revision
    mosaic: Mosaic | None = None  # instead of the document at the location of the source

    def open_cog(self, location: Location, tms: TileMatrixSet, *, is_display: bool) -> "CogReader":
        return CogReader(self.storage.gdal_path(location), tms=tms, datasets=self.datasets, is_display=is_display)


def open_for_display(src_path: ReaderInput, tms: TileMatrixSet = WEB_MERCATOR_TMS) -> "CogReader | MosaicReader":
    """A reader for images: at most three bands unless the request selects some, with the aspect ratio on the ground."""
    return _open(src_path, tms, is_display=True)


def open_for_values(src_path: ReaderInput, tms: TileMatrixSet = WEB_MERCATOR_TMS) -> "CogReader | MosaicReader":
    """A reader for points and statistics: all bands unless the request selects some, with the aspect ratio of the
    data."""
    return _open(src_path, tms, is_display=False)


def _open(src_path: ReaderInput, tms: TileMatrixSet, *, is_display: bool) -> "CogReader | MosaicReader":
    if src_path.is_known:
        raise NotModified
    if src_path.source.kind is SourceKind.COG:
        return src_path.open_cog(src_path.source.location, tms, is_display=is_display)
    return MosaicReader(src_path, tms, is_display=is_display)


@attr.s
class CogReader(Reader):
    """rio-tiler's reader on a dataset of the pool. An alpha band is a mask."""

    datasets: DatasetPool = attr.ib(kw_only=True)
    is_display: bool = attr.ib(kw_only=True)
    _pooled_dataset: ExitStack = attr.ib(init=False, factory=ExitStack)

    def __attrs_post_init__(self) -> None:
        self.dataset = self._pooled_dataset.enter_context(self.datasets.open(str(self.input)))
        super().__attrs_post_init__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close rio-tiler's VRT, if there is one, then return the dataset to the pool, which handles the error."""
        try:
            super().close()  # type: ignore[no-untyped-call]
        finally:
            self._pooled_dataset.__exit__(kind, error, trace)

    def tile(self, tile_x: int, tile_y: int, tile_z: int, **options: Any) -> ImageData:  # type: ignore[override]
        require_tile(self.tms, tile_x, tile_y, tile_z)
        return super().tile(tile_x, tile_y, tile_z, **options)

    def part(  # type: ignore[override]
        self,
        bbox: BBox,
        indexes: Sequence[int] | None = None,
        expression: str | None = None,
        width: int | None = None,
        height: int | None = None,
        **options: Any,
    ) -> ImageData:
        self._require_bands_of(expression)
        bands = None if expression else self._indexes(indexes)
        if (width is None) != (height is None):  # rio-tiler does not limit the side that is not given
            width, height = _size(_aspect(BBox(*bbox)), None, width, height)
        return super().part(bbox, indexes=bands, expression=expression, width=width, height=height, **options)

    def preview(  # type: ignore[override]
        self,
        indexes: Sequence[int] | None = None,
        expression: str | None = None,
        max_size: int | None = None,
        width: int | None = None,
        height: int | None = None,
        **options: Any,
    ) -> ImageData:
        self._require_bands_of(expression)
        longest: Any = max_size or _DEFAULT_SIZE
        if self.is_display and self._dataset.crs and self._dataset.crs.is_geographic:
            longest = min(longest, max(self._dataset.width, self._dataset.height))
            width, height = _size(_aspect_on_ground(BBox(*self._dataset.bounds)), longest, width, height)
        if width or height:
            width, height = _size(self._dataset.width / self._dataset.height, None, width, height)
            longest = None  # rio-tiler accepts either max_size or width and height
        bands = None if expression else self._indexes(indexes)
        return super().preview(
            indexes=bands, expression=expression, max_size=longest, width=width, height=height, **options
        )

    def point(  # type: ignore[override]
        self, lon: float, lat: float, indexes: Sequence[int] | None = None, **options: Any
    ) -> PointData:
        self._require_bands(indexes)
        self._require_bands_of(options.get("expression"))
        return super().point(lon, lat, indexes=indexes, **options)

    def band_indexes(self) -> list[int]:
        return list(self._dataset.indexes)

    def extent(self) -> BBox:
        return BBox(*self.get_geographic_bounds(WGS84_CRS))

    def _indexes(self, indexes: Sequence[int] | None) -> Sequence[int] | None:
        if indexes or not self.is_display:
            self._require_bands(indexes)
            return indexes
        pairs = zip(self._dataset.indexes, self._dataset.colorinterp, strict=True)
        bands = [band for band, color in pairs if color is not ColorInterp.alpha]
        return bands[:3] if len(bands) >= 3 else bands[:1]

    def _require_bands_of(self, expression: str | None) -> None:
        if expression:
            self._require_bands([int(band) for band in _BANDS.findall(expression)])

    def _require_bands(self, indexes: Sequence[int] | None) -> None:
        count = self._dataset.count
        if any(not 1 <= band <= count for band in indexes or ()):
            raise InvalidRequest(f"the band does not exist: the dataset has bands 1 to {count}", code="tiles.no-band")

    @property
    def _dataset(self) -> Any:
        return self.dataset


class MosaicReader(BaseReader):
    """The COGs of a mosaic as one image: where they overlap, the first one with data is used."""

    def __init__(self, src_path: ReaderInput, tms: TileMatrixSet = WEB_MERCATOR_TMS, *, is_display: bool) -> None:
        self.input = src_path
        self.tms = tms
        self.is_display = is_display
        source = src_path.source
        self.mosaic: Mosaic = src_path.mosaic or src_path.mosaics.load(source.location, source.tag)
        self.bounds = self.mosaic.bounds
        self.crs = WGS84_CRS
        self.colormap: dict[int, Any] | None = None  # of the COG that was opened last: all have the same

    @property
    def minzoom(self) -> int:
        return self._zooms()[0]

    @property
    def maxzoom(self) -> int:
        return self._zooms()[1]

    def _zooms(self) -> tuple[int, int]:
        """The zoom levels of the mosaic, which are those of Web Mercator; in other grids, the levels with about the
        same pixel sizes."""
        if self.tms is WEB_MERCATOR_TMS or self.tms.id == WEB_MERCATOR_TMS.id:
            return self.mosaic.minzoom, self.mosaic.maxzoom
        sizes = (_pixel_metres(WEB_MERCATOR_TMS, zoom) for zoom in (self.mosaic.minzoom, self.mosaic.maxzoom))
        lowest, highest = (_zoom_of(self.tms, size) for size in sizes)
        return lowest, highest

    def tile(self, tile_x: int, tile_y: int, tile_z: int, **options: Any) -> ImageData:
        require_tile(self.tms, tile_x, tile_y, tile_z)
        if tile_z < self.minzoom:  # such a tile could need every COG; a tile above maxzoom needs few
            raise NotFound(
                f"the dataset has no tiles below zoom {self.minzoom}",
                code="tiles.outside-zooms",
                hint="the TileJSON contains the bounds and the zoom levels",
            )
        area = BBox(*self.tms.bounds(Tile(tile_x, tile_y, tile_z)))
        is_mercator = self.tms.id == WEB_MERCATOR_TMS.id
        assets = self.mosaic.assets_for_tile(tile_x, tile_y, tile_z) if is_mercator else self.mosaic.assets_in(area)
        assets = self._near(assets, area)
        return self._merge(assets, lambda cog: cog.tile(tile_x, tile_y, tile_z, **options))

    def preview(
        self,
        indexes: Sequence[int] | None = None,
        max_size: int | None = None,
        width: int | None = None,
        height: int | None = None,
        dst_crs: CRS | None = None,
        **options: Any,
    ) -> ImageData:
        box = self._continuous_bounds()
        aspect = _aspect_on_ground(box) if self.is_display else _aspect(box)
        size = _size(aspect, max_size, width, height)
        return self._read_box(box, self.mosaic.all_assets(), size, indexes=indexes, dst_crs=dst_crs, **options)

    def part(  # type: ignore[override]
        self,
        bbox: BBox,
        *,
        indexes: Sequence[int] | None = None,
        max_size: int | None = None,
        width: int | None = None,
        height: int | None = None,
        dst_crs: CRS | None = None,
        bounds_crs: CRS | None = None,
        **options: Any,
    ) -> ImageData:
        """A box in degrees, also if it is partly or completely outside the mosaic."""
        box = BBox(*bbox)
        options.pop("align_bounds_with_dataset", None)  # there is no common grid
        assets = self._near(self.mosaic.assets_in(box), box)
        size = _size(_aspect(box), max_size, width, height)
        return self._read_box(box, assets, size, indexes=indexes, dst_crs=dst_crs, **options)

    def feature(self, shape: dict[str, Any], **options: Any) -> ImageData:
        return Reader.feature(self, shape, **options)  # type: ignore[arg-type] # it uses nothing but `part`

    def _read_box(
        self,
        box: BBox,
        assets: list[Location],
        size: tuple[int, int],
        *,
        indexes: Sequence[int] | None,
        dst_crs: CRS | None,
        **options: Any,
    ) -> ImageData:
        columns, rows = size
        # Without options rio-tiler does not warp files that are in this CRS: it lets GDAL read a window of whole pixels
        # of the overview, which moves each file by up to half a pixel and leaves gaps between them.
        warping = {**options, "vrt_options": {"num_threads": 1, **(options.get("vrt_options") or {})}}
        if not self.is_display and not indexes and not options.get("expression"):
            with self._open(self._first_asset()) as cog:
                indexes = cog.band_indexes()

        def read(cog: CogReader) -> ImageData:
            area = box if cog.extent().east > box.west else box.shifted(-1)
            crs = dst_crs or WGS84_CRS
            return cog.part(area, indexes, bounds_crs=WGS84_CRS, dst_crs=crs, width=columns, height=rows, **warping)

        return self._merge(assets, read)

    def point(self, lon: float, lat: float, **options: Any) -> PointData:
        """The values from the first COG that has data at the point, else from the first COG that contains it."""
        zoom = self.mosaic.quadkey_zoom
        x, y, _ = WEB_MERCATOR_TMS.tile(lon, lat, zoom)
        require_tile(WEB_MERCATOR_TMS, x, y, zoom)
        masked: PointData | None = None
        for location in self._near(self.mosaic.assets_for_tile(x, y, zoom), BBox(lon, lat, lon, lat)):
            try:
                with self._open(location) as cog:
                    point: PointData = cog.point(lon, lat, **options)
            except PointOutsideBounds:
                continue
            if not point.array.mask.all():
                return point
            masked = masked or point
        if masked is None:
            raise NoAssetFoundError("no asset covers the point")
        return masked

    def info(self) -> Info:
        """The info of the first COG, with the bounds of the mosaic and without sizes, which differ between COGs."""
        with self._open(self._first_asset()) as cog:
            info = cog.info().model_dump()
        for name in ("width", "height", "overviews", "minmax"):
            info.pop(name, None)
        info |= {"bounds": self.bounds, "crs": CRS_to_uri(WGS84_CRS), "assets": len(self.mosaic.all_assets())}
        return Info.model_validate(info)

    def statistics(self, *_: Any, **__: Any) -> dict[str, BandStatistics]:
        raise NotImplementedError  # TiTiler takes statistics from a preview

    def _continuous_bounds(self) -> BBox:
        """The bounds of the mosaic. Across the antimeridian, those of the catalogue, whose longitudes go beyond 180:
        MosaicJSON has no such bounds."""
        bounds = self.input.source.bounds
        return bounds.unrolled() if bounds.crosses_antimeridian else self.mosaic.bounds

    def _first_asset(self) -> Location:
        if not self.mosaic.quadkeys:
            raise NoAssetFoundError("the mosaic is empty")
        return self.mosaic.assets[self.mosaic.quadkeys[0]][0]

    def _near(self, locations: list[Location], area: BBox) -> list[Location]:
        """The locations without those whose extent is known and does not touch the area."""
        extents = self.mosaic.extents
        return [asset for asset in locations if asset not in extents or extents[asset].intersects(area)]

    def _merge(self, locations: list[Location], read: Callable[[CogReader], ImageData]) -> ImageData:
        if not locations:
            raise NoAssetFoundError("no asset covers the area")
        if len(locations) > MAX_ASSETS:
            message = f"the image would need {len(locations)} files, the limit is {MAX_ASSETS}"
            raise InvalidRequest(message, code="tiles.too-many-assets", hint="zoom in")

        @inherit_rasterio_env
        def read_asset(location: Location) -> ImageData:
            with self._open(location) as cog:
                return read(cog)

        if len(locations) == 1:  # most tiles lie in one COG: no thread is needed
            return read_asset(locations[0])
        waiting = iter(locations)
        reads = deque(_THREADS.submit(read_asset, location) for location in islice(waiting, _CONCURRENT_READS))

        counts: set[int] = set()

        def next_image(_: Location) -> ImageData:
            """The image of the next asset: with `threads=0` rio-tiler requests them in the order of the list."""
            pending = reads.popleft()
            try:
                image = pending.result()
                counts.add(image.count)
                if len(counts) > 1:
                    raise UnfitData(
                        "the files have different numbers of bands",
                        code="mosaic.mixed-bands",
                        hint="select bands that all files have, with bidx",
                    )
                return image
            finally:
                reads.extend(_THREADS.submit(read_asset, location) for location in islice(waiting, 1))

        try:
            image, _ = mosaic_reader(locations, next_image, threads=0)
            return image
        finally:
            for pending in reads:
                pending.cancel()

    def _open(self, location: Location) -> CogReader:
        cog: CogReader = self.input.open_cog(location, self.tms, is_display=self.is_display)
        self.mosaic.extents.setdefault(location, cog.extent())
        self.colormap = cog.colormap
        return cog


def require_tile(grid: TileMatrixSet, x: int, y: int, z: int) -> None:
    if not has_tile(grid, x, y, z):
        raise TileOutsideBounds("the tile does not exist")


def _pixel_metres(grid: TileMatrixSet, zoom: int) -> float:
    return float(grid.matrix(zoom).scaleDenominator) * 0.28e-3  # the size of a pixel in the definition of scales


def _zoom_of(grid: TileMatrixSet, metres: float) -> int:
    zooms = range(grid.minzoom, grid.maxzoom + 1)
    return min(zooms, key=lambda zoom: abs(math.log(_pixel_metres(grid, zoom) / metres)))


def _size(aspect: float, longest: int | None, width: int | None, height: int | None) -> tuple[int, int]:
    """Width and height as requested; a missing one follows from the aspect ratio (width by height)."""
    if width is None and height is None:
        longest = longest or _DEFAULT_SIZE
        width, height = (longest, None) if aspect >= 1 else (None, longest)
    if width is None:
        width = max(1, min(_MAX_SIZE, math.floor((height or 1) * aspect + 0.5)))
    if height is None:
        height = max(1, min(_MAX_SIZE, math.floor(width / max(aspect, 1e-9) + 0.5)))
    return width, height


def _aspect(box: BBox) -> float:
    return (box.east - box.west) / max(box.north - box.south, 1e-9)


def _aspect_on_ground(box: BBox) -> float:
    """A degree of longitude is shorter than one of latitude. The ratio is limited near the poles, where it would become
    zero."""
    return _aspect(box) * max(math.cos(math.radians((box.south + box.north) / 2)), 0.05)
