"""The methods of the Python client about assets: submit data, review it, decide who sees it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from dagmaster.client.blocking import Blocking, C, blocking, iterating
from dagmaster.client.models.asset_pages import (
    AssetRequestInfo,
    ListedAsset,
    PendingReview,
    Provenance,
    VersionComparison,
)
from dagmaster.client.models.assets import (
    AssetHistoryEntry,
    AssetInfo,
    AssetSubmissionResult,
    AuditEntry,
    PlatformInfo,
    SignedLink,
    SubmissionStatus,
)
from dagmaster.client.models.base import parse
from dagmaster.client.paging import PagedClient
from dagmaster.client.request_parts import without_none


class AsyncAssets(PagedClient):
    """`asset_id` may also be the id of the dataset. Every change returns the changed asset. A change with the `etag` of
    an asset is refused if the asset has changed since."""

    async def submit_asset(
        self,
        platform_id: str,
        platform_refs: Mapping[str, str],
        *,
        blob: str | None = None,
        blobs: Sequence[str] | None = None,
        container: str | None = None,
        version_label: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        workflow_id: str | None = None,
        request_id: str | None = None,
        callback_url: str | None = None,
        subscriber: Mapping[str, str] | None = None,
        priority: int = 0,
        force: bool = False,
        dry_run: bool = False,
    ) -> AssetSubmissionResult:
        """Submit an object of the bronze zone (`blob`), or several that become one collection (`blobs`).

        The same request id always returns the same result. For the same data and parameters under the same version
        label the outcome is `already_processing` or `already_completed`, unless `force` is set.
        """
        source = {"container": container, "blob": blob, "blobs": list(blobs) if blobs else None}
        submission = {
            "platform_id": platform_id,
            "platform_refs": dict(platform_refs),
            "version_label": version_label,
            "source": without_none(source),
            "workflow_id": workflow_id,
            "parameters": dict(parameters or {}),
            "request_id": request_id,
            "callback_url": callback_url,
            "subscriber": dict(subscriber) if subscriber else None,
            "priority": priority,
            "force": force,
            "dry_run": dry_run,
        }
        return parse(AssetSubmissionResult, await self.json.submit_asset(without_none(submission)))

    async def submission(self, request_id: str) -> SubmissionStatus:
        """The status of a submission."""
        return parse(SubmissionStatus, await self.json.submission(request_id))

    async def assets(
        self,
        *,
        platform_id: str | None = None,
        clearance: str | None = None,
        to_review: bool = False,
        refs: Mapping[str, str] | None = None,
        text: str | None = None,
        deleted: bool = False,
        state: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ListedAsset]:
        """Assets, newest first. More pages are requested as they are needed."""
        filters: dict[str, Any] = {
            "platform_id": platform_id,
            "clearance": clearance,
            "to_review": to_review or None,
            "q": text,
            "state": state,
            "deleted": deleted or None,
            **{f"ref.{name}": value for name, value in (refs or {}).items()},
        }
        async for asset in self._all(ListedAsset, "/assets", limit, **filters):
            yield asset

    async def reviews(
        self, *, platform_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[PendingReview]:
        """Versions that wait for a review, the one that has waited longest first."""
        async for review in self._all(PendingReview, "/reviews", limit, platform_id=platform_id):
            yield review

    async def compare_versions(self, asset_id: str, before: int, after: int) -> VersionComparison:
        """Two versions of an asset, and the differences in extent, CRS, size, bands and statistics."""
        return parse(VersionComparison, await self.json.compare_versions(asset_id, before, after))

    async def provenance(self, asset_id: str, version: int) -> Provenance:
        """The source of a version, and the workflow and the job that produced it."""
        return parse(Provenance, await self.json.provenance(asset_id, version))

    async def asset_requests(
        self, asset_id: str, *, version: int | None = None, limit: int | None = None
    ) -> AsyncIterator[AssetRequestInfo]:
        """The requests of the platform for an asset, with their callbacks, newest first."""
        asset = await self.asset(asset_id)
        path = f"/assets/{asset.asset_id}/requests"
        async for request in self._all(AssetRequestInfo, path, limit, version=version):
            yield request

    async def asset(self, asset_id: str) -> AssetInfo:
        """An asset with its versions and their revisions."""
        return parse(AssetInfo, await self.json.asset(asset_id))

    async def asset_history(
        self, asset_id: str, *, version: int | None = None, limit: int | None = None
    ) -> AsyncIterator[AssetHistoryEntry]:
        """Who did what to an asset, and why, newest first."""
        asset = await self.asset(asset_id)
        path = f"/assets/{asset.asset_id}/history"
        async for entry in self._all(AssetHistoryEntry, path, limit, version=version):
            yield entry

    async def approve(
        self,
        asset_id: str,
        version: int,
        *,
        clearance: Literal["ouo", "public"] | None = None,
        revision: int | None = None,
        reason: str | None = None,
        etag: str | None = None,
    ) -> AssetInfo:
        """Publish the newest revision of a version. The first approval of an asset requires a clearance."""
        request = {"clearance_level": clearance, "revision": revision, "reason": reason}
        return parse(AssetInfo, await self.json.change_asset(asset_id, "approve", request, version=version, etag=etag))

    async def reject(
        self, asset_id: str, version: int, reason: str, *, revision: int | None = None, etag: str | None = None
    ) -> AssetInfo:
        """Reject the newest revision of a version. An older approved revision is still served."""
        request = {"reason": reason, "revision": revision}
        return parse(AssetInfo, await self.json.change_asset(asset_id, "reject", request, version=version, etag=etag))

    async def clear(
        self,
        asset_id: str,
        clearance: Literal["uncleared", "ouo", "public"],
        *,
        reason: str | None = None,
        etag: str | None = None,
    ) -> AssetInfo:
        """Decide who may see approved versions."""
        request = {"clearance_level": clearance, "reason": reason}
        return parse(AssetInfo, await self.json.change_asset(asset_id, "clear", request, etag=etag))

    async def expose(
        self,
        asset_id: str,
        exposure: Literal["latest-only", "all-versions"],
        *,
        reason: str | None = None,
        etag: str | None = None,
    ) -> AssetInfo:
        """Serve only the latest approved version, or each approved version under its number."""
        request = {"exposure": exposure, "reason": reason}
        return parse(AssetInfo, await self.json.change_asset(asset_id, "expose", request, etag=etag))

    async def unpublish(
        self, asset_id: str, version: int | None = None, *, reason: str | None = None, etag: str | None = None
    ) -> AssetInfo:
        """Stop serving a version; without `version`, the whole asset. The data is kept; `approve` publishes it
        again."""
        request = {"reason": reason}
        return parse(
            AssetInfo, await self.json.change_asset(asset_id, "unpublish", request, version=version, etag=etag)
        )

    async def export(
        self, asset_id: str, version: int, *, reason: str | None = None, etag: str | None = None
    ) -> AssetInfo:
        """Copy an approved, public version to the external zone again. `revisions[].external` has the state."""
        request = {"reason": reason}
        return parse(AssetInfo, await self.json.change_asset(asset_id, "export", request, version=version, etag=etag))

    async def delete_asset(
        self, asset_id: str, version: int | None = None, *, reason: str | None = None, etag: str | None = None
    ) -> AssetInfo:
        """Delete a version; without `version`, the whole asset. Its data is removed after PURGE_DAYS; 0 keeps it."""
        return parse(AssetInfo, await self.json.delete_asset(asset_id, version=version, reason=reason, etag=etag))

    async def link(
        self, asset_id: str, version: int, *, revision: int | None = None, expires_in_hours: float = 24.0
    ) -> SignedLink:
        """A link to one version that works without a key until it expires; with `revision`, to a preview."""
        request = {"revision": revision, "expires_in_hours": expires_in_hours}
        return parse(SignedLink, await self.json.link(asset_id, version, request))

    async def platforms(self) -> list[PlatformInfo]:
        """The platforms that submit data, and the references that they need."""
        return [parse(PlatformInfo, platform) for platform in await self.json.platforms()]

    async def platform(self, platform_id: str) -> PlatformInfo:
        return parse(PlatformInfo, await self.json.platform(platform_id))

    async def add_platform(
        self,
        platform_id: str,
        display_name: str,
        required_refs: Sequence[str],
        *,
        optional_refs: Sequence[str] = (),
        version_ref: str | None = None,
        b2b_may_approve: bool = False,
    ) -> PlatformInfo:
        """Add a platform: an external system that submits data. `version_ref` is the reference that names the version.
        With `b2b_may_approve`, its keys may approve, reject and unpublish versions of its own assets."""
        request = {
            "platform_id": platform_id,
            "display_name": display_name,
            "required_refs": list(required_refs),
            "optional_refs": list(optional_refs),
            "version_ref": version_ref,
            "b2b_may_approve": b2b_may_approve,
        }
        return parse(PlatformInfo, await self.json.add_platform(without_none(request)))

    async def change_platform(
        self,
        platform_id: str,
        *,
        display_name: str | None = None,
        is_active: bool | None = None,
        b2b_may_approve: bool | None = None,
        reason: str | None = None,
        etag: str | None = None,
    ) -> PlatformInfo:
        """Change the name of a platform, allow or forbid its submissions, or let its keys approve. Fields that
        are not given stay unchanged."""
        changes = {
            "display_name": display_name,
            "is_active": is_active,
            "b2b_may_approve": b2b_may_approve,
            "reason": reason,
        }
        return parse(PlatformInfo, await self.json.change_platform(platform_id, without_none(changes), etag=etag))

    async def audit(
        self,
        *,
        platform_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """The audit log, newest first: changes of assets, platforms and keys, direct commands, and changes of many
        jobs. Only for administrators."""
        filters = {"platform_id": platform_id, "actor": actor, "action": action}
        async for entry in self._all(AuditEntry, "/audit", limit, **filters):
            yield entry


class Assets(Blocking[C]):
    submit_asset = blocking(AsyncAssets.submit_asset)
    submission = blocking(AsyncAssets.submission)
    assets = iterating(AsyncAssets.assets)
    asset = blocking(AsyncAssets.asset)
    asset_history = iterating(AsyncAssets.asset_history)
    reviews = iterating(AsyncAssets.reviews)
    compare_versions = blocking(AsyncAssets.compare_versions)
    provenance = blocking(AsyncAssets.provenance)
    asset_requests = iterating(AsyncAssets.asset_requests)
    approve = blocking(AsyncAssets.approve)
    reject = blocking(AsyncAssets.reject)
    clear = blocking(AsyncAssets.clear)
    expose = blocking(AsyncAssets.expose)
    unpublish = blocking(AsyncAssets.unpublish)
    export = blocking(AsyncAssets.export)
    delete_asset = blocking(AsyncAssets.delete_asset)
    link = blocking(AsyncAssets.link)
    platforms = blocking(AsyncAssets.platforms)
    platform = blocking(AsyncAssets.platform)
    add_platform = blocking(AsyncAssets.add_platform)
    change_platform = blocking(AsyncAssets.change_platform)
    audit = iterating(AsyncAssets.audit)
