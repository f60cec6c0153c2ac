"""The part of the Dask executor that runs inside a Dask worker.

A Dask task (`hold_slot`) occupies a slot of the Dask worker and runs no handler itself. It announces the slot and waits
until the platform's worker attaches to it by a direct connection. Then the agent starts a child process of this package
and forwards frames in both directions, until the task is over, the child has ended or the connection is lost. A child
is killed when its connection is lost, or when the platform's worker has been silent for as long as a lease.

    platform's worker ◀── connection ──▶ agent ◀── channel ──▶ child process ── handler
           │                               ▲
           ╰── scheduler ── hold_slot ─────╯      only the ticket is sent this way, never params or results
"""

import asyncio
import contextlib
import os
import platform
import socket
from typing import Any
from weakref import WeakKeyDictionary

from distributed import get_worker
from distributed.comm.core import Comm
from distributed.core import Status
from distributed.worker import Worker as DaskWorker

from dagmaster import __version__
from dagmaster.cancellation import cancel_and_wait
from dagmaster.errors import DagmasterError
from dagmaster.observe import log
from dagmaster.worker.frames import BrokenChannel
from dagmaster.worker.process_pool import Child, Pool

ATTACH = "dagmaster_attach"
ATTACH_SECONDS = 10.0  # attaching normally takes milliseconds
IDLE_SECONDS = 300.0  # idle children end after this time, because others use the machine too
RECYCLE_AFTER = 100
WINDOW_BYTES = 4 * 1024 * 1024  # of frames that were sent to the platform's worker and not yet taken there
FRAME_BYTES = 200  # added to the size of each frame, for its overhead in memory

_agents: "WeakKeyDictionary[DaskWorker, Agent]" = WeakKeyDictionary()
_log = log.get("worker")

Message = dict[str, Any]


def versions() -> dict[str, str]:
    """The versions that must be equal on both sides: frames have no version of their own, and handlers are imported
    on the Dask worker."""
    return {"dagmaster": __version__, "python": ".".join(platform.python_version_tuple()[:2])}


def prepare(dask_worker: DaskWorker) -> dict[str, str]:
    """Called on each Dask worker when it is first seen (`Client.run` passes the Dask worker in)."""
    agent_of(dask_worker)
    return versions()


async def hold_slot(ticket: str, topic: str, silence_seconds: float) -> None:
    """The Dask task: occupies a slot until the task of the platform has ended."""
    await agent_of(get_worker()).hold(ticket, topic, silence_seconds)


def agent_of(dask_worker: DaskWorker) -> "Agent":
    if dask_worker not in _agents:
        _agents[dask_worker] = Agent(dask_worker)
    return _agents[dask_worker]


class Agent:
    """One for each Dask worker. It owns the child processes there."""

    def __init__(self, dask_worker: DaskWorker) -> None:
        self._dask_worker = dask_worker
        self._pool = Pool(memory_mb=0, recycle_after=RECYCLE_AFTER)
        self._tickets: dict[str, asyncio.Future[_Attached]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        dask_worker.handlers[ATTACH] = self.attach

    async def hold(self, ticket: str, topic: str, silence_seconds: float) -> None:
        attached = self._tickets[ticket] = asyncio.get_running_loop().create_future()
        address = self._dask_worker.contact_address or self._dask_worker.address
        self._dask_worker.log_event(topic, {"ticket": ticket, "address": address})
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                connection = await attached
        except TimeoutError:
            return  # the platform's worker has ended, or attaches to another run of this task
        finally:
            self._tickets.pop(ticket, None)
        self._keep_idle_children()
        try:
            await FrameRelay(connection.comm, self._pool, silence_seconds).run()
        finally:
            connection.is_over.set()
            self._end_idle_children_later()

    async def attach(self, comm: Comm, ticket: str) -> Status:
        """Handler of a connection: gives it to the task that waits with this ticket, and keeps it until its end."""
        attached = self._tickets.pop(ticket, None)
        if attached is None or attached.done():
            await comm.write({"kind": "refused", "problem": "no slot waits with this ticket", "versions": versions()})
            return Status.dont_reply
        connection = _Attached(comm)
        attached.set_result(connection)
        await connection.is_over.wait()
        return Status.dont_reply

    def _keep_idle_children(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _end_idle_children_later(self) -> None:
        self._keep_idle_children()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_idle_children)

    def _end_idle_children(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._pool.end_idle())


def counted_bytes(body: bytes, attached: bytes | bytearray | None) -> int:
    """The bytes that a frame counts towards the window."""
    return FRAME_BYTES + len(body) + len(attached or b"")


class _Attached:
    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.is_over = asyncio.Event()


class FrameRelay:
    """Forwards frames between one connection and one child process.

    A child that sends faster than the platform's worker receives has to wait: beyond `WINDOW_BYTES`, its next frame
    stays in the channel until the platform's worker confirms earlier ones. Other messages are never held back."""

    def __init__(self, comm: Comm, pool: Pool, silence_seconds: float) -> None:
        self._comm = comm
        self._pool = pool
        self._silence_seconds = silence_seconds
        self._writing = asyncio.Lock()
        self._unconfirmed_bytes = 0
        self._window_is_open = asyncio.Event()
        self._window_is_open.set()
        self._last: Message = {}  # how the platform's worker ended the run

    async def run(self) -> None:
        try:
            child = await self._pool.take()
        except (DagmasterError, OSError) as error:
            await self._write({"kind": "refused", "problem": f"no process for the handler could be started: {error}"})
            return
        directions: list[asyncio.Task[None]] = []
        try:
            facts = {"pid": child.pid, "host": socket.gethostname(), "dask_worker_pid": os.getpid()}
            await self._write({"kind": "attached", **facts, "versions": versions()})
            directions = [asyncio.create_task(self._from_child(child)), asyncio.create_task(self._to_child(child))]
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await asyncio.shield(self._end(child, directions))

    async def _to_child(self, child: Child) -> None:
        """Forward frames until the platform's worker ends the run, is lost, or is silent for too long."""
        while True:
            try:
                async with asyncio.timeout(self._silence_seconds):
                    message = await self._comm.read()
            except TimeoutError:
                _log.warning("the platform's worker is silent; its task is killed", pid=child.pid)
                return
            except OSError:  # the connection is closed
                return
            match message["kind"]:
                case "frame":
                    child.write_packed(message["body"])
                case "taken":
                    self._count(-message["bytes"])
                case "pulse":
                    child.sample_peak()
                    await self._write({"kind": "pulse", "peak_mb": child.peak_mb})
                case _:  # over, kill
                    self._last = message
                    return

    async def _from_child(self, child: Child) -> None:
        """Forward frames until the child has ended."""
        with contextlib.suppress(BrokenChannel):
            while True:
                await self._window_is_open.wait()
                packed = await child.receive_packed()
                self._count(counted_bytes(packed.body, packed.attached))
                await self._write({"kind": "frame", "body": packed.body, "attached": packed.attached})

    def _count(self, size_bytes: int) -> None:
        self._unconfirmed_bytes += size_bytes
        if self._unconfirmed_bytes < WINDOW_BYTES:
            self._window_is_open.set()
        else:
            self._window_is_open.clear()

    async def _end(self, child: Child, directions: list[asyncio.Task[None]]) -> None:
        """Keep the child for another task, or kill it. Confirm that, and close the connection."""
        has_died = any(direction.done() for direction in directions[:1])
        await cancel_and_wait(*directions[:1])
        child.tasks_run += 1
        if self._last.get("kind") == "over":
            child.resident_mb = self._last["resident_mb"]
            await self._pool.release(child, is_clean=self._last["is_clean"], memory_mb=self._last["memory_mb"])
        else:
            child.sample_peak()
            await child.kill()
        with contextlib.suppress(OSError):
            facts = {"exit_code": child.process.returncode, "peak_mb": child.peak_mb}
            await self._write({"kind": "ended", "is_lost": not (has_died or self._last), **facts})
            await self._comm.close()
        await cancel_and_wait(*directions[1:])  # last, because a read that is cancelled breaks the connection

    async def _write(self, message: Message) -> None:
        async with self._writing:
            await self._comm.write(message)
