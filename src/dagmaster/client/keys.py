"""The methods of the Python client about callers and their API keys."""

from collections.abc import AsyncIterator, Sequence

from dagmaster.client.blocking import Blocking, C, blocking, iterating
from dagmaster.client.models.assets import CallerInfo, CreatedKey, KeyInfo
from dagmaster.client.models.base import parse
from dagmaster.client.paging import PagedClient


class AsyncKeys(PagedClient):
    async def caller(self) -> CallerInfo:
        """The caller as which this client sends requests, and its permissions."""
        return parse(CallerInfo, await self.json.caller())

    async def keys(self, *, with_revoked: bool = False, limit: int | None = None) -> AsyncIterator[KeyInfo]:
        """API keys, newest first, without their secrets."""
        async for key in self._all(KeyInfo, "/keys", limit, revoked=with_revoked):
            yield key

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        platform_id: str | None = None,
        queues: Sequence[str] | None = None,
        expires_in_days: float | None = None,
    ) -> CreatedKey:
        """Create a key. `key` of the result is shown once: the platform stores a hash. With `queues`, a worker with the
        key claims tasks of these queues only."""
        request = {
            "name": name,
            "scopes": list(scopes),
            "platform_id": platform_id,
            "expires_in_days": expires_in_days,
            **({"queues": list(queues)} if queues is not None else {}),
        }
        return parse(CreatedKey, await self.json.create_key(request))

    async def rotate_key(
        self,
        key_id: str,
        *,
        overlap_hours: float = 24.0,
        expires_in_days: float | None = None,
        reason: str | None = None,
    ) -> CreatedKey:
        """Give a key a new secret. The previous one is accepted for `overlap_hours` more."""
        request = {"overlap_hours": overlap_hours, "expires_in_days": expires_in_days, "reason": reason}
        return parse(CreatedKey, await self.json.rotate_key(key_id, request))

    async def revoke_key(self, key_id: str, *, reason: str | None = None) -> KeyInfo:
        """Revoke a key: it is refused from the next request on."""
        return parse(KeyInfo, await self.json.revoke_key(key_id, {"reason": reason}))


class Keys(Blocking[C]):
    caller = blocking(AsyncKeys.caller)
    keys = iterating(AsyncKeys.keys)
    create_key = blocking(AsyncKeys.create_key)
    rotate_key = blocking(AsyncKeys.rotate_key)
    revoke_key = blocking(AsyncKeys.revoke_key)
