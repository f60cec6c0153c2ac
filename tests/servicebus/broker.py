"""A stand-in for Azure Service Bus that speaks AMQP 1.0 to the real SDK, for tests, chaos runs and measurements.

It has queues with peek-lock, lock expiry, delivery counts, dead-letter queues, batches, time to live, the size limit of
a message, tokens ($cbs) and the relevant errors, and it can lose, duplicate, delay and reorder messages, refuse them
and cut connections. It is not made by Microsoft: it proves how the SDK is used, not how Azure behaves. Not implemented:
sessions, topics, transactions, deferred and scheduled messages, duplicate detection, the management link (peek, lock
renewal), persistence.

    with BrokerThread(["a", "b"]) as broker: …            in a thread of a test
    python -m tests.servicebus.broker --port 5672 …       as a process
"""

import argparse
import base64
import math
import queue
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proton import Condition, Data, Delivery, Described, Disposition, Endpoint, Handler, Link, Message, int32, symbol
from proton import timestamp as amqp_timestamp
from proton._io import IO
from proton.reactor import Container

from tests.servicebus.queues import DEAD_LETTERS, MAX_MESSAGE_BYTES, BrokerQueue, Faults, Stored

TICK_SECONDS = 0.05
CREDIT = 200
_DATA_SECTION = 0x75
_ENCODED_MESSAGE = (b"\x00\x53", b"\x00\x80")  # a described type: how an encoded message begins
_CBS = "$cbs"
_ROOT = Path(__file__).parents[2]
_KEY = base64.b64encode(b"a key of the stand-in").decode()


def _poll(
    reading: Iterable[Any], writing: Iterable[Any], _failing: Iterable[Any], seconds: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """What select.select returns. That function fails if the process has more than 1,024 open files, as a process that
    runs many tests can have."""
    poll, reading, writing = select.poll(), list(reading), list(writing)
    masks: dict[int, int] = {}
    for sockets, mask in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for each in sockets:
            masks[each.fileno()] = masks.get(each.fileno(), 0) | mask
    for file, mask in masks.items():
        poll.register(file, mask)
    ready = dict(poll.poll(None if seconds is None else math.ceil(seconds * 1000)))
    failed = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return (
        [each for each in reading if ready.get(each.fileno(), 0) & (select.POLLIN | failed)],
        [each for each in writing if ready.get(each.fileno(), 0) & (select.POLLOUT | failed)],
        [],
    )


IO.select = staticmethod(_poll)


def connection_string(port: int) -> str:
    """With UseDevelopmentEmulator, the SDK uses plain TCP and keeps the port."""
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={_KEY};UseDevelopmentEmulator=true;"
    )


@dataclass
class BrokerOptions:
    lock_seconds: float = 60.0
    max_delivery_count: int = 10
    max_message_bytes: int = MAX_MESSAGE_BYTES
    faults: Faults = field(default_factory=Faults)
    seed: int = 0


class Service(Handler):
    """The AMQP server. All of it runs in the thread of the container."""

    def __init__(self, port: int, queues: Sequence[str], options: BrokerOptions) -> None:
        super().__init__()
        dice = random.Random(options.seed)
        self.options = options
        self.queues = {
            name: BrokerQueue(name, options.lock_seconds, options.max_delivery_count, options.faults, dice)
            for name in queues
        }
        self.unauthorized: set[str] = set()  # queues that the client is not allowed to use
        self.refuses_tokens = False
        self.tokens: list[Any] = []
        self.port = port
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.is_ready = threading.Event()
        self._dice = dice
        self._container: Any = None
        self._acceptor: Any = None
        self._senders: list[Link] = []  # links over which clients receive
        self._connections: list[Any] = []

    # Life

    def on_reactor_init(self, event: Any) -> None:
        self._container = event.container
        self._listen()
        self._container.schedule(TICK_SECONDS, self)
        self.is_ready.set()

    def on_timer_task(self, _event: Any) -> None:
        with suppress(queue.Empty):
            while True:
                self.calls.get_nowait()()
        now = time.time()
        for each in self.queues.values():
            each.expire_locks(now)
        self._pump()
        self._container.schedule(TICK_SECONDS, self)

    def _listen(self) -> None:
        if self._acceptor is None:
            self._acceptor = self._container.listen(f"127.0.0.1:{self.port}")

    def cut(self) -> None:
        """Close every connection abruptly."""
        for connection in list(self._connections):
            transport = connection.transport
            if transport is not None:
                transport.close_tail()
                transport.close_head()
        self._connections.clear()
        self._senders.clear()

    def leave(self) -> None:
        """Close all connections and accept none until `come_back`."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        self.cut()

    def come_back(self) -> None:
        self._listen()

    def end(self) -> None:
        self.leave()
        self._container.stop()

    # Endpoints

    def on_connection_remote_open(self, event: Any) -> None:
        event.connection.container = "stand-in"
        event.connection.open()
        self._connections.append(event.connection)

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()
        self._forget(event.connection)

    def on_transport_closed(self, event: Any) -> None:
        if event.connection is not None:
            self._forget(event.connection)

    def _forget(self, connection: Any) -> None:
        """Forget a connection. Its messages stay locked until the locks expire."""
        self._connections = [each for each in self._connections if each != connection]
        self._senders = [link for link in self._senders if link.connection != connection]

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_session_remote_close(self, event: Any) -> None:
        event.session.close()

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        problem = self._problem_of(_address_of(link))
        if problem is not None:
            link.open()
            self.calls.put(partial(_refuse, link, problem))  # refused a moment later, as Azure does
            return
        if link.is_receiver:
            link.max_message_size = self.options.max_message_bytes
        link.open()
        if link.is_receiver:
            link.flow(CREDIT)
        else:
            self._senders.append(link)

    def _problem_of(self, address: str) -> Condition | None:
        name = address.removesuffix(DEAD_LETTERS)
        if address == _CBS:
            return None
        if address.endswith("/$management"):
            return Condition("amqp:not-implemented", "the stand-in has no management link")
        if name not in self.queues:
            return Condition("amqp:not-found", f"the messaging entity '{name}' could not be found")
        if name in self.unauthorized:
            return Condition("amqp:unauthorized-access", "unauthorized access: a claim is required")
        return None

    def on_link_remote_close(self, event: Any) -> None:
        event.link.close()
        self._senders = [link for link in self._senders if link != event.link]

    def on_link_remote_detach(self, event: Any) -> None:
        self.on_link_remote_close(event)

    # Sending to clients

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender:
            self._pump()

    def _pump(self) -> None:
        now = time.time()
        links = list(self._senders)
        self._dice.shuffle(links)  # competing consumers
        progressed = True
        while progressed:
            progressed = False
            for link in links:
                if link.credit > 0 and link.state & Endpoint.LOCAL_ACTIVE and self._send_one(link, now):
                    progressed = True

    def _send_one(self, link: Link, now: float) -> bool:
        source = self._queue_of(_address_of(link))
        taken = source.take(now) if source else None
        if source is None or taken is None:
            return False
        tag, stored = taken
        link.delivery(tag)
        link.send(_encoded(stored, source.locked[tag].until))
        link.advance()
        return True

    def _queue_of(self, address: str) -> BrokerQueue | None:
        queue = self.queues.get(address.removesuffix(DEAD_LETTERS))
        return queue.dead_letters if queue and address.endswith(DEAD_LETTERS) else queue

    # Deliveries, in both directions

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if link.is_receiver:
            self._receive(link, delivery)
        elif delivery.updated:
            self._settle(link, delivery)

    def _receive(self, link: Link, delivery: Delivery) -> None:
        if not delivery.readable or delivery.partial:
            return
        encoded = bytes(link.recv(delivery.pending))
        link.advance()
        if _address_of(link) == _CBS:
            self._answer_token(link, delivery, encoded)
        else:
            self._store(link, delivery, encoded)
        link.flow(max(0, CREDIT - link.credit))

    def _store(self, link: Link, delivery: Delivery, encoded: bytes) -> None:
        target = self._queue_of(_address_of(link))
        if (
            target is None or not link.state & Endpoint.LOCAL_ACTIVE
        ):  # sent before the client saw that its link was refused
            return
        if len(encoded) > self.options.max_message_bytes:
            _reject(delivery, "amqp:link:message-size-exceeded", f"the message has {len(encoded)} bytes")
            return
        if self._dice.random() < self.options.faults.busy:
            _reject(delivery, "com.microsoft:server-busy", "the server is busy")
            return
        for message in _messages_of(encoded):
            target.put(message, time.time())
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()
        self._pump()

    def _answer_token(self, link: Link, delivery: Delivery, encoded: bytes) -> None:
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()
        request = Message()
        request.decode(encoded)
        self.tokens.append(request.body)
        code, text = self._answer_of(str((request.properties or {}).get("name", "")))
        response = Message(
            correlation_id=request.id, properties={"status-code": int32(code), "status-description": text}, body=""
        )
        for sender in self._senders:
            if sender.connection == link.connection and _address_of(sender) == _CBS:
                sender.delivery(f"cbs-{time.monotonic_ns()}")
                sender.send(response.encode())
                sender.advance()

    def _answer_of(self, audience: str) -> tuple[int, str]:
        if self.refuses_tokens:
            return 401, "InvalidSignature"
        name = audience.partition("://")[2].partition("/")[2].removesuffix(DEAD_LETTERS)
        if name and name not in self.queues:
            return 404, f"the messaging entity '{name}' could not be found"
        return 202, "Accepted"

    def _settle(self, link: Link, delivery: Delivery) -> None:
        """Apply the outcome of the client and confirm it; respond with an error if its lock was lost."""
        source = self._queue_of(_address_of(link))
        state = delivery.remote_state
        if source is None or not state:
            if delivery.settled:
                delivery.settle()
            return
        if not self._apply(source, delivery, state):
            _reject(delivery, "com.microsoft:message-lock-lost", "the lock is no longer held")
            return
        delivery.update(state)
        delivery.settle()
        self._pump()

    def _apply(self, source: BrokerQueue, delivery: Delivery, state: int) -> bool:
        now, tag = time.time(), delivery.tag
        if state == Disposition.ACCEPTED:
            return source.complete(tag, now)
        if state == Disposition.REJECTED:
            info = delivery.remote.condition.info if delivery.remote.condition else None
            return source.dead_letter(tag, now, {str(key): value for key, value in (info or {}).items()})
        return source.abandon(tag, now, counts=state == Disposition.MODIFIED)


def _address_of(link: Link) -> str:
    terminus = link.remote_source if link.is_sender else link.remote_target
    address = str(terminus.address or "")
    return address.partition("://")[2].partition("/")[2] if "://" in address else address


def _refuse(link: Link, problem: Condition) -> None:
    link.condition = problem
    link.close()


def _reject(delivery: Delivery, condition: str, description: str) -> None:
    # The SDK reads the third part of an error too.
    delivery.local.condition = Condition(condition, description, {symbol("source"): "stand-in"})
    delivery.update(Disposition.REJECTED)
    delivery.settle()


def _messages_of(encoded: bytes) -> Iterator[Message]:
    """One message, or those of a batch: data sections that contain encoded messages."""
    parts = [value for descriptor, value in _sections(encoded) if descriptor == _DATA_SECTION]
    if parts and all(part[:2] in _ENCODED_MESSAGE for part in parts):
        for part in parts:
            yield _decoded(part)
    else:
        yield _decoded(encoded)


def _sections(encoded: bytes) -> Iterator[tuple[int, Any]]:
    while encoded:
        data = Data()
        size = data.decode(encoded)
        data.rewind()
        data.next()
        section = data.get_object()
        if isinstance(section, Described):
            value = section.value  # a view of the buffer of `data`, if it is binary
            yield int(section.descriptor), bytes(value) if isinstance(value, memoryview) else value
        encoded = encoded[size:]


def _decoded(encoded: bytes) -> Message:
    message = Message()
    message.decode(encoded)
    return message


def _encoded(stored: Stored, locked_until: float) -> bytes:
    message = stored.message
    message.delivery_count = stored.delivery_count
    message.annotations = {
        **(message.annotations or {}),
        symbol("x-opt-sequence-number"): stored.sequence_number,
        symbol("x-opt-enqueued-time"): amqp_timestamp(int(stored.enqueued_at * 1000)),
        symbol("x-opt-locked-until"): amqp_timestamp(int(locked_until * 1000)),
    }
    return message.encode()


class BrokerThread:
    """The stand-in in a thread of this process. The queues can be inspected, and faults can be changed, at any time."""

    def __init__(self, queues: Sequence[str], options: BrokerOptions | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self.options = options or BrokerOptions()
        self._service = Service(self.port, queues, self.options)
        self._container = Container(self._service)
        self._thread = threading.Thread(target=self._container.run, name="broker", daemon=True)

    def __enter__(self) -> "BrokerThread":
        self._thread.start()
        assert self._service.is_ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._service.calls.put(self._service.end)
        self._thread.join(10)

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    @property
    def queues(self) -> dict[str, BrokerQueue]:
        return self._service.queues

    @property
    def service(self) -> Service:
        return self._service

    def cut(self) -> None:
        self._call(self._service.cut)

    def leave(self) -> None:
        self._call(self._service.leave)

    def come_back(self) -> None:
        self._call(self._service.come_back)

    def _call(self, function: Callable[[], None]) -> None:
        done = threading.Event()

        def call() -> None:
            function()
            done.set()

        self._service.calls.put(call)
        assert done.wait(10)


class BrokerProcess:
    """The stand-in as a separate process. Its messages are lost when it is killed."""

    def __init__(self, queues: Sequence[str], *arguments: str, log: Path | None = None) -> None:
        self.port = free_port()
        self._command = [sys.executable, "-m", "tests.servicebus.broker", "--port", str(self.port), *arguments, *queues]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        output: Any = self._log.open("ab") if self._log else subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=_ROOT)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError("the stand-in for Service Bus did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queues", nargs="+")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lock-seconds", type=float, default=BrokerOptions.lock_seconds)
    parser.add_argument("--max-delivery-count", type=int, default=BrokerOptions.max_delivery_count)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("drop", "duplicate", "delay", "reorder", "busy"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    chosen = parser.parse_args()
    faults = Faults(chosen.drop, chosen.duplicate, chosen.delay, reorder=chosen.reorder, busy=chosen.busy)
    options = BrokerOptions(chosen.lock_seconds, chosen.max_delivery_count, faults=faults, seed=chosen.seed)
    Container(Service(chosen.port, chosen.queues, options)).run()


if __name__ == "__main__":
    main()
