"""Validate files before any output is written, and describe the dataset that they become."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import Field

from dagmaster.database.catalog.pgstac import read_entry
from dagmaster.database.connect import translate_errors
from dagmaster.dataset_ids import dataset_id_from
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.dataset import About, Json, Predecessor, TimeRange, now
from dagmaster.handlers.raster.options import Options, advice_on, require_possible
from dagmaster.handlers.raster.outputs import megabytes
from dagmaster.handlers.raster.recipe import claim, recipe_of
from dagmaster.handlers.raster.results import CollectionPart, CollectionValidationResult, ValidationResult
from dagmaster.handlers.raster.sources import SourceParams, find_source, renders_of, size_of
from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.validation.check import check
from dagmaster.raster.validation.findings import Checked, Fixes, Verdict, verdict_of
from dagmaster.stac.item import item_id, platform_fields
from dagmaster.stac.public import leak_in
from dagmaster.stac.validate import is_license
from dagmaster.stac.when import choose_when
from dagmaster.storage.location import Edition
from dagmaster.storage.sources import SourceFile, SourceOrigin
from dagmaster.storage.zones import Storage


class ValidateParams(SourceParams):
    """The file, the description of the dataset that it becomes, and the options of the outputs."""

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
    platform_refs: dict[str, str] | None = None
    workflow: str | None = None
    options: Options = Options()


def validate(ctx: SyncContext, params: ValidateParams) -> ValidationResult:
    """Validate a file by its header and a sample of its pixels, and the options of the outputs.

    A file that is rejected fails the job with every reason, before any output is written."""
    valid = _validate(ctx, params)
    options, facts, source = params.options, valid.facts, valid.source
    about = _about(params, valid, _predecessor(ctx, params, source))
    claim(ctx.storage, about.edition, recipe_of(options, [facts], valid.kind, valid.source_crs))
    return ValidationResult(
        file_size_mb=megabytes(facts.size_bytes),
        raw_size_mb=megabytes(facts.raw_bytes),
        blob_url=str(source.location) if source.location else source.name,
        crs=facts.crs,
        bounds=facts.bounds,
        bounds_4326=facts.bounds_4326,
        crosses_antimeridian=facts.bounds_4326 is not None and facts.bounds_4326.crosses_antimeridian,
        is_tiled=options.is_tiled(facts),
        band_count=facts.count,
        data_type=facts.dtype,
        shape=(facts.height, facts.width),
        detected_type=valid.kind.value,
        verdict=valid.verdict,
        findings=valid.findings,
        about=about,
        source=valid.source_params(params),
    )


@dataclass(frozen=True, slots=True)
class _ValidFile:
    """A file that can be processed with the options, and what later tasks need to know of it."""

    source: SourceFile
    facts: RasterFacts
    kind: RasterType
    fixes: Fixes
    findings: list[Json]
    verdict: str
    supplied_at: datetime
    source_crs: str | None
    grid: OutputGrid

    def source_params(self, params: SourceParams) -> SourceParams:
        """How later tasks read the file, with what validation has corrected."""
        nodata = self.fixes.nodata
        return SourceParams(
            container_name=params.container_name,
            blob_name=params.blob_name,
            source_crs=self.source_crs,
            raster_type=self.kind.value,
            unset_alpha=self.fixes.unset_alpha,
            dtype=self.fixes.dtype,
            nodata="nan" if nodata is not None and math.isnan(nodata) else nodata,
        )


def _validate(ctx: SyncContext, params: ValidateParams) -> _ValidFile:
    source = find_source(ctx.storage, params)
    checked = check(
        source.gdal_path,
        source_crs=params.source_crs,
        raster_type=params.kind,
        remote=source.is_remote,
        size_bytes=size_of(ctx.storage, source),
    )
    facts = _require_accepted(checked, source.name)
    grid = require_possible(params.options, facts, checked.raster_type, unset_alpha=checked.fixes.unset_alpha)
    findings = (*checked.findings, *advice_on(params.options, facts, grid))
    for finding in findings:
        ctx.logger.info(finding.message, code=finding.code, severity=finding.severity.value)
    return _ValidFile(
        source=source,
        facts=facts,
        kind=checked.raster_type,
        fixes=checked.fixes,
        findings=Checked(checked.verdict, findings=findings).to_dict()["findings"],
        verdict=verdict_of(findings).value,
        supplied_at=_supplied_at(ctx.storage, source),
        source_crs=checked.fixes.source_crs or params.source_crs,
        grid=grid,
    )


def _require_accepted(checked: Checked, name: str) -> RasterFacts:
    if checked.verdict is Verdict.REJECT or checked.facts is None:
        reasons = [f"{error.message} ({error.advice})" if error.advice else error.message for error in checked.errors]
        code = checked.errors[0].code if checked.errors else "raster.rejected"
        raise UnfitData(f"'{name}' is rejected: {'; '.join(reasons)}", code=code)
    return checked.facts


def _predecessor(ctx: SyncContext, params: ValidateParams, source: SourceFile) -> Predecessor:
    """What the catalogue holds of the dataset. A revision older than the one in the catalogue is refused."""
    dataset_id, ordinal = _dataset_id(params, source), params.version_ordinal
    with translate_errors(), ctx.connect() as connection:
        entry = read_entry(connection, dataset_id, ordinal)
    if entry is not None and entry.revision is not None and entry.revision > params.revision:
        raise UnfitData(
            f"the catalogue already has revision {entry.revision} of version {ordinal} of dataset '{dataset_id}'",
            code="edition.superseded",
            hint=f"use revision {entry.revision + 1}",
        )
    return Predecessor(entry, dataset_id, ordinal)


def _dataset_id(params: ValidateParams, source: SourceFile) -> str:
    if params.collection_id and params.dataset_id and params.collection_id != params.dataset_id:
        raise InvalidRequest(
            "collection_id and dataset_id differ",
            code="stac.one-collection",
            hint="a dataset is a collection: pass only one of them",
        )
    stem = PurePosixPath(source.name).stem
    dataset_id = params.collection_id or params.dataset_id or dataset_id_from(stem) or stem
    return Edition(dataset_id, params.version_ordinal, params.revision).dataset


def _about(params: ValidateParams, valid: _ValidFile, before: Predecessor) -> About:
    """The description: what was submitted, else what the catalogue holds, else what the file says."""
    when = choose_when(given=params.datetime, tags=valid.facts.tags, supplied_at=valid.supplied_at)
    about = About(
        dataset_id=before.dataset_id,
        version_ordinal=params.version_ordinal,
        revision=params.revision,
        version_label=params.version_label or before.version_label,
        title=params.title or before.title or PurePosixPath(valid.source.name).stem,
        description=params.description or before.stored("description"),
        keywords=params.keywords or before.stored("keywords") or [],
        license=params.license or before.stored("license") or "other",
        platform_refs=params.platform_refs or before.platform_refs,
        band_names=params.options.band_names or [],
        when=TimeRange.of(before.when(when)),
        created=before.created,
        processed_at=now(),
        workflow=params.workflow,
    )
    _require_publishable(about)
    return about


def _require_publishable(about: About) -> None:
    """Refuse now what would be refused when the documents are written, at the end of the job."""
    platform_fields(about.platform_refs)
    if not is_license(about.license):
        raise InvalidRequest(
            f"'{about.license[:60]}' is not an SPDX identifier",
            code="stac.license",
            hint="use one such as CC-BY-4.0, or `other`",
        )
    for text in (about.title, about.description, about.version_label, *about.keywords):
        if leak := leak_in(text or ""):
            raise InvalidRequest(
                f"a text of the dataset contains {leak}", code="stac.text-not-public", hint="remove it from the text"
            )


def _supplied_at(storage: Storage, source: SourceFile) -> datetime:
    if source.location is not None:
        return storage.head(source.location).modified_at
    if source.kind is SourceOrigin.LOCAL:
        return datetime.fromtimestamp(Path(source.gdal_path).stat().st_mtime, UTC)
    return now()


class CollectionParams(ValidateParams):
    """`blob_names` replaces `blob_name`."""

    blob_name: str = "-"
    blob_names: list[str] = Field(min_length=1)


def validate_collection(ctx: SyncContext, params: CollectionParams) -> CollectionValidationResult:
    """Validate every file of a collection and the options of the outputs. All files that are rejected are reported."""
    valid = _validate_all(ctx, params)
    first = valid[0]
    before = _predecessor(ctx, params, first.source)
    about = _about(params, first, before)
    _require_alike(valid)
    facts = [file.facts for file in valid]
    claim(ctx.storage, about.edition, recipe_of(params.options, facts, first.kind, first.source_crs))
    return CollectionValidationResult(
        about=about,
        detected_type=first.kind.value,
        resolution=first.grid.resolution,
        shown_as=renders_of(first.source, first.facts, about, first.kind),
        parts=[
            CollectionPart(
                source=file.source_params(params.model_copy(update={"blob_name": blob})),
                part=part,
                about=_part_about(about, params, file, before, part),
            )
            for (blob, part), file in zip(_part_names(params.blob_names), valid, strict=True)
        ],
        findings=[finding for file in valid for finding in file.findings],
    )


def _validate_all(ctx: SyncContext, params: CollectionParams) -> list[_ValidFile]:
    valid: list[_ValidFile] = []
    rejections: list[str] = []
    for number, blob in enumerate(params.blob_names, start=1):
        try:
            valid.append(_validate(ctx, params.model_copy(update={"blob_name": blob})))
        except UnfitData as error:
            rejections.append(error.message)
        ctx.progress(number / len(params.blob_names), blob, files=number)
    if rejections:
        raise UnfitData("; ".join(rejections), code="raster.rejected", hint="leave these files out, or repair them")
    return valid


def _require_alike(valid: list[_ValidFile]) -> None:
    """Files of one collection are shown on one map, so they need the same bands."""
    kinds = {(file.facts.count, file.facts.dtype) for file in valid}
    if len(kinds) > 1:
        shown = ", ".join(f"{count} × {dtype}" for count, dtype in sorted(kinds))
        raise UnfitData(
            f"the files differ in their bands: {shown}",
            code="collection.mixed",
            hint="submit files with the same bands together",
        )


def _part_about(about: About, params: ValidateParams, file: _ValidFile, before: Predecessor, part: str) -> About:
    """Each file has its own time; the other fields are those of the dataset."""
    when = choose_when(given=params.datetime, tags=file.facts.tags, supplied_at=file.supplied_at)
    kept = before.when(when, item_id(about.dataset_id, about.version_ordinal, part))
    return about.model_copy(update={"when": TimeRange.of(kept)})


def _part_names(blob_names: list[str]) -> Iterator[tuple[str, str]]:
    """Blobs with the names of their COGs and items: file names, with a number where they repeat."""
    used: set[str] = set()
    for blob in blob_names:
        plain = part_name(PurePosixPath(blob).name)
        numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
        name = next(name for name in numbered if name not in used)
        used.add(name)
        yield blob, name


def part_name(file_name: str) -> str:
    """The name of a part from that of its file. Ids of stored items contain it, so the rule cannot change.

    >>> part_name("Wellington DEM (2024).tif")
    'wellington-dem-2024'
    """
    stem = re.sub(r"\.(tiff?|img|jp2|vrt)$", "", file_name.strip().lower())
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:200].strip("-") or "dataset"
