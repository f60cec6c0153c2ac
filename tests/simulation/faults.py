"""A ledger, a notifier and a transport with faults, as one process sees them.

Every call takes time in both directions. Its fault is drawn from the seed: the call may fail before it takes effect, or
after; its caller may die or pause at either point; it may take effect later, while its caller gets an error. Messages
(notifications, announcements) may be dropped, duplicated or delayed, and so arrive out of order.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any

from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.jobs.changes import Changes
from dagmaster.orchestrator.advance import StaleViewError
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger, MemoryStep
from dagmaster.testing.memory_notifier import MemoryExchange, MemoryNotifier
from dagmaster.testing.memory_transport import Broker, MemoryTransport
from dagmaster.transports.transport import Announcement
from tests.simulation.virtual_loop import Lane

READS = frozenset(
    {
        "load_job",
        "load_jobs",
        "load_outputs",
        "load_output_references",
        "reported_jobs",
        "sweep_jobs",
        "load_checkpoints",
        "read_results",
        "read_encoded_results",
        "load_payload",
        "queued_tasks",
        "now",
    }
)
# No invariant depends on what these write: heartbeats, limits of queues, and payloads without a reference.
_UNCHECKED = frozenset({"beat_worker", "retire_worker", "maintain", "store_payload", "set_queue"})
_HEARTBEATS = frozenset({"beat", "beat_worker", "maintain", "take_messages"})
_SHORT_PAUSE, _LONG_PAUSE = (0.05, 3.0), (8.0, 20.0)  # the long ones outlast every lease


ADVANCE = "advance"  # a step of an orchestrator, whether of all its jobs or of those with reports


class CallFault(StrEnum):
    FAILS = "fails before it takes effect"
    REFUSED = "is refused because of a deadlock"
    ROLLED_BACK = "fails at its commit"
    UNANSWERED = "takes effect, but the response is lost"
    IN_DOUBT = "loses its connection, but takes effect later"
    HANGS = "hangs"
    CALLER_DIES_BEFORE = "is never made: the caller dies"
    CALLER_DIES_AFTER = "takes effect, and the caller dies"
    CALLER_PAUSES_BEFORE = "is made late: the caller pauses"
    CALLER_PAUSES_AFTER = "takes effect, and the caller pauses"


_FREQUENT = frozenset(
    {ADVANCE, "exchange", "report", "renew", "claim_jobs", "claim_orphans", "create_once", "rerun"}
)  # faults of these calls are more frequent
_CALLER_FAULTS = (
    CallFault.CALLER_DIES_BEFORE,
    CallFault.CALLER_DIES_AFTER,
    CallFault.CALLER_PAUSES_BEFORE,
    CallFault.CALLER_PAUSES_AFTER,
)


@dataclass(frozen=True)
class Profile:
    """How likely each fault is in one run. Most runs have only some of them, so that frequent faults do not hide the
    effect of rare ones."""

    calls: dict[CallFault, float] = field(default_factory=dict)
    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    latency_seconds: float = 0.01
    disruptions: dict[str, int] = field(default_factory=dict)  # the weights of the disruptions of the nemesis
    gap_seconds: float = 5.0  # the average time between disruptions

    @classmethod
    def drawn(cls, random: Random) -> "Profile":
        calls = {}
        for fault in CallFault:
            if random.random() < 0.4:
                calls[fault] = (
                    random.choice((0.002, 0.008)) if fault in _CALLER_FAULTS else random.choice((0.01, 0.03, 0.08))
                )
        disruptions = {
            disruption: random.choice((0, 1, 1, 2))
            for disruption in ("crash", "stop", "pause", "freeze", "outage", "jump")
        }
        return cls(
            calls,
            drop=random.choice((0.0, 0.1, 0.5, 1.0)),
            double=random.choice((0.0, 0.2)),
            delay=random.choice((0.0, 0.2, 0.6)),
            latency_seconds=random.choice((0.001, 0.02, 0.2)),
            disruptions=disruptions if any(disruptions.values()) else {"crash": 1},
            gap_seconds=random.choice((2.0, 4.0, 8.0)),
        )

    def __str__(self) -> str:
        calls = ", ".join(f"{chance:g} {fault.name.lower()}" for fault, chance in self.calls.items())
        disruptions = ", ".join(f"{weight} {disruption}" for disruption, weight in self.disruptions.items() if weight)
        return (
            f"calls: {calls or 'without faults'}; notifications and announcements: {self.drop:g} dropped, "
            f"{self.double:g} doubled, {self.delay:g} late; disruptions every {self.gap_seconds:g} s: {disruptions}"
        )


@dataclass
class UnsettledCommit:
    """A commit that takes effect later. Until then, reads see the state before it, and writes wait for its locks."""

    before: MemoryDatabase
    over: asyncio.Event = field(default_factory=asyncio.Event)


def snapshot(db: MemoryDatabase) -> MemoryDatabase:
    """A copy of the tables; the rows are immutable."""
    copied = MemoryDatabase(
        db.clock,
        db.definitions,
        dict(db.jobs),
        tasks=dict(db.tasks),
        results=dict(db.results),
        orchestrators=db.orchestrators,
        workers=db.workers,
        checkpoints=db.checkpoints,
        messages=db.messages,
        dead_letters=db.dead_letters,
        keys=db.keys,
        queues=db.queues,
        payloads=db.payloads,
        payload_parts=db.payload_parts,
        outbox=dict(db.outbox),
    )
    copied.nodes.update({job_id: dict(rows) for job_id, rows in db.nodes.items()})
    copied.events.update({job_id: list(rows) for job_id, rows in db.events.items()})
    return copied


class FaultyLedger:
    """A ledger behind a connection with faults."""

    def __init__(self, world: Any, lane: Lane, *, is_user: bool = False) -> None:
        self._world = world
        self._lane = lane
        self._is_user = is_user
        self._faults = {f: p for f, p in world.profile.calls.items() if not (is_user and f in _CALLER_FAULTS)}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        is_step = name in ("open_jobs", "open_reported_jobs")
        call: Callable[..., Any] = partial(self._open_step if is_step else self._call, name)
        setattr(self, name, call)
        return call

    def _fault(self, name: str) -> CallFault | None:
        world = self._world
        if world.is_over or not world.has_faults:
            return None
        if world.single_fault is not None:
            return None if self._is_user else world.single_fault.fault_of(name)
        roll = world.random.random() * (0.4 if name in _FREQUENT else 2.0)
        for fault, chance in self._faults.items():
            roll -= chance
            if roll < 0:
                return fault
        return None

    async def _call(self, name: str, /, *arguments: Any, **options: Any) -> Any:
        world, fault = self._world, self._fault(name)
        if fault is None:
            if name not in _HEARTBEATS or world.random.random() < 0.3:
                await self._travel()
            response = await self._execute(name, arguments, options)
            if name in _FREQUENT and world.random.random() < 0.5:
                await self._travel()
            return response
        world.record(self._lane, f"{name} {fault}")
        await self._before(fault)
        if fault is CallFault.IN_DOUBT and name not in READS:
            await self._leave_in_doubt(name, arguments, options)
        if fault is CallFault.ROLLED_BACK:
            raise lost_connection()
        response = await self._execute(name, arguments, options)
        await self._after(fault)
        return response

    @asynccontextmanager
    async def _open_step(self, name: str, /, *arguments: Any) -> AsyncIterator["FaultyStep"]:
        """A step that may fail before it is opened, or at its commit."""
        world, fault = self._world, self._fault(ADVANCE)
        if fault is None:
            await self._travel()
        else:
            world.record(self._lane, f"{ADVANCE} {fault}")
            await self._before(fault)
        self._require_connection()
        await self._wait_for_locks()
        self._require_connection()
        unsettled = UnsettledCommit(snapshot(world.database)) if fault is CallFault.IN_DOUBT else None
        before = world.checker.before(ADVANCE)
        try:
            async with getattr(world.ledger, name)(*arguments) as step:
                yield FaultyStep(
                    self, step, fault, unsettled, lambda: world.checker.after(ADVANCE, arguments, before, step)
                )
        except (DagmasterError, StaleViewError) as error:
            world.record(self._lane, f"{ADVANCE}: {type(error).__name__} {error}")
            raise
        except Exception as error:  # a guard has refused it, or there is a bug
            world.report_violation(f"{ADVANCE} failed: {error!r}", error)
            raise

    async def after_step(
        self, step: "MemoryStep", fault: CallFault | None, unsettled: "UnsettledCommit | None"
    ) -> None:
        """Called when the step is committed; its response may be late or lost."""
        world = self._world
        world.record(self._lane, ADVANCE, (step.fenced, step.has_more))
        if unsettled is not None:
            self._answer_unsettled(unsettled)
        if fault is not None:
            await self._after(fault)
        elif world.random.random() < 0.5:
            await self._travel()

    def _require_connection(self) -> None:
        if self._world.is_over or self._world.is_database_unavailable:
            raise lost_connection()

    async def _travel(self) -> None:
        await asyncio.sleep(self._world.random.random() * self._world.profile.latency_seconds)

    async def _before(self, fault: CallFault) -> None:
        world = self._world
        await self._travel()
        match fault:
            case CallFault.FAILS:
                raise lost_connection()
            case CallFault.REFUSED:
                raise Unavailable("deadlock detected", sqlstate="40P01")
            case CallFault.HANGS:
                await asyncio.sleep(world.random.uniform(1.0, 6.0))
                raise Unavailable("no response in time")
            case CallFault.CALLER_DIES_BEFORE:
                await world.kill_caller(self._lane)
            case CallFault.CALLER_PAUSES_BEFORE:
                await world.pause_caller(self._lane)

    async def _after(self, fault: CallFault) -> None:
        world = self._world
        match fault:
            case CallFault.UNANSWERED | CallFault.IN_DOUBT:
                await self._travel()
                raise lost_connection()
            case CallFault.CALLER_DIES_AFTER:
                await world.kill_caller(self._lane)
            case CallFault.CALLER_PAUSES_AFTER:
                await world.pause_caller(self._lane)

    async def _leave_in_doubt(self, name: str, arguments: Any, options: Any) -> None:
        """Commit, and make the rows visible only after the caller got an error."""
        world = self._world
        await self._wait_for_locks()
        unsettled = UnsettledCommit(snapshot(world.database))
        await self._commit(name, arguments, options)
        self._answer_unsettled(unsettled)

    def _answer_unsettled(self, unsettled: UnsettledCommit) -> None:
        self._world.unsettled = unsettled
        self._world.later(self._world.random.uniform(0.05, 3.0), self._settle, unsettled)
        raise lost_connection()

    def _settle(self, unsettled: UnsettledCommit) -> None:
        self._world.unsettled = None
        unsettled.over.set()

    async def _wait_for_locks(self) -> None:
        while (unsettled := self._world.unsettled) is not None:
            await unsettled.over.wait()

    async def _execute(self, name: str, arguments: Any, options: Any) -> Any:
        world = self._world
        self._require_connection()
        if name in READS:
            database = world.unsettled.before if world.unsettled else world.database
            return await getattr(MemoryLedger(database), name)(*arguments, **options)
        await self._wait_for_locks()
        return await self._commit(name, arguments, options)

    async def _commit(self, name: str, arguments: Any, options: Any) -> Any:
        world = self._world
        self._require_connection()
        before = None if name in _UNCHECKED else world.checker.before(name)
        try:
            response = await getattr(world.ledger, name)(*arguments, **options)
        except (DagmasterError, StaleViewError) as error:
            world.record(self._lane, f"{name}: {type(error).__name__} {error}")
            raise
        except Exception as error:  # a guard has refused it, or there is a bug
            world.report_violation(f"{name} failed: {error!r}", error)
            raise
        world.record(self._lane, name, response)
        if before is not None:
            world.checker.after("exchange" if name == "report" else name, arguments, before, response)
        return response


@dataclass
class FaultyStep:
    """A step behind a connection with faults."""

    _ledger: FaultyLedger
    _step: MemoryStep
    _fault: CallFault | None
    _unsettled: UnsettledCommit | None
    _check: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    async def commit(self, changes: Sequence[Changes], *, notify: Sequence[str] = ()) -> frozenset[str]:
        if self._fault is CallFault.ROLLED_BACK:
            raise lost_connection()
        queues = await self._step.commit(changes, notify=notify)
        self._check()
        await self._ledger.after_step(self._step, self._fault, self._unsettled)
        return queues


@dataclass
class SingleFault:
    """The only fault of a run: at the commit with this number."""

    number: int
    fault: CallFault
    commits: int = 0

    def fault_of(self, name: str) -> CallFault | None:
        if name in READS or name in _HEARTBEATS:
            return None
        self.commits += 1
        return self.fault if self.commits == self.number else None


def lost_connection() -> Unavailable:
    return Unavailable("the connection was lost")


class MessageDelivery:
    """Carries notifications and announcements, with the faults of the profile."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._no_process = contextvars.Context()  # messages are delivered outside of all processes

    def deliver(self, arrive: Callable[..., Any], *arguments: Any) -> None:
        world, profile = self._world, self._world.profile
        if world.is_over:
            return
        if not world.has_faults:
            arrive(*arguments)
            return
        random = world.random
        if random.random() < profile.drop:
            return
        for _ in range(2 if random.random() < profile.double else 1):
            if random.random() < profile.delay:
                self.later(random.choice((0.01, 0.5, 5.0)) * random.random(), arrive, *arguments)
            else:
                arrive(*arguments)

    def later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        self._world.loop.call_later(seconds, call, *arguments, context=self._no_process)


class FaultyNotifier(MemoryNotifier):
    def __init__(self, delivery: MessageDelivery, exchange: MemoryExchange, *topics: str) -> None:
        super().__init__(exchange, frozenset(topics))
        self._delivery = delivery
        exchange.notifiers.append(self)

    def notify(self, *topics: str) -> None:
        for notifier in self._exchange.notifiers:
            self._delivery.deliver(notifier.receive, topics)


class FaultyTransport(MemoryTransport):
    def __init__(self, world: Any, broker: Broker, queues: Sequence[str] = ()) -> None:
        super().__init__(broker, queues)
        self._world = world

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        if self._world.has_faults and self._world.random.random() < self._world.profile.calls.get(CallFault.FAILS, 0.0):
            raise Unavailable("the broker is unavailable")
        for announcement in announcements:
            self._world.delivery.deliver(self._broker.put, [announcement])


class FaultySender:
    """The broker of a relay: it may be unavailable, and may lose, duplicate or delay messages that it acknowledged."""

    def __init__(self, world: Any, broker: Broker) -> None:
        self._world = world
        self._broker = broker

    async def send_tasks(self, queue: str, task_ids: Sequence[str]) -> None:
        world = self._world
        await asyncio.sleep(world.random.random() * world.profile.latency_seconds)
        if world.is_broker_unavailable:
            raise Unavailable("the broker is unavailable")
        fails = world.has_faults and world.random.random() < world.profile.calls.get(CallFault.FAILS, 0.0)
        # A batch that fails may have arrived in part.
        arriving = task_ids[: world.random.randrange(len(task_ids) + 1)] if fails else task_ids
        for task_id in arriving:
            world.delivery.deliver(self._broker.put, [Announcement(queue, task_id)])
        if fails:
            raise Unavailable("the broker is unavailable")
        world.sent.update(task_ids)


def pause_seconds(random: Random) -> float:
    return random.uniform(*random.choice((_SHORT_PAUSE, _LONG_PAUSE)))
