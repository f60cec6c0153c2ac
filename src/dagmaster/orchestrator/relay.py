"""Relay the outbox to the message broker.

    wake-up or poll ──▶ claim messages that are due, with a lease, unless their queue is busy
                    ──▶ send the ids of tasks that are still queued, in batches, to all queues concurrently
                    ──▶ delete the messages that the broker has acknowledged; postpone the others

It runs as a task in each orchestrator's process, with a connection of its own; any number of them share the work. If
the process dies between the acknowledgement and the deletion, the lease expires and the ids are sent again: a message
arrives at least once, and a second one does no harm.

A queue is busy while tasks whose ids were sent still wait: all workers have work, and a busy worker claims its next
task without a message. The ids of further tasks wait in the outbox, and most of them are never needed. When tasks are
added to a busy queue, only the ids of a few of the newest are sent: the waiting tasks may all be of one handler whose
slots are taken, while idle workers could run the new ones. If all tasks whose ids would be sent next are already
claimed, the workers need no messages, and the relay checks the queue again later.

An error of a queue (it does not exist, access is denied, the broker is unavailable) postpones its messages; it is shown
in the log, in the orchestrator's statistics and by `dagmaster doctor`. Workers find the tasks by polling meanwhile.
An error of a single message, which would occur again, fails its task with that reason.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from dagmaster import faults
from dagmaster.database.ledger.protocol import ClaimedMessage, Outbox
from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs.states import Blame
from dagmaster.observe import log
from dagmaster.orchestrator.pause import pause
from dagmaster.transports.servicebus_client import TOO_LARGE, backoff_seconds

WINDOW: Final = 64  # ids that are sent at once; each wakes one worker, which claims a task for each of its free slots
# Few workers need a smaller window: two ids for each of them, because some receive several, but not fewer than this.
SMALLEST_WINDOW: Final = 8
COUNT_SECONDS: Final = 10.0  # between two counts of the workers
ALIVE_SECONDS: Final = 60.0  # without a heartbeat, a worker is not counted
WINDOW_AFTER_BUSY: Final = 16  # for a queue that was busy: most workers claim its tasks without messages
FEW_WAITING: Final = SMALLEST_WINDOW  # if fewer announced tasks wait, more are announced
REMEMBERED_SECONDS: Final = 30.0  # an older id is not counted: its message may be lost
BUSY_SECONDS: Final = 0.5  # between two checks of a busy queue
NEWEST: Final = 4  # ids of new tasks that are sent for a busy queue
NEWEST_SECONDS: Final = 0.05  # between two such sends for a queue
FORGOTTEN_AT_ONCE: Final = (100, 2000)  # messages to check: twice as many as were unneeded before, within these limits
LEASE_SECONDS: Final = 60.0  # more than sending may take
_log = log.get("relay")


class TaskSender(Protocol):
    async def send_tasks(self, queue: str, task_ids: Sequence[str]) -> None:
        """Raises Unavailable if it may succeed later, and InvalidRequest if someone has to act first. With the code
        TOO_LARGE, the broker will never accept this message."""
        ...


@dataclass(slots=True)
class RelayCounters:
    sent: int = 0
    unneeded: int = 0  # not sent: the tasks were claimed already
    postponed: int = 0
    failed_tasks: int = 0
    errors: int = 0


@dataclass
class Relay:
    outbox: Outbox
    sender: TaskSender
    poll_seconds: float = 1.0
    relay_id: UUID = field(default_factory=uuid4)
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self.counters = RelayCounters()
        self.queue_errors: dict[str, str] = {}
        self._failures: dict[str, int] = defaultdict(int)  # in a row, by queue
        self._sent_at: dict[str, dict[str, float]] = defaultdict(dict)  # ids that were sent, by queue
        self._busy: frozenset[str] = frozenset()
        self._seen_busy_at: dict[str, float] = {}  # queues that were busy at the last check
        self._windows: dict[str, int] = {}  # of queues that were busy; they grow again to WINDOW
        self._seen_polling_at: dict[str, float] = {}  # queues whose workers claimed tasks that were not announced
        self._forgotten_at_once = FORGOTTEN_AT_ONCE[0]
        self._workers: Mapping[str, int] = {}  # by queue
        self._counted_at = float("-inf")
        self._woken: set[str] = set()  # busy queues that have new tasks
        self._newest_sent_at: dict[str, float] = {}  # by busy queue
        self._is_run_requested = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. No failure ends it."""
        while True:
            self._is_run_requested.clear()  # before the claim: messages committed from now on wake the relay again
            if not await self._run_once_safely():
                await pause(self._is_run_requested, self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        if self._woken:
            return NEWEST_SECONDS
        return BUSY_SECONDS if self._busy else self.poll_seconds

    def wake(self, queues: Iterable[str] = ()) -> None:
        """Run soon: there may be ids to send. These queues have new tasks."""
        self._woken.update(queues)
        self._is_run_requested.set()

    def stats(self) -> dict[str, Any]:
        return {**asdict(self.counters), "queue_errors": dict(self.queue_errors)}

    async def run_once(self) -> int:
        """Send the messages that are due; returns how many were claimed."""
        await self._count_workers()
        self._busy = await self._busy_queues()
        limits = {queue: self._window(queue) for queue in {*self._workers, *self._windows}}
        limits |= dict.fromkeys(self._busy, 0)
        messages = await self.outbox.claim_messages(
            WINDOW, lease_seconds=LEASE_SECONDS, limits=limits, newest=self._take_woken(), newest_limit=NEWEST
        )
        if not messages:
            self._restore_windows()
            return 0
        unneeded = [message for message in messages if not message.is_queued]
        if unneeded:
            self._note_polling_workers(messages)
            await self._forget(unneeded)
        by_queue: dict[str, list[ClaimedMessage]] = defaultdict(list)
        for message in messages:
            if message.is_queued:
                by_queue[message.queue].append(message)
        sent = await asyncio.gather(*(self._send(queue, batch) for queue, batch in by_queue.items()))
        faults.reach("relay.after-send")
        done = [message for batch in sent for message in batch]
        if done:
            await self.outbox.delete_messages(done)
        return len(messages)

    async def _count_workers(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._workers = await self.outbox.count_workers(ALIVE_SECONDS)
            self._counted_at = now

    def _window(self, queue: str) -> int:
        """How many ids of a queue are sent at once."""
        return self._windows.get(queue, self._widest(queue))

    def _widest(self, queue: str) -> int:
        """The largest window. With more messages than wake every worker, some would be outdated when they arrive, and
        workers would have to complete them."""
        workers = self._workers.get(queue)
        return min(WINDOW, max(SMALLEST_WINDOW, 2 * workers)) if workers else WINDOW

    async def _forget(self, unneeded: Sequence[ClaimedMessage]) -> None:
        """Delete these messages, and those after them whose tasks were claimed meanwhile."""
        await self.outbox.delete_messages(unneeded)
        forgotten = await self.outbox.forget_messages(self._forgotten_at_once)
        self.counters.unneeded += len(unneeded) + forgotten
        smallest, largest = FORGOTTEN_AT_ONCE
        self._forgotten_at_once = max(smallest, min(largest, 2 * forgotten))

    def _note_polling_workers(self, messages: Sequence[ClaimedMessage]) -> None:
        """If all tasks of a queue that would be announced next are claimed already, its workers need no messages."""
        now = asyncio.get_running_loop().time()
        needed = {message.queue for message in messages if message.is_queued}
        for queue, count in Counter(message.queue for message in messages).items():
            window = self._windows.get(queue)
            if window and count >= window and queue not in needed and queue not in self._busy:
                self._windows[queue] = SMALLEST_WINDOW
                self._seen_polling_at[queue] = now

    def _restore_windows(self) -> None:
        """Enlarge the windows of queues that are not busy. None of their messages waits in the outbox, so their next
        tasks may find idle workers."""
        for queue, size in self._windows.items():
            if queue not in self._busy:
                self._windows[queue] = max(size, min(WINDOW_AFTER_BUSY, self._widest(queue)))

    def _take_woken(self) -> frozenset[str]:
        """Busy queues whose newest tasks are announced now. For other busy queues with new tasks it is too early."""
        now = asyncio.get_running_loop().time()
        woken = self._woken & self._busy
        sendable = frozenset(
            queue for queue in woken if now - self._newest_sent_at.get(queue, float("-inf")) >= NEWEST_SECONDS
        )
        self._newest_sent_at.update(dict.fromkeys(sendable, now))
        self._woken = woken - sendable
        return sendable

    async def _busy_queues(self) -> frozenset[str]:
        """Queues whose announced tasks still wait. A queue that was busy counts as busy until the next check."""
        now = asyncio.get_running_loop().time()
        full = [queue for queue, sent in self._sent_at.items() if len(sent) >= self._window(queue)]
        for queue in full:
            if self._was_checked(self._seen_busy_at, queue, now):
                continue
            sent = {each: at for each, at in self._sent_at[queue].items() if at > now - REMEMBERED_SECONDS}
            queued = await self.outbox.queued_tasks(list(sent))
            waiting = {each: at for each, at in sent.items() if each in queued}
            is_busy = len(waiting) >= FEW_WAITING
            self._sent_at[queue] = waiting if is_busy else {}
            self._note_check(queue, now, is_busy=is_busy)
        polling = {queue for queue in self._seen_polling_at if self._was_checked(self._seen_polling_at, queue, now)}
        return frozenset(queue for queue in full if self._sent_at[queue]) | polling

    def _was_checked(self, checked_at: Mapping[str, float], queue: str, now: float) -> bool:
        """Whether it is too early for another check. It is due earlier for a queue with new tasks, because idle workers
        could run them."""
        seconds = NEWEST_SECONDS if queue in self._woken else BUSY_SECONDS
        return now - checked_at.get(queue, float("-inf")) < seconds

    def _note_check(self, queue: str, now: float, *, is_busy: bool) -> None:
        """A queue that is no longer busy gets its next ids without a pause, and each time twice as many."""
        if is_busy:
            self._seen_busy_at[queue] = now
            self._windows[queue] = min(self._window(queue), WINDOW_AFTER_BUSY)
        elif self._seen_busy_at.pop(queue, None) is None and queue in self._windows:
            self._windows[queue] *= 2
            if self._windows[queue] >= self._widest(queue):
                del self._windows[queue]

    async def _run_once_safely(self) -> int:
        try:
            return await self.run_once()
        except Exception as error:
            self.counters.errors += 1
            log.failure(_log, "the outbox cannot be read or written; trying again", error)
            return 0

    async def _send(self, queue: str, messages: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        """Returns the messages that the broker has acknowledged."""
        try:
            await self.sender.send_tasks(queue, [message.task_id for message in messages])
        except DagmasterError as error:
            if error.code == TOO_LARGE:
                return await self._send_singly(queue, messages)
            await self._postpone(queue, messages, error)
            return ()
        self._note_sent(queue, messages)
        return messages

    async def _send_singly(self, queue: str, messages: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        """Find the message that is too large, by sending each alone. Messages before it may arrive twice."""
        sent: list[ClaimedMessage] = []
        for position, message in enumerate(messages):
            try:
                await self.sender.send_tasks(queue, [message.task_id])
            except DagmasterError as error:
                if error.code != TOO_LARGE:
                    await self._postpone(queue, messages[position:], error)
                    break
                await self._fail_task(message, error)
            else:
                self._note_sent(queue, [message])
                sent.append(message)
        return sent

    async def _fail_task(self, message: ClaimedMessage, error: DagmasterError) -> None:
        facts = {"blame": Blame.DATA.value, "code": error.code, "message": error.message, "hint": error.hint}
        self.counters.failed_tasks += await self.outbox.fail_tasks([message], self.relay_id, facts)
        _log.error("a task cannot be announced and has failed", task_id=message.task_id, error=error.message)

    def _note_sent(self, queue: str, messages: Sequence[ClaimedMessage]) -> None:
        self.counters.sent += len(messages)
        now = asyncio.get_running_loop().time()
        self._sent_at[queue].update((message.task_id, now) for message in messages)
        if self._failures.pop(queue, None):
            self.queue_errors.pop(queue, None)
            _log.info("ids of tasks are sent again", queue=queue)

    async def _postpone(self, queue: str, messages: Sequence[ClaimedMessage], error: DagmasterError) -> None:
        if not self._failures[queue]:
            log_failure = _log.error if isinstance(error, InvalidRequest) else _log.warning
            log_failure(
                "ids of tasks cannot be sent; workers find the tasks by polling", error=error.message, hint=error.hint
            )
        seconds = backoff_seconds(error, self._failures[queue])
        self._failures[queue] += 1
        self.queue_errors[queue] = error.message
        self.counters.postponed += len(messages)
        delay = seconds * self.random.uniform(0.5, 1.0)
        await self.outbox.postpone_messages(messages, delay_seconds=delay, error=error.message)
