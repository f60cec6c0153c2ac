"""Prepared statements that share one round trip to the server.

    BEGIN, open_jobs                                             ──▶  rows    one round trip
    promote_nodes, apply_changes, COMMIT │ notify_channels       ──▶  rows    one round trip

psycopg's pipeline runs the event loop once for each statement it sends, and converts every value through a chain of
adapters. With few statements, this costs more than the saved round trips. Here all statements are written at once, all
results are read at once, and values are sent as text. A `Break` ends a unit: the steps before it have failed or are
committed before the next unit begins. So a notification follows its commit at once, in a transaction of its own.
"""

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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

Rows = list[Any]  # named tuples with the statement's columns


@dataclass(frozen=True, slots=True)
class Call:
    """A statement of `sql/`, by name."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionCommand:
    """BEGIN, COMMIT: no values, no rows."""

    text: str


@dataclass(frozen=True, slots=True)
class Break:
    pass


BEGIN: Final = TransactionCommand("BEGIN")
COMMIT: Final = TransactionCommand("COMMIT")
ROLLBACK: Final = TransactionCommand("ROLLBACK")
BREAK: Final = Break()

DISCARD_PLANS: Final = TransactionCommand("DISCARD PLANS")

PipelineStep = Call | TransactionCommand | Break

# The server plans a statement for the present size of its tables, and keeps the plan: one for empty tables reads the
# whole table for each row of a batch. Autovacuum would cause a new plan only after up to a minute. Here plans are
# discarded whenever four times as much data has been sent as at the last discard.
_FIRST_PLANS_BYTES = 10_000
_GROWTH = 4


@dataclass(slots=True)
class _PipelineState:
    """The state of a connection: the parameters and the row type of each prepared statement, and how much was sent."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    row_types: dict[str, Any] = field(default_factory=dict)
    sent_bytes: int = 0
    discard_plans_at_bytes: int = _FIRST_PLANS_BYTES

    def needs_new_plans(self, values: Sequence[Sequence[bytes | None]]) -> bool:
        self.sent_bytes += sum(len(value) for each in values for value in each if value)
        needs_new_plans = self.sent_bytes > self.discard_plans_at_bytes
        if needs_new_plans:
            self.discard_plans_at_bytes = self.sent_bytes * _GROWTH
        return needs_new_plans


_states: WeakKeyDictionary[Connection, _PipelineState] = WeakKeyDictionary()


async def execute(connection: Connection, steps: Sequence[PipelineStep]) -> dict[str, Rows]:
    """Run the steps in one round trip; returns the rows of each call by its name.
    After an error, close the connection."""
    state = _states.setdefault(connection, _PipelineState())
    await _prepare(connection, state.names, steps)
    values = [[_text(step.values[key]) for key in state.names[step.name]] for step in steps if isinstance(step, Call)]
    if state.needs_new_plans(values):
        steps = [DISCARD_PLANS, BREAK, *steps]
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    _send(pgconn, steps, iter(values))
    units = 1 + sum(isinstance(step, Break) for step in steps)
    results = await connection.wait(_communicate(pgconn, units))
    pgconn.exit_pipeline_mode()
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
    sent = [step for step in steps if not isinstance(step, Break)]
    pairs = zip(sent, results, strict=True)
    return {step.name: _rows(connection, state, step.name, result) for step, result in pairs if isinstance(step, Call)}


async def _prepare(connection: Connection, prepared: dict[str, tuple[str, ...]], steps: Sequence[PipelineStep]) -> None:
    """Prepare the statements that this connection has not prepared yet."""
    for step in steps:
        if isinstance(step, Call) and step.name not in prepared:
            text, names = numbered(step.name)
            await connection.execute(psycopg.sql.SQL(f"PREPARE {step.name} AS {text}"), prepare=False)
            prepared[step.name] = names


def _send(pgconn: PGconn, steps: Sequence[PipelineStep], values: Iterator[list[bytes | None]]) -> None:
    for step in steps:
        match step:
            case Call(name):
                pgconn.send_query_prepared(name.encode(), next(values))
            case TransactionCommand(text):
                pgconn.send_query_params(text.encode(), None)
            case Break():
                pgconn.pipeline_sync()
    pgconn.pipeline_sync()


def _communicate(pgconn: PGconn, units: int) -> PQGen[list[PGresult]]:
    """Write all pending output, then read until every unit has ended."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()  # a server whose results are not read stops reading
    results: list[PGresult] = []
    while units:
        if pgconn.is_busy():
            while not (yield Wait.R):
                continue
            pgconn.consume_input()
        elif (result := pgconn.get_result()) is None:
            continue  # the end of one statement's result
        elif result.status == ExecStatus.PIPELINE_SYNC:
            units -= 1
        else:
            results.append(result)
    return results


def _rows(connection: Connection, state: _PipelineState, name: str, result: PGresult) -> Rows:
    row_type: Any = state.row_types.get(name)
    if row_type is None:
        columns = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
        row_type = state.row_types[name] = namedtuple("Row", columns, rename=True)
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, row_type._make)


def _text(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return _without_nul(value)
        case bool():
            return b"true" if value else b"false"
        case int() | float() | UUID():
            return str(value).encode()
        case list():
            return _without_nul(_array(value))
        case _:
            raise TypeError(f"a value of type {type(value).__name__} can't be sent")


@lru_cache(maxsize=64)
def text_array(texts: tuple[str, ...]) -> str:
    """An array as PostgreSQL reads it, cached for names that many calls use. The statement casts it to `text[]`."""
    return _array(texts)


def _array(values: Sequence[str | int | UUID]) -> str:
    return f"{{{','.join(map(_element, values))}}}"


def _without_nul(text: str) -> bytes:
    """The encoded text. A NUL character is refused, because the server would cut the value off there."""
    if "\0" in text:
        raise psycopg.DataError("a text can't contain NUL characters")
    return text.encode()


def _element(value: str | int | UUID) -> str:
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
