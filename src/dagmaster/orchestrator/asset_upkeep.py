"""The upkeep of assets: purge, notifications of reviewers, retention of the history, expired uploads.

    every JANITOR_INTERVAL_SEC
      ──▶ adopt datasets of earlier releases
      ──▶ mark revisions that were rejected, superseded or deleted more than PURGE_DAYS ago (not if it is 0)
      ──▶ remove the objects of marked revisions, then their documents; recorded in the history
      ──▶ remove the collections of deleted assets that have no revision left
      ──▶ write layers into the external database, or remove them, if that is due
      ──▶ withdraw external copies again that still exist; a task may have outlived its job and written one
      ──▶ call REVIEW_WEBHOOK_URL with the revisions that wait for a review
      ──▶ delete history older than AUDIT_RETENTION_DAYS
      ──▶ remove uploads whose last bytes arrived more than UPLOAD_EXPIRY_HOURS ago, and bytes that belong to no upload

It runs as a task of its own in each orchestrator's process. A marked revision can be neither approved nor run again; if
the process dies, another one continues the purge. A revision that is served is never marked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.maintenance.assets import DueReview, PostgresAssetUpkeep, StoredRevision
from dagmaster.errors import Conflict
from dagmaster.observe import log
from dagmaster.operations.assets.adopt import adopt_datasets
from dagmaster.operations.assets.external import ExternalLayers, external_layers
from dagmaster.orchestrator import webhook
from dagmaster.settings import Settings
from dagmaster.storage import Storage, open_storage
from dagmaster.storage.location import Edition

DAY_SECONDS: Final = 86_400.0
PURGED_AT_ONCE: Final = 20
NOTIFIED_AT_ONCE: Final = 100
EVENTS_AT_ONCE: Final = 1_000
EXPIRED_AT_ONCE: Final = 100
ORPHANED_SECONDS: Final = 3600.0
LAYERS_AT_ONCE: Final = 20
RECHECKED_AT_ONCE: Final = 20
RECHECK_SECONDS: Final = 300.0  # a task that has outlived its job has ended by then
_log = log.get("asset-upkeep")

Post = Callable[..., Awaitable[None]]


@dataclass
class AssetUpkeep:
    settings: Settings
    store: PostgresAssetUpkeep
    storage: Storage
    assets: AdoptedAssets
    external: ExternalLayers | None = None
    post: Post = webhook.post
    random: Random = field(default_factory=Random)
    purged: int = 0
    errors: int = 0

    async def run(self) -> None:
        """Run until cancelled. The first pause is random: instances started together run at different times."""
        pause = self.settings.janitor_interval_sec * self.random.random()
        while True:
            await asyncio.sleep(pause)
            is_done = await self.run_once()
            pause = self.settings.janitor_interval_sec * (1.0 if is_done else 0.02)

    async def close(self) -> None:
        await self.store.close()
        await self.assets.close()
        if self.external is not None:
            await self.external.close()

    async def run_once(self) -> bool:
        """Run all chores. Returns whether nothing is left to do before the next interval, when failures are tried
        again."""
        chores = (
            self.adopt,
            self.purge,
            self.remove_collections,
            self.publish_externally,
            self.recheck_withdrawals,
            self.notify_reviewers,
            self.forget_events,
            self.expire_uploads,
            self.remove_orphaned_bytes,
        )
        return all([await self._safely(chore) for chore in chores])

    async def _safely(self, chore: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await chore()
        except Exception as error:  # a chore that fails does not stop the others
            self.errors += 1
            log.failure(_log, "the upkeep of assets failed; it is tried again later", error, chore=chore.__name__)
            return True

    async def adopt(self) -> bool:
        """Adopt datasets of earlier releases, whose jobs may end long after the migration."""
        if adopted := await adopt_datasets(self.assets):
            _log.info("datasets of an earlier release are assets now", datasets=adopted)
        return True

    async def purge(self) -> bool:
        """Purge a bounded number of revisions. Returns whether none is left."""
        if self.settings.purge_days:
            await self.store.begin_purge(self.settings.purge_days * DAY_SECONDS, PURGED_AT_ONCE)
        revisions = await self.store.pending_purges(PURGED_AT_ONCE)
        for revision in revisions:
            objects = await asyncio.to_thread(self._remove, revision)
            if await self.store.end_purge(revision, objects):
                self.purged += 1
                _log.info("a revision is purged", **asdict(revision), objects=objects)
        return len(revisions) < PURGED_AT_ONCE

    async def remove_collections(self) -> bool:
        """Remove the collections of assets that have no data any more. Returns whether none is left."""
        dataset_ids = await self.store.collections_left(PURGED_AT_ONCE)
        for dataset_id in dataset_ids:
            if await self.store.remove_collection(dataset_id):
                _log.info("the collection of a deleted asset is removed", dataset_id=dataset_id)
        return len(dataset_ids) < PURGED_AT_ONCE

    async def recheck_withdrawals(self) -> bool:
        """Make withdrawals due again if external copies still exist. Each run checks a random part of the withdrawals
        of the last day."""
        for revision in await self.store.withdrawn(RECHECK_SECONDS, RECHECKED_AT_ONCE):
            if await asyncio.to_thread(self._has_external, revision) and await self.store.withdraw_again(revision):
                _log.warning("external copies still exist after their withdrawal; removing them", **asdict(revision))
        return True

    def _has_external(self, revision: StoredRevision) -> bool:
        return next(iter(self.storage.external_objects(_edition_of(revision))), None) is not None

    def _remove(self, revision: StoredRevision) -> int:
        return self.storage.clear_edition(_edition_of(revision))

    async def publish_externally(self) -> bool:
        """Write due changes of published layers to the external database. A failure is recorded and tried again."""
        if self.external is None:
            return True
        return await self.external.carry_out_all(LAYERS_AT_ONCE) < LAYERS_AT_ONCE

    async def notify_reviewers(self) -> bool:
        """Call the webhook of reviewers with the revisions that wait for a review, at least once for each."""
        url = self.settings.review_webhook_url
        if not url:
            return True
        async with self.store.notifying() as has_lock:
            if not has_lock:
                return True
            due = await self.store.due_reviews(NOTIFIED_AT_ONCE)
            waiting = [_described(review) for review in due if review.is_waiting]
            if waiting:
                content = {"event": "review.requested", "versions": waiting}
                await self.post(url, content, allow_private=self.settings.allow_private_webhooks)
            if due:
                await self.store.reviews_notified(due)
            return len(due) < NOTIFIED_AT_ONCE

    async def forget_events(self) -> bool:
        age = self.settings.audit_retention_days * DAY_SECONDS
        return not age or await self.store.forget_events(age, EVENTS_AT_ONCE) < EVENTS_AT_ONCE

    async def expire_uploads(self) -> bool:
        """Remove a bounded number of expired uploads. Returns whether none is left. An upload that is receiving bytes
        is skipped."""
        expired = await self.store.expired_uploads(EXPIRED_AT_ONCE)
        removed = [await self._expire(upload_id) for upload_id in expired]
        if any(removed):
            _log.info("unfinished uploads have expired", uploads=sum(removed))
        return len(expired) < EXPIRED_AT_ONCE or not any(removed)

    async def _expire(self, upload_id: UUID) -> bool:
        try:
            writer = await asyncio.to_thread(self.storage.uploads.open, upload_id)
        except Conflict:
            return False
        try:
            is_removed = await self.store.remove_expired(upload_id)
            if is_removed:
                await asyncio.to_thread(writer.remove)
            return is_removed
        finally:
            writer.close()

    async def remove_orphaned_bytes(self) -> bool:
        """Remove bytes that belong to no upload, left by a killed process. Bytes of a new upload are kept, because it
        may not have a row yet."""
        before = datetime.now(UTC) - timedelta(seconds=ORPHANED_SECONDS)
        parts = await asyncio.to_thread(lambda: list(self.storage.uploads.all()))
        old = [part.upload_id for part in parts if part.modified_at < before]
        orphaned = set(old) - await self.store.open_uploads(old) if old else set()
        for upload_id in orphaned:
            with suppress(Conflict):
                writer = await asyncio.to_thread(self.storage.uploads.open, upload_id)
                try:
                    await asyncio.to_thread(writer.remove)
                finally:
                    writer.close()
        return True


def upkeep_of(settings: Settings, dsn: str) -> AssetUpkeep:
    assets = AdoptedAssets(dsn, role="adoption", size=1)
    external = external_layers(settings, dsn)
    return AssetUpkeep(settings, PostgresAssetUpkeep(dsn), open_storage(settings), assets, external)


def _edition_of(revision: StoredRevision) -> Edition:
    return Edition(revision.dataset_id, revision.version_ordinal, revision.revision)


def _described(review: DueReview) -> dict[str, Any]:
    fields = asdict(review)
    del fields["is_waiting"]
    return {**fields, "processed_at": review.processed_at and review.processed_at.isoformat()}
