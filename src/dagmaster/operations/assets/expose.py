"""Expose an asset: serve only its latest approved version, or all of them."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.assets.states import Exposure
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def expose(
    store: AssetStore,
    key: str,
    exposure: Exposure,
    *,
    caller: Caller,
    reason: str | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    decision = Decision("exposed", caller.name, reason, detail={"exposure": exposure.value})
    return await change_asset(
        store, key, lambda asset: rules.expose(asset, exposure), decision, versions=[], if_match=if_match
    )
