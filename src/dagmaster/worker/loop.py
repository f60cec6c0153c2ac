"""The worker's loop: report finished tasks, claim new ones, run them, wait for the next event.

At most one exchange with the ledger is in flight. It carries a batch of finished reports and asks for as many tasks
as there are free slots. Meanwhile handlers run, each as a task of the event loop, and queue their reports for the next
exchange.

    claimed ─▶ held (running) ─▶ finished ─▶ reported          leases are renewed until the report is accepted
                  │                  ▲
                  ├─ cancelled, timed out, failed
                  └─ lost: another worker holds the task; the handler is stopped and its report dropped

A task whose workers have died repeatedly may be the cause. Such a suspect runs alone, so that no other task is lost
with it: the worker claims nothing until all running tasks have ended and are reported, and until the suspect has ended.
If that takes too long, the suspect is returned to the queue, because another worker may be less busy.
"""

import asyncio
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID, uuid4

from dagmaster import __version__, faults
from dagmaster.database.ledger.protocol import (
    Demand,
    Exchange,
    PayloadLedger,
    Report,
    Running,
    WorkerInfo,
    WorkerLedger,
)
from dagmaster.database.notify.notifier import RESULTS, Notifier
from dagmaster.errors import HandlerFailed, Unavailable
from dagmaster.handlers.calling import UNLOADABLE
from dagmaster.handlers.registry import Registry
from dagmaster.handlers.resources import Resources
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.model import task_id as task_id_of
from dagmaster.jobs.states import Blame, TaskStatus
from dagmaster.observe import log
from dagmaster.observe.metrics import TASK_SECONDS, Durations
from dagmaster.observe.rates import RateMeter
from dagmaster.settings import Settings
from dagmaster.transports.transport import Delivery, Transport
from dagmaster.worker import heartbeat
from dagmaster.worker.context import NO_DATABASE, TaskContext
from dagmaster.worker.executors.executor import Executor, executor_of
from dagmaster.worker.outcome import describe, is_memory_failure
from dagmaster.worker.run import Runner

if TYPE_CHECKING:
    from dagmaster.database.connect import ConnectionPool

MAX_CLAIM = 200
MAX_REPORTS = 500
MAX_REPORT_BYTES = 8 * 1024 * 1024
LINGER_SECONDS = 0.002  # how long a report waits for other reports of its batch
FRESH_SECONDS = 0.005  # handlers of tasks claimed this recently may finish in the next moments
SHOW_RUNNING_SECONDS = 0.2
FULL_SECONDS = 0.25  # with a broker: how long a worker without free slots of a kind waits before it receives messages
BACKOFF_SECONDS = (0.05, 5.0)
LAST_REPORTS_SECONDS = 5.0
SUSPECT_LOSSES = 2
SUSPECT_SECONDS = 30.0  # how long a suspect waits until it can run alone
STOPPING_SECONDS = 12.0  # how long killed child processes may take to end; a kill takes milliseconds
UNRESPONSIVE_SECONDS = 1.0  # how long cancelled async handlers may take to end
GRACE_MARGIN = 0.1  # share of the grace period that is left for cancelling and reporting
MAX_MARGIN_SECONDS = 2.0

CANCEL_GRACE_SECONDS = 5.0  # between asking a handler to stop and cancelling or killing it

_OUTAGES = (Unavailable, OSError)  # TimeoutError is an OSError
_UNSUITABLE = frozenset({UNLOADABLE, NO_DATABASE})  # errors that would recur in this worker

_log = log.get("worker")


@dataclass(slots=True)
class Counters:
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    returned: int = 0
    cancelled: int = 0
    late_reports: int = 0
    lost_tasks: int = 0
    storage_errors: int = 0
    memory_kills: int = 0
    refused_reports: int = 0
    exchanges: int = 0
    outages: int = 0


class HeldTask:
    """A task that this worker runs."""

    __slots__ = ("asyncio_task", "context", "is_light", "is_lost", "started_at", "task_id")

    def __init__(self, context: TaskContext, is_light: bool) -> None:
        self.context = context
        self.task_id = context.task_id
        self.is_light = is_light
        self.is_lost = False
        self.started_at = time.monotonic()
        self.asyncio_task: asyncio.Task[tuple[Report, int]]

    @property
    def seconds(self) -> float:
        """How long it has run, also if the machine's clock was set meanwhile."""
        return time.monotonic() - self.started_at


class Finished(NamedTuple):
    report: Report
    size_bytes: int


class Worker:
    """Call `run`; it works until `stop` is called.

    A ledger serves one call at a time. To keep calls from waiting for each other there may be three: `ledger` for
    claims and reports, `lease_ledger` for leases and heartbeats, `handler_ledger` for checkpoints, payloads and results
    of handlers; without `handler_ledger`, `ledger` must be a PayloadLedger too. `database` is the open connection pool
    that handlers may use. `payloads_of` returns the ledger for the handler of one task, if each task has its own.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: WorkerLedger,
        transport: Transport,
        notifier: Notifier,
        registry: Registry,
        *,
        lease_ledger: WorkerLedger | None = None,
        handler_ledger: PayloadLedger | None = None,
        database: "ConnectionPool | None" = None,
        payloads_of: Callable[[TaskMessage], PayloadLedger] | None = None,
        name: str | None = None,
        worker_id: UUID | None = None,
        executor: Executor | None = None,
        runner: Runner | None = None,
        progress_seconds: float = heartbeat.PROGRESS_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        self.worker_id = worker_id or uuid4()  # new at every start, so that it is never mistaken for an earlier process
        self.name = name or socket.gethostname()
        self.counters = Counters()
        self.durations = Durations(
            "dagmaster_worker_task_duration_seconds",
            "Seconds that attempts ran, by handler and outcome",
            ("handler", "outcome"),
            TASK_SECONDS,
        )
        self._started, self._ended = RateMeter(), RateMeter()  # tasks by queue
        self._queue_limits = settings.queue_concurrency
        self._has_broker = settings.transport == "servicebus"  # a broker announces tasks only to idle workers
        self.exchanged_at: float | None = None  # on the monotonic clock
        self.health_url: str | None = None
        self._settings = settings
        self._resources = Resources(settings)
        self._ledger = ledger
        payloads = handler_ledger or cast(PayloadLedger, ledger)
        self._payloads_of = payloads_of or (lambda _task: payloads)
        self._database = database
        self._transport = transport
        self._notifier = notifier
        self._executor = executor or executor_of(settings, CANCEL_GRACE_SECONDS)
        self._runner = runner or Runner(registry, self._executor, settings.traces_fan_out_limit)
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._heavy_names = frozenset(name for name in registry if not registry[name].is_async)
        self._heavy_handlers = tuple(sorted(self._heavy_names))
        self._light_handlers = tuple(sorted(set(registry) - self._heavy_names))
        self._keeper = self._lease_keeper(lease_ledger or ledger, progress_seconds)

        self._held_tasks: dict[str, HeldTask] = {}
        self._light_running = 0
        self._suspects: dict[str, TaskMessage] = {}  # claimed; started when no other task runs
        self._running_suspect: str | None = None  # its task id
        self._suspected_at = 0.0
        self._finished: list[Finished] = []
        self._in_flight: Sequence[Finished] = ()
        self._deliveries: list[Delivery] = []
        self._receiving: asyncio.Task[Sequence[Delivery]] | None = None
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._grace_seconds = settings.shutdown_grace_sec
        self._poll_now = True
        self._light_tasks_left = self._heavy_tasks_left = True  # whether the queues may have more tasks of a kind
        self._claimed_at = 0.0
        self._failures = 0

    def _lease_keeper(self, ledger: WorkerLedger, progress_seconds: float) -> heartbeat.LeaseKeeper:
        settings = self._settings
        held_tasks = heartbeat.HeldTasks(
            self._held_now, self._held_with_updates, self.info, self._lose, self._stop_on_request
        )
        return heartbeat.LeaseKeeper(
            ledger,
            held_tasks,
            lease_seconds=settings.task_lease_sec,
            renew_seconds=settings.lease_renew_sec,
            progress_seconds=progress_seconds,
            rng=self._rng,
        )

    # Control and inspection

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stop claiming, ask handlers to stop, wait for the grace period, return tasks that still run.

        Safe to call from a signal handler. Call it again with a shorter grace period to stop sooner.
        """
        if grace_seconds is not None:
            self._grace_seconds = grace_seconds
        self._stop.set()
        self._wake.set()

    def stop_now(self) -> None:
        """End the grace period now: running handlers are killed and their tasks returned, which uses up no retry."""
        _log.warning("worker stops immediately", running=len(self._held_tasks))
        self.stop(grace_seconds=0)

    @property
    def held_tasks(self) -> tuple[HeldTask, ...]:
        """Safe from other threads: copying is atomic under the interpreter's lock."""
        return tuple(self._held_tasks.values())

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def renewed_at(self) -> float | None:
        return self._keeper.renewed_at

    @property
    def children(self) -> list[dict[str, Any]]:
        return self._executor.children

    @property
    def plain_slots(self) -> int:
        """How many plain handlers may run at the same time now."""
        slots = self._executor.slots
        return self._settings.worker_processes if slots is None else slots

    def executor_facts(self) -> dict[str, Any]:
        return self._executor.details()

    @property
    def running(self) -> list[TaskMessage]:
        return [held_task.context.task for held_task in self._held_tasks.values()]

    def info(self) -> WorkerInfo:
        stats = asdict(self.counters) | {"running": len(self._held_tasks), "unreported": len(self._finished)}
        stats |= {
            "started_per_minute": self._started.per_minute(),
            "finished_per_minute": self._ended.per_minute(),
        }
        if self.health_url:
            stats["health_url"] = self.health_url
        handlers = self._light_handlers + self._heavy_handlers
        kind, queues = self._settings.worker_type, self._settings.worker_queue
        return WorkerInfo(self.worker_id, self.name, os.getpid(), __version__, kind, queues, handlers, stats)

    async def run(self) -> None:
        """Work until `stop`, then report or return every task. A failed call never ends the loop."""
        keeper = asyncio.create_task(self._keeper.run(), name="lease keeper")
        _log.info("worker started", worker_id=str(self.worker_id), queues=self._settings.worker_queue)
        try:
            await self._executor.start(self._request_poll)
            while not self._stop.is_set():
                await self._run_once()
            await self._drain()
        finally:
            await asyncio.shield(self._clean_up(keeper))
        _log.info("worker stopped", **asdict(self.counters))

    async def _clean_up(self, keeper: asyncio.Task[None]) -> None:
        tasks: list[asyncio.Task[Any]] = [keeper, *(held_task.asyncio_task for held_task in self._held_tasks.values())]
        if self._receiving:
            tasks.append(self._receiving)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOPPING_SECONDS)
        await self._executor.close()

    async def report_hung_loop(
        self, open_ledger: Callable[[], WorkerLedger], blocking_task: TaskContext, error: HandlerFailed
    ) -> None:
        """Called from another thread when the loop hangs: report the task that blocks it as failed, return the others.

        The loop cannot write meanwhile. If it continues after all, each attempt is still accepted only once.
        """
        self._executor.end_now()  # before another worker can claim the same tasks
        ledger = open_ledger()
        contexts = [task.context for task in self.held_tasks if not task.is_lost]
        reports = [_failed(each.task, error) if each is blocking_task else _returned(each.task) for each in contexts]
        reports += [_returned(task) for task in tuple(self._suspects.values())]
        finished = [*self._in_flight, *self._finished]
        await self._report_all(ledger, [Finished(report, 1000) for report in reports])
        await self._report_all(ledger, finished)

    async def _report_all(self, ledger: WorkerLedger, items: Sequence[Finished]) -> None:
        no_demand = Demand(self._settings.worker_queue)
        while items:
            batch = _batch_of(items)
            items = items[len(batch) :]
            reports = [item.report for item in batch]
            await ledger.report(self.worker_id, reports, no_demand, lease_seconds=self._settings.task_lease_sec)

    # One iteration

    async def _run_once(self) -> None:
        self._wake.clear()
        if self._suspects:
            self._start_or_return_suspects()
        demand = self._demand()
        if self._finished:
            await self._linger()
            await self._exchange(self._demand())
        elif demand.total and self._has_reason_to_claim(demand):
            await self._exchange(demand)
        else:
            await self._wait_for_work(demand)

    def _demand(self) -> Demand:
        if self._suspects or self._running_suspect in self._held_tasks:
            return Demand(self._settings.worker_queue)
        heavy_running = len(self._held_tasks) - self._light_running
        light = self._settings.worker_slots - self._light_running if self._light_handlers else 0
        heavy = self.plain_slots - heavy_running if self._heavy_handlers else 0
        light, heavy = max(0, min(light, MAX_CLAIM)), max(0, min(heavy, MAX_CLAIM))
        if self._queue_limits:
            return self._limited_demand(light, heavy)
        return Demand(self._settings.worker_queue, self._light_handlers, light, self._heavy_handlers, heavy)

    def _limited_demand(self, light: int, heavy: int) -> Demand:
        """The demand without queues of which this worker already runs as many tasks as it may."""
        running = Counter(held_task.context.task.queue for held_task in self._held_tasks.values())
        free_slots = {queue: limit - running[queue] for queue, limit in self._queue_limits.items()}
        queues = tuple(queue for queue in self._settings.worker_queue if free_slots.get(queue, 1) > 0)
        if not queues:
            return Demand(self._settings.worker_queue)
        free_slots = {queue: count for queue, count in free_slots.items() if count > 0}
        return Demand(queues, self._light_handlers, light, self._heavy_handlers, heavy, free_slots)

    def _has_reason_to_claim(self, demand: Demand) -> bool:
        """Whether there may be tasks: a notification came, a poll is due, or the last claim got all it asked for."""
        are_tasks_left = (demand.light and self._light_tasks_left) or (demand.heavy and self._heavy_tasks_left)
        return bool(self._poll_now or are_tasks_left)

    async def _linger(self) -> None:
        """Give handlers of the last claim a moment to finish, so that their reports share this exchange."""
        if self._light_running and asyncio.get_running_loop().time() - self._claimed_at < FRESH_SECONDS:
            await asyncio.sleep(LINGER_SECONDS)

    async def _wait_for_work(self, demand: Demand) -> None:
        """Wait until a handler finishes, the transport delivers, or the poll interval is over."""
        loop = asyncio.get_running_loop()
        interval = self._settings.worker_poll_interval * self._rng.uniform(0.5, 1.0)
        timers = [loop.call_later(interval, self._request_poll)]
        if demand.total and self._has_broker and self._is_full_of_a_kind(demand):
            # Wait: the next report claims as well, and a message would most likely be of a kind without free slots.
            timers.append(loop.call_later(FULL_SECONDS, self._start_receiving, demand.total))
        elif demand.total:
            self._start_receiving(demand.total)
        try:
            await self._wake.wait()
        finally:
            for timer in timers:
                timer.cancel()

    def _is_full_of_a_kind(self, demand: Demand) -> bool:
        return bool((self._light_handlers and not demand.light) or (self._heavy_handlers and not demand.heavy))

    def _request_poll(self) -> None:
        self._poll_now = True
        self._wake.set()

    # Deliveries

    def _start_receiving(self, limit: int) -> None:
        """Receive in the background. An unfinished receive is kept, because cancelling it could lose a delivery."""
        if self._receiving is None:
            receive = self._transport.receive(self._settings.worker_poll_interval, limit)
            self._receiving = asyncio.ensure_future(receive)
            self._receiving.add_done_callback(self._on_received)

    def _on_received(self, receiving: asyncio.Task[Sequence[Delivery]]) -> None:
        if receiving.cancelled():
            self._receiving = None
        elif error := receiving.exception():
            _log.warning("the transport is unavailable; the worker continues to poll", error=str(error))
            asyncio.get_running_loop().call_later(self._settings.worker_poll_interval, self._end_receiving)
        else:
            self._receiving = None
            self._deliveries.extend(receiving.result())
            if self._deliveries:
                faults.reach("worker.after-receive")
                self._request_poll()
            else:
                self._wake.set()

    def _end_receiving(self) -> None:
        self._receiving = None
        self._wake.set()

    async def _settle(self) -> None:
        """Settle deliveries that came before the last exchange: their tasks are claimed by now, here or elsewhere."""
        deliveries, self._deliveries = self._deliveries, []
        faults.reach("worker.before-settle")
        try:
            await self._transport.settle(deliveries)
        except _OUTAGES as error:
            _log.warning("deliveries could not be settled; they will be delivered again", error=str(error))
            return
        faults.reach("worker.after-settle")

    # Exchanging reports for tasks

    async def _exchange(self, demand: Demand) -> None:
        finished = self._take_finished()
        # Without a reason to expect tasks, reports are sent without a claim, which is faster. With a broker they always
        # claim, because a broker announces no tasks to a busy worker.
        is_claiming = self._has_reason_to_claim(demand) or not finished or self._has_broker
        if demand.total:
            # Reset before the call: a notification that arrives during the call may announce a task that it does not
            # see.
            self._poll_now = False
        faults.reach("worker.before-claim")
        try:
            exchange = await self._send(finished, demand, is_claiming=is_claiming)
        except Exception as error:  # a bad report or a failing statement must not end the loop
            await self._recover(finished, error)
            return
        self._failures = 0
        self.exchanged_at = time.monotonic()
        self._after_exchange(exchange, finished, demand)
        if self._deliveries:
            await self._settle()

    async def _recover(self, finished: Sequence[Finished], error: Exception) -> None:
        """During an outage keep the reports and back off; otherwise send them one by one to find the bad one."""
        self._poll_now = True
        if finished and not isinstance(error, _OUTAGES):
            _log.error("an exchange was refused", exc_info=error, reports=len(finished))
            await self._report_singly(finished)
        else:
            self._keep(finished)
            await self._back_off(error)

    def _take_finished(self) -> Sequence[Finished]:
        """The oldest reports, as many as one statement should carry."""
        batch = _batch_of(self._finished)
        self._finished = self._finished[len(batch) :]
        return batch

    def _keep(self, finished: Sequence[Finished]) -> None:
        self._finished = [*finished, *self._finished]

    async def _send(self, finished: Sequence[Finished], demand: Demand, *, is_claiming: bool) -> Exchange:
        self.counters.exchanges += 1
        self._in_flight = finished
        lease_seconds = self._settings.task_lease_sec
        timeout_seconds = LAST_REPORTS_SECONDS if self._stop.is_set() else lease_seconds
        try:
            async with asyncio.timeout(timeout_seconds):  # a half-open connection would hang forever
                reports = [item.report for item in finished]
                call = self._ledger.exchange if is_claiming else self._ledger.report
                return await call(self.worker_id, reports, demand, lease_seconds=lease_seconds)
        finally:
            self._in_flight = ()

    def _after_exchange(self, exchange: Exchange, finished: Sequence[Finished], demand: Demand) -> None:
        if finished:
            faults.reach("worker.after-report")
            self._note_late(exchange)
        if exchange.claimed:
            faults.reach("worker.after-claim")
            self._start(exchange.claimed)
        self._note_tasks_left(exchange.claimed, demand)

    def _note_tasks_left(self, claimed: Sequence[TaskMessage], demand: Demand) -> None:
        """A kind that returned fewer tasks than requested is exhausted. One that filled the request, or for which there
        was no free slot, may have more."""
        heavy = sum(1 for task in claimed if task.handler in self._heavy_names) if self._heavy_names else 0
        self._heavy_tasks_left = heavy >= demand.heavy
        self._light_tasks_left = len(claimed) - heavy >= demand.light

    def _note_late(self, exchange: Exchange) -> None:
        if exchange.late:
            self.counters.late_reports += len(exchange.late)
            _log.warning(
                "reports arrived too late and are ignored", tasks=list(exchange.late[:10]), count=len(exchange.late)
            )

    async def _report_singly(self, finished: Sequence[Finished]) -> None:
        """Send a refused batch one report at a time, so that only the bad report is refused."""
        no_demand = Demand(self._settings.worker_queue)
        for position, item in enumerate(finished):
            try:
                self._note_late(await self._send([item], no_demand, is_claiming=False))
            except _OUTAGES as error:
                self._keep(finished[position:])
                await self._back_off(error)
                break
            except Exception as error:  # see _exchange
                self._replace_refused(item.report, error)

    def _replace_refused(self, report: Report, error: Exception) -> None:
        """Report instead that the result could not be stored. If that is refused too, the lease will expire."""
        self.counters.refused_reports += 1
        task_id = task_id_of(report.job_id, report.node_id, report.attempt)
        _log.error("a report could not be stored", task_id=task_id, exc_info=error)
        if report.error and report.error.get("code") == "worker.report-refused":
            return
        error_facts = describe(error) | {"blame": Blame.ENGINE.value, "code": "worker.report-refused"}
        error_facts["message"] = f"the result could not be stored: {error_facts['message']}"
        substitute = Report(report.job_id, report.node_id, report.attempt, TaskStatus.FAILED, error=error_facts)
        self._finished.append(Finished(substitute, 1000))

    async def _back_off(self, error: Exception) -> None:
        """Exponential backoff with jitter; a stop ends the wait."""
        self.counters.outages += self._failures == 0
        if self._failures == 0:
            log.failure(_log, "tasks cannot be claimed or reported, trying again; reports are kept", error)
        low, high = BACKOFF_SECONDS
        seconds = min(high, low * 2**self._failures) * self._rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 20)
        self._poll_now = True
        if self._stop.is_set():
            await asyncio.sleep(min(seconds, 0.2))
            return
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    # Running handlers

    def _start(self, claimed: Sequence[TaskMessage]) -> None:
        self.counters.claimed += len(claimed)
        for queue, count in Counter([task.queue for task in claimed]).items():
            self._started.add(queue, count)
        if self._stop.is_set():
            for task in claimed:
                self._finish(task, _returned(task), 4)
            return
        loop = asyncio.get_running_loop()
        self._claimed_at = loop.time()
        if any(map(self._is_suspect, claimed)):
            claimed = self._hold_suspects_back(claimed)
        batch = [self._start_one(task, loop) for task in claimed]
        loop.call_later(SHOW_RUNNING_SECONDS, self._show_running, batch)

    def _start_one(self, task: TaskMessage, loop: asyncio.AbstractEventLoop) -> HeldTask:
        context = TaskContext(task, self._payloads_of(task), self._database, self._resources)
        held_task = HeldTask(context, task.handler not in self._heavy_names)
        self._held_tasks[held_task.task_id] = held_task
        self._light_running += held_task.is_light
        held_task.asyncio_task = loop.create_task(self._runner.run(held_task.context))
        held_task.asyncio_task.add_done_callback(partial(self._on_done, held_task))
        return held_task

    def _is_suspect(self, task: TaskMessage) -> bool:
        """Whether the task may be the cause of its losses, and could end this worker with its other tasks."""
        runs_here = self._executor.is_on_this_machine or task.handler not in self._heavy_names
        return runs_here and task.losses >= SUSPECT_LOSSES

    def _hold_suspects_back(self, claimed: Sequence[TaskMessage]) -> Sequence[TaskMessage]:
        suspects = {task.task_id: task for task in claimed if self._is_suspect(task)}
        _log.warning("workers died while running these tasks; each will run alone", tasks=list(suspects)[:10])
        self._suspects |= suspects
        self._suspected_at = asyncio.get_running_loop().time()
        return [task for task in claimed if task.task_id not in suspects]

    def _start_or_return_suspects(self) -> None:
        """Start the next suspect if no other task runs; return all of them when they have waited too long."""
        loop = asyncio.get_running_loop()
        if not self._held_tasks and not self._finished:
            task = self._suspects.pop(next(iter(self._suspects)))
            self._suspected_at = loop.time()
            self._running_suspect = task.task_id
            held_task = self._start_one(task, loop)
            loop.call_later(SHOW_RUNNING_SECONDS, self._show_running, [held_task])
        elif loop.time() - self._suspected_at > SUSPECT_SECONDS:
            self._return_suspects()

    def _return_suspects(self) -> None:
        suspects, self._suspects = self._suspects, {}
        for task in suspects.values():
            self._finish(task, _returned(task), 4)

    def _on_done(self, held_task: HeldTask, ended: asyncio.Task[tuple[Report, int]]) -> None:
        if self._held_tasks.pop(held_task.task_id, None) is None:
            return  # abandoned while it still ran; its task was returned
        self._light_running -= held_task.is_light
        self._wake.set()
        if held_task.is_lost:
            return
        faults.reach("worker.after-handler")
        task = held_task.context.task
        if ended.cancelled():
            self._finish(task, _returned(task), 4)
        elif error := ended.exception():
            _log.error("a bug in the worker ended a task", task_id=held_task.task_id, exc_info=error)
            self._finish(task, _failed_by_bug(task, error), 1000)
        else:
            report, size_bytes = ended.result()
            self._measure(held_task, report)
            self._finish(task, report, size_bytes)
            if report.error and report.error["code"] in _UNSUITABLE:
                self._stop_claiming(task.handler, report.error)

    def _measure(self, held_task: HeldTask, report: Report) -> None:
        """Count the attempt in the metrics. Its handler is in the registry: other tasks are not claimed."""
        outcome = "failed" if report.error else report.status.value
        self.durations.observe((held_task.context.task.handler, outcome), held_task.seconds)
        if report.error:
            self.counters.storage_errors += str(report.error.get("code")).startswith("storage.")
            self.counters.memory_kills += is_memory_failure(report.error)

    def _stop_claiming(self, handler: str, error: Mapping[str, Any]) -> None:
        """Stop claiming tasks of a handler that cannot be loaded here, or that needs a database which this worker does
        not have; another worker may be able to run it."""
        _log.error(
            "a handler cannot run here; this worker no longer claims its tasks",
            handler=handler,
            error=error.get("message"),
            hint=error.get("hint"),
        )
        self._light_handlers = tuple(name for name in self._light_handlers if name != handler)
        self._heavy_handlers = tuple(name for name in self._heavy_handlers if name != handler)

    def _finish(self, task: TaskMessage, report: Report, size_bytes: int) -> None:
        self._ended.add(task.queue)
        if task.queue in self._queue_limits:
            self._poll_now = True  # another task of this queue may run now
        match report.status:
            case TaskStatus.SUCCEEDED:
                self.counters.succeeded += 1
            case TaskStatus.RETURNED:
                self.counters.returned += 1
            case TaskStatus.CANCELLED:
                self.counters.cancelled += 1
            case _:
                self.counters.failed += 1
        self._finished.append(Finished(report, size_bytes))

    def _show_running(self, batch: Sequence[HeldTask]) -> None:
        """Notify the owners of tasks that still run, so that their nodes show `running`."""
        if any(not held_task.asyncio_task.done() for held_task in batch):
            self._notifier.notify(RESULTS)

    # Leases

    def _held_now(self) -> Collection[Running]:
        """Running tasks, suspects that wait, and finished tasks that are not reported yet: none of their leases may
        expire, not even during an outage."""
        waiting = [*self._in_flight, *self._finished]
        running = [held_task.context.running() for held_task in self._held_tasks.values() if not held_task.is_lost]
        running += [Running(task.job_id, task.node_id, task.attempt) for task in self._suspects.values()]
        return running + [Running(item.report.job_id, item.report.node_id, item.report.attempt) for item in waiting]

    def _held_with_updates(self) -> Collection[Running]:
        return [
            held_task.context.running()
            for held_task in self._held_tasks.values()
            if held_task.context.has_updates and not held_task.is_lost
        ]

    def _lose(self, task_ids: Iterable[str]) -> None:
        """Stop tasks that another worker holds by now. Reports that are already finished are still sent; the ledger
        ignores them."""
        for task_id in task_ids:
            self._suspects.pop(task_id, None)
            held_task = self._held_tasks.get(task_id)
            if held_task is None or held_task.is_lost:
                continue
            held_task.is_lost = True
            self.counters.lost_tasks += 1
            _log.warning("this worker no longer holds a task; stopping it", task_id=task_id)
            held_task.context.cancel()
            if held_task.is_light:
                held_task.asyncio_task.cancel()

    def _stop_on_request(self, task_ids: Iterable[str]) -> None:
        """Ask handlers to stop. After the grace period async handlers are cancelled, and the executor kills plain
        ones."""
        for task_id in task_ids:
            if task := self._suspects.pop(task_id, None):
                self._finish(task, _returned(task), 4)
                self._wake.set()
            held_task = self._held_tasks.get(task_id)
            if held_task is None or held_task.context.cancelled:
                continue
            _log.info("stopping a task on request", task_id=task_id)
            held_task.context.cancel()
            if held_task.is_light:
                asyncio.get_running_loop().call_later(CANCEL_GRACE_SECONDS, held_task.asyncio_task.cancel)

    # Stopping

    async def _drain(self) -> None:
        """Wait for handlers during the grace period, cancel the remaining ones, report everything."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        _log.info("worker is stopping", running=len(self._held_tasks), grace_seconds=self._grace_seconds)
        self._return_suspects()
        for held_task in self._held_tasks.values():
            held_task.context.shut_down()
        await self._await_handlers(lambda: started + self._grace_seconds - self._grace_margin)
        for held_task in self._held_tasks.values():
            held_task.asyncio_task.cancel()
        cancelled_at = loop.time()
        await self._await_handlers(
            lambda: cancelled_at + (STOPPING_SECONDS if self._has_heavy_tasks else UNRESPONSIVE_SECONDS)
        )
        self._abandon_unresponsive()
        await self._report_remaining(loop.time() + LAST_REPORTS_SECONDS)

    @property
    def _grace_margin(self) -> float:
        """Handlers are cancelled this long before the grace period is over, so that the worker ends within it."""
        return min(GRACE_MARGIN * self._grace_seconds, MAX_MARGIN_SECONDS)

    @property
    def _has_heavy_tasks(self) -> bool:
        return len(self._held_tasks) > self._light_running

    async def _await_handlers(self, deadline: Callable[[], float]) -> None:
        """Wait until all handlers have ended, or until the deadline, which may be moved closer meanwhile."""
        no_demand = Demand(self._settings.worker_queue)
        loop = asyncio.get_running_loop()
        while self._held_tasks and loop.time() < deadline():
            self._wake.clear()
            if self._finished:
                await self._exchange(no_demand)
                continue
            timer = loop.call_at(deadline(), self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _abandon_unresponsive(self) -> None:
        """Return the tasks of async handlers that ignore their cancellation; they end with the process."""
        unresponsive, self._held_tasks = self._held_tasks, {}
        for held_task in unresponsive.values():
            _log.error("a handler ignores its cancellation", task_id=held_task.task_id)
            if not held_task.is_lost:
                self._finish(held_task.context.task, _returned(held_task.context.task), 4)

    async def _report_remaining(self, deadline: float) -> None:
        no_demand = Demand(self._settings.worker_queue)
        try:
            async with asyncio.timeout_at(deadline):
                while self._finished:
                    await self._exchange(no_demand)
                await self._ledger.retire_worker(self.worker_id)
        except _OUTAGES as error:
            _log.warning(
                "the last reports could not be sent; leases will expire",
                unreported=len(self._finished),
                error=str(error),
            )


def _batch_of(items: Sequence[Finished]) -> Sequence[Finished]:
    count = size = 0
    for item in items[:MAX_REPORTS]:
        size += item.size_bytes
        if count and size > MAX_REPORT_BYTES:
            break
        count += 1
    return items[:count]


def _returned(task: TaskMessage) -> Report:
    return Report(task.job_id, task.node_id, task.attempt, TaskStatus.RETURNED)


def _failed(task: TaskMessage, error: BaseException) -> Report:
    return Report(task.job_id, task.node_id, task.attempt, TaskStatus.FAILED, error=describe(error))


def _failed_by_bug(task: TaskMessage, error: BaseException) -> Report:
    error_facts: dict[str, Any] = describe(error) | {"blame": Blame.ENGINE.value}
    return Report(task.job_id, task.node_id, task.attempt, TaskStatus.FAILED, error=error_facts)
