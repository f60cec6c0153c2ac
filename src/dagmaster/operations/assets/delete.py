"""Delete a version or a whole asset softly. Its data is purged after `PURGE_DAYS`; 0 keeps it."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def delete(
    store: AssetStore,
    key: str,
    ordinal: int | None = None,
    *,
    caller: Caller,
    reason: str | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    """Without an ordinal, the asset is deleted with all its versions. Their jobs are cancelled afterwards."""
    versions = None if ordinal is None else [ordinal]
    decision = Decision("deleted", caller.name, reason, ordinal)
    deleted = await change_asset(
        store, key, lambda asset: rules.delete(asset, ordinal), decision, versions=versions, if_match=if_match
    )
    await store.cancel_unneeded(deleted.asset_id, by=caller.name, reason="its version was deleted")
    return deleted
