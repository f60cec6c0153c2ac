"""Assets: rebuild their STAC documents, decide on many versions, and clear many assets."""

import asyncio

from dagmaster.access.permissions import Permission
from dagmaster.assets.states import Clearance
from dagmaster.client.models.commands import (
    ReindexCommand,
    ReindexResult,
    ReviewEntry,
    ReviewManyCommand,
    ReviewManyResult,
    ReviewResult,
)
from dagmaster.commands.registry import TIMEOUT_SECONDS, CommandContext, command
from dagmaster.errors import DagmasterError
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.metadata import reindex
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish

# The errors for decisions that were made before: a repeated command does not fail because of them.
_DONE_BEFORE = {
    "approve": "version.already-approved",
    "reject": "version.already-rejected",
    "unpublish": "version.not-published",
    "clear": "clearance.unchanged",
}
_BEGUN_WITHIN_SECONDS = 0.7 * TIMEOUT_SECONDS  # the remaining time is for the last entry and the event


@command("asset.reindex", Permission.PLATFORM_OPERATE)
async def reindex_asset(context: CommandContext, request: ReindexCommand) -> ReindexResult:
    """Rebuild the STAC collection and items of an asset from the documents of its approved revisions.

    No file is read. What is not published is removed from the catalogue."""
    return await reindex(context.store, request.asset, context.decision(reason=request.reason))


@command("assets.review_many", Permission.ASSETS_REVIEW)
async def review_many(context: CommandContext, request: ReviewManyCommand) -> ReviewManyResult:
    """Approve, reject or unpublish many versions, or clear many assets, each separately.

    There is one result for each entry; an entry that is refused does not affect the others. Each change is in the
    history of its asset. Entries that were not reached within the time limit are `not_tried`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BEGUN_WITHIN_SECONDS
    results = [
        await _reviewed(context, request, entry) if loop.time() < deadline else _result(entry, "not_tried")
        for entry in request.entries
    ]
    counts = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("changed", "unchanged", "refused", "not_tried")
    }
    await context.store.record(context.decision(reason=request.reason, action=request.action, **counts))
    return ReviewManyResult(**counts, results=results)


async def _reviewed(context: CommandContext, request: ReviewManyCommand, entry: ReviewEntry) -> ReviewResult:
    try:
        await _decide(context, request, entry)
    except DagmasterError as error:
        if error.code == _DONE_BEFORE[request.action]:
            return _result(entry, "unchanged")
        return _result(entry, "refused", error)
    return _result(entry, "changed")


async def _decide(context: CommandContext, request: ReviewManyCommand, entry: ReviewEntry) -> None:
    store, caller, reason = context.store, context.caller, request.reason
    ordinal = entry.version_ordinal or 0
    level = Clearance(request.clearance_level) if request.clearance_level else None
    match request.action:
        case "approve":
            await approve(
                store,
                entry.asset,
                ordinal,
                caller=caller,
                clearance=level,
                revision=entry.revision,
                reason=reason,
                needs_second_person=context.settings.approval_by_second_person,
            )
        case "reject":
            await reject(store, entry.asset, ordinal, caller=caller, reason=reason or "", revision=entry.revision)
        case "unpublish":
            await unpublish(store, entry.asset, ordinal, caller=caller, reason=reason)
        case "clear":
            assert level is not None
            await clear(store, entry.asset, level, caller=caller, reason=reason)


def _result(entry: ReviewEntry, outcome: str, error: DagmasterError | None = None) -> ReviewResult:
    return ReviewResult(
        asset=entry.asset,
        version_ordinal=entry.version_ordinal,
        outcome=outcome,
        code=error.code if error else None,
        message=error.message if error else None,
    )
