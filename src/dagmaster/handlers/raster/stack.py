"""Several files as one COG: bands stacked, or neighbours merged."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import Field

from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import Json
from dagmaster.handlers.raster.cogs import OutputParams, cog_name, make, one_grid
from dagmaster.handlers.raster.workplace import GridParams, SourceParams, is_remote, place_of_work
from dagmaster.raster.cog.profiles import CogProfile
from dagmaster.raster.cog.stack import Several, merged, stacked
from dagmaster.raster.cog.write import CogFacts, write_cog
from dagmaster.raster.source.facts import RasterType
from dagmaster.storage.location import Zone
from dagmaster.storage.sources import Source

_MOST_NAMES = 10  # that the lineage tells


class SeveralParams(OutputParams, GridParams):
    """The files are blobs of one container; those of the zone silver are what earlier jobs made.

    What is told of them (`source_crs`, `raster_type`, `nodata`) is of all. `part` names the COG among several of a dataset.
    """

    blob_names: list[str] = Field(min_length=1, max_length=10_000)
    zone: Zone = Zone.BRONZE
    container_name: str | None = None
    source_crs: str | None = None
    raster_type: str = "auto"
    nodata: float | Literal["nan"] | None = None
    part: str | None = None

    def sources(self) -> list[SourceParams]:
        told = self.model_dump(include={"container_name", "source_crs", "raster_type", "nodata"})
        return [SourceParams(blob_name=blob, **told) for blob in self.blob_names]


def band_stack(ctx: SyncContext, params: SeveralParams) -> Json:
    """Files of the same ground as the bands of one COG, in the order given; `band_names` of the dataset describe those that do
    not describe themselves."""
    found, told = _find(params)

    def opened() -> AbstractContextManager[Several]:
        return stacked(
            [source.gdal_path for source in found], raster_type=_kind(told), nodata=told.nothing,
            source_crs=told.source_crs, names=params.about.band_names, remote=any(map(is_remote, found)),
        )  # fmt: skip

    return _make(ctx, params, opened, f"bands of {_names(found)} stacked, ")


def merge(ctx: SyncContext, params: SeveralParams) -> Json:
    """Neighbouring files on one grid of pixels as one COG; where they overlap, later ones lie on top."""
    found, told = _find(params)

    def opened() -> AbstractContextManager[Several]:
        return merged(
            [source.gdal_path for source in found], raster_type=_kind(told), nodata=told.nothing,
            source_crs=told.source_crs, remote=any(map(is_remote, found)),
        )  # fmt: skip

    return _make(ctx, params, opened, f"{_names(found)} merged, ")


def _find(params: SeveralParams) -> tuple[list[Source], SourceParams]:
    """The files, and what is told of all of them."""
    place, told = place_of_work(), params.sources()
    return [place.source(each, params.zone) for each in told], told[0]


def _kind(told: SourceParams) -> RasterType:
    return told.kind or RasterType.UNKNOWN


def _make(
    ctx: SyncContext, params: SeveralParams, opened: Callable[[], AbstractContextManager[Several]], made_of: str
) -> Json:
    kind = _kind(params.sources()[0])

    def write(target: Path, profile: CogProfile, tell: Callable[[float], None]) -> CogFacts:
        with opened() as whole:
            return write_cog(
                whole.pixels, whole.bands, target, one_grid(whole.facts, params), profile=profile, raster_type=kind,
                on_progress=tell,
            )  # fmt: skip

    name = cog_name(params.about, params.part)
    made = make(ctx, params, write, kind=params.raster_type, name=name, part=params.part, made_of=made_of)
    return made | {"total_sources": len(params.blob_names)}


def _names(sources: list[Source]) -> str:
    told = ", ".join(source.name for source in sources[:_MOST_NAMES])
    return told if len(sources) <= _MOST_NAMES else f"{told} and {len(sources) - _MOST_NAMES} more"
