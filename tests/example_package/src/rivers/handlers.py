"""Handlers that measure rivers."""

import math
from itertools import pairwise

from pydantic import BaseModel

from dagmaster.errors import UnfitData
from dagmaster.handlers.context import Context, SyncContext
from dagmaster.handlers.registry import register_handler

# Takes the place of a web service: longitude and latitude of the bends of each river.
BENDS = {
    "Po": [(7.1, 44.7), (7.7, 45.1), (8.6, 45.1), (9.7, 45.1), (11.0, 45.0), (12.4, 45.0)],
    "Loire": [(4.2, 44.8), (4.1, 46.0), (3.2, 47.0), (1.9, 47.9), (0.7, 47.4), (-2.1, 47.3)],
}
KM_PER_DEGREE = 111.2


class River(BaseModel):
    river: str


class Course(BaseModel):
    river: str
    bends: list[tuple[float, float]]


class Length(BaseModel):
    river: str
    kilometres: float


@register_handler("rivers.fetch", timeout_seconds=60)
async def fetch(_ctx: Context, request: River) -> Course:
    """Waits for a web service, so it is async."""
    if request.river not in BENDS:
        known = ", ".join(BENDS)
        raise UnfitData(f"no river is named {request.river}", code="rivers.unknown", hint=f"known: {known}")
    return Course(river=request.river, bends=BENDS[request.river])


@register_handler("rivers.measure", memory_mb=256)
def measure(ctx: SyncContext, course: Course) -> Length:
    """Computes, so it is plain: it runs in a child process."""
    saved = ctx.load_checkpoint()
    done, kilometres = saved[1] if saved else (0, 0.0)
    stretches = list(pairwise(course.bends))
    for number, (start, end) in enumerate(stretches[done:], start=done + 1):
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        kilometres += _distance(start, end)
        ctx.save_checkpoint("stretches", [number, kilometres])
        ctx.progress(number / len(stretches), f"stretch {number}")
    ctx.logger.info("measured", river=course.river, stretches=len(stretches))
    return Length(river=course.river, kilometres=round(kilometres, 1))


def _distance(start: tuple[float, float], end: tuple[float, float]) -> float:
    """Equirectangular approximation, accurate enough for short distances."""
    east = (end[0] - start[0]) * math.cos(math.radians((start[1] + end[1]) / 2))
    return math.hypot(east, end[1] - start[1]) * KM_PER_DEGREE
