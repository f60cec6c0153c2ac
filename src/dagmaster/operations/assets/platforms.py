"""Platforms: external systems that submit data. Each is a row of the database."""

from dagmaster.access.caller import Caller
from dagmaster.client.models.assets import PlatformInfo, PlatformRequest
from dagmaster.database.assets.rows import Decision
from dagmaster.database.assets.store import AssetStore
from dagmaster.errors import InvalidRequest


async def add_platform(store: AssetStore, *, request: PlatformRequest, caller: Caller) -> PlatformInfo:
    _check(request)
    values = request.model_dump()
    return await store.add_platform(values, Decision("platform_added", caller.name, detail=values))


async def set_platform(
    store: AssetStore,
    platform_id: str,
    *,
    caller: Caller,
    display_name: str | None = None,
    is_active: bool | None = None,
    b2b_may_approve: bool | None = None,
    reason: str | None = None,
    if_match: str | None = None,
) -> PlatformInfo:
    """Change the name of a platform, allow or forbid its submissions, or let its b2b keys decide on its own assets. Its
    references never change: they identify its assets."""
    changes = {"display_name": display_name, "is_active": is_active, "b2b_may_approve": b2b_may_approve}
    detail = {name: value for name, value in changes.items() if value is not None}
    if not detail:
        raise InvalidRequest(
            "the request changes nothing",
            code="platform.unchanged",
            hint="set `display_name`, `is_active` or `b2b_may_approve`",
        )
    decision = Decision("platform_changed", caller.name, reason, detail=detail)
    return await store.set_platform({"platform_id": platform_id, **changes}, decision, if_match=if_match)


def _check(request: PlatformRequest) -> None:
    names = [*request.required_refs, *request.optional_refs]
    problems = [f"'{name}' is named twice" for name in sorted(set(names)) if names.count(name) > 1]
    problems += [f"'{name}' is not a valid name of a reference" for name in names if not name.isidentifier()]
    if request.version_ref is not None and request.version_ref not in names:
        problems.append(f"`version_ref` '{request.version_ref}' is neither a required nor an optional reference")
    if not set(request.required_refs) - {request.version_ref}:
        problems.append("a required reference other than `version_ref` must identify the asset")
    if problems:
        raise InvalidRequest(
            f"the platform cannot be added: {'; '.join(problems)}",
            code="platform.invalid",
            hint="references have names such as dataset_id",
            problems=problems,
        )
