"""What all raster handlers share: where they read and write, and how a source is named."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from dagmaster import faults
from dagmaster import settings as settings_
from dagmaster.errors import Conflict, UnfitData
from dagmaster.handlers.describing import About, Addresses, Json, cog_of
from dagmaster.raster.analysis.statistics import (
    BandStatistics,
    partial_of,
    summarize,
)
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.source.opening import opened
from dagmaster.raster.source.sample import take_sample
from dagmaster.stac.renders import renders
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.sources import Source, SourceRules, find_source
from dagmaster.storage.zones import Storage, open_storage

_MEGABYTE = 1_000_000
COLLECTION = "collection.json"
Tiers = Literal["visualization", "analysis", "archive"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process reads and writes. Handlers run in processes of their own: the environment is read at their door."""

    storage: Storage
    addresses: Addresses
    rules: SourceRules

    def source(self, told: "SourceParams", zone: Zone = Zone.BRONZE) -> Source:
        container = told.container_name or self.storage.containers[zone]
        found = find_source(told.blob_name, self.storage, self.rules, container=container, zone=zone)
        if found.location is not None and not self.storage.exists(found.location):
            raise UnfitData(
                f"there is no blob '{found.location.path}'",
                code="source.not-found",
                hint="upload it, or correct its name",
            )
        return found

    def silver(self, blob: str) -> Location:
        return self.storage.location(blob, zone=Zone.SILVER)

    def publish(self, blob: str, content: Path | bytes) -> Location:
        """Put an object under its last name. What is there may be the same, from an attempt before; anything else stays."""
        location = self.silver(blob)
        faults.reach("handler.before-publish")
        try:
            if isinstance(content, bytes):
                self.storage.put(location, content, create_only=True)
            else:
                self.storage.put_file(location, content, move=True, create_only=True)
        except Conflict as error:  # the same again and again: no use in trying
            raise UnfitData(error.message, code=error.code, hint="process it as another revision") from error
        faults.reach("handler.after-publish")
        return location


@cache
def place_of_work() -> Place:
    settings = settings_.load()
    return Place(open_storage(settings), Addresses(settings), SourceRules.of(settings))


class SourceParams(BaseModel):
    """A file: `blob_name` in a container of the bronze zone, or what else the configuration allows to read from."""

    container_name: str | None = None
    blob_name: str = Field(min_length=1)
    source_crs: str | None = None
    raster_type: str = "auto"
    nodata: float | Literal["nan"] | None = None
    unset_alpha: bool = False  # the band that is marked as alpha is data
    dtype: str | None = None  # whole numbers are stored as this

    @property
    def kind(self) -> RasterType | None:
        return RasterType.asked(self.raster_type)

    @property
    def nothing(self) -> float | None:
        return float("nan") if self.nodata == "nan" else self.nodata


def size_of(place: Place, source: Source) -> int | None:
    return place.storage.head(source.location).size_bytes if source.location is not None else None


def is_remote(source: Source) -> bool:
    return source.gdal_path.startswith("/vsi")


def megabytes(size_bytes: int) -> float:
    return round(size_bytes / _MEGABYTE, 3)


def shown_as(path: str, facts: RasterFacts, about: About, kind: RasterType, *, remote: bool) -> Json:
    """How every tile is shown, from a sample of the source: each by its own range would look like a chequerboard."""
    with opened(path, remote=remote) as dataset:
        sample = take_sample(dataset, facts)
    found: list[BandStatistics | None] = []
    for at in range(facts.count):
        values = sample.values(at) if sample.patches and at < len(sample.patches[0].values) else None
        found += summarize((partial_of(values),)) if values is not None and values.size else (None,)
    return renders(cog_of(about, "", facts, 0, "", raster_type=kind.value, statistics=found))


class GridParams(BaseModel):
    target_crs: str = "EPSG:4326"
    resolution: tuple[float, float] | float | None = None
