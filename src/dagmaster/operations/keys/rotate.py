"""Rotate a key: it gets a new secret, and the previous one is accepted for a while."""

from dagmaster.access.keys import new_key, require_key_id
from dagmaster.client.models.assets import CreatedKey
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.operations.keys.create import seconds_in, with_text


async def rotate_key(
    store: KeyStore, key_id: str, change: KeyChange, *, overlap_hours: float, expires_in_days: float | None = None
) -> CreatedKey:
    """Give a key a new secret. The previous one is accepted for another `overlap_hours`."""
    require_key_id(key_id)
    text = new_key(key_id)
    info = await store.rotate(
        key_id,
        text.hash,
        overlap_seconds=overlap_hours * 3600,
        expires_in_seconds=seconds_in(expires_in_days),
        change=change,
    )
    return with_text(info, text)
