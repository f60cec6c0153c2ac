"""The tiling scheme of a source, and its tiles as COGs."""

from collections.abc import Iterable

import orjson
from pydantic import Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.cogs import CogParams, write_tile
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.handlers.raster.outputs import GridParams, in_silver, publish
from dagmaster.handlers.raster.results import (
    CogResult,
    GridDimensions,
    RasterMetadata,
    TileBatchResult,
    TileWindow,
    TilingSchemeResult,
)
from dagmaster.handlers.raster.sources import SourceParams, facts_of_source, find_source, renders_of, unchanged
from dagmaster.raster.cog.coverage import tiles_with_data
from dagmaster.raster.cog.grid import (
    OutputGrid,
    Tile,
    TilingScheme,
    auto_tile_size,
    output_grid,
    scheme_to_geojson,
    tiles_of,
)
from dagmaster.raster.source.facts import RasterType
from dagmaster.raster.source.window import BLOCK
from dagmaster.storage.location import Edition, Location
from dagmaster.storage.zones import Storage


class SchemeParams(GridParams):
    """By default, tiles that are at least 8 blocks wide overlap by one block; smaller tiles do not overlap.

    `recipe` is only passed by jobs of earlier releases.
    """

    source: SourceParams
    about: DatasetDescription
    tile_size: int | None = None
    overlap: int | None = Field(None, ge=0)
    recipe: Json = {}


def generate_tiling_scheme(ctx: SyncContext, params: SchemeParams) -> TilingSchemeResult:
    """Divide the output grid into tiles, leave out those without data, and store the scheme as GeoJSON."""
    source_params, description = params.source, params.about
    edition = description.writable_edition(ctx)
    source = find_source(ctx.storage, source_params, ctx.job_id)
    kind = source_params.kind or RasterType.UNKNOWN
    with unchanged(ctx.storage, source, source_params.etag):
        facts = facts_of_source(ctx.storage, source, source_params.source_crs)
        grid = output_grid(facts, params.target_crs, params.resolution)
        size = params.tile_size or auto_tile_size(facts.count, facts.dtype)
        overlap = _default_overlap(size) if params.overlap is None else params.overlap
        tiles = tiles_of(grid, size, overlap)
        ctx.progress(0.3, "looking for data", tiles=len(tiles))
        with_data = tiles_with_data(
            source.gdal_path,
            grid,
            tiles,
            raster_type=kind,
            nodata=source_params.nodata_value,
            source_crs=source_params.source_crs,
            unset_alpha=source_params.unset_alpha,
            remote=source.is_remote,
        )
        shown_as = renders_of(source, facts, description, kind)
    if not with_data:
        raise UnfitData("no tile would contain data", code="raster.all-nodata", hint="check the nodata value")
    document = scheme_to_geojson(TilingScheme(grid, size, overlap, with_data))
    scheme_source = {"source": source.name, "size_bytes": facts.size_bytes, **params.recipe}
    location = _publish_scheme(ctx.storage, edition, document | {"recipe": scheme_source})
    return TilingSchemeResult(
        tiling_scheme_blob=location.blob,
        tiling_scheme_container=location.container,
        tile_list=[TileWindow.of(tile, tiles) for tile in _largest_first(with_data)],
        total_tiles=len(with_data),
        left_out=len(tiles) - len(with_data),
        grid_dimensions=GridDimensions(
            rows=max(tile.row for tile in tiles) + 1, cols=max(tile.col for tile in tiles) + 1
        ),
        grid=grid,
        tile_size=size,
        overlap=overlap,
        source_crs=facts.crs,
        target_crs=params.target_crs,
        shown_as=shown_as,
        raster_metadata=RasterMetadata.of(facts),
    )


def _default_overlap(tile_size: int) -> int:
    return BLOCK if tile_size >= 8 * BLOCK else 0


def _publish_scheme(storage: Storage, edition: Edition, document: Json) -> Location:
    """Publish the scheme, or keep the stored one if it has the same tiles of the same source.

    The stored field `recipe` names only the source and its size; earlier releases added output options, which are not
    compared. The options are in the recipe of the edition, which `raster.validate` has checked.
    """
    location = in_silver(storage, edition.tiling_scheme())
    if storage.exists(location) and _comparable(orjson.loads(storage.get(location))) == _comparable(document):
        return location
    return publish(storage, edition.tiling_scheme(), orjson.dumps(document))


def _comparable(document: Json) -> Json:
    scheme_source = {name: value for name, value in document["recipe"].items() if name in ("source", "size_bytes")}
    return orjson.loads(orjson.dumps(document | {"recipe": scheme_source}))  # type: ignore[no-any-return]


def _largest_first(tiles: Iterable[Tile]) -> list[Tile]:
    """Sort the tiles by size, so that the last tasks are short."""
    return sorted(tiles, key=lambda tile: (-tile.window.width * tile.window.height, tile.row, tile.col))


class TileParams(CogParams):
    grid: OutputGrid
    tile: TileWindow


def process_tile(ctx: SyncContext, params: TileParams) -> CogResult:
    """Write one tile of the grid as a COG, in one pass over its part of the source."""
    return write_tile(ctx, params, params.grid, params.tile)


class TileBatchParams(CogParams):
    grid: OutputGrid
    items: list[TileWindow]


def process_tile_batch(ctx: SyncContext, params: TileBatchParams) -> TileBatchResult:
    """Write several tiles in one task, for grids of very many small tiles."""
    cogs: list[CogResult] = []
    for tile in params.items:
        cogs.append(write_tile(ctx, params, params.grid, tile))
        ctx.progress(len(cogs) / len(params.items), tile.tile_id, tiles=len(cogs))
    return TileBatchResult(tiles=cogs, stac_item=[cog.stac_item for cog in cogs], total_tiles=len(cogs))
