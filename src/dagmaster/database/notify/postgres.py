"""Notifications on LISTEN and NOTIFY.

Two connections: one only listens, the other sends, each notification in a transaction of its own and never in one that
writes state. If a connection is lost, only the notification is lost; both reconnect by themselves. (A notification that
follows a step or an exchange is sent by the ledger in the same round trip: `database.pipeline`.)
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable

from psycopg import Notify, sql
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.notify.notifier import COALESCE_SECONDS
from dagmaster.database.queries import query
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.observe import log

# A listener sends nothing, so it does not notice that its connection is dead. TCP keepalives find a server that is
# gone; they do not find a proxy that keeps the connection open and forwards nothing.
CHECK_SECONDS = 60.0
RESPONSE_SECONDS = 10.0
STABLE_SECONDS = 5.0  # after a connection of this length, the backoff begins again

_log = log.get("notifier")


def channel_of(topic: str) -> str:
    """A topic as a channel's name, which PostgreSQL limits to 63 bytes."""
    name = f"dagmaster_{topic}"
    return name if len(name.encode()) <= 63 else f"dagmaster_{hashlib.sha256(topic.encode()).hexdigest()[:40]}"


class PostgresNotifier:
    """Notifies any topic and listens to those it was created with. Call `start` in a running event loop."""

    def __init__(self, dsn: str, topics: Iterable[str] = ()) -> None:
        self._dsn = dsn
        self._topics = {channel_of(topic): topic for topic in topics}
        self._received: set[str] = set()
        self._wake = asyncio.Event()
        self._to_send: set[str] = set()
        self._send = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    def start(self) -> None:
        if self._topics:
            self._tasks.append(asyncio.create_task(self._repeat(self._listen), name="notifier-listen"))
        self._tasks.append(asyncio.create_task(self._repeat(self._deliver), name="notifier-send"))

    def notify(self, *topics: str) -> None:
        self._to_send.update(channel_of(topic) for topic in topics)
        self._send.set()

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        if not self._received:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return frozenset()
        topics, self._received = frozenset(self._received), set()
        self._wake.clear()
        return topics

    async def close(self) -> None:
        """Send the remaining notifications, then stop."""
        self._is_closing = True
        self._send.set()
        sender = [task for task in self._tasks if task.get_name() == "notifier-send"]
        if sender and self._to_send:
            await asyncio.wait(sender, timeout=1)
        await cancel_and_wait(*self._tasks)

    def _add_received(self, topics: Iterable[str]) -> None:
        self._received.update(topics)
        self._wake.set()

    async def _repeat(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Run `serve`, and after a failure run it again, with a backoff."""
        failures = 0
        while not self._is_closing or self._to_send:
            started_at = time.monotonic()
            try:
                await serve()
            except DagmasterError as error:
                failures = 1 if time.monotonic() - started_at > STABLE_SECONDS else failures + 1
                _log.warning("notifications are interrupted; changes are found by polling", error=str(error))
                await asyncio.sleep(min(5.0, 0.2 * 2 ** min(failures, 5)) * random.uniform(0.5, 1))  # noqa: S311

    async def _listen(self) -> None:
        connection = await connect(self._dsn, role="listen")
        connection.add_notify_handler(self._on_notification)
        try:
            with translate_errors():
                for channel in self._topics:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                # Changes from before the LISTEN are seen by reading: once now, and after every reconnect.
                self._add_received(self._topics.values())
                while True:
                    # Not `connection.notifies()`: that wakes up ten times a second without a reason.
                    if not await connection.wait(_receive(connection.pgconn), interval=CHECK_SECONDS):
                        await _require_response(connection)
        finally:
            await connection.close()

    def _on_notification(self, notification: Notify) -> None:
        if notification.channel in self._topics:
            self._add_received([self._topics[notification.channel]])

    async def _deliver(self) -> None:
        connection = await connect(self._dsn, role="notify")
        try:
            with translate_errors():
                while not (self._is_closing and not self._to_send):
                    await self._send.wait()
                    self._send.clear()
                    channels, self._to_send = sorted(self._to_send), set()
                    if channels:
                        await connection.execute(query("notify_channels"), {"channels": channels}, prepare=True)
                        await asyncio.sleep(COALESCE_SECONDS)
        finally:
            await connection.close()


def _receive(pgconn: PGconn) -> PQGen[bool]:
    """Wait once, and pass on the notifications that have arrived. False if there are none."""
    if not (yield Wait.R):
        return False
    pgconn.consume_input()
    while notification := pgconn.notifies():
        if pgconn.notify_handler:
            pgconn.notify_handler(notification)
    return True


async def _require_response(connection: Connection) -> None:
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            await connection.execute("")
    except TimeoutError as error:
        message = f"the connection of the listener is silent: no response within {RESPONSE_SECONDS:g} s"
        raise Unavailable(message, code="database.unavailable") from error
