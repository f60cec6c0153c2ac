"""The engine in memory, on virtual time: the real orchestrator and worker loops with the in-memory ledger.

Differences from a platform: rows are stored in dictionaries (no SQL, no `ctx.database`), plain handlers run in this
process unless `isolate` is set, and hours pass in milliseconds.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar
from uuid import UUID

from dagmaster.database.ledger.protocol import Report
from dagmaster.database.notify.notifier import JOBS, RESULTS, Notifier
from dagmaster.handlers.registry import Registration, Registry, installed
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.model import Submission, new_job_id
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.rendering import RenderLimits
from dagmaster.jobs.states import JOB_TERMINAL, TaskStatus
from dagmaster.library.workflows import WorkflowLibrary, limits_of, load_library, workflow_files
from dagmaster.operations.submit import prepare
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.settings import Settings, load
from dagmaster.testing import plain
from dagmaster.testing.history import findings_of
from dagmaster.testing.job import KitJob
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.memory_notifier import MemoryExchange
from dagmaster.testing.memory_transport import Broker, MemoryTransport
from dagmaster.testing.trial import START, Handler, registration_for
from dagmaster.testing.virtual import virtual_loop
from dagmaster.worker.context import TaskContext
from dagmaster.worker.loop import Worker
from dagmaster.worker.outcome import describe
from dagmaster.worker.process_pool import Pool
from dagmaster.worker.run import Runner
from dagmaster.workflows.load import read
from dagmaster.workflows.model import Workflow

T = TypeVar("T")

# In-memory notifications are never lost, so polling is only needed for leases.
TEST_SETTINGS = {
    "orchestrator_poll_interval": 60.0,
    "heartbeat_interval_sec": 60.0,
    "orphan_threshold_sec": 240.0,
    "worker_poll_interval": 60.0,
    "task_lease_sec": 240.0,
    "lease_renew_sec": 60.0,
}
TIMEOUT_SECONDS = 7 * 24 * 3600.0

Fault = BaseException | None  # None: the worker is lost
Faults = dict[tuple[str, int], Fault]


class Kit:
    """An engine to run workflows on. Use it inside a function decorated with `virtual_time`:

        async with Kit() as kit:
            job = await kit.run("river_length", {"river": "Po"})
            job.expect("completed", result={"kilometres": 434.7})

    It has all installed handlers and workflows, as orchestrators and workers do. `handlers` adds handlers or replaces
    installed ones by name, such as those that call other services. `workflows` adds files, folders of files, or YAML
    texts. Other keyword arguments are settings. If the block ends without an error, the history of each job is checked.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler] | None = None,
        workflows: Iterable[Path | str] = (),
        orchestrators: int = 1,
        workers: int = 1,
        isolate: bool = False,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.settings: Settings = load(**{**TEST_SETTINGS, **settings})
        self.registry = _registry(handlers or {})
        self.library = _library(self.settings, self.registry, workflows)
        self._sizes = orchestrators, workers
        self._isolate = isolate
        self._random = Random(seed)  # noqa: S311 - runs must be repeatable
        self._faults: Faults = {}
        self._exchange, self._broker = MemoryExchange(), Broker()
        self._instances: list[tuple[Orchestrator | Worker, asyncio.Task[None]]] = []

    async def __aenter__(self) -> Self:
        self._loop = virtual_loop()
        self.database = MemoryDatabase(self.now)
        self.ledger = _SignallingLedger(self.database, self._exchange.notifier())
        orchestrators, workers = self._sizes
        for _ in range(orchestrators):
            self._start_orchestrator()
        for _ in range(workers):
            self._start_worker()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_traceback: object) -> None:
        for instance, _ in self._instances:
            instance.stop()
        ends = await asyncio.gather(*(running for _, running in self._instances), return_exceptions=True)
        if kind is not None:
            return
        for end in ends:
            if isinstance(end, Exception):
                raise end
        if findings := findings_of(self.database, max_losses=self.settings.max_losses):
            raise AssertionError("\n".join(map(str, findings)))

    # Jobs

    async def run(self, workflow_id: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> KitJob:
        """Submit a job and wait for its end, whatever its outcome."""
        return await self.wait(await self.submit(workflow_id, inputs, **options))

    async def submit(self, workflow_id: str, inputs: Mapping[str, Any] | None = None, **options: Any) -> UUID:
        """Submit a job; returns its id. Options are those of a submission: priority, correlation_id, submitted_by."""
        submission = Submission(workflow_id=workflow_id, inputs=dict(inputs or {}), **options)
        milliseconds = int(self.now().timestamp() * 1000)
        job_id = new_job_id(milliseconds, self._random.randbytes(10))
        await self.ledger.create_jobs([replace(prepare(self.library, submission), job_id=job_id)])
        return job_id

    async def wait(self, job_id: UUID, *, timeout_seconds: float = TIMEOUT_SECONDS) -> KitJob:
        """Wait until the job has ended, and return it."""
        await self.until(lambda: self.database.jobs[job_id].status in JOB_TERMINAL, timeout_seconds=timeout_seconds)
        return self.job(job_id)

    def job(self, job_id: UUID) -> KitJob:
        """The job as it is now."""
        return KitJob.of(self.database, job_id)

    async def until(self, holds: Callable[[], T], *, timeout_seconds: float = TIMEOUT_SECONDS) -> T:
        """Wait until a condition holds. It is checked after each write of an orchestrator or a worker."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not (result := holds()):
                    await self.ledger.wait_for_change()
                return result
        except TimeoutError:
            transcripts = "\n\n".join(self.job(job_id).transcript() for job_id in self.database.jobs)
            raise AssertionError(
                f"the condition did not hold within {timeout_seconds:g} s of virtual time\n\n{transcripts}"
            ) from None

    def now(self) -> datetime:
        """The engine's clock. `asyncio.sleep` advances it."""
        return START + timedelta(seconds=self._loop.time())

    # Faults

    def fail(self, node_id: str, error: BaseException, *, attempt: int = 1) -> None:
        """Let an attempt of a node fail with this error, without calling its handler."""
        self._faults[node_id, attempt] = error

    def lose_worker(self, node_id: str, *, attempt: int = 1) -> None:
        """Lose the worker that starts this attempt, with all tasks that it runs; another worker is started."""
        self._faults[node_id, attempt] = None

    # Orchestrators and workers

    def _start_orchestrator(self) -> None:
        settings = self.settings
        planner = Planner(
            RegistryRouter(self.registry, settings.known_queues, settings.default_queue),
            self._random,
            max_losses=settings.max_losses,
            max_fan_out=settings.max_fan_out,
            max_params_bytes=settings.max_params_bytes,
            render_limits=RenderLimits(settings.template_timeout_sec),
        )
        notifier, transport = self._exchange.notifier(JOBS, RESULTS), MemoryTransport(self._broker)
        self._start(
            Orchestrator(
                settings, self.ledger, self.ledger, notifier, transport, planner, self.library, owner_id=self._uuid()
            )
        )

    def _start_worker(self) -> None:
        pool = plain.pool(isolate=self._isolate, memory_mb=self.settings.worker_memory_mb)
        worker = Worker(
            self.settings,
            self.ledger,
            MemoryTransport(self._broker, self.settings.worker_queue),
            self._exchange.notifier(),
            self.registry,
            name="kit",
            worker_id=self._uuid(),
            executor=pool,
            rng=self._random,
            progress_seconds=self.settings.lease_renew_sec,
            runner=_FaultyRunner(self.registry, pool, self._faults, lambda: self._lose(running)),
        )
        running = self._start(worker)

    def _start(self, instance: Orchestrator | Worker) -> asyncio.Task[None]:
        running = asyncio.create_task(instance.run())
        self._instances.append((instance, running))
        return running

    def _lose(self, worker: asyncio.Task[None]) -> None:
        worker.cancel()
        self._start_worker()

    def _uuid(self) -> UUID:
        return UUID(bytes=self._random.randbytes(16), version=4)


class _SignallingLedger(MemoryLedger):
    """Signals each change to callers that wait for a change."""

    def __init__(self, database: MemoryDatabase, notifier: Notifier) -> None:
        super().__init__(database, notifier)
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def apply(self, change: Changes) -> set[str]:
        return self._signal(super().apply(change))

    async def exchange(self, *arguments: Any, **options: Any) -> Any:
        return self._signal(await super().exchange(*arguments, **options))

    async def renew(self, *arguments: Any, **options: Any) -> Any:
        return self._signal(await super().renew(*arguments, **options))

    def _signal(self, result: T) -> T:
        self._changed.set()
        self._changed = asyncio.Event()
        return result


class _FaultyRunner(Runner):
    def __init__(self, registry: Registry, pool: Pool, faults: Faults, lose: Callable[[], None]) -> None:
        super().__init__(registry, pool)
        self._faults = faults
        self._lose = lose

    async def run(self, context: TaskContext) -> tuple[Report, int]:
        key = (context.node_id, context.attempt)
        if key not in self._faults:
            return await super().run(context)
        error = self._faults.pop(key)
        if error is None:
            self._lose()
            await asyncio.Event().wait()  # until the worker is cancelled, and this coroutine with it
        assert error is not None
        return Report(context.job_id, *key, TaskStatus.FAILED, error=describe(error)), 0


def _registry(handlers: Mapping[str, Handler]) -> Registry:
    shipped = installed()
    by_name: dict[str, Registration] = dict(shipped)
    added = {name: registration_for(function, name, by_name.get(name)) for name, function in handlers.items()}
    return Registry((by_name | added).values(), refused=shipped.refused)


def _library(settings: Settings, registry: Registry, workflows: Iterable[Path | str]) -> WorkflowLibrary:
    library = load_library(settings, registry, settings.known_queues)
    added = [workflow for source in workflows for workflow in _read(settings, registry, source)]
    return replace(library, workflows={**library.workflows, **{workflow.workflow_id: workflow for workflow in added}})


def _read(settings: Settings, registry: Registry, source: Path | str) -> list[Workflow]:
    texts = {"workflow.yaml": source.encode()} if isinstance(source, str) else _texts(source)
    rules: dict[str, Any] = {"limits": limits_of(settings), "handlers": registry, "queues": settings.known_queues}
    return [read(text, name, **rules) for name, text in texts.items()]


def _texts(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in (workflow_files(path) if path.is_dir() else [path])}
