"""A small ledger for tests of the worker alone: tasks in a queue, leases without a clock, faults on demand."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from dagmaster.database.ledger.protocol import Demand, Exchange, Report, Running, WorkerInfo
from dagmaster.database.notify.notifier import RESULTS
from dagmaster.errors import Unavailable
from dagmaster.handlers.registry import Registration, Registry
from dagmaster.handlers.shipped import REGISTRATIONS
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, TaskMessage, task_id
from dagmaster.jobs.payload import Encoded, Reference, reference_to
from dagmaster.settings import Settings
from dagmaster.testing.memory_notifier import MemoryExchange
from dagmaster.testing.memory_transport import Broker, MemoryTransport
from dagmaster.transports.transport import Announcement
from dagmaster.worker.executors.executor import Executor
from dagmaster.worker.loop import Worker

JOB = UUID("01890000-0000-7000-8000-000000000001")


def a_task(
    handler: str,
    node: str = "node",
    attempt: int = 1,
    *,
    timeout: float = 60,
    retries: int = 0,
    losses: int = 0,
    **params: Any,
) -> TaskMessage:
    return TaskMessage(
        task_id=task_id(JOB, node, attempt),
        job_id=JOB,
        node_id=node,
        attempt=attempt,
        handler=handler,
        params=params,
        queue="dag-worker-tasks",
        timeout_seconds=timeout,
        retry_count=retries,
        losses=losses,
        params_ref=None,
    )


def id_of(row: Report | Running) -> str:
    return task_id(row.job_id, row.node_id, row.attempt)


class FakeLedger:
    def __init__(self, tasks: Sequence[TaskMessage] = ()) -> None:
        self.queued = deque(tasks)
        self.running: dict[str, TaskMessage] = {}
        self.reports: dict[str, Report] = {}
        self.late: list[Report] = []
        self.renewals: list[list[Running]] = []
        self.to_stop: set[str] = set()
        self.demands: list[Demand] = []
        self.workers: dict[UUID, WorkerInfo] = {}
        self.checkpoints: list[Checkpoint] = []
        self.results: list[ChildResult] = []
        self.payloads: dict[str, bytes] = {}
        self.refuses_checkpoints = False
        self.is_down = False
        self.notifier: Any = None  # used by the ledger itself, as after a commit
        self.is_claiming: list[bool] = []
        self.loses_answers = 0  # exchanges with reports that commit and then fail
        self.refuses: Callable[[Report], bool] = lambda _report: False
        self.delay_seconds = 0.0
        self.calls_in_flight = 0
        self.most_in_flight = 0

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("the database is unavailable")

    async def exchange(
        self,
        _worker_id: UUID,
        reports: Sequence[Report],
        demand: Demand,
        *,
        lease_seconds: float,
    ) -> Exchange:
        return await self._exchange(reports, demand, lease_seconds, is_claiming=True)

    async def report(
        self, _worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        return await self._exchange(reports, demand, lease_seconds, is_claiming=False)

    async def _exchange(
        self, reports: Sequence[Report], demand: Demand, lease_seconds: float, *, is_claiming: bool
    ) -> Exchange:
        assert lease_seconds > 0
        self.calls_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.calls_in_flight)
        try:
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            self._check()
            if any(map(self.refuses, reports)):
                raise ValueError("invalid input syntax for type json")
            self.demands.append(demand)
            self.is_claiming.append(is_claiming)
            claimed = tuple(self._claim(demand)) if is_claiming else ()
            response = Exchange(claimed, 0, tuple(self._accept(reports)))
            if reports and self.notifier:
                self.notifier.notify(RESULTS)
            if self.loses_answers and reports:
                self.loses_answers -= 1
                raise Unavailable("connection reset")
            return response
        finally:
            self.calls_in_flight -= 1

    def _accept(self, reports: Sequence[Report]) -> Iterator[str]:
        for report in reports:
            if self.running.pop(id_of(report), None) is None:
                self.late.append(report)
                yield id_of(report)
            else:
                self.reports[id_of(report)] = report

    def _claim(self, demand: Demand) -> Iterator[TaskMessage]:
        left = {True: demand.light, False: demand.heavy}
        offered = {True: demand.light_handlers, False: demand.heavy_handlers}
        skipped: list[TaskMessage] = []
        while self.queued and (left[True] or left[False]):
            task = self.queued.popleft()
            kind = task.handler in offered[True]
            if not left[kind] or task.handler not in offered[kind]:
                skipped.append(task)
                continue
            left[kind] -= 1
            self.running[task.task_id] = task
            yield task
        self.queued.extendleft(reversed(skipped))

    async def renew(self, _worker_id: UUID, held: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        assert lease_seconds > 0
        self._check()
        self.renewals.append(list(held))
        return frozenset(id_of(row) for row in held if id_of(row) not in self.running)

    async def take_stops(self, _worker_id: UUID) -> frozenset[str]:
        self._check()
        stops, self.to_stop = frozenset(self.to_stop), set()
        return stops

    async def beat_worker(self, worker: WorkerInfo) -> None:
        self._check()
        self.workers[worker.worker_id] = worker

    async def retire_worker(self, worker_id: UUID) -> None:
        self._check()
        self.workers.pop(worker_id, None)

    async def save_checkpoint(self, running: Running, name: str, data: Any, artifacts: Sequence[Any] = ()) -> bool:
        self._check()
        if self.refuses_checkpoints:
            return False
        now = datetime.now(UTC)
        self.checkpoints.append(
            Checkpoint(
                job_id=running.job_id,
                node_id=running.node_id,
                name=name,
                attempt=running.attempt,
                data=data,
                saved_at=now,
                artifacts=list(artifacts),
            )
        )
        return True

    async def load_checkpoints(self, _job_id: UUID, node_id: str) -> list[Checkpoint]:
        return [saved for saved in self.checkpoints if saved.node_id == node_id]

    async def read_results(self, _job_id: UUID, _node_id: str, offset: int, limit: int) -> list[ChildResult]:
        return self.results[offset : offset + limit]

    async def read_encoded_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        return await self.read_results(job_id, node_id, offset, limit)

    async def store_payload(self, _job_id: UUID, encoded: Encoded) -> Reference:
        self._check()
        reference = reference_to(encoded)
        self.payloads[reference["sha256"]] = bytes(encoded)
        return reference

    async def load_payload(self, _job_id: UUID, reference: Reference) -> Encoded:
        self._check()
        return self.payloads[reference["sha256"]]

    def withdraw(self, task: TaskMessage) -> None:
        """Take the task away from the worker, as when its lease expired or its job was cancelled."""
        self.running.pop(task.task_id)


def some_settings(**values: Any) -> Settings:
    return Settings(**({"worker_poll_interval": 0.05, "lease_renew_sec": 0.05, "task_lease_sec": 5.0} | values))


def a_registry(*more: Registration) -> Registry:
    registrations = [
        Registration(name, f"worker_handlers:{name}", is_async=is_async)
        for name, is_async in {
            "pid": False,
            "spawn": False,
            "print_and_log": False,
            "leak": False,
            "sys_exit_plain": False,
            "poll_flags": False,
            "results": False,
            "memory_hog_then_small": False,
            "return_nan": False,
            "big": False,
            "stubborn": True,
            "sys_exit": True,
            "block_loop": True,
            "burn_with_lock": True,
            "own_timeout": True,
            "disk_full": True,
            "logs": True,
            "secretive": True,
            "saves": True,
            "give_back_unasked": True,
            "cancels_itself": True,
            "progresses": True,
            "hostile_reports": False,
            "hostile_reports_async": True,
            "daemonic": False,
            "saves_plain": False,
            "saves_repeatedly": False,
            "connects": False,
            "spin": True,
            "block_in_subtask": True,
            "swallow_and_block": True,
            "backtrack": True,
            "wait_for_lock": True,
            "deadlock": True,
            "fails_without_message": False,
            "segfault": False,
            "daemonize": False,
            "reports_much": False,
            "logs_much": False,
            "logs_oddly": False,
            "reports_twice_and_waits": False,
            "interrupts": True,
            "raises_base_exception": True,
            "exits_generator": True,
            "fails_without_message_async": True,
            "prints": True,
            "exits_in_subtask": True,
            "kill_supervisor": False,
            "forks": True,
            "runs_copies": True,
            "blocks_afterwards": True,
        }.items()
    ]
    return Registry([*REGISTRATIONS, *registrations, *more])


class Bench:
    """A worker with a fake ledger, a broker and notifications in memory."""

    def __init__(
        self,
        tasks: Sequence[TaskMessage] = (),
        registry: Registry | None = None,
        executor: Executor | None = None,
        **settings: Any,
    ) -> None:
        self.ledger = FakeLedger(tasks)
        self.broker = Broker()
        self.notifications = MemoryExchange()
        self.owner = self.notifications.notifier("results")
        self.ledger.notifier = self.notifications.notifier()
        self.settings = some_settings(**settings)
        self.worker = Worker(
            self.settings,
            self.ledger,
            MemoryTransport(self.broker, self.settings.worker_queue),
            self.notifications.notifier(),  # type: ignore[arg-type]
            registry or a_registry(),
            name="bench",
            worker_id=uuid4(),
            executor=executor,
        )

    def add(self, *tasks: TaskMessage) -> None:
        self.ledger.queued.extend(tasks)
        self.broker.put([Announcement(task.queue, task.task_id) for task in tasks])

    async def report_of(self, task: TaskMessage, seconds: float = 10) -> Report:
        await until(lambda: task.task_id in self.ledger.reports, seconds)
        return self.ledger.reports[task.task_id]

    async def is_running(self, task: TaskMessage) -> None:
        await until(lambda: task in self.worker.running)


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def working(*tasks: TaskMessage, **settings: Any) -> Any:
    """A running worker, which is stopped without a grace period at the end."""
    bench = Bench(tasks, **settings)
    running = asyncio.create_task(bench.worker.run())
    try:
        yield bench
    finally:
        bench.worker.stop(grace_seconds=0)
        await running


async def run_one(task: TaskMessage, **settings: Any) -> Report:
    async with working(task, **settings) as bench:
        return await bench.report_of(task)  # type: ignore[no-any-return]
