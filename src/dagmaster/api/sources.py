"""The objects of the bronze zone, which submissions name as their source."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.pages import Page
from dagmaster.client.models.uploads import MAX_NAME_LENGTH, SourceObject
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Limit, page_of

router = APIRouter(prefix="/sources", tags=["uploads"])


@router.get("", operation_id="list_sources", summary="List objects of the bronze zone by name", responses=responses())
async def list_sources(
    *,
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.ASSETS_SUBMIT))],
    prefix: Annotated[
        str,
        Query(
            max_length=MAX_NAME_LENGTH, description="Only objects whose names begin with this", examples=["ddh/2024"]
        ),
    ] = "",
    container: Annotated[
        str | None, Query(max_length=63, description="The container; by default that of the setting BRONZE_CONTAINER")
    ] = None,
    after: Annotated[str, Query(max_length=MAX_NAME_LENGTH, description="`next` of the previous page")] = "",
    limit: Limit = 50,
) -> Page[SourceObject]:
    """A platform sees its own objects, whose names begin with its id and a slash."""
    objects = await services.uploads.sources(
        caller, prefix=prefix, after=after, limit=limit + 1, container=container or None
    )
    return page_of(objects, limit, lambda each: each.blob)
