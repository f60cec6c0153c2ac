"""Platforms: the external systems that submit data, and the references that identify their assets."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Response

from dagmaster.access.caller import Caller
from dagmaster.access.decision import own_platform_of
from dagmaster.access.permissions import Permission
from dagmaster.api.assets import with_etag
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.api.visibility import require_visible_platform
from dagmaster.client.models.assets import PlatformChange, PlatformInfo, PlatformRequest
from dagmaster.client.models.pages import Page
from dagmaster.operations.assets import platforms as operations
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Cursor, Limit, page_of

router = APIRouter(prefix="/platforms", tags=["platforms"])

Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]
Writer = Annotated[Caller, Depends(needs(Permission.PLATFORMS_WRITE))]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=200, description="The ETag of the platform that the caller has seen"),
]
PlatformName = Annotated[str, Path(max_length=64, examples=["ddh"])]


@router.get("", operation_id="list_platforms", summary="List platforms", responses=responses())
async def list_platforms(
    services: Services, caller: Reader, after: Cursor = None, limit: Limit = 50
) -> Page[PlatformInfo]:
    """Ordered by id. A b2b key sees only its own platform."""
    own = own_platform_of(caller)
    visible = [platform for platform in await services.assets.platforms() if own in (None, platform.platform_id)]
    rows = [platform for platform in visible if platform.platform_id > (after or "")]
    return page_of(rows[: limit + 1], limit, lambda platform: platform.platform_id)


@router.post("", operation_id="add_platform", summary="Add a platform", status_code=201, responses=responses(409))
async def add_platform(services: Services, caller: Writer, request: PlatformRequest) -> PlatformInfo:
    """Its id and its references cannot be changed later: the ids of its assets depend on them."""
    return await operations.add_platform(services.assets, request=request, caller=caller)


@router.get(
    "/{platform_id}",
    operation_id="get_platform",
    summary="Get a platform",
    responses={**with_etag(), **responses(404)},
)
async def get_platform(
    services: Services, caller: Reader, response: Response, platform_id: PlatformName
) -> PlatformInfo:
    require_visible_platform(caller, platform_id)
    return _tagged(response, await services.assets.platform(platform_id))


@router.patch(
    "/{platform_id}",
    operation_id="change_platform",
    summary="Change a platform",
    responses={**with_etag(), **responses(404, 412)},
)
async def change_platform(
    *,
    services: Services,
    caller: Writer,
    response: Response,
    platform_id: PlatformName,
    change: PlatformChange,
    if_match: IfMatch = None,
) -> PlatformInfo:
    """Change its name, allow or forbid submissions, or let its b2b keys approve, reject and unpublish versions of its
    own assets. Earlier submissions are not affected. With `If-Match`, the change is refused if the platform has changed
    since; the problem contains its current state."""
    changed = await operations.set_platform(
        services.assets,
        platform_id,
        caller=caller,
        display_name=change.display_name,
        is_active=change.is_active,
        b2b_may_approve=change.b2b_may_approve,
        reason=change.reason,
        if_match=if_match,
    )
    return _tagged(response, changed)


def _tagged(response: Response, platform: PlatformInfo) -> PlatformInfo:
    response.headers["ETag"] = f'"{platform.etag}"'
    return platform
