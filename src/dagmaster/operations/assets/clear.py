"""Clear an asset: decide who may see its approved versions."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def clear(
    store: AssetStore,
    key: str,
    clearance: Clearance,
    *,
    caller: Caller,
    reason: str | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    decision = Decision("cleared", caller.name, reason, detail={"clearance": clearance.value})
    return await change_asset(
        store, key, lambda asset: rules.clear(asset, clearance), decision, versions=[], if_match=if_match
    )
