"""Judge files before anything is made of them, and settle what the dataset is called."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import Field

from dagmaster.database.catalog.pgstac import said_of
from dagmaster.database.connect import translate_errors
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import About, Before, Json, Moment, now
from dagmaster.handlers.raster.options import Options, advice_on, claim, recipe_of, require_possible
from dagmaster.handlers.raster.workplace import (
    Place,
    SourceParams,
    is_remote,
    megabytes,
    place_of_work,
    shown_as,
    size_of,
)
from dagmaster.raster.cog.grid import OutputGrid
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.validation.check import check
from dagmaster.raster.validation.findings import Checked, Fixes, Verdict, verdict_of
from dagmaster.stac.addresses import leak_in
from dagmaster.stac.item import item_id, platform_fields
from dagmaster.stac.validate import is_license
from dagmaster.stac.values import slug
from dagmaster.stac.when import choose_when
from dagmaster.storage.location import Edition, dataset_name
from dagmaster.storage.sources import Kind, Source


class ValidateParams(SourceParams):
    """The file, what the submitter tells of the dataset it becomes, and what the outputs shall be like."""

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


def validate(ctx: SyncContext, params: ValidateParams) -> Json:
    """Judge a file by its header and a bounded look at its pixels, and what is asked for; what is unfit fails the job, with
    every reason, before anything is made."""
    place = place_of_work()
    judged = _judge(ctx, place, params)
    options, facts = params.options, judged.facts
    before = _before(ctx, params, judged.source)
    about = _about(params, judged, before)
    recipe = recipe_of(options, [facts], judged.kind, judged.source_crs, is_tiled=options.is_tiled(facts))
    claim(place.storage, about.edition, recipe)
    return {
        "file_size_mb": megabytes(facts.size_bytes),
        "raw_size_mb": megabytes(facts.raw_bytes),
        "blob_url": str(judged.source.location) if judged.source.location else judged.source.name,
        "crs": facts.crs,
        "bounds": facts.bounds,
        "bounds_4326": facts.bounds_4326 and facts.bounds_4326.as_list(),
        "crosses_antimeridian": facts.bounds_4326 is not None and facts.bounds_4326.crosses_antimeridian,
        "band_count": facts.count,
        "data_type": facts.dtype,
        "shape": [facts.height, facts.width],
        "detected_type": judged.kind.value,
        "verdict": judged.verdict,
        "findings": judged.findings,
        "about": about.model_dump(mode="json"),
        "source": judged.told(params),
    }


@dataclass(frozen=True, slots=True)
class _Judged:
    """A file that is fit for what is asked for, as later tasks need to know it."""

    source: Source
    facts: RasterFacts
    kind: RasterType
    fixes: Fixes
    findings: list[Json]
    verdict: str
    supplied_at: datetime
    source_crs: str | None
    grid: OutputGrid

    def told(self, params: SourceParams) -> Json:
        nodata = self.fixes.nodata
        return {
            "container_name": params.container_name,
            "blob_name": params.blob_name,
            "source_crs": self.source_crs,
            "raster_type": self.kind.value,
            "unset_alpha": self.fixes.unset_alpha,
            "dtype": self.fixes.dtype,
            "nodata": "nan" if nodata is not None and math.isnan(nodata) else nodata,
        }


def _judge(ctx: SyncContext, place: Place, params: ValidateParams) -> _Judged:
    source = place.source(params)
    checked = check(
        source.gdal_path, source_crs=params.source_crs, raster_type=params.kind, remote=is_remote(source),
        size_bytes=size_of(place, source),
    )  # fmt: skip
    facts = _fit(checked, source.name)
    grid = require_possible(params.options, facts, checked.raster_type, unset_alpha=checked.fixes.unset_alpha)
    advice = advice_on(params.options, facts, grid)
    findings = [*checked.findings, *advice]
    for finding in findings:
        ctx.logger.info(finding.message, code=finding.code, severity=finding.severity.value)
    return _Judged(
        source, facts, checked.raster_type, checked.fixes, Checked(checked.verdict, findings=tuple(findings)).to_dict()["findings"],
        verdict_of(findings).value, _supplied_at(place, source), checked.fixes.source_crs or params.source_crs, grid,
    )  # fmt: skip


def _fit(checked: Checked, name: str) -> RasterFacts:
    if checked.verdict is Verdict.REJECT or checked.facts is None:
        reasons = [f"{error.message} ({error.advice})" if error.advice else error.message for error in checked.errors]
        code = checked.errors[0].code if checked.errors else "raster.rejected"
        raise UnfitData(f"'{name}' is rejected: {'; '.join(reasons)}", code=code)
    return checked.facts


def _before(ctx: SyncContext, params: ValidateParams, source: Source) -> Before:
    """What is said of the dataset already; a revision that was followed by another is not made any more."""
    dataset, ordinal = _dataset_of(params, source), params.version_ordinal
    with translate_errors(), ctx.connect() as connection:
        said = said_of(connection, dataset, ordinal)
    before = Before(said, dataset, ordinal)
    if said is not None and said.revision is not None and said.revision > params.revision:
        raise UnfitData(
            f"version {ordinal} of dataset '{dataset}' is at revision {said.revision} already",
            code="edition.superseded",
            hint=f"take revision {said.revision + 1}",
        )
    return before


def _dataset_of(params: ValidateParams, source: Source) -> str:
    if params.collection_id and params.dataset_id and params.collection_id != params.dataset_id:
        raise InvalidRequest(
            "collection_id and dataset_id differ",
            code="stac.one-collection",
            hint="a dataset is a collection: give one",
        )
    name = params.collection_id or params.dataset_id or dataset_name(PurePosixPath(source.name).stem)
    return Edition(name, params.version_ordinal, params.revision).dataset


def _about(params: ValidateParams, judged: _Judged, before: Before) -> About:
    """As the submitter says; else as it was said of the revision before; else as the file is called."""
    when = choose_when(given=params.datetime, tags=judged.facts.tags, supplied_at=judged.supplied_at)
    about = About(
        dataset_id=before.dataset,
        version_ordinal=params.version_ordinal,
        revision=params.revision,
        version_label=params.version_label or before.version_label,
        title=params.title or before.title or PurePosixPath(judged.source.name).stem,
        description=params.description or before.told("description"),
        keywords=params.keywords or before.told("keywords") or [],
        license=params.license or before.told("license") or "other",
        platform_refs=params.platform_refs or before.platform_refs,
        band_names=params.options.band_names or [],
        when=Moment.of(before.when(when)),
        created=before.created,
        processed_at=now(),
        workflow=params.workflow,
    )
    _require_publishable(about)
    return about


def _require_publishable(about: About) -> None:
    """What would be refused when its documents are written, at the end of the work."""
    platform_fields(about.platform_refs)
    if not is_license(about.license):
        raise InvalidRequest(
            f"'{about.license[:60]}' is no SPDX identifier", code="stac.license", hint="such as CC-BY-4.0, or other"
        )
    for text in (about.title, about.description, about.version_label, *about.keywords):
        if leak := leak_in(text or ""):
            raise InvalidRequest(f"a text tells {leak}", code="stac.text-not-public", hint="leave that out of it")


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


def validate_collection(ctx: SyncContext, params: CollectionParams) -> Json:
    """Judge every file of a collection, and what is asked for; all that are unfit are told of, and nothing is made."""
    place, judged = place_of_work(), _judge_all(ctx, params)
    first = judged[0]
    before = _before(ctx, params, first.source)
    about = _about(params, first, before)
    _require_alike(judged)
    facts = [each.facts for each in judged]
    claim(place.storage, about.edition, recipe_of(params.options, facts, first.kind, first.source_crs, is_tiled=False))
    path = first.source.gdal_path
    return {
        "about": about.model_dump(mode="json"),
        "detected_type": first.kind.value,
        "resolution": first.grid.resolution,
        "shown_as": shown_as(path, first.facts, about, first.kind, remote=is_remote(first.source)),
        "parts": [
            {
                "source": each.told(params.model_copy(update={"blob_name": blob})),
                "part": part,
                "about": _part_of(about, params, each, before, part),
            }
            for (blob, part), each in zip(_named(params.blob_names), judged, strict=True)
        ],
        "findings": [finding for each in judged for finding in each.findings],
    }


def _judge_all(ctx: SyncContext, params: CollectionParams) -> list[_Judged]:
    judged: list[_Judged] = []
    unfit: list[str] = []
    place = place_of_work()
    for number, blob in enumerate(params.blob_names, start=1):
        try:
            judged.append(_judge(ctx, place, params.model_copy(update={"blob_name": blob})))
        except UnfitData as error:
            unfit.append(error.message)
        ctx.progress(number / len(params.blob_names), blob, files=number)
    if unfit:
        raise UnfitData("; ".join(unfit), code="raster.rejected", hint="leave these files out, or mend them")
    return judged


def _require_alike(judged: list[_Judged]) -> None:
    """What is shown as one must have the same bands."""
    kinds = {(each.facts.count, each.facts.dtype) for each in judged}
    if len(kinds) > 1:
        shown = ", ".join(f"{count} × {dtype}" for count, dtype in sorted(kinds))
        raise UnfitData(
            f"the files differ in their bands: {shown}",
            code="collection.mixed",
            hint="submit those that are alike together",
        )


def _part_of(about: About, params: ValidateParams, judged: _Judged, before: Before, part: str) -> Json:
    """Each file is from its own time; all else is the dataset's."""
    when = choose_when(given=params.datetime, tags=judged.facts.tags, supplied_at=judged.supplied_at)
    kept = before.when(when, item_id(about.dataset_id, about.version_ordinal, part))
    return about.model_copy(update={"when": Moment.of(kept)}).model_dump(mode="json")


def _named(blob_names: list[str]) -> Iterator[tuple[str, str]]:
    """Names of COGs and items: those of the files, told apart where they are the same."""
    taken: set[str] = set()
    for blob in blob_names:
        plain = slug(PurePosixPath(blob).name)
        name = next(
            name
            for number in itertools.count(1)
            if (name := plain if number == 1 else f"{plain}-{number}") not in taken
        )
        taken.add(name)
        yield blob, name
