"""What the sender of callbacks reads and writes, and what operators change: repeat a callback, rotate a secret."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from dagmaster.callbacks.model import MAX_ERROR_LENGTH
from dagmaster.callbacks.schedule import Consequence, DeliveryAttempt
from dagmaster.callbacks.signing import new_secret
from dagmaster.client.models.callback_events import RotatedSecret
from dagmaster.database.callbacks.rows import CallbackLimits, ClaimedCallback, ClaimedCallbacks
from dagmaster.database.connect import Connection
from dagmaster.database.notify.notifier import CALLBACKS, Notifier
from dagmaster.database.queries import query
from dagmaster.database.session import Session, dicts
from dagmaster.errors import Conflict, NotFound

STATEMENT_SECONDS: Final = 10.0
LOCK_SECONDS: Final = 2.0


class PostgresCallbacks(Session):
    """The notifier announces callbacks that were made due; without one, their sender sees them when it polls."""

    def __init__(self, dsn: str, role: str = "callbacks", notifier: Notifier | None = None) -> None:
        super().__init__(
            dsn,
            role,
            notifier,
            statement_timeout_seconds=STATEMENT_SECONDS,
            lock_timeout_seconds=LOCK_SECONDS,
        )

    async def claim(self, owner_id: UUID, limit: int, limits: CallbackLimits) -> ClaimedCallbacks:
        """Claim callbacks that are due, with the secrets that sign them. A platform without a secret gets one."""
        values = {
            "owner_id": owner_id,
            "limit": limit,
            "lease": limits.lease_seconds,
            "per_receiver": limits.per_receiver,
            "max_tries": limits.max_tries,
        }
        async with self._transaction("callbacks") as connection:
            (waiting,) = await dicts(connection, "callbacks_are_pending", {})
            if not waiting["are_pending"]:
                return ClaimedCallbacks((), are_pending=False)
            rows = await dicts(connection, "callbacks_claim", values)
            secrets = await _secrets(connection, {row["platform_id"] for row in rows})
        callbacks = tuple(ClaimedCallback(**row, secrets=secrets.get(row["platform_id"], ())) for row in rows)
        return ClaimedCallbacks(callbacks, are_pending=True)

    async def finish(self, callback: ClaimedCallback, attempt: DeliveryAttempt, consequence: Consequence) -> bool:
        """Record how an attempt ended. False if another process has claimed or repeated the callback meanwhile."""
        values = {
            "callback_id": callback.callback_id,
            "number": callback.number,
            "status_code": attempt.status_code,
            "error": attempt.error and attempt.error[:MAX_ERROR_LENGTH],
            "state": consequence.state,
            "delay": consequence.delay_seconds,
        }
        async with self._transaction("callbacks") as connection:
            return bool(await dicts(connection, "callbacks_finish", values))

    async def repeat(self, callback_id: UUID, actor: str) -> None:
        """Make a callback due now, even if it was delivered or given up."""
        async with self._transaction("callbacks") as connection:
            rows = await dicts(connection, "callbacks_repeat", {"callback_id": callback_id})
            if not rows:
                raise await _not_repeated(connection, callback_id)
            values = {**rows[0], "callback_id": callback_id, "actor": actor}
            await connection.execute(query("callbacks_note_repeat"), values)
        self._notify(CALLBACKS)

    async def rotate_secret(self, platform_id: str, *, overlap_seconds: float, actor: str) -> RotatedSecret:
        """Give a platform a new secret. Its other secrets stay in use for `overlap_seconds`."""
        secret = new_secret()
        values = {"platform_id": platform_id, "secret": secret, "overlap": overlap_seconds, "actor": actor}
        async with self._transaction("callbacks") as connection:
            if not await dicts(connection, "callbacks_lock_platform", values):
                raise NotFound(f"there is no platform '{platform_id}'", code="platform.not-found")
            await connection.execute(query("callbacks_expire_secrets"), values)
            await connection.execute(query("callbacks_forget_secrets"), values)
            (row,) = await dicts(connection, "callbacks_new_secret", values)
            await connection.execute(query("callbacks_note_rotation"), values)
        return RotatedSecret(platform_id=platform_id, secret=secret, **row)


async def _secrets(connection: Connection, platforms: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The secrets of each platform. A platform without a secret gets one."""
    platform_ids = sorted(platforms)
    secrets = await _read_secrets(connection, platform_ids)
    without = [platform_id for platform_id in platform_ids if platform_id not in secrets]
    for platform_id in without:
        values = {"platform_id": platform_id, "secret": new_secret()}
        await connection.execute(query("callbacks_first_secret"), values)
    return await _read_secrets(connection, platform_ids) if without else secrets


async def _read_secrets(connection: Connection, platforms: Sequence[str]) -> dict[str, tuple[str, ...]]:
    secrets: dict[str, list[str]] = defaultdict(list)
    for row in await dicts(connection, "callbacks_secrets", {"platform_ids": list(platforms)}):
        secrets[row["platform_id"]].append(row["secret"])
    return {platform_id: tuple(each) for platform_id, each in secrets.items()}


async def _not_repeated(connection: Connection, callback_id: UUID) -> Exception:
    values: dict[str, Any] = {"callback_id": callback_id}
    if await dicts(connection, "callbacks_exists", values):
        return Conflict(
            "an attempt to deliver this callback is under way",
            code="callback.under-way",
            hint="look at the callback again in a minute",
        )
    return NotFound(f"no callback has the id {callback_id}", code="callback.not-found")
