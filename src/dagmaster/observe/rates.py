"""How often something happened within the last minute, by name. A few counters in memory, whatever the rate."""

import time
from collections import Counter, deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
SLOT_SECONDS = 5.0


class RateMeter:
    """Counts events in slots of a few seconds; slots older than a minute are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: deque[tuple[int, Counter[str]]] = deque()

    def add(self, name: str, count: int = 1) -> None:
        slot = int(self._clock() // SLOT_SECONDS)
        if not self._slots or self._slots[-1][0] != slot:
            self._forget_before(slot)
            self._slots.append((slot, Counter()))
        self._slots[-1][1][name] += count

    def per_minute(self) -> dict[str, int]:
        self._forget_before(int(self._clock() // SLOT_SECONDS))
        total: Counter[str] = Counter()
        for _, counts in self._slots:
            total += counts
        return dict(total)

    def _forget_before(self, slot: int) -> None:
        while self._slots and self._slots[0][0] <= slot - WINDOW_SECONDS / SLOT_SECONDS:
            self._slots.popleft()
