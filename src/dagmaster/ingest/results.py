"""The results of a raster job: where its files are, and where they are served."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from dagmaster.addresses import Addresses
from dagmaster.storage.location import STAC_COLLECTION, Edition, Folder, Location, Zone

if TYPE_CHECKING:
    from dagmaster.handlers.raster.findings import MergedFinding
    from dagmaster.raster.validation.findings import Finding
    from dagmaster.storage.zones import Storage


_MAX_PLACES = 3


class RasterJobResult(BaseModel):
    """The fields of a raster job's result that are used here. Which of them it has depends on its workflow."""

    model_config = ConfigDict(frozen=True)

    blob_path: str | None = None
    mosaic_blob: str | None = None
    total_tiles: int | None = None
    item_count: int | None = None
    findings: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, result: object) -> "RasterJobResult":
        """`result` is a job's `result_data`, which is null if it has none."""
        return cls.model_validate(result if isinstance(result, dict) else {})

    @property
    def cog_count(self) -> int:
        return self.total_tiles or self.item_count or 1


@dataclass(frozen=True, slots=True)
class ResultUrls:
    """Where a version is served. A revision that is not approved has a map and a TileJSON only, by a signed link."""

    collection: str | None = None
    item: str | None = None
    tilejson: str | None = None
    xyz: str | None = None
    viewer: str | None = None


@dataclass(frozen=True, slots=True)
class ResultSummary:
    dataset_id: str
    cogs: str | None  # None if the files are on another machine
    cog_count: int
    cog_bytes: int | None
    mosaic: str | None
    urls: ResultUrls = ResultUrls()
    preview: Path | None = None

    def public(self) -> dict[str, Any]:
        return {
            "dataset_id": self.dataset_id,
            "cogs": {"folder": self.cogs, "count": self.cog_count, "size_bytes": self.cog_bytes},
            "mosaic": self.mosaic,
            "stac_collection_url": self.urls.collection,
            "stac_item_url": self.urls.item,
            "tilejson_url": self.urls.tilejson,
            "xyz_url": self.urls.xyz,
            "viewer_url": self.urls.viewer,
            "preview": str(self.preview) if self.preview else None,
        }


def summarise(storage: "Storage", edition: Edition, urls: ResultUrls) -> ResultSummary:
    """The results that storage contains now, including files from before a resume."""
    cogs = _siblings(storage, edition.cog("x"))
    mosaic = storage.location(edition.mosaic(), zone=Zone.SILVER)
    return ResultSummary(
        dataset_id=edition.dataset_id,
        cogs=storage.display_path(_silver(storage, edition.cog("x"))).rpartition("/")[0],
        cog_count=len(cogs),
        cog_bytes=sum(cog.size_bytes for cog in cogs),
        mosaic=storage.display_path(mosaic) if storage.exists(mosaic) else None,
        urls=urls,
    )


def summarise_remote(edition: Edition, result: object, urls: ResultUrls) -> ResultSummary:
    """The results of a job on another machine, as its platform reports them."""
    return ResultSummary(
        dataset_id=edition.dataset_id,
        cogs=None,
        cog_count=RasterJobResult.of(result).cog_count,
        cog_bytes=None,
        mosaic=None,
        urls=urls,
    )


def served_urls(storage: "Storage | None", edition: Edition, maps_url: str) -> ResultUrls:
    """The URLs of an approved version."""
    addresses, dataset, ordinal = Addresses(maps_url), edition.dataset_id, edition.ordinal
    documents = _siblings(storage, edition.stac("x")) if storage else []
    items = sorted(
        stored.location.name.removesuffix(".json") for stored in documents if stored.location.name != STAC_COLLECTION
    )
    return ResultUrls(
        collection=addresses.collection(dataset),
        item=addresses.item(dataset, items[0]) if items else None,
        tilejson=addresses.tilejson(dataset, ordinal),
        xyz=addresses.xyz(dataset, f"version={ordinal}"),
        viewer=addresses.map(dataset, ordinal),
    )


def is_complete(storage: "Storage", edition: Edition, result: object) -> bool:
    """Whether storage still has all results of a completed job: objects may have been deleted since."""
    job_result = RasterJobResult.of(result)
    expected = [job_result.blob_path or job_result.mosaic_blob, edition.stac(STAC_COLLECTION)]
    has_all = all(storage.exists(_silver(storage, blob)) for blob in expected if blob)
    return has_all and len(_siblings(storage, edition.cog("x"))) >= job_result.cog_count


def warnings_of(result: object) -> "list[Finding]":
    """Warnings of the processing, which reads every pixel; those of the validation are printed before the job."""
    from dagmaster.handlers.raster.findings import MergedFinding
    from dagmaster.raster.validation.findings import Finding, Severity

    # A platform of another release may report other stages and severities: such findings are not parsed.
    findings = [
        MergedFinding.model_validate(each)
        for each in RasterJobResult.of(result).findings or []
        if (each.get("stage"), each.get("severity")) == ("processing", Severity.WARN)
    ]
    return [Finding(each.code, Severity.WARN, f"{_places_text(each)}{each.message}", each.advice) for each in findings]


def _places_text(finding: "MergedFinding") -> str:
    """The tiles that have the finding, such as `r000c001.tif and 3 more: `; empty for a single COG."""
    places, count = finding.places[:_MAX_PLACES], finding.count
    more = f" and {count - len(places)} more" if count > len(places) else ""
    return f"{', '.join(places)}{more}: " if places else ""


def _silver(storage: "Storage", blob: str) -> Location:
    return storage.location(blob, zone=Zone.SILVER)


def _siblings(storage: "Storage", blob: str) -> list[Any]:
    """All objects in the folder of a blob."""
    location = _silver(storage, blob)
    return list(storage.list(Folder(location.zone, location.container, location.blob.rpartition("/")[0])))
