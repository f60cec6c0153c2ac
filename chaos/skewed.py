"""Run a role whose wall clock is wrong: an hour off, and every few seconds by another hour.

    python -m chaos.skewed orchestrator

Only what Python code reads of the wall clock is wrong, as nothing else can be had without privileges; PostgreSQL's own
clock, and the monotonic one, which no jump moves, are right.
"""

import time
from collections.abc import Callable

HOUR = 3600
JUMP_SECONDS = 3.0
OFFSETS = (HOUR, -HOUR, 5 * HOUR, -24 * HOUR)


def offset_at(monotonic_seconds: float) -> int:
    """How wrong the clock is at a moment."""
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
