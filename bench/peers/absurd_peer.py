"""Absurd: durable workflows. A job is a task with steps; a fan-out spawns children into a queue of their own.

All children are spawned in one transaction and claimed in batches; the fan-in is one step that waits for every child's
result. The driver runs the jobs that fan out, because such a task waits for its children: it is a third process in
addition to the two workers.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from driver import CHAIN_STEPS, END_POLL_SECONDS, JOB_STEPS, Driver, Peer, main, ready

BATCH = 50
POLL_SECONDS = 0.02
CLAIM_SECONDS = 600
WORK, JOBS = "work", "jobs"


async def install(dsn: str) -> None:
    subprocess.run(
        [Path(sys.executable).with_name("absurdctl"), "init", "-d", dsn], check=True, stdout=subprocess.DEVNULL
    )
    app = AsyncAbsurd(dsn)
    await app.create_queue(WORK)
    await app.create_queue(JOBS)
    await app.close()


async def work(dsn: str) -> None:
    app = AsyncAbsurd(dsn, queue_name=WORK)

    @app.register_task(name="task")
    async def task(_params: Any, _ctx: Any) -> dict[str, Any]:
        return {}

    @app.register_task(name="steps")
    async def steps(params: Any, ctx: Any) -> dict[str, Any]:
        for number in range(params["steps"]):
            await ctx.step(f"step {number}", noop)
        return {}

    ready()
    await app.start_worker(concurrency=BATCH, batch_size=BATCH, poll_interval=POLL_SECONDS, claim_timeout=CLAIM_SECONDS)


async def noop() -> dict[str, Any]:
    return {}


class AbsurdDriver:
    def __init__(self, jobs: AsyncAbsurd, connection: psycopg.AsyncConnection[Any]) -> None:
        self.app, self.connection = jobs, connection
        self.client = AsyncAbsurd(connection, queue_name=WORK)

        @jobs.register_task(name="fan")
        async def fan(params: Any, ctx: Any) -> dict[str, Any]:
            async def prepare() -> list[int]:
                return list(range(params["count"]))

            async def spread() -> list[str]:
                return await self.spawn("task", [{"number": n} for n in numbers])

            async def join() -> int:
                return len([await self.client.await_task_result(child) for child in children])

            numbers = await ctx.step("prepare", prepare)
            children = await ctx.step("spread", spread)
            return {"count": await ctx.step("join", join)}

    async def spawn(self, name: str, params: list[dict[str, Any]]) -> list[str]:
        async with self.connection.transaction():
            return [str((await self.client.spawn(name, one, queue=WORK))["task_id"]) for one in params]

    async def fan(self, count: int) -> None:
        spawned = await self.app.spawn("fan", {"count": count})
        await self._until([str(spawned["task_id"])], JOBS)

    async def chain(self, count: int) -> None:
        await self._until(await self.spawn("steps", [{"steps": CHAIN_STEPS}] * count), WORK)

    async def jobs(self, count: int) -> None:
        await self._until(await self.spawn("steps", [{"steps": JOB_STEPS}] * count), WORK)

    async def _until(self, tasks: list[str], queue: str) -> None:
        for task in tasks:
            while (result := await self.client.fetch_task_result(task, queue)) is None or result.state != "completed":
                if result is not None and result.state in {"failed", "cancelled"}:
                    raise RuntimeError(f"a task is {result.state}: {result}")
                await asyncio.sleep(END_POLL_SECONDS)


async def drive(dsn: str, serve: Callable[[Driver], Awaitable[None]]) -> None:
    app = AsyncAbsurd(dsn, queue_name=JOBS)
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    driver = AbsurdDriver(app, connection)
    worker = asyncio.create_task(app.start_worker(poll_interval=POLL_SECONDS, claim_timeout=CLAIM_SECONDS))
    await serve(driver)
    worker.cancel()


if __name__ == "__main__":
    main(Peer(install, work, drive, asyncio.run))
