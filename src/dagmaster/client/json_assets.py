"""The requests about assets and platforms, with responses as JSON. `json_client` has all other requests."""

from collections.abc import Mapping
from typing import Any

from dagmaster.client.blocking import Blocking, C, blocking
from dagmaster.client.connection import ApiConnection
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.base import Json
from dagmaster.client.request_parts import if_match, segment, without_none


class AsyncAssetRequests:
    """`name` is the id of an asset or of its dataset. A change with an `etag` is refused if the ETag of the asset
    is a different one now."""

    connection: ApiConnection

    async def submit_asset(self, submission: Json) -> Json:
        """Submit data of a platform. With a request id the request may be repeated: the response is the same."""
        is_repeatable = bool(submission.get("request_id") or submission.get("dry_run"))
        return await self.connection.object("POST", "/submit", body=submission, is_repeatable=is_repeatable)

    async def submission(self, request_id: str) -> Json:
        return await self.connection.object("GET", f"/status/{segment(request_id)}")

    async def assets(self, /, limit: int, after: str | None = None, **filters: Any) -> tuple[list[Json], str | None]:
        return await self.connection.page("/assets", limit, after, **filters)

    async def asset(self, name: str) -> Json:
        """An asset with its versions and their revisions."""
        return await self.connection.object("GET", _path(name))

    async def compare_versions(self, name: str, before: int, after: int) -> Json:
        return await self.connection.object("GET", f"{_path(name)}/compare", params={"from": before, "to": after})

    async def provenance(self, name: str, version: int) -> Json:
        return await self.connection.object("GET", f"{_path(name)}/versions/{version}/provenance")

    async def asset_history(
        self, name: str, limit: int, after: str | None = None, *, version: int | None = None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page(f"{_path(name)}/history", limit, after, version=version)

    async def change_asset(
        self, name: str, action: str, request: Mapping[str, Any], *, version: int | None = None, etag: str | None = None
    ) -> Json:
        """Approve, reject, unpublish or export a version; clear, expose or unpublish an asset."""
        path = f"{_path(name, version)}/{action}"
        return await self.connection.object("POST", path, body=without_none(request), headers=if_match(etag))

    async def delete_asset(
        self, name: str, *, version: int | None = None, reason: str | None = None, etag: str | None = None
    ) -> Json:
        """Delete a version, or the whole asset."""
        return await self.connection.object(
            "DELETE", _path(name, version), params={"reason": reason}, headers=if_match(etag)
        )

    async def link(self, name: str, version: int, request: Mapping[str, Any]) -> Json:
        """A signed link to a version."""
        return await self.connection.object("POST", f"{_path(name, version)}/links", body=without_none(request))

    async def platforms(self) -> list[Json]:
        """The platforms that submit data."""
        platforms: list[Json] = []
        after: str | None = None
        while True:
            page, after = await self.connection.page("/platforms", MAX_ITEMS, after)
            platforms += page
            if after is None:
                return platforms

    async def platform(self, platform_id: str) -> Json:
        return await self.connection.object("GET", f"/platforms/{segment(platform_id)}")

    async def add_platform(self, request: Json) -> Json:
        return await self.connection.object("POST", "/platforms", body=request)

    async def change_platform(self, platform_id: str, changes: Json, *, etag: str | None = None) -> Json:
        """Fields that are not given stay unchanged."""
        path = f"/platforms/{segment(platform_id)}"
        return await self.connection.object("PATCH", path, body=changes, headers=if_match(etag))

    async def audit(self, /, limit: int, after: str | None = None, **filters: Any) -> tuple[list[Json], str | None]:
        """The audit log, newest first."""
        return await self.connection.page("/audit", limit, after, **filters)


class AssetRequests(Blocking[C]):
    submit_asset = blocking(AsyncAssetRequests.submit_asset)
    submission = blocking(AsyncAssetRequests.submission)
    assets = blocking(AsyncAssetRequests.assets)
    asset = blocking(AsyncAssetRequests.asset)
    compare_versions = blocking(AsyncAssetRequests.compare_versions)
    provenance = blocking(AsyncAssetRequests.provenance)
    asset_history = blocking(AsyncAssetRequests.asset_history)
    change_asset = blocking(AsyncAssetRequests.change_asset)
    delete_asset = blocking(AsyncAssetRequests.delete_asset)
    link = blocking(AsyncAssetRequests.link)
    platforms = blocking(AsyncAssetRequests.platforms)
    platform = blocking(AsyncAssetRequests.platform)
    add_platform = blocking(AsyncAssetRequests.add_platform)
    change_platform = blocking(AsyncAssetRequests.change_platform)
    audit = blocking(AsyncAssetRequests.audit)


def _path(name: str, version: int | None = None) -> str:
    path = f"/assets/{segment(name)}"
    return path if version is None else f"{path}/versions/{version}"
