"""Callbacks to submitters, the attempts to deliver them, and the secrets that sign them."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, field_serializer

from dagmaster.callbacks.schedule import CallbackState
from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.observe.redaction import redact

DAY_SECONDS = 86_400


class CallbackInfo(ApiModel):
    """A callback: the status that is sent, and the state of its delivery. Its id is the `webhook-id` of every attempt.
    A `pending` callback waits for its next attempt, or is being delivered (`is_under_way`)."""

    callback_id: UUID
    sequence: Annotated[int, Field(description="Callbacks of a request are delivered in this order")]
    request_id: str
    platform_id: str
    status: Annotated[str, Field(description="The status that is sent")]
    url: str
    job_id: UUID | None = Field(None, description="Set for a job that belongs to no asset")
    state: Extensible[CallbackState]
    is_under_way: bool
    attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    ended_at: datetime | None
    last_status_code: int | None = Field(None, description="The response to the last attempt")
    last_error: str | None = Field(None, description="Why the last attempt had no response")

    @field_serializer("url")
    def _without_secrets(self, url: str) -> str:
        return redact(url)


class DeliveryInfo(ApiModel):
    """One attempt to deliver a callback. Without `finished_at` it is under way, or its process has died."""

    number: int
    started_at: datetime
    finished_at: datetime | None
    status_code: int | None
    error: str | None
    next_attempt_at: datetime | None


class CallbackDetail(CallbackInfo):
    """A callback with its payload and its attempts, the newest first."""

    payload: dict[str, str]
    deliveries: list[DeliveryInfo]


class RotateSecretRequest(RequestModel):
    """Callbacks are signed with the previous secret too, until the overlap is over; with 0 it is not used any more."""

    overlap_seconds: Annotated[float, Field(ge=0, le=90 * DAY_SECONDS)] = DAY_SECONDS


class RotatedSecret(ApiModel):
    """Only this response shows the secret. `previous_until` is null if there was no previous secret."""

    platform_id: str
    secret: str = Field(repr=False)
    created_at: datetime
    previous_until: datetime | None
