"""Runs plain handlers on the machines of a Dask cluster, each in a child process of this package there.

Dask decides where a task runs and occupies a slot for it (`dask_agent.hold_slot`). Everything else uses a direct
connection to that Dask worker: params, progress, log lines, checkpoints, stop requests, the result. So the executor
runs a remote child exactly as the pool runs a local one, with the same timeout and the same grace periods.

    wait for the cluster ─▶ submit, wait for a slot ─▶ attach ─▶ run ─▶ report
              ▲                       │                  │        │
              ╰───────────────────────┴──────────────────╯        ╰─▶ connection lost: a loss of the environment
                     the handler has not started: try again

The connection to the scheduler is checked every two seconds and renewed with backoff. While there is none, the executor
has no slots, so the worker claims no tasks for it. Tasks that run keep their own connections and are not affected.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from distributed import Client, Future
from distributed.comm.core import Comm, connect
from distributed.security import Security

from dagmaster.cancellation import cancel_and_wait
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.worker import frames
from dagmaster.worker.child_run import SAMPLE_SECONDS, ChildRun, error_of_death, run_frame
from dagmaster.worker.context import TaskContext
from dagmaster.worker.executors import dask_agent
from dagmaster.worker.frames import BrokenChannel, Frame
from dagmaster.worker.outcome import RETURNED, Outcome

MAX_SLOTS = 10_000
CONNECT_SECONDS = 10.0
CHECK_SECONDS = 2.0
RESPONSE_SECONDS = 15.0  # how long a scheduler may take to respond
DEATH_SECONDS = 10.0
BACKOFF_SECONDS = (0.2, 10.0)
PAUSE_SECONDS = (0.1, 5.0)  # between attempts to get a slot
SHORT_WAIT_SECONDS = 1.0  # a longer wait for a slot does not count towards the timeout of the task
LONG_WAIT_SECONDS = 30.0  # after this time, the task's log says that it waits for a slot

_log = log.get("worker")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the cluster is, and how many of its slots may be used (0: all)."""

    address: str
    slots: int = 0
    security: Security | None = None


def cluster_of(settings: Settings) -> ClusterAddress:
    address = settings.dask_scheduler_address or ""
    if not address.startswith("tls://"):
        return ClusterAddress(address, settings.dask_slots)
    files = (settings.dask_tls_ca, settings.dask_tls_cert, settings.dask_tls_key)
    for file in files:
        if file is None or not os.access(file, os.R_OK):
            raise InvalidRequest(
                f"the file {file} for TLS with the Dask cluster cannot be read",
                code="settings.invalid",
                hint="correct DASK_TLS_CA, DASK_TLS_CERT and DASK_TLS_KEY",
            )
    ca, cert, key = map(str, files)
    security = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
    return ClusterAddress(address, settings.dask_slots, security)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What `dagmaster doctor` shows. `threads` and `refused` are by the address of the Dask worker."""

    threads: Mapping[str, int]
    refused: Mapping[str, str]
    other_versions: tuple[str, ...]  # of `distributed`


async def inspect_cluster(cluster: ClusterAddress) -> ClusterFacts:
    """Read what a cluster offers to a worker of this machine. Changes nothing in the cluster."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the error that is raised below says enough
    try:
        async with asyncio.timeout(CONNECT_SECONDS), SchedulerConnection.open_client(cluster) as client:
            threads: dict[str, int] = await client.scheduler.ncores()
            responses = await client.run(dask_agent.versions, on_error="return")
            versions = await client.get_versions()
    except (OSError, TimeoutError, ValueError) as error:
        raise Unavailable(
            f"{cluster.address}: {str(error) or 'no response'}",
            code="worker.no-cluster",
            hint="start the scheduler, or correct DASK_SCHEDULER_ADDRESS (and DASK_TLS_…)",
        ) from error
    refused = {address: text for address in threads if (text := problem_of(responses.get(address)))}
    usable = {address: count for address, count in threads.items() if address not in refused}
    return ClusterFacts(usable, refused, tuple(_other_versions(versions)))


def _other_versions(versions: Mapping[str, Any]) -> Iterator[str]:
    """Which parts of the cluster have another version of distributed than this machine."""
    own = versions["client"]["packages"]["distributed"]
    parts = {"the scheduler": versions["scheduler"]}
    parts |= {f"the Dask worker {address}": part for address, part in versions["workers"].items()}
    for name, part in parts.items():
        other = part["packages"]["distributed"]
        if other != own:
            yield f"{name} has distributed {other}, and this machine has {own}"


class NotPlaced(Exception):
    """A task got no slot this time. Its handler has not started."""


class DaskExecutor:
    is_on_this_machine = False

    def __init__(
        self,
        cluster: ClusterAddress,
        *,
        memory_mb: int,
        cancel_grace_seconds: float = 5.0,
        silence_seconds: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._memory_mb = memory_mb
        self._grace_seconds = cancel_grace_seconds
        self._silence_seconds = silence_seconds
        self._connection: SchedulerConnection | None = None
        self._is_connected = asyncio.Event()
        self._problem: str | None = "not connected yet"
        self._keeper: asyncio.Task[None] | None = None
        self._running: dict[RemoteChild, str] = {}
        self._on_more_slots: Callable[[], None] | None = None
        self._known_slots = 0

    @property
    def slots(self) -> int:
        connection = self._connection
        if connection is None or connection.refuses_all:
            return 0
        return min(MAX_SLOTS, self._cluster.slots or connection.threads)

    @property
    def children(self) -> list[dict[str, Any]]:
        return [
            {"pid": child.pid, "host": child.host, "task_id": task_id}
            for child, task_id in tuple(self._running.items())
        ]

    def details(self) -> dict[str, Any]:
        connection = self._connection
        return {
            "executor": "dask",
            "cluster": {
                "scheduler": self._cluster.address,
                "slots": self.slots,
                "dask_workers": len(connection.usable) if connection else 0,
                "refused_dask_workers": dict(connection.refused) if connection else {},
                "problem": self._problem,
            },
        }

    async def start(self, on_more_slots: Callable[[], None] | None = None, /) -> None:
        self._on_more_slots = on_more_slots
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name="connection to the Dask cluster")

    async def close(self) -> None:
        if self._keeper is not None:
            await cancel_and_wait(self._keeper)

    def end_now(self) -> None:
        for child in tuple(self._running):
            child.end_now()

    # The connection to the scheduler

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                async with SchedulerConnection.open(self._cluster) as connection:
                    failures = 0
                    await self._use(connection)
            except Exception as error:  # whatever ends a connection, the worker continues and tries again
                self._lose(error, is_first=failures == 0)
            low, high = BACKOFF_SECONDS
            await asyncio.sleep(min(high, low * 2**failures) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            failures = min(failures + 1, 20)

    async def _use(self, connection: "SchedulerConnection") -> None:
        """Use a connection until it is lost."""
        self._connection, self._problem = connection, None
        self._is_connected.set()
        _log.info(
            "connected to a Dask cluster",
            scheduler=self._cluster.address,
            dask_workers=len(connection.usable),
            slots=self.slots,
        )
        self._note_slots()
        try:
            await connection.watch(self._note_slots)
        finally:
            self._connection, self._problem = None, "the connection to the scheduler was lost"
            self._is_connected.clear()
            self._note_slots()

    def _note_slots(self) -> None:
        """Report additional slots: a worker without slots claims no tasks, and its next poll may be minutes away."""
        before, self._known_slots = self._known_slots, self.slots
        if self._known_slots > before and self._on_more_slots is not None:
            self._on_more_slots()

    def _lose(self, error: Exception, *, is_first: bool) -> None:
        self._problem = f"{type(error).__name__}: {error}"
        if is_first:
            log.failure(_log, "the Dask cluster is not available; trying again", error)

    # Tasks

    async def run(
        self, registration: Registration, task: TaskMessage, timeout_seconds: float, context: TaskContext
    ) -> Outcome:
        """Run a task until it ends or is killed. When this call is cancelled, the child is killed before it returns."""
        memory_mb = registration.memory_mb or self._memory_mb
        child = await self._place_or_stop(registration.name, context)
        if child is None:
            return RETURNED
        context.start_running()
        child_run = ChildRun(child, context, timeout_seconds, self._grace_seconds, memory_mb)
        self._running[child] = task.task_id
        try:
            return await child_run.run(run_frame(registration, task, memory_mb, context.traceparent))
        finally:
            del self._running[child]
            await asyncio.shield(child.end(is_clean=child_run.is_clean, memory_mb=memory_mb))

    async def _place_or_stop(self, handler: str, context: TaskContext) -> "RemoteChild | None":
        """A child on the cluster; None if the task is asked to stop before there is one."""
        stop = asyncio.Event()
        context.on_signal(lambda _kind: stop.set())
        placing = asyncio.ensure_future(self._place(handler, context))
        stopping = asyncio.ensure_future(stop.wait())
        child: RemoteChild | None = None
        try:
            await asyncio.wait([placing, stopping], return_when=asyncio.FIRST_COMPLETED)
            child = placing.result() if placing.done() else None
            return child
        finally:
            context.on_signal(None)
            stopping.cancel()
            if child is None:
                await _abandon(placing)

    async def _place(self, handler: str, context: TaskContext) -> "RemoteChild":
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(SHORT_WAIT_SECONDS, context.wait_for_slot),
            loop.call_later(
                LONG_WAIT_SECONDS, context.log, "warning", "the task waits for a slot of the Dask cluster", {}
            ),
        ]
        seconds, longest = PAUSE_SECONDS
        try:
            while True:
                await self._is_connected.wait()
                connection = self._connection
                try:
                    if connection is not None:
                        return await connection.place(handler, self._silence_seconds)
                except NotPlaced as problem:
                    _log.warning("a task got no slot of the Dask cluster; trying again", problem=str(problem))
                await asyncio.sleep(seconds)
                seconds = min(longest, 2 * seconds)
        finally:
            for timer in timers:
                timer.cancel()


async def _abandon(placing: "asyncio.Future[RemoteChild]") -> None:
    """End the search for a slot. It may have found one in the same moment."""
    placing.cancel()
    await asyncio.wait([placing])
    if not placing.cancelled() and placing.exception() is None:
        await placing.result().end(is_clean=False, memory_mb=0)


class SchedulerConnection:
    """One connection to the scheduler. When it is lost, it is replaced by another one and never used again."""

    def __init__(self, client: Client, topic: str) -> None:
        self.usable: dict[str, int] = {}  # threads by the address of the Dask worker
        self.refused: dict[str, str] = {}
        self._client = client
        self._stream = client.scheduler_comm
        self._topic = topic
        self._is_lost = False
        self._offers: dict[str, asyncio.Future[str]] = {}  # by ticket: the address of the Dask worker with the slot

    @classmethod
    @asynccontextmanager
    async def open(cls, cluster: ClusterAddress) -> "AsyncIterator[SchedulerConnection]":
        topic = f"dagmaster-{uuid4().hex}"
        async with cls.open_client(cluster) as client:
            connection = cls(client, topic)
            client.subscribe_topic(topic, connection._on_offer)
            await connection._update_workers()
            yield connection

    @staticmethod
    @asynccontextmanager
    async def open_client(cluster: ClusterAddress) -> AsyncIterator[Client]:
        """A client that is connected to the scheduler."""
        client = Client(
            cluster.address,
            asynchronous=True,
            security=cluster.security,
            timeout=CONNECT_SECONDS,
            set_as_default=False,
            name="dagmaster",
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS + 1):
                await client
            yield client
        finally:
            # A scheduler that has ended must not delay the next attempt.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    await client.close(timeout=1)

    @property
    def refuses_all(self) -> bool:
        return bool(self.refused) and not self.usable

    @property
    def threads(self) -> int:
        return sum(self.usable.values())

    async def watch(self, on_update: Callable[[], None]) -> None:
        """Keep the lists of Dask workers current. Raises an error when the connection is lost."""
        try:
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                await self._update_workers()
                on_update()
        finally:
            self._is_lost = True
            for offer in self._offers.values():
                if not offer.done():
                    offer.set_exception(NotPlaced("the connection to the scheduler was lost"))

    async def _update_workers(self) -> None:
        if self._client.status != "running" or self._client.scheduler_comm is not self._stream:
            # The client reconnects by itself, but a new scheduler does not know the subscriptions of this client.
            raise ConnectionError("the connection to the scheduler was lost")
        async with asyncio.timeout(RESPONSE_SECONDS):
            threads: dict[str, int] = await self._client.scheduler.ncores()
        new = [address for address in threads if address not in self.usable and address not in self.refused]
        self.refused = {address: problem for address, problem in self.refused.items() if address in threads}
        if new:
            await self._inspect(new)
        self.usable = {address: count for address, count in threads.items() if address not in self.refused}

    async def _inspect(self, addresses: list[str]) -> None:
        """Refuse Dask workers whose environment does not fit."""
        async with asyncio.timeout(RESPONSE_SECONDS):
            responses = await self._client.run(dask_agent.prepare, workers=addresses, on_error="return")
        for address in addresses:
            if problem := problem_of(responses.get(address)):
                self._refuse(address, problem)

    def _refuse(self, address: str, problem: str) -> None:
        self.refused[address] = problem
        self.usable.pop(address, None)
        _log.error(
            "a Dask worker cannot run tasks",
            dask_worker=address,
            problem=problem,
            hint="install the same version of dagmaster, with the same extras and handlers, on worker and cluster",
        )

    def _on_offer(self, event: tuple[float, Mapping[str, str]]) -> None:
        offer = self._offers.get(event[1]["ticket"])
        if offer is not None and not offer.done():
            offer.set_result(event[1]["address"])

    async def place(self, handler: str, silence_seconds: float) -> "RemoteChild":
        """A child in a slot of the cluster. Waits until one is free."""
        if self._is_lost or self.refuses_all:
            lost, unsuitable = "the connection to the scheduler was lost", "no Dask worker has a suitable environment"
            raise NotPlaced(lost if self._is_lost else unsuitable)
        ticket = uuid4().hex
        offer = self._offers[ticket] = asyncio.get_running_loop().create_future()
        future = self._submit(handler, ticket, silence_seconds)
        watcher = asyncio.create_task(self._fail_offer(future, offer))
        try:
            return await self._attach(await offer, ticket, future, silence_seconds)
        except BaseException:
            await asyncio.shield(_cancel(future))
            raise
        finally:
            del self._offers[ticket]
            watcher.cancel()

    def _submit(self, handler: str, ticket: str, silence_seconds: float) -> Future:
        try:
            return self._client.submit(
                dask_agent.hold_slot,
                ticket,
                self._topic,
                silence_seconds,
                key=f"{handler}-{uuid4().hex}",  # Dask's dashboard groups tasks by the part before the last hyphen
                pure=False,
                workers=list(self.usable) if self.refused else None,
            )
        except Exception as error:  # the client has just been closed
            del self._offers[ticket]
            raise NotPlaced(f"the connection to the scheduler was lost: {error}") from error

    async def _fail_offer(self, future: Future, offer: asyncio.Future[str]) -> None:
        """A Dask task that ends before its slot was offered could not be started."""
        await future._state.wait()
        if not offer.done():
            offer.set_exception(NotPlaced(f"the Dask task is {future.status}: {_exception_of(future)}"))

    async def _attach(self, address: str, ticket: str, future: Future, silence_seconds: float) -> "RemoteChild":
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                comm = await connect(address, timeout=CONNECT_SECONDS, **self._client.connection_args)
        except (OSError, TimeoutError) as error:
            raise NotPlaced(f"the Dask worker at {address} cannot be reached: {error}") from error
        try:
            await comm.write({"op": dask_agent.ATTACH, "ticket": ticket, "reply": False})
            async with asyncio.timeout(silence_seconds):
                response = await comm.read()
        except BaseException as error:
            comm.abort()
            if isinstance(error, OSError | TimeoutError):
                raise NotPlaced(f"the Dask worker at {address} was lost: {error}") from error
            raise
        problem = problem_of(response["versions"]) if "versions" in response else None
        if problem:
            self._refuse(address, problem)
        if problem or response["kind"] != "attached":
            comm.abort()
            raise NotPlaced(f"the Dask worker at {address} refused: {problem or response['problem']}")
        return RemoteChild(comm, address, response, future, silence_seconds)


async def _cancel(future: Future) -> None:
    with contextlib.suppress(Exception):  # the scheduler is lost, and the task with it
        async with asyncio.timeout(1):
            await future.cancel(force=True)


def problem_of(response: Any) -> str | None:
    """Why a Dask worker cannot run tasks of this worker, from its response to `prepare`."""
    expected = dask_agent.versions()
    match response:
        case None:
            return "it does not respond"
        case BaseException() if "No module named 'dagmaster" in str(response):
            return "the package dagmaster is not installed there"
        case BaseException():
            return f"{type(response).__name__}: {response}"
        case _ if response != expected:
            return f"it has {_listed(response)}, and this worker has {_listed(expected)}"
    return None


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def _exception_of(future: Future) -> str:
    error = future._state.exception
    return f"{type(error).__name__}: {error}" if error is not None else "it ended early"


class RemoteChild:
    """A child process on a machine of the cluster, and the connection to it."""

    def __init__(self, comm: Comm, address: str, response: Mapping[str, Any], future: Future, silence_seconds: float):
        self.pid: int = response["pid"]
        self.host: str = response["host"]
        self.tasks_run = 0
        self.resident_mb = 0.0
        self.peak_mb: float | None = None
        self._address = address
        self._comm = comm
        self._future = future
        self._silence_seconds = silence_seconds
        # None: there are no more frames. The agent stops sending while WINDOW_BYTES of frames have not been taken.
        self._frames: asyncio.Queue[frames.Packed | None] = asyncio.Queue()
        self._taken_bytes = 0  # bytes taken that are not yet reported to the agent
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ended: Mapping[str, Any] | None = None
        self._reader = asyncio.create_task(self._read(), name="reader of a remote child")
        self._writer = asyncio.create_task(self._send(), name="writer of a remote child")

    @property
    def is_private(self) -> bool:
        return self._address.startswith("tls://")

    def write(self, frame: Frame) -> None:
        self._outbox.put_nowait({"kind": "frame", "body": frames.body_of(frame)})

    async def receive(self) -> tuple[Frame, int]:
        packed = await self._frames.get()
        if packed is None:
            self._frames.put_nowait(None)  # for the next call
            raise BrokenChannel("the child has ended, or the connection to it is lost")
        self._taken_bytes += dask_agent.counted_bytes(packed.body, packed.attached)
        if self._taken_bytes >= dask_agent.WINDOW_BYTES / 2:
            self._outbox.put_nowait({"kind": "taken", "bytes": self._taken_bytes})
            self._taken_bytes = 0
        return frames.unpack(packed)

    def sample_peak(self) -> None:
        """Request the peak. The request and its response also show each side that the other one is alive."""
        self._outbox.put_nowait({"kind": "pulse"})

    async def death(self, memory_mb: int) -> Unavailable:
        await self._kill()
        if self._ended is None or self._ended["is_lost"]:
            return Unavailable(
                f"the Dask worker {self._address} was lost while it ran the task",
                code="worker.cluster-lost",
                hint="the Dask worker, its machine or its scheduler has ended; the task is retried",
            )
        return error_of_death(self._ended["exit_code"], self._ended["peak_mb"], memory_mb)

    async def end(self, *, is_clean: bool, memory_mb: int) -> None:
        """Keep the child for the next task, or kill it; either way the slot is free afterwards."""
        if is_clean:
            over = {"kind": "over", "is_clean": True, "resident_mb": self.resident_mb, "memory_mb": memory_mb}
            self._outbox.put_nowait(over)
            await asyncio.wait([self._reader], timeout=DEATH_SECONDS)
        elif not self._reader.done():
            await self._kill()
        self._reader.cancel()
        self._writer.cancel()
        self._comm.abort()
        self._future.release()

    async def _kill(self) -> None:
        """Kill the child, and wait until the agent confirms that all of its processes have ended."""
        if not self._reader.done():
            self._outbox.put_nowait({"kind": "kill"})
            await asyncio.wait([self._reader], timeout=DEATH_SECONDS)
        if self._ended is None:
            # The agent kills it when it notices that the connection is closed, or after a lease without a message.
            _log.warning("a Dask worker did not confirm the end of a process", dask_worker=self._address, pid=self.pid)
            self._comm.abort()

    def end_now(self) -> None:
        """Close the connection, so that the agent kills the child. Safe from another thread."""
        with contextlib.suppress(Exception):
            self._comm.stream.socket.shutdown(socket.SHUT_RDWR)

    async def _read(self) -> None:
        """Read until the agent confirms the end, or the connection is lost."""
        try:
            while self._ended is None:
                async with asyncio.timeout(max(self._silence_seconds, 3 * SAMPLE_SECONDS)):
                    self._take(await self._comm.read())
        except (OSError, TimeoutError):
            self._comm.abort()
        finally:
            self._frames.put_nowait(None)

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "frame":
                self._frames.put_nowait(frames.packed_of(message["body"], message["attached"]))
            case "pulse":
                self.peak_mb = message["peak_mb"]
            case "ended":
                self._ended = message
                self.peak_mb = message["peak_mb"] or self.peak_mb

    async def _send(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices it too
            while True:
                await self._comm.write(await self._outbox.get())
