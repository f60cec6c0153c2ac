"""The queues of the stand-in for Azure Service Bus: waiting and locked messages, dead letters, injected faults.

    put ──▶ waiting ──▶ locked ──▶ completed
               ▲           ├──▶ abandoned, or the lock has expired: waiting again, delivery count + 1
               │           └──▶ dead letter, with reason and description
               └── after `max_delivery_count` deliveries: dead letter (MaxDeliveryCountExceeded)

It knows no AMQP and no clock: times are passed in, in seconds since 1970.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from proton import Message

DEAD_LETTERS = "/$deadletterqueue"
MAX_MESSAGE_BYTES = 262_144  # the limit of the Standard tier
_COUNT_EXCEEDED = "MaxDeliveryCountExceeded"


@dataclass
class Faults:
    """Fractions of the sent messages that have each fault. A dropped message was acknowledged before."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 3.0  # at most
    reorder: float = 0.0
    busy: float = 0.0  # refused with com.microsoft:server-busy

    @property
    def is_any(self) -> bool:
        return bool(self.drop or self.duplicate or self.delay or self.reorder or self.busy)


@dataclass
class Stored:
    message: Message
    sequence_number: int
    enqueued_at: float
    available_at: float
    expires_at: float | None
    delivery_count: int = 0


@dataclass
class Locked:
    stored: Stored
    until: float


@dataclass
class Counters:
    sent: int = 0  # messages of clients that were acknowledged
    delivered: int = 0
    completed: int = 0
    abandoned: int = 0
    expired_locks: int = 0
    expired: int = 0
    dropped: int = 0
    duplicated: int = 0
    delayed: int = 0
    reordered: int = 0


@dataclass
class BrokerQueue:
    name: str
    lock_seconds: float = 60.0
    max_delivery_count: int = 10
    faults: Faults = field(default_factory=Faults)
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self.counters = Counters()
        self.waiting: OrderedDict[int, Stored] = OrderedDict()
        self.locked: dict[str, Locked] = {}
        self.dead_letters: BrokerQueue | None = None
        if not self.name.endswith(DEAD_LETTERS):
            self.dead_letters = BrokerQueue(f"{self.name}{DEAD_LETTERS}", self.lock_seconds, 1_000_000)
        self._numbers = itertools.count(1)
        self._tags = itertools.count(1)

    def put(self, message: Message, now: float) -> None:
        """Add a message of a client; faults may drop, duplicate, delay or reorder it."""
        self.counters.sent += 1
        faults, dice = self.faults, self.random
        if dice.random() < faults.drop:
            self.counters.dropped += 1
            return
        copies = 1
        if dice.random() < faults.duplicate:
            self.counters.duplicated += 1
            copies = 2
        for _ in range(copies):
            self.add(message, now, self._delay())
        if self.waiting and dice.random() < faults.reorder:
            self.counters.reordered += 1
            self.waiting.move_to_end(dice.choice(list(self.waiting)), last=False)

    def _delay(self) -> float:
        if self.random.random() >= self.faults.delay:
            return 0.0
        self.counters.delayed += 1
        return self.random.uniform(0, self.faults.delay_seconds)

    def add(self, message: Message, now: float, delay_seconds: float = 0.0) -> None:
        number = next(self._numbers)
        expires_at = now + message.ttl if message.ttl else None
        self.waiting[number] = Stored(message, number, now, now + delay_seconds, expires_at)

    def take(self, now: float) -> tuple[str, Stored] | None:
        """Lock the first message that is available. The tag is its lock token."""
        for number, stored in list(itertools.islice(self.waiting.items(), 50)):
            if stored.expires_at is not None and stored.expires_at <= now:
                del self.waiting[number]
                self.counters.expired += 1
            elif stored.available_at <= now:
                del self.waiting[number]
                tag = f"{next(self._tags):016d}"
                self.locked[tag] = Locked(stored, now + self.lock_seconds)
                self.counters.delivered += 1
                return tag, stored
        return None

    def complete(self, tag: str, now: float) -> bool:
        """Complete a message. Whether the lock was still held."""
        if self._unlock(tag, now) is None:
            return False
        self.counters.completed += 1
        return True

    def abandon(self, tag: str, now: float, *, counts: bool = True) -> bool:
        stored = self._unlock(tag, now)
        if stored is None:
            return False
        self.counters.abandoned += 1
        self._return(stored, now, counts=counts)
        return True

    def dead_letter(self, tag: str, now: float, info: dict[str, Any]) -> bool:
        stored = self._unlock(tag, now)
        if stored is None:
            return False
        self._to_dead_letters(stored, now, info)
        return True

    def expire_locks(self, now: float) -> None:
        for tag, lock in list(self.locked.items()):
            if lock.until <= now:
                del self.locked[tag]
                self.counters.expired_locks += 1
                self._return(lock.stored, now, counts=True)
        if self.dead_letters is not None:
            self.dead_letters.expire_locks(now)

    def _unlock(self, tag: str, now: float) -> Stored | None:
        lock = self.locked.pop(tag, None)
        if lock is None:
            return None
        if lock.until <= now:
            self.counters.expired_locks += 1
            self._return(lock.stored, now, counts=True)
            return None
        return lock.stored

    def _return(self, stored: Stored, now: float, *, counts: bool) -> None:
        stored.delivery_count += counts
        if stored.delivery_count >= self.max_delivery_count and self.dead_letters is not None:
            self._to_dead_letters(stored, now, {"DeadLetterReason": _COUNT_EXCEEDED})
            return
        self.waiting[stored.sequence_number] = stored
        self.waiting.move_to_end(stored.sequence_number, last=False)

    def _to_dead_letters(self, stored: Stored, now: float, info: dict[str, Any]) -> None:
        assert self.dead_letters is not None
        stored.message.properties = {**(stored.message.properties or {}), **info}
        self.dead_letters.add(stored.message, now)
