"""A submission without effect: what it would create, how it would be processed, or why it would be refused.

Sizes, tiles and seconds are those of past runs of the same workflow, scaled by the size of the source.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from dagmaster.access.caller import Caller
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SubmissionEstimate
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.assets.submissions import PastRun, SubmittedAsset
from dagmaster.errors import Conflict, InvalidRequest, UnfitData
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.request import CheckedSubmission, check
from dagmaster.storage import Storage

PAST_RUNS: Final = 5
_MB: Final = 1_000_000
_COMPARABLE: Final = 4.0  # a past run whose source is more than this many times larger or smaller is not comparable


async def dry_run(
    store: AssetStore,
    library: WorkflowLibrary,
    storage: Storage,
    *,
    request: AssetSubmissionRequest,
    caller: Caller,
) -> AssetSubmissionResult:
    """Errors of the request itself are raised; a refusal because of the state of the asset is part of the result."""
    checked = await check(store, library, storage, request, caller)
    runs = await store.past_runs(checked.workflow.workflow_id, PAST_RUNS)
    is_tiled = _is_tiled(checked, runs)
    result = AssetSubmissionResult(
        request_id=None,
        outcome=None,
        asset_id=checked.new.asset_id,
        dataset_id=await store.dataset_id_for(checked.new),
        version_ordinal=None,
        version_label=checked.label,
        revision=None,
        workflow_id=checked.workflow.workflow_id,
        is_dry_run=True,
        is_tiled=is_tiled,
        estimate=_estimate(checked, runs, is_tiled),
    )
    return result.model_copy(update=await _outcome(store, checked))


async def _outcome(store: AssetStore, checked: CheckedSubmission) -> dict[str, Any]:
    try:
        if (earlier := await store.earlier_result(checked.new)) is not None:
            return _repeated(earlier)
        asset = await store.state(checked.new.asset_id)
        decision = checked.decide(asset.state if asset else None)
    except (Conflict, InvalidRequest, UnfitData) as error:
        return {"refusal": _problem(error)}
    version = decision.state.version(decision.ordinal)
    return {
        "outcome": decision.outcome.value,
        "version_ordinal": decision.ordinal,
        "version_label": version.label if version else checked.label,
        "revision": decision.revision,
        "same_content_as": decision.same_content_as,
        "superseded_job_id": asset.jobs.get(decision.ordinal) if asset and decision.supersedes else None,
    }


def _repeated(earlier: SubmittedAsset) -> dict[str, Any]:
    """The request was sent before: it would create nothing, and get the same response."""
    return {
        "outcome": earlier.outcome,
        "version_ordinal": earlier.ordinal,
        "version_label": earlier.label,
        "revision": earlier.revision,
        "same_content_as": earlier.same_content_as,
        "superseded_job_id": earlier.superseded_job_id,
    }


def _problem(error: Conflict | InvalidRequest | UnfitData) -> dict[str, Any]:
    return {"code": error.code, "detail": error.message, "hint": error.hint, "facts": error.facts}


def _is_tiled(checked: CheckedSubmission, runs: Sequence[PastRun]) -> bool | None:
    """Whether the source becomes several COGs. That depends on its size without compression, which only its file
    shows: None unless the size of the file, or a past run with a source of about that size, decides it."""
    if checked.source.is_many:
        return len(checked.source.blobs) > 1
    limit = checked.inputs.get("tile_above_mb")
    if "tile_above_mb" not in checked.workflow.inputs:
        return True
    size = checked.source.size_bytes
    if isinstance(limit, int | float) and size > limit * _MB:
        return True
    comparable = [run for run in runs if size / _COMPARABLE <= run.source_size <= size * _COMPARABLE]
    nearest = min(comparable, key=lambda run: abs(run.source_size - size), default=None)
    return None if nearest is None else nearest.items > 1


def _estimate(checked: CheckedSubmission, runs: Sequence[PastRun], is_tiled: bool | None) -> SubmissionEstimate:
    size = checked.source.size_bytes
    items = _scaled(size, [(run, run.items) for run in runs])
    size_bytes = _scaled(size, [(run, run.size_bytes) for run in runs])
    tile_count = 1 if is_tiled is False else None if items is None else max(1, round(items))
    if checked.source.is_many:
        tile_count = len(checked.source.blobs)
    return SubmissionEstimate(
        tile_count=tile_count,
        size_bytes=None if size_bytes is None else round(size_bytes),
        seconds=_scaled(size, [(run, run.seconds) for run in runs]),
        based_on_runs=len(runs),
    )


def _scaled(size: int, values: Sequence[tuple[PastRun, float | None]]) -> float | None:
    """The median of value per byte of source in past runs, times the size of this source."""
    rates = [value / run.source_size for run, value in values if value is not None]
    return median(rates) * size if rates else None
