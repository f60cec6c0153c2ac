"""What operators check when the platform is slow: the leases of running tasks, and the health of the database."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.operations import DatabaseHealth, TaskLease
from dagmaster.client.models.pages import Page
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Limit

router = APIRouter(tags=["operations"], dependencies=[requires(Permission.PLATFORM_READ)])


@router.get(
    "/leases",
    operation_id="list_leases",
    summary="List running tasks by the end of their lease",
    responses=responses(),
)
async def list_leases(
    services: Services,
    within_seconds: Annotated[
        float | None, Query(ge=0, le=86_400, description="Only leases that expire within this time, or have expired")
    ] = None,
    limit: Limit = 100,
) -> Page[TaskLease]:
    """The lease that expires first is listed first. A worker renews its leases long before they expire; a task whose
    lease has expired is given to another worker. The list is not paginated: it changes all the time."""
    leases = await services.reads.leases(
        limit=limit, alive_within_seconds=services.alive_within, within_seconds=within_seconds
    )
    return Page(items=leases, next=None)


@router.get(
    "/database", operation_id="get_database_health", summary="Get the health of the database", responses=responses()
)
async def get_database_health(services: Services) -> DatabaseHealth:
    """Sizes, dead rows, connections and the oldest transaction. Numbers of rows are estimates of PostgreSQL."""
    return await services.reads.database_health()
