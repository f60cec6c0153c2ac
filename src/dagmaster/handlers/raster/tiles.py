"""The tiling scheme of a source, and its tiles as COGs."""

from collections.abc import Iterable

import orjson
from pydantic import BaseModel, Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import About, Json
from dagmaster.handlers.raster.cogs import CogParams, TileWindow, make_tile
from dagmaster.handlers.raster.workplace import GridParams, SourceParams, is_remote, megabytes, place_of_work, shown_as
from dagmaster.raster.cog.coverage import tiles_with_data
from dagmaster.raster.cog.grid import (
    BLOCK,
    OutputGrid,
    Tile,
    TilingScheme,
    auto_tile_size,
    output_grid,
    scheme_to_geojson,
    tiles_of,
)
from dagmaster.raster.source.facts import RasterType, read_facts


class SchemeParams(GridParams):
    source: SourceParams
    about: About
    tile_size: int | None = None
    overlap: int | None = Field(None, ge=0)  # by default a block, where that is little beside the tile
    recipe: Json = {}  # what else tiles are made by: one edition is made in one way


def generate_tiling_scheme(ctx: SyncContext, params: SchemeParams) -> Json:
    """Cut the output grid into tiles and leave out those without data; kept as GeoJSON."""
    place = place_of_work()
    source = place.source(params.source)
    path, kind = source.gdal_path, params.source.kind or RasterType.UNKNOWN
    facts = read_facts(path, source_crs=params.source.source_crs)
    grid = output_grid(facts, params.target_crs, params.resolution)
    size = params.tile_size or auto_tile_size(facts.count, facts.dtype)
    overlap = _default_overlap(size) if params.overlap is None else params.overlap
    cut = tiles_of(grid, size, overlap)
    ctx.progress(0.3, "looking for data", tiles=len(cut))
    with_data = tiles_with_data(
        path, grid, cut, raster_type=kind, nodata=params.source.nothing, source_crs=params.source.source_crs,
        unset_alpha=params.source.unset_alpha,
        remote=is_remote(source),
    )  # fmt: skip
    if not with_data:
        raise UnfitData("no tile would hold data", code="raster.all-nodata", hint="check its nodata value")
    document = scheme_to_geojson(TilingScheme(grid, size, overlap, with_data))
    recipe = {"source": source.name, "size_bytes": facts.size_bytes, **params.recipe}
    location = place.publish(params.about.edition.tiling_scheme(), orjson.dumps(document | {"recipe": recipe}))
    return {
        "tiling_scheme_blob": location.blob,
        "tiling_scheme_container": location.container,
        "tile_list": [_tile_entry(tile, cut) for tile in _largest_first(with_data)],
        "total_tiles": len(with_data),
        "left_out": len(cut) - len(with_data),
        "grid_dimensions": {"rows": max(tile.row for tile in cut) + 1, "cols": max(tile.col for tile in cut) + 1},
        "grid": _grid_entry(grid),
        "tile_size": size,
        "overlap": overlap,
        "source_crs": facts.crs,
        "target_crs": params.target_crs,
        "shown_as": shown_as(path, facts, params.about, kind, remote=is_remote(source)),
        "raster_metadata": {
            "width": facts.width, "height": facts.height, "band_count": facts.count, "data_type": facts.dtype,
            "size_mb": megabytes(facts.size_bytes), "compression": facts.compression,
        },
    }  # fmt: skip


def _default_overlap(tile_size: int) -> int:
    return BLOCK if tile_size >= 8 * BLOCK else 0


def _largest_first(tiles: Iterable[Tile]) -> list[Tile]:
    """So that the last ones to run are short."""
    return sorted(tiles, key=lambda tile: (-tile.window.width * tile.window.height, tile.row, tile.col))


def _tile_entry(tile: Tile, tiles: Iterable[Tile]) -> Json:
    """`own` is how much of the window is nobody else's: what it shares with the next ones counts there."""
    window = tile.window
    following_cols = [t.window.col for t in tiles if t.row == tile.row and t.window.col > window.col]
    following_rows = [t.window.row for t in tiles if t.col == tile.col and t.window.row > window.row]
    return {
        "tile_id": tile.tile_id,
        "row": tile.row,
        "col": tile.col,
        "window": [window.col, window.row, window.width, window.height],
        "own": [
            min(window.width, min(following_cols, default=window.col + window.width) - window.col),
            min(window.height, min(following_rows, default=window.row + window.height) - window.row),
        ],
    }


def _grid_entry(grid: OutputGrid) -> Json:
    return {
        "crs": grid.crs, "origin": list(grid.origin), "resolution": list(grid.resolution), "width": grid.width,
        "height": grid.height,
    }  # fmt: skip


class TileGrid(BaseModel):
    crs: str
    origin: tuple[float, float]
    resolution: tuple[float, float]
    width: int
    height: int

    def grid(self) -> OutputGrid:
        return OutputGrid(self.crs, self.origin, self.resolution, self.width, self.height)


class TileParams(CogParams):
    grid: TileGrid
    tile: TileWindow


def process_tile(ctx: SyncContext, params: TileParams) -> Json:
    """One tile of the grid, from the source to a COG in one pass."""
    return make_tile(ctx, params, params.grid.grid(), params.tile)


class TileBatchParams(CogParams):
    grid: TileGrid
    items: list[TileWindow]


def process_tile_batch(ctx: SyncContext, params: TileBatchParams) -> Json:
    """Several tiles in one task, for grids of very many small ones."""
    grid = params.grid.grid()
    done: list[Json] = []
    for tile in params.items:
        done.append(make_tile(ctx, params, grid, tile))
        ctx.progress(len(done) / len(params.items), tile.tile_id, tiles=len(done))
    return {"tiles": done, "stac_item": [tile["stac_item"] for tile in done], "total_tiles": len(done)}
