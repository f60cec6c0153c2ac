"""What may go wrong between a process and the rest of the world:
a ledger, a notifier and a transport as one process sees them.

Every call takes time on its way there and back. Its fate is drawn from the seed: it may fail before it took effect, or
after; its caller may die or stand still at either point; it may take effect while every caller gets an unknown outcome.
Messages of others (notifications, tickets) may be dropped, doubled, late, and so out of order.
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
from dagmaster.transports.transport import Ticket
from tests.simulation.clockwork import Lane

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
# They write what no rule is about: whether someone lives, what is not referred to yet.
_ASIDE = frozenset({"beat_worker", "retire_worker", "maintain", "store_payload", "set_queue"})
_SHOWS_LIFE = frozenset({"beat", "beat_worker", "maintain", "take_messages"})
_SHORT_PAUSE, _LONG_PAUSE = (0.05, 3.0), (8.0, 20.0)  # the long ones outlast every lease


ADVANCE = "advance"  # a step of an orchestrator, whether of all its jobs or of those with reports


class Fate(StrEnum):
    FAILS = "fails before it takes effect"
    REFUSED = "is refused, as a deadlock's victim is"
    ROLLED_BACK = "is thought through, and fails at its commit"
    UNANSWERED = "takes effect, and the answer is lost"
    IN_DOUBT = "is cut off, and takes effect a while later"
    HANGS = "hangs"
    CALLER_DIES_BEFORE = "is never made: the caller dies"
    CALLER_DIES_AFTER = "takes effect, and the caller dies"
    CALLER_PAUSES_BEFORE = "is made late: the caller stands still"
    CALLER_PAUSES_AFTER = "takes effect, and the caller stands still"


_HEAVY = frozenset(
    {ADVANCE, "exchange", "report", "renew", "claim_jobs", "claim_orphans", "create_once", "rerun"}
)  # more often than the others
_OF_CALLERS = (
    Fate.CALLER_DIES_BEFORE,
    Fate.CALLER_DIES_AFTER,
    Fate.CALLER_PAUSES_BEFORE,
    Fate.CALLER_PAUSES_AFTER,
)


@dataclass(frozen=True)
class Profile:
    """How likely each fault is, over one run. Many are left out of most runs:
    a rare one must not hide behind the others."""

    calls: dict[Fate, float] = field(default_factory=dict)
    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    latency_seconds: float = 0.01
    deeds: dict[str, int] = field(default_factory=dict)  # of the nemesis, by weight
    gap_seconds: float = 5.0  # between its deeds

    @classmethod
    def drawn(cls, random: Random) -> "Profile":
        calls = {}
        for fate in Fate:
            if random.random() < 0.4:
                calls[fate] = (
                    random.choice((0.002, 0.008)) if fate in _OF_CALLERS else random.choice((0.01, 0.03, 0.08))
                )
        deeds = {deed: random.choice((0, 1, 1, 2)) for deed in ("crash", "stop", "pause", "freeze", "outage", "jump")}
        return cls(
            calls,
            drop=random.choice((0.0, 0.1, 0.5, 1.0)),
            double=random.choice((0.0, 0.2)),
            delay=random.choice((0.0, 0.2, 0.6)),
            latency_seconds=random.choice((0.001, 0.02, 0.2)),
            deeds=deeds if any(deeds.values()) else {"crash": 1},
            gap_seconds=random.choice((2.0, 4.0, 8.0)),
        )

    def __str__(self) -> str:
        calls = ", ".join(f"{chance:g} {fate.name.lower()}" for fate, chance in self.calls.items())
        deeds = ", ".join(f"{weight} {deed}" for deed, weight in self.deeds.items() if weight)
        return (
            f"calls: {calls or 'as they should'}; notifications and tickets: {self.drop:g} dropped, "
            f"{self.double:g} doubled, {self.delay:g} late; deeds every {self.gap_seconds:g} s: {deeds}"
        )


@dataclass
class Doubt:
    """A commit is on its way: who reads sees what was before, who writes has to wait for its locks."""

    before: MemoryDatabase
    over: asyncio.Event = field(default_factory=asyncio.Event)


def snapshot(db: MemoryDatabase) -> MemoryDatabase:
    """Rows are frozen: copies of the tables are enough."""
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


class Wire:
    """A ledger at the other end of a connection."""

    def __init__(self, world: Any, lane: Lane, *, is_user: bool = False) -> None:
        self._world = world
        self._lane = lane
        self._is_user = is_user
        self._fates = {f: p for f, p in world.profile.calls.items() if not (is_user and f in _OF_CALLERS)}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        is_step = name in ("open_jobs", "open_reported_jobs")
        call: Callable[..., Any] = partial(self._open_step if is_step else self._call, name)
        setattr(self, name, call)
        return call

    def _fate(self, name: str) -> Fate | None:
        world = self._world
        if world.is_over or not world.has_faults:
            return None
        if world.sweep is not None:
            return None if self._is_user else world.sweep.fate_of(name)
        roll = world.random.random() * (0.4 if name in _HEAVY else 2.0)
        for fate, chance in self._fates.items():
            roll -= chance
            if roll < 0:
                return fate
        return None

    async def _call(self, name: str, /, *arguments: Any, **options: Any) -> Any:
        world, fate = self._world, self._fate(name)
        if fate is None:
            if name not in _SHOWS_LIFE or world.random.random() < 0.3:
                await self._travel()
            answer = await self._execute(name, arguments, options)
            if name in _HEAVY and world.random.random() < 0.5:
                await self._travel()
            return answer
        world.tell(self._lane, f"{name} {fate}")
        await self._before(fate)
        if fate is Fate.IN_DOUBT and name not in READS:
            await self._leave_in_doubt(name, arguments, options)
        if fate is Fate.ROLLED_BACK:
            raise lost_connection()
        answer = await self._execute(name, arguments, options)
        await self._after(fate)
        return answer

    @asynccontextmanager
    async def _open_step(self, name: str, /, *arguments: Any) -> AsyncIterator["WiredStep"]:
        """It fails before it is opened, or at its commit."""
        world, fate = self._world, self._fate(ADVANCE)
        if fate is None:
            await self._travel()
        else:
            world.tell(self._lane, f"{ADVANCE} {fate}")
            await self._before(fate)
        self._require_connection()
        await self._wait_for_locks()
        self._require_connection()
        doubt = Doubt(snapshot(world.database)) if fate is Fate.IN_DOUBT else None
        before = world.judge.before(ADVANCE)
        try:
            async with getattr(world.ledger, name)(*arguments) as step:
                yield WiredStep(self, step, fate, doubt, lambda: world.judge.after(ADVANCE, arguments, before, step))
        except (DagmasterError, StaleViewError) as error:
            world.tell(self._lane, f"{ADVANCE}: {type(error).__name__} {error}")
            raise
        except Exception as error:  # a guard has refused it, or there is a bug
            world.accuse(f"{ADVANCE} failed: {error!r}", error)
            raise

    async def after_step(self, step: "MemoryStep", fate: Fate | None, doubt: "Doubt | None") -> None:
        """The step is committed; what becomes of the answer."""
        world = self._world
        world.tell(self._lane, ADVANCE, (step.fenced, step.has_more))
        if doubt is not None:
            self._leave_unsettled(doubt)
        if fate is not None:
            await self._after(fate)
        elif world.random.random() < 0.5:
            await self._travel()

    def _require_connection(self) -> None:
        if self._world.is_over or self._world.is_away:
            raise lost_connection()

    async def _travel(self) -> None:
        await asyncio.sleep(self._world.random.random() * self._world.profile.latency_seconds)

    async def _before(self, fate: Fate) -> None:
        world = self._world
        await self._travel()
        match fate:
            case Fate.FAILS:
                raise lost_connection()
            case Fate.REFUSED:
                raise Unavailable("deadlock detected", sqlstate="40P01")
            case Fate.HANGS:
                await asyncio.sleep(world.random.uniform(1.0, 6.0))
                raise Unavailable("no answer in time")
            case Fate.CALLER_DIES_BEFORE:
                await world.die(self._lane)
            case Fate.CALLER_PAUSES_BEFORE:
                await world.stand_still(self._lane)

    async def _after(self, fate: Fate) -> None:
        world = self._world
        match fate:
            case Fate.UNANSWERED | Fate.IN_DOUBT:
                await self._travel()
                raise lost_connection()
            case Fate.CALLER_DIES_AFTER:
                await world.die(self._lane)
            case Fate.CALLER_PAUSES_AFTER:
                await world.stand_still(self._lane)

    async def _leave_in_doubt(self, name: str, arguments: Any, options: Any) -> None:
        """What it has written becomes visible after its caller got an error."""
        world = self._world
        await self._wait_for_locks()
        doubt = Doubt(snapshot(world.database))
        await self._commit(name, arguments, options)
        self._leave_unsettled(doubt)

    def _leave_unsettled(self, doubt: Doubt) -> None:
        self._world.doubt = doubt
        self._world.later(self._world.random.uniform(0.05, 3.0), self._settle, doubt)
        raise lost_connection()

    def _settle(self, doubt: Doubt) -> None:
        self._world.doubt = None
        doubt.over.set()

    async def _wait_for_locks(self) -> None:
        while (doubt := self._world.doubt) is not None:
            await doubt.over.wait()

    async def _execute(self, name: str, arguments: Any, options: Any) -> Any:
        world = self._world
        self._require_connection()
        if name in READS:
            database = world.doubt.before if world.doubt else world.database
            return await getattr(MemoryLedger(database), name)(*arguments, **options)
        await self._wait_for_locks()
        return await self._commit(name, arguments, options)

    async def _commit(self, name: str, arguments: Any, options: Any) -> Any:
        world = self._world
        self._require_connection()
        before = None if name in _ASIDE else world.judge.before(name)
        try:
            answer = await getattr(world.ledger, name)(*arguments, **options)
        except (DagmasterError, StaleViewError) as error:
            world.tell(self._lane, f"{name}: {type(error).__name__} {error}")
            raise
        except Exception as error:  # a guard has refused it, or there is a bug
            world.accuse(f"{name} failed: {error!r}", error)
            raise
        world.tell(self._lane, name, answer)
        if before is not None:
            world.judge.after("exchange" if name == "report" else name, arguments, before, answer)
        return answer


@dataclass
class WiredStep:
    """A step at the other end of a connection."""

    _wire: Wire
    _step: MemoryStep
    _fate: Fate | None
    _doubt: Doubt | None
    _judge: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    async def commit(self, changes: Sequence[Changes], *, notify: Sequence[str] = ()) -> frozenset[str]:
        if self._fate is Fate.ROLLED_BACK:
            raise lost_connection()
        queues = await self._step.commit(changes, notify=notify)
        self._judge()
        await self._wire.after_step(self._step, self._fate, self._doubt)
        return queues


@dataclass
class Sweep:
    """One fault in a run that has no other: at the commit of this number."""

    number: int
    fate: Fate
    commits: int = 0

    def fate_of(self, name: str) -> Fate | None:
        if name in READS or name in _SHOWS_LIFE:
            return None
        self.commits += 1
        return self.fate if self.commits == self.number else None


def lost_connection() -> Unavailable:
    return Unavailable("the connection was lost")


class Post:
    """Carries notifications and tickets, with the faults of the profile."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._nobody = contextvars.Context()  # what arrives does so in no process

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
        self._world.loop.call_later(seconds, call, *arguments, context=self._nobody)


class FaultyNotifier(MemoryNotifier):
    def __init__(self, post: Post, exchange: MemoryExchange, *topics: str) -> None:
        super().__init__(exchange, frozenset(topics))
        self._post = post
        exchange.notifiers.append(self)

    def notify(self, *topics: str) -> None:
        for notifier in self._exchange.notifiers:
            self._post.deliver(notifier.receive, topics)


class FaultyTransport(MemoryTransport):
    def __init__(self, world: Any, broker: Broker, queues: Sequence[str] = ()) -> None:
        super().__init__(broker, queues)
        self._world = world

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        if self._world.has_faults and self._world.random.random() < self._world.profile.calls.get(Fate.FAILS, 0.0):
            raise Unavailable("the broker is away")
        for ticket in tickets:
            self._world.post.deliver(self._broker.put, [ticket])


class FaultySender:
    """What a relay sends to: it may be away, and what it has acknowledged may be lost, doubled or late."""

    def __init__(self, world: Any, broker: Broker) -> None:
        self._world = world
        self._broker = broker

    async def send_tasks(self, queue: str, task_ids: Sequence[str]) -> None:
        world = self._world
        await asyncio.sleep(world.random.random() * world.profile.latency_seconds)
        if world.is_broker_away:
            raise Unavailable("the broker is away")
        fails = world.has_faults and world.random.random() < world.profile.calls.get(Fate.FAILS, 0.0)
        # A batch that fails may have arrived in part.
        arriving = task_ids[: world.random.randrange(len(task_ids) + 1)] if fails else task_ids
        for task_id in arriving:
            world.post.deliver(self._broker.put, [Ticket(queue, task_id)])
        if fails:
            raise Unavailable("the broker is away")
        world.sent.update(task_ids)


def pause_seconds(random: Random) -> float:
    return random.uniform(*random.choice((_SHORT_PAUSE, _LONG_PAUSE)))
