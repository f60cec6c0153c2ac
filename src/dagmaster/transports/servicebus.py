"""The transport over Azure Service Bus: its messages carry ids of tasks, which workers still claim in PostgreSQL.

    outbox ──▶ relay (orchestrator/relay) ──▶ Service Bus ──▶ a worker with free slots ──▶ claim ──▶ settled

After a delivery, a worker claims as many tasks as it has free slots, in the order of the database: tasks of higher
priority come first, whichever message arrived. A message is completed when its task is no longer queued, because this
worker or another one has claimed it. It is not settled while its task is queued and this worker cannot take it (no free
slot for its handler, a paused queue) or while the database does not respond: when its lock expires, the broker delivers
it again. A message without the id of a task is dead-lettered. After an outdated message the worker claims too: busy
workers leave many outdated messages, and messages of queued tasks may follow them.

Workers also poll the database, so a lost message delays a task and nothing else.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.notify.notifier import Notifier, tasks_topic
from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs.model import task_key
from dagmaster.observe import log
from dagmaster.transports.servicebus_client import BrokerMessage, QueueReceiver, ServiceBus, backoff_seconds
from dagmaster.transports.transport import MAX_AT_ONCE, Announcement, Delivery

WAIT_SECONDS: Final = 1.0  # how long one call waits; messages are settled between two calls
HOLD_SECONDS: Final = 2.0  # a message that the worker does not fetch within this time is released to other workers
MANY_STALE: Final = 2  # after this many outdated messages in a row, several are received at once
DRAIN_SECONDS: Final = 0.05  # how long a call for several waits; short, because one may be the message of a queued task
MAX_ATTEMPTS: Final = 2**31 - 1  # the largest value of an integer column of PostgreSQL
_log = log.get("servicebus")

# Which of these tasks are still queued.
QueuedTasks = Callable[[Sequence[str]], Awaitable[frozenset[str]]]


class Malformed(ValueError):
    """A message without a valid id of a task."""


def task_id_of(body: bytes) -> str:
    """The id in a message, checked."""
    try:
        task_id = orjson.loads(body)["task_id"]
        _, node_id, attempt = task_key(task_id)
        if "\0" in node_id or attempt > MAX_ATTEMPTS:
            raise ValueError("the database cannot store such an id")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"not the id of a task: {error}") from error
    return str(task_id)


@dataclass
class TransportCounters:
    received: int = 0
    completed: int = 0
    stale: int = 0  # completed at once: the task was no longer queued
    left: int = 0  # to be delivered again: the task is queued, and this worker could not take it
    abandoned: int = 0
    dead_letters: int = 0
    failures: int = 0


class ServiceBusTransport:
    """`queued_tasks` reads from the database. Without it, every message that was delivered counts as claimed."""

    def __init__(
        self, service_bus: ServiceBus, queues: Sequence[str] = (), queued_tasks: QueuedTasks | None = None
    ) -> None:
        self.counters = TransportCounters()
        self._service_bus = service_bus
        self._inbox = _DeliveryInbox()
        self._listeners = {
            queue: _Listener(service_bus.receiver(queue), self._inbox, queued_tasks, self.counters) for queue in queues
        }
        self._tasks: list[asyncio.Task[None]] = []

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Send the ids. An error in one queue does not keep the ids for other queues from being sent."""
        by_queue: dict[str, list[str]] = defaultdict(list)
        for announcement in announcements:
            if announcement.task_id is not None:
                by_queue[announcement.queue].append(announcement.task_id)
        sends = (self._service_bus.send_tasks(queue, task_ids) for queue, task_ids in by_queue.items())
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def topics(self, _announcements: Sequence[Announcement]) -> Sequence[str]:
        return ()

    async def receive(self, timeout_seconds: float, limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(listener.run(), name=f"servicebus {queue}")
                for queue, listener in self._listeners.items()
            ]
        return await self._inbox.fetch(timeout_seconds, limit)

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Settles in the background, so that the worker need not wait for the broker."""
        for delivery in deliveries:
            if delivery.queue in self._listeners:
                self._listeners[delivery.queue].settle(delivery)

    def stats(self) -> dict[str, Any]:
        errors = {queue: each.error for queue, each in self._listeners.items() if each.error}
        return {**asdict(self.counters), "errors": errors}

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        await asyncio.gather(*(listener.wind_down() for listener in self._listeners.values()))


@dataclass
class _DeliveryInbox:
    """Deliveries that were not fetched yet. Listeners request messages only while the worker waits for some."""

    limit: int = MAX_AT_ONCE
    deliveries: list[Delivery] = field(default_factory=list)
    is_waiting: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def fetch(self, timeout_seconds: float, limit: int) -> Sequence[Delivery]:
        self.limit = max(1, min(limit, MAX_AT_ONCE))
        if not self.deliveries:
            self.arrived.clear()
            self.is_waiting.set()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.arrived.wait()
            except TimeoutError:
                pass
            finally:
                self.is_waiting.clear()
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    def put(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries.extend(deliveries)
        self.arrived.set()

    def take_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Remove and return the deliveries that were not fetched."""
        unfetched = [delivery for delivery in deliveries if delivery in self.deliveries]
        self.deliveries = [delivery for delivery in self.deliveries if delivery not in unfetched]
        return unfetched


class _Listener:
    """Receives from one queue and settles, one after the other: the SDK's receivers serve one call at a time."""

    def __init__(
        self,
        receiver: QueueReceiver,
        inbox: _DeliveryInbox,
        queued_tasks: QueuedTasks | None,
        counters: TransportCounters,
    ) -> None:
        self.error: str | None = None
        self._receiver = receiver
        self._inbox = inbox
        self._queued_tasks = queued_tasks
        self._counters = counters
        self._unsettled: dict[str, BrokerMessage] = {}  # by receipt
        self._settling: dict[str, str] = {}  # receipts of fetched deliveries, with their task ids
        self._deliveries: list[tuple[float, Delivery]] = []  # put into the inbox
        self._stale_in_a_row = 0  # messages of tasks that are no longer queued
        self._receipts = 0
        self._failures = 0

    def settle(self, delivery: Delivery) -> None:
        if delivery.receipt in self._unsettled and delivery.task_id is not None:
            self._settling[delivery.receipt] = delivery.task_id

    async def run(self) -> None:
        while True:
            try:
                await self._run_once()
                self._note_success()
            except Exception as error:  # a broken message or connection must not end the listener
                await self._back_off(error)

    async def _run_once(self) -> None:
        await self._settle_all()
        await self._give_back_unfetched()
        if not self._inbox.is_waiting.is_set():
            await self._wait_for_a_fetch()
            return
        # A single message is received without a delay; if more are requested, the SDK waits a moment. After many
        # outdated messages more are likely to follow, so several are received at once until a call returns fewer.
        is_draining = self._stale_in_a_row >= MANY_STALE
        count, seconds = (self._inbox.limit, DRAIN_SECONDS) if is_draining else (1, WAIT_SECONDS)
        messages = await self._receiver.receive(count, seconds)
        self._counters.received += len(messages)
        await self._deliver(messages)
        if len(messages) < count:
            self._stale_in_a_row = 0

    async def _wait_for_a_fetch(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS / 4):
                await self._inbox.is_waiting.wait()
        except TimeoutError:
            return

    async def _deliver(self, messages: Sequence[BrokerMessage]) -> None:
        by_id: list[tuple[str, BrokerMessage]] = []
        for message in messages:
            try:
                by_id.append((task_id_of(message.body), message))
            except Malformed as error:
                await self._dead_letter(message, str(error))
        queued = await self._still_queued([task_id for task_id, _ in by_id])
        stale = [message for task_id, message in by_id if task_id not in queued]
        self._stale_in_a_row = self._stale_in_a_row + len(stale) if len(stale) == len(by_id) else 0
        deliveries = [self._delivery(task_id, message) for task_id, message in by_id if task_id in queued]
        if deliveries:
            now = time.monotonic()
            self._deliveries += [(now, delivery) for delivery in deliveries]
            self._inbox.put(deliveries)
        elif stale:
            # Messages of queued tasks may follow many outdated ones: the worker claims without waiting for them.
            self._inbox.put([Delivery(self._receiver.queue)])
        self._counters.stale += len(stale)
        await self._complete(stale)

    def _delivery(self, task_id: str, message: BrokerMessage) -> Delivery:
        self._receipts += 1
        receipt = f"{self._receiver.queue}/{self._receipts}"
        self._unsettled[receipt] = message
        return Delivery(self._receiver.queue, task_id, receipt)

    async def _still_queued(self, task_ids: Sequence[str]) -> frozenset[str]:
        if self._queued_tasks is None or not task_ids:
            return frozenset(task_ids)
        try:
            return await self._queued_tasks(task_ids)
        except DagmasterError as error:  # the claim decides
            _log.warning("could not read from the database which tasks are queued", error=str(error))
            return frozenset(task_ids)

    async def _settle_all(self) -> None:
        """Complete the messages whose tasks are claimed, here or elsewhere. The others stay locked for a while, and are
        then delivered again."""
        if not self._settling:
            return
        settling, self._settling = self._settling, {}
        fetched = {receipt: message for receipt in settling if (message := self._unsettled.pop(receipt, None))}
        self._deliveries = [item for item in self._deliveries if item[1].receipt not in settling]
        queued: frozenset[str] = frozenset()
        if self._queued_tasks is not None:
            try:
                queued = await self._queued_tasks([settling[receipt] for receipt in fetched])
            except DagmasterError as error:
                _log.warning("messages stay locked: the database does not respond", error=str(error))
                self._counters.left += len(fetched)
                return
        claimed = [message for receipt, message in fetched.items() if settling[receipt] not in queued]
        self._counters.left += len(fetched) - len(claimed)
        self._counters.completed += len(claimed)
        await self._complete(claimed)

    async def _give_back_unfetched(self) -> None:
        """The worker is busy: release the messages that it did not fetch to other workers."""
        before = time.monotonic() - HOLD_SECONDS
        if not any(moment < before for moment, _ in self._deliveries):
            return
        expired = [delivery for moment, delivery in self._deliveries if moment < before]
        self._deliveries = [item for item in self._deliveries if item[0] >= before]
        unfetched = self._inbox.take_back(expired)
        messages = [self._unsettled.pop(each.receipt) for each in unfetched if each.receipt in self._unsettled]
        self._counters.abandoned += len(messages)
        await self._receiver.abandon(messages)

    async def _complete(self, messages: Sequence[BrokerMessage]) -> None:
        if messages:
            await self._receiver.complete(messages)

    async def _dead_letter(self, message: BrokerMessage, description: str) -> None:
        _log.error("a message does not name a task and is dead-lettered", queue=self._receiver.queue, why=description)
        self._counters.dead_letters += 1
        await self._receiver.dead_letter(message, "Malformed", description)

    def _note_success(self) -> None:
        if self._failures:
            _log.info("the queue is available again", queue=self._receiver.queue)
        self._failures, self.error = 0, None

    async def _back_off(self, error: Exception) -> None:
        """Wait after an error. Workers poll meanwhile."""
        self._counters.failures += 1
        if self._failures == 0:
            log_failure = _log.error if isinstance(error, InvalidRequest) else _log.warning
            hint = getattr(error, "hint", None)
            log_failure("Service Bus cannot announce tasks; the worker continues to poll", error=str(error), hint=hint)
        self.error = str(error)
        seconds = backoff_seconds(error, self._failures)
        self._failures += 1
        await asyncio.sleep(seconds)

    async def wind_down(self) -> None:
        """Settle the messages of claimed tasks, and release those that were not fetched to other workers."""
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await self._settle_all()
                await self._receiver.abandon(list(self._unsettled.values()))
        except Exception as error:  # the locks will expire
            _log.info("messages stay locked until their locks expire", error=str(error))
        self._unsettled.clear()
        await self._receiver.close()


class OutboxTransport:
    """The transport of an orchestrator whose tasks are in the outbox: it wakes the relay, which sends their ids.
    Workers without a database are notified by PostgreSQL: the API listens for them."""

    def __init__(self, notifier: Notifier, wake_relay: Callable[[Iterable[str]], None]) -> None:
        self._notifier = notifier
        self._wake_relay = wake_relay

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        if announcements:
            self._wake_relay([announcement.queue for announcement in announcements])
            self._notifier.notify(*sorted({tasks_topic(announcement.queue) for announcement in announcements}))

    def topics(self, _announcements: Sequence[Announcement]) -> Sequence[str]:
        return ()

    async def receive(self, timeout_seconds: float, _limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        """Orchestrators take no tasks."""
        await asyncio.sleep(timeout_seconds)
        return ()

    async def settle(self, _deliveries: Sequence[Delivery]) -> None:
        """Nothing to settle."""

    async def close(self) -> None:
        """Nothing to close: the relay has its own connections."""
