"""dagmaster as released, on the server of the benchmark: orchestrators and workers are processes, and jobs are
submitted through the ledger."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.history import HistoryReport, verify
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.database.schema.deploy import deploy
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.submit import prepare
from dagmaster.workflows.load import read
from server import Server

DATABASE = "ours"
QUEUE, UNSERVED = "dag-worker-tasks", "unserved"
CHAIN_STEPS, JOB_STEPS = 20, 3
END_POLL_SECONDS = 0.01  # the same as the peers' drivers
PATIENCE_SECONDS = 400
PROGRESS_SECONDS = 10
RASTER_LIBRARIES = ("rasterio", "numpy", "gdal", "pyproj", "shapely", "titiler")


def fan(workflow_id: str, queue: str) -> str:
    return f"""
        workflow_id: {workflow_id}
        inputs: {{count: {{type: integer, required: true}}}}
        nodes:
          start: {{type: start, next: prepare}}
          prepare: {{handler: make_list, params: {{count: "{{{{ inputs.count }}}}"}}, next: split}}
          split:
            type: fan_out
            source: "{{{{ nodes.prepare.output.items }}}}"
            task: {{handler: noop, queue: {queue}, params: {{number: "{{{{ item }}}}"}}}}
            next: join
          join: {{type: fan_in, next: end}}
          end: {{type: end}}
    """


def chain(length: int) -> str:
    steps = [f"  s{n}: {{handler: noop, next: {f's{n + 1}' if n < length - 1 else 'end'}}}" for n in range(length)]
    return "\n".join(
        [f"workflow_id: chain{length}", "nodes:", "  start: {type: start, next: s0}", *steps, "  end: {type: end}"]
    )


TEXTS = (fan("fan", QUEUE), fan("stuck", UNSERVED), chain(CHAIN_STEPS), chain(JOB_STEPS), chain(1))
WORKFLOWS = WorkflowLibrary({w.workflow_id: w for w in (read(textwrap.dedent(text), "bench") for text in TEXTS)})


@dataclass
class Platform:
    """Running roles on one database, and the client that submits to them."""

    dsn: str
    ledger: PostgresLedger
    notifier: PostgresNotifier
    connection: psycopg.AsyncConnection[Any]
    pids: dict[str, int]
    name: str = "dagmaster"
    database: str = DATABASE

    async def fan(self, count: int) -> float:
        return await self.run("fan", count=count)

    async def chain(self) -> float:
        return await self.run(f"chain{CHAIN_STEPS}")

    async def jobs(self, count: int) -> float:
        return await self.run(f"chain{JOB_STEPS}", jobs=count)

    async def run(self, workflow_id: str, jobs: int = 1, **inputs: Any) -> float:
        """Seconds from before the submission until all jobs have completed."""
        started = time.perf_counter()
        await self.finished(await self.submit(workflow_id, jobs, **inputs))
        return time.perf_counter() - started

    async def submit(self, workflow_id: str, jobs: int = 1, **inputs: Any) -> list[UUID]:
        submissions = [
            prepare(WORKFLOWS, Submission(workflow_id=workflow_id, input_params=inputs)) for _ in range(jobs)
        ]
        return await self.ledger.create_jobs(submissions)

    async def finished(self, ids: list[UUID]) -> None:
        await self.until(
            "SELECT count(*) = 0 /* bench query */ FROM dagapp.dag_jobs"
            " WHERE job_id = ANY (%s) AND completed_at IS NULL",
            ids,
        )
        (completed,) = await self.row(
            "SELECT count(*) /* bench query */ FROM dagapp.dag_jobs WHERE job_id = ANY (%s) AND status = 'completed'",
            ids,
        )
        if completed != len(ids):
            raise SystemExit(f"bench: {len(ids) - completed} of {len(ids)} jobs did not complete")

    async def until(self, sql: str, *values: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (await self.row(sql, *values))[0]:
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: the condition was not met within {PATIENCE_SECONDS} s: {sql}")
            await asyncio.sleep(END_POLL_SECONDS)

    async def row(self, sql: str, *values: Any) -> tuple[Any, ...]:
        row = await (await self.connection.execute(sql, values)).fetchone()
        assert row is not None
        return row

    def pid(self, role: str) -> list[int]:
        return [pid for name, pid in self.pids.items() if name.startswith(role)]

    def raster_code(self) -> list[str]:
        """The raster libraries that an orchestrator has loaded: those with a compiled part in its memory."""
        maps = "".join(Path(f"/proc/{pid}/maps").read_text().lower() for pid in self.pid("orchestrator"))
        return [name for name in RASTER_LIBRARIES if name in maps]


@contextmanager
def roles(dsn: str, orchestrators: int, workers: int, *, api: bool) -> Iterator[dict[str, int]]:
    environment = {**os.environ, "DATABASE_URL": dsn, "LOG_LEVEL": "warning", "API_PORT": "0"}
    environment |= {"API_ENABLED": str(api).lower(), "KNOWN_QUEUES": f"{QUEUE},{UNSERVED}", "WORKER_QUEUE": QUEUE}
    kinds = ["orchestrator"] * orchestrators + ["worker"] * workers
    running = [subprocess.Popen([sys.executable, "-m", "dagmaster", kind], env=environment) for kind in kinds]
    try:
        yield {f"{kind} {n + 1}": process.pid for n, (kind, process) in enumerate(zip(kinds, running, strict=True))}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


def new_database(server: Server, name: str = DATABASE) -> None:
    deploy(server.fresh(name))


@asynccontextmanager
async def platform(
    server: Server, database: str = DATABASE, *, orchestrators: int = 1, workers: int = 2, api: bool = False
) -> AsyncIterator[Platform]:
    dsn = server.cluster.dsn_of(database)
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    notifier = PostgresNotifier(dsn)
    ledger = PostgresLedger(dsn, "bench", notifier)
    notifier.start()
    try:
        with roles(dsn, orchestrators, workers, api=api) as pids:
            platform = Platform(dsn, ledger, notifier, connection, pids, database=database)
            await platform.run("chain1")  # afterwards all roles are ready
            yield platform
    finally:
        await notifier.close()
        await ledger.close()
        await connection.close()


async def verified(server: Server, database: str = DATABASE) -> dict[str, int]:
    noted_at = time.monotonic()

    def print_progress(so_far: HistoryReport) -> None:
        nonlocal noted_at
        if time.monotonic() - noted_at > PROGRESS_SECONDS:
            noted_at = time.monotonic()
            print(f"  {so_far.events_checked:,} events verified", flush=True)

    report = await verify(server.cluster.dsn_of(database), on_progress=print_progress)
    return {"jobs": report.jobs_checked, "events": report.events_checked, "findings": len(report.findings)}
