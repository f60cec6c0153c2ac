"""The requests about callers and their API keys, with responses as JSON."""

from collections.abc import Mapping
from typing import Any

from dagmaster.client.blocking import Blocking, C, blocking
from dagmaster.client.connection import ApiConnection
from dagmaster.client.models.base import Json
from dagmaster.client.request_parts import segment, without_none


class AsyncKeyRequests:
    connection: ApiConnection

    async def caller(self) -> Json:
        """The caller of this request."""
        return await self.connection.object("GET", "/caller")

    async def keys(
        self, limit: int, after: str | None = None, *, with_revoked: bool = False
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page("/keys", limit, after, revoked=with_revoked)

    async def create_key(self, request: Mapping[str, Any]) -> Json:
        return await self.connection.object("POST", "/keys", body=without_none(request))

    async def rotate_key(self, key_id: str, request: Mapping[str, Any]) -> Json:
        return await self.connection.object("POST", f"/keys/{segment(key_id)}/rotate", body=without_none(request))

    async def revoke_key(self, key_id: str, request: Mapping[str, Any]) -> Json:
        return await self.connection.object("POST", f"/keys/{segment(key_id)}/revoke", body=without_none(request))


class KeyRequests(Blocking[C]):
    caller = blocking(AsyncKeyRequests.caller)
    keys = blocking(AsyncKeyRequests.keys)
    create_key = blocking(AsyncKeyRequests.create_key)
    rotate_key = blocking(AsyncKeyRequests.rotate_key)
    revoke_key = blocking(AsyncKeyRequests.revoke_key)
