"""pgqueuer: only a queue. Results and the fan-in are implemented here: one insert for each task, and a query that
counts them.

Uses batches of 50, a pool, uvloop and LISTEN/NOTIFY, which its documentation recommends for speed, and one `enqueue`
for the whole fan-out.
"""

import asyncio
import json
import signal
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import uvloop
from driver import CHAIN_STEPS, JOB_STEPS, Driver, Peer, main, pause, ready
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 50
CONNECTIONS = 8
TABLE = "CREATE TABLE results (job text, step int, result jsonb, PRIMARY KEY (job, step))"
STORE = "INSERT INTO results VALUES ($1, $2, $3)"


async def install(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.execute(TABLE)
    await connection.close()


async def untouched(_connection: object) -> None:
    """Replaces the reset of a session by the pool, whose four statements use a fifth of the CPU of a task: no session
    is changed here."""


async def work(dsn: str) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS, reset=untouched)
    pgq = PgQueuer.from_asyncpg_pool(pool)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)

    @pgq.entrypoint("prepare")
    async def prepare(job: Job) -> None:
        payload = json.loads(job.payload or b"")
        payloads = [json.dumps({"job": payload["job"], "step": n}).encode() for n in range(payload["count"])]
        await pgq.qm.queries.enqueue(["task"] * len(payloads), payloads, [0] * len(payloads))

    @pgq.entrypoint("task")
    async def task(job: Job) -> None:
        payload = json.loads(job.payload or b"")
        await pool.execute(STORE, payload["job"], payload["step"], "{}")

    @pgq.entrypoint("join")
    async def join(job: Job) -> None:
        payload = json.loads(job.payload or b"")
        results = await pool.fetch("SELECT result FROM results WHERE job = $1", payload["job"])
        await pool.execute(STORE, payload["job"], -1, json.dumps({"count": len(results)}))

    @pgq.entrypoint("step")
    async def step(job: Job) -> None:
        payload = json.loads(job.payload or b"")
        await pool.execute(STORE, payload["job"], payload["step"], "{}")
        if payload["step"] + 1 < payload["steps"]:
            await pgq.qm.queries.enqueue("step", json.dumps({**payload, "step": payload["step"] + 1}).encode())

    ready()
    await pgq.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=1))


class PgQueuerDriver:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection, self.queries = connection, Queries(AsyncpgDriver(connection))

    async def fan(self, count: int) -> None:
        job = str(uuid.uuid4())
        await self.queries.enqueue("prepare", json.dumps({"job": job, "count": count}).encode())
        await self._until(count, "job = $1", job)
        await self.queries.enqueue("join", json.dumps({"job": job}).encode())
        await self._until(1, "job = $1 AND step = -1", job)

    async def chain(self, count: int) -> None:
        await self._steps(count, CHAIN_STEPS)

    async def jobs(self, count: int) -> None:
        await self._steps(count, JOB_STEPS)

    async def _steps(self, count: int, steps: int) -> None:
        jobs = [str(uuid.uuid4()) for _ in range(count)]
        payloads = [json.dumps({"job": job, "step": 0, "steps": steps}).encode() for job in jobs]
        await self.queries.enqueue(["step"] * count, payloads, [0] * count)
        await self._until(count, "job = ANY ($1) AND step = $2", jobs, steps - 1)

    async def _until(self, count: int, where: str, *values: object) -> None:
        sql = f"SELECT count(*) FROM results WHERE {where}"
        while (succeeded := await self.connection.fetchval(sql, *values)) < count:
            await asyncio.sleep(pause(count - succeeded))


async def drive(dsn: str, serve: Callable[[Driver], Awaitable[None]]) -> None:
    await serve(PgQueuerDriver(await asyncpg.connect(dsn)))


if __name__ == "__main__":
    main(Peer(install, work, drive, uvloop.run))
