"""The caller of a request, as the platform sees it: for `dagmaster login`, and to find out why a request is refused."""

from typing import Annotated

from fastapi import APIRouter, Depends

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission, may
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.assets import CallerInfo
from dagmaster.web.authentication import needs

router = APIRouter(tags=["callers"])


@router.get("/caller", operation_id="get_caller", summary="Get the caller of this request", responses=responses())
async def get_caller(services: Services, caller: Annotated[Caller, Depends(needs(Permission.ANYONE))]) -> CallerInfo:
    """A request without credentials is anonymous; credentials that are not valid are refused."""
    return info_of(caller, services)


def info_of(caller: Caller, services: ApiServices) -> CallerInfo:
    return CallerInfo(
        name=caller.name,
        scopes=sorted(caller.scopes),
        platform_id=caller.platform_id,
        queues=None if caller.queues is None else sorted(caller.queues),
        permissions=[permission for permission in Permission if may(caller, permission)],
        is_authentication_enabled=services.settings.auth_enabled,
    )
