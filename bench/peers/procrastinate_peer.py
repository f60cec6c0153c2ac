"""procrastinate: only a queue. Results and the fan-in are implemented here: one insert for each task, and a query that
counts them.

Uses LISTEN/NOTIFY, concurrent tasks on a pool, and one `batch_defer` for the whole fan-out.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

import procrastinate
from driver import CHAIN_STEPS, JOB_STEPS, Driver, Peer, main, pause, ready

CONCURRENCY = 20
CONNECTIONS = 10
TABLE = "CREATE TABLE results (job text, step int, result jsonb, PRIMARY KEY (job, step))"
STORE = "INSERT INTO results VALUES (%(job)s, %(step)s, '{}')"


def app_of(dsn: str) -> procrastinate.App:
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=CONNECTIONS, max_size=CONNECTIONS)
    app = procrastinate.App(connector=connector)

    @app.task(name="prepare")
    async def prepare(job: str, count: int) -> None:
        await app.configure_task("task").batch_defer_async(*({"job": job, "step": n} for n in range(count)))

    @app.task(name="task")
    async def task(job: str, step: int) -> None:
        await connector.execute_query_async(STORE, job=job, step=step)

    @app.task(name="join")
    async def join(job: str) -> None:
        await connector.execute_query_all_async("SELECT result FROM results WHERE job = %(job)s", job=job)
        await connector.execute_query_async(STORE, job=job, step=-1)

    @app.task(name="step")
    async def step(job: str, step: int, steps: int) -> None:
        await connector.execute_query_async(STORE, job=job, step=step)
        if step + 1 < steps:
            await app.configure_task("step").defer_async(job=job, step=step + 1, steps=steps)

    return app


async def install(dsn: str) -> None:
    async with app_of(dsn).open_async() as app:
        await app.schema_manager.apply_schema_async()
        await app.connector.execute_query_async(TABLE)


async def work(dsn: str) -> None:
    async with app_of(dsn).open_async() as app:
        ready()
        await app.run_worker_async(concurrency=CONCURRENCY, listen_notify=True)


class ProcrastinateDriver:
    def __init__(self, app: procrastinate.App) -> None:
        self.app = app

    async def fan(self, count: int) -> None:
        job = str(uuid.uuid4())
        await self.app.configure_task("prepare").defer_async(job=job, count=count)
        await self._until(count, "job = %(job)s", job=job)
        await self.app.configure_task("join").defer_async(job=job)
        await self._until(1, "job = %(job)s AND step = -1", job=job)

    async def chain(self, count: int) -> None:
        await self._steps(count, CHAIN_STEPS)

    async def jobs(self, count: int) -> None:
        await self._steps(count, JOB_STEPS)

    async def _steps(self, count: int, steps: int) -> None:
        jobs = [str(uuid.uuid4()) for _ in range(count)]
        first = [{"job": job, "step": 0, "steps": steps} for job in jobs]
        await self.app.configure_task("step").batch_defer_async(*first)
        await self._until(count, "job = ANY (%(jobs)s) AND step = %(last)s", jobs=jobs, last=steps - 1)

    async def _until(self, count: int, where: str, **values: object) -> None:
        sql = f"SELECT count(*) AS count FROM results WHERE {where}"
        while (succeeded := (await self.app.connector.execute_query_one_async(sql, **values))["count"]) < count:
            await asyncio.sleep(pause(count - succeeded))


async def drive(dsn: str, serve: Callable[[Driver], Awaitable[None]]) -> None:
    async with app_of(dsn).open_async() as app:
        await serve(ProcrastinateDriver(app))


if __name__ == "__main__":
    main(Peer(install, work, drive, asyncio.run))
