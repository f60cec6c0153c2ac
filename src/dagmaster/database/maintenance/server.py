"""Look at a database server from outside: facts for whoever judges them.

Synchronous, each look by itself on a connection of its own, so that one that hangs or fails says nothing about the others.
Nothing here changes anything.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import class_row, dict_row

from dagmaster.database.connect import conninfo, translate_errors
from dagmaster.database.queries import query
from dagmaster.records import SCHEMA

Connection = psycopg.Connection[Any]
T = TypeVar("T")

CONNECT_SECONDS = 2
STATEMENT_SECONDS = 2.0
NOTIFY_SECONDS = 1.5
CLOCK_SAMPLES = 5
SETTINGS = (
    "autovacuum", "default_transaction_isolation", "fsync", "full_page_writes", "idle_session_timeout", "jit",
    "max_connections", "reserved_connections", "shared_buffers", "superuser_reserved_connections", "synchronous_commit",
    "track_counts", "transaction_timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """`is_pooled`: what answers is not the process we were told we are connected to."""

    version: str
    version_number: int
    is_standby: bool
    is_read_only: bool
    is_pooled: bool
    answer_seconds: float


@dataclass(frozen=True, slots=True)
class Extension:
    available: str
    installed: str | None


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the server's clock is ahead of ours, give or take."""

    offset_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True)
class Lacking:
    """A right that our role does not have."""

    kind: str
    name: str
    lacking: str


@dataclass(frozen=True, slots=True)
class Role:
    """Who we are. `may_create` a schema, where the database has not ours yet."""

    name: str
    is_superuser: bool
    has_schema: bool
    may_create: bool


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """An orchestrator or worker as it has shown itself."""

    role: str
    host: str
    pid: int
    version: str
    silent_seconds: float
    queues: list[str]
    handlers: list[str]


@dataclass(frozen=True, slots=True)
class Queued:
    queue: str
    handler: str
    count: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    seconds: float
    who: str
    state: str | None


@dataclass(frozen=True, slots=True)
class DeadRows:
    table: str
    dead: int
    live: int
    vacuumed_seconds_ago: float | None


def server(dsn: str) -> Server:
    begun = time.monotonic()
    with _connected(dsn) as connection:
        row = _one(connection, "doctor_server")
        told_pid = connection.info.backend_pid
    backend_pid = row.pop("backend_pid")
    return Server(**row, is_pooled=told_pid != backend_pid, answer_seconds=time.monotonic() - begun)


def settings(dsn: str) -> dict[str, str]:
    """Those of the server itself: our own sessions ask for others."""
    with _connected(dsn, plainly=True) as connection:
        rows = connection.execute(query("doctor_settings"), {"names": list(SETTINGS)}).fetchall()
    return dict(rows)


def used_connections(dsn: str) -> int:
    with _connected(dsn) as connection:
        return int(_one(connection, "doctor_connections")["used"])


def extension(dsn: str, name: str) -> Extension | None:
    return _first(dsn, "doctor_extension", Extension, {"name": name})


def notify_seconds(dsn: str) -> float | None:
    """How long a notification takes from one connection to another; None where it does not arrive."""
    channel = f"dagmaster_doctor_{uuid4().hex}"
    with _connected(dsn) as listening, _connected(dsn) as ringing:
        listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        begun = time.monotonic()
        ringing.execute("SELECT pg_notify(%s, '')", [channel])
        for _ in listening.notifies(timeout=NOTIFY_SECONDS, stop_after=1):
            return time.monotonic() - begun
    return None


def clock(dsn: str, now: Callable[[], float] = time.time) -> Clock:
    """The answer was given some time between question and arrival: the quickest one says most."""
    with _connected(dsn) as connection:
        return min(
            (_sample(connection, now) for _ in range(CLOCK_SAMPLES)), key=lambda clock: clock.uncertainty_seconds
        )


def _sample(connection: Connection, now: Callable[[], float]) -> Clock:
    asked = now()
    there = _one(connection, "doctor_clock")["now"]
    answered = now()
    return Clock(there - (asked + answered) / 2, (answered - asked) / 2)


def role(dsn: str) -> Role:
    found = _first(dsn, "doctor_role", Role, {"schema": SCHEMA})
    assert found is not None
    return found


def fingerprint(dsn: str) -> str | None:
    """Of the schema that was deployed last; None where that was never finished."""
    with _connected(dsn) as connection:
        row = connection.execute(query("doctor_fingerprint"), {}).fetchone()
    return row[0] if row else None


def lacking_rights(dsn: str) -> list[Lacking]:
    return _all(dsn, "doctor_rights", Lacking, {"schema": SCHEMA})


def instances(dsn: str) -> list[InstanceStatus]:
    return _all(dsn, "doctor_instances", InstanceStatus)


def open_jobs(dsn: str) -> int:
    with _connected(dsn) as connection:
        return int(_one(connection, "doctor_open_jobs")["count"])


def queued(dsn: str) -> list[Queued]:
    return _all(dsn, "doctor_queued", Queued)


def oldest_transaction(dsn: str) -> OpenTransaction | None:
    return _first(dsn, "doctor_oldest_transaction", OpenTransaction)


def dead_rows(dsn: str) -> DeadRows | None:
    return _first(dsn, "doctor_dead_rows", DeadRows, {"schema": SCHEMA})


def _all(dsn: str, name: str, kind: type[T], values: Mapping[str, Any] | None = None) -> list[T]:
    with _connected(dsn) as connection:
        return connection.cursor(row_factory=class_row(kind)).execute(query(name), values or {}).fetchall()


def _first(dsn: str, name: str, kind: type[T], values: Mapping[str, Any] | None = None) -> T | None:
    return next(iter(_all(dsn, name, kind, values)), None)


def _one(connection: Connection, name: str) -> dict[str, Any]:
    row = connection.cursor(row_factory=dict_row).execute(query(name), {}).fetchone()
    assert row is not None
    return row


@contextmanager
def _connected(dsn: str, *, plainly: bool = False) -> Iterator[Connection]:
    """A connection as the engine has them, or one that asks the server for nothing."""
    with translate_errors():
        address = conninfo(dsn, "doctor", STATEMENT_SECONDS, STATEMENT_SECONDS, STATEMENT_SECONDS)
        address = dsn if plainly else address
        with psycopg.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
            yield connection
