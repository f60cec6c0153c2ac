"""Orchestrators and workers."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.operations import OrchestratorSummary, WorkerSummary
from dagmaster.client.models.pages import Page
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Limit, page_of

router = APIRouter(tags=["operations"], dependencies=[requires(Permission.PLATFORM_READ)])

After = Annotated[UUID | None, Query(description="`next` of the previous page")]


@router.get("/orchestrators", operation_id="list_orchestrators", summary="List orchestrators", responses=responses())
async def list_orchestrators(services: Services, after: After = None, limit: Limit = 50) -> Page[OrchestratorSummary]:
    rows = await services.reads.orchestrators(limit=limit + 1, within_seconds=services.alive_within, after=after)
    return page_of(rows, limit, lambda orchestrator: orchestrator.owner_id)


@router.get(
    "/workers",
    operation_id="list_workers",
    summary="List workers, with their handlers and running tasks",
    responses=responses(),
)
async def list_workers(services: Services, after: After = None, limit: Limit = 50) -> Page[WorkerSummary]:
    rows = await services.reads.workers(limit=limit + 1, within_seconds=services.alive_within, after=after)
    return page_of(rows, limit, lambda worker: worker.worker_id)
