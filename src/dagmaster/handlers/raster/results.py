"""What raster handlers return. Later handlers are given these values, and workflows read their fields.

Jobs keep outputs of earlier releases: a field may be added with a default, and is never renamed or removed. This holds
for the fields of `OutputGrid`, `MosaicAsset` and `Footprint` too, which are parts of results.
"""

from collections.abc import Iterable

from dagmaster.bbox import BBox
from dagmaster.handlers.frozen import FrozenModel
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.handlers.raster.findings import MergedFinding, ReportedFinding
from dagmaster.handlers.raster.outputs import megabytes
from dagmaster.handlers.raster.sources import SourceParams
from dagmaster.raster.analysis.footprint import Footprint
from dagmaster.raster.analysis.mosaic import MosaicAsset
from dagmaster.raster.cog.grid import OutputGrid, Tile
from dagmaster.raster.source.extent import Bounds
from dagmaster.raster.source.facts import RasterFacts


class ValidationResult(FrozenModel):
    """`is_tiled` decides whether the source becomes tiles or a single COG. `content_hash` is its SHA-256."""

    file_size_mb: float
    raw_size_mb: float
    blob_url: str
    crs: str | None
    bounds: Bounds | None
    bounds_4326: BBox | None
    crosses_antimeridian: bool
    is_tiled: bool
    band_count: int
    data_type: str
    shape: tuple[int, int]
    detected_type: str
    verdict: str
    findings: list[ReportedFinding]
    about: DatasetDescription
    source: SourceParams
    content_hash: str | None = None


class CollectionPart(FrozenModel):
    """One file of a collection. `neighbours` have pixels that are needed to interpolate at its edges."""

    source: SourceParams
    part: str
    about: DatasetDescription
    neighbours: list[SourceParams] = []


class CollectionValidationResult(FrozenModel):
    """`resolution` is None if all files keep their pixels; otherwise only files on the grid of `origin` keep theirs.

    `content_hash` is a SHA-256 over the checksums of all files.
    """

    about: DatasetDescription
    detected_type: str
    resolution: tuple[float, float] | None
    origin: tuple[float, float] | None = None
    shown_as: Json
    parts: list[CollectionPart]
    findings: list[MergedFinding]
    content_hash: str | None = None


class TileWindow(FrozenModel):
    """`window` is column, row, width and height on the grid; `own` is the part of it that no following tile covers."""

    tile_id: str
    row: int = 0
    col: int = 0
    window: tuple[int, int, int, int]
    own: tuple[int, int] | None = None

    @classmethod
    def of(cls, tile: Tile, tiles: Iterable[Tile]) -> "TileWindow":
        """Pixels that overlap with a following tile are counted there."""
        window = tile.window
        following_cols = [t.window.col for t in tiles if t.row == tile.row and t.window.col > window.col]
        following_rows = [t.window.row for t in tiles if t.col == tile.col and t.window.row > window.row]
        return cls(
            tile_id=tile.tile_id,
            row=tile.row,
            col=tile.col,
            window=(window.col, window.row, window.width, window.height),
            own=(
                min(window.width, min(following_cols, default=window.col + window.width) - window.col),
                min(window.height, min(following_rows, default=window.row + window.height) - window.row),
            ),
        )


class GridDimensions(FrozenModel):
    rows: int
    cols: int


class RasterMetadata(FrozenModel):
    width: int
    height: int
    band_count: int
    data_type: str
    size_mb: float
    compression: str | None

    @classmethod
    def of(cls, facts: RasterFacts) -> "RasterMetadata":
        return cls(
            width=facts.width,
            height=facts.height,
            band_count=facts.count,
            data_type=facts.dtype,
            size_mb=megabytes(facts.size_bytes),
            compression=facts.compression,
        )


class TilingSchemeResult(FrozenModel):
    tiling_scheme_blob: str
    tiling_scheme_container: str
    tile_list: list[TileWindow]
    total_tiles: int
    left_out: int
    grid_dimensions: GridDimensions
    grid: OutputGrid
    tile_size: int
    overlap: int
    source_crs: str | None
    target_crs: str
    shown_as: Json
    raster_metadata: RasterMetadata


class MosaicPart(FrozenModel):
    """The values of a COG that a mosaic needs. A COG without data has neither footprint nor item.

    `partials` are the statistics of its bands, in the form of `Partial.pack`.
    `findings` are those of processing every pixel, not those of the validation.
    """

    cog_blob: str
    cog_container: str
    size_bytes: int
    partials: list[Json]
    asset: MosaicAsset
    footprint: Footprint | None
    stac_item: Json | None
    findings: list[ReportedFinding] = []


class ValidAreaResult(FrozenModel):
    """The valid area that the source and the COG should share, from a sample of places away from borders."""

    source_km2: float
    output_km2: float
    lost_km2: float
    added_km2: float


class CogResult(MosaicPart):
    """`tile_id` names the part of the dataset; None for a dataset of one COG.

    `infinite` is the number of infinite values; they are in the COG, but not in its statistics.
    """

    tile_id: str | None
    bounds_4326: BBox | None
    shape: tuple[int, int]
    size_mb: float
    sha256: str
    reprojection_performed: bool
    compression: str
    cog_tier: str
    band_count: int
    data_type: str
    clamped: int
    seconds: dict[str, float]
    valid_area: ValidAreaResult | None = None
    infinite: int = 0


class StackResult(CogResult):
    total_sources: int


class TileBatchResult(FrozenModel):
    tiles: list[CogResult]
    stac_item: list[Json | None]
    total_tiles: int


class ServedUrls(FrozenModel):
    """The URLs of a dataset once it is published. None if the job was not submitted for an asset: its results are never
    published."""

    tile_server_url: str | None = None
    xyz_url: str | None = None
    viewer_url: str | None = None
    stac_url: str | None = None
    preview_url: str | None = None


class DatasetResult(ServedUrls):
    """`findings` are those of the validation and of all COGs, one for each code."""

    collection: Json
    findings: list[MergedFinding] = []


class MosaicResult(DatasetResult):
    mosaic_blob: str
    mosaic_container: str
    total_cogs: int
    quadkey_count: int
    minzoom: int
    maxzoom: int
    bounds: list[float]
    bbox: BBox
    statistics: list[Json | None]
    size_mb: float


class MountResult(FrozenModel):
    mounted_container: str
    mounted_blob: str
    size_mb: float


class DocumentsResult(FrozenModel):
    collection: Json
    blobs: list[str]
    count: int


class ItemDocuments(FrozenModel):
    stac_item: list[Json]


class InventoryResult(FrozenModel):
    container_name: str
    blobs: list[str]
    count: int
    size_mb: float
