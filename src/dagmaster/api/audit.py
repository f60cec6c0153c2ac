"""The audit log: who changed assets, platforms and keys, ran direct commands or changed many jobs, when and why."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.assets import AuditEntry
from dagmaster.client.models.pages import Page
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Limit, page_of

router = APIRouter(prefix="/audit", tags=["callers"])


@router.get(
    "",
    operation_id="list_audit_events",
    summary="List the audit log, newest first",
    responses=responses(),
    dependencies=[requires(Permission.KEYS_WRITE)],
)
async def list_audit_events(
    *,
    services: Services,
    platform_id: Annotated[
        str | None, Query(max_length=64, description="Only events of this platform, its keys and its assets")
    ] = None,
    actor: Annotated[str | None, Query(max_length=200, description="Only events that this caller caused")] = None,
    action: Annotated[
        str | None, Query(max_length=64, description="Only events of this kind", examples=["key_created"])
    ] = None,
    after: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the previous page")] = None,
    limit: Limit = 50,
) -> Page[AuditEntry]:
    """Changes of assets, platforms, keys and the secrets of callbacks; sign-ins, finished uploads, repeated callbacks,
    direct commands, and changes of many jobs. Only for administrators. Events are deleted after
    `AUDIT_RETENTION_DAYS`."""
    rows = await services.assets.audit(
        limit=limit + 1, after=after, platform_id=platform_id, actor=actor, action=action
    )
    return page_of(rows, limit, lambda event: event.event_id)
