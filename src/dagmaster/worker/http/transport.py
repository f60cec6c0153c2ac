"""The transport and the notifier of a worker over HTTP.

The transport learns of tasks by long polling. Its request names the handlers that have free slots, so that the server
responds only if there is a task for one of them. If further handlers get free slots, the request is replaced. The
notifier sends a request, and the server notifies the orchestrators.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from dagmaster.cancellation import cancel_and_wait
from dagmaster.client.models.worker import MAX_WAIT_SECONDS, QueuesWithTasks, WorkerReceipt
from dagmaster.database.ledger.protocol import Demand
from dagmaster.errors import DagmasterError
from dagmaster.jobs.model import TaskMessage
from dagmaster.observe import log
from dagmaster.transports.transport import MAX_AT_ONCE, Announcement, Delivery
from dagmaster.worker.http.requests import WorkerRequests

WAIT_SECONDS = 25.0  # below the timeouts of common proxies, and below the server's limit
_RESPONSE_SECONDS = 10.0  # after WAIT_SECONDS, how much longer the response may take
_BACKOFF_SECONDS = (0.25, 5.0)
_PAUSE_SECONDS = (0.02, 2.0)  # after an announcement that led to no task
_log = log.get("worker")

assert WAIT_SECONDS <= MAX_WAIT_SECONDS


class HttpTransport:
    """Call `note_exchange` after each exchange: the transport needs to know which handlers have free slots."""

    def __init__(self, requests: WorkerRequests, worker_id: UUID, rng: random.Random | None = None) -> None:
        self._requests = requests
        self._worker_id = worker_id
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._queues: tuple[str, ...] = ()
        self._free: frozenset[str] = frozenset()  # handlers with free slots
        self._has_more_free = asyncio.Event()
        self._requested: frozenset[str] = frozenset()
        self._was_announced = False
        self._empty_claims = 0  # announcements in a row that led to no task
        self._failures = 0

    def note_exchange(self, demand: Demand, claimed: Sequence[TaskMessage]) -> None:
        if not demand.total:
            return
        heavy = sum(task.handler in demand.heavy_handlers for task in claimed)
        light = len(claimed) - heavy
        has_more_queues = not set(demand.queues) <= set(self._queues)  # a queue at its limit is not requested
        self._queues = demand.queues
        self._free = frozenset(
            (demand.light_handlers if light < demand.light else ())
            + (demand.heavy_handlers if heavy < demand.heavy else ())
        )
        if claimed:
            self._empty_claims = 0
        elif self._was_announced:
            self._empty_claims = min(self._empty_claims + 1, 10)
        self._was_announced = False
        if self._free - self._requested or has_more_queues:
            self._has_more_free.set()

    async def publish(self, announcements: Sequence[Announcement]) -> None:
        """Workers announce no tasks."""

    def topics(self, _announcements: Sequence[Announcement]) -> Sequence[str]:
        return ()

    async def receive(self, timeout_seconds: float, _limit: int = MAX_AT_ONCE) -> Sequence[Delivery]:
        """Wait for announcements. This may take longer than `timeout_seconds`: the server responds when there is a
        task, so shorter requests would be needless polling."""
        if self._empty_claims:
            low, high = _PAUSE_SECONDS
            await asyncio.sleep(min(high, low * 2**self._empty_claims) * self._rng.uniform(0.5, 1.0))
        while True:
            if not self._free:
                await asyncio.sleep(min(timeout_seconds, 1.0))
                return ()
            self._has_more_free.clear()
            self._requested = self._free
            waiting = asyncio.create_task(self._request_queues(self._queues, self._requested))
            changing = asyncio.create_task(self._has_more_free.wait())
            try:
                await asyncio.wait({waiting, changing}, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    queues = waiting.result()
                    self._was_announced = bool(queues)
                    return [Delivery(queue) for queue in queues]
            finally:
                self._requested = frozenset()
                await cancel_and_wait(waiting, changing)

    async def _request_queues(self, queues: Sequence[str], handlers: frozenset[str]) -> Sequence[str]:
        body = {"queues": queues, "handlers": sorted(handlers), "seconds": WAIT_SECONDS}
        timeout = WAIT_SECONDS + _RESPONSE_SECONDS
        try:
            response = await self._requests.send(
                "POST", self._worker_id, "/wait", QueuesWithTasks, body=body, timeout=timeout
            )
        except DagmasterError as error:
            await self._back_off(error)
            return ()
        self._failures = 0
        return response.queues

    async def _back_off(self, error: DagmasterError) -> None:
        if self._failures == 0:
            _log.warning("the platform cannot announce tasks; trying again", error=str(error))
        low, high = _BACKOFF_SECONDS
        seconds = min(high, low * 2**self._failures) * self._rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 10)
        await asyncio.sleep(seconds)

    async def settle(self, _deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: an announcement is not a message."""

    async def close(self) -> None:
        """Nothing to close: `receive` is cancelled by its caller."""


class HttpNotifier:
    """Notifies the platform that claimed tasks still run. A lost notification only delays the display."""

    def __init__(self, requests: WorkerRequests, worker_id: UUID) -> None:
        self._requests = requests
        self._worker_id = worker_id
        self._sending: asyncio.Task[None] | None = None

    def notify(self, *_topics: str) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="notifier-send")

    async def _send(self) -> None:
        with suppress(DagmasterError):
            await self._requests.send("POST", self._worker_id, "/running", WorkerReceipt)

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        await asyncio.sleep(timeout_seconds)
        return frozenset()

    async def close(self) -> None:
        if self._sending is not None:
            await cancel_and_wait(self._sending)
