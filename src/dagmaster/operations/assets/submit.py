"""Submit data for an asset: asset, version, revision and job are created in one transaction.

    references ─▶ platform's row ─▶ asset id          source ─▶ ETag and size of each object
                                        └────────────────┴──▶ rules.submit, under a lock on the asset
                                                                ├─▶ new_asset, new_version, new_revision: a job
                                                                └─▶ already_processing, already_completed: nothing new

A job of a revision that is superseded is cancelled afterwards. A repeated request id gets the same response.
"""

from functools import partial

from dagmaster.access.caller import Caller
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.assets.submissions import SubmittedAsset
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.dry_run import dry_run
from dagmaster.operations.assets.request import CheckedSubmission, check, job_of
from dagmaster.storage import Storage


async def submit_asset(
    store: AssetStore,
    library: WorkflowLibrary,
    storage: Storage,
    *,
    request: AssetSubmissionRequest,
    caller: Caller,
) -> AssetSubmissionResult:
    """Submit, or with `request.dry_run` report what would happen."""
    if request.dry_run:
        return await dry_run(store, library, storage, request=request, caller=caller)
    return await submit_checked(store, library, await check(store, library, storage, request, caller))


async def submit_checked(
    store: AssetStore, library: WorkflowLibrary, checked: CheckedSubmission
) -> AssetSubmissionResult:
    submitted = await store.submit(checked.new, checked.decide, partial(job_of, library, checked))
    if submitted.superseded_job_id is not None:
        await store.cancel_unneeded(submitted.asset_id, by=checked.new.actor, reason="superseded by a new revision")
    return _result(checked.new.request_id, submitted)


def _result(request_id: str, submitted: SubmittedAsset) -> AssetSubmissionResult:
    return AssetSubmissionResult(
        request_id=request_id,
        outcome=submitted.outcome,
        asset_id=submitted.asset_id,
        dataset_id=submitted.dataset_id,
        version_ordinal=submitted.ordinal,
        version_label=submitted.label,
        revision=submitted.revision,
        workflow_id=submitted.workflow_id,
        job_id=submitted.job_id,
        same_content_as=submitted.same_content_as,
        superseded_job_id=submitted.superseded_job_id,
    )
