"""Callbacks for operators: list them with their deliveries, repeat one, rotate the secret that signs them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.callbacks.payload import payload_of
from dagmaster.callbacks.schedule import CallbackState
from dagmaster.client.models.callback_events import (
    CallbackDetail,
    CallbackInfo,
    RotatedSecret,
    RotateSecretRequest,
)
from dagmaster.client.models.pages import Page
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.web.authentication import needs
from dagmaster.web.pages import Limit, page_of

router = APIRouter(tags=["callbacks"])

QueueOperator = Annotated[Caller, Depends(needs(Permission.QUEUES_OPERATE))]
PlatformAdministrator = Annotated[Caller, Depends(needs(Permission.PLATFORMS_WRITE))]
CallbackId = Annotated[UUID, Path(description="The id of the callback")]
PlatformName = Annotated[str, Path(max_length=64, examples=["ddh"])]


@router.get("/callbacks", operation_id="list_callbacks", summary="List callbacks, newest first", responses=responses())
async def list_callbacks(
    services: Services,
    _caller: QueueOperator,
    *,
    request_id: Annotated[str | None, Query(max_length=64, description="Only callbacks of this request")] = None,
    platform_id: Annotated[str | None, Query(max_length=64, description="Only callbacks of this platform")] = None,
    state: Annotated[CallbackState | None, Query(description="Only callbacks in this state")] = None,
    after: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the previous page")] = None,
    limit: Limit = 50,
) -> Page[CallbackInfo]:
    rows = await services.reads.callbacks(
        limit=limit + 1,
        after=after,
        request_id=request_id,
        platform_id=platform_id,
        state=state,
    )
    return page_of(rows, limit, lambda callback: callback.sequence)


@router.get("/callbacks/{callback_id}", operation_id="get_callback", summary="Get a callback", responses=responses(404))
async def get_callback(services: Services, _caller: QueueOperator, callback_id: CallbackId) -> CallbackDetail:
    """The response includes the payload and all attempts to deliver it."""
    return await _detail(services, callback_id)


@router.post(
    "/callbacks/{callback_id}/repeat",
    operation_id="repeat_callback",
    summary="Deliver a callback again",
    status_code=202,
    responses=responses(404, 409),
)
async def repeat_callback(services: Services, caller: QueueOperator, callback_id: CallbackId) -> CallbackDetail:
    """The callback is delivered now, even if it was delivered or given up before, with as many attempts as a new one.
    Its id stays the same, so receivers can ignore a duplicate."""
    store = PostgresCallbacks(services.dsn, "api-callbacks", services.notifier)
    try:
        await store.repeat(callback_id, caller.name)
    finally:
        await store.close()
    return await _detail(services, callback_id)


@router.post(
    "/platforms/{platform_id}/rotate-secret",
    operation_id="rotate_platform_secret",
    summary="Give a platform a new secret",
    responses=responses(404),
)
async def rotate_platform_secret(
    services: Services,
    caller: PlatformAdministrator,
    platform_id: PlatformName,
    response: Response,
    request: RotateSecretRequest | None = None,
) -> RotatedSecret:
    """Callbacks to the platform are signed with the secret. Only this response shows it. Until the overlap is over,
    callbacks are signed with the previous secret too."""
    overlap = (request or RotateSecretRequest()).overlap_seconds
    store = PostgresCallbacks(services.dsn, "api-callbacks")
    try:
        rotated = await store.rotate_secret(platform_id, overlap_seconds=overlap, actor=caller.name)
    finally:
        await store.close()
    response.headers["Cache-Control"] = "no-store"
    return rotated


async def _detail(services: Services, callback_id: UUID) -> CallbackDetail:
    callback = await services.reads.callback(callback_id)
    base_url = services.settings.callback_result_url
    return CallbackDetail(
        **{name: getattr(callback, name) for name in CallbackInfo.model_fields},
        payload=payload_of(callback.request_id, callback.status, callback.job_id, base_url),
        deliveries=await services.reads.deliveries(callback_id),
    )
