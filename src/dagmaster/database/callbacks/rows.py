"""Callbacks as the sender gets them, and the limits of a claim."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that this process delivers now. `number` counts all its attempts, `tries` those since it was
    created or last repeated on request. `now` is the time of the claim by the database's clock."""

    callback_id: UUID
    sequence: int
    request_id: str
    platform_id: str
    status: str
    url: str = field(repr=False)
    job_id: UUID | None
    number: int
    tries: int
    now: datetime
    traceparent: str | None = None  # of its job, or of the job of its request
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CallbackLimits:
    """`lease_seconds` must exceed the time that an attempt may take."""

    lease_seconds: float
    per_receiver: int
    max_tries: int


@dataclass(frozen=True, slots=True)
class ClaimedCallbacks:
    callbacks: tuple[ClaimedCallback, ...]
    are_pending: bool  # whether any callbacks are pending, these or others
