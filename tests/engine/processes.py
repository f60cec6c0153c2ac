"""Orchestrators and workers as processes of their own, to be killed, stopped and started at will.

A `Fleet` starts `python -m dagmaster …` against a test's database, each with a log file of its own; `fork_server.py`
saves the time of its imports. Whatever happens to the test, no process survives: each process asks the kernel to be
killed with its parent, and at the end all processes with the fleet's mark in their environment are searched for.
Leaving the block normally verifies the history.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.history import verify
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.notify.postgres import channel_of
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.workflows.model import Workflow
from tests.engine import fork_server
from tests.engine.fork_server import ForkedProcess, die_with
from tests.engine.harness import submit, workflow

ROOT = Path(__file__).parents[2]
OUR_PATH = f":{ROOT}:{ROOT / 'src'}"
MARK = "DAGMASTER_TEST_FLEET"
CRASHED = 137
END_STATES = ("completed", "partial_success", "failed", "cancelled")
FAST: dict[str, Any] = {
    "orchestrator_poll_interval": 0.2,
    "heartbeat_interval_sec": 0.2,
    "orphan_threshold_sec": 1.2,
    "orphan_scan_interval_sec": 0.2,
    "task_lease_sec": 1.5,
    "lease_renew_sec": 0.4,
    "worker_poll_interval": 0.2,
    "shutdown_grace_sec": 2.0,
    "worker_slots": 20,
    "log_level": "info",
}

Role = Literal["orchestrator", "worker"]
_TABLES = {"orchestrator": ("orchestrators", "owner_id"), "worker": ("workers", "worker_id")}


@dataclass
class Process:
    """One role that can be killed and started again; `pid` is that of the latest start.

    Its sessions carry its name and the number of the start, so that the database shows which process wrote what.
    """

    role: str
    name: str
    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    starts: int = 0
    _process: subprocess.Popen[bytes] | ForkedProcess | None = field(default=None, repr=False)

    def start(self, **settings: Any) -> None:
        """Start with these settings in addition to the usual ones, only this time."""
        self.starts += 1
        address = self.environment["DATABASE_URL"]
        named = f"{address}{'&' if '?' in address else '?'}application_name={self.name}.{self.starts}"
        with self.log.open("ab") as log:
            log.write(f"--- start {self.starts} {settings or ''}\n".encode())
            log.flush()
            environment = {**self.environment, "DATABASE_URL": named, **_as_environment(settings)}
            self._process = self._start(environment, log.fileno())

    def _start(self, environment: dict[str, str], log: int) -> "subprocess.Popen[bytes] | ForkedProcess":
        if self.command[:2] == [sys.executable, "-m"] and environment["PYTHONPATH"].endswith(OUR_PATH):
            return fork_server.start(self.command[2:], environment, ROOT, log)
        return subprocess.Popen(
            self.command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  only a system call, and no import, in the child
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, which: signal.Signals) -> None:
        if self.is_running and self._process:
            self._process.send_signal(which)

    def kill(self) -> None:
        """kill -9, and wait until it is dead."""
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait(10)

    def freeze(self) -> None:
        """SIGSTOP, and wait until every thread has stopped."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while _state_of(self.pid) not in "Tt" and time.monotonic() < deadline:
            time.sleep(0.001)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, seconds: float = 60) -> int:
        """The exit code, once it has ended by itself."""
        async with asyncio.timeout(seconds):
            while (code := self.exit_code) is None:
                await asyncio.sleep(0.01)
        return code


class Fleet:
    def __init__(self, dsn: str, folder: Path, settings: dict[str, Any]) -> None:
        self.dsn = dsn
        self.folder = folder
        self.mark = uuid4().hex
        self.processes: list[Process] = []
        self.executions = folder / "executions"
        self._settings = {**FAST, **settings}
        self._publish_handlers()

    def _publish_handlers(self) -> None:
        """Write files that make a folder look like an installed package, so that its entry points are found."""
        info = self.folder / "path" / "dagmaster_test_handlers-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dagmaster-test-handlers\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[dagmaster.handlers]\ntests = tests.engine.roles\n")

    # Processes

    def process(self, role: str, *command: str) -> Process:
        """A process to start: a role, or another command of this environment."""
        number = sum(process.role == role for process in self.processes) + 1
        name = f"{role}-{number}"
        arguments = [sys.executable, *(command or ("-m", "dagmaster", role))]
        process = Process(role, name, arguments, self._environment(), self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        ours = {
            "DATABASE_URL": self.dsn,
            "API_ENABLED": "false",
            MARK: self.mark,
            "PYTHONPATH": f"{self.folder / 'path'}{OUR_PATH}",
        }
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**inherited, **ours, **_as_environment(self._settings)}

    async def start(self, role: Role, count: int = 1, **settings: Any) -> list[Process]:
        """Start this number of processes of a role, and wait until each has sent a heartbeat."""
        processes = [self.process(role) for _ in range(count)]
        for process in processes:
            process.start(**settings)
        await self.ready(processes)
        return processes

    async def start_one(self, role: Role, **settings: Any) -> Process:
        return (await self.start(role, **settings))[0]

    async def ready(self, processes: Iterable[Process], seconds: float = 90) -> None:
        for process in processes:
            await self.until(
                lambda process=process: self.id_of(process), seconds, f"{process.name} to send a heartbeat"
            )

    async def id_of(self, process: Process) -> UUID | None:
        """Its owner_id or worker_id, once it has sent a heartbeat."""
        table, key = _TABLES[process.role]
        rows = await self.rows(f"SELECT {key} AS id FROM dagapp.{table} WHERE pid = %s", process.pid)
        return rows[0]["id"] if rows else None

    async def stats(self, process: Process) -> dict[str, Any]:
        """What it reported with its latest heartbeat."""
        table, _ = _TABLES[process.role]
        rows = await self.rows(f"SELECT stats FROM dagapp.{table} WHERE pid = %s", process.pid)
        return rows[0]["stats"] if rows else {}

    async def process_of(self, role: Role, identity: UUID | None) -> Process | None:
        """The running process with this id."""
        for process in self.processes:
            if process.role == role and process.is_running and await self.id_of(process) == identity:
                return process
        return None

    async def owner_of(self, job_id: UUID) -> Process | None:
        return await self.process_of("orchestrator", (await self.job(job_id))["owner_id"])

    def survivors(self) -> dict[int, str]:
        """Processes with the mark of this fleet that the fleet did not start itself: children and their children."""
        ours = {process.pid for process in self.processes if process.is_running}
        return {pid: name for pid, name in marked(self.mark).items() if pid not in ours}

    def end(self) -> dict[int, str]:
        """Kill everything; returns the processes that outlived their parent, of which there should be none."""
        for process in self.processes:
            process.thaw()
            process.kill()
        deadline = time.monotonic() + 3
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    def print_logs(self, lines: int = 60) -> None:
        for process in self.processes:
            if process.log.exists():
                print(f"\n===== {process.name} (exit code {process.exit_code})")
                print("\n".join(process.log.read_text(errors="replace").splitlines()[-lines:]))

    # Jobs

    async def submit(self, definition: str | Workflow, count: int = 1, **inputs: Any) -> list[UUID]:
        """Submit a workflow `count` times in one transaction."""
        if isinstance(definition, str):
            definition = workflow(definition)
        catalog = WorkflowLibrary({definition.workflow_id: definition})
        wanted = Submission(workflow_id=definition.workflow_id, input_params=inputs)
        ledger = PostgresLedger(self.dsn, "test")  # a new connection, which no fault of a test has broken
        try:
            jobs = await submit(ledger, catalog, [wanted] * count)
        finally:
            await ledger.close()
        await self.rows("SELECT pg_notify(%s, '')", channel_of(JOBS))
        return jobs

    async def submit_one(self, definition: str | Workflow, **inputs: Any) -> UUID:
        return (await self.submit(definition, **inputs))[0]

    async def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Query on a connection of its own, so that no fault of a test breaks the next query."""
        async with await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row, autocommit=True) as connection:
            cursor = await connection.execute(sql, values)
            return await cursor.fetchall() if cursor.description else []

    async def job(self, job_id: UUID) -> dict[str, Any]:
        return (await self.rows("SELECT * FROM dagapp.dag_jobs WHERE job_id = %s", job_id))[0]

    async def nodes(self, job_id: UUID) -> dict[str, dict[str, Any]]:
        rows = await self.rows("SELECT * FROM dagapp.dag_node_states WHERE job_id = %s", job_id)
        return {row["node_id"]: row for row in rows}

    async def tasks(self, job_id: UUID) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM dagapp.dag_tasks WHERE job_id = %s ORDER BY node_id, attempt", job_id)

    async def events(self, job_id: UUID, *types: str) -> list[dict[str, Any]]:
        rows = await self.rows("SELECT * FROM dagapp.dag_job_events WHERE job_id = %s ORDER BY sequence", job_id)
        return [row for row in rows if not types or row["event_type"] in types]

    async def running(self, job_id: UUID, count: int = 1) -> list[dict[str, Any]]:
        """The running tasks of a job, once there are at least `count` of them."""

        async def enough() -> list[dict[str, Any]]:
            tasks = [task for task in await self.tasks(job_id) if task["status"] == "running"]
            return tasks if len(tasks) >= count else []

        return await self.until(enough, 60, f"{count} running tasks")

    async def wait(self, jobs: UUID | Iterable[UUID], seconds: float = 90) -> list[str]:
        """The states in which the jobs have ended. Outages of the database are tolerated."""
        wanted = [jobs] if isinstance(jobs, UUID) else list(jobs)

        async def ended() -> list[str]:
            rows = await self.rows("SELECT job_id, status FROM dagapp.dag_jobs WHERE job_id = ANY (%s)", wanted)
            states = {row["job_id"]: row["status"] for row in rows}
            open_jobs = [job_id for job_id in wanted if states.get(job_id) not in END_STATES]
            return [] if open_jobs else [states[job_id] for job_id in wanted]

        return await self.until(ended, seconds, f"{len(wanted)} jobs to end")

    async def until(self, ask: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
        """Repeat a query until its result is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if response := await ask():
                    return response
            except psycopg.OperationalError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)
        raise TimeoutError(f"waited {seconds:g} s for {what}")

    # What must hold at the end

    def executed(self) -> list[tuple[str, str, int]]:
        """Each execution that a handler such as `note` has recorded: job, node, attempt."""
        lines = self.executions.read_text().splitlines() if self.executions.exists() else []
        return [(job, node, int(attempt)) for job, node, attempt, *_ in (line.split() for line in lines)]

    async def check_history(self) -> None:
        """Events and rows agree in every job, and no node has two accepted results."""
        report = await verify(self.dsn, max_losses=int(self._settings.get("max_losses", 5)))
        assert report.is_clean, "\n".join(map(str, report.findings[:30]))
        twice = await self.rows("""
            SELECT job_id, node_id, count(*) FROM dagapp.dag_task_results
             WHERE accepted AND status = 'succeeded' GROUP BY 1, 2 HAVING count(*) > 1""")
        assert not twice, twice
        completed_twice = await self.rows("""
            SELECT job_id, node_id, count(*) FROM dagapp.dag_job_events
             WHERE event_type IN ('node_completed', 'job_completed') GROUP BY 1, 2 HAVING count(*) > 1""")
        assert not completed_twice, completed_twice


@asynccontextmanager
async def fleet(
    dsn: str, folder: Path, *, orchestrators: int = 0, workers: int = 0, **settings: Any
) -> AsyncIterator[Fleet]:
    """A running fleet; on leaving its history is verified and everything is killed."""
    running = Fleet(dsn, folder, settings)
    left: dict[int, str] = {}
    try:
        for role, count in (("orchestrator", orchestrators), ("worker", workers)):
            for _ in range(count):
                running.process(role).start()
        await running.ready(running.processes)
        yield running
        await running.check_history()
    except BaseException:
        running.print_logs()
        raise
    finally:
        left = running.end()
    assert not left, f"these processes outlived their worker: {left}"


def marked(mark: str) -> dict[int, str]:
    """Processes with this mark in their environment, with children of children, but without dead ones."""
    needle = f"{MARK}={mark}".encode()
    processes: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (folder / "environ").read_bytes() and _state_of(int(folder.name)) not in "ZX":
                processes[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return processes


def is_alive(pid: int) -> bool:
    return _state_of(pid) not in "ZX"


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _as_environment(settings: dict[str, Any]) -> dict[str, str]:
    return {name.upper(): str(value) for name, value in settings.items() if value is not None}
