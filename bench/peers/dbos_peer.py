"""DBOS: durable workflows. A job is a workflow with steps; a fan-out enqueues child workflows on a queue.

All children are enqueued in one transaction, instead of one call and commit for each, and dequeued in batches; the
fan-in is one step that reads every child's output. The driver runs the jobs that fan out: it is a third process in
addition to the two workers. Its calls block, so each request has a thread.
"""

import asyncio
import signal
import time
import uuid
from collections.abc import Awaitable, Callable

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig
from driver import CHAIN_STEPS, END_POLL_SECONDS, JOB_STEPS, Driver, Peer, main, ready

CONCURRENCY = 100
THREADS = 8
POLL_SECONDS = 0.1
WORK = "work"
OPEN = ["ENQUEUED", "PENDING", "DELAYED"]


@DBOS.step()
def noop() -> dict[str, int]:
    return {}


@DBOS.workflow(name="task")
def task(_number: int) -> dict[str, int]:
    return {}


@DBOS.workflow(name="steps")
def steps(count: int) -> dict[str, int]:
    for _ in range(count):
        noop()
    return {}


class DbosDriver:
    def __init__(self, dsn: str) -> None:
        self.client = DBOSClient(system_database_url=dsn)
        self.engine = sqlalchemy.create_engine(dsn)

        @DBOS.step()
        def prepare(count: int) -> list[int]:
            return list(range(count))

        @DBOS.step()
        def spread(job: str, numbers: list[int]) -> None:
            self._enqueue("task", job, numbers)

        @DBOS.step()
        def join(job: str) -> int:
            self._wait(job)
            return len(self.client.list_workflows(workflow_id_prefix=job, status="SUCCESS", load_input=False))

        @DBOS.workflow(name="fan")
        def fan(count: int) -> None:
            job = f"{uuid.uuid4()}-"
            spread(job, prepare(count))
            if (joined := join(job)) != count:
                raise RuntimeError(f"{joined} of {count} children succeeded")

        self._fan = fan

    async def fan(self, count: int) -> None:
        await asyncio.to_thread(self._fan, count)

    async def chain(self, count: int) -> None:
        await asyncio.to_thread(self._chain, count)

    async def jobs(self, count: int) -> None:
        job = f"{uuid.uuid4()}-"
        await asyncio.to_thread(self._jobs, job, count)

    def _chain(self, count: int) -> None:
        for handle in [DBOS.start_workflow(steps, CHAIN_STEPS) for _ in range(count)]:
            handle.get_result()

    def _jobs(self, job: str, count: int) -> None:
        self._enqueue("steps", job, [JOB_STEPS] * count)
        self._wait(job)
        succeeded = len(self.client.list_workflows(workflow_id_prefix=job, status="SUCCESS"))
        if succeeded != count:
            raise RuntimeError(f"{succeeded} of {count} jobs succeeded")

    def _enqueue(self, name: str, prefix: str, arguments: list[int]) -> None:
        with self.engine.begin() as connection:
            for number, argument in enumerate(arguments):
                options = {"workflow_name": name, "queue_name": WORK, "workflow_id": f"{prefix}{number}"}
                self.client.enqueue_in_transaction(connection, {**options, "application_name": "bench"}, argument)

    def _wait(self, prefix: str) -> None:
        while self.client.list_workflows(
            workflow_id_prefix=prefix, status=OPEN, limit=1, load_input=False, load_output=False
        ):
            time.sleep(END_POLL_SECONDS)


def launch(dsn: str, listen: list[str]) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "application_version": "1",
        "executor_id": str(uuid.uuid4()),
        "system_database_url": url(dsn),
        "log_level": "ERROR",
        "sys_db_pool_size": THREADS,
        "max_executor_threads": THREADS,
    }
    DBOS(config=config)
    DBOS.listen_queues(listen)


def url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


async def install(dsn: str) -> None:
    launch(dsn, [])
    DBOS.launch()
    await DBOS.register_queue_async(WORK, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_SECONDS)
    DBOS.destroy()


async def work(dsn: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    launch(dsn, [WORK])
    DBOS.launch()
    ready()
    await stopped.wait()
    DBOS.destroy()


async def drive(dsn: str, serve: Callable[[Driver], Awaitable[None]]) -> None:
    launch(dsn, [])
    driver = DbosDriver(url(dsn))
    DBOS.launch()
    await serve(driver)
    DBOS.destroy()


if __name__ == "__main__":
    main(Peer(install, work, drive, asyncio.run))
