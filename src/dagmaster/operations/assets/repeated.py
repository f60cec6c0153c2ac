"""Whether the same data was submitted before, and its processing failed."""

from uuid import UUID

from dagmaster.assets.states import ProcessingState
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.request import CheckedSubmission


async def failed_before(store: AssetStore, checked: CheckedSubmission) -> UUID | None:
    """The job that failed with the same source and the same parameters; None if there is none.

    A submission would create a new revision. Callers that want the failed job to continue call this first; if the state
    changes in between, the submission is decided like any other.
    """
    asset = await store.state(checked.new.asset_id)
    if asset is None:
        return None
    decision = checked.decide(asset.state)
    version = asset.state.version(decision.ordinal)
    if version is None or version.processing is not ProcessingState.FAILED:
        return None
    is_same = version.source.is_same(checked.source.identity) and version.parameters_hash == checked.new.parameters_hash
    return asset.jobs.get(version.ordinal) if is_same else None
