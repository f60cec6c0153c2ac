"""The dataset that a job makes: its description, and its description in earlier revisions.

The first task of a job fills in the description; all later tasks are given the same one. In params and outputs it is
named `about`, also in those of jobs that earlier releases started.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dagmaster import __version__
from dagmaster.database.assets.documents import EarlierRevision
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.outputs import writable_edition
from dagmaster.stac.item import item_id
from dagmaster.stac.values import Dataset, Processing, Provider, Version
from dagmaster.stac.when import Basis, ItemTime, better_of, when_of
from dagmaster.storage.location import Edition

Json = dict[str, Any]


class TimeRange(BaseModel):
    """The time of the data, as tasks pass it on."""

    model_config = ConfigDict(frozen=True)

    start: datetime
    end: datetime | None = None
    basis: Basis = "given"

    def when(self) -> ItemTime:
        return ItemTime(self.start, self.end, self.basis)

    @classmethod
    def of(cls, when: ItemTime) -> "TimeRange":
        return cls(start=when.start, end=when.end, basis=when.basis)


class DatasetDescription(BaseModel):
    """The description of a dataset, and which edition of it is made.

    `created` is the time of the first revision of the version, if there is an earlier one.
    """

    model_config = ConfigDict(frozen=True)

    dataset_id: str
    version_ordinal: int = Field(0, ge=0)
    revision: int = Field(1, ge=1)
    version_label: str | None = None
    title: str | None = None
    description: str | None = None
    keywords: list[str] = []
    license: str = "other"
    providers: list[Provider] = []
    platform_refs: dict[str, str] = {}
    band_names: list[str] = []
    when: TimeRange
    created: datetime | None = None
    processed_at: datetime
    lineage: str = ""
    workflow: str | None = None
    source_name: str | None = None
    source_crs: str | None = None
    source_sha256: str | None = None
    sources: list[tuple[str | None, str | None]] = []  # name and SHA-256 of each, if there is more than one

    def writable_edition(self, ctx: SyncContext) -> Edition:
        """The edition. Raises UnfitData if the job of this task may not write it."""
        return writable_edition(ctx, self.dataset_id, self.version_ordinal, self.revision)

    def dataset(self) -> Dataset:
        texts = self.title, self.description, tuple(self.keywords), self.license
        return Dataset(self.dataset_id, *texts, tuple(self.providers))

    def version(self) -> Version:
        return Version(self.version_ordinal, self.revision, self.version_label)

    def processing(self) -> Processing:
        import rasterio

        software = {"dagmaster": __version__, "gdal": rasterio.__gdal_version__, "rasterio": rasterio.__version__}
        return Processing(
            self.processed_at,
            self.lineage,
            software,
            self.workflow,
            source_sha256=self.source_sha256,
            source_name=self.source_name,
            source_crs=self.source_crs,
            sources=self.sources,
        )


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The description in the documents of an earlier revision; `entry` is None for a new dataset.

    A new revision keeps all of it, a new version keeps only the fields of the dataset, unless the submission sets
    other values.
    """

    entry: EarlierRevision | None
    dataset_id: str
    ordinal: int

    @property
    def is_same_version(self) -> bool:
        return self.entry is not None and self.entry.ordinal == self.ordinal

    def stored(self, name: str) -> Any:
        return self.entry.properties.get(name) if self.entry else None

    @property
    def title(self) -> str | None:
        """The title, without the name of the part that an item appends to it."""
        if self.entry is None:
            return None
        part = self.entry.item_id.removeprefix(item_id(self.dataset_id, self.entry.ordinal)).removeprefix("-")
        title: str | None = self.entry.properties.get("title")
        return title.removesuffix(f" ({part})") if title and part else title

    @property
    def version_label(self) -> str | None:
        label = self.stored("version") if self.is_same_version else None
        return None if label == str(self.ordinal) else label

    @property
    def platform_refs(self) -> dict[str, str]:
        properties = self.entry.properties if self.entry and self.is_same_version else {}
        prefix = "platform:"
        return {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}

    @property
    def created(self) -> datetime | None:
        return datetime.fromisoformat(self.entry.created) if self.entry and self.entry.created else None

    def when(self, measured: ItemTime, item_id: str | None = None) -> ItemTime:
        """The better of the measured and the stored time: of an item, or of the version if all its items share one."""
        if self.entry is None or not self.is_same_version:
            return measured
        times = self.entry.times
        if item_id is None and times:
            return measured
        recorded = when_of(times.get(item_id or "", {}) if times else self.entry.properties)
        return better_of(recorded, measured) if recorded else measured


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
