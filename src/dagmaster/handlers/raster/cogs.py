"""From the source to a COG in its place, with what was measured of it and the item that describes it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import BaseModel, Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import About, Json, cog_of, item_of
from dagmaster.handlers.raster.workplace import (
    GridParams,
    Place,
    SourceParams,
    Tiers,
    is_remote,
    megabytes,
    place_of_work,
)
from dagmaster.raster.analysis import mosaic as mosaics
from dagmaster.raster.analysis.footprint import Footprint, footprint
from dagmaster.raster.analysis.statistics import (
    Partials,
    measure,
    summarize,
)
from dagmaster.raster.cog.grid import (
    OutputGrid,
    Window,
    output_grid,
)
from dagmaster.raster.cog.profiles import CogProfile, profile_of
from dagmaster.raster.cog.write import CogFacts, make_cog
from dagmaster.raster.source.facts import RasterFacts, RasterType, read_facts
from dagmaster.raster.source.reading import header_bytes
from dagmaster.stac.item import item_id as stac_item_id
from dagmaster.stac.values import multihash
from dagmaster.storage.location import Location


class TileWindow(BaseModel):
    tile_id: str
    row: int = 0
    col: int = 0
    window: tuple[int, int, int, int]
    own: tuple[int, int] | None = None


class OutputParams(BaseModel):
    """What a COG shall be like, whatever it is made from."""

    about: About
    output_tier: Tiers = "analysis"
    jpeg_quality: int = Field(85, ge=1, le=100)
    overview_level: int = Field(2, ge=0, le=10)
    exact_statistics: bool = False
    shown_as: Json | None = None


class CogParams(OutputParams):
    source: SourceParams


class CreateCogParams(CogParams, GridParams):
    """`part` names one of several files of a dataset; they share a grid where they share a resolution."""

    part: str | None = None


def create_cog(ctx: SyncContext, params: CreateCogParams) -> Json:
    """A whole file as one COG."""
    source = place_of_work().source(params.source)
    facts = read_facts(source.gdal_path, source_crs=params.source.source_crs)
    grid = one_grid(facts, params)
    name = cog_name(params.about, params.part)
    return make(ctx, params, _from_source(params, grid), kind=params.source.raster_type, name=name, part=params.part)


def one_grid(facts: RasterFacts, params: GridParams) -> OutputGrid:
    """The grid of what becomes a single COG."""
    grid = output_grid(facts, params.target_crs, params.resolution)
    if len(grid.sections) > 1:
        raise UnfitData(
            "it crosses the antimeridian, and one COG can't", code="raster.antimeridian", hint="process it in tiles"
        )
    return grid


def cog_name(about: About, part: str | None) -> str:
    return f"{part or about.dataset_id}.tif"


# Writes a COG with this profile to a path, and tells how far it is.
Write = Callable[[Path, CogProfile, Callable[[float], None]], CogFacts]


def _from_source(params: CogParams, grid: OutputGrid, window: Window | None = None) -> Write:
    told, source = params.source, place_of_work().source(params.source)

    def write(target: Path, profile: CogProfile, tell: Callable[[float], None]) -> CogFacts:
        return make_cog(
            source.gdal_path, target, grid, window, profile, raster_type=told.kind or RasterType.UNKNOWN,
            nodata=told.nothing, source_crs=told.source_crs, unset_alpha=told.unset_alpha, dtype=told.dtype,
            remote=is_remote(source), on_progress=tell,
        )  # fmt: skip

    return write


@dataclass(frozen=True, slots=True)
class _Made:
    """A COG in its place, and what was measured of it. `ground` is None where it holds no data."""

    location: Location
    cog: CogFacts
    facts: RasterFacts
    ground: Footprint | None
    partials: Partials
    header: int | None


def make_tile(ctx: SyncContext, params: CogParams, grid: OutputGrid, tile: TileWindow) -> Json:
    write = _from_source(params, grid, Window(*tile.window))
    kind, name = params.source.raster_type, f"{tile.tile_id}.tif"
    return make(ctx, params, write, kind=kind, name=name, part=tile.tile_id, own=tile.own)


def make(
    ctx: SyncContext,
    params: OutputParams,
    write: Write,
    *,
    kind: str,
    name: str,
    part: str | None = None,
    own: tuple[int, int] | None = None,
    made_of: str = "",
) -> Json:
    """Put what `write` makes in its place, and tell all that later tasks want to know of it.

    `part` tells the COGs of one dataset apart; `own` is how much of the window no other one counts; `made_of` is for the lineage.
    """
    place = place_of_work()
    made = _made(ctx, params, write, own=own, name=name)
    about = params.about.model_copy(update={"lineage": made_of + _lineage(params, made.cog)})
    asset = mosaics.mosaic_asset(place.storage.gdal_path(made.location), name=name)
    item = None
    if made.ground is not None:
        item = _item(place, about, made, params, kind=kind, part=part)
    cog = made.cog
    return {
        "cog_blob": made.location.blob,
        "cog_container": made.location.container,
        "tile_id": part,
        "bounds_4326": cog.bounds_4326.as_list(),
        "shape": [cog.height, cog.width],
        "size_mb": megabytes(cog.size_bytes),
        "size_bytes": cog.size_bytes,
        "sha256": cog.sha256,
        "reprojection_performed": cog.reprojection_performed,
        "compression": cog.compression,
        "cog_tier": cog.tier,
        "band_count": cog.band_count,
        "data_type": cog.dtype,
        "clamped": cog.clamped,
        "seconds": {step: round(seconds, 3) for step, seconds in cog.seconds.items()},
        "partials": [partial.pack() for partial in made.partials],
        "asset": _asset_entry(asset),
        "footprint": None
        if made.ground is None
        else {"geometry": made.ground.geometry, "bbox": made.ground.bbox.as_list()},
        "stac_item": item,
    }


def _made(ctx: SyncContext, params: OutputParams, write: Write, *, own: tuple[int, int] | None, name: str) -> _Made:
    place = place_of_work()
    with place.storage.scratch(ctx.job_id) as folder:
        cog = write(folder / name, profile_of(params.output_tier, params.jpeg_quality), progress(ctx))
        if cog.clamped:
            ctx.logger.warning("values did not fit", clamped=cog.clamped, data_type=cog.dtype)
        facts = read_facts(folder / name)
        counted = (0, 0, own[0], own[1]) if own else None
        partials = measure(folder / name, counted, exact=params.exact_statistics, overview_level=params.overview_level)
        ground = None if cog.is_empty else footprint(folder / name)
        header = header_bytes(folder / name)
        location = place.publish(params.about.edition.cog(name), folder / name)
    return _Made(location, cog, facts, ground, partials, header)


def progress(ctx: SyncContext) -> Callable[[float], None]:
    """Told of each row of blocks; a good moment to stop, too."""

    def tell(fraction: float) -> None:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        ctx.progress(0.95 * fraction)

    return tell


def _item(place: Place, about: About, made: _Made, params: OutputParams, *, kind: str, part: str | None) -> Json:
    """The item of a COG, also kept beside it, from where it can be registered again."""
    assert made.ground is not None
    cog = cog_of(
        about, place.addresses.file(made.location), made.facts, made.cog.size_bytes, made.cog.sha256,
        raster_type=kind, statistics=summarize(made.partials), header_bytes=made.header,
    )  # fmt: skip
    item_id = stac_item_id(about.dataset_id, about.version_ordinal, part)
    location = place.silver(about.edition.stac(f"{item_id}.json"))
    item = item_of(
        about, place.addresses, cog, made.ground, tile=part, shown_as=params.shown_as,
        created=_first_made(place, location, made.cog.sha256),
    )  # fmt: skip
    place.storage.put(location, orjson.dumps(item))
    return item


def _first_made(place: Place, location: Location, sha256: str) -> datetime | None:
    """When the item that is kept already was made, if it is of the same bytes."""
    if not place.storage.exists(location):
        return None
    known = orjson.loads(place.storage.get(location))
    is_same = known["assets"]["data"]["file:checksum"] == multihash(sha256)
    return datetime.fromisoformat(known["properties"]["created"]) if is_same else None


def _lineage(params: OutputParams, cog: CogFacts) -> str:
    done = f"to {cog.crs} ({cog.resampling})" if cog.reprojection_performed else f"kept in {cog.crs}"
    if cog.clamped:
        done += f", {cog.clamped} values clamped to {cog.dtype}"
    return f"{done}, COG {cog.compression}, tier {cog.tier}; revision {params.about.revision}"


def _asset_entry(asset: mosaics.MosaicAsset) -> Json:
    return {
        "name": asset.name, "geometry": asset.geometry, "bbox": asset.bbox.as_list(), "resolution": asset.resolution,
        "data_type": asset.data_type,
    }  # fmt: skip
