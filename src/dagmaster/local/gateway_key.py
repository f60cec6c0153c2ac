"""The key of the gateway that `dagmaster up` starts: it may report that keys were used, and nothing else.

    <data folder>/gateway.key   the key, readable by its owner only

The key gets a new secret at each start. Rotation needs only the id of the key. If a start dies after it has written to
the database and before it has written the file, the next start therefore rotates the key again. A key that was revoked,
or that is not in the database, is replaced by a new one.
"""

import asyncio
import os
import secrets
from pathlib import Path
from typing import Final

from dagmaster.access.caller import Scope
from dagmaster.access.keys import parse_key
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.errors import Conflict, NotFound
from dagmaster.operations.keys import create_key, rotate_key

FILE: Final = "gateway.key"
_MAX_TEXT_LENGTH = 200
_OVERLAP_HOURS = 1.0  # a gateway that is still stopping may report with the previous secret
_CHANGE = KeyChange("system", "the gateway of `dagmaster up` starts")


def renewed_gateway_key(dsn: str, folder: Path) -> str:
    """The key with a new secret, stored in the data folder."""
    return asyncio.run(_renewed(dsn, folder / FILE))


async def _renewed(dsn: str, file: Path) -> str:
    async with KeyStore(dsn, size=1) as keys:
        key = await _rotated(keys, _key_id_in(file)) or await _created(keys)
    _write_private(file, key)
    return key


async def _rotated(keys: KeyStore, key_id: str | None) -> str | None:
    """The key with a new secret. None if there is no such key, or if it has other scopes."""
    stored = await keys.find(key_id) if key_id else None
    if stored is None or stored.is_revoked or stored.scopes != [Scope.GATEWAY]:
        return None
    try:
        return (await rotate_key(keys, stored.key_id, _CHANGE, overlap_hours=_OVERLAP_HOURS)).key
    except (Conflict, NotFound):  # revoked a moment ago
        return None


async def _created(keys: KeyStore) -> str:
    """A new key, with a random name, because the names of keys are unique."""
    request = KeyRequest(name=f"gateway-{secrets.token_hex(4)}", scopes=[Scope.GATEWAY])
    return (await create_key(keys, request, _CHANGE)).key


def _key_id_in(file: Path) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, errors="replace") as opened:
        key = parse_key(opened.read(_MAX_TEXT_LENGTH).strip())
    return key.key_id if key else None


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read. It is never incomplete."""
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{text}\n")
    unfinished.replace(file)
