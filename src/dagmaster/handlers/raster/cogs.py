"""Write a COG from a source, measure it, and describe it in a STAC item."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.dataset import About, Json
from dagmaster.handlers.raster.documents import cog_of, item_of
from dagmaster.handlers.raster.outputs import GridParams, Tier, in_silver, megabytes, publish
from dagmaster.handlers.raster.results import CogAsset, CogFootprint, CogResult, TileWindow
from dagmaster.handlers.raster.sources import SourceParams, find_source
from dagmaster.raster.analysis import mosaic as mosaics
from dagmaster.raster.analysis.footprint import Footprint, footprint
from dagmaster.raster.analysis.statistics import Partials, measure, summarize
from dagmaster.raster.cog.grid import OutputGrid, output_grid
from dagmaster.raster.cog.profiles import CogProfile, profile_of
from dagmaster.raster.cog.write import CogFacts, make_cog
from dagmaster.raster.source.facts import RasterFacts, RasterType, read_facts
from dagmaster.raster.source.reading import header_bytes
from dagmaster.raster.source.window import Window
from dagmaster.stac.item import item_id as stac_item_id
from dagmaster.stac.values import multihash
from dagmaster.storage.location import Location
from dagmaster.storage.zones import Storage


class OutputParams(BaseModel):
    """How a COG is written, whatever it is made from. `shown_as` are the renders that all COGs of the dataset share."""

    model_config = ConfigDict(frozen=True)

    about: About
    output_tier: Tier = "analysis"
    jpeg_quality: int = Field(85, ge=1, le=100)
    overview_level: int = Field(2, ge=0, le=10)
    exact_statistics: bool = False
    shown_as: Json | None = None


class CogParams(OutputParams):
    source: SourceParams


class CreateCogParams(CogParams, GridParams):
    """`part` names one of several files of a dataset; files with the same resolution share a grid."""

    part: str | None = None


def create_cog(ctx: SyncContext, params: CreateCogParams) -> CogResult:
    """Write a whole file as one COG."""
    source = find_source(ctx.storage, params.source)
    facts = read_facts(source.gdal_path, source_crs=params.source.source_crs)
    writer = _source_writer(ctx, params, single_grid(facts, params))
    name = cog_name(params.about, params.part)
    return write_described(ctx, params, writer, raster_type=params.source.raster_type, name=name, part=params.part)


def write_tile(ctx: SyncContext, params: CogParams, grid: OutputGrid, tile: TileWindow) -> CogResult:
    return write_described(
        ctx,
        params,
        _source_writer(ctx, params, grid, Window(*tile.window)),
        raster_type=params.source.raster_type,
        name=f"{tile.tile_id}.tif",
        part=tile.tile_id,
        own=tile.own,
    )


def single_grid(facts: RasterFacts, params: GridParams) -> OutputGrid:
    """The grid of a single COG."""
    grid = output_grid(facts, params.target_crs, params.resolution)
    if len(grid.sections) > 1:
        raise UnfitData(
            "the source crosses the antimeridian, which a single COG cannot do",
            code="raster.antimeridian",
            hint="process it in tiles",
        )
    return grid


def cog_name(about: About, part: str | None) -> str:
    return f"{part or about.dataset_id}.tif"


# Writes a COG with this profile to a path, and reports the fraction that is done.
Writer = Callable[[Path, CogProfile, Callable[[float], None]], CogFacts]


def _source_writer(ctx: SyncContext, params: CogParams, grid: OutputGrid, window: Window | None = None) -> Writer:
    options, source = params.source, find_source(ctx.storage, params.source)

    def write(target: Path, profile: CogProfile, on_progress: Callable[[float], None]) -> CogFacts:
        return make_cog(
            source.gdal_path,
            target,
            grid,
            window,
            profile,
            raster_type=options.kind or RasterType.UNKNOWN,
            nodata=options.nodata_value,
            source_crs=options.source_crs,
            unset_alpha=options.unset_alpha,
            dtype=options.dtype,
            remote=source.is_remote,
            on_progress=on_progress,
        )

    return write


def write_described(
    ctx: SyncContext,
    params: OutputParams,
    write: Writer,
    *,
    raster_type: str,
    name: str,
    part: str | None = None,
    own: tuple[int, int] | None = None,
    origin: str = "",
) -> CogResult:
    """Write a COG, publish it, and describe it for later tasks.

    `part` names the COG among those of the dataset; statistics count only the `own` part of its window; `origin` begins
    the lineage.
    """
    cog = _write(ctx, params, write, own=own, name=name)
    about = params.about.model_copy(update={"lineage": origin + _lineage(params, cog.facts)})
    asset = mosaics.mosaic_asset(ctx.storage.gdal_path(cog.location), name=name)
    ground = cog.footprint
    facts = cog.facts
    return CogResult(
        cog_blob=cog.location.blob,
        cog_container=cog.location.container,
        tile_id=part,
        bounds_4326=facts.bounds_4326,
        shape=(facts.height, facts.width),
        size_mb=megabytes(facts.size_bytes),
        size_bytes=facts.size_bytes,
        sha256=facts.sha256,
        reprojection_performed=facts.reprojection_performed,
        compression=facts.compression,
        cog_tier=facts.tier,
        band_count=facts.band_count,
        data_type=facts.dtype,
        clamped=facts.clamped,
        seconds={step: round(seconds, 3) for step, seconds in facts.seconds.items()},
        partials=[partial.pack() for partial in cog.partials],
        asset=CogAsset.of(asset),
        footprint=CogFootprint(geometry=ground.geometry, bbox=ground.bbox) if ground else None,
        stac_item=_store_item(ctx, about, cog, raster_type=raster_type, part=part, shown_as=params.shown_as),
    )


@dataclass(frozen=True, slots=True)
class _PublishedCog:
    """`footprint` is None if the COG holds no data."""

    location: Location
    facts: CogFacts
    raster: RasterFacts
    footprint: Footprint | None
    partials: Partials
    header_bytes: int | None


def _write(
    ctx: SyncContext, params: OutputParams, write: Writer, *, own: tuple[int, int] | None, name: str
) -> _PublishedCog:
    with ctx.storage.scratch(ctx.job_id) as folder:
        path = folder / name
        facts = write(path, profile_of(params.output_tier, params.jpeg_quality), _progress(ctx))
        if facts.clamped:
            ctx.logger.warning("values were clamped to the data type", clamped=facts.clamped, data_type=facts.dtype)
        raster = read_facts(path)
        counted = (0, 0, *own) if own else None
        partials = measure(path, counted, exact=params.exact_statistics, overview_level=params.overview_level)
        ground = None if facts.is_empty else footprint(path)
        header = header_bytes(path)
        location = publish(ctx.storage, params.about.edition.cog(name), path)
    return _PublishedCog(location, facts, raster, ground, partials, header)


def _progress(ctx: SyncContext) -> Callable[[float], None]:
    """Called after each row of blocks, where the task can also stop early."""

    def report(fraction: float) -> None:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        ctx.progress(0.95 * fraction)

    return report


def _store_item(
    ctx: SyncContext,
    about: About,
    published: _PublishedCog,
    *,
    raster_type: str,
    part: str | None,
    shown_as: Json | None,
) -> Json | None:
    """The item of a COG with data, also stored as a document, from which it can be registered again."""
    if published.footprint is None:
        return None
    storage, facts = ctx.storage, published.facts
    cog = cog_of(
        about,
        ctx.addresses.file(published.location),
        published.raster,
        facts.size_bytes,
        facts.sha256,
        raster_type=raster_type,
        statistics=summarize(published.partials),
        header_bytes=published.header_bytes,
    )
    item_id = stac_item_id(about.dataset_id, about.version_ordinal, part)
    location = in_silver(storage, about.edition.stac(f"{item_id}.json"))
    created = _created(storage, location, facts.sha256)
    item = item_of(about, ctx.addresses, cog, published.footprint, tile=part, shown_as=shown_as, created=created)
    storage.put(location, orjson.dumps(item))
    return item


def _created(storage: Storage, location: Location, sha256: str) -> datetime | None:
    """When the stored item was created, if it describes the same bytes."""
    if not storage.exists(location):
        return None
    stored = orjson.loads(storage.get(location))
    is_same = stored["assets"]["data"]["file:checksum"] == multihash(sha256)
    return datetime.fromisoformat(stored["properties"]["created"]) if is_same else None


def _lineage(params: OutputParams, cog: CogFacts) -> str:
    steps = f"to {cog.crs} ({cog.resampling})" if cog.reprojection_performed else f"kept in {cog.crs}"
    if cog.clamped:
        steps += f", {cog.clamped} values clamped to {cog.dtype}"
    return f"{steps}, COG {cog.compression}, tier {cog.tier}; revision {params.about.revision}"
