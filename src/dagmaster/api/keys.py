"""API keys: list, create, rotate and revoke them. Only the response that creates or rotates a key has its text."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.assets import CreatedKey, KeyInfo, KeyRequest, KeyRotation, KeyUses, ReasonRequest
from dagmaster.client.models.pages import Page
from dagmaster.database.assets.keys import KeyChange
from dagmaster.operations.keys import create_key, revoke_key, rotate_key
from dagmaster.web.authentication import needs, requires
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_name, page_of
from dagmaster.web.problems import request_id_of

router = APIRouter(prefix="/keys", tags=["callers"])

KeyId = Annotated[str, Path(max_length=200, description="The id of the key: the 12 characters after `dgm_`")]
Administrator = Annotated[Caller, Depends(needs(Permission.KEYS_WRITE))]
_NOT_STORED = {"Cache-Control": "no-store"}


@router.get(
    "",
    operation_id="list_keys",
    summary="List keys, newest first",
    responses=responses(),
    dependencies=[requires(Permission.KEYS_WRITE)],
)
async def list_keys(
    services: Services,
    revoked: Annotated[bool, Query(description="Also list keys that were revoked")] = False,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[KeyInfo]:
    rows = await services.keys.page(limit=limit + 1, after=moment_and_name(after), with_revoked=revoked)
    return page_of(rows, limit, lambda key: joined(key.created_at.isoformat(), key.key_id))


@router.post("", operation_id="create_key", summary="Create a key", status_code=201, responses=responses(404, 409))
async def create(
    services: Services, caller: Administrator, request: Request, response: Response, key_request: KeyRequest
) -> CreatedKey:
    """Only this response has the text of the key (`key`): it is not stored."""
    response.headers.update(_NOT_STORED)
    return await create_key(services.keys, key_request, KeyChange(caller.name, request_id=request_id_of(request)))


@router.post(
    "/uses",
    operation_id="report_key_uses",
    summary="Report that keys were used at a gateway",
    responses=responses(),
    dependencies=[requires(Permission.KEYS_REPORT)],
)
async def report_uses(services: Services, uses: KeyUses) -> KeyUses:
    """Unknown keys are ignored. The time of the last use is exact to a minute."""
    for key_id in uses.key_ids:
        services.keys.note_use(key_id)
    await services.keys.record_uses()
    return uses


@router.post(
    "/{key_id}/rotate",
    operation_id="rotate_key",
    summary="Give a key a new secret",
    responses=responses(404, 409),
)
async def rotate(
    *,
    services: Services,
    caller: Administrator,
    request: Request,
    response: Response,
    key_id: KeyId,
    rotation: KeyRotation | None = None,
) -> CreatedKey:
    """Only this response has the new text of the key (`key`). The previous secret is accepted for another
    `overlap_hours`; older secrets are refused."""
    rotation = rotation or KeyRotation()
    response.headers.update(_NOT_STORED)
    return await rotate_key(
        services.keys,
        key_id,
        KeyChange(caller.name, rotation.reason, request_id_of(request)),
        overlap_hours=rotation.overlap_hours,
        expires_in_days=rotation.expires_in_days,
    )


@router.post("/{key_id}/revoke", operation_id="revoke_key", summary="Revoke a key", responses=responses(404, 409))
async def revoke(
    services: Services, caller: Administrator, request: Request, key_id: KeyId, reason: ReasonRequest | None = None
) -> KeyInfo:
    """The key is refused from the next request on. It cannot be restored."""
    text = reason.reason if reason else None
    return await revoke_key(services.keys, key_id, KeyChange(caller.name, text, request_id_of(request)))
