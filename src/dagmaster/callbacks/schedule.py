"""What follows an attempt to deliver a callback.

    pending ──▶ delivered                     the receiver responded with success (2xx)
       │  ▲
       │  └──── tried again after a delay     any other response, or none
       ▼
    failed                                    too many attempts, a refused URL, or the response 410 (Gone)

An operator can make a callback pending again; its attempts are then counted from 0.
"""

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from random import Random
from typing import Final

DELAYS_SECONDS: Final = (5.0, 30.0, 120.0, 600.0, 3600.0, 21_600.0)  # the last one is repeated
JITTER: Final = 0.2


class CallbackState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """How an attempt ended: with the status of a response, or with an error."""

    status_code: int | None = None
    error: str | None = None
    is_final: bool = False  # another attempt would end in the same way

    @property
    def is_success(self) -> bool:
        return self.error is None and self.status_code is not None and 200 <= self.status_code < 300


@dataclass(frozen=True, slots=True)
class Consequence:
    """`delay_seconds` is set if the callback is tried again."""

    state: CallbackState
    delay_seconds: float | None = None


def consequence_of(attempt: DeliveryAttempt, tries: int, *, max_tries: int, random: Random) -> Consequence:
    """What follows an attempt. `tries` counts the attempts so far, including this one."""
    if attempt.is_success:
        return Consequence(CallbackState.DELIVERED)
    if attempt.is_final or attempt.status_code == HTTPStatus.GONE or tries >= max_tries:
        return Consequence(CallbackState.FAILED)
    delay = DELAYS_SECONDS[min(max(tries, 1), len(DELAYS_SECONDS)) - 1]
    return Consequence(CallbackState.PENDING, delay * random.uniform(1 - JITTER, 1 + JITTER))
