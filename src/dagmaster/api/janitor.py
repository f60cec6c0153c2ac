"""The actions of the janitor, and a run on request."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.operations import JanitorRun
from dagmaster.client.models.pages import Page
from dagmaster.database.maintenance.janitor import PostgresJanitor, SweepResult
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.jobs.model import JanitorAction
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.orchestrator.tidy import DAY_SECONDS, tidy_of
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_id, page_of

router = APIRouter(prefix="/janitor", tags=["operations"])


@router.get(
    "/actions",
    operation_id="list_janitor_actions",
    summary="List the actions of the janitor, newest first",
    responses=responses(),
    dependencies=[requires(Permission.PLATFORM_READ)],
)
async def list_janitor_actions(
    services: Services,
    *,
    action_type: Annotated[
        str | None, Query(max_length=64, description="Only actions of this type", examples=["job_stuck"])
    ] = None,
    target_id: Annotated[
        str | None, Query(max_length=400, description="Only actions on this job, task, queue or session")
    ] = None,
    run_id: Annotated[UUID | None, Query(description="Only actions of this run")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Only actions at this time or later")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[JanitorAction]:
    rows = await services.reads.janitor_actions(
        limit=limit + 1,
        after=moment_and_id(after),
        action_type=action_type,
        target_id=target_id,
        run_id=run_id,
        since=since,
    )
    return page_of(rows, limit, lambda action: joined(action.created_at.isoformat(), action.action_id))


@router.post(
    "/run",
    operation_id="run_janitor",
    summary="Run the janitor now",
    responses=responses(),
    dependencies=[requires(Permission.QUEUES_OPERATE)],
)
async def run_janitor(
    services: Services,
    dry_run: Annotated[bool, Query(description="Change nothing, only return the actions")] = False,
) -> JanitorRun:
    """Orchestrators also run the janitor every `JANITOR_INTERVAL_SEC`. Only their runs delete old jobs."""
    store = PostgresJanitor(services.dsn, "api-janitor", services.notifier)
    retention = PostgresRetention(services.dsn, "api-retention")
    tidy = tidy_of(services.settings, services.dsn, "api-tidy")
    janitor = Janitor(services.settings, store, retention, tidy=tidy)
    age = services.settings.retention_days * DAY_SECONDS
    try:
        run_id, swept = await janitor.sweep(is_dry=dry_run)
        tidied = await tidy.run_once(run_id, is_dry=dry_run) if tidy else SweepResult((), ())
        prunable = await retention.count(age) if age else 0
    finally:
        await janitor.close()
    return JanitorRun(
        run_id=run_id,
        is_dry_run=dry_run,
        actions=[*swept.actions, *tidied.actions],
        left_to_others=[*swept.left_to_others, *tidied.left_to_others],
        prunable_jobs=prunable,
    )
