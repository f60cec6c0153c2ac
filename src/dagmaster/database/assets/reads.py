"""Assets as the API shows them: lists by page, one asset with its versions and revisions, its history, platforms, and
the status of a submission."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from psycopg.types.json import Jsonb

from dagmaster.assets.request_ids import ambiguous, possible_ids
from dagmaster.assets.states import Clearance
from dagmaster.client.models.asset_pages import AssetRequestInfo, ListedAsset, PendingReview, Provenance
from dagmaster.client.models.assets import (
    AssetHistoryEntry,
    AssetInfo,
    AuditEntry,
    PlatformInfo,
    RevisionInfo,
    SubmissionStatus,
    VersionInfo,
)
from dagmaster.database.assets import external_copies
from dagmaster.database.connect import Connection, ConnectionPool, pool, translate_errors
from dagmaster.database.notify.notifier import Notifier, WithNotifier
from dagmaster.database.reads.session import ModelReads, models
from dagmaster.database.session import dicts
from dagmaster.errors import NotFound

POOL_SIZE = 6
# Filters are optional: one plan for all combinations of filters would use none of the indexes.
PLANNING = {"plan_cache_mode": "force_custom_plan"}


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a revision: its collection, one of its items, and the number and size of all."""

    collection: dict[str, Any] | None
    item: dict[str, Any] | None
    item_count: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class VisibleAssets:
    """The assets that a caller sees in lists: those of its own platform, and published ones with one of these
    clearances."""

    own_platform: str | None
    clearances: frozenset[Clearance]


class AssetReads(ModelReads, WithNotifier):
    """Reads on the given pool. If an address is given instead, the pool for it is opened when it is first used, and
    closed by `close`."""

    def __init__(
        self,
        database: str | ConnectionPool,
        *,
        notifier: Notifier | None = None,
        role: str = "assets",
        size: int = POOL_SIZE,
    ) -> None:
        self._notifier = notifier
        self._owns_pool = isinstance(database, str)
        self._pool = pool(database, role, 0, size, settings=PLANNING) if isinstance(database, str) else database

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()

    async def assets(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        platform_id: str | None = None,
        clearance: Clearance | str | None = None,
        to_review: bool | None = None,
        text: str | None = None,
        refs: Mapping[str, str] | None = None,
        is_deleted: bool | None = False,
        states: Sequence[str] | None = None,
        visible: VisibleAssets | None = None,
    ) -> list[ListedAsset]:
        """Newest first; without `visible`, all assets. `after` is (created_at, asset_id) of the last one of the
        previous page. `text` is searched in ids, titles and references; `refs` must all be among the references that
        identify the asset."""
        after_at, after_id = after or (None, None)
        values = {
            "limit": limit,
            "after_at": after_at,
            "after_id": after_id,
            "platform_id": platform_id,
            "clearance": clearance,
            "to_review": to_review,
            "pattern": f"%{_escaped(text)}%" if text else None,
            "refs": Jsonb(dict(refs)) if refs else None,
            "is_deleted": is_deleted,
            "states": list(states) if states else None,
            "own_platform": visible.own_platform if visible else None,
            "clearances": sorted(visible.clearances) if visible else None,
        }
        return models(ListedAsset, [_with_bbox(row) for row in await self._dicts("assets_page", values)])

    async def review_queue(
        self, *, limit: int, after: tuple[datetime, str, int] | None = None, platform_id: str | None = None
    ) -> list[PendingReview]:
        """The version that has waited longest first. `after` is (waiting_since, asset_id, version_ordinal) of the last
        one of the previous page."""
        after_at, after_asset, after_ordinal = after or (None, None, None)
        values = {
            "limit": limit,
            "after_at": after_at,
            "after_asset": after_asset,
            "after_ordinal": after_ordinal,
            "platform_id": platform_id,
        }
        return models(PendingReview, [_with_bbox(row) for row in await self._dicts("review_queue", values)])

    async def review_count(self, limit: int, platform_id: str | None = None) -> int:
        (row,) = await self._dicts("review_count", {"limit": limit, "platform_id": platform_id})
        return int(row["count"])

    async def documents(self, dataset_id: str, ordinal: int, revision: int) -> Documents:
        values = {"dataset_id": dataset_id, "ordinal": ordinal, "revision": revision}
        (row,) = await self._dicts("documents_summary", values)
        objects = {name: row[name] if isinstance(row[name], dict) else None for name in ("collection", "item")}
        return Documents(**objects, item_count=row["item_count"], size_bytes=row["size_bytes"])

    async def origin(self, asset_id: str, ordinal: int, revision: int) -> Provenance:
        """The provenance of a revision, without the `processing:` fields, which are in its documents."""
        values = {"asset_id": asset_id, "ordinal": ordinal, "revision": revision}
        for row in await self._dicts("revision_origin", values):
            return models(Provenance, [{**row, "asset_id": asset_id}])[0]
        raise NotFound(f"the version has no revision {revision}", code="revision.not-found")

    async def requests(
        self,
        asset_id: str,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        version_ordinal: int | None = None,
    ) -> list[AssetRequestInfo]:
        """Newest first. `after` is (created_at, request_id) of the last one of the previous page."""
        after_at, after_id = after or (None, None)
        values = {
            "asset_id": asset_id,
            "ordinal": version_ordinal,
            "limit": limit,
            "after_at": after_at,
            "after_id": after_id,
        }
        return models(AssetRequestInfo, await self._dicts("asset_requests", values))

    async def asset(self, key: str) -> AssetInfo:
        """By asset id or dataset id. `NotFound` if there is none; a deleted asset is returned too."""
        async with self._connected() as connection:
            return await read_asset(connection, key)

    async def history(
        self, asset_id: str, *, limit: int, after: int | None = None, version_ordinal: int | None = None
    ) -> list[AssetHistoryEntry]:
        """Newest first. `after` is the event id of the last one of the previous page."""
        values = {"asset_id": asset_id, "after": after, "limit": limit, "version_ordinal": version_ordinal}
        return models(AssetHistoryEntry, await self._dicts("asset_history", values))

    async def audit(
        self,
        *,
        limit: int,
        after: int | None = None,
        platform_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        """Events of assets, platforms and keys, newest first. `after` is the last id of the previous page."""
        filters = {"platform_id": platform_id, "actor": actor, "action": action}
        return models(AuditEntry, await self._dicts("asset_audit", {"after": after, "limit": limit, **filters}))

    async def platforms(self) -> list[PlatformInfo]:
        return models(PlatformInfo, await self._dicts("asset_platforms", {"platform_id": None}))

    async def platform(self, platform_id: str) -> PlatformInfo:
        for platform in models(PlatformInfo, await self._dicts("asset_platforms", {"platform_id": platform_id})):
            return platform
        raise no_such_platform(platform_id)

    async def submission(self, request_id: str, platform_id: str | None = None) -> SubmissionStatus:
        """The submission with this id, of one platform or of any; Conflict if several platforms use the id."""
        platform_ids = [platform_id] if platform_id else [each.platform_id for each in await self.platforms()]
        values = {"request_ids": possible_ids(request_id, platform_ids)}
        rows = models(SubmissionStatus, await self._dicts("asset_submission", values))
        submissions = [each for each in rows if platform_id in (None, each.platform_id)]
        if len(submissions) > 1:
            raise ambiguous(request_id, (each.platform_id for each in submissions))
        if submissions:
            return submissions[0]
        raise NotFound(f"there is no submission {request_id}", code="submission.not-found")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with translate_errors():
            if self._owns_pool:
                await self._pool.open()
            async with self._pool.connection() as connection:
                yield connection


async def read_asset(connection: Connection, key: str) -> AssetInfo:
    for row in await dicts(connection, "asset_by_key", {"key": key}):
        versions = await dicts(connection, "asset_versions_of", {"asset_id": row["asset_id"]})
        revisions = await dicts(connection, "asset_revisions_of", {"asset_id": row["asset_id"]})
        return _asset_of(row, versions, revisions)
    raise no_such_asset(key)


def _with_bbox(row: dict[str, Any]) -> dict[str, Any]:
    """The bbox of a document may be anything, if it was changed by hand."""
    bbox = row["bbox"]
    is_readable = isinstance(bbox, list) and len(bbox) == 4 and all(isinstance(edge, int | float) for edge in bbox)
    return {**row, "bbox": bbox if is_readable else None}


def no_such_asset(key: str) -> NotFound:
    return NotFound(f"there is no asset '{key}'", code="asset.not-found", hint="see `dagmaster assets ls`")


def no_such_platform(platform_id: str) -> NotFound:
    return NotFound(
        f"there is no platform '{platform_id}'", code="platform.not-found", hint="see `dagmaster platforms ls`"
    )


def _asset_of(row: dict[str, Any], versions: list[dict[str, Any]], revisions: list[dict[str, Any]]) -> AssetInfo:
    by_version: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for revision in revisions:
        by_version[revision.pop("version_ordinal")].append(external_copies.with_external_field(revision))
    shown = [_version_of(row, version, by_version[version["version_ordinal"]]) for version in versions]
    return AssetInfo.model_validate({**row, "versions": shown})


def _version_of(asset: dict[str, Any], version: dict[str, Any], revisions: list[dict[str, Any]]) -> VersionInfo:
    is_withdrawn = any((asset["deleted_at"], version["deleted_at"], version["unpublished_at"]))
    served = None if is_withdrawn or asset["clearance_state"] == "uncleared" else version["approved_revision"]
    is_latest = version["version_ordinal"] == asset["latest_approved_version_ordinal"]
    if asset["exposure"] == "latest-only" and not is_latest:
        served = None
    shown = [RevisionInfo.model_validate({**each, "is_served": each["revision"] == served}) for each in revisions]
    return VersionInfo.model_validate(
        {**version, "is_latest": is_latest, "is_served": served is not None, "revisions": shown}
    )


def _escaped(text: str) -> str:
    """Escape a text, so that LIKE matches it literally."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
