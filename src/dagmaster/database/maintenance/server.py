"""Facts about a database server for the doctor. `doctor/database.py` judges them.

Synchronous. Each function opens a connection of its own, so that one that hangs or fails does not affect the others.
Nothing is changed. A row has the columns of its query in `doctor.sql` as attributes.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from dagmaster.database.connect import conninfo, translate_errors
from dagmaster.database.queries import query
from dagmaster.database.token_login import TokenBlockingConnection

CONNECT_SECONDS = 2
STATEMENT_SECONDS = 2.0
NOTIFY_SECONDS = 1.5
CLOCK_SAMPLES = 5


class Clock(NamedTuple):
    """How far the server's clock is ahead of ours, and the uncertainty of that."""

    offset_seconds: float
    uncertainty_seconds: float


class ServerResponse(NamedTuple):
    """Facts about the server, how long it took to respond, and whether a pooler is in between: then the backend
    process that responds is not the one announced when the connection was made."""

    facts: Any
    seconds: float
    is_pooled: bool


def rows(dsn: str, query_name: str, **values: Any) -> list[Any]:
    with _connected(dsn) as connection:
        return connection.execute(query(query_name), values).fetchall()


def row(dsn: str, query_name: str, **values: Any) -> Any:
    """The first row of a query; None if there is none."""
    return next(iter(rows(dsn, query_name, **values)), None)


def server(dsn: str) -> ServerResponse:
    started = time.monotonic()
    with _connected(dsn) as connection:
        (facts,) = connection.execute(query("doctor_server")).fetchall()
        announced_pid = connection.info.backend_pid
    return ServerResponse(facts, time.monotonic() - started, facts.backend_pid != announced_pid)


def settings(dsn: str) -> dict[str, str]:
    """The settings of the server itself: our own sessions set some of them differently."""
    with _connected(dsn, is_configured=False) as connection:
        return {setting.name: setting.value for setting in connection.execute(query("doctor_settings"))}


def notify_seconds(dsn: str) -> float | None:
    """How long a notification takes from one connection to another; None if it does not arrive."""
    channel = f"dagmaster_doctor_{uuid4().hex}"
    with _connected(dsn) as listener, _connected(dsn) as notifier:
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        started = time.monotonic()
        notifier.execute("SELECT pg_notify(%s, '')", [channel])
        for _ in listener.notifies(timeout=NOTIFY_SECONDS, stop_after=1):
            return time.monotonic() - started
    return None


def clock(dsn: str, now: Callable[[], float] = time.time) -> Clock:
    """The server read its clock at some time between request and response: the fastest response is the most exact."""
    with _connected(dsn) as connection:
        samples = [_sample(connection, now) for _ in range(CLOCK_SAMPLES)]
    return min(samples, key=lambda sample: sample.uncertainty_seconds)


def _sample(connection: psycopg.Connection[Any], now: Callable[[], float]) -> Clock:
    sent_at = now()
    (time_of_server,) = connection.execute(query("doctor_clock")).fetchall()
    received_at = now()
    return Clock(time_of_server.now - (sent_at + received_at) / 2, (received_at - sent_at) / 2)


@contextmanager
def _connected(dsn: str, *, is_configured: bool = True) -> Iterator[psycopg.Connection[Any]]:
    """`is_configured`: with the settings of our own sessions."""
    with translate_errors():
        limits = (STATEMENT_SECONDS, STATEMENT_SECONDS, STATEMENT_SECONDS)
        address = conninfo(dsn, "doctor", *limits) if is_configured else dsn
        with TokenBlockingConnection.connect(
            address, autocommit=True, connect_timeout=CONNECT_SECONDS, row_factory=namedtuple_row
        ) as connection:
            yield connection
