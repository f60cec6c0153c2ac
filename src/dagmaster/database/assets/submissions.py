"""Submissions: asset, version, revision, request and job are created in one transaction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from dagmaster.assets.request_ids import possible_ids
from dagmaster.assets.rules import SubmissionDecision, SubmissionOutcome
from dagmaster.assets.states import AssetState
from dagmaster.database.assets import rows
from dagmaster.database.assets.rows import Decision, LoadedAsset
from dagmaster.database.assets.transaction import AssetTransactions
from dagmaster.database.catalog.pgstac import RetryableConflict
from dagmaster.database.catalog.publish import is_deployed
from dagmaster.database.connect import Connection
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.database.ledger.submission import insert_jobs
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts
from dagmaster.dataset_ids import RevisionKey
from dagmaster.errors import Conflict

_OUTCOMES_WITH_NEW_JOB = (SubmissionOutcome.NEW_ASSET, SubmissionOutcome.NEW_VERSION, SubmissionOutcome.NEW_REVISION)


@dataclass(frozen=True, slots=True)
class NewSubmission:
    """A checked request. `dataset_ids` are the names of a new asset, the preferred one first."""

    request_id: str
    request_hash: str
    platform_id: str
    asset_id: str
    identity: Mapping[str, str]
    platform_refs: Mapping[str, str]
    dataset_ids: tuple[str, ...]
    actor: str
    workflow_id: str
    parameters: Mapping[str, Any]
    parameters_hash: str
    source: Mapping[str, Any]
    source_etag: str | None = None
    source_size: int | None = None
    title: str | None = None
    callback_url: str | None = None
    subscriber: Mapping[str, str] | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmittedAsset:
    """The result of a submission. `superseded_job_id` names a job that is no longer needed."""

    outcome: str
    asset_id: str
    dataset_id: str
    ordinal: int
    label: str
    revision: int
    workflow_id: str
    job_id: UUID | None
    same_content_as: int | None = None
    superseded_job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class PastRun:
    """A completed run of a workflow: the bytes of its source, how long it took, how many items and bytes it made."""

    source_size: int
    seconds: float | None
    items: int
    size_bytes: int | None


Decide = Callable[[AssetState | None], SubmissionDecision]
MakeJob = Callable[[RevisionKey, str], NewJob]  # from a revision, and the label of its version


class AssetSubmissions(AssetTransactions):
    async def submit(self, new: NewSubmission, decide: Decide, make_job: MakeJob) -> SubmittedAsset:
        """Create what `decide` says, and the job. A repeated request gets the same result as the first."""

        async def act(connection: Connection) -> SubmittedAsset:
            stored_id, result = await _earlier_result(connection, new)
            if result is not None:
                return result
            asset, is_new = await _lock_or_create(connection, new)
            decision = decide(None if is_new else asset.state)
            version = decision.state.version(decision.ordinal)
            assert version is not None
            if not is_new:
                await rows.lock_versions(connection, asset.asset_id, [decision.ordinal])
                asset = await rows.load(connection, await _row(connection, asset.asset_id))
                decision = decide(asset.state)  # decide again: a job may have changed the version before the lock
            if decision.outcome in _OUTCOMES_WITH_NEW_JOB:
                submitted = await _create(connection, new, asset, decision, make_job)
            else:
                submitted = await _existing_result(connection, asset, decision)
            await _record(connection, new, stored_id, submitted)
            return submitted

        submitted = await self._transaction("submit_asset", act)
        if submitted.job_id is not None:
            self._notify(JOBS)
        return submitted

    async def earlier_result(self, new: NewSubmission) -> SubmittedAsset | None:
        """The result that this request got when it was sent before. Conflict if its id belongs to another request."""
        async with self._connected() as connection:
            return (await _earlier_result(connection, new))[1]

    async def dataset_id_for(self, new: NewSubmission) -> str:
        """The dataset id that the asset has, or would get."""
        async with self._connected() as connection:
            for row in await dicts(connection, "asset_find", {"key": new.asset_id}):
                return str(row["dataset_id"])
            for dataset_id in new.dataset_ids:
                if not await _is_taken(connection, dataset_id):
                    return dataset_id
        return new.dataset_ids[-1]

    async def past_runs(self, workflow_id: str, limit: int) -> list[PastRun]:
        """The last completed runs of a workflow, newest first."""
        return models(PastRun, await self._dicts("asset_past_runs", {"workflow_id": workflow_id, "limit": limit}))


async def _earlier_result(connection: Connection, new: NewSubmission) -> tuple[str, SubmittedAsset | None]:
    """The id under which the request is stored, and its result if the same request was sent before."""
    request_ids = possible_ids(new.request_id, [new.platform_id])
    stored_id, own_id = request_ids
    for row in await dicts(connection, "asset_submission", {"request_ids": request_ids}):
        if row["platform_id"] != new.platform_id:
            stored_id = own_id
            continue
        if row["request_hash"] != new.request_hash:
            raise Conflict(
                f"the request id '{new.request_id}' was already used for another submission",
                code="submission.id-taken",
                hint="use another request id",
            )
        result = SubmittedAsset(
            row["outcome"],
            row["asset_id"],
            row["dataset_id"],
            row["version_ordinal"],
            row["version_label"],
            row["revision"],
            row["workflow_id"],
            row["job_id"],
            row["same_content_as"],
            row["superseded_job_id"],
        )
        return stored_id, result
    return stored_id, None


async def _row(connection: Connection, asset_id: str) -> dict[str, Any]:
    (row,) = await dicts(connection, "asset_lock", {"key": asset_id})
    return row


async def _lock_or_create(connection: Connection, new: NewSubmission) -> tuple[LoadedAsset, bool]:
    """If two submissions create the same asset, the second waits for the first and finds its asset."""
    for row in await dicts(connection, "asset_lock", {"key": new.asset_id}):
        return await rows.load(connection, row), False
    for dataset_id in new.dataset_ids:
        if await _is_taken(connection, dataset_id):
            continue
        values = {
            "asset_id": new.asset_id,
            "platform_id": new.platform_id,
            "platform_refs": Jsonb(dict(new.identity)),
            "dataset_id": dataset_id,
            "title": new.title,
            "actor": new.actor,
        }
        if await dicts(connection, "asset_insert", values):
            return LoadedAsset(new.asset_id, dataset_id, AssetState(new.platform_id)), True
        for row in await dicts(connection, "asset_lock", {"key": new.asset_id}):
            return await rows.load(connection, row), False
    raise Conflict(
        f"the dataset ids {', '.join(new.dataset_ids)} are taken", code="asset.name-taken", hint="use another name"
    )


async def _is_taken(connection: Connection, dataset_id: str) -> bool:
    """Whether an asset has the id, or a collection of the catalogue that belongs to no asset."""
    if await dicts(connection, "asset_find", {"key": dataset_id}):
        return True
    return await is_deployed(connection) and bool(await dicts(connection, "catalog_known", {"collection": dataset_id}))


async def _create(
    connection: Connection, new: NewSubmission, asset: LoadedAsset, decision: SubmissionDecision, make_job: MakeJob
) -> SubmittedAsset:
    version = decision.state.version(decision.ordinal)
    assert version is not None
    job = make_job(RevisionKey(asset.dataset_id, version.ordinal, version.revision), version.label)
    await rows.write_asset(connection, asset.asset_id, decision.state, new.actor, new.title)
    common = {
        "asset_id": asset.asset_id,
        "ordinal": version.ordinal,
        "revision": version.revision,
        "job_id": job.job_id,
    }
    version_values = {"label": version.label, "platform_refs": Jsonb(dict(new.platform_refs))}
    await connection.execute(query("asset_version_submit"), {**common, **version_values})
    revision_values = {
        "workflow_id": job.workflow.workflow_id,
        "parameters": Jsonb(dict(new.parameters)),
        "parameters_hash": new.parameters_hash,
        "source": Jsonb(dict(new.source)),
        "source_etag": new.source_etag,
        "source_size": new.source_size,
        "actor": new.actor,
    }
    await connection.execute(query("asset_revision_insert"), {**common, **revision_values})
    await insert_jobs(connection, [job])
    submitted = SubmittedAsset(
        decision.outcome.value,
        asset.asset_id,
        asset.dataset_id,
        version.ordinal,
        version.label,
        version.revision,
        job.workflow.workflow_id,
        job.job_id,
        decision.same_content_as,
        None if decision.supersedes is None else asset.jobs.get(version.ordinal),
    )
    await _add_event(connection, new, submitted)
    return submitted


async def _add_event(connection: Connection, new: NewSubmission, submitted: SubmittedAsset) -> None:
    detail = {
        **new.detail,
        "outcome": submitted.outcome,
        "job_id": str(submitted.job_id),
        "workflow_id": submitted.workflow_id,
        "version_label": submitted.label,
        "source": dict(new.source),
    }
    decision = Decision("submitted", new.actor, ordinal=submitted.ordinal, detail=detail, request_id=new.request_id)
    await rows.add_event(connection, decision, asset_id=submitted.asset_id, revision=submitted.revision)


async def _existing_result(connection: Connection, asset: LoadedAsset, decision: SubmissionDecision) -> SubmittedAsset:
    version = asset.state.version(decision.ordinal)
    assert version is not None
    values = {"asset_id": asset.asset_id, "ordinal": version.ordinal, "revision": version.revision}
    (row,) = await dicts(connection, "asset_revision_job", values)
    return SubmittedAsset(
        decision.outcome.value,
        asset.asset_id,
        asset.dataset_id,
        version.ordinal,
        version.label,
        version.revision,
        row["workflow_id"],
        row["job_id"],
        decision.same_content_as,
    )


async def _record(connection: Connection, new: NewSubmission, stored_id: str, submitted: SubmittedAsset) -> None:
    values = {
        "request_id": stored_id,
        "given_id": new.request_id,
        "platform_id": new.platform_id,
        "asset_id": submitted.asset_id,
        "ordinal": submitted.ordinal,
        "revision": submitted.revision,
        "outcome": submitted.outcome,
        "same_content_as": submitted.same_content_as,
        "superseded_job_id": submitted.superseded_job_id,
        "request_hash": new.request_hash,
        "actor": new.actor,
        "callback_url": new.callback_url,
        "subscriber": None if new.subscriber is None else Jsonb(dict(new.subscriber)),
    }
    if not await dicts(connection, "asset_submission_insert", values):
        raise RetryableConflict("the same request was recorded a moment ago")
