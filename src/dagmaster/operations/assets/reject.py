"""Reject a version: its newest revision is not served. An older approved revision is still served."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def reject(
    store: AssetStore,
    key: str,
    ordinal: int,
    *,
    caller: Caller,
    reason: str,
    revision: int | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    decision = Decision("rejected", caller.name, reason, ordinal)
    return await change_asset(
        store,
        key,
        lambda asset: rules.reject(asset, ordinal, reason=reason),
        decision,
        decider=caller,
        versions=[ordinal],
        revision=revision,
        if_match=if_match,
    )
