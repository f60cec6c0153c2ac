"""A TCP proxy between one role and PostgreSQL: it can delay, hold, close and reset connections, and drop or duplicate
notifications.

Each role has a `Link` of its own, so that a fault affects only one role. The proxy runs in a thread with its own event
loop, so that code that blocks while a server starts does not stop the traffic. A link's `conditions` may be changed
from any thread at any time.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CHUNK_BYTES = 65_536
POLL_SECONDS = 0.02
RESPONSE_SECONDS = 1.0
SOCKET = ".s.PGSQL.5432"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_HEADER_BYTES = 5
_NOTIFICATION = ord("A")
_SYNC, _EXECUTE, _READY = b"S\0\0\0\4", b"E\0\0\0", b"Z\0\0\0\5"

Direction = Literal["up", "down"]  # to the server, to the client


@dataclass
class LinkConditions:
    """What happens to bytes in transit. `resets_at_commit` is the number of commits that are still to be reset. With
    `counts_single_statements`, a statement outside of a transaction counts as a commit."""

    delay_seconds: tuple[float, float] | None = None  # mean, and largest difference from it
    holds_up: bool = False
    holds_down: bool = False
    resets_at_commit: int = 0
    counts_single_statements: bool = False
    notifications: Literal["pass", "drop", "double"] = "pass"

    def holds(self, direction: Direction) -> bool:
        return self.holds_up if direction == "up" else self.holds_down


@dataclass
class Counts:
    connections: int = 0
    resets_at_commit: int = 0
    dropped: int = 0
    doubled: int = 0


def has_commit(chunk: bytes) -> bool:
    """Whether these bytes to the server contain a COMMIT, as Parse or Query."""
    return b"COMMIT\0" in chunk


def is_single_statement(chunk: bytes) -> bool:
    """Whether these bytes execute a statement, end with Sync, and do not begin a transaction: outside of a transaction,
    that is a commit too."""
    return chunk.endswith(_SYNC) and _EXECUTE in chunk and b"BEGIN\0" not in chunk


def leaves_a_transaction_open(chunk: bytes) -> bool:
    """Whether the end of the server's response says that a transaction is open."""
    return chunk.endswith((_READY + b"T", _READY + b"E"))


def has_listen(chunk: bytes) -> bool:
    return b"LISTEN " in chunk


def are_notifications(chunk: bytes) -> bool:
    """Whether these bytes are whole notifications and nothing else."""
    at = 0
    while at + _HEADER_BYTES <= len(chunk) and chunk[at] == _NOTIFICATION:
        at += 1 + int.from_bytes(chunk[at + 1 : at + _HEADER_BYTES], "big")
    return at == len(chunk) > 0


@dataclass(eq=False)
class _Connection:
    """The two streams of one client connection."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_listening: bool = False
    is_in_transaction: bool = False

    def reset(self) -> None:
        """The client gets ECONNRESET at once; the server notices it a little later, as in reality."""
        sock: socket.socket = self.client.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.client.transport.abort()

    def close(self) -> None:
        self.client.close()
        self.server.close()


@dataclass(eq=False)
class Link:
    """One role's address of the server."""

    name: str
    server: Path
    conditions: LinkConditions = field(default_factory=LinkConditions)
    counts: Counts = field(default_factory=Counts)
    port: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _connections: set[_Connection] = field(default_factory=set)
    _random: random.Random = field(default_factory=random.Random)

    def dsn(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable&gssencmode=disable"

    # From any thread

    def cut(self) -> None:
        """Close every connection cleanly, as a server or a load balancer does when it stops."""
        self._on_each(_Connection.close)

    def reset(self) -> None:
        self._on_each(_Connection.reset)

    def clear(self) -> None:
        self.conditions = LinkConditions()

    def _on_each(self, act: Callable[[_Connection], None]) -> None:
        def act_on_all() -> None:
            for connection in list(self._connections):
                act(connection)

        assert self._loop is not None
        self._loop.call_soon_threadsafe(act_on_all)

    # In the proxy's loop

    async def listen(self) -> asyncio.Server:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK_BYTES * 4, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self.server), limit=CHUNK_BYTES * 4)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, to_server)
        self._connections.add(connection)
        pumps = [
            asyncio.create_task(self._pump("up", reader, to_server, connection)),
            asyncio.create_task(self._pump("down", from_server, writer, connection)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(pumps, timeout=RESPONSE_SECONDS)  # data in the other direction may still arrive
        except asyncio.CancelledError:
            pass  # the proxy ends; asyncio would log the cancellation
        finally:
            self._connections.discard(connection)
            for pump in pumps:
                pump.cancel()
            connection.close()

    async def _pump(
        self, direction: Direction, source: asyncio.StreamReader, target: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        with suppress(ConnectionError, OSError):
            while chunk := await source.read(CHUNK_BYTES):
                await self._delay_or_hold(direction)
                for part in self._forwarded(direction, chunk, connection):
                    target.write(part)
                await target.drain()
                if direction == "up" and self._resets_after(chunk, connection):
                    connection.reset()
                    await asyncio.sleep(RESPONSE_SECONDS)  # the server executes it after its client has disconnected
                    return

    async def _delay_or_hold(self, direction: Direction) -> None:
        if self.conditions.delay_seconds:
            mean, spread = self.conditions.delay_seconds
            await asyncio.sleep(self._random.uniform(mean - spread, mean + spread))
        while self.conditions.holds(direction):
            await asyncio.sleep(POLL_SECONDS)

    def _forwarded(self, direction: Direction, chunk: bytes, connection: _Connection) -> list[bytes]:
        if direction == "up":
            connection.is_listening = connection.is_listening or has_listen(chunk)
            return [chunk]
        connection.is_in_transaction = leaves_a_transaction_open(chunk)
        if self.conditions.notifications == "pass" or not connection.is_listening or not are_notifications(chunk):
            return [chunk]
        if self.conditions.notifications == "drop":
            self.counts.dropped += 1
            return []
        self.counts.doubled += 1
        return [chunk, chunk]

    def _resets_after(self, chunk: bytes, connection: _Connection) -> bool:
        if not self.conditions.resets_at_commit:
            return False
        is_single = self.conditions.counts_single_statements and not connection.is_in_transaction
        if not has_commit(chunk) and not (is_single and is_single_statement(chunk)):
            return False
        self.conditions.resets_at_commit -= 1
        self.counts.resets_at_commit += 1
        return True


class Proxy:
    """All links, in a thread of their own."""

    def __init__(self, socket_folder: Path) -> None:
        self.links: dict[str, Link] = {}
        self._listening: list[asyncio.Server] = []
        self._server = socket_folder / SOCKET
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open(self, name: str) -> Link:
        link = Link(name, self._server)
        self._listening.append(self._run(link.listen()))
        self.links[name] = link
        return link

    def clear(self) -> None:
        for link in self.links.values():
            link.clear()

    def stop(self) -> None:
        for server in self._listening:
            self._loop.call_soon_threadsafe(server.close)
        self._run(_end_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


async def _end_all_tasks() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
