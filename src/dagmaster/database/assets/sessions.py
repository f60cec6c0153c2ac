"""Sessions of browsers in the database. Signing out, and a change of the key, take effect with the next request in
every process: sessions are not cached."""

from dataclasses import dataclass, field
from datetime import datetime

from dagmaster.access.sessions import SessionText, StoredSession
from dagmaster.database.connect import ConnectionPool, connection_of, translate_errors
from dagmaster.database.prepared_reads import PreparedReads
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts

_DELETED_PER_SIGN_IN = 100


@dataclass(frozen=True, slots=True)
class SignIn:
    """Who signs in. `key_hash` is that of the key's secret; without a key, `until` is when the token expires."""

    name: str
    scopes: tuple[str, ...]
    platform_id: str | None = None
    key_id: str | None = None
    key_hash: str | None = field(default=None, repr=False)
    until: datetime | None = None


class SessionStore:
    """Uses the connections of a KeyStore, whose context it needs."""

    def __init__(self, connections: ConnectionPool, lookups: PreparedReads) -> None:
        self._pool = connections
        self._lookups = lookups

    async def find(self, session_id: str) -> StoredSession | None:
        with translate_errors():
            rows = await self._lookups.dicts("find_session", {"session_id": session_id})
        return next(iter(models(StoredSession, rows)), None)

    async def start(self, text: SessionText, person: SignIn, *, lasts_seconds: float, request_id: str | None) -> None:
        """Start a session. Also deletes some of the sessions that expired long ago."""
        values = {
            "session_id": text.session_id,
            "secret_hash": text.hash,
            "key_id": person.key_id,
            "key_hash": person.key_hash,
            "name": person.name,
            "scopes": list(person.scopes),
            "platform_id": person.platform_id,
            "until": person.until,
            "lasts_seconds": lasts_seconds,
            "request_id": request_id,
        }
        async with connection_of(self._pool) as connection:
            await dicts(connection, "start_session", values)
            await connection.execute(query("forget_sessions"), {"limit": _DELETED_PER_SIGN_IN})

    async def end(self, session_id: str, *, request_id: str | None) -> bool:
        """False if the session had ended before."""
        async with connection_of(self._pool) as connection:
            return bool(await dicts(connection, "end_session", {"session_id": session_id, "request_id": request_id}))
