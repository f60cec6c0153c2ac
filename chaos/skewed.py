"""Run a role whose wall clock is wrong by hours, and jumps every few seconds.

    python -m chaos.skewed orchestrator

Only the wall clock that Python code reads is wrong, because more would need privileges. The clock of PostgreSQL and the
monotonic clock are right.
"""

import time
from collections.abc import Callable

HOUR = 3600
JUMP_SECONDS = 3.0
OFFSETS = (HOUR, -HOUR, 5 * HOUR, -24 * HOUR)


def offset_at(monotonic_seconds: float) -> int:
    """How many seconds the clock is wrong at a moment."""
    return OFFSETS[int(monotonic_seconds / JUMP_SECONDS) % len(OFFSETS)]


def skew(
    seconds: Callable[[], float] = time.time, nanoseconds: Callable[[], int] = time.time_ns
) -> tuple[Callable[[], float], Callable[[], int]]:
    def wrong_seconds() -> float:
        return seconds() + offset_at(time.monotonic())

    def wrong_nanoseconds() -> int:
        return nanoseconds() + offset_at(time.monotonic()) * 10**9

    return wrong_seconds, wrong_nanoseconds


if __name__ == "__main__":
    time.time, time.time_ns = skew()
    from dagmaster.cli.main import main

    main()
