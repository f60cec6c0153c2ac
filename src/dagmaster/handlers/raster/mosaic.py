"""The outputs of a dataset as a whole: its mosaic, its statistics, and the collection that describes it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

from dagmaster.bbox import BBox
from dagmaster.dataset_ids import job_dataset_id
from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.handlers.raster.documents import cog_of, collection_of
from dagmaster.handlers.raster.findings import MergedFinding, MergedFindings, ReportedFinding
from dagmaster.handlers.raster.outputs import in_silver, megabytes, publish
from dagmaster.handlers.raster.results import DatasetResult, MosaicPart, MosaicResult, ServedUrls, TileBatchResult
from dagmaster.jobs.states import NodeStatus
from dagmaster.raster.analysis import mosaic as mosaics
from dagmaster.raster.analysis.footprint import Footprint, union
from dagmaster.raster.analysis.overlaps import CountedCog, count_once, covering
from dagmaster.raster.analysis.statistics import Partial, Partials, combine, summarize
from dagmaster.raster.source.facts import read_facts
from dagmaster.storage.location import STAC_COLLECTION, Edition, Location, Zone


class MosaicParams(BaseModel):
    """`findings` are those of the validation."""

    model_config = ConfigDict(frozen=True)

    about: DatasetDescription
    raster_type: str = "auto"
    results_of: Json
    tiling_scheme_blob: str | None = None
    findings: list[MergedFinding] = []


def create_mosaic(ctx: SyncContext, params: MosaicParams) -> MosaicResult:
    """Write the mosaic of all COGs, compute their common statistics, and make the STAC collection."""
    storage, description = ctx.storage, params.about
    edition = description.writable_edition(ctx)
    has_scheme = params.tiling_scheme_blob is not None
    parts = _gather(ctx, has_scheme=has_scheme)
    # The mosaic is named after the id: a title may change, but a published object must not.
    document = mosaics.mosaic(parts.assets, name=description.dataset_id)
    location = publish(storage, edition.mosaic(), mosaics.encode(document))
    # Tiles count only the part that no following tile covers; other COGs may overlap in any way.
    statistics = summarize(parts.partials if has_scheme else _counted_once(ctx, parts.assets))
    addresses = ctx.addresses.stored()
    mosaic_as_cog = cog_of(
        description,
        addresses.file(location),
        read_facts(storage.gdal_path(parts.first), remote=True),
        0,
        "",
        raster_type=params.raster_type,
        statistics=statistics,
    )
    footprint = union(parts.footprints)
    assert footprint is not None  # `_gather` requires a COG with data
    scheme = in_silver(storage, params.tiling_scheme_blob) if params.tiling_scheme_blob else None
    collection = collection_of(
        description,
        addresses,
        footprint.bbox,
        parts.sample_items,
        mosaic=location,
        mosaic_as_cog=mosaic_as_cog,
        tiling_scheme=scheme,
    )
    _store_collection(ctx, edition, collection)
    parts.findings.add_earlier(params.findings)
    return MosaicResult(
        mosaic_blob=location.blob,
        mosaic_container=location.container,
        total_cogs=parts.count,
        quadkey_count=len(document["tiles"]),
        minzoom=document["minzoom"],
        maxzoom=document["maxzoom"],
        bounds=document["bounds"],
        bbox=footprint.bbox,
        statistics=[None if band is None else band.as_json() for band in statistics],
        size_mb=megabytes(parts.size_bytes),
        collection=collection,
        findings=parts.findings.most_severe_first(),
        **dict(_served_urls(ctx, description)),
    )


@dataclass(slots=True)
class _Parts:
    first: Location
    partials: Partials = ()  # of all tiles; empty for other COGs
    count: int = 0
    size_bytes: int = 0
    assets: list[mosaics.MosaicAsset] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    sample_items: list[Json] = field(default_factory=list)
    findings: MergedFindings = field(default_factory=MergedFindings)


def _gather(ctx: SyncContext, *, has_scheme: bool = True) -> _Parts:
    """Read the results of the tiles page by page, and keep only the small fields of each."""
    parts: _Parts | None = None
    for cog in _cogs(ctx):
        parts = parts or _Parts(_location(cog))
        if has_scheme:
            parts.partials = combine((parts.partials, _partials(cog)))
        parts.count += 1
        parts.size_bytes += cog.size_bytes
        parts.findings.add(cog.findings, "processing", place=cog.asset.name)
        if cog.footprint:  # a tile without data is not part of the mosaic
            parts.assets.append(cog.asset)
            parts.footprints.append(cog.footprint)
        if cog.stac_item and len(parts.sample_items) < 2:
            parts.sample_items.append(cog.stac_item)
    if parts is None or not parts.assets:
        raise UnfitData("no COG contains data, so there is no mosaic", code="mosaic.empty")
    return parts


def _counted_once(ctx: SyncContext, assets: list[mosaics.MosaicAsset]) -> Partials:
    """Statistics of COGs that may overlap. Results are read a second time: all histograms together are too large."""
    above = covering(assets)
    paths = {cog.asset.name: ctx.storage.gdal_path(_location(cog)) for cog in _cogs(ctx)} if any(above.values()) else {}
    return count_once(
        CountedCog(
            ctx.storage.gdal_path(_location(cog)),
            _partials(cog),
            [paths[name] for name in above.get(cog.asset.name, [])],
        )
        for cog in _cogs(ctx)
    )


def _location(cog: MosaicPart) -> Location:
    return Location(Zone.SILVER, cog.cog_container, cog.cog_blob)


def _partials(cog: MosaicPart) -> Partials:
    return tuple(Partial.unpack(packed) for packed in cog.partials)


_PART_OR_BATCH: TypeAdapter[TileBatchResult | MosaicPart] = TypeAdapter(TileBatchResult | MosaicPart)


def _cogs(ctx: SyncContext) -> Iterator[MosaicPart]:
    for result in ctx.results(page=100):
        if result.status != NodeStatus.COMPLETED or not isinstance(result.output, dict):
            continue
        match _PART_OR_BATCH.validate_python(result.output):
            case TileBatchResult(tiles=tiles):
                yield from tiles
            case MosaicPart() as cog:
                yield cog


def _store_collection(ctx: SyncContext, edition: Edition, collection: Json) -> None:
    ctx.storage.put(in_silver(ctx.storage, edition.stac(STAC_COLLECTION)), orjson.dumps(collection))


def _served_urls(ctx: SyncContext, description: DatasetDescription) -> ServedUrls:
    dataset_id, ordinal = description.dataset_id, description.version_ordinal
    if dataset_id == job_dataset_id(ctx.job_id):
        return ServedUrls()
    return ServedUrls(
        tile_server_url=ctx.addresses.tilejson(dataset_id, ordinal),
        xyz_url=ctx.addresses.xyz(dataset_id, f"version={ordinal}"),
        viewer_url=ctx.addresses.map(dataset_id, ordinal),
        stac_url=ctx.addresses.collection(dataset_id),
        preview_url=ctx.addresses.preview(dataset_id, ordinal),
    )


class DescribeParams(BaseModel):
    """`findings` are those of the validation, `cog_findings` those of the COG."""

    model_config = ConfigDict(frozen=True)

    about: DatasetDescription
    item: Json
    findings: list[MergedFinding] = []
    cog_findings: list[ReportedFinding] = []


def describe_dataset(ctx: SyncContext, params: DescribeParams) -> DatasetResult:
    """Make the STAC collection of a dataset that consists of a single COG."""
    edition = params.about.writable_edition(ctx)
    collection = collection_of(params.about, ctx.addresses.stored(), BBox.of(params.item["bbox"]), [params.item])
    _store_collection(ctx, edition, collection)
    findings = MergedFindings()
    findings.add(params.cog_findings, "processing")
    findings.add_earlier(params.findings)
    return DatasetResult(
        collection=collection, findings=findings.most_severe_first(), **dict(_served_urls(ctx, params.about))
    )
