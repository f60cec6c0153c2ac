"""Changes of assets: lock, load, apply a rule, write the difference, record it, bring the catalogue in line; all in one
transaction."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dagmaster.assets.rules import ActionResult
from dagmaster.assets.states import VersionRevision
from dagmaster.client.models.assets import AssetHistoryEntry, AssetInfo, PlatformInfo
from dagmaster.database.assets import layers, publications, rows
from dagmaster.database.assets.publications import AssetPublication, LinkKey
from dagmaster.database.assets.reads import no_such_asset, no_such_platform, read_asset
from dagmaster.database.assets.rows import Decision, LoadedAsset
from dagmaster.database.assets.submissions import AssetSubmissions
from dagmaster.database.catalog.publish import CollectionWriter
from dagmaster.database.connect import Connection
from dagmaster.database.notify.notifier import CALLBACKS, RESULTS
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, InvalidRequest

SHOWN_EVENTS = 50  # shown to a caller whose ETag is outdated

AssetRule = Callable[[LoadedAsset], ActionResult]
Admit = Callable[[LoadedAsset], None]
PublishChange = Callable[[Connection, str, Sequence[VersionRevision], Sequence[VersionRevision]], Awaitable[None]]


class AssetStore(AssetSubmissions):
    """Reads and changes of assets: `async with AssetStore(dsn) as store`, or `AssetStore(pool)`."""

    async def change(
        self,
        key: str,
        rule: AssetRule,
        decision: Decision,
        *,
        publish: PublishChange,
        admit: Admit = lambda _asset: None,
        versions: Sequence[int] | None = None,
        if_match: str | None = None,
    ) -> AssetInfo:
        """Apply a rule to an asset. `admit` is called first, and raises if the caller may not do this. `versions` are
        those that the rule may change (None: all). `publish` is called with the connection, the dataset id, and
        the editions in the catalogue before and after the change, if they differ. `if_match` is the ETag that the
        caller has seen."""

        async def act(connection: Connection) -> AssetInfo:
            asset = await self._lock(connection, key, versions)
            admit(asset)
            await _require_unchanged(connection, asset.asset_id, if_match)
            change = rule(asset)
            await rows.write_change(connection, asset, change, decision)
            before, after = asset.state.published, change.state.published
            if before != after or asset.state.clearance != change.state.clearance:
                await layers.follow_asset(connection, asset.asset_id)
            if before != after:
                await publish(connection, asset.dataset_id, before, after)
            return await read_asset(connection, asset.asset_id)

        changed = await self._transaction("change_asset", act)
        self._notify(CALLBACKS)
        return changed

    async def export_again(
        self,
        key: str,
        ordinal: int,
        rule: Callable[[LoadedAsset], VersionRevision],
        decision: Decision,
        if_match: str | None,
    ) -> AssetInfo:
        """Make the external copies of a revision due again; an orchestrator starts the job."""

        async def act(connection: Connection) -> AssetInfo:
            asset = await self._lock(connection, key, [ordinal])
            await _require_unchanged(connection, asset.asset_id, if_match)
            edition_ordinal, revision = rule(asset)
            values = {"asset_id": asset.asset_id, "ordinal": edition_ordinal, "revision": revision}
            if not await dicts(connection, "copies_repeat", values):
                raise Conflict(
                    f"a job makes or removes the external copies of version {edition_ordinal}, revision {revision}",
                    code="export.running",
                    hint="wait until the job has ended; `dagmaster assets show` has its id",
                )
            await rows.add_event(connection, decision, asset_id=asset.asset_id, revision=revision)
            return await read_asset(connection, asset.asset_id)

        changed = await self._transaction("change_asset", act)
        self._notify(CALLBACKS)
        return changed

    async def state(self, key: str) -> LoadedAsset | None:
        """The state of an asset as it is now, without a lock."""
        async with self._connected() as connection:
            for row in await dicts(connection, "asset_find", {"key": key}):
                return await rows.load(connection, row)
        return None

    async def publication(
        self, key: str, ordinal: int | None = None, revision: int | None = None
    ) -> AssetPublication | None:
        """The facts that decide who may read a version; without an ordinal, the latest one."""
        async with self._connected() as connection:
            return await publications.read_publication(partial(dicts, connection), key, ordinal, revision)

    async def signing_key(self) -> LinkKey:
        """The key of new signed links. The first use creates it."""
        async with self._connected() as connection:
            return await publications.ensure_signing_key(connection)

    async def prepare(self, writer: CollectionWriter, editions: Sequence[VersionRevision]) -> None:
        """Create the collection and partitions for these editions in the catalogue before they are published."""
        await self._transaction("prepare_catalogue", partial(writer.prepare, editions=editions))

    async def cancel_unneeded(self, asset_id: str, *, by: str, reason: str) -> list[UUID]:
        """Request the cancellation of jobs whose revision was superseded or deleted, each in a transaction of its own:
        no job is locked together with an asset. If this process dies before that, the job runs to its end, and
        changes nothing that is served."""
        jobs = [row["job_id"] for row in await self._dicts("asset_jobs_in_progress", {"asset_id": asset_id})]
        for job_id in jobs:
            await self._dicts("request_cancel", {"job_id": job_id, "by": by[:64], "reason": reason})
        if jobs:
            self._notify(RESULTS)
        return jobs

    async def record(self, decision: Decision) -> None:
        """Write an action of a caller that changes no asset, platform or key to the audit log."""

        async def act(connection: Connection) -> None:
            await rows.add_event(connection, decision)

        await self._transaction("record_command", act)

    async def add_platform(self, values: dict[str, Any], decision: Decision) -> PlatformInfo:
        async def act(connection: Connection) -> PlatformInfo:
            added = models(PlatformInfo, await dicts(connection, "asset_platform_add", values))
            if not added:
                raise Conflict(f"the platform '{values['platform_id']}' exists already", code="platform.exists")
            await rows.add_event(connection, decision, platform_id=values["platform_id"])
            return added[0]

        return await self._transaction("change_platform", act)

    async def set_platform(
        self, values: dict[str, Any], decision: Decision, *, if_match: str | None = None
    ) -> PlatformInfo:
        """`if_match` is the ETag that the caller has seen."""
        seen = seen_number(if_match, "platform")

        async def act(connection: Connection) -> PlatformInfo:
            changed = models(PlatformInfo, await dicts(connection, "asset_platform_set", {**values, "seen": seen}))
            if not changed:
                existing = await dicts(connection, "asset_platforms", {"platform_id": values["platform_id"]})
                if existing:
                    raise _platform_changed(models(PlatformInfo, existing)[0])
                raise no_such_platform(values["platform_id"])
            await rows.add_event(connection, decision, platform_id=values["platform_id"])
            return changed[0]

        return await self._transaction("change_platform", act)

    async def _lock(self, connection: Connection, key: str, versions: Sequence[int] | None) -> LoadedAsset:
        for row in await dicts(connection, "asset_lock", {"key": key}):
            await rows.lock_versions(connection, row["asset_id"], versions)
            return await rows.load(connection, row)
        raise no_such_asset(key)


def seen_number(if_match: str | None, noun: str) -> int | None:
    """The number in an ETag; None if the header is missing or `*`."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise InvalidRequest(
            f"If-Match is not an ETag of this {noun}", code="etag.invalid", hint="send the ETag of a response unchanged"
        )
    return int(text)


def _platform_changed(platform: PlatformInfo) -> Conflict:
    return Conflict(
        "the platform has changed since the ETag in If-Match was read",
        code="platform.changed",
        hint="read it again, and repeat the request with its new ETag",
        etag=platform.etag,
        platform=platform.model_dump(mode="json"),
    )


async def _require_unchanged(connection: Connection, asset_id: str, if_match: str | None) -> None:
    seen = seen_number(if_match, "asset")
    if seen is None:
        return
    (newest,) = await dicts(connection, "asset_newest_event", {"asset_id": asset_id})
    if newest["event_id"] == seen:
        return
    values = {"asset_id": asset_id, "since": seen, "limit": SHOWN_EVENTS}
    since = models(AssetHistoryEntry, await dicts(connection, "asset_events_since", values))
    raise Conflict(
        "the asset has changed since the ETag in If-Match was read",
        code="asset.changed",
        hint="read it again, and repeat the request with its new ETag",
        etag=str(newest["event_id"]),
        events=[event.model_dump(mode="json") for event in since],
    )
