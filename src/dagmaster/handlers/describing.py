"""What the catalogue is told of a raster dataset: STAC documents from what was measured.

Addresses are public ones below `public_url`; nothing else of where things are gets in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

from dagmaster import __version__
from dagmaster.bbox import BBox
from dagmaster.database.catalog.pgstac import Said
from dagmaster.errors import InvalidRequest
from dagmaster.raster.analysis.footprint import Footprint
from dagmaster.raster.analysis.statistics import BandStatistics
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.settings import Settings
from dagmaster.stac import collection as collections
from dagmaster.stac import item as items
from dagmaster.stac.renders import renders
from dagmaster.stac.values import Cog, Dataset, Links, Processing, Version
from dagmaster.stac.when import Basis, When, better_of, when_of
from dagmaster.storage.location import Edition, Location, Zone

Json = dict[str, Any]


class Moment(BaseModel):
    """When the data are from, as it travels from task to task."""

    start: datetime
    end: datetime | None = None
    basis: Basis = "given"

    def when(self) -> When:
        return When(self.start, self.end, self.basis)

    @classmethod
    def of(cls, when: When) -> "Moment":
        return cls(start=when.start, end=when.end, basis=when.basis)


class About(BaseModel):
    """What a dataset is called, and which edition of it this is. Made once, by the first task of a job, for all others.

    `created` is when the version was first made, where it was made before.
    """

    dataset_id: str
    version_ordinal: int = Field(0, ge=0)
    revision: int = Field(1, ge=1)
    version_label: str | None = None
    title: str | None = None
    description: str | None = None
    keywords: list[str] = []
    license: str = "other"
    platform_refs: dict[str, str] = {}
    band_names: list[str] = []
    when: Moment
    created: datetime | None = None
    processed_at: datetime
    lineage: str = ""
    workflow: str | None = None

    @property
    def edition(self) -> Edition:
        return Edition(self.dataset_id, self.version_ordinal, self.revision)

    def dataset(self) -> Dataset:
        return Dataset(self.dataset_id, self.title, self.description, tuple(self.keywords), self.license)

    def version(self) -> Version:
        return Version(self.version_ordinal, self.revision, self.version_label)

    def processing(self) -> Processing:
        import rasterio

        software = {"dagmaster": __version__, "gdal": rasterio.__gdal_version__, "rasterio": rasterio.__version__}
        return Processing(self.processed_at, self.lineage, software, self.workflow)


@dataclass(frozen=True, slots=True)
class Before:
    """What the catalogue says already. A new revision keeps it, a new version what is the dataset's, unless told otherwise."""

    said: Said | None
    dataset: str
    ordinal: int

    @property
    def is_of_version(self) -> bool:
        return self.said is not None and self.said.ordinal == self.ordinal

    @property
    def title(self) -> str | None:
        """Without the name of the part that an item adds to it."""
        if self.said is None:
            return None
        part = self.said.item_id.removeprefix(f"{self.dataset}-v{self.said.ordinal}").removeprefix("-")
        title: str | None = self.said.properties.get("title")
        return title.removesuffix(f" ({part})") if title and part else title

    def told(self, name: str) -> Any:
        return self.said.properties.get(name) if self.said else None

    @property
    def version_label(self) -> str | None:
        label = self.told("version") if self.is_of_version else None
        return None if label == str(self.ordinal) else label

    @property
    def platform_refs(self) -> dict[str, str]:
        found = self.said.properties if self.said and self.is_of_version else {}
        return {name.removeprefix("platform:"): told for name, told in found.items() if name.startswith("platform:")}

    @property
    def created(self) -> datetime | None:
        return datetime.fromisoformat(self.said.created) if self.said and self.said.created else None

    def when(self, found: When, item_id: str | None = None) -> When:
        """Of an item, or of the version where all its items are of the same time."""
        if self.said is None or not self.is_of_version:
            return found
        if item_id is None and self.said.times:
            return found
        known = when_of(self.said.times.get(item_id or "", {}) if self.said.times else self.said.properties)
        return better_of(known, found) if known else found


class Addresses:
    """Where outsiders find what is served."""

    def __init__(self, settings: Settings) -> None:
        self.base = (settings.public_url or f"http://localhost:{settings.serving_port}").rstrip("/")

    def file(self, location: Location) -> str:
        if location.zone is Zone.BRONZE:
            raise InvalidRequest("raw data is not served", code="storage.not-served")
        return f"{self.base}/files/{location.zone}/{location.container}/{quote(location.blob)}"

    def map(self, about: About) -> str:
        return f"{self.base}/tiles/{about.dataset_id}/map?version={about.version_ordinal}"

    def collection(self, about: About) -> str:
        return f"{self.base}/stac/collections/{about.dataset_id}"

    def item(self, about: About, item_id: str) -> str:
        return f"{self.collection(about)}/items/{item_id}"

    def tilejson(self, about: About) -> str:
        return f"{self._tiles(about)}/WebMercatorQuad/tilejson.json?version={about.version_ordinal}"

    def xyz(self, about: About) -> str:
        return f"{self._tiles(about)}/tiles/WebMercatorQuad/{{z}}/{{x}}/{{y}}.png?version={about.version_ordinal}"

    def preview(self, about: About) -> str:
        return f"{self._tiles(about)}/preview.png?version={about.version_ordinal}"

    def _tiles(self, about: About) -> str:
        return f"{self.base}/tiles/{about.dataset_id}"

    def links(self, about: About, item_id: str | None = None) -> Links:
        return Links(
            collection=self.collection(about),
            self_=self.item(about, item_id) if item_id else self.collection(about),
            root=f"{self.base}/stac/",
            tilejson=self.tilejson(about),
            xyz=self.xyz(about),
        )


def cog_of(
    about: About,
    href: str,
    facts: RasterFacts,
    size_bytes: int,
    sha256: str,
    *,
    raster_type: str,
    statistics: Sequence[BandStatistics | None],
    header_bytes: int | None = None,
) -> Cog:
    return Cog(
        href, facts, size_bytes, sha256, statistics, raster_type, band_names=about.band_names, header_bytes=header_bytes
    )


def item_of(
    about: About,
    addresses: Addresses,
    cog: Cog,
    ground: Footprint,
    *,
    tile: str | None = None,
    shown_as: Mapping[str, Any] | None = None,
    created: datetime | None = None,
) -> Json:
    item_id = items.item_id(about.dataset_id, about.version_ordinal, tile)
    return items.item(
        dataset=about.dataset(), version=about.version(), when=about.when.when(), cog=cog, footprint=ground,
        processing=about.processing(), links=addresses.links(about, item_id), tile=tile, shown_as=shown_as,
        platform=about.platform_refs, thumbnail=None if tile else addresses.preview(about),
        created=created or about.created,
    )  # fmt: skip


def collection_of(
    about: About,
    addresses: Addresses,
    bbox: BBox,
    sample_items: Sequence[Json],
    *,
    mosaic: Location | None = None,
    tiling_scheme: Location | None = None,
    whole: Cog | None = None,
) -> Json:
    """`whole` stands for all tiles together: its statistics say how the mosaic is shown."""
    assets = collections.CollectionAssets(
        mosaic=addresses.file(mosaic) if mosaic else None,
        tiling_scheme=addresses.file(tiling_scheme) if tiling_scheme else None,
        thumbnail=addresses.preview(about),
        whole=whole,
    )
    made = collections.collection(
        dataset=about.dataset(), version=about.version(), bbox=bbox, items=sample_items, links=addresses.links(about),
        assets=assets, when=about.when.when(), platform=about.platform_refs,
        created=about.created or about.processed_at, updated=about.processed_at,
    )  # fmt: skip
    if whole is not None:
        made["renders"] = renders(whole)
    return made


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
