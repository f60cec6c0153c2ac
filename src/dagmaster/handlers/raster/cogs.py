"""Write a COG from a source, measure it, and describe it in a STAC item."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.handlers.raster.documents import cog_of, item_of
from dagmaster.handlers.raster.findings import log_findings, reported
from dagmaster.handlers.raster.outputs import GridParams, in_silver, megabytes, publish
from dagmaster.handlers.raster.results import CogResult, TileWindow, ValidAreaResult
from dagmaster.handlers.raster.sources import SourceParams, facts_of_source, find_source, public_name, unchanged
from dagmaster.raster.analysis import mosaic as mosaics
from dagmaster.raster.analysis.footprint import Footprint, footprint
from dagmaster.raster.analysis.statistics import Partials, measure, summarize
from dagmaster.raster.cog.grid import OutputGrid, output_grid
from dagmaster.raster.cog.profiles import CogProfile, Tier, profile_of
from dagmaster.raster.cog.stack import bordered
from dagmaster.raster.cog.write import CogFacts, make_cog, write_cog
from dagmaster.raster.source.facts import RasterFacts, RasterType, read_facts
from dagmaster.raster.source.reading import header_bytes
from dagmaster.raster.source.window import Window
from dagmaster.raster.validation.findings import Finding, info, warn
from dagmaster.raster.validation.pixel_rules import infinite_values
from dagmaster.stac.item import item_id as stac_item_id
from dagmaster.stac.values import multihash
from dagmaster.storage.location import Edition, Location
from dagmaster.storage.sources import SourceFile
from dagmaster.storage.store import StorageTier
from dagmaster.storage.zones import Storage

MAX_NEIGHBOURS = 64


class OutputParams(BaseModel):
    """How a COG is written, for every kind of source. `shown_as` are the renders that all COGs of the dataset share.

    Without `exact_statistics`, statistics are approximate: computed from the overview `overview_level`.
    """

    model_config = ConfigDict(frozen=True)

    about: DatasetDescription
    output_tier: Tier = Tier.ANALYSIS
    jpeg_quality: int = Field(85, ge=1, le=100)
    overview_level: int = Field(2, ge=0, le=10)
    exact_statistics: bool = True
    shown_as: Json | None = None


class CogParams(OutputParams):
    source: SourceParams


class CreateCogParams(CogParams, GridParams):
    """`part` names one of several files of a dataset; files with the same resolution share a grid, whose pixels are
    counted from `origin`, or else from the fixed origin of the CRS.

    Pixels of `neighbours` are used to interpolate at the edges of the file.
    """

    origin: tuple[float, float] | None = None
    part: str | None = None
    neighbours: list[SourceParams] = Field([], max_length=MAX_NEIGHBOURS)


def create_cog(ctx: SyncContext, params: CreateCogParams) -> CogResult:
    """Write a whole file as one COG."""
    source = find_source(ctx.storage, params.source, ctx.job_id)
    with unchanged(ctx.storage, source, params.source.etag):
        facts = facts_of_source(ctx.storage, source, params.source.source_crs)
    grid = single_grid(facts, params, params.origin, is_part=params.part is not None)
    writer = _bordered_writer(ctx, params, grid) if params.neighbours else _source_writer(ctx, params, grid)
    name = cog_name(params.about, params.part)
    return write_described(ctx, params, writer, raster_type=params.source.raster_type, name=name, part=params.part)


def write_tile(ctx: SyncContext, params: CogParams, grid: OutputGrid, tile: TileWindow) -> CogResult:
    return write_described(
        ctx,
        params,
        _source_writer(ctx, params, grid, Window(*tile.window), own=tile.own),
        raster_type=params.source.raster_type,
        name=f"{tile.tile_id}.tif",
        part=tile.tile_id,
        own=tile.own,
    )


def single_grid(
    facts: RasterFacts, params: GridParams, origin: tuple[float, float] | None = None, *, is_part: bool = False
) -> OutputGrid:
    """The grid of a single COG. COGs of parts are shown as one image, so their overviews must be aligned too."""
    grid = output_grid(facts, params.target_crs, params.resolution, origin, has_neighbours=is_part)
    if len(grid.sections) > 1:
        raise UnfitData(
            "the source crosses the antimeridian, so it cannot be written as a single COG",
            code="raster.antimeridian",
            hint="process it in tiles",
        )
    return grid


def cog_name(description: DatasetDescription, part: str | None) -> str:
    return f"{part or description.dataset_id}.tif"


# Writes a COG with this profile to a path, and reports the fraction that is done.
CogWriter = Callable[[Path, CogProfile, Callable[[float], None]], CogFacts]


def _source_writer(
    ctx: SyncContext,
    params: CogParams,
    grid: OutputGrid,
    window: Window | None = None,
    *,
    own: tuple[int, int] | None = None,
) -> CogWriter:
    options, source = params.source, find_source(ctx.storage, params.source, ctx.job_id)

    def write(target: Path, profile: CogProfile, on_progress: Callable[[float], None]) -> CogFacts:
        with unchanged(ctx.storage, source, options.etag):
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
                own=own,
                exact_statistics=params.exact_statistics,
                on_progress=on_progress,
            )

    return write


def _bordered_writer(ctx: SyncContext, params: CreateCogParams, grid: OutputGrid) -> CogWriter:
    options = params.source
    source, *neighbours = (find_source(ctx.storage, each, ctx.job_id) for each in (options, *params.neighbours))
    kind = options.kind or RasterType.UNKNOWN

    def write(target: Path, profile: CogProfile, on_progress: Callable[[float], None]) -> CogFacts:
        with (
            _all_unchanged(ctx, (source, *neighbours), (options, *params.neighbours)),
            bordered(
                source.gdal_path,
                [neighbour.gdal_path for neighbour in neighbours],
                raster_type=kind,
                nodata=options.nodata_value,
                source_crs=options.source_crs,
                remote=any(each.is_remote for each in (source, *neighbours)),
            ) as complete,
        ):
            return write_cog(
                complete.pixels,
                complete.bands,
                target,
                grid,
                core=complete.core,
                profile=profile,
                raster_type=kind,
                exact_statistics=params.exact_statistics,
                on_progress=on_progress,
            )

    return write


@contextmanager
def _all_unchanged(ctx: SyncContext, sources: Iterable[SourceFile], options: Iterable[SourceParams]) -> Iterator[None]:
    with ExitStack() as stack:
        for source, each in zip(sources, options, strict=True):
            stack.enter_context(unchanged(ctx.storage, source, each.etag))
        yield


def write_described(
    ctx: SyncContext,
    params: OutputParams,
    write: CogWriter,
    *,
    raster_type: str,
    name: str,
    part: str | None = None,
    own: tuple[int, int] | None = None,
    lineage_start: str = "",
) -> CogResult:
    """Write a COG, publish it, and describe it for later tasks.

    `part` names the COG among those of the dataset; statistics count only the `own` part of its window; `lineage_start`
    is the beginning of the lineage.
    """
    edition = params.about.writable_edition(ctx)
    cog = _write(ctx, params, write, edition, own=own, name=name, is_only_cog=part is None)
    public_source = _public_source(ctx, params.source) if isinstance(params, CogParams) else None
    if public_source and public_source.source_name:
        lineage_start = f"{public_source.source_name}{_in_brackets(public_source.source_crs)} "
    lineage = lineage_start + _lineage(params, cog.facts, public_source.source_sha256 if public_source else None)
    description = params.about.model_copy(
        update={"lineage": lineage, **(asdict(public_source) if public_source else {})}
    )
    asset = mosaics.mosaic_asset(ctx.storage.gdal_path(cog.location), name=name)
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
        partials=[partial.pack() for partial in cog.own_statistics],
        infinite=cog.infinite,
        valid_area=ValidAreaResult(**asdict(facts.valid_area)),
        findings=reported(cog.findings),
        asset=asset,
        footprint=cog.footprint,
        stac_item=_store_item(
            ctx, description, edition, cog, raster_type=raster_type, part=part, shown_as=params.shown_as
        ),
    )


@dataclass(frozen=True, slots=True)
class _PublishedCog:
    """`footprint` is None if the COG holds no data."""

    location: Location
    facts: CogFacts
    raster: RasterFacts
    footprint: Footprint | None
    statistics: Partials  # of the whole COG
    own_statistics: Partials  # of the part that counts in a mosaic
    header_bytes: int | None

    @property
    def infinite(self) -> int:
        return sum(partial.infinite for partial in self.statistics)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that are only known after every pixel was processed."""
        infinite = (infinite_values(self.infinite),) if self.infinite else ()
        return (*_findings(self.facts), *infinite)


def _findings(facts: CogFacts) -> Iterator[Finding]:
    if facts.is_type_unknown:
        yield info(
            "raster.treated-as",
            f"the raster type is unknown: the values look like {facts.treated_as} and are resampled as such",
            "pass raster_type",
        )
    area = facts.valid_area
    if area.differs:
        yield warn(
            "raster.area-differs",
            f"{area.lost_percent:.1f} % of the valid area of the source is not valid in the COG, and "
            f"{area.added_percent:.1f} % of the valid area of the COG is not valid in the source",
            "compare both on a map; another target_crs or resolution may help",
        )


def _write(
    ctx: SyncContext,
    params: OutputParams,
    write: CogWriter,
    edition: Edition,
    *,
    own: tuple[int, int] | None,
    name: str,
    is_only_cog: bool,
) -> _PublishedCog:
    """`is_only_cog`: this is the only COG of the dataset, so it must contain data."""
    with ctx.storage.scratch(ctx.job_id) as folder:
        path = folder / name
        profile = profile_of(params.output_tier, params.jpeg_quality)
        facts = write(path, profile, _progress(ctx))
        if facts.is_empty and is_only_cog:
            raise UnfitData(
                "no pixel of the output has data",
                code="raster.all-nodata",
                hint="check the nodata value, or use a finer resolution if the data are single pixels",
            )
        if facts.clamped:
            ctx.logger.warning("values were clamped to the data type", clamped=facts.clamped, data_type=facts.dtype)
        raster = read_facts(path)
        statistics, own_statistics = facts.statistics, facts.own_statistics
        if not params.exact_statistics:
            statistics = measure(path, overview_level=params.overview_level)
            own_statistics = measure(path, (0, 0, *own), overview_level=params.overview_level) if own else statistics
        data_footprint = None if facts.is_empty else footprint(path)
        header = header_bytes(path)
        location = publish(ctx.storage, edition.cog(name), path, StorageTier(profile.storage_tier))
    cog = _PublishedCog(location, facts, raster, data_footprint, statistics, own_statistics, header)
    log_findings(ctx.logger, cog.findings)
    return cog


def _progress(ctx: SyncContext) -> Callable[[float], None]:
    """A function that reports progress after each row of blocks, and stops the task early if that is requested."""

    def report(fraction: float) -> None:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        ctx.progress(0.95 * fraction)

    return report


def _store_item(
    ctx: SyncContext,
    description: DatasetDescription,
    edition: Edition,
    published: _PublishedCog,
    *,
    raster_type: str,
    part: str | None,
    shown_as: Json | None,
) -> Json | None:
    """The item of a COG with data, also stored as a document, from which it can be registered again."""
    if published.footprint is None:
        return None
    storage, facts, addresses = ctx.storage, published.facts, ctx.addresses.stored()
    cog = cog_of(
        description,
        addresses.file(published.location),
        published.raster,
        facts.size_bytes,
        facts.sha256,
        raster_type=raster_type,
        statistics=summarize(published.statistics),
        header_bytes=published.header_bytes,
    )
    item_id = stac_item_id(description.dataset_id, description.version_ordinal, part)
    location = in_silver(storage, edition.stac(f"{item_id}.json"))
    created = _created(storage, location, facts.sha256)
    item = item_of(description, addresses, cog, published.footprint, tile=part, shown_as=shown_as, created=created)
    storage.put(location, orjson.dumps(item))
    return item


def _created(storage: Storage, location: Location, sha256: str) -> datetime | None:
    """When the stored item was created, if it describes the same bytes."""
    if not storage.exists(location):
        return None
    stored = orjson.loads(storage.get(location))
    is_same = stored["assets"]["data"]["file:checksum"] == multihash(sha256)
    return datetime.fromisoformat(stored["properties"]["created"]) if is_same else None


@dataclass(frozen=True, slots=True)
class _PublicSource:
    """Fields of the description. A name that is not fit for publication is left out."""

    source_name: str | None
    source_crs: str | None
    source_sha256: str | None


def _public_source(ctx: SyncContext, source: SourceParams) -> _PublicSource:
    return _PublicSource(
        source_name=public_name(find_source(ctx.storage, source, ctx.job_id)),
        source_crs=source.crs or source.source_crs,
        source_sha256=source.sha256,
    )


def _in_brackets(crs: str | None) -> str:
    return f" ({crs})" if crs and "[" not in crs else ""


def _lineage(params: OutputParams, cog: CogFacts, source_sha256: str | None) -> str:
    steps = f"to {cog.crs} ({cog.resampling})" if cog.reprojection_performed else f"kept in {cog.crs}"
    if cog.clamped:
        steps += f", {cog.clamped} values clamped to {cog.dtype}"
    if cog.valid_area.differs:
        steps += f", {cog.valid_area.lost_percent:.1f} % of the valid area lost"
    source = f"; source SHA-256 {source_sha256}" if source_sha256 else ""
    return f"{steps}, COG {cog.compression}, tier {cog.tier}; revision {params.about.revision}{source}"
