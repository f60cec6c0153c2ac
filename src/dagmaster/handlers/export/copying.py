"""The handlers of external_export: plan, transfer, copy, finish.

    plan ──▶ transfer (a pipeline of Azure Data Factory, if configured) ──▶ copy, in batches ──▶ finish

plan, copy and finish first check that this job is the one that exports the revision, and that the revision is still
approved and public. Each object is copied, read again, and compared with the checksum in its STAC document; an object
whose copy is already correct is not copied again. Before and after each write the handler checks that the export is
still current. If it is not current after the write, or if this cannot be checked, the object is deleted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson
from pydantic import Field

from dagmaster import faults
from dagmaster.assets.external_copies import ExternalCopyJob
from dagmaster.database.assets.external_copies import ExternalCopySession, ExternalCopyTarget
from dagmaster.database.connect import translate_errors
from dagmaster.errors import DagmasterError, HandlerFailed, NotFound, UnfitData
from dagmaster.handlers.context import Context, SyncContext
from dagmaster.handlers.export import documents
from dagmaster.handlers.export.exporter import Stopped, TransferOrder
from dagmaster.handlers.frozen import FrozenModel
from dagmaster.jobs.states import NodeStatus
from dagmaster.storage.location import STAC_COLLECTION, Edition, Location, Zone, intermediate, is_mosaic

Json = dict[str, Any]

BATCH_DOCUMENTS: Final = 20
FILE_LIST: Final = "export/files.txt"


class NamedRevision(FrozenModel):
    """`revision` defaults to the approved one, or to the newest if none is approved."""

    asset_id: str = Field(min_length=1, max_length=200)
    version_ordinal: int = Field(ge=0, le=2**31 - 1)
    revision: int | None = Field(None, ge=1, le=2**31 - 1)


class PlanParams(NamedRevision):
    """`blob_path` is the main object of the revision; if it is given, it must match the revision's outputs."""

    blob_path: str | None = None


class DocumentBatch(FrozenModel):
    """Documents of a revision with ids greater than `after`, up to `last_id`. The id of the collection is empty."""

    after: str | None
    last_id: str
    documents: int


class ExportPlan(FrozenModel):
    target: ExternalCopyTarget
    batches: list[DocumentBatch]
    document_count: int
    file_list: str | None


def plan(ctx: SyncContext, params: PlanParams) -> ExportPlan:
    """Check that a revision is approved and public, and divide its documents into batches."""
    with exporting(ctx) as session:
        target = session.find(params.asset_id, params.version_ordinal, params.revision)
        _require_blob_path(params.blob_path, target)
        session.claim(target)
        batches: list[DocumentBatch] = []
        for last_id, count in session.batches(target, BATCH_DOCUMENTS):
            batches.append(
                DocumentBatch(after=batches[-1].last_id if batches else None, last_id=last_id, documents=count)
            )
        if not batches:
            raise UnfitData(f"{target} has no STAC documents", code="export.no-documents", hint="submit it again")
        file_list = _write_file_list(ctx, session, target, batches) if ctx.exporter.is_pipeline else None
    count = sum(batch.documents for batch in batches)
    return ExportPlan(target=target, batches=batches, document_count=count, file_list=file_list)


def edition_of(target: ExternalCopyTarget) -> Edition:
    return Edition(target.dataset_id, target.version_ordinal, target.revision)


def _require_blob_path(blob_path: str | None, revision: ExternalCopyTarget) -> None:
    if blob_path is not None and blob_path != revision.blob_path:
        raise UnfitData(
            f"blob_path does not match {revision}",
            code="export.other-blob",
            hint="leave it out, or pass the blob_path of the revision's outputs",
        )


def _write_file_list(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, batches: list[DocumentBatch]
) -> str:
    """Write the names of all objects that a pipeline copies, one per line. The list is deleted with the job."""
    names: set[str] = set()
    for batch in batches:
        for _, document in session.documents(target, batch.after, batch.last_id):
            names |= {source.blob for source, _ in _files(target, document)}
    blob = intermediate(ctx.job_id, FILE_LIST)
    location = ctx.storage.location(blob, zone=Zone.SILVER)
    ctx.storage.put(location, "".join(f"{name}\n" for name in sorted(names)).encode())
    return blob


class TransferParams(FrozenModel):
    target: ExternalCopyTarget
    file_list: str | None = None


class Transfer(FrozenModel):
    run_id: str | None


async def transfer(ctx: Context, params: TransferParams) -> Transfer:
    """Let a pipeline copy all objects, if one is configured. Otherwise the next step copies them."""
    if params.file_list is None:
        return Transfer(run_id=None)
    order = TransferOrder(
        export_id=str(ctx.job_id),
        edition=params.target.name,
        source_container=ctx.storage.containers[Zone.SILVER],
        target_container=ctx.storage.containers[Zone.EXTERNAL],
        file_list=params.file_list,
    )
    try:
        run_id = await ctx.exporter.transfer(order, lambda: ctx.shutting_down, lambda: ctx.cancelled)
    except Stopped:
        raise ctx.give_back() from None
    return Transfer(run_id=run_id)


class CopyParams(FrozenModel):
    target: ExternalCopyTarget
    batch: DocumentBatch


class CopiedObject(FrozenModel):
    """An object of the external zone, without its container."""

    blob: str
    size_bytes: int
    sha256: str


class Copied(FrozenModel):
    objects: list[CopiedObject]
    items: list[str]


class DamagedCopy(Exception):
    """The copy of an object is missing or differs from its source. A copy that differs is deleted."""

    def __init__(self, reason: DagmasterError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def copy(ctx: SyncContext, params: CopyParams) -> Copied:
    """Copy the files of a batch of STAC documents, and write the documents of its items."""
    target = params.target
    with exporting(ctx) as session:
        session.claim(target)
        copied: dict[str, CopiedObject] = {}
        items: list[str] = []
        failure: DagmasterError | None = None
        batch = session.documents(target, params.batch.after, params.batch.last_id)
        for number, (document_id, document) in enumerate(batch, start=1):
            for source, asset in _files(target, document):
                if source.blob not in copied:
                    try:
                        copied[source.blob] = _copy_file(ctx, session, target, source, asset)
                    except DamagedCopy as error:  # check the other objects too, so that no damaged copy is kept
                        failure = failure or error.reason
            if document_id:
                item = documents.external_item(document, edition_of(target), ctx.addresses.public_base)
                written = _write(ctx, session, target, documents.item_name(document_id), item)
                copied[written.blob] = written
                items.append(document_id)
            ctx.progress(number / len(batch), "copying", objects=len(copied))
            if ctx.cancelled or ctx.shutting_down:
                raise ctx.give_back()
    if failure:
        raise failure
    return Copied(objects=list(copied.values()), items=items)


def _files(target: ExternalCopyTarget, document: Json) -> Iterator[tuple[Location, Json]]:
    """The objects of the revision that a document names. Files of other revisions and zones are not copied."""
    edition = edition_of(target)
    for location, asset in documents.files_in(document):
        if location.zone == Zone.SILVER and documents.belongs_to(edition, location):
            yield location, asset


def _copy_file(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, source: Location, asset: Json
) -> CopiedObject:
    copy_location = external_location(ctx, source.blob)
    prefix = ctx.addresses.external_base
    if is_mosaic(source) and prefix is not None:
        cogs = ctx.addresses.external(external_location(ctx, edition_of(target).cog("x"))).removesuffix("x")
        return _put(ctx, session, target, copy_location, documents.external_mosaic(ctx.storage.get(source), cogs))
    expected = documents.checksum_of(asset) or ctx.storage.sha256(source)
    with guarded(ctx, session, target, copy_location):
        if _sha256(ctx, copy_location) != expected:
            faults.reach("handler.before-publish")
            try:
                ctx.exporter.copy(ctx.storage, source, copy_location, ctx.job_id)
            except HandlerFailed as error:
                raise DamagedCopy(error) from None
            faults.reach("handler.after-publish")
            _require_same(ctx, copy_location, expected, source)
    size = ctx.storage.head(copy_location).size_bytes
    return CopiedObject(blob=copy_location.blob, size_bytes=size, sha256=expected)


def _require_same(ctx: SyncContext, copy_location: Location, expected: str, source: Location) -> None:
    """Read the copy again and compare it. If the source itself differs from its document, a retry cannot help."""
    if _sha256(ctx, copy_location) == expected:
        return
    if ctx.storage.sha256(source) == expected:
        raise DamagedCopy(HandlerFailed(f"the copy {copy_location} differs from its source", code="export.checksum"))
    raise DamagedCopy(
        UnfitData(
            f"{source} differs from the checksum in its STAC document",
            code="export.source-damaged",
            hint="submit the version again: that makes a new revision",
        )
    )


def _sha256(ctx: SyncContext, location: Location) -> str | None:
    try:
        return ctx.storage.sha256(location)
    except NotFound:
        return None


def _write(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, name: str, document: Json
) -> CopiedObject:
    location = external_location(ctx, edition_of(target).stac(name))
    return _put(ctx, session, target, location, orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


def _put(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, location: Location, content: bytes
) -> CopiedObject:
    with guarded(ctx, session, target, location):
        stored = ctx.storage.put(location, content)
        if _sha256(ctx, location) != stored.sha256:
            raise HandlerFailed(f"{location} differs from what was written", code="export.checksum")
    return CopiedObject(blob=location.blob, size_bytes=stored.size_bytes, sha256=stored.sha256)


@contextmanager
def guarded(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, location: Location
) -> Iterator[None]:
    """A context in which one object of the external zone is written. It is deleted if the export is no longer current
    afterwards: a task may outlive its job, and the other copies may have been removed while it wrote."""
    _require_current(lambda: session.is_current(target), target)
    try:
        yield
    except DamagedCopy:
        ctx.storage.delete(location)
        raise
    except DagmasterError:  # it may have been written before the error
        _delete_unless_current(ctx, session, target, location)
        raise
    _delete_unless_current(ctx, session, target, location)


def _delete_unless_current(
    ctx: SyncContext, session: ExternalCopySession, target: ExternalCopyTarget, location: Location
) -> None:
    """Delete the object and raise the reason if the export is no longer current, or if that cannot be checked."""
    try:
        _require_current(lambda: session.is_current(target), target)
    except DagmasterError:
        ctx.storage.delete(location)
        raise


def _require_current(is_current: Callable[[], bool], target: ExternalCopyTarget) -> None:
    if not is_current():
        raise UnfitData(
            f"the export of {target} is no longer current: it was withdrawn, or another job exports it",
            code="external.not-current",
            hint="no action is needed",
        )


class FinishParams(FrozenModel):
    target: ExternalCopyTarget
    document_count: int
    run_id: str | None = None


class Exported(FrozenModel):
    """Paths are `container/blob`. URLs are public."""

    external_blob_path: str | None
    external_stac_path: str
    external_manifest_path: str
    external_url: str | None
    external_stac_url: str
    external_manifest_url: str
    adf_run_id: str | None
    object_count: int
    size_bytes: int


def finish(ctx: SyncContext, params: FinishParams) -> Exported:
    """Write the collection and the manifest, once all objects are copied."""
    target = params.target
    objects, items = _results(ctx)
    if len(items) + 1 != params.document_count:
        raise HandlerFailed(
            f"{len(items)} of {params.document_count - 1} items were copied",
            code="export.incomplete",
            hint="resume the job from the node that copies them",
        )
    with exporting(ctx) as session:
        session.claim(target)
        collection = session.collection(target)
        if collection is None:
            raise UnfitData(f"{target} has no collection", code="export.no-documents")
        document = documents.external_collection(collection, edition_of(target), ctx.addresses.public_base, items)
        written = _write(ctx, session, target, STAC_COLLECTION, document)
        objects[written.blob] = written
        manifest = external_location(ctx, edition_of(target).manifest())
        content = orjson.dumps(_manifest(target, objects), option=orjson.OPT_INDENT_2)
        _put(ctx, session, target, manifest, content)
    main = _main_object(ctx, target, objects)
    stac = external_location(ctx, written.blob)
    return Exported(
        external_blob_path=main.path if main else None,
        external_stac_path=stac.path,
        external_manifest_path=manifest.path,
        external_url=ctx.addresses.external(main) if main else None,
        external_stac_url=ctx.addresses.external(stac),
        external_manifest_url=ctx.addresses.external(manifest),
        adf_run_id=params.run_id,
        object_count=len(objects),
        size_bytes=sum(each.size_bytes for each in objects.values()),
    )


def _results(ctx: SyncContext) -> tuple[dict[str, CopiedObject], list[str]]:
    """The objects that all batches have copied, and the ids of their items."""
    objects: dict[str, CopiedObject] = {}
    items: list[str] = []
    for result in ctx.results():
        if result.status == NodeStatus.COMPLETED:
            copied = Copied.model_validate(result.output)
            objects |= {each.blob: each for each in copied.objects}
            items += copied.items
    return objects, items


def _manifest(target: ExternalCopyTarget, objects: dict[str, CopiedObject]) -> Json:
    """All objects with their sizes and checksums, so that anyone can verify them. Repeated exports write the same."""
    return {
        "dataset_id": target.dataset_id,
        "version_ordinal": target.version_ordinal,
        "revision": target.revision,
        "objects": [objects[blob].model_dump() for blob in sorted(objects)],
    }


def _main_object(ctx: SyncContext, target: ExternalCopyTarget, objects: dict[str, CopiedObject]) -> Location | None:
    """The copy of the revision's main object."""
    if target.blob_path is None:
        return None
    blob = target.blob_path.partition("/")[2] if target.blob_path not in objects else target.blob_path
    return external_location(ctx, blob) if blob in objects else None


def external_location(ctx: SyncContext, blob: str) -> Location:
    return ctx.storage.location(blob, zone=Zone.EXTERNAL)


@contextmanager
def exporting(ctx: SyncContext, job: ExternalCopyJob = ExternalCopyJob.EXPORT) -> Iterator[ExternalCopySession]:
    with translate_errors(), ctx.connect() as connection:
        yield ExternalCopySession(connection, ctx.job_id, job)
