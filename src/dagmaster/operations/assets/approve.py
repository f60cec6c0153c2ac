"""Approve a version: its newest revision is served from the next request on."""

from dagmaster.access.caller import Caller
from dagmaster.assets import rules
from dagmaster.assets.rules import ActionResult
from dagmaster.assets.states import AssetState, Clearance
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.operations.assets.change import change_asset


async def approve(
    store: AssetStore,
    key: str,
    ordinal: int,
    *,
    caller: Caller,
    clearance: Clearance | None = None,
    revision: int | None = None,
    reason: str | None = None,
    needs_second_person: bool = False,
    if_match: str | None = None,
) -> AssetInfo:
    """`needs_second_person`: the setting APPROVAL_BY_SECOND_PERSON."""

    def act(asset: AssetState) -> ActionResult:
        return rules.approve(
            asset,
            ordinal,
            clearance=clearance,
            by=caller.name,
            needs_second_person=needs_second_person,
            revision=revision,
        )

    detail = {"clearance": clearance.value} if clearance else {}
    decision = Decision("approved", caller.name, reason, ordinal, detail)
    return await change_asset(
        store, key, act, decision, decider=caller, versions=[ordinal], revision=revision, if_match=if_match
    )
