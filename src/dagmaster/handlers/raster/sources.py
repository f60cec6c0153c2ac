"""The source files of raster handlers: how a workflow names one, and how it is found and read."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import UnfitData
from dagmaster.handlers.raster.dataset import About, Json
from dagmaster.handlers.raster.documents import cog_of
from dagmaster.raster.analysis.statistics import BandStatistics, partial_of, summarize
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.source.opening import opened
from dagmaster.raster.source.sample import take_sample
from dagmaster.stac.renders import renders
from dagmaster.storage.location import Zone
from dagmaster.storage.sources import SourceFile
from dagmaster.storage.zones import Storage


class SourceParams(BaseModel):
    """A file: `blob_name` in a container of the bronze zone, or another source that the configuration allows."""

    model_config = ConfigDict(frozen=True)

    container_name: str | None = None
    blob_name: str = Field(min_length=1)
    source_crs: str | None = None
    raster_type: str = "auto"
    nodata: float | Literal["nan"] | None = None
    unset_alpha: bool = False  # the band that is marked as alpha holds data
    dtype: str | None = None  # integers are stored with this type

    @property
    def kind(self) -> RasterType | None:
        return RasterType.parse(self.raster_type)

    @property
    def nodata_value(self) -> float | None:
        return float("nan") if self.nodata == "nan" else self.nodata


def find_source(storage: Storage, params: SourceParams, zone: Zone = Zone.BRONZE) -> SourceFile:
    container = params.container_name or storage.containers[zone]
    source = storage.find_source(params.blob_name, container=container, zone=zone)
    if source.location is not None and not storage.exists(source.location):
        raise UnfitData(
            f"the blob '{source.location.path}' does not exist",
            code="source.not-found",
            hint="upload it, or correct its name",
        )
    return source


def size_of(storage: Storage, source: SourceFile) -> int | None:
    return storage.head(source.location).size_bytes if source.location is not None else None


def renders_of(source: SourceFile, facts: RasterFacts, about: About, kind: RasterType) -> Json:
    """The renders of all tiles, from a sample of the source:
    with different ranges, borders between tiles would show."""
    with opened(source.gdal_path, remote=source.is_remote) as dataset:
        sample = take_sample(dataset, facts)
    statistics: list[BandStatistics | None] = []
    for index in range(facts.count):
        values = sample.values(index) if sample.patches and index < len(sample.patches[0].values) else None
        statistics += summarize((partial_of(values),)) if values is not None and values.size else (None,)
    return renders(cog_of(about, "", facts, 0, "", raster_type=kind.value, statistics=statistics))
