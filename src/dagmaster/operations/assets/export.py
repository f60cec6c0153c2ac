"""External copies: the jobs that create and remove them, and repeating an export."""

import hashlib
from dataclasses import replace
from typing import Any

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.assets.external_copies import EXPORT_WORKFLOW, WITHDRAWAL_WORKFLOW, ExternalCopyStep
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.external_copies import DueJob
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.submit import prepare


async def export_again(
    store: AssetStore,
    key: str,
    ordinal: int,
    *,
    caller: Caller,
    reason: str | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    """Request the export of a version again: after a failure, or because its copies may be damaged."""
    decision = Decision("export_requested", caller.name, reason, ordinal)
    return await store.export_again(
        key, ordinal, lambda asset: rules.export_again(asset.state, ordinal), decision, if_match
    )


def job_of(library: WorkflowLibrary, due: DueJob) -> NewJob:
    """The job that creates or removes the external copies of a revision."""
    key, is_export = due.key, due.step == ExternalCopyStep.EXPORT
    inputs: dict[str, Any] = {
        "asset_id": key.asset_id,
        "version_ordinal": key.version_ordinal,
        "revision": key.revision,
    }
    if is_export and due.blob_path:
        inputs["blob_path"] = due.blob_path
    submission = Submission(
        workflow_id=EXPORT_WORKFLOW if is_export else WITHDRAWAL_WORKFLOW,
        inputs=inputs,
        submitted_by="dagmaster",
        idempotency_key=_key_of(due),
    )
    return replace(prepare(library, submission), asset_id=key.asset_id, version_ordinal=key.version_ordinal)


def _key_of(due: DueJob) -> str:
    """The idempotency key: there is one job for each decision, and another one after each failed withdrawal."""
    moment = int(due.due_at.timestamp() * 1_000_000)
    key = due.key
    parts = (due.step.value, key.asset_id, key.version_ordinal, key.revision, moment, due.failures)
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
