"""Load the rows of one asset as the state that the rules read, and write the difference between two states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from dagmaster.assets.rules import ActionResult
from dagmaster.assets.states import (
    ApprovalState,
    AssetState,
    AssetVersionState,
    Clearance,
    Exposure,
    ProcessingState,
    SourceIdentity,
)
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.session import dicts


@dataclass(frozen=True, slots=True)
class LoadedAsset:
    asset_id: str
    dataset_id: str
    state: AssetState
    jobs: Mapping[int, UUID | None] = field(default_factory=dict)  # jobs of the newest revisions, by ordinal
    b2b_may_approve: bool = False  # a setting of its platform


@dataclass(frozen=True, slots=True)
class Decision:
    """What is recorded about a change: who, what and why."""

    action: str
    actor: str
    reason: str | None = None
    ordinal: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None


async def lock_versions(connection: Connection, asset_id: str, ordinals: Sequence[int] | None) -> None:
    """Keep the jobs of these versions (None: of all) from changing them. The asset is locked already."""
    values = {"asset_id": asset_id, "ordinals": None if ordinals is None else list(ordinals)}
    await connection.execute(query("asset_lock_versions"), values)
    await connection.execute(query("asset_lock_revisions"), values)


async def load(connection: Connection, row: Mapping[str, Any]) -> LoadedAsset:
    """The asset of a row of `asset_lock` or `asset_find`."""
    rows = await dicts(connection, "asset_state", {"asset_id": row["asset_id"]})
    state = AssetState(
        row["platform_id"],
        Clearance(row["clearance_state"]),
        Exposure(row["exposure"]),
        row["is_deleted"],
        tuple(_version(version) for version in rows),
    )
    return LoadedAsset(
        row["asset_id"],
        row["dataset_id"],
        state,
        {version["version_ordinal"]: version["current_job_id"] for version in rows},
        row["b2b_may_approve"],
    )


def _version(row: Mapping[str, Any]) -> AssetVersionState:
    return AssetVersionState(
        ordinal=row["version_ordinal"],
        label=row["version_label"],
        revision=row["revision"],
        approval=ApprovalState(row["approval_state"]),
        processing=ProcessingState(row["processing_state"]),
        approved_revision=row["approved_revision"],
        is_unpublished=row["is_unpublished"],
        is_deleted=row["is_deleted"],
        submitted_by=row["submitted_by"],
        source=SourceIdentity(row["source_etag"], row["source_size"], row["content_hash"]),
        parameters_hash=row["parameters_hash"] or "",
        is_purged=row["is_purged"],
    )


async def write_asset(
    connection: Connection, asset_id: str, state: AssetState, actor: str, title: str | None = None
) -> None:
    values = {
        "asset_id": asset_id,
        "clearance": state.clearance.value,
        "exposure": state.exposure.value,
        "latest": state.latest,
        "is_deleted": state.is_deleted,
        "title": title,
        "actor": actor,
    }
    await connection.execute(query("asset_write"), values)


async def write_change(connection: Connection, asset: LoadedAsset, change: ActionResult, decision: Decision) -> None:
    """Write the difference between the state as it was and as it should be, and the event."""
    before, after = asset.state, change.state
    await write_asset(connection, asset.asset_id, after, decision.actor)
    revision = None
    for version in after.versions:
        earlier = before.version(version.ordinal)
        if earlier is not None and earlier != version:
            await _write_version(connection, asset.asset_id, earlier, version, decision)
    await _write_due_copies(connection, asset.asset_id, change)
    if decision.ordinal is not None and (decided := after.version(decision.ordinal)):
        revision = decided.served_revision if decision.action == "approved" else decided.revision
    await add_event(connection, decision, asset_id=asset.asset_id, revision=revision)


async def _write_version(
    connection: Connection, asset_id: str, before: AssetVersionState, after: AssetVersionState, decision: Decision
) -> None:
    is_approved = after.approval == ApprovalState.APPROVED and (
        before.approval != after.approval
        or before.approved_revision != after.approved_revision
        or (before.is_unpublished and not after.is_unpublished)
    )
    is_reviewed = is_approved or before.approval != after.approval
    values = {
        "asset_id": asset_id,
        "ordinal": after.ordinal,
        "approval": after.approval.value,
        "approved_revision": after.approved_revision,
        "is_reviewed": is_reviewed,
        "is_unpublished": after.is_unpublished,
        "is_deleted": after.is_deleted,
        "actor": decision.actor,
        "reason": decision.reason,
    }
    await connection.execute(query("asset_version_write"), values)
    if is_reviewed:
        review = {
            "asset_id": asset_id,
            "ordinal": after.ordinal,
            "revision": after.revision,
            "reviewed_as": after.approval.value,
        }
        await connection.execute(query("asset_revision_review"), review)


async def _write_due_copies(connection: Connection, asset_id: str, change: ActionResult) -> None:
    """External copies that are to be made, and those that are to be removed."""
    due_copies = [("asset_export_due", edition) for edition in change.exports_due]
    due_copies += [("asset_withdrawal_due", edition) for edition in change.withdrawals_due]
    for name, (ordinal, revision) in due_copies:
        await connection.execute(query(name), {"asset_id": asset_id, "ordinal": ordinal, "revision": revision})


async def add_event(
    connection: Connection,
    decision: Decision,
    *,
    asset_id: str | None = None,
    platform_id: str | None = None,
    revision: int | None = None,
) -> int:
    values = {
        "asset_id": asset_id,
        "ordinal": decision.ordinal,
        "revision": revision,
        "platform_id": platform_id,
        "action": decision.action,
        "actor": decision.actor,
        "reason": decision.reason,
        "detail": Jsonb(dict(decision.detail)),
        "request_id": decision.request_id,
    }
    (row,) = await dicts(connection, "asset_event_insert", values)
    return int(row["event_id"])
