"""API keys in the database. A change takes effect with the next request in every process: keys are not cached.

Every change is one statement that also records who made it, in the events of assets.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg

from dagmaster import faults
from dagmaster.access.keys import StoredKey
from dagmaster.client.models.assets import KeyInfo
from dagmaster.database.assets.sessions import SessionStore
from dagmaster.database.connect import Connection, connection_of, pool, translate_errors
from dagmaster.database.prepared_reads import PreparedReads
from dagmaster.database.queries import query
from dagmaster.database.reads.session import ModelReads, models
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, NotFound

_POOL_SIZE = 4
_USE_RECORDED_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to create, with the hash of its secret: the secret itself is never sent to the database."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    secret_hash: str
    platform_id: str | None = None
    expires_in_seconds: float | None = None
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Who changes a key, and why."""

    actor: str
    reason: str | None = None
    request_id: str | None = None

    def values(self) -> dict[str, Any]:
        return {"actor": self.actor, "reason": self.reason, "request_id": self.request_id}


class KeyStore(ModelReads):
    """Use it with `async with`; the database need not be available when it is entered. Requests find keys and sessions
    through `lookups`."""

    def __init__(
        self, dsn: str, role: str = "keys", size: int = _POOL_SIZE, *, lookups: PreparedReads | None = None
    ) -> None:
        self._pool = pool(dsn, role, 0, size)
        self._lookups = lookups or PreparedReads(dsn, role)
        self._uses = _Uses()
        self.sessions = SessionStore(self._pool, self._lookups)

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._pool.close()
        await self._lookups.close()

    async def find(self, key_id: str) -> StoredKey | None:
        with translate_errors():
            rows = await self._lookups.dicts("find_key", {"key_id": key_id})
        return StoredKey(**rows[0]) if rows else None

    async def page(
        self, *, limit: int, after: tuple[datetime, str] | None = None, with_revoked: bool = False
    ) -> list[KeyInfo]:
        """Newest first. `after` is (created_at, key_id) of the last key of the previous page."""
        after_at, after_id = after or (None, None)
        values = {"limit": limit, "after_at": after_at, "after_id": after_id, "with_revoked": with_revoked}
        return await self._many("keys_page", values, KeyInfo)

    async def create(self, key: NewKey, change: KeyChange) -> KeyInfo:
        async with self._connected() as connection:
            async with connection.transaction():
                await connection.execute(query("lock_keys"))
                created = await _create(connection, key, change)
                faults.reach("create_key.before-commit")
            faults.reach("create_key.after-commit")
            return created

    async def create_first(self, key: NewKey, change: KeyChange) -> KeyInfo | None:
        """Create the key if no key was ever created. If several processes start together, only one creates it."""
        async with self._connected() as connection:
            async with connection.transaction():
                await connection.execute(query("lock_keys"))
                (row,) = await dicts(connection, "has_keys", {})
                created = None if row["has_keys"] else await _create(connection, key, change)
                faults.reach("create_key.before-commit")
            faults.reach("create_key.after-commit")
            return created

    async def has_keys(self) -> bool:
        (row,) = await self._dicts("has_keys", {})
        return bool(row["has_keys"])

    async def rotate(
        self,
        key_id: str,
        secret_hash: str,
        *,
        overlap_seconds: float,
        expires_in_seconds: float | None,
        change: KeyChange,
    ) -> KeyInfo:
        values = {
            "key_id": key_id,
            "secret_hash": secret_hash,
            "overlap_seconds": overlap_seconds,
            "expires_in_seconds": expires_in_seconds,
        }
        return await self._change("rotate_key", {**values, **change.values()})

    async def revoke(self, key_id: str, change: KeyChange) -> KeyInfo:
        return await self._change("revoke_key", {"key_id": key_id, **change.values()})

    def note_use(self, key_id: str) -> None:
        """Remember that a key was used. `record_uses` writes it."""
        self._uses.note(key_id)

    async def record_uses(self) -> None:
        """Write the uses since the last call. Those that cannot be written are kept for the next call."""
        if key_ids := self._uses.take():
            try:
                async with self._connected() as connection:
                    await connection.execute(query("record_key_uses"), {"key_ids": key_ids})
            except BaseException:
                self._uses.put_back(key_ids)
                raise

    async def _change(self, name: str, values: Mapping[str, Any]) -> KeyInfo:
        async with self._connected() as connection:
            changed = models(KeyInfo, await dicts(connection, name, values))
            if changed:
                return changed[0]
            existing = models(KeyInfo, await dicts(connection, "get_key", {"key_id": values["key_id"]}))
        if existing:
            message = f"the key {existing[0].key_id} ({existing[0].name}) was revoked"
            raise Conflict(message, code="key.revoked", hint="create a new key", key_id=values["key_id"])
        raise NotFound(f"no key has the id '{values['key_id']}'", code="key.not-found", key_id=values["key_id"])

    def _connected(self) -> AbstractAsyncContextManager[Connection]:
        return connection_of(self._pool)


async def _create(connection: Connection, key: NewKey, change: KeyChange) -> KeyInfo:
    values = {
        "key_id": key.key_id,
        "name": key.name,
        "scopes": list(key.scopes),
        "platform_id": key.platform_id,
        "queues": None if key.queues is None else list(key.queues),
        "secret_hash": key.secret_hash,
        "expires_in_seconds": key.expires_in_seconds,
    }
    try:
        rows = await dicts(connection, "create_key", {**values, **change.values()})
    except psycopg.errors.ForeignKeyViolation:
        raise NotFound(
            f"there is no platform '{key.platform_id}'",
            code="platform.not-found",
            hint="`dagmaster platforms ls` lists them",
            platform_id=key.platform_id,
        ) from None
    if not rows:
        raise Conflict(
            f"another key has or had the name '{key.name}'",
            code="key.name-taken",
            hint="names are never reused, because the history records them: choose another name, or rotate that key",
            name=key.name,
        )
    return models(KeyInfo, rows)[0]


class _Uses:
    """The keys used since the last write, each at most once a minute."""

    def __init__(self) -> None:
        self._pending: set[str] = set()
        self._noted_at: dict[str, float] = {}

    def note(self, key_id: str) -> None:
        now = time.monotonic()
        if now - self._noted_at.get(key_id, -_USE_RECORDED_EVERY_SECONDS) >= _USE_RECORDED_EVERY_SECONDS:
            self._noted_at[key_id] = now
            self._pending.add(key_id)

    def take(self) -> list[str]:
        pending, self._pending = self._pending, set()
        return sorted(pending)

    def put_back(self, key_ids: list[str]) -> None:
        self._pending.update(key_ids)
