"""Revoke a key: it is refused from now on."""

from dagmaster.access.keys import require_key_id
from dagmaster.client.models.assets import KeyInfo
from dagmaster.database.assets.keys import KeyChange, KeyStore


async def revoke_key(store: KeyStore, key_id: str, change: KeyChange) -> KeyInfo:
    require_key_id(key_id)
    return await store.revoke(key_id, change)
