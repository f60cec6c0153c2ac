"""Assets, their versions, their history, and platforms, as pages and tables."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dagmaster.cli.tables import Column, ago, at, print_records, print_table
from dagmaster.client.escaping import one_line
from dagmaster.client.models.assets import (
    AssetHistoryEntry,
    AssetInfo,
    AssetSummary,
    AuditEntry,
    FindingInfo,
    PlatformInfo,
    VersionInfo,
)
from dagmaster.client.models.base import read

if TYPE_CHECKING:
    from dagmaster.cli.command import State
    from dagmaster.client.models.base import Json


def print_assets(state: "State", page: "Sequence[Json]") -> None:
    columns: list[Column[AssetSummary]] = [
        Column("dataset", lambda asset: one_line(asset.dataset_id)),
        Column("platform", lambda asset: asset.platform_id),
        Column("clearance", lambda asset: asset.clearance_state),
        Column("latest", lambda asset: _or_dash(asset.latest_approved_version_ordinal), is_number=True),
        Column("versions", lambda asset: str(asset.version_count), is_number=True),
        Column("to review", lambda asset: str(asset.to_review or ""), is_number=True),
        Column("age", lambda asset: ago(asset.created_at, state.client.now), drop=2, is_number=True),
        Column("title", lambda asset: one_line(asset.title), drop=1, is_long=True),
        Column("asset", lambda asset: asset.asset_id, drop=3),
    ]
    print_records(state, columns, AssetSummary, page)


def print_asset(state: "State", asset: AssetInfo) -> None:
    state.say_facts(_facts(asset))
    if asset.versions:
        state.say("")
        print_table(state.console, _VERSION_COLUMNS, asset.versions)
    for line in (*_reasons(asset.versions), *_findings(asset.versions), *_external_lines(asset)):
        state.say(line)


def _facts(asset: AssetInfo) -> dict[str, str]:
    """The facts of an asset. A decision is followed by who made it and when."""
    clearance = _decided(asset.clearance_state, asset.cleared_by, asset.cleared_at)
    if asset.made_public_at:
        clearance = _decided(asset.clearance_state, asset.made_public_by, asset.made_public_at)
    latest = asset.latest_approved_version_ordinal
    return {
        "asset": asset.asset_id,
        "dataset": asset.dataset_id,
        "title": one_line(asset.title),
        "platform": f"{asset.platform_id}, {refs_text(asset.platform_refs)}",
        "clearance": clearance,
        "exposure": asset.exposure,
        "latest": "" if latest is None else f"version {latest}",
        "created": _decided(at(asset.created_at) + " UTC", asset.created_by, None),
        "deleted": _decided("yes", asset.deleted_by, asset.deleted_at) if asset.deleted_at else "",
        "etag": asset.etag,
    }


def _decided(verb: str, actor: str | None, time: datetime | None) -> str:
    by = f", by {one_line(actor)}" if actor else ""
    return f"{verb}{by}{f', {at(time)} UTC' if time else ''}"


def refs_text(refs: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in refs.items())


def _or_dash(value: object | None) -> str:
    return "–" if value is None else str(value)


def _review(version: VersionInfo) -> str:
    if version.deleted_at:
        return "deleted"
    if version.unpublished_at:
        return "unpublished"
    return str(version.approval_state)


def _job(version: VersionInfo) -> str:
    return str(version.current_job_id or "")


def _served(version: VersionInfo) -> str:
    return f"revision {version.approved_revision}" if version.is_served else "–"


def _reasons(versions: Sequence[VersionInfo]) -> list[str]:
    """Why versions were rejected, or could not be processed."""
    lines = []
    for version in versions:
        newest = next((each for each in version.revisions if each.revision == version.revision), None)
        if version.approval_state == "rejected" and version.rejection_reason:
            lines.append(f"version {version.version_ordinal} was rejected: {one_line(version.rejection_reason)}")
        if newest and newest.error_message:
            lines.append(f"version {version.version_ordinal} has failed: {one_line(newest.error_message)}")
        if newest and newest.is_partial:
            lines.append(f"version {version.version_ordinal} is incomplete: see `dagmaster jobs show {newest.job_id}`")
    return lines


def _findings(versions: Sequence[VersionInfo]) -> list[str]:
    """The findings of the newest revision of each version. Findings of severity `info` are only in the JSON."""
    return [
        _finding_text(version, finding)
        for version in versions
        for revision in version.revisions
        if revision.revision == version.revision
        for finding in revision.findings
        if finding.severity != "info" and finding.message not in (revision.error_message or "")
    ]


def _finding_text(version: VersionInfo, finding: FindingInfo) -> str:
    kind = "error" if finding.severity == "error" else "warning"
    hint = f" ({one_line(finding.hint)})" if finding.hint else ""
    return f"version {version.version_ordinal}, {kind} {finding.code}: {one_line(finding.message)}{hint}"


def _external_lines(asset: AssetInfo) -> list[str]:
    """The state of the copies in the external zone, for each revision that has or needs them."""
    lines = []
    for version in asset.versions:
        for revision in version.revisions:
            copies = revision.external
            if copies.state not in ("none", "withdrawn"):
                name = f"external copies of version {version.version_ordinal}, revision {revision.revision}"
                facts = [copies.error and one_line(copies.error), copies.url or copies.stac_url]
                facts += [f"job {copies.job_id}" if copies.job_id and copies.state != "exported" else None]
                details = "; ".join(fact for fact in facts if fact)
                lines.append(f"{name}: {copies.state}{f', {details}' if details else ''}")
                if copies.state == "failed":
                    command = f"dagmaster assets export {asset.dataset_id} {version.version_ordinal}"
                    lines.append(f"  repeat the export with: {command}")
    return lines


_VERSION_COLUMNS: list[Column[VersionInfo]] = [
    Column("version", lambda version: str(version.version_ordinal), is_number=True),
    Column("label", lambda version: one_line(version.version_label)),
    Column("revision", lambda version: str(version.revision), is_number=True),
    Column("processing", lambda version: version.processing_state, is_state=True),
    Column("review", _review, is_state=True),
    Column("served", _served),
    Column("reviewer", lambda version: one_line(version.reviewer), drop=1),
    Column("job", _job, drop=2),
]


_EVENT_COLUMNS: list[Column[Any]] = [
    Column("event", lambda event: str(event.event_id), drop=3, is_number=True),
    Column("when (UTC)", lambda event: at(event.created_at)),
    Column("what", lambda event: _action(event.action)),
]
_ACTOR_COLUMNS: list[Column[Any]] = [
    Column("who", lambda event: one_line(event.actor)),
    Column("why", lambda event: one_line(event.reason), is_long=True, is_below=True),
]


def print_history(state: "State", page: "Sequence[Json]") -> None:
    columns: list[Column[AssetHistoryEntry]] = [
        *_EVENT_COLUMNS,
        Column("version", lambda event: _or_dash(event.version_ordinal), is_number=True),
        Column("revision", lambda event: _or_dash(event.revision), drop=2, is_number=True),
        *_ACTOR_COLUMNS,
    ]
    print_records(state, columns, AssetHistoryEntry, page)


def _action(action: str) -> str:
    """The action in words. Names of direct commands, which have a dot, stay as they are."""
    return action if "." in action else action.replace("_", " ")


def print_audit(state: "State", page: "Sequence[Json]") -> None:
    subject: Column[AuditEntry] = Column("subject", lambda event: one_line(_subject(event)))
    print_records(state, [*_EVENT_COLUMNS, subject, *_ACTOR_COLUMNS], AuditEntry, page)


def _subject(event: AuditEntry) -> str:
    """The asset, else the name of the key, else the platform."""
    name = event.detail.get("name") if event.action.startswith("key_") else None
    return str(event.dataset_id or name or event.platform_id or "")


def print_platforms(state: "State", platforms: "Sequence[Json]") -> None:
    columns: list[Column[PlatformInfo]] = [
        Column("platform", lambda platform: platform.platform_id),
        Column("state", lambda platform: "active" if platform.is_active else "inactive", is_state=True),
        Column("required references", lambda platform: ", ".join(platform.required_refs)),
        Column("optional", lambda platform: ", ".join(platform.optional_refs), drop=2),
        Column("version", lambda platform: platform.version_ref or "", drop=1),
        Column("name", lambda platform: one_line(platform.display_name), drop=3, is_long=True),
    ]
    print_records(state, columns, PlatformInfo, platforms)


def print_platform(state: "State", response: "Json") -> None:
    platform = read(PlatformInfo, response)
    facts = {
        "platform": f"{platform.platform_id}{'' if platform.is_active else ' (inactive)'}",
        "name": one_line(platform.display_name),
        "required": ", ".join(platform.required_refs),
        "optional": ", ".join(platform.optional_refs),
        "identity": ", ".join(name for name in platform.required_refs if name != platform.version_ref),
        "version": platform.version_ref or "the label that is submitted",
        "approval": f"by {'its own keys and reviewers' if platform.b2b_may_approve else 'reviewers'}",
    }
    state.say_facts(facts)
