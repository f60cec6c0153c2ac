"""How much work a template may cause: filters, tests and comparisons charge for the work that they are about to do.

A template has no loops, but `selectattr('k', 'in', list)` compares each item with each element, and one operation on
large values takes long by itself. Charges are made before the work, in units of about the same time, so that the same
template with the same values is refused everywhere. The CPU time of the thread is checked as well, because that
is what the limit is for; time that other processes or threads take does not count.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

TEMPLATE_SECONDS: Final = 2.0
UNITS_PER_SECOND: Final = 40_000_000  # one unit is about one comparison of two numbers
_UNITS_AT_ONCE: Final = UNITS_PER_SECOND // 4  # one operation blocks all threads until it has ended
_CHECK_EVERY: Final = 100_000

_local = threading.local()


class OutOfTime(Exception):
    """A template has used up its time."""


class Meter:
    """The time that a template, or several, may still use."""

    __slots__ = ("_check_at", "_limit", "_started", "seconds", "units")

    def __init__(self, seconds: float = TEMPLATE_SECONDS) -> None:
        self.seconds = seconds
        self.units = 0
        self._limit = int(seconds * UNITS_PER_SECOND)
        self._check_at = min(_CHECK_EVERY, self._limit)
        self._started = time.thread_time()

    def charge(self, units: int) -> None:
        self.units += units
        if self.units > self._check_at:
            self._check(units)

    def _check(self, units: int) -> None:
        is_late = time.thread_time() - self._started > self.seconds
        if is_late or self.units > self._limit or units > _UNITS_AT_ONCE:
            raise OutOfTime
        self._check_at = min(self.units + _CHECK_EVERY, self._limit)


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Charge the work of this thread's templates to the meter."""
    before = getattr(_local, "meter", None)
    _local.meter = meter
    try:
        yield
    finally:
        _local.meter = before


def charge(units: int) -> None:
    """Account for work that is about to be done. Raises OutOfTime if there is not enough time for it."""
    meter = getattr(_local, "meter", None)
    if meter is not None:
        meter.charge(units)


def charge_for(value: Any) -> int:
    """Charge for a value and everything in it; returns its units. A number or a text costs one."""
    if not isinstance(value, list | tuple | dict):
        charge(1)
        return 1
    units, pending = 1, [value]
    while pending:
        container = pending.pop()
        parts = container.values() if isinstance(container, dict) else container
        charge(1 + 2 * len(container))
        units += 1 + len(container)
        pending += [part for part in parts if isinstance(part, list | tuple | dict)]
    return units
