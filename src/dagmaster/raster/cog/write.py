"""Write a window of the grid as a cloud-optimised GeoTIFF, directly from the source.

One pass: each block of 512 × 512 is read, warped, encoded and halved for the overviews. A thread counts it for the
statistics while GDAL encodes it without holding the GIL. Only one row of blocks per overview is in memory, and no
uncompressed copy is written. The COG is written to a hidden folder next to the target and renamed when it is complete:
a reader sees the finished COG or none.

    grid = output_grid(read_facts("scene.tif"))
    cog = make_cog("scene.tif", Path("scene_cog.tif"), grid, raster_type=RasterType.RGB)
"""

import contextlib
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.windows
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from dagmaster.bbox import BBox
from dagmaster.errors import Unavailable
from dagmaster.raster.analysis.statistics import Partials, Tally
from dagmaster.raster.cog.area import AreaCheck, ValidArea
from dagmaster.raster.cog.grid import OutputGrid, require_aligned
from dagmaster.raster.cog.profiles import ANALYSIS, CogProfile, overview_resampling_for, require_fit, resampling_for
from dagmaster.raster.cog.pyramid import PyramidLevel, halving, sizes
from dagmaster.raster.cog.tiff import Image, JoinedFile, join
from dagmaster.raster.cog.warp import Blocks, interpolation_for
from dagmaster.raster.source.bands import Bands
from dagmaster.raster.source.classes import holds_classes
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.extent import Bounds
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.opening import opened
from dagmaster.raster.source.pixels import Block, Pixels, Rules, Validity, source_of
from dagmaster.raster.source.window import BLOCK, Window

_MB = 2**20


@dataclass(frozen=True, slots=True)
class CogFacts:
    """Facts about a COG that was written. `validity` is how it marks nodata."""

    path: Path
    size_bytes: int
    sha256: str
    width: int
    height: int
    crs: str
    transform: tuple[float, float, float, float, float, float]
    bounds: Bounds
    bounds_4326: BBox
    dtype: str
    band_count: int
    nodata: float | None
    validity: Validity
    compression: str
    tier: str
    resampling: str
    reprojection_performed: bool
    overviews: tuple[int, ...]  # their reduction factors
    treated_as: str  # "classes" or "measurements"
    is_type_unknown: bool  # `treated_as` was decided from the values
    is_empty: bool  # no pixel is valid
    valid_area: ValidArea  # compared with that of the source
    clamped: int  # values that did not fit its type and became the nearest that fits
    seconds: dict[str, float]  # by step: read_and_warp, encode, statistics (after encode), overviews, join
    statistics: Partials  # exact, per band; of the pixels before lossy compression; empty if not requested
    own_statistics: Partials  # of the part that counts in a mosaic


@dataclass(frozen=True, slots=True)
class _WritePlan:
    """All decisions, made before the first pixel is read."""

    grid: OutputGrid
    window: Window
    profile: CogProfile
    bands: Bands
    rules: Rules
    resampling: Resampling
    overview_resampling: Resampling
    is_type_unknown: bool

    @property
    def written_bands(self) -> list[int]:
        """Indices of the bands that are written: in JPEG a mask replaces alpha."""
        every = range(len(self.bands.colors))
        return [band for band in every if not (self.profile.is_lossy and band == self.rules.alpha)]

    @property
    def nodata(self) -> float | None:
        # Lossy compression may change a value to or from the nodata value.
        return None if self.profile.is_lossy else self.rules.nodata

    @property
    def may_need_mask(self) -> bool:
        return self.profile.is_lossy or self.rules.validity in (Validity.MASK, Validity.ALL)


@dataclass(slots=True)
class _Watch:
    """Measures the seconds that each step takes."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextlib.contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - start


def make_cog(
    source: str | Path,
    target: Path,
    grid: OutputGrid,
    window: Window | None = None,
    profile: CogProfile = ANALYSIS,
    *,
    raster_type: RasterType,
    resampling: Resampling | None = None,
    nodata: float | None = None,
    source_crs: str | None = None,
    unset_alpha: bool = False,
    dtype: str | None = None,
    remote: bool = False,
    own: tuple[int, int] | None = None,
    exact_statistics: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> CogFacts:
    """Write the window of the grid (all of it by default) as a COG.

    `nodata` replaces the nodata value of a source that has no mask and no alpha.
    `unset_alpha`: the band that is marked as alpha holds data.
    `dtype` converts integers; a value that does not fit becomes the nearest that fits, and is counted in `clamped`.
    `own` (width, height) is the part of the window that no following tile covers; it counts in a mosaic.
    Without `exact_statistics`, none are computed: they can be measured in an overview of the COG.
    `on_progress` is called with the finished share, from 0 to 1; if it raises an error, no target is written.
    """
    with opened(source, remote=remote) as dataset:
        pixels = source_of(
            dataset, raster_type, nodata=nodata, source_crs=source_crs, unset_alpha=unset_alpha, dtype=dtype
        )
        bands = Bands.of(dataset, raster_type, unset_alpha=unset_alpha, dtype=dtype)
        with rasterio.Env(GDAL_CACHEMAX=_cache_bytes(dataset, window or grid.window)):
            return write_cog(
                pixels,
                bands,
                target,
                grid,
                window=window,
                profile=profile,
                raster_type=raster_type,
                resampling=resampling,
                own=own,
                exact_statistics=exact_statistics,
                on_progress=on_progress,
            )


def write_cog(
    source: Pixels,
    bands: Bands,
    target: Path,
    grid: OutputGrid,
    *,
    window: Window | None = None,
    core: Window | None = None,
    profile: CogProfile = ANALYSIS,
    raster_type: RasterType,
    resampling: Resampling | None = None,
    own: tuple[int, int] | None = None,
    exact_statistics: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> CogFacts:
    """As `make_cog`, for a source that is open already and may consist of more than one file (see `cog.stack`).

    `core` is the part of the source that becomes valid, if pixels around it are only for interpolation.
    """
    window = window or grid.window
    require_aligned(grid, window)
    require_fit(profile, bands.dtype, [color.name for color in bands.colors])
    is_unknown = raster_type is RasterType.UNKNOWN and bands.palette is None and not bands.dtype.startswith("float")
    if is_unknown and holds_classes(source):
        raster_type = RasterType.CATEGORICAL
    kind = raster_type, bands.palette is not None
    plan = _WritePlan(
        grid=grid,
        window=window,
        profile=profile,
        bands=bands,
        rules=source.rules,
        resampling=resampling if resampling is not None else _resampling(source, grid, *kind),
        overview_resampling=overview_resampling_for(*kind),
        is_type_unknown=is_unknown,
    )
    area = AreaCheck(source, grid, window, plan.resampling, core)
    blocks = area.blocks()
    watch = _Watch()
    tally = None
    if exact_statistics:
        tally = Tally(plan.written_bands, bands.dtype, plan.rules, own, before_compression=profile.is_lossy)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        images = _PyramidImages(Path(scratch), plan, watch, tally)
        with images:
            _fill(images, blocks, plan, watch, on_progress)
        with watch("join"):
            joined = join(images.images(), Path(scratch) / "joined")
            (Path(scratch) / "joined").replace(target)
    return _facts(
        target,
        plan,
        images,
        joined,
        blocks,
        valid_area=area.valid_area(),
        seconds=watch.seconds,
        statistics=tally.whole(window.width, window.height) if tally else (),
        own_statistics=tally.own(window.width, window.height) if tally else (),
    )


def _resampling(source: Pixels, grid: OutputGrid, raster_type: RasterType, has_palette: bool) -> Resampling:
    by_type = resampling_for(raster_type, has_palette)
    return interpolation_for(source, grid) if by_type is Resampling.bilinear else by_type


def _cache_bytes(dataset: Any, window: Window) -> int:
    """GDAL's cache: the source of a row of blocks, so that each block is decompressed once."""
    rows, cols = dataset.block_shapes[0]
    width = dataset.width if cols >= dataset.width else min(dataset.width, window.width + 2 * cols)
    pixel = sum(np.dtype(dtype).itemsize for dtype in dataset.dtypes)
    return min(max(64 * _MB, int(1.3 * width * (1.5 * BLOCK + rows) * pixel)), 256 * _MB)


def _fill(
    images: "_PyramidImages",
    blocks: Blocks,
    plan: _WritePlan,
    watch: _Watch,
    on_progress: Callable[[float], None] | None,
) -> None:
    rows, cols = plan.window.blocks()
    for row in range(rows):
        for col in range(cols):
            with watch("read_and_warp"):
                block = blocks.block(plan.window.col + col * BLOCK, plan.window.row + row * BLOCK)
            images.put(row, col, block)
        if on_progress is not None:
            on_progress((row + 1) / rows)


class _PyramidImages:
    """The images of the pyramid, each in a separate TIFF that GDAL encodes."""

    def __init__(self, folder: Path, plan: _WritePlan, watch: _Watch, tally: Tally | None) -> None:
        self._watch = watch
        shapes = sizes(plan.window.width, plan.window.height)
        self._sinks = [_ImageSink(folder, plan, level, shape, watch) for level, shape in enumerate(shapes)]
        self._counting: ThreadPoolExecutor | None = None
        if tally is not None:
            counting = self._counting = ThreadPoolExecutor(1, "statistics")
            self._sinks[0].count = lambda column, row, block: counting.submit(tally.add, column, row, block)
        halve = halving(plan.overview_resampling, plan.rules)
        above: PyramidLevel | None = None
        for sink in reversed(self._sinks):
            above = PyramidLevel(sink.width, sink.height, sink, self._timed(halve), plan.rules.fill, above)
        assert above is not None
        self._level = above

    def __enter__(self) -> "_PyramidImages":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._counting is not None:
            self._counting.shutdown()
        with self._watch("encode"):
            for sink in self._sinks:
                sink.close()

    @property
    def overviews(self) -> tuple[int, ...]:
        return tuple(2**level for level in range(1, len(self._sinks)))

    @property
    def is_empty(self) -> bool:
        return self._sinks[0].blocks == 0

    @property
    def is_masked(self) -> bool:
        return self._sinks[0].is_masked

    def put(self, row: int, col: int, block: Block | None) -> None:
        self._level.put(row, col, block)

    def images(self) -> list[Image]:
        return [image for sink in self._sinks for image in sink.images(with_mask=self.is_masked)]

    def _timed(self, halve: Callable[[Block], Block]) -> Callable[[Block], Block]:
        def timed(block: Block) -> Block:
            with self._watch("overviews"):
                return halve(block)

        return timed


class _ImageSink:
    """One image, and its mask if it may need one."""

    def __init__(self, folder: Path, plan: _WritePlan, level: int, size: tuple[int, int], watch: _Watch) -> None:
        width, height = self.width, self.height = size
        self.blocks = 0  # the number of blocks with data
        self.count: Callable[[int, int, Block], Future[None]] | None = None  # starts to count the values of a block
        self._not_blank = 0  # the number of blocks that must be stored in the file
        self._complete = 0  # the number of blocks without invalid pixels
        self._plan, self._level, self._watch = plan, level, watch
        self._paths = folder / f"{level}.tif", folder / f"{level}.mask.tif"
        self._image = _create(self._paths[0], plan, width, height, is_full=level == 0)
        self._mask = _create_mask(self._paths[1], width, height) if plan.may_need_mask else None

    @property
    def is_masked(self) -> bool:
        window = Window(0, 0, self.width, self.height)
        rows, cols = window.blocks()
        return self._mask is not None and self._complete < rows * cols

    def write(self, window: Window, block: Block) -> None:
        counting = self.count(window.col, window.row, block) if self.count else None
        with self._watch("encode"):
            area = rasterio.windows.Window(window.col, window.row, window.width, window.height)
            values = (
                block.values
                if len(self._plan.written_bands) == len(block.values)
                else block.values[self._plan.written_bands]
            )
            self._image.write(values, window=area)
            self.blocks += 1
            self._not_blank += bool((values != values.dtype.type(self._plan.nodata or 0)).any())
            self._complete += block.valid is None
            if self._mask is not None:
                valid = (
                    np.ones((window.height, window.width), np.uint8) if block.valid is None else block.valid.any(axis=0)
                )
                self._mask.write(valid.astype(np.uint8), 1, window=area)
        if counting is not None:
            with self._watch("statistics"):
                counting.result()

    def close(self) -> None:
        self._image.close()
        if self._mask is not None:
            self._mask.close()

    def images(self, *, with_mask: bool) -> Iterator[Image]:
        yield Image(self._paths[0], is_overview=self._level > 0, min_blocks=self._not_blank)
        if with_mask:
            yield Image(self._paths[1], is_overview=self._level > 0, is_mask=True)


def _create(path: Path, plan: _WritePlan, width: int, height: int, *, is_full: bool) -> Any:
    bands, written_bands = plan.bands, plan.written_bands
    georeference: dict[str, Any] = {}
    if is_full:
        georeference = {"crs": parse_crs(plan.grid.crs), "transform": plan.grid.transform_of(plan.window)}
    image = _new(
        path,
        width,
        height,
        count=len(written_bands),
        dtype=bands.dtype,
        nodata=plan.nodata,
        **georeference,
        **plan.profile.options(bands.dtype),
    )
    if bands.palette is not None:
        image.write_colormap(1, bands.palette)
    elif not plan.profile.is_lossy:
        image.colorinterp = bands.colors
    if is_full:
        _describe(image, bands, written_bands)
    return image


def _describe(image: Any, bands: Bands, written_bands: list[int]) -> None:
    image.descriptions = tuple(bands.descriptions[band] for band in written_bands)
    image.units = tuple(bands.units[band] or "" for band in written_bands)
    if any(scale != 1 for scale in bands.scales) or any(bands.offsets):
        image.scales = tuple(bands.scales[band] for band in written_bands)
        image.offsets = tuple(bands.offsets[band] for band in written_bands)
    image.update_tags(AREA_OR_POINT="Point" if bands.is_point else "Area")


def _create_mask(path: Path, width: int, height: int) -> Any:
    return _new(path, width, height, count=1, dtype="uint8", nbits=1, compress="DEFLATE")


def _new(path: Path, width: int, height: int, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            return rasterio.open(
                path,
                "w",
                driver="GTiff",
                width=width,
                height=height,
                tiled=True,
                blockxsize=BLOCK,
                blockysize=BLOCK,
                interleave="pixel",
                bigtiff="YES",
                sparse_ok=True,
                endianness="LITTLE",
                **options,
            )
        except RasterioError as error:
            raise Unavailable(
                "cannot write to the folder of the target",
                code="raster.write-failed",
                hint="check whether the disk is full",
            ) from error


def _facts(
    target: Path,
    plan: _WritePlan,
    images: _PyramidImages,
    joined: JoinedFile,
    blocks: Blocks,
    *,
    valid_area: ValidArea,
    seconds: dict[str, float],
    statistics: Partials,
    own_statistics: Partials,
) -> CogFacts:
    grid, window = plan.grid, plan.window
    validity = plan.rules.validity
    if plan.may_need_mask:
        validity = Validity.MASK if images.is_masked else Validity.ALL
    return CogFacts(
        path=target,
        size_bytes=joined.size_bytes,
        sha256=joined.sha256,
        width=window.width,
        height=window.height,
        crs=grid.crs,
        transform=tuple(grid.transform_of(window)[:6]),
        bounds=grid.bounds_of(window),
        bounds_4326=grid.bounds_4326_of(window),
        dtype=plan.bands.dtype,
        band_count=len(plan.written_bands),
        nodata=plan.nodata,
        validity=validity,
        compression=plan.profile.compression(plan.bands.dtype),
        tier=str(plan.profile.tier),
        resampling=plan.resampling.name if blocks.reprojects else "none",
        reprojection_performed=blocks.reprojects,
        overviews=images.overviews,
        treated_as="classes" if plan.overview_resampling is Resampling.mode else "measurements",
        is_type_unknown=plan.is_type_unknown,
        is_empty=images.is_empty,
        valid_area=valid_area,
        clamped=blocks.source.clamped,
        seconds={step: round(spent, 3) for step, spent in seconds.items()},
        statistics=statistics,
        own_statistics=own_statistics,
    )
