"""The handlers of unpublish: check, stop, remove.

    check ──▶ stop (a pipeline of Azure Data Factory that still copies) ──▶ remove

The transaction of the decision removes the revision from the catalogue and the map server; these handlers remove its
copies from the external zone. Objects of the silver zone are never changed. Each step may run twice.
"""

from dagmaster.assets.external_copies import ExternalCopyJob
from dagmaster.database.assets.external_copies import ExternalCopyTarget
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers.context import Context, SyncContext
from dagmaster.handlers.export.copying import NamedRevision, edition_of, exporting
from dagmaster.handlers.frozen import FrozenModel


class TargetParams(FrozenModel):
    target: ExternalCopyTarget


class CheckedTarget(FrozenModel):
    target: ExternalCopyTarget


def check(ctx: SyncContext, params: NamedRevision) -> CheckedTarget:
    """Check that a revision is no longer approved and public, and that no other job makes or removes its copies."""
    with exporting(ctx, ExternalCopyJob.WITHDRAWAL) as session:
        revision = session.find(params.asset_id, params.version_ordinal, params.revision)
        session.claim(revision)
    return CheckedTarget(target=revision)


class StoppedRuns(FrozenModel):
    run_count: int


async def stop(ctx: Context, params: TargetParams) -> StoppedRuns:
    """Stop pipeline runs that still copy objects of the revision: they would copy removed objects again."""
    return StoppedRuns(run_count=await ctx.exporter.stop(params.target.name))


class Removed(FrozenModel):
    object_count: int


def remove(ctx: SyncContext, params: TargetParams) -> Removed:
    """Remove all objects of a revision from the external zone, its catalogue first."""
    target, edition = params.target, edition_of(params.target)
    with exporting(ctx, ExternalCopyJob.WITHDRAWAL) as session:
        session.claim(target)
        count = ctx.storage.clear_external(edition)
        if not session.is_current(target):  # this task has outlived its job
            session.require_export_again(target)
            raise UnfitData(
                f"the withdrawal of {target} is no longer current",
                code="external.not-current",
                hint="no action is needed",
            )
    if remaining := next(iter(ctx.storage.external_objects(edition)), None):
        raise HandlerFailed(f"{remaining.location} still exists", code="external.left")
    return Removed(object_count=count)
