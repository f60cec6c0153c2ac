"""Inject faults: kind, time and victim are selected at random, by a seed.
Several faults may be active at once, but never two on one process.

A fault is over when its cause has ended: the process is dead or runs again, the link is clear, the server responds. The
recovery time is measured on the victim:

    orchestrator killed or frozen     from the fault until each of its jobs has another owner, or has ended
    worker or child killed or frozen  from the fault until each of its tasks runs again, or its node has ended
    process asked to stop             from the signal until the same condition holds
    link                              from the end of the fault until that process has written something; any process if
                                      the link is that of the submitter
    clock                             from the start with the wrong clock until that process has written something
    server, rows, disk, notifications from the end of the fault until any process has written something
    message broker                    from the kill until any process has written something
    poison task                       from its submission until its job has failed
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from tests.engine.processes import CRASHED, Process, Role

from chaos.effects import Effects, attempt_of, task_of
from chaos.load import POISONS, Load
from chaos.proxy import Link
from chaos.testbed import SUBMITTER, Testbed, scalar
from dagmaster.faults import POINTS

# How often each kind occurs in a round of faults. A run injects rounds one after the other, each in a random order.
FAULT_COUNTS = {
    "kill orchestrator": 4,
    "kill worker": 5,
    "kill child": 4,
    "crash point": 4,
    "freeze orchestrator": 3,
    "freeze worker": 3,
    "rolling restart": 1,
    "kill postgres": 1,
    "restart postgres": 1,
    "end sessions": 2,
    "cut": 3,
    "reset at commit": 4,
    "half-open": 3,
    "delay": 2,
    "rows locked": 2,
    "no connections": 1,
    "notifications dropped": 1,
    "notifications doubled": 1,
    "disk full": 2,
    "clock jumps": 2,
    "poison": 3,
}
# With a message broker as the transport, in addition.
BROKER_FAULT_COUNTS = {"broker killed": 3, "broker unavailable": 1}
BROKER_OUTAGE_SECONDS = 60.0
WATCH_SECONDS = 60.0
PROBE_SECONDS = 0.1
FREE_SECONDS = 20.0
# These are only reached with payloads.
_RARE_POINTS = frozenset({"worker.before-store", "worker.after-store"})
_KILLED = frozenset({-signal.SIGKILL, CRASHED})

Probe = Callable[[], Awaitable[bool]]


def draw(seed: int, count: int, only: Sequence[str] = (), counts: Mapping[str, int] = FAULT_COUNTS) -> list[str]:
    """The kinds of this many faults, in order: each round contains every kind."""
    dice = random.Random(f"faults {seed}")
    kinds: list[str] = []
    while len(kinds) < count:
        shuffled = [kind for kind, times in counts.items() for _ in range(times) if not only or kind in only]
        dice.shuffle(shuffled)
        kinds += shuffled
    return kinds[:count]


def moments(seed: int, count: int, seconds: float) -> list[float]:
    """The times of the faults: spread over the duration, with jitter."""
    dice = random.Random(f"moments {seed}")
    step = seconds / max(1, count)
    return [step * (number + dice.uniform(0.1, 0.9)) for number in range(count)]


@dataclass
class Fault:
    kind: str
    victim: str = ""
    started: float = 0.0  # on the monotonic clock
    counted_from: float | None = None
    recovered: float | None = None

    @property
    def recovery_seconds(self) -> float | None:
        if self.recovered is None or self.counted_from is None:
            return None
        return self.recovered - self.counted_from


class NoFreeProcessError(Exception):
    """Every process that could be a victim has a fault already."""


class Nemesis:
    def __init__(self, testbed: Testbed, load: Load, effects: Path, seed: int, settings: dict[str, Any]) -> None:
        self.testbed, self.fleet, self.load = testbed, testbed.fleet, load
        self.faults: list[Fault] = []
        self.skipped = 0
        self.unexpected_ends: list[str] = []
        self.broken: list[str] = []  # faults that could not be injected correctly
        self.last = ""
        self._effects = effects
        self._random = random.Random(f"victims {seed}")
        self._orphan_seconds = float(settings["orphan_threshold_sec"])
        self._lease_seconds = float(settings["task_lease_sec"])
        self._busy: set[str] = set()
        self._server = asyncio.Lock()
        self._broker = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._poisons = Counter[str]()
        self._kinds: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill orchestrator": lambda fault: self._kill(fault, "orchestrator"),
            "kill worker": lambda fault: self._kill(fault, "worker"),
            "kill child": self._kill_child,
            "crash point": self._crash_point,
            "freeze orchestrator": lambda fault: self._freeze(fault, "orchestrator", self._orphan_seconds),
            "freeze worker": lambda fault: self._freeze(fault, "worker", self._lease_seconds),
            "rolling restart": self._rolling_restart,
            "kill postgres": self._kill_postgres,
            "restart postgres": self._restart_postgres,
            "end sessions": self._end_sessions,
            "cut": self._cut,
            "reset at commit": self._reset_at_commit,
            "half-open": self._half_open,
            "delay": self._delay,
            "rows locked": self._lock_rows,
            "no connections": self._use_up_connections,
            "notifications dropped": lambda fault: self._notifications(fault, "drop"),
            "notifications doubled": lambda fault: self._notifications(fault, "double"),
            "disk full": self._fill_disk,
            "clock jumps": self._skew,
            "poison": self._poison,
            "broker killed": lambda fault: self._kill_broker(fault, self._random.uniform(0, 3)),
            "broker unavailable": lambda fault: self._kill_broker(fault, BROKER_OUTAGE_SECONDS),
        }
        assert self._kinds.keys() == FAULT_COUNTS.keys() | BROKER_FAULT_COUNTS.keys()

    # The run

    async def run(self, kinds: Sequence[str], at: Sequence[float]) -> None:
        """Inject the faults, and return when the last one is over."""
        started = time.monotonic()
        supervising = asyncio.create_task(self._supervise())
        try:
            for kind, moment in zip(kinds, at, strict=True):
                await asyncio.sleep(max(0.0, started + moment - time.monotonic()))
                self._begin(kind)
            await asyncio.gather(*self._tasks)
        finally:
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)

    def _begin(self, kind: str) -> None:
        task = asyncio.create_task(self._inject(Fault(kind)), name=kind)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _inject(self, fault: Fault) -> None:
        try:
            await self._kinds[fault.kind](fault)
        except NoFreeProcessError:
            self.skipped += 1
        except Exception as error:
            self.broken.append(f"{fault.kind} {fault.victim}: {type(error).__name__}: {error}")

    def _record_begin(self, fault: Fault, victim: str = "") -> None:
        """Record that the fault begins now."""
        fault.victim, fault.started = victim, time.monotonic()
        fault.counted_from = fault.started
        self.faults.append(fault)
        self.last = f"{fault.kind} {victim}".strip()

    def _end_fault(self, fault: Fault) -> None:
        fault.counted_from = time.monotonic()

    async def stop(self) -> None:
        """End all faults, let all processes run, and wait for the recoveries that are still being measured."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._busy.clear()
        self.testbed.proxy.clear()
        if not self.testbed.cluster.is_running():
            self.testbed.cluster.start()
        await self._retry(lambda: self.fleet.rows("DELETE FROM chaos.disk_full"))
        for process in self.fleet.processes:
            process.thaw()
            self._restart_if_ended(process)
        await asyncio.gather(*self._watches)

    async def restart_ended(self) -> None:
        """After the faults: restart processes that have ended, as a service manager would."""
        await self._supervise()

    async def _supervise(self) -> None:
        while True:
            for process in self.fleet.processes:
                if process.name not in self._busy:
                    self._restart_if_ended(process)
            await asyncio.sleep(0.3)

    def _restart_if_ended(self, process: Process) -> None:
        if process.is_running:
            return
        if process.exit_code not in _KILLED:
            self.unexpected_ends.append(f"{process.name} start {process.starts}: exit code {process.exit_code}")
        process.start()

    # Victims

    async def _take_victim(self, *roles: Role) -> Process:
        """A process without a fault; at least one process of each role stays without one."""
        deadline = time.monotonic() + FREE_SECONDS
        while time.monotonic() < deadline:
            for role in self._random.sample(roles, len(roles)):
                free = [p for p in self.fleet.of(role) if p.name not in self._busy and p.is_running]
                if len(free) > 1:
                    victim = self._random.choice(free)
                    self._busy.add(victim.name)
                    return victim
            await asyncio.sleep(0.1)
        raise NoFreeProcessError

    def _release(self, process: Process) -> None:
        self._busy.discard(process.name)

    async def _retry(self, query: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat the query until it succeeds: the server may be down."""
        while True:
            try:
                return await query()
            except psycopg.Error:
                await asyncio.sleep(0.1)

    # Recovery

    def _watch(self, fault: Fault, probe: Probe) -> None:
        async def watch() -> None:
            deadline = time.monotonic() + WATCH_SECONDS
            while time.monotonic() < deadline:
                with suppress(psycopg.Error):
                    if await probe():
                        fault.recovered = time.monotonic()
                        return
                await asyncio.sleep(PROBE_SECONDS)

        task = asyncio.create_task(watch(), name=f"recovery from {fault.kind}")
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _jobs_of(self, process: Process) -> list[tuple[UUID, int]]:
        rows = await self._retry(
            lambda: self.fleet.rows(
                """SELECT job_id, epoch FROM dagapp.dag_jobs j JOIN dagapp.orchestrators o USING (owner_id)
                    WHERE o.pid = %s AND j.status IN ('pending', 'running')""",
                process.pid,
            )
        )
        return [(row["job_id"], row["epoch"]) for row in rows]

    async def _tasks_of(self, process: Process) -> list[tuple[UUID, str, int]]:
        rows = await self._retry(
            lambda: self.fleet.rows(
                """SELECT job_id, node_id, attempt FROM dagapp.dag_tasks t JOIN dagapp.workers w USING (worker_id)
                    WHERE w.pid = %s AND t.status = 'running'""",
                process.pid,
            )
        )
        return [(row["job_id"], row["node_id"], row["attempt"]) for row in rows]

    def _taken_over(self, jobs: list[tuple[UUID, int]]) -> Probe:
        async def probe() -> bool:
            left = await scalar(
                self.fleet.dsn,
                """SELECT count(*) FROM unnest(%s::uuid[], %s::bigint[]) AS was (job_id, epoch)
                     JOIN dagapp.dag_jobs j USING (job_id)
                    WHERE j.epoch = was.epoch AND j.status IN ('pending', 'running')""",
                [job for job, _ in jobs],
                [epoch for _, epoch in jobs],
            )
            return int(left) == 0

        return probe

    def _run_again(self, tasks: list[tuple[UUID, str, int]]) -> Probe:
        async def probe() -> bool:
            jobs, nodes, attempts = zip(*tasks, strict=True)
            left = await scalar(
                self.fleet.dsn,
                """SELECT count(*) FROM unnest(%s::uuid[], %s::text[], %s::int[]) AS was (job_id, node_id, attempt)
                     JOIN dagapp.dag_jobs j USING (job_id)
                     JOIN dagapp.dag_node_states n USING (job_id, node_id)
                    WHERE j.status IN ('pending', 'running') AND n.status IN ('dispatched', 'running', 'ready')
                      AND NOT EXISTS (SELECT 1 FROM dagapp.dag_tasks t
                                       WHERE t.job_id = was.job_id AND t.node_id = was.node_id
                                         AND t.attempt > was.attempt AND t.started_at IS NOT NULL)""",
                list(jobs),
                list(nodes),
                list(attempts),
            )
            return int(left) == 0

        return probe

    async def _now(self) -> datetime:
        now: datetime = await self._retry(lambda: scalar(self.fleet.dsn, "SELECT clock_timestamp()"))
        return now

    def _has_written(self, since: datetime, process: Process | None = None) -> Probe:
        """Whether this process, or without one any process, has written since."""

        async def probe() -> bool:
            name = f"{process.name}.{process.starts}" if process else None
            query = """SELECT EXISTS (SELECT 1 FROM chaos.events WHERE at > %s AND (process = %s OR %s))
                           OR EXISTS (SELECT 1 FROM chaos.starts WHERE at > %s AND (process = %s OR %s))"""
            return bool(await scalar(self.fleet.dsn, query, *[since, name, name is None] * 2))

        return probe

    async def _watch_victim(self, fault: Fault, process: Process | None) -> None:
        since = await self._now()
        self._end_fault(fault)
        self._watch(fault, self._has_written(since, process))

    # Processes

    async def _kill(self, fault: Fault, role: Role) -> None:
        victim = await self._take_victim(role)
        try:
            has_recovered = await self._recovery_probe(victim)
            self._record_begin(fault, victim.name)
            victim.kill()
            self._watch(fault, has_recovered)
            await asyncio.sleep(self._random.uniform(0, 2))
            victim.start()
        finally:
            self._release(victim)

    async def _recovery_probe(self, victim: Process) -> Probe:
        if victim.role == "orchestrator":
            return self._taken_over(await self._jobs_of(victim))
        tasks = await self._tasks_of(victim)
        return self._run_again(tasks) if tasks else self._has_written(await self._now())

    async def _freeze(self, fault: Fault, role: Role, limit_seconds: float) -> None:
        """Stop a process with SIGSTOP for longer than its lease. It does not notice that time has passed."""
        victim = await self._take_victim(role)
        try:
            has_recovered = await self._recovery_probe(victim)
            self._record_begin(fault, victim.name)
            victim.freeze()
            self._watch(fault, has_recovered)
            await asyncio.sleep(limit_seconds + self._random.uniform(1.5, 4))
            victim.thaw()
        finally:
            victim.thaw()
            self._release(victim)

    async def _kill_child(self, fault: Fault) -> None:
        """Kill the child process of a running handler."""
        await self.load.submit(self.load.requests.plain())
        deadline = time.monotonic() + FREE_SECONDS
        while time.monotonic() < deadline:
            for effect, pid in _tail(self._effects).running():
                if _is_child(pid):
                    job, node = task_of(effect)
                    self._record_begin(fault, f"process {pid}")
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    self._watch(fault, self._run_again([(UUID(job), node, attempt_of(effect))]))
                    return
            await asyncio.sleep(0.03)
        raise NoFreeProcessError

    async def _crash_point(self, fault: Fault) -> None:
        """Let a process die at a crash point, one of the next times that it reaches it."""
        victim = await self._take_victim("orchestrator", "worker")
        try:
            points = [p for p in POINTS if p.startswith(victim.role) and p not in _RARE_POINTS]
            point = f"{self._random.choice(points)}:{self._random.randint(1, 20)}"
            victim.kill()
            victim.start(crash_point=point)
            deadline = time.monotonic() + FREE_SECONDS
            while victim.is_running and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            if victim.is_running:
                raise NoFreeProcessError
            self._record_begin(fault, f"{victim.name} at {point}")
            self._watch(fault, await self._recovery_probe(victim))
            victim.start()
        finally:
            self._release(victim)

    async def _rolling_restart(self, fault: Fault) -> None:
        """Stop all processes with SIGTERM, one after the other, and start each again. The recovery time is that of the
        slowest hand-over."""
        self._record_begin(fault, "all processes")
        slowest = 0.0
        for process in list(self.fleet.processes):
            if process.name in self._busy or not process.is_running or not await self._has_begun(process):
                continue
            self._busy.add(process.name)
            try:
                has_recovered, started = await self._recovery_probe(process), time.monotonic()
                process.signal(signal.SIGTERM)
                slowest = max(slowest, await self._hand_over_seconds(has_recovered, started))
                code = await process.ended(30)
                if code:
                    self.unexpected_ends.append(f"{process.name} was asked to stop: exit code {code}")
                process.start()
            finally:
                self._release(process)
        fault.counted_from, fault.recovered = 0.0, slowest

    async def _has_begun(self, process: Process) -> bool:
        """Whether the database has a row of this start. Before that, the process holds nothing, and SIGTERM may kill
        it, because it has not installed a handler yet."""
        with suppress(psycopg.Error):
            return await self.fleet.id_of(process) is not None
        return False

    async def _hand_over_seconds(self, has_recovered: Probe, started: float) -> float:
        deadline = started + WATCH_SECONDS
        while time.monotonic() < deadline:
            with suppress(psycopg.Error):
                if await has_recovered():
                    break
            await asyncio.sleep(0.02)
        return time.monotonic() - started

    async def _skew(self, fault: Fault) -> None:
        victim = await self._take_victim("orchestrator", "worker")
        usual = victim.command
        try:
            self._record_begin(fault, victim.name)
            victim.kill()
            victim.command = [sys.executable, "-m", "chaos.skewed", victim.role]
            victim.start()
            await self._watch_victim(fault, victim)
            await asyncio.sleep(self._random.uniform(10, 20))
            victim.kill()
        finally:
            victim.command = usual
            self._release(victim)

    async def _poison(self, fault: Fault) -> None:
        """Submit a poison task, each kind in turn."""
        name = min(POISONS, key=lambda kind: self._poisons[kind])
        self._poisons[name] += 1
        job_id = await self.load.submit(self.load.poison(name))
        self._record_begin(fault, name)

        async def has_ended() -> bool:
            return bool(
                await scalar(self.fleet.dsn, "SELECT status = 'failed' FROM dagapp.dag_jobs WHERE job_id = %s", job_id)
            )

        self._watch(fault, has_ended)

    # The server

    async def _kill_postgres(self, fault: Fault) -> None:
        async with self._server:
            self._record_begin(fault)
            self.testbed.kill_server()
            await asyncio.sleep(self._random.uniform(0, 3))
            self.testbed.cluster.start()
            await self._watch_victim(fault, None)

    async def _restart_postgres(self, fault: Fault) -> None:
        async with self._server:
            self._record_begin(fault)
            self.testbed.cluster.stop("fast")
            await asyncio.sleep(self._random.uniform(0, 3))
            self.testbed.cluster.start()
            await self._watch_victim(fault, None)

    async def _end_sessions(self, fault: Fault) -> None:
        self._record_begin(fault)
        await self._retry(
            lambda: self.fleet.rows("""
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()""")
        )
        await self._watch_victim(fault, None)

    async def _lock_rows(self, fault: Fault) -> None:
        """Lock the rows of some jobs for a while, as an administrator's session might."""
        with suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(self.fleet.dsn) as connection:
                await connection.execute(
                    """SELECT 1 FROM dagapp.dag_jobs WHERE status = 'running' ORDER BY random() LIMIT 10
                          FOR UPDATE SKIP LOCKED"""
                )
                self._record_begin(fault, "10 jobs")
                await asyncio.sleep(self._random.uniform(2, 6))
        if fault.victim:
            await self._watch_victim(fault, None)

    async def _use_up_connections(self, fault: Fault) -> None:
        """Use up all connections of the server: a process that has lost its connection cannot open another one."""
        async with self._server:
            taken: list[psycopg.AsyncConnection[Any]] = []
            try:
                with suppress(psycopg.OperationalError):
                    while len(taken) < 300:
                        taken.append(await psycopg.AsyncConnection.connect(self.fleet.dsn))
                self._record_begin(fault, f"{len(taken)} taken")
                for link in self.testbed.proxy.links.values():
                    link.cut()
                await asyncio.sleep(self._random.uniform(1, 3))
            finally:
                for connection in taken:
                    await connection.close()
        await self._watch_victim(fault, None)

    async def _fill_disk(self, fault: Fault) -> None:
        """Simulate a full disk: inserts fail with SQLSTATE 53100."""
        self._record_begin(fault)
        await self._retry(lambda: self.fleet.rows("INSERT INTO chaos.disk_full VALUES (clock_timestamp())"))
        await asyncio.sleep(self._random.uniform(1, 3))
        await self._retry(lambda: self.fleet.rows("DELETE FROM chaos.disk_full"))
        await self._watch_victim(fault, None)

    async def _kill_broker(self, fault: Fault, seconds: float) -> None:
        """Kill the broker: its messages are lost. Tasks still run, because workers poll."""
        broker = self.testbed.broker
        if broker is None or self._broker.locked():
            raise NoFreeProcessError
        async with self._broker:
            self._record_begin(fault)
            broker.kill()
            try:
                since = await self._now()
                self._watch(fault, self._has_written(since))
                await asyncio.sleep(seconds)
            finally:
                await asyncio.to_thread(broker.start)

    # Links

    async def _take_link(self, fault: Fault) -> tuple[Link, Process | None]:
        """The link of a role, or sometimes that of the submitter."""
        if self._random.random() < 0.15:
            self._record_begin(fault, SUBMITTER)
            return self.testbed.proxy.links[SUBMITTER], None
        victim = await self._take_victim("orchestrator", "worker")
        self._record_begin(fault, victim.name)
        return self.fleet.link(victim), victim

    async def _cut(self, fault: Fault) -> None:
        link, victim = await self._take_link(fault)
        try:
            for _ in range(self._random.randint(1, 4)):
                self._random.choice([link.cut, link.reset])()
                await asyncio.sleep(self._random.uniform(0, 0.5))
            await self._watch_victim(fault, victim)
        finally:
            if victim:
                self._release(victim)

    async def _reset_at_commit(self, fault: Fault) -> None:
        """The server commits, but the client gets no response."""
        link, victim = await self._take_link(fault)
        try:
            # A worker's exchange is a single statement; those of orchestrators are mostly reads.
            link.conditions.counts_single_statements = victim is not None and victim.role == "worker"
            link.conditions.resets_at_commit = self._random.randint(1, 5)
            deadline = time.monotonic() + 5
            while link.conditions.resets_at_commit and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            await self._watch_victim(fault, victim)
        finally:
            link.clear()
            if victim:
                self._release(victim)

    async def _half_open(self, fault: Fault) -> None:
        """Hold all traffic in one direction or both. At the end it arrives, or both sides see that the connection is
        closed."""
        link, victim = await self._take_link(fault)
        try:
            link.conditions.holds_up, link.conditions.holds_down = self._random.choice(
                [(True, True), (True, False), (False, True)]
            )
            await asyncio.sleep(self._random.uniform(2, 9))
            if self._random.random() < 0.5:
                link.reset()
            link.clear()
            await self._watch_victim(fault, victim)
        finally:
            link.clear()
            if victim:
                self._release(victim)

    async def _delay(self, fault: Fault) -> None:
        link, victim = await self._take_link(fault)
        try:
            link.conditions.delay_seconds = (0.6, 0.4)
            await asyncio.sleep(self._random.uniform(4, 10))
            link.clear()
            await self._watch_victim(fault, victim)
        finally:
            link.clear()
            if victim:
                self._release(victim)

    async def _notifications(self, fault: Fault, treatment: Any) -> None:
        self._record_begin(fault, "all processes")
        links = list(self.testbed.proxy.links.values())
        for link in links:
            link.conditions.notifications = treatment
        await asyncio.sleep(self._random.uniform(3, 6))
        for link in links:
            link.conditions.notifications = "pass"
        await self._watch_victim(fault, None)


def _tail(file: Path, size: int = 200_000) -> Effects:
    """The last lines that handlers have recorded."""
    if not file.exists():
        return Effects()
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - size))
        lines = opened.read().decode().splitlines()
    return Effects.of(lines[1:] if len(lines) > 1 else lines)


def _is_child(pid: int) -> bool:
    """Whether this is a process that runs a handler."""
    try:
        return b"dagmaster.worker.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
