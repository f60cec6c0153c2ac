"""An isolation tester in the spirit of PostgreSQL's own: every interleaving of the statements of two sessions.

A session is a coroutine that uses its connection as it always would. The connection stops before each statement that
writes and before each commit, until the scheduler lets it continue. So the real calls run with their real statements,
in every possible order. A statement outside of a transaction is executed in one, so that another session can run
between the statement and its commit.

    choose a session ──▶ it runs one step ──▶ done, or blocked (waits for a lock that the other one holds)
                     ◀── a session that is no longer blocked has finished its step

`explore` runs all interleavings, depth first: it runs the sessions repeatedly, each time from the prepared state, and
makes another choice at the last point where another one is possible. A session that is blocked cannot be chosen, so
each interleaving is one that can happen, and none is run twice.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg
from psycopg.rows import namedtuple_row

from dagmaster.database import pipeline
from dagmaster.database.connect import Connection, connect
from dagmaster.database.queries import all_queries

PATIENCE_SECONDS = 10.0
_go = pipeline.execute
_NAMES = {" ".join(text.split()): name for name, text in all_queries().items()}
_WRITES = (
    "INSERT INTO",
    "UPDATE dagapp",
    "DELETE FROM",
    "FOR NO KEY UPDATE",
    "FOR UPDATE",
    "ensure_event_partitions",
    "forget_definitions",
    "drop_event_partition",
    "pg_try_advisory_xact_lock",
)
# These statements write tables that the engine does not use; they have tests of their own. The engine only inserts
# callbacks, with the end of a job, and messages of the outbox, with tasks; relays lock those rows and no others, except
# that `fail_tasks` first locks queued tasks, in the order of their keys.
_OTHER_PREFIXES = (
    "asset_",
    "cache_",
    "callbacks_",
    "catalog_",
    "copies_",
    "documents_",
    "external_",
    "layer_",
    "outbox_",
    "retention_callbacks",
    "storage_",
    "upload_",
)
_KEYS = frozenset({"create_key", "rotate_key", "revoke_key", "record_key_uses", "add_first_signing_key"})
_SESSIONS = frozenset({"start_session", "end_session", "forget_sessions"})
WRITING = frozenset(
    name
    for name, text in all_queries().items()
    if any(word in text for word in _WRITES) and not name.startswith(_OTHER_PREFIXES) and name not in _KEYS | _SESSIONS
)
_BLOCKED = """
    SELECT a.wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(a.pid)) > 0
      FROM pg_stat_activity a
     WHERE a.pid = %s
    """


def name_of(statement: Any) -> str:
    """The name of this statement in `sql/`, or its first characters."""
    text = " ".join(str(statement).split())
    return _NAMES.get(text, text[:40])


def _is_read(statement: Any) -> bool:
    """Whether a statement only reads and is therefore no step. What an orchestrator reads under its fence is a step."""
    name = name_of(statement)
    return name in all_queries() and name not in WRITING and not name.startswith("take_")


IsStep = Callable[[str, str], bool]
"""Whether a statement is a separate step (previous statement, statement); otherwise it belongs to the step before."""


class Gate:
    """Where a session waits for its turn."""

    def __init__(self) -> None:
        self.waits_for: str | None = None  # the step that it will execute next
        self._arrived = asyncio.Event()
        self._go = asyncio.Event()
        self.deadlocks: list[BaseException] = []  # also those that the session has handled

    async def step(self, name: str) -> None:
        self.waits_for = name
        self._arrived.set()
        await self._go.wait()
        self._go.clear()
        self.waits_for = None

    def open(self) -> None:
        self._arrived.clear()
        self._go.set()

    async def arrived(self) -> None:
        await self._arrived.wait()


class GatedConnection:
    """A connection that waits for its gate before each step. It replaces the connection of a PostgresLedger."""

    def __init__(self, connection: Connection, gate: Gate, is_step: IsStep | None = None) -> None:
        self._connection = connection
        self._gate = gate
        self._is_step = is_step
        self._is_open = False
        self._previous = ""
        self.closed = False

    async def execute(self, statement: Any, values: Any = None, **options: Any) -> Any:
        return await self.run(lambda: self._connection.execute(statement, values, **options), statement)

    def cursor(self, **options: Any) -> "GatedCursor":
        return GatedCursor(self, self._connection.cursor(**options))

    async def run(self, execute: Callable[[], Awaitable[Any]], statement: Any) -> Any:
        try:
            return await self._run(execute, statement)
        except psycopg.errors.DeadlockDetected as error:
            self._gate.deadlocks.append(error)
            raise

    async def _run(self, execute: Callable[[], Awaitable[Any]], statement: Any) -> Any:
        command = str(statement).strip().upper()
        if command == "BEGIN":
            self._is_open = True
            return await execute()
        if command == "COMMIT":
            await self._gate.step("commit")
            self._is_open = False
            return await execute()
        if _is_read(statement):
            return await execute()
        await self._enter(name_of(statement))
        if self._is_open:
            return await execute()
        await self._connection.execute("BEGIN")
        cursor = await execute()
        await self._gate.step("commit")
        await self._connection.execute("COMMIT")
        return cursor

    async def _enter(self, name: str) -> None:
        if self._is_step is None or self._is_step(self._previous, name):
            await self._gate.step(name)
        self._previous = name

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self._connection.execute("BEGIN")
        self._is_open = True
        try:
            yield
        except BaseException:
            self._is_open = False
            await self._connection.execute("ROLLBACK")
            raise
        await self._gate.step("commit")
        self._is_open = False
        await self._connection.execute("COMMIT")

    async def close(self) -> None:
        """Called after a failure. The real connection stays open for the next interleaving."""
        self.closed = True


async def execute_step_by_step(connection: Any, steps: Sequence[pipeline.PipelineStep]) -> dict[str, pipeline.Rows]:
    """Execute the statements of one round trip one after the other, so that other sessions can run in between."""
    if not isinstance(connection, GatedConnection):
        return await _go(connection, steps)
    responses: dict[str, pipeline.Rows] = {}
    for step in steps:
        match step:
            case pipeline.Call(name, values):
                cursor = connection.cursor(row_factory=namedtuple_row)
                await cursor.execute(all_queries()[name], values)
                responses[name] = await cursor.fetchall() if cursor.description else []
            case pipeline.TransactionCommand(text):
                await connection.execute(text)
    return responses


class GatedCursor:
    def __init__(self, connection: GatedConnection, cursor: Any) -> None:
        self._gated = connection
        self._cursor = cursor

    async def execute(self, statement: Any, values: Any = None, **options: Any) -> Self:
        await self._gated.run(lambda: self._cursor.execute(statement, values, **options), statement)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __aiter__(self) -> Any:
        return self._cursor.__aiter__()


Session = Callable[[GatedConnection], Awaitable[Any]]


@dataclass(slots=True)
class Run:
    """One interleaving: the steps in their order, and how each session ended."""

    steps: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    deadlocks: list[BaseException] = field(default_factory=list)
    blocked: int = 0

    def __str__(self) -> str:
        return " · ".join(self.steps)


@dataclass(slots=True)
class _Actor:
    name: str
    gate: Gate
    task: asyncio.Task[Any]
    pid: int
    is_blocked: bool = False

    @property
    def is_ready(self) -> bool:
        return not self.task.done() and not self.is_blocked


class Interleaver:
    """Two connections that run the sessions, and one that observes their locks."""

    def __init__(self, connections: Sequence[Connection], watcher: Connection) -> None:
        self._connections = connections
        self._watcher = watcher

    @classmethod
    @asynccontextmanager
    async def on(cls, dsn: str) -> AsyncIterator[Self]:
        connections = [
            await connect(_with_short_timeouts(dsn), role=f"session-{n}", lock_timeout_seconds=0) for n in (1, 2)
        ]
        watcher = await connect(dsn, role="watcher")
        try:
            yield cls(connections, watcher)
        finally:
            for connection in (*connections, watcher):
                await connection.close()

    async def explore(
        self,
        sessions: Sequence[Session],
        reset: Callable[[], Awaitable[Any]],
        check: Callable[[Run], Awaitable[Any]],
        is_step: IsStep | None = None,
    ) -> int:
        """Run every interleaving of these sessions; returns their number."""
        choices: list[tuple[int, int]] = []  # the index of each choice, and the number of possible ones
        count = 0
        while True:
            await reset()
            run = await self._play(sessions, choices, is_step)
            count += 1
            await check(run)
            while choices and choices[-1][0] + 1 >= choices[-1][1]:
                choices.pop()
            if not choices:
                return count
            taken, of = choices[-1]
            choices[-1] = (taken + 1, of)

    async def _play(self, sessions: Sequence[Session], choices: list[tuple[int, int]], is_step: IsStep | None) -> Run:
        """Run one interleaving: as `choices` says, then always the first choice, which is added to `choices`."""
        run, depth = Run(), 0
        actors = [self._start(n, session, is_step) for n, session in enumerate(sessions)]
        for actor in actors:
            await self._settle(actor)
        while not all(actor.task.done() for actor in actors):
            able = [actor for actor in actors if actor.is_ready]
            if not able:
                await self._await_deadlock(actors)
                continue
            if depth == len(choices):
                choices.append((0, len(able)))
            actor = able[choices[depth][0]]
            depth += 1
            run.steps.append(f"{actor.name}:{actor.gate.waits_for}")
            actor.gate.open()
            await self._settle(actor)
            if actor.is_blocked:
                run.blocked += 1
                run.steps[-1] += " (waits)"
            for other in actors:
                if other.is_blocked and other is not actor:
                    await self._settle(other)
        for actor in actors:
            run.deadlocks += actor.gate.deadlocks
            error = actor.task.exception()
            if error is not None:
                run.errors.append(error)
                await self._connections[actors.index(actor)].rollback()
            run.results.append(None if error else actor.task.result())
        return run

    def _start(self, number: int, session: Session, is_step: IsStep | None) -> _Actor:
        connection, gate = self._connections[number], Gate()
        task = asyncio.ensure_future(session(GatedConnection(connection, gate, is_step)))
        return _Actor("AB"[number], gate, task, connection.info.backend_pid)

    async def _settle(self, actor: _Actor) -> None:
        """Wait until a session has reached its next step, has ended, or is blocked by the other one."""
        arriving = asyncio.ensure_future(actor.gate.arrived())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    done, _ = await asyncio.wait(
                        (arriving, actor.task), timeout=0.002, return_when=asyncio.FIRST_COMPLETED
                    )
                    if done:
                        actor.is_blocked = False
                        return
                    row = await (await self._watcher.execute(_BLOCKED, [actor.pid], prepare=True)).fetchone()
                    if row and row[0] and not arriving.done() and not actor.task.done():
                        actor.is_blocked = True
                        return
        finally:
            arriving.cancel()

    async def _await_deadlock(self, actors: Sequence[_Actor]) -> None:
        """Both sessions wait for each other: wait until PostgreSQL ends one of them, which `check` will report."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait([actor.task for actor in actors], return_when=asyncio.FIRST_COMPLETED)
        for actor in actors:
            await self._settle(actor)


def _with_short_timeouts(dsn: str) -> str:
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    options = f"{given.pop('options', '')} -c deadlock_timeout=50ms".strip()
    return psycopg.conninfo.make_conninfo(**{**given, "options": options})
