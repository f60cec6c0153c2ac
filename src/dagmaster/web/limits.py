"""How many requests a caller may send: a token bucket for each caller, and one for each address without credentials."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dagmaster.errors import Unavailable

MAX_CALLERS: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimit:
    """`per_second` requests in the long run, `burst` at once. If there are too many callers, the entry of the least
    recent one is removed. `code` and `hint` are those of the error for a caller that has sent too many requests."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        code: str,
        hint: str,
    ) -> None:
        self._code = code
        self._hint = hint
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one request of this caller. Raises Unavailable (429) if it has sent too many."""
        now = self._clock()
        bucket = self._buckets.pop(caller, None) or _Bucket(self._burst, now)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.filled_at) * self._per_second)
        bucket.filled_at = now
        self._buckets[caller] = bucket
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1:
            raise Unavailable(
                f"too many requests: at most {self._per_second:g} a second, {self._burst:g} at once",
                code=self._code,
                hint=self._hint,
            )
        bucket.tokens -= 1

    def give_back(self, caller: str) -> None:
        """Do not count the last request of this caller."""
        if bucket := self._buckets.get(caller):
            bucket.tokens = min(self._burst, bucket.tokens + 1)
