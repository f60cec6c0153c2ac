"""Several files as one COG: their bands stacked, or neighbouring files merged."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import Field

from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.cogs import OutputParams, cog_name, single_grid, write_described
from dagmaster.handlers.raster.dataset import Json
from dagmaster.handlers.raster.outputs import GridParams
from dagmaster.handlers.raster.results import StackResult
from dagmaster.handlers.raster.sources import SourceParams, checksum_of, combined_checksum, find_source, public_name
from dagmaster.raster.cog.profiles import CogProfile
from dagmaster.raster.cog.stack import CombinedRaster, merged, stacked
from dagmaster.raster.cog.write import CogFacts, write_cog
from dagmaster.raster.source.facts import RasterType
from dagmaster.storage.location import Zone
from dagmaster.storage.sources import SourceFile

_LINEAGE_NAMES = 10
_LISTED_SOURCES = 100


class StackParams(OutputParams, GridParams):
    """The files are blobs of one container; in the zone silver they are outputs of earlier jobs.

    `source_crs`, `raster_type` and `nodata` apply to all of them. `part` names the COG among those of a dataset.
    """

    blob_names: list[str] = Field(min_length=1, max_length=10_000)
    zone: Zone = Zone.BRONZE
    container_name: str | None = None
    source_crs: str | None = None
    raster_type: str = "auto"
    nodata: float | Literal["nan"] | None = None
    part: str | None = None

    def source(self, blob_name: str) -> SourceParams:
        shared = self.model_dump(include={"container_name", "source_crs", "raster_type", "nodata"})
        return SourceParams(blob_name=blob_name, **shared)


def band_stack(ctx: SyncContext, params: StackParams) -> StackResult:
    """Combine the bands of files that cover the same area into one COG, in the order given.

    The `band_names` of the dataset describe the bands that have no description of their own."""
    sources, options = _find(ctx, params)

    def opened() -> AbstractContextManager[CombinedRaster]:
        return stacked(
            [source.gdal_path for source in sources],
            raster_type=_type_of(options),
            nodata=options.nodata_value,
            source_crs=options.source_crs,
            names=params.about.band_names,
            remote=any(source.is_remote for source in sources),
        )

    return _write(ctx, _with_provenance(ctx, params, sources), opened, f"bands of {_names(sources)} stacked, ")


def merge(ctx: SyncContext, params: StackParams) -> StackResult:
    """Write neighbouring files that share a pixel grid as one COG; where they overlap, later files are on top."""
    sources, options = _find(ctx, params)

    def opened() -> AbstractContextManager[CombinedRaster]:
        return merged(
            [source.gdal_path for source in sources],
            raster_type=_type_of(options),
            nodata=options.nodata_value,
            source_crs=options.source_crs,
            remote=any(source.is_remote for source in sources),
        )

    return _write(ctx, _with_provenance(ctx, params, sources), opened, f"{_names(sources)} merged, ")


def _find(ctx: SyncContext, params: StackParams) -> tuple[list[SourceFile], SourceParams]:
    """The files, and the options that apply to all of them."""
    options = [params.source(blob_name) for blob_name in params.blob_names]
    return [find_source(ctx.storage, each, ctx.job_id, params.zone) for each in options], options[0]


def _with_provenance(ctx: SyncContext, params: StackParams, sources: list[SourceFile]) -> StackParams:
    """Add the name and checksum of each source, or for a long list one checksum over all checksums."""
    checksums = [checksum_of(ctx.storage, source) for source in sources]
    if len(sources) <= _LISTED_SOURCES:
        listed = [(public_name(source), checksum) for source, checksum in zip(sources, checksums, strict=True)]
        provenance: Json = {"sources": listed, "source_sha256": None}
    else:
        provenance = {"source_sha256": combined_checksum(checksums)}
    return params.model_copy(update={"about": params.about.model_copy(update=provenance)})


def _type_of(options: SourceParams) -> RasterType:
    return options.kind or RasterType.UNKNOWN


def _write(
    ctx: SyncContext,
    params: StackParams,
    opened: Callable[[], AbstractContextManager[CombinedRaster]],
    lineage_start: str,
) -> StackResult:
    kind = _type_of(params.source(params.blob_names[0]))

    def write(target: Path, profile: CogProfile, on_progress: Callable[[float], None]) -> CogFacts:
        with opened() as stack:
            grid = single_grid(stack.facts, params)
            return write_cog(
                stack.pixels,
                stack.bands,
                target,
                grid,
                profile=profile,
                raster_type=kind,
                exact_statistics=params.exact_statistics,
                on_progress=on_progress,
            )

    name = cog_name(params.about, params.part)
    cog = write_described(
        ctx, params, write, raster_type=params.raster_type, name=name, part=params.part, lineage_start=lineage_start
    )
    return StackResult(**dict(cog), total_sources=len(params.blob_names))


def _names(sources: list[SourceFile]) -> str:
    names = ", ".join(source.name for source in sources[:_LINEAGE_NAMES])
    return names if len(sources) <= _LINEAGE_NAMES else f"{names} and {len(sources) - _LINEAGE_NAMES} more"
