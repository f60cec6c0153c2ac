"""Prepared statements that share one round trip to the server.

    trip: BEGIN, open_jobs                       ──▶  rows          one way there and back, where each statement
    trip: promote_nodes, apply_changes, COMMIT  │ tell  ──▶  rows    by itself would take one of its own

psycopg's pipeline turns the event loop once for each statement it sends, and dumps every value through a chain of adapters: for
the few statements that an engine's step consists of that costs more than the round trips it spares. Here all is written at once
and read at once, and values travel as text. A `Break` ends a unit: what comes before has failed or is committed before what
comes after begins, which is how a hint follows its commit at once, in a transaction of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from dagmaster.database.connect import Connection
from dagmaster.database.queries import numbered

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """A statement of `sql/`, by name."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """BEGIN, COMMIT: no values, no rows."""

    text: str


@dataclass(frozen=True, slots=True)
class Break:
    pass


BEGIN: Final = Command("BEGIN")
COMMIT: Final = Command("COMMIT")
BREAK: Final = Break()

Step = Call | Command | Break

_prepared: WeakKeyDictionary[Connection, dict[str, tuple[str, ...]]] = WeakKeyDictionary()


async def go(connection: Connection, steps: Sequence[Step]) -> dict[str, Rows]:
    """Take the steps; answers the rows of each call, by its name. After an error the connection is of no use any more: close it."""
    names = await _prepare(connection, steps)
    values = [[_text(step.values[key]) for key in names[step.name]] for step in steps if isinstance(step, Call)]
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    _send(pgconn, steps, iter(values))
    units = 1 + sum(isinstance(step, Break) for step in steps)
    results = await connection.wait(_communicate(pgconn, units))
    pgconn.exit_pipeline_mode()
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
    said = [step for step in steps if not isinstance(step, Break)]
    answers = zip(said, results, strict=True)
    return {step.name: _rows(connection, result) for step, result in answers if isinstance(step, Call)}


async def _prepare(connection: Connection, steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """What the server does not know yet it is told first; answers the order of each statement's values."""
    known = _prepared.setdefault(connection, {})
    for step in steps:
        if isinstance(step, Call) and step.name not in known:
            text, names = numbered(step.name)
            await connection.execute(psycopg.sql.SQL(f"PREPARE {step.name} AS {text}"), prepare=False)
            known[step.name] = names
    return known


def _send(pgconn: PGconn, steps: Sequence[Step], values: Iterator[list[bytes | None]]) -> None:
    for step in steps:
        match step:
            case Call(name):
                pgconn.send_query_prepared(name.encode(), next(values))
            case Command(text):
                pgconn.send_query_params(text.encode(), None)
            case Break():
                pgconn.pipeline_sync()
    pgconn.pipeline_sync()


def _communicate(pgconn: PGconn, units: int) -> PQGen[list[PGresult]]:
    """Write what is to be sent, then read until every unit has ended."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()  # a server whose answers nobody reads stops listening
    results: list[PGresult] = []
    while units:
        if pgconn.is_busy():
            while not (yield Wait.R):
                continue
            pgconn.consume_input()
        elif (result := pgconn.get_result()) is None:
            continue  # the end of one statement's answer
        elif result.status == ExecStatus.PIPELINE_SYNC:
            units -= 1
        else:
            results.append(result)
    return results


def _rows(connection: Connection, result: PGresult) -> Rows:
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def _text(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return _whole(value)
        case bool():
            return b"true" if value else b"false"
        case int() | float() | UUID():
            return str(value).encode()
        case list() | tuple():
            return _whole(f"{{{','.join(map(_element, value))}}}")
        case _:
            raise TypeError(f"a value of type {type(value).__name__} can't travel")


def _whole(text: str) -> bytes:
    """A value ends where a NUL is, for the server: better none than half of one."""
    if "\0" in text:
        raise psycopg.DataError("a text can't contain NUL characters")
    return text.encode()


def _element(value: str | int | UUID) -> str:
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
