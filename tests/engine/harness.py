"""An engine inside a test: orchestrators and workers as tasks of the test's own loop, on a real database.

`Engine` starts and stops them, submits, and waits for outcomes. Tests that need processes of their own start them
through `tests/engine/processes.py`.
"""

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from dagmaster.database.connect import pool
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import SubmissionLedger
from dagmaster.database.maintenance.history import verify
from dagmaster.database.notify.notifier import JOBS, RESULTS
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.errors import HandlerFailed
from dagmaster.handlers.registry import Registration, Registry, installed
from dagmaster.jobs.model import Submission
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.rendering import AT_ONCE_SECONDS, RenderLimits
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.operations.submit import prepare
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.roles.transports import orchestrator_transport, worker_topics, worker_transport
from dagmaster.settings import Settings, load
from dagmaster.worker.loop import Worker
from dagmaster.workflows.load import WorkflowLimits, read
from dagmaster.workflows.model import Workflow
from tests.workflow_library import library_of

FAST = {
    "orchestrator_poll_interval": 0.2,
    "heartbeat_interval_sec": 0.2,
    "orphan_threshold_sec": 1.0,
    "orphan_scan_interval_sec": 0.2,
    "task_lease_sec": 1.5,
    "lease_renew_sec": 0.3,
    "worker_poll_interval": 0.2,
    "shutdown_grace_sec": 2.0,
}


# Handlers that only tests need.


async def give(ctx: Any) -> Any:
    """Return the value in its params, or fail if they say so."""
    if ctx.params.get("fail"):
        raise HandlerFailed(str(ctx.params.get("message", "failed as requested")))
    return ctx.params.get("value")


_opened: set[str] = set()


def open_gate(job_id: UUID, node_id: str = "*") -> None:
    _opened.add(f"{job_id}/{node_id}")


async def gate(ctx: Any) -> dict[str, str]:
    """Run until the test calls `open_gate` for this node or for all nodes of the job."""
    gates = {f"{ctx.job_id}/{ctx.node_id}", f"{ctx.job_id}/*"}
    while not gates & _opened:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        await asyncio.sleep(0.005)
    return {"passed": ctx.node_id}


TEST_HANDLERS = (
    Registration("give", "tests.engine.harness:give"),
    Registration("gate", "tests.engine.harness:gate"),
)


def fast_settings(**overrides: Any) -> Settings:
    return load(**{**FAST, **overrides})


def workflow(text: str) -> Workflow:
    return read(textwrap.dedent(text), "test.yaml", limits=WorkflowLimits(), handlers=None, queues=None)


async def submit(ledger: SubmissionLedger, library: WorkflowLibrary, submissions: Iterable[Submission]) -> list[UUID]:
    """Create jobs for these submissions: all or none."""
    return await ledger.create_jobs([prepare(library, submission) for submission in submissions])


class Engine:
    def __init__(
        self,
        dsn: str,
        settings: Settings | None = None,
        handlers: Iterable[Registration] = (),
        *,
        has_notifiers: bool = True,
    ) -> None:
        """Without notifiers, work is found by polling."""
        self.dsn = dsn
        self.has_notifiers = has_notifiers
        self.settings = settings or fast_settings()
        self.registry = Registry([*installed().values(), *TEST_HANDLERS, *handlers])
        self.library: WorkflowLibrary = library_of(self.settings, self.registry)
        self.notifier = PostgresNotifier(dsn)
        self.ledger = PostgresLedger(dsn, "test", self.notifier)
        self.orchestrators: list[Orchestrator] = []
        self.workers: list[Worker] = []
        self._running: list[asyncio.Task[Any]] = []
        self._closing: list[Any] = []
        self._reader: psycopg.AsyncConnection[dict[str, Any]] | None = None

    # Starting

    async def start_orchestrator(self) -> Orchestrator:
        notifier = PostgresNotifier(self.dsn, [JOBS, RESULTS])
        if self.has_notifiers:
            notifier.start()
        router = RegistryRouter(self.registry, self.settings.known_queues, self.settings.default_queue)
        planner = Planner(
            router,
            Random(1),
            max_losses=self.settings.max_losses,
            max_fan_out=self.settings.max_fan_out,
            max_params_bytes=self.settings.max_params_bytes,
            render_limits=RenderLimits(self.settings.template_timeout_sec, AT_ONCE_SECONDS),
        )
        chosen = orchestrator_transport(self.settings, self.dsn, notifier)
        ledger = PostgresLedger(self.dsn, "orchestrator", notifier, writes_outbox=chosen.relay is not None)
        beats = PostgresLedger(self.dsn, "beat")
        orchestrator = Orchestrator(
            self.settings,
            ledger,
            beats,
            notifier,
            chosen.transport,
            planner,
            self.library,
            relay=chosen.relay,
            job_queue=chosen.job_queue,
        )
        self._closing += [chosen, notifier, ledger, beats]
        self.orchestrators.append(orchestrator)
        self._running.append(asyncio.create_task(orchestrator.run()))
        return orchestrator

    async def start_worker(self, queues: Iterable[str] | None = None, **overrides: Any) -> Worker:
        settings = self.settings.model_copy(update=overrides)
        served = tuple(queues or settings.worker_queue)
        settings = settings.model_copy(update={"worker_queue": served})
        worker_id = uuid4()
        notifier = PostgresNotifier(self.dsn, worker_topics(settings, worker_id))
        if self.has_notifiers:
            notifier.start()
        ledgers = [PostgresLedger(self.dsn, role, notifier) for role in ("worker", "lease", "handler")]
        database = pool(self.dsn, "handlers", 0, 4)
        await database.open()
        chosen = worker_transport(settings, notifier, ledgers[1], worker_id)
        worker = Worker(
            chosen.settings,
            ledgers[0],
            chosen.transport,
            notifier,
            self.registry,
            lease_ledger=ledgers[1],
            handler_ledger=ledgers[2],
            worker_id=worker_id,
            database=database,
        )
        self._closing += [chosen, notifier, *ledgers, database]
        self.workers.append(worker)
        self._running.append(asyncio.create_task(worker.run()))
        return worker

    async def close(self) -> None:
        for actor in (*self.workers, *self.orchestrators):
            actor.stop()
        results = await asyncio.wait_for(asyncio.gather(*self._running, return_exceptions=True), 20)
        for part in (*self._closing, self.notifier, self.ledger, *([self._reader] if self._reader else [])):
            await part.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    # Using

    def add(self, *workflows: Workflow) -> None:
        known = {**self.library.workflows, **{w.workflow_id: w for w in workflows}}
        self.library = replace(self.library, workflows=known)
        for orchestrator in self.orchestrators:
            orchestrator.library = self.library

    async def submit(self, workflow_id: str | Workflow, **inputs: Any) -> UUID:
        if isinstance(workflow_id, Workflow):
            self.add(workflow_id)
            workflow_id = workflow_id.workflow_id
        (job_id,) = await self.submit_all([Submission(workflow_id=workflow_id, input_params=inputs)])
        return job_id

    async def submit_all(self, submissions: Sequence[Submission]) -> list[UUID]:
        return await submit(self.ledger, self.library, submissions)

    async def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        if self._reader is None or self._reader.closed:
            self._reader = await psycopg.AsyncConnection.connect(
                self.dsn, row_factory=dict_row, autocommit=True, application_name="harness"
            )
            # pypgstac sets another parser for all connections, which refuses some of the rows that tests write.
            set_json_loads(json.loads, self._reader)
        cursor = await self._reader.execute(sql, values or None)
        return await cursor.fetchall() if cursor.description else []

    async def value(self, sql: str, *values: Any) -> Any:
        """The first column of the first row."""
        return next(iter((await self.rows(sql, *values))[0].values()))

    async def job(self, job_id: UUID) -> dict[str, Any]:
        return (await self.rows("SELECT * FROM dagapp.dag_jobs WHERE job_id = %s", job_id))[0]

    async def nodes(self, job_id: UUID) -> dict[str, dict[str, Any]]:
        rows = await self.rows("SELECT * FROM dagapp.dag_node_states WHERE job_id = %s", job_id)
        return {row["node_id"]: row for row in rows}

    async def events(self, job_id: UUID) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM dagapp.dag_job_events WHERE job_id = %s ORDER BY sequence", job_id)

    async def tasks(self, job_id: UUID) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM dagapp.dag_tasks WHERE job_id = %s ORDER BY node_id, attempt", job_id)

    async def wait(self, job_id: UUID, timeout: float = 60, until: tuple[str, ...] = ()) -> dict[str, Any]:
        ends = until or ("completed", "partial_success", "failed", "cancelled")
        async with asyncio.timeout(timeout):
            while True:
                job = await self.job(job_id)
                if job["status"] in ends:
                    return job
                await asyncio.sleep(0.02)

    async def run(self, workflow_id: str | Workflow, timeout: float = 60, **inputs: Any) -> dict[str, Any]:
        return await self.wait(await self.submit(workflow_id, **inputs), timeout)


async def until(holds: Callable[[], Awaitable[Any]], timeout: float = 60) -> Any:
    """Wait until a result is true, and return it."""
    async with asyncio.timeout(timeout):
        while not (value := await holds()):
            await asyncio.sleep(0.02)
        return value


async def check_history(dsn: str, max_losses: int | None = None) -> None:
    """The events alone must be enough to rebuild every state."""
    report = await verify(dsn, max_losses=max_losses)
    assert report.is_clean, "\n".join(map(str, report.findings[:20]))


@asynccontextmanager
async def engine(
    dsn: str,
    *,
    orchestrators: int = 1,
    workers: int = 1,
    handlers: Iterable[Registration] = (),
    has_notifiers: bool = True,
    verify_history: bool = True,
    **overrides: Any,
) -> AsyncIterator[Engine]:
    """A running engine. It ends with the history checker, unless the test has broken something on purpose."""
    log.configure("warning")
    running = Engine(dsn, fast_settings(**overrides), handlers, has_notifiers=has_notifiers)
    if has_notifiers:
        running.notifier.start()
    try:
        for _ in range(orchestrators):
            await running.start_orchestrator()
        for _ in range(workers):
            await running.start_worker()
        yield running
    finally:
        await running.close()
    if verify_history:
        await check_history(dsn, running.settings.max_losses)
