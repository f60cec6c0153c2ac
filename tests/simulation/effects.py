"""The handlers of the simulation, and their effects.

Effects are recorded outside of the engine: they are not unique, and are never removed. The record has how often each
attempt was executed, and the effect of each execution. An effect counts once a report that names it was accepted.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dagmaster.errors import HandlerFailed, Unavailable, UnfitData
from dagmaster.handlers.context import Context
from dagmaster.handlers.registry import Registry
from dagmaster.testing.trial import FunctionRegistration
from tests.simulation.virtual_loop import LANE

QUEUE = "dag-worker-tasks"
TIMEOUT_SECONDS = 4.0
_SECONDS = (0.0, 0.0, 0.001, 0.05, 0.4, 1.5, 3.5)
_IGNORED_CANCEL_SECONDS = 20.0  # longer than the engine waits for a worker
_BULK = "x" * 270_000  # too large for a row


@dataclass
class Effects:
    executed: Counter[str] = field(default_factory=Counter)  # by task id
    finished: dict[str, str] = field(default_factory=dict)  # by id of the effect: the id of its task
    ended: dict[str, tuple[str, float]] = field(default_factory=dict)  # by task id: process and time of the end

    def finish(self, task_id: str) -> str:
        effect = f"{task_id}@{LANE.get().name}"
        self.finished[effect] = task_id
        return effect


class ScriptedHandlers:
    """The handlers `work`, `child` and `gather`: each attempt does what the script of its case says."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.effects = Effects()

    def registry(self) -> Registry:
        async def handle(ctx: Context) -> Any:
            return await self._run(ctx)

        def registration(name: str) -> FunctionRegistration:
            return FunctionRegistration(name, f"simulation:{name}", True, QUEUE, TIMEOUT_SECONDS, function=handle)

        return Registry([registration(name) for name in ("work", "child", "gather")])

    async def _run(self, ctx: Context) -> Any:
        world = self._world
        case = world.case_of(ctx.job_id)
        random = Random(f"{world.seed}/{ctx.node_id}/{ctx.attempt}")
        script = case.scripts.get(ctx.node_id, [])
        role = script[ctx.attempt - 1] if ctx.attempt <= len(script) else "succeed"
        self.effects.executed[ctx.task_id] += 1
        world.record(LANE.get(), f"executes {ctx.node_id} attempt {ctx.attempt}: {role}")
        try:
            return await self._follow_script(ctx, role, case.values.get(ctx.node_id, 1), random)
        finally:
            self.effects.ended[ctx.task_id] = (LANE.get().name, world.loop.now)

    async def _follow_script(self, ctx: Context, role: str, value: int, random: Random) -> Any:
        await self._wait(ctx, random)
        if random.random() < 0.5:
            await ctx.save_checkpoint("half", {"attempt": ctx.attempt})
            await self._wait(ctx, random)
        match role:
            case "handler" | "engine":
                raise HandlerFailed("the handler failed")
            case "environment":
                raise Unavailable("a service is unavailable")
            case "data":
                raise UnfitData("the data is invalid")
            case "lost":
                await self._world.kill_caller(LANE.get())
            case "overran":
                await _overrun(ignores_cancel=random.random() < 0.5)
        return self._output(ctx, value, random)

    def _output(self, ctx: Context, value: int, random: Random) -> dict[str, Any]:
        output = {"v": value, "items": list(range(value)), "effect": self.effects.finish(ctx.task_id)}
        return output | ({"bulk": _BULK} if random.random() < 0.01 else {})

    async def _wait(self, ctx: Context, random: Random) -> None:
        """Work for a while. Most attempts notice a request to stop."""
        if seconds := random.choice(_SECONDS):
            await asyncio.sleep(seconds)
        if (ctx.cancelled or ctx.shutting_down) and random.random() < 0.8:
            raise ctx.give_back()


async def _overrun(*, ignores_cancel: bool) -> None:
    if not ignores_cancel:
        await asyncio.sleep(10 * TIMEOUT_SECONDS)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _IGNORED_CANCEL_SECONDS
    while (left := deadline - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
