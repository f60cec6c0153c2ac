"""Judge files before anything is made of them [R2], and settle what the dataset is called."""

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import Field

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import About, Json, Moment, now
from dagmaster.handlers.raster.place import (
    Place,
    SourceParams,
    is_remote,
    megabytes,
    place_of_work,
    shown_as,
    size_of,
)
from dagmaster.raster.check import check
from dagmaster.raster.facts import RasterFacts, RasterType, read_facts
from dagmaster.raster.findings import Checked, Verdict
from dagmaster.raster.grid import (
    output_grid,
)
from dagmaster.stac.values import slug
from dagmaster.stac.when import choose_when
from dagmaster.storage.location import dataset_name
from dagmaster.storage.sources import Kind, Source


class ValidateParams(SourceParams):
    """The file, and what the submitter tells of the dataset it becomes."""

    dataset_id: str | None = None
    collection_id: str | None = None
    version_ordinal: int = Field(0, ge=0)
    revision: int = Field(1, ge=1)
    version_label: str | None = None
    title: str | None = None
    description: str | None = None
    keywords: list[str] | None = None
    license: str | None = None
    datetime: str | None = None
    band_names: list[str] | None = None
    platform_refs: dict[str, str] | None = None
    workflow: str | None = None


def validate(ctx: SyncContext, params: ValidateParams) -> Json:
    """Judge a file by its header and a bounded look at its pixels; what is unfit fails the job, with every reason [R2]."""
    place = place_of_work()
    source = place.source(params)
    checked = check(
        source.gdal_path, source_crs=params.source_crs, raster_type=params.kind, remote=is_remote(source),
        size_bytes=size_of(place, source),
    )  # fmt: skip
    facts = _fit(checked, source.name)
    for finding in checked.findings:
        ctx.logger.info(finding.message, code=finding.code, severity=finding.severity.value)
    about = _about(params, source, facts, _supplied_at(place, source))
    nodata = checked.fixes.nodata
    return {
        "file_size_mb": megabytes(facts.size_bytes),
        "raw_size_mb": megabytes(facts.raw_bytes),
        "blob_url": str(source.location) if source.location else source.name,
        "crs": facts.crs,
        "bounds": facts.bounds,
        "bounds_4326": facts.bounds_4326,
        "crosses_antimeridian": facts.bounds_4326 is not None and facts.bounds_4326[0] > facts.bounds_4326[2],
        "band_count": facts.count,
        "data_type": facts.dtype,
        "shape": [facts.height, facts.width],
        "detected_type": checked.raster_type.value,
        "verdict": checked.verdict.value,
        "findings": checked.to_dict()["findings"],
        "about": about.model_dump(mode="json"),
        "source": {
            "container_name": params.container_name,
            "blob_name": params.blob_name,
            "source_crs": checked.fixes.source_crs or params.source_crs,
            "raster_type": checked.raster_type.value,
            "unset_alpha": checked.fixes.unset_alpha,
            "nodata": "nan" if nodata is not None and math.isnan(nodata) else nodata,
        },
    }


def _fit(checked: Checked, name: str) -> RasterFacts:
    if checked.verdict is Verdict.REJECT or checked.facts is None:
        reasons = [f"{error.message} ({error.advice})" if error.advice else error.message for error in checked.errors]
        code = checked.errors[0].code if checked.errors else "raster.rejected"
        raise UnfitData(f"'{name}' is rejected: {'; '.join(reasons)}", code=code)
    return checked.facts


def _about(params: ValidateParams, source: Source, facts: RasterFacts, supplied_at: datetime) -> About:
    if params.collection_id and params.dataset_id and params.collection_id != params.dataset_id:
        raise InvalidRequest(
            "collection_id and dataset_id differ",
            code="stac.one-collection",
            hint="a dataset is a collection: give one",
        )
    when = choose_when(given=params.datetime, tags=facts.tags, supplied_at=supplied_at)
    return About(
        dataset_id=params.collection_id or params.dataset_id or dataset_name(PurePosixPath(source.name).stem),
        version_ordinal=params.version_ordinal,
        revision=params.revision,
        version_label=params.version_label,
        title=params.title or PurePosixPath(source.name).stem,
        description=params.description,
        keywords=params.keywords or [],
        license=params.license or "other",
        platform_refs=params.platform_refs or {},
        band_names=params.band_names or [],
        when=Moment(start=when.start, end=when.end, basis=when.basis),
        processed_at=now(),
        workflow=params.workflow,
    )


def _supplied_at(place: Place, source: Source) -> datetime:
    if source.location is not None:
        return place.storage.head(source.location).modified_at
    if source.kind is Kind.LOCAL:
        return datetime.fromtimestamp(Path(source.gdal_path).stat().st_mtime, UTC)
    return now()


class CollectionParams(ValidateParams):
    """`blob_name` is not asked for: there are many."""

    blob_name: str = "-"
    blob_names: list[str] = Field(min_length=1)
    target_crs: str = "EPSG:4326"
    resolution: float | None = Field(None, gt=0)


def validate_collection(ctx: SyncContext, params: CollectionParams) -> Json:
    """Judge every file of a collection; one that is unfit fails the job, and all that are unfit are told of [R11]."""
    parts: list[Json] = []
    unfit: list[str] = []
    for number, blob in enumerate(params.blob_names, start=1):
        try:
            parts.append(validate(ctx, params.model_copy(update={"blob_name": blob})))
        except UnfitData as error:
            unfit.append(error.message)
        ctx.progress(number / len(params.blob_names), blob, files=number)
    if unfit:
        raise UnfitData("; ".join(unfit), code="raster.rejected", hint="leave these files out, or mend them")
    _require_alike(parts)
    first = parts[0]
    place, source = place_of_work(), SourceParams(**first["source"])
    path = place.source(source).gdal_path
    facts = read_facts(path, source_crs=source.source_crs)
    grid = output_grid(facts, params.target_crs, params.resolution)
    about = About(**first["about"])
    return {
        "about": first["about"],
        "detected_type": first["detected_type"],
        "resolution": grid.resolution,
        "shown_as": shown_as(path, facts, about, source.kind or RasterType.UNKNOWN, remote=path.startswith("/vsi")),
        "parts": [
            {"source": part["source"], "part": name, "about": _part_of(about, part)} for part, name in _named(parts)
        ],
        "findings": [finding for part in parts for finding in part["findings"]],
    }


def _require_alike(parts: list[Json]) -> None:
    """What is shown as one must have the same bands."""
    kinds = {(part["band_count"], part["data_type"]) for part in parts}
    if len(kinds) > 1:
        shown = ", ".join(f"{count} × {dtype}" for count, dtype in sorted(kinds))
        raise UnfitData(
            f"the files differ in their bands: {shown}",
            code="collection.mixed",
            hint="submit those that are alike together",
        )


def _part_of(about: About, part: Json) -> Json:
    """Each file is from its own time; all else is the dataset's."""
    return about.model_copy(update={"when": About(**part["about"]).when}).model_dump(mode="json")


def _named(parts: list[Json]) -> Iterator[tuple[Json, str]]:
    """Names of COGs and items: those of the files, told apart where they are the same."""
    taken: set[str] = set()
    for part in parts:
        plain = slug(PurePosixPath(part["source"]["blob_name"]).name)
        name = next(
            name
            for number in itertools.count(1)
            if (name := plain if number == 1 else f"{plain}-{number}") not in taken
        )
        taken.add(name)
        yield part, name
