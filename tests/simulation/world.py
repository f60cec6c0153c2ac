"""A platform in one process on one virtual clock: orchestrators, workers, users, and a nemesis that disrupts them.

The loops are the real ones, on the in-memory ledger. A seed decides everything: the workflows and what their handlers
do, the requests of users, the profile of the faults, the order in which processes run, and when each disruption
happens.

    safety     faults continue to the end, at a given time: nothing forbidden may happen
    liveness   the faults stop, and processes that died have been replaced: every job must end in time
"""

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

from dagmaster.database.ledger import protocol
from dagmaster.database.notify.notifier import JOBS, RESULTS
from dagmaster.errors import Unavailable
from dagmaster.jobs.model import new_job_id
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations import submit
from dagmaster.orchestrator import advance, liveness, owned, relay
from dagmaster.orchestrator import loop as orchestrator_loop
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.orchestrator.relay import Relay
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.settings import Settings, load
from dagmaster.testing import history, memory_ledger, plain
from dagmaster.testing.job import KitJob
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.memory_notifier import MemoryExchange
from dagmaster.testing.memory_transport import Broker
from dagmaster.testing.trial import START
from dagmaster.transports.servicebus import OutboxTransport
from dagmaster.transports.transport import Transport
from dagmaster.worker import heartbeat, run
from dagmaster.worker import loop as worker_loop
from dagmaster.worker.loop import Worker
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import Workflow
from tests.jobs.random_workflows import Case, SeededDice, make_case
from tests.simulation.effects import QUEUE, ScriptedHandlers
from tests.simulation.faults import (
    FaultyLedger,
    FaultyNotifier,
    FaultySender,
    FaultyTransport,
    MessageDelivery,
    Profile,
    SingleFault,
    pause_seconds,
)
from tests.simulation.invariants import InvariantChecker, RunCounters
from tests.simulation.users import SimulatedUser
from tests.simulation.virtual_loop import LANE, Deadlock, Lane, VirtualTimeLoop

FAULTY_SECONDS = 20.0
BROKER_OUTAGE_SECONDS = 60.0
RECOVERY_SECONDS = 200.0  # in virtual time; the remaining retries, delays and timeouts of a chain may take about 60
_AFTERMATH_SECONDS = 2.0  # the time in which late processes may still try to write
_LONG_AFTERMATH_SECONDS = 10.0  # in some runs; a task that is not reported by then never will be
_MAX_STEPS = 40_000  # about fifty times the steps of a run
_TRACED_STEPS = 120
_LOOSE_CLOCK = 1e5
_CASES = 400
_NO_ANSWER: Any = object()  # None is a valid response


class Mode(StrEnum):
    SAFETY = "safety"
    LIVENESS = "liveness"


class InvariantBroken(AssertionError):
    """The violations, the last steps before them, and how to repeat the run."""


@dataclass
class Actor:
    lane: Lane
    process: Orchestrator | Worker
    notifier: FaultyNotifier
    is_stopping: bool = False


@cache
def short_intervals() -> Settings:
    """Leases and heartbeats so short that they expire within a run, and polls so rare that they cost little."""
    return load(
        orchestrator_poll_interval=2.5,
        heartbeat_interval_sec=2.5,
        orphan_threshold_sec=7.0,
        orphan_scan_interval_sec=3.0,
        worker_poll_interval=3.5,
        task_lease_sec=7.0,
        lease_renew_sec=2.5,
        shutdown_grace_sec=3.0,
        max_losses=2,
        worker_slots=3,
        worker_queue=QUEUE,
        known_queues=QUEUE,
        default_queue=QUEUE,
        orchestrator_batch=2,
    )


@cache
def generated_case(workflow_id: str, number: int) -> Case:
    """One of a fixed set of workflows with scripts. Each is generated once, and used with different faults."""
    random = Random(number)
    case = make_case(SeededDice(random), 3, workflow_id)
    if random.random() < 0.15:
        case.workflow = case.workflow.model_copy(update={"timeout_seconds": random.uniform(3.0, 20.0)})
    return case


_graphs: dict[int, tuple[Workflow, Graph]] = {}


def graph_of(workflow: Workflow) -> Graph:
    """A workflow is kept with its graph, so that no other one gets its id."""
    known = _graphs.get(id(workflow))
    if known is None:
        known = _graphs[id(workflow)] = workflow, build(workflow)
    return known[1]


class World:
    def __init__(
        self, seed: int, mode: Mode, *, case: Case | None = None, single_fault: SingleFault | None = None
    ) -> None:
        """With a case and a single fault: one job of that case, on two orchestrators and two workers."""
        self.seed, self.mode, self.single_fault = seed, mode, single_fault
        self.random = Random(f"{seed}/{mode}")
        self.profile = Profile.drawn(self.random) if single_fault is None else Profile()
        self.settings = short_intervals()
        self.loop = VirtualTimeLoop(self.random, most_steps=_MAX_STEPS, closing=self._close)
        self.delivery = MessageDelivery(self)
        # In every third run, a relay sends the ids of tasks to a broker, which is sometimes unavailable for a minute.
        self.has_broker = single_fault is None and seed % 3 == 0
        self._broker_outage_starts_at = Random(f"{seed}/broker").choice((1e9, 0.0, 5.0, 15.0))
        self.sent: set[str] = set()  # ids of tasks that the broker has acknowledged
        self.database = MemoryDatabase(self.clock, writes_outbox=self.has_broker)
        self.exchange, self.broker = MemoryExchange(), Broker()
        self.ledger = MemoryLedger(self.database, FaultyNotifier(self.delivery, self.exchange))
        self.checker = InvariantChecker(self)
        self.handlers = ScriptedHandlers(self)
        self.registry = self.handlers.registry()
        self.cases = self._draw_cases() if case is None else {case.workflow.workflow_id: case}
        self.library = WorkflowLibrary({case.workflow.workflow_id: case.workflow for case in self.cases.values()})
        self.acknowledged: dict[str, UUID | None] = {}  # submissions, by key or message id
        self.actors: list[Actor] = []
        self.unsettled: Any = None
        self.is_database_unavailable = False
        self.has_faults = True
        self.is_over = False
        self.violations: list[str] = []
        self.steps_taken: list[tuple[float, str, str, Any]] = []
        self._names: dict[UUID, str] = {}
        self._started = 0
        self._faults_ended_at: float | None = None
        self._end = asyncio.Event()
        self._users: list[asyncio.Task[Any]] = []

    def _draw_cases(self) -> dict[str, Case]:
        cases = {}
        for number in range(self.random.choice((1, 1, 2, 3))):
            case = generated_case(f"workflow-{number}", self.random.randrange(_CASES))
            cases[case.workflow.workflow_id] = case
        return cases

    # State that processes read

    def clock(self) -> datetime:
        """The clock of the server."""
        return START + timedelta(seconds=self.loop.now)

    @property
    def is_broker_unavailable(self) -> bool:
        return self._broker_outage_starts_at <= self.loop.now < self._broker_outage_starts_at + BROKER_OUTAGE_SECONDS

    def case_of(self, job_id: UUID) -> Case:
        return self.cases[self.database.jobs[job_id].workflow_id]

    def name_of(self, worker_id: UUID | None) -> str | None:
        return self._names.get(worker_id) if worker_id else None

    def uuid(self) -> UUID:
        return UUID(bytes=self.random.randbytes(16), version=4)

    def job_id(self) -> UUID:
        return new_job_id(int(self.loop.now * 1000), self.random.randbytes(10))

    def record(self, lane: Lane, what: str, answer: Any = _NO_ANSWER) -> None:
        self.steps_taken.append((self.loop.now, lane.name, what, answer))

    @property
    def calm_seconds(self) -> float:
        """Seconds since the faults have stopped, or -1."""
        return -1.0 if self._faults_ended_at is None else self.loop.now - self._faults_ended_at

    def alive_names(self) -> set[str]:
        return {actor.lane.name for actor in self.actors if not actor.is_stopping}

    def report_violation(self, what: str, error: BaseException | None = None) -> None:
        """An invariant is violated: the run ends. The process that violated it is not informed."""
        if self.is_over:
            return
        details = "" if error is None else "\n" + "".join(traceback.format_exception(error))
        self.violations.append(what + details)
        self.record(LANE.get(self.loop.outside), f"WRONG: {what}")
        self._end.set()

    def later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        self.delivery.later(seconds, call, *arguments)

    # Running

    def run(self) -> RunCounters:
        with _controlled(self):
            try:
                self.loop.run(self._live())
            except Deadlock as error:
                self.violations.append(str(error))
        self.violations += self.loop.unhandled_errors
        if self.violations:
            raise InvariantBroken(self.report())
        return self.checker.counters

    def _close(self) -> None:
        self.is_over = True

    async def _live(self) -> None:
        sizes = (1, 2, 3) if self.single_fault is None else (2,)
        for _ in range(self.random.choice(sizes)):
            self._start_orchestrator()
        for _ in range(self.random.choice(sizes)):
            self._start_worker()
        for number, workflow_id in enumerate(self.cases):
            lane = self.loop.lane(f"user-{number}")
            self._users.append(self.loop.start(lane, SimulatedUser(self, lane, workflow_id).run()))
        nemesis = self.loop.start(self.loop.lane("nemesis"), self._disrupt_at_random())
        if self.single_fault is not None:
            nemesis.cancel()
        await self._until_quiet(FAULTY_SECONDS)
        await self._wait(_AFTERMATH_SECONDS)
        if self.mode is Mode.LIVENESS:
            nemesis.cancel()
            self._end_faults()
            await self._recover()
        if not self._end.is_set() or self.mode is Mode.LIVENESS:
            self.checker.at_the_end(is_quiet=self.mode is Mode.LIVENESS and not self.violations)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._end.wait()
        except TimeoutError:
            return

    async def _until_quiet(self, seconds: float) -> None:
        deadline = self.loop.now + seconds
        while not self._end.is_set() and not self._is_quiet() and self.loop.now < deadline:
            await self._wait(1.0)

    async def _recover(self) -> None:
        await self._until_quiet(RECOVERY_SECONDS)
        if self.seed % 16 == 1:
            await self._wait(_LONG_AFTERMATH_SECONDS)
        if not self._end.is_set() and not self._is_quiet():
            self.report_violation(f"not all jobs have ended within {RECOVERY_SECONDS:g} s after the last fault")

    def _is_quiet(self) -> bool:
        return (
            all(user.done() for user in self._users)
            and all(job.status in JOB_TERMINAL for job in self.database.jobs.values())
            and not self.database.messages
        )

    # Processes

    def _start_orchestrator(self) -> None:
        lane = self._lane("orchestrator")
        router = RegistryRouter(self.registry, self.settings.known_queues, self.settings.default_queue)
        chunk = self.random.randint(1, 5)
        planner = Planner(router, self.random, max_losses=self.settings.max_losses, chunk=chunk)
        notifier = FaultyNotifier(self.delivery, self.exchange, JOBS, RESULTS)
        own_relay, transport = self._relay(lane, notifier)
        process = Orchestrator(
            self.settings,
            FaultyLedger(self, lane),
            FaultyLedger(self, lane),
            notifier,
            transport,
            planner,
            self.library,
            owner_id=self.uuid(),  # type: ignore[arg-type]
            relay=own_relay,
        )
        self._start(Actor(lane, process, notifier), process.owner_id)

    def _relay(self, lane: Lane, notifier: FaultyNotifier) -> tuple[Relay | None, Transport]:
        if not self.has_broker:
            return None, FaultyTransport(self, self.broker)
        own_relay = Relay(
            FaultyLedger(self, lane),  # type: ignore[arg-type]
            FaultySender(self, self.broker),
            self.settings.orchestrator_poll_interval,
            relay_id=self.uuid(),
            random=self.random,
        )
        return own_relay, OutboxTransport(notifier, own_relay.wake)

    def _start_worker(self) -> None:
        lane = self._lane("worker")
        notifier = FaultyNotifier(self.delivery, self.exchange)
        process = Worker(
            self.settings,
            FaultyLedger(self, lane),
            FaultyTransport(self, self.broker, (QUEUE,)),
            notifier,
            self.registry,  # type: ignore[arg-type]
            lease_ledger=FaultyLedger(self, lane),
            handler_ledger=FaultyLedger(self, lane),
            name=lane.name,
            worker_id=self.uuid(),  # type: ignore[arg-type]
            executor=plain.pool(isolate=False),
            progress_seconds=self.settings.lease_renew_sec,
            rng=self.random,
        )
        self._start(Actor(lane, process, notifier), process.worker_id)

    def _lane(self, kind: str) -> Lane:
        self._started += 1
        return self.loop.lane(f"{kind}-{self._started}", self.random.uniform(0, _LOOSE_CLOCK))

    def _start(self, actor: Actor, identity: UUID) -> None:
        self._names[identity] = actor.lane.name
        self.actors.append(actor)
        self.record(actor.lane, "starts")
        running = self.loop.start(actor.lane, actor.process.run())
        running.add_done_callback(lambda task: self._ended(actor, task))

    def _ended(self, actor: Actor, task: asyncio.Task[None]) -> None:
        if self.is_over:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None or not actor.is_stopping:
            self.report_violation(f"{actor.lane.name} has ended by itself: {error!r}", error)
        self._forget(actor)

    def _forget(self, actor: Actor) -> None:
        self.actors.remove(actor)
        self.exchange.notifiers.remove(actor.notifier)
        self.later(self.random.choice((0.1, 1.0, 6.0)), self._replace, actor)

    def _replace(self, actor: Actor) -> None:
        if not self.is_over:
            (self._start_orchestrator if isinstance(actor.process, Orchestrator) else self._start_worker)()

    def _actor(self, lane: Lane) -> Actor | None:
        return next((actor for actor in self.actors if actor.lane is lane), None)

    # Faults

    async def kill_caller(self, lane: Lane) -> None:
        """Kill the process at this await."""
        self._kill(lane)
        await asyncio.Event().wait()

    def _kill(self, lane: Lane) -> None:
        actor = self._actor(lane)
        if actor is None or self.is_over:
            return
        self.record(lane, "is killed")
        self.loop.kill(lane)
        self._forget(actor)

    async def pause_caller(self, lane: Lane) -> None:
        self._pause(lane, pause_seconds(self.random))
        await asyncio.sleep(0)

    def _pause(self, lane: Lane, seconds: float) -> None:
        if lane.is_paused or self.is_over:
            return
        self.record(lane, f"is paused for {seconds:.1f} s")
        self.loop.pause(lane)
        self.later(seconds, self._resume, lane)

    def _resume(self, lane: Lane) -> None:
        if not lane.is_dead and lane.is_paused:
            self.record(lane, "continues")
            self.loop.resume(lane)

    def _jump(self, lane: Lane) -> None:
        lane.clock_offset += self.random.choice((0.5, 10.0, 3600.0))
        self.record(lane, "has a clock that jumps ahead")

    def _start_outage(self, seconds: float) -> None:
        self.is_database_unavailable = True
        self.record(self.loop.outside, f"the database is unavailable for {seconds:.1f} s")
        self.later(seconds, self._end_outage)

    def _end_outage(self) -> None:
        self.is_database_unavailable = False

    def _stop(self, actor: Actor) -> None:
        self.record(actor.lane, "is asked to stop")
        actor.is_stopping = True
        actor.process.stop()

    async def _disrupt_at_random(self) -> None:
        disruptions, weights = list(self.profile.disruptions), list(self.profile.disruptions.values())
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self.profile.gap_seconds))
            disruption = self.random.choices(disruptions, weights)[0]
            if disruption == "outage":
                self._start_outage(self.random.choice((0.5, 3.0, 9.0)) * self.random.random())
            elif self.actors:
                self._disrupt(disruption, self._random_actor())

    def _random_actor(self) -> Actor:
        """In half of the cases a worker that runs tasks, if there is one."""
        busy = [actor for actor in self.actors if isinstance(actor.process, Worker) and actor.process.held_tasks]
        return self.random.choice(busy if busy and self.random.random() < 0.5 else self.actors)

    def _disrupt(self, disruption: str, actor: Actor) -> None:
        match disruption:
            case "crash":
                self._kill(actor.lane)
            case "stop" if not actor.is_stopping:
                self._stop(actor)
            case "pause":
                self._pause(actor.lane, self.random.uniform(0.05, 3.0))
            case "freeze":
                self._pause(actor.lane, self.random.uniform(8.0, 20.0))
            case "jump":
                self._jump(actor.lane)

    def _end_faults(self) -> None:
        """End the faults. Handlers still follow their scripts."""
        self.record(self.loop.outside, "the faults are over")
        self.has_faults = self.is_database_unavailable = False
        self._faults_ended_at = self.loop.now
        for actor in self.actors:
            self._resume(actor.lane)

    # Reports

    def trace(self) -> str:
        """A hash of the run: of all its steps, and of the rows at its end."""
        digest = hashlib.sha256()
        for line in self._lines(len(self.steps_taken)):
            digest.update(line.encode())
        for job_id in self.database.jobs:
            digest.update(KitJob.of(self.database, job_id).transcript().encode())
        return digest.hexdigest()

    def _lines(self, last: int) -> list[str]:
        return [
            f"{at:9.3f} s  {name:<16} {what}" + ("" if answer is _NO_ANSWER else f" -> {_shown(answer)[:300]}")
            for at, name, what, answer in self.steps_taken[-last:]
        ]

    def report(self) -> str:
        lines = [f"seed {self.seed} in {self.mode} mode:", *(f"  {each}" for each in self.violations[:20]), ""]
        lines += [f"repeat it: pytest tests/simulation --seed {self.seed}", f"faults: {self.profile}", ""]
        lines += self._lines(_TRACED_STEPS)
        lines += ["", *(KitJob.of(self.database, job_id).transcript() for job_id in self.database.jobs)]
        return "\n".join(lines)


def _shown(answer: Any) -> str:
    """The text of a response. Sets are sorted, because their order differs between processes."""
    return f"{{{', '.join(sorted(map(repr, answer)))}}}" if isinstance(answer, set | frozenset) else str(answer)


class _Listener:
    """Adds the log lines of the loops to the record. An unexpected error is a violation."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _record(self, event: str, exc_info: BaseException | None = None, **facts: Any) -> None:
        lane = LANE.get(self._world.loop.outside)
        self._world.record(lane, f"says: {event}" + (f" ({facts['error']})" if "error" in facts else ""))
        if exc_info is not None and not isinstance(exc_info, Unavailable | OSError):
            self._world.report_violation(f"{lane.name}: {event}: {exc_info!r}", exc_info)

    debug = info = warning = error = _record


@contextmanager
def _controlled(world: World) -> Iterator[None]:
    """Let ids, graphs and logs come from the world, so that the seed decides everything."""
    listener = _Listener(world)
    replaced = [
        (memory_ledger, "uuid4", world.uuid),
        (submit, "new_job_id", lambda *_: world.job_id()),
        *((module, "build", graph_of) for module in (owned, protocol, history)),
        *(
            (module, "_log", listener)
            for module in (orchestrator_loop, advance, liveness, relay, worker_loop, heartbeat, run)
        ),
    ]
    kept = [getattr(module, name) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(replaced, kept, strict=True):
            setattr(module, name, value)


def simulate(seed: int) -> World:
    """The world of a seed, after its run. Even seeds are for safety, odd ones for liveness."""
    world = World(seed, Mode.LIVENESS if seed % 2 else Mode.SAFETY)
    world.run()
    return world
