"""Unpublish a version or a whole asset: its data is kept, but not served until it is approved again."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def unpublish(
    store: AssetStore,
    key: str,
    ordinal: int | None = None,
    *,
    caller: Caller,
    reason: str | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    """Without an ordinal, all versions of the asset are unpublished."""
    versions = None if ordinal is None else [ordinal]
    decision = Decision("unpublished", caller.name, reason, ordinal)
    return await change_asset(
        store,
        key,
        lambda asset: rules.unpublish(asset, ordinal),
        decision,
        decider=caller,
        versions=versions,
        if_match=if_match,
    )
