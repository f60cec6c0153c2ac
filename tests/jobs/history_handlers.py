"""A handler for tests of history: it fails as often as its params say, then succeeds."""

from typing import Any

from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.handlers.context import Context
from dagmaster.handlers.registry import Registration

STEP = Registration("step", "tests.jobs.history_handlers:step")


async def step(ctx: Context) -> dict[str, Any]:
    if ctx.params.get("unfit"):
        raise UnfitData("the data is invalid")
    if ctx.attempt <= ctx.params.get("fails", 0):
        raise HandlerFailed("not yet")
    return {"attempt": ctx.attempt, "node_id": ctx.node_id}
