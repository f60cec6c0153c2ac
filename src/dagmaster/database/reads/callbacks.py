"""Callbacks and the attempts to deliver them."""

from collections.abc import Sequence
from uuid import UUID

from dagmaster.client.models.callback_events import CallbackInfo, DeliveryInfo
from dagmaster.database.reads.session import ReadSession
from dagmaster.errors import NotFound


class CallbackReads(ReadSession):
    async def callbacks(
        self,
        *,
        limit: int,
        after: int | None = None,
        request_id: str | None = None,
        platform_id: str | None = None,
        state: str | None = None,
    ) -> list[CallbackInfo]:
        """Newest first. `after` is the sequence of the last one of the previous page."""
        filters = {"request_id": request_id, "platform_id": platform_id, "state": state, "callback_id": None}
        return await self._many("api_callbacks", {**filters, "limit": limit, "after": after}, CallbackInfo)

    async def callbacks_of(
        self, request_ids: Sequence[str], platform_ids: Sequence[str]
    ) -> dict[str, list[CallbackInfo]]:
        """The callbacks of requests, newest first."""
        callbacks: dict[str, list[CallbackInfo]] = {request_id: [] for request_id in request_ids}
        values = {"request_ids": list(request_ids), "platform_ids": list(platform_ids)}
        for callback in await self._many("callbacks_of_requests", values, CallbackInfo):
            callbacks[callback.request_id].append(callback)
        return callbacks

    async def callback(self, callback_id: UUID) -> CallbackInfo:
        no_filters = {"request_id": None, "platform_id": None, "state": None, "after": None}
        values = {**no_filters, "callback_id": callback_id, "limit": 1}
        callback = await self._first("api_callbacks", values, CallbackInfo)
        if callback is None:
            raise NotFound(f"no callback has the id {callback_id}", code="callback.not-found")
        return callback

    async def deliveries(self, callback_id: UUID) -> list[DeliveryInfo]:
        """Newest first, a bounded number."""
        return await self._many("api_deliveries", {"callback_id": callback_id}, DeliveryInfo)
