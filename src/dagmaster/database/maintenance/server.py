"""Facts about a database server, for the doctor, which judges them.

Synchronous. Each function opens a connection of its own, so that one that hangs or fails does not affect the others.
Nothing is changed.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from dagmaster.database.connect import conninfo, translate_errors
from dagmaster.database.queries import query

T = TypeVar("T")
CONNECT_SECONDS = 2
STATEMENT_SECONDS = 2.0
NOTIFY_SECONDS = 1.5
CLOCK_SAMPLES = 5


class Clock(NamedTuple):
    """How far the server's clock is ahead of ours, and by how much that may be wrong."""

    offset_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    version_number: int
    is_standby: bool
    is_read_only: bool
    backend_pid: int


@dataclass(frozen=True, slots=True)
class ExtensionFacts:
    available: str
    installed: str | None


@dataclass(frozen=True, slots=True)
class OldestTransaction:
    seconds: float
    who: str
    state: str | None


@dataclass(frozen=True, slots=True)
class RoleFacts:
    name: str
    is_superuser: bool
    has_schema: bool
    may_create: bool


@dataclass(frozen=True, slots=True)
class MissingRight:
    kind: str
    name: str
    lacking: str


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    role: str
    host: str
    pid: int
    version: str
    silent_seconds: float
    queues: list[str]
    handlers: list[str]


@dataclass(frozen=True, slots=True)
class QueuedTasks:
    queue: str
    handler: str
    count: int


@dataclass(frozen=True, slots=True)
class DeadRows:
    table: str
    dead: int
    live: int
    vacuumed_seconds_ago: float | None


def rows(dsn: str, query_name: str, kind: type[T], **values: Any) -> list[T]:
    """The rows of a query, each as an object of its kind."""
    with _connected(dsn) as connection:
        return _rows(connection, query_name, kind, values)


def row(dsn: str, query_name: str, kind: type[T], **values: Any) -> T | None:
    """The first row of a query; None if there is none."""
    return next(iter(rows(dsn, query_name, kind, **values)), None)


def value(dsn: str, query_name: str) -> Any:
    """The only column of the first row of a query; None if there is none."""
    with _connected(dsn) as connection:
        return next((columns[0] for columns in connection.execute(query(query_name))), None)


def server(dsn: str) -> tuple[ServerFacts, float, bool]:
    """Facts about the server, how long it took to answer, and whether a pooler is in between: then the process that
    answers is not the one that was announced when the connection was made."""
    begun = time.monotonic()
    with _connected(dsn) as connection:
        (facts,) = _rows(connection, "doctor_server", ServerFacts, {})
        announced_pid = connection.info.backend_pid
    return facts, time.monotonic() - begun, facts.backend_pid != announced_pid


def settings(dsn: str) -> dict[str, str]:
    """Those of the server itself: our own sessions set some of them differently."""
    with translate_errors(), psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
        return dict(connection.execute(query("doctor_settings"), {}).fetchall())


def notify_seconds(dsn: str) -> float | None:
    """How long a notification takes from one connection to another; None if it does not arrive."""
    channel = f"dagmaster_doctor_{uuid4().hex}"
    with _connected(dsn) as listener, _connected(dsn) as notifier:
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        begun = time.monotonic()
        notifier.execute("SELECT pg_notify(%s, '')", [channel])
        for _ in listener.notifies(timeout=NOTIFY_SECONDS, stop_after=1):
            return time.monotonic() - begun
    return None


def clock(dsn: str, now: Callable[[], float] = time.time) -> Clock:
    """The server read its clock at some time between question and answer: the quickest answer is the most precise."""
    with _connected(dsn) as connection:
        return min(
            (_sample(connection, now) for _ in range(CLOCK_SAMPLES)), key=lambda clock: clock.uncertainty_seconds
        )


def _sample(connection: psycopg.Connection[Any], now: Callable[[], float]) -> Clock:
    asked = now()
    ((server_now,),) = connection.execute(query("doctor_clock"))
    answered = now()
    return Clock(server_now - (asked + answered) / 2, (answered - asked) / 2)


def _rows(connection: psycopg.Connection[Any], query_name: str, kind: type[T], values: Mapping[str, Any]) -> list[T]:
    return connection.cursor(row_factory=class_row(kind)).execute(query(query_name), values).fetchall()


@contextmanager
def _connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with translate_errors():
        address = conninfo(dsn, "doctor", STATEMENT_SECONDS, STATEMENT_SECONDS, STATEMENT_SECONDS)
        with psycopg.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
            yield connection
