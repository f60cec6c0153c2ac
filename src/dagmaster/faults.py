"""Named crash points: places where a test may let the process die.

`reach("name")` does nothing unless that point was armed (settings: CRASH_POINT=name or name:3 for the third time). An
armed point ends the process at once, as kill -9 would: no clean-up, no flush, no rollback message.
"""

import os

POINTS = (
    "orchestrator.claimed",
    "orchestrator.fenced",
    "orchestrator.before-commit",
    "orchestrator.after-commit",
    "orchestrator.after-publish",
    "worker.after-receive",
    "worker.before-claim",
    "worker.after-claim",
    "worker.before-settle",
    "worker.after-settle",
    "worker.before-store",
    "worker.after-store",
    "worker.after-handler",
    "worker.after-report",
    "handler.before-publish",
    "handler.after-publish",
    "catalogue.before-commit",
    "catalogue.after-commit",
    "submit.before-commit",
    "submit.after-commit",
)

_armed: tuple[str, int] | None = None


def arm(point: str | None) -> None:
    """Arm one point (`name` or `name:count`), or none."""
    global _armed  # noqa: PLW0603 - one process, one crash
    if point is None:
        _armed = None
        return
    name, _, count = point.partition(":")
    if name not in POINTS:
        raise ValueError(f"no crash point named {name!r}; known: {', '.join(POINTS)}")
    _armed = (name, int(count or 1))


def armed() -> str | None:
    """What is armed, as `arm` takes it: for processes that do a part of this one's work."""
    return _armed and f"{_armed[0]}:{_armed[1]}"


def reach(point: str) -> None:
    global _armed  # noqa: PLW0603
    if _armed is None or _armed[0] != point:
        return
    if _armed[1] <= 1:
        os._exit(137)
    _armed = (point, _armed[1] - 1)
