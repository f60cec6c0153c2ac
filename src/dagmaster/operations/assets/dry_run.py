"""A submission without effect: what it would create, how it would be processed, or why it would be refused.

The number of tiles, the size and the seconds are estimates: those of past runs of the same workflow, scaled by the size
of the source. Whether there are tiles follows from the rule that the job applies; it is unknown as long as the answer
depends on facts of the file, which is not opened.
"""

import math
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
from dagmaster.workflows.raster import RASTER_COLLECTION, becomes_tiles, tile_limit_of

PAST_RUNS: Final = 5
# A file is not larger than this many times its uncompressed pixels: overviews add a third to them, a mask an eighth,
# and compression of noise up to a half.
_MAX_BYTES_PER_RAW_BYTE: Final = 3.0
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
    has_several_cogs = _has_several_cogs(checked)
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
        is_tiled=has_several_cogs,
        estimate=_estimate(checked, runs, has_several_cogs),
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


def _has_several_cogs(checked: CheckedSubmission) -> bool | None:
    """Whether the source becomes several COGs with a mosaic; None if that is unknown.

    A collection makes no tiles: each of its files becomes one COG. For a single file, the uncompressed size and whether
    it crosses the antimeridian are known once it is opened. So the rule is applied twice: to the smallest possible
    size, and to the largest possible size across the antimeridian. If both agree, the result is known.
    """
    workflow_id = checked.workflow.workflow_id
    if workflow_id == RASTER_COLLECTION:
        return len(checked.source.blobs) > 1
    limit_mb = tile_limit_of(workflow_id, checked.inputs)
    if limit_mb is None:
        return None
    least_raw_bytes = max(1.0, checked.source.size_bytes / _MAX_BYTES_PER_RAW_BYTE)  # a raster has at least one pixel
    least = becomes_tiles(limit_mb, raw_bytes=least_raw_bytes, crosses_antimeridian=False)
    most = becomes_tiles(limit_mb, raw_bytes=math.inf, crosses_antimeridian=True)
    return least if least == most else None


def _estimate(checked: CheckedSubmission, runs: Sequence[PastRun], has_several_cogs: bool | None) -> SubmissionEstimate:
    size = checked.source.size_bytes
    size_bytes = _scaled(size, [(run, run.size_bytes) for run in runs])
    return SubmissionEstimate(
        tile_count=len(checked.source.blobs) if checked.source.is_many else _cog_count(size, runs, has_several_cogs),
        size_bytes=None if size_bytes is None else round(size_bytes),
        seconds=_scaled(size, [(run, run.seconds) for run in runs]),
        based_on_runs=len(runs),
    )


def _cog_count(size: int, runs: Sequence[PastRun], has_several_cogs: bool | None) -> int | None:
    """One if a past run with a source of a similar size made one COG, unless it is known that there are several."""
    comparable = [run for run in runs if size / _COMPARABLE <= run.source_size <= size * _COMPARABLE]
    nearest = min(comparable, key=lambda run: abs(run.source_size - size), default=None)
    if has_several_cogs is False or (has_several_cogs is None and nearest is not None and nearest.items <= 1):
        return 1
    items = _scaled(size, [(run, run.items) for run in runs])
    return None if items is None else max(1, round(items))


def _scaled(size: int, values: Sequence[tuple[PastRun, float | None]]) -> float | None:
    """The median of value per byte of source in past runs, times the size of this source."""
    rates = [value / run.source_size for run, value in values if value is not None]
    return median(rates) * size if rates else None
