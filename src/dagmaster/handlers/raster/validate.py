"""Validate files before any output is written, and describe the dataset that they become."""

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import numpy as np
from pydantic import Field

from dagmaster.database.assets.documents import read_earlier
from dagmaster.database.connect import translate_errors
from dagmaster.dataset_ids import MAX_ID_LENGTH, job_dataset_id
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.raster.cogs import MAX_NEIGHBOURS
from dagmaster.handlers.raster.collection import CollectionLayout, layout_of, overlaps
from dagmaster.handlers.raster.dataset import DatasetDescription, Json, Predecessor, TimeRange, now
from dagmaster.handlers.raster.findings import MergedFinding, MergedFindings, ReportedFinding, log_findings, reported
from dagmaster.handlers.raster.options import Options, advice_on, require_possible
from dagmaster.handlers.raster.outputs import megabytes, writable_edition
from dagmaster.handlers.raster.recipe import claim, recipe_of
from dagmaster.handlers.raster.results import CollectionPart, CollectionValidationResult, ValidationResult
from dagmaster.handlers.raster.sources import (
    SourceParams,
    checksum_of,
    combined_checksum,
    etag_of,
    find_source,
    renders_of,
    size_of,
    unchanged,
)
from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.cog.stack import GridGroup, neighbours_of
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.validation.check import check
from dagmaster.raster.validation.findings import Checked, Fixes, Verdict, verdict_of
from dagmaster.stac.item import item_id, platform_fields
from dagmaster.stac.public import leak_in
from dagmaster.stac.validate import is_license, require_providers
from dagmaster.stac.values import Provider
from dagmaster.stac.when import choose_when
from dagmaster.storage.location import Edition
from dagmaster.storage.sources import SourceFile, SourceOrigin
from dagmaster.storage.zones import Storage

_HASH_DIGITS = 12


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
    providers: list[Provider] | None = None
    datetime: str | None = None
    platform_refs: dict[str, str] | None = None
    workflow: str | None = None
    options: Options = Options()


def validate(ctx: SyncContext, params: ValidateParams) -> ValidationResult:
    """Validate a file by its header and a sample of its pixels, and the options of the outputs.

    If the file is rejected, the job fails with all reasons, before any output is written."""
    valid = _validate(ctx, params)
    options, facts, source = params.options, valid.facts, valid.source
    title = PurePosixPath(source.name).stem
    edition = _edition(ctx, params)
    description = _description(params, valid, _predecessor(ctx, edition), title=title, content_hash=valid.sha256)
    claim(ctx.storage, edition, recipe_of(options, [facts], valid.kind, valid.source_crs))
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
        about=description,
        source=valid.source_params(params),
        content_hash=valid.sha256,
    )


@dataclass(frozen=True, slots=True)
class _ValidFile:
    """A file that can be processed with the options, and the values that later tasks need."""

    source: SourceFile
    facts: RasterFacts
    kind: RasterType
    fixes: Fixes
    findings: list[ReportedFinding]
    verdict: str
    supplied_at: datetime
    source_crs: str | None
    grid: OutputGrid
    sha256: str | None
    etag: str | None

    def source_params(self, params: SourceParams) -> SourceParams:
        """The params with which later tasks read the file, with the corrections of the validation."""
        nodata = self.fixes.nodata
        return SourceParams(
            container_name=params.container_name,
            blob_name=params.blob_name,
            source_crs=self.source_crs,
            raster_type=self.kind.value,
            unset_alpha=self.fixes.unset_alpha,
            dtype=self.fixes.dtype,
            nodata="nan" if nodata is not None and math.isnan(nodata) else nodata,
            crs=self.facts.crs,
            sha256=self.sha256,
            etag=self.etag,
        )


def _validate(ctx: SyncContext, params: ValidateParams) -> _ValidFile:
    source = find_source(ctx.storage, params, ctx.job_id)
    etag = params.etag or etag_of(ctx.storage, source)
    with unchanged(ctx.storage, source, etag):
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
    log_findings(ctx.logger, findings)
    with unchanged(ctx.storage, source, etag):
        sha256 = checksum_of(ctx.storage, source)
    return _ValidFile(
        source=source,
        facts=facts,
        kind=checked.raster_type,
        fixes=checked.fixes,
        findings=reported(findings),
        verdict=verdict_of(findings).value,
        supplied_at=_supplied_at(ctx.storage, source),
        source_crs=checked.fixes.source_crs or params.source_crs,
        grid=grid,
        sha256=sha256,
        etag=etag,
    )


def _require_accepted(checked: Checked, name: str) -> RasterFacts:
    if checked.verdict is Verdict.REJECT or checked.facts is None:
        reasons = [f"{error.message} ({error.advice})" if error.advice else error.message for error in checked.errors]
        code = checked.errors[0].code if checked.errors else "raster.rejected"
        raise UnfitData(f"'{name}' is rejected: {'; '.join(reasons)}", code=code)
    return checked.facts


def _edition(ctx: SyncContext, params: ValidateParams) -> Edition:
    return writable_edition(ctx, _dataset_id(ctx, params), params.version_ordinal, params.revision)


def _predecessor(ctx: SyncContext, edition: Edition) -> Predecessor:
    """The description of the dataset in earlier revisions. Raises UnfitData if there is a newer revision."""
    with translate_errors(), ctx.connect() as connection:
        entry = read_earlier(connection, edition)
    if entry is not None and entry.newest is not None and entry.newest > edition.revision:
        raise UnfitData(
            f"dataset '{edition.dataset_id}' already has revision {entry.newest} of version {edition.ordinal}",
            code="edition.superseded",
            hint="submit it again: that makes a new revision",
        )
    return Predecessor(entry, edition.dataset_id, edition.ordinal)


def _dataset_id(ctx: SyncContext, params: ValidateParams) -> str:
    if params.collection_id and params.dataset_id and params.collection_id != params.dataset_id:
        raise InvalidRequest(
            "collection_id and dataset_id differ",
            code="stac.one-collection",
            hint="a dataset is a collection: pass only one of them",
        )
    return params.collection_id or params.dataset_id or job_dataset_id(ctx.job_id)


def _description(
    params: ValidateParams, valid: _ValidFile, predecessor: Predecessor, *, title: str, content_hash: str | None
) -> DatasetDescription:
    """The description. Each field is as submitted, else as in an earlier revision, else from the file or `title`."""
    when = choose_when(given=params.datetime, tags=valid.facts.tags, supplied_at=valid.supplied_at)
    description = DatasetDescription(
        dataset_id=predecessor.dataset_id,
        version_ordinal=params.version_ordinal,
        revision=params.revision,
        version_label=params.version_label or predecessor.version_label,
        title=params.title or predecessor.title or title,
        description=params.description or predecessor.stored("description"),
        keywords=params.keywords or predecessor.stored("keywords") or [],
        license=params.license or predecessor.stored("license") or "other",
        providers=params.providers or predecessor.stored("providers") or [],
        platform_refs=params.platform_refs or predecessor.platform_refs,
        band_names=params.options.band_names or [],
        when=TimeRange.of(predecessor.when(when)),
        created=predecessor.created,
        processed_at=now(),
        workflow=params.workflow,
        source_sha256=content_hash,
    )
    _require_publishable(description)
    return description


def _require_publishable(description: DatasetDescription) -> None:
    """Refuse texts now that would be refused when the documents are written, at the end of the job."""
    platform_fields(description.platform_refs)
    if not is_license(description.license):
        raise InvalidRequest(
            f"'{description.license[:60]}' is not an SPDX identifier",
            code="stac.license",
            hint="use one such as CC-BY-4.0, or `other`",
        )
    require_providers(description.providers)
    names = [provider.name for provider in description.providers]
    for text in (description.title, description.description, description.version_label, *description.keywords, *names):
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
    """`blob_names` replaces `blob_name`, and `etags`, one for each of them, replaces `etag`."""

    blob_name: str = "-"
    blob_names: list[str] = Field(min_length=1)
    etags: list[str] | None = None

    def each(self) -> Iterator[ValidateParams]:
        """The params of each file."""
        etags: Sequence[str | None] = self.etags or [None] * len(self.blob_names)
        if len(etags) != len(self.blob_names):
            raise InvalidRequest(
                "there must be one ETag for each file",
                code="source.invalid",
                hint="pass an ETag for each file, or none",
            )
        for blob, etag in zip(self.blob_names, etags, strict=True):
            yield self.model_copy(update={"blob_name": blob, "etag": etag})


def validate_collection(ctx: SyncContext, params: CollectionParams) -> CollectionValidationResult:
    """Validate every file of a collection and the options of the outputs. All files that are rejected are reported."""
    valid = _validate_all(ctx, params)
    first = valid[0]
    edition = _edition(ctx, params)
    predecessor = _predecessor(ctx, edition)
    checksums = [file.sha256 for file in valid]
    content_hash = None if None in checksums else combined_checksum(checksums)
    title = (
        predecessor.dataset_id if params.dataset_id or params.collection_id else PurePosixPath(first.source.name).stem
    )
    description = _description(params, first, predecessor, title=title, content_hash=content_hash)
    facts = [file.facts for file in valid]
    layout = layout_of(facts, params.options, first.grid.resolution)
    claim(ctx.storage, edition, recipe_of(params.options, facts, first.kind, first.source_crs))
    log_findings(ctx.logger, layout.findings)
    sources = [file.source_params(each) for each, file in zip(params.each(), valid, strict=True)]
    with unchanged(ctx.storage, first.source, first.etag):
        shown_as = renders_of(first.source, first.facts, description, first.kind)
    neighbours = _neighbours(layout, sources)
    return CollectionValidationResult(
        about=description,
        detected_type=first.kind.value,
        resolution=layout.resolution,
        origin=layout.origin,
        shown_as=shown_as,
        parts=[
            CollectionPart(
                source=sources[at],
                part=part,
                about=_part_description(description, params, valid[at], predecessor, part),
                neighbours=neighbours.get(at, []),
            )
            for at, part in enumerate(part_names(params.blob_names))
        ],
        findings=_merged_findings(params, valid, layout),
        content_hash=content_hash,
    )


def _merged_findings(
    params: CollectionParams, valid: list[_ValidFile], layout: CollectionLayout
) -> list[MergedFinding]:
    findings = MergedFindings()
    for blob_name, file in zip(params.blob_names, valid, strict=True):
        findings.add(file.findings, place=blob_name)
    findings.add(reported(layout.findings))
    return findings.most_severe_first()


def _neighbours(layout: CollectionLayout, sources: list[SourceParams]) -> dict[int, list[SourceParams]]:
    """For each file that is resampled, the other files on its grid whose pixels are needed to interpolate its edges."""
    groups = [group for group in layout.groups if group is not layout.kept_group]
    return {at: near for group in groups for at, near in _neighbours_in(group, sources).items()}


def _neighbours_in(group: GridGroup, sources: list[SourceParams]) -> dict[int, list[SourceParams]]:
    """The neighbours of each file of a group. Empty if the files are read with different options, or cover the same
    area: those are of different times or bands, and a neighbour could be of another time or band."""
    members = [sources[at] for at in group.members]
    file_fields: Json = {"blob_name": "", "sha256": None, "etag": None}
    options = {source.model_copy(update=file_fields).model_dump_json() for source in members}
    has_fixes = members[0].unset_alpha or members[0].dtype is not None
    is_same_area = overlaps(group.places.astype(np.float64), np.maximum).any()
    if len(options) > 1 or has_fixes or is_same_area:
        return {}
    neighbours = neighbours_of(group.places)
    if max(map(len, neighbours)) > MAX_NEIGHBOURS:
        return {}
    return {at: [members[other] for other in near] for at, near in zip(group.members, neighbours, strict=True)}


def _validate_all(ctx: SyncContext, params: CollectionParams) -> list[_ValidFile]:
    valid: list[_ValidFile] = []
    rejections: list[str] = []
    for number, each in enumerate(params.each(), start=1):
        try:
            valid.append(_validate(ctx, each))
        except UnfitData as error:
            if error.code == "source.changed":
                raise
            rejections.append(error.message)
        ctx.progress(number / len(params.blob_names), each.blob_name, files=number)
    if rejections:
        raise UnfitData("; ".join(rejections), code="raster.rejected", hint="leave these files out, or repair them")
    return valid


def _part_description(
    description: DatasetDescription, params: ValidateParams, file: _ValidFile, predecessor: Predecessor, part: str
) -> DatasetDescription:
    """Each file has its own time; the other fields are those of the dataset."""
    when = choose_when(given=params.datetime, tags=file.facts.tags, supplied_at=file.supplied_at)
    time = predecessor.when(when, item_id(description.dataset_id, description.version_ordinal, part))
    return description.model_copy(update={"when": TimeRange.of(time)})


def part_names(blob_names: Iterable[str]) -> Iterator[str]:
    """For each blob, the name of its COG and item: its file name, with a number if it repeats."""
    used: set[str] = set()
    for blob in blob_names:
        plain = part_name(PurePosixPath(blob).name)
        numbered = (plain if number == 1 else _with_suffix(plain, str(number)) for number in itertools.count(1))
        name = next(name for name in numbered if name not in used)
        used.add(name)
        yield name


def part_name(file_name: str) -> str:
    """The name of a part from that of its file. Ids of stored items contain it, so the rule cannot change.

    A long name is shortened, and ends with digits of a hash of the whole name: files of a series often differ only in
    the last characters.

    >>> part_name("Wellington DEM (2024).tif")
    'wellington-dem-2024'
    """
    stem = re.sub(r"\.(tiff?|img|jp2|vrt)$", "", file_name.strip().lower())
    plain = re.sub(r"[^a-z0-9]+", "-", stem).strip("-") or "dataset"
    if len(plain) <= MAX_ID_LENGTH:
        return plain
    return _with_suffix(plain, hashlib.sha256(stem.encode()).hexdigest()[:_HASH_DIGITS])


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name[: MAX_ID_LENGTH - len(suffix) - 1].rstrip('-')}-{suffix}"
