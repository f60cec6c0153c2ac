"""Bring a database to the schema of this software: deploy, migrate or rebuild it, and show its status and DDL.

Synchronous, for the CLI and for the bootstrap API's threads. If two callers run it, the second waits for the first and
then has nothing to do. A deployment is one transaction. A migration consists of many short ones, because the engine
keeps running: a lock that is not granted at once is given up and requested again, so that no other session waits long
behind it, and indexes are built concurrently. The next migration finishes one that was interrupted.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.schema import CreateSequence

from dagmaster import __version__
from dagmaster.database.connect import conninfo, require_version, translate_errors
from dagmaster.database.schema.compare import SchemaChange, compare, sql_of, table_statements
from dagmaster.database.schema.guards import Trigger, triggers
from dagmaster.database.schema.records import RECORDS
from dagmaster.database.schema.tables import metadata_of, sequences
from dagmaster.database.token_login import TokenBlockingConnection
from dagmaster.errors import Conflict, Unavailable
from dagmaster.records import SCHEMA, Record

T = TypeVar("T")
Records = tuple[type[Record], ...]

# Files numbered below this run before the tables are created, the others after.
_TABLES_AT = 50
# While a lock request waits, later ones queue behind it, and the engine's statements give up after three seconds.
_LOCK_SECONDS = 0.5
_PAUSES_SECONDS = (0.05, 1.0)
# lock_not_available (the lock timeout has passed), deadlock_detected
_LOCKED = frozenset({"55P03", "40P01"})
_COMMENT_LINES = re.compile(r"^\s*--.*\n", re.MULTILINE)
_LOCK = f"hashtext('{SCHEMA}.deploy')"


@dataclass(frozen=True, slots=True)
class Status:
    """What a database has. `stored` is the fingerprint of the last deployment; `tables` has row counts."""

    deployed: bool
    software: str
    stored: str | None
    pending: list[str]
    tables: dict[str, int]
    server_version: str
    extensions: dict[str, str]

    @property
    def is_current(self) -> bool:
        return self.deployed and self.software == self.stored and not self.pending


class SchemaState(StrEnum):
    """The schema before a deployment, by its fingerprint, which does not show changes made by hand."""

    ABSENT = "absent"
    CURRENT = "current"
    OUTDATED = "outdated"


def deploy(dsn: str, records: Records = RECORDS, wait_seconds: float = 60) -> SchemaState:
    """Create what is missing, and return the previous state. Existing tables are not changed: see `migrate`."""
    with _exclusive(dsn, wait_seconds) as connection:
        return _with_retries(connection, wait_seconds, lambda: _create(connection, records))


def rebuild(dsn: str, records: Records = RECORDS, wait_seconds: float = 60) -> None:
    """Drop the schema and deploy it again, in one transaction. The caller checks the permission."""

    def drop_and_create() -> None:
        _execute(connection, f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        _create(connection, records)

    with _exclusive(dsn, wait_seconds) as connection:
        _with_retries(connection, wait_seconds, drop_and_create)


@dataclass(frozen=True, slots=True)
class Migration:
    """What one migration did. The changes were read while it had the lock, so no concurrent migration is part of
    them. `done_by_another`: the schema was outdated at the beginning, and another process had migrated it before this
    one got the lock."""

    changes: list[str]
    pending: list[str]
    is_current: bool
    done_by_another: bool


def migrate(dsn: str, records: Records = RECORDS, wait_seconds: float = 60) -> list[str]:
    """Add what the database lacks while the engine runs; returns what was done and what is left to do by hand."""
    with _exclusive(dsn, wait_seconds) as connection:
        return _migrate(connection, records, wait_seconds)


def run_migration(dsn: str, records: Records = RECORDS, wait_seconds: float = 60) -> Migration:
    """Migrate, and report what this call did, also for functions and triggers, and what is left."""
    with _connected(dsn) as connection:
        needed = fingerprint(records)
        with connection.begin():
            first = _stored_fingerprint(connection)
        _await_lock(connection, wait_seconds)
        with connection.begin():
            before = _stored_fingerprint(connection)
        changes = _migrate(connection, records, wait_seconds)
        with connection.begin():
            after = _stored_fingerprint(connection)
            pending = _pending(connection, records, after)
    if before != after and not changes:
        changes = ["renewed functions and triggers"]
    return Migration(changes, pending, after == needed and not pending, first != before == needed and not changes)


def _migrate(connection: sa.Connection, records: Records, wait_seconds: float) -> list[str]:
    retried = partial(_with_retries, connection, wait_seconds)
    retried(lambda: _run_files(connection, before_tables=True))
    changes = retried(lambda: _compare(connection, records))
    for change in changes:
        retried(partial(_execute, connection, *change.statements))
    changes = [_run_online(connection, change, wait_seconds) for change in changes]
    retried(lambda: _run_files(connection, before_tables=False))
    for trigger in triggers():
        retried(partial(_ensure_trigger, connection, trigger))
    if not any(change.is_manual for change in changes):
        retried(lambda: _store_fingerprint(connection, records))
    return [str(change) for change in changes]


def ddl(records: Records = RECORDS) -> str:
    """Everything that `deploy` runs on an empty database, as text."""
    tables = [sql for table in metadata_of(records).sorted_tables for sql in table_statements(table)]
    statements = [f"{sql};" for sql in [*(sql_of(CreateSequence(sequence)) for sequence in sequences(SCHEMA)), *tables]]
    guards = [trigger.sql for trigger in triggers()]
    return "\n\n".join([*_files(before_tables=True), *statements, *_files(before_tables=False), *guards]) + "\n"


def fingerprint(records: Records = RECORDS) -> str:
    """A hash of `ddl` without its comments: equal fingerprints mean equal schemas."""
    return hashlib.sha256(_COMMENT_LINES.sub("", ddl(records)).encode()).hexdigest()[:16]


def status(dsn: str, records: Records = RECORDS) -> Status:
    """The status of a database. Changes nothing."""
    with _connected(dsn) as connection, connection.begin():
        stored = _stored_fingerprint(connection)
        return Status(
            deployed=stored is not None,
            software=fingerprint(records),
            stored=stored,
            pending=_pending(connection, records, stored),
            tables=_row_counts(connection, records),
            server_version=str(connection.scalar(sa.text("SHOW server_version"))),
            extensions=_extensions(connection),
        )


def pending(dsn: str, records: Records = RECORDS) -> list[str]:
    """What `migrate` has to do, also because of manual changes; empty if the schema is that of this software."""
    with _connected(dsn) as connection, connection.begin():
        return _pending(connection, records, _stored_fingerprint(connection))


def _pending(connection: sa.Connection, records: Records, stored: str | None) -> list[str]:
    if stored is None:
        return ["deploy the schema"]
    if not connection.scalar(sa.text(f"SELECT pg_try_advisory_xact_lock({_LOCK})")):
        return ["another deployment is under way"]
    changes = [str(change) for change in _compare(connection, records)]
    # Functions and triggers are not compared one by one: the fingerprint covers them.
    return changes or ([] if stored == fingerprint(records) else ["renew functions and triggers"])


def _extensions(connection: sa.Connection) -> dict[str, str]:
    rows = connection.execute(sa.text("SELECT extname, extversion FROM pg_extension ORDER BY 1"))
    return {row.extname: row.extversion for row in rows}


def _row_counts(connection: sa.Connection, records: Records) -> dict[str, int]:
    """Rows of each table that exists: counted where that is quick, else PostgreSQL's own estimate."""
    existing = set(sa.inspect(connection).get_table_names(SCHEMA))
    return {name: _rows(connection, name) for name in sorted(r.table.name for r in records) if name in existing}


def _rows(connection: sa.Connection, table: str, countable: int = 1_000_000) -> int:
    estimated = "SELECT sum(greatest(reltuples, 0)) FROM pg_partition_tree(:table) JOIN pg_class ON oid = relid"
    estimate = connection.scalar(sa.text(estimated), {"table": f"{SCHEMA}.{table}"})
    if estimate is not None and estimate > countable:
        return int(estimate)
    return int(connection.scalar(sa.text(f"SELECT count(*) FROM {SCHEMA}.{table}")) or 0)  # noqa: S608


def _create(connection: sa.Connection, records: Records) -> SchemaState:
    state = _state(connection, records)
    _run_files(connection, before_tables=True)
    metadata_of(records).create_all(connection)
    _run_files(connection, before_tables=False)
    for trigger in triggers():
        _ensure_trigger(connection, trigger)
    # A schema that was created just now needs no comparison.
    if state is SchemaState.ABSENT or (state is SchemaState.OUTDATED and not _compare(connection, records)):
        _store_fingerprint(connection, records)
    return state


def _state(connection: sa.Connection, records: Records) -> SchemaState:
    if connection.scalar(sa.text("SELECT to_regnamespace(:schema)"), {"schema": SCHEMA}) is None:
        return SchemaState.ABSENT
    return SchemaState.CURRENT if _stored_fingerprint(connection) == fingerprint(records) else SchemaState.OUTDATED


def _compare(connection: sa.Connection, records: Records) -> list[SchemaChange]:
    return compare(connection, records, prepare=partial(_run_files, connection, before_tables=True))


def _with_retries(connection: sa.Connection, wait_seconds: float, act: Callable[[], T]) -> T:
    """Run `act` in a transaction, and again as long as a table that it needs is locked."""

    def transaction() -> T:
        with connection.begin():
            return act()

    return _until_unlocked(wait_seconds, transaction)


def _until_unlocked(wait_seconds: float, act: Callable[[], T]) -> T:
    deadline = time.monotonic() + wait_seconds
    pause, longest = _PAUSES_SECONDS
    while True:
        try:
            return act()
        except (sa.exc.DBAPIError, psycopg.Error) as error:
            refusal = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            if not isinstance(refusal, psycopg.Error) or refusal.sqlstate not in _LOCKED:
                raise
            if time.monotonic() > deadline:
                raise _still_locked(refusal) from None
        # Let the sessions that waited behind our lock request continue.
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _still_locked(refusal: psycopg.Error) -> Conflict:
    where = next(iter((refusal.diag.context or "").splitlines()), "")
    return Conflict(
        f"a table is locked by another session: {refusal.diag.message_primary} {where}".strip(),
        code="database.locked",
        hint="find long transactions in pg_stat_activity, end them, and run this again: it continues where it stopped",
    )


def _run_online(connection: sa.Connection, change: SchemaChange, wait_seconds: float) -> SchemaChange:
    """Run statements that may take long, outside a transaction."""
    if not change.online:
        return change
    driver = _driver(connection)
    driver.autocommit = True
    try:
        for statement in change.online:
            # These two block no other session while they wait, and a cancelled index build would have to start again.
            may_wait = "CONCURRENTLY" in statement or "VALIDATE" in statement
            driver.execute("SET lock_timeout = 0" if may_wait else "RESET lock_timeout")
            _until_unlocked(wait_seconds, partial(driver.execute, statement.encode()))
    except psycopg.errors.IntegrityError as error:
        return SchemaChange(f"{change.description}: existing rows violate it ({error.diag.message_primary})")
    finally:
        if not driver.closed:
            driver.execute("RESET lock_timeout")
            driver.autocommit = False
    return change


def _store_fingerprint(connection: sa.Connection, records: Records) -> None:
    connection.execute(
        sa.text(
            f"INSERT INTO {SCHEMA}.schema_info (fingerprint, software_version) VALUES (:fingerprint, :version) "  # noqa: S608
            "ON CONFLICT (only_row) DO UPDATE SET (fingerprint, deployed_at, software_version) = "
            "(excluded.fingerprint, excluded.deployed_at, excluded.software_version) "
            "WHERE schema_info.fingerprint <> excluded.fingerprint"
        ),
        {"fingerprint": fingerprint(records), "version": __version__},
    )


def _stored_fingerprint(connection: sa.Connection) -> str | None:
    if connection.scalar(sa.text("SELECT to_regclass(:table)"), {"table": f"{SCHEMA}.schema_info"}) is None:
        return None
    fingerprint: str | None = connection.scalar(sa.text(f"SELECT fingerprint FROM {SCHEMA}.schema_info"))  # noqa: S608
    return fingerprint


def _ensure_trigger(connection: sa.Connection, trigger: Trigger) -> None:
    """Create a trigger unless it exists with the same text: replacing it would block the table's writers."""
    digest = hashlib.sha256(trigger.sql.encode()).hexdigest()[:16]
    deployed = connection.scalar(
        sa.text(
            "SELECT obj_description(oid, 'pg_trigger') FROM pg_trigger "
            "WHERE tgname = :name AND tgrelid = to_regclass(:table)"
        ),
        {"name": trigger.name, "table": f"{SCHEMA}.{trigger.table}"},
    )
    if deployed != digest:
        _execute(
            connection, trigger.sql, f"COMMENT ON TRIGGER {trigger.name} ON {SCHEMA}.{trigger.table} IS '{digest}'"
        )


@contextmanager
def _exclusive(dsn: str, wait_seconds: float) -> Iterator[sa.Connection]:
    """A connection that holds the lock for changes of the schema."""
    with _connected(dsn) as connection:
        _await_lock(connection, wait_seconds)
        yield connection


def _await_lock(connection: sa.Connection, wait_seconds: float) -> None:
    # Polled instead of waited for in the server: a waiting statement holds a snapshot, and a CREATE INDEX CONCURRENTLY
    # of the session with the lock would wait for that snapshot, which is a deadlock.
    deadline = time.monotonic() + wait_seconds
    while True:
        with connection.begin():
            if connection.scalar(sa.text(f"SELECT pg_try_advisory_lock({_LOCK})")):
                return
        if time.monotonic() > deadline:
            raise Conflict("another deployment is under way", code="database.deploying", hint="try again later")
        time.sleep(0.1)


@contextmanager
def _connected(dsn: str) -> Iterator[sa.Connection]:
    """A connection with short lock waits. Closing it releases its locks."""
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: _open(dsn), poolclass=sa.NullPool)
    with _translated(), engine.connect() as connection:
        yield connection


def _open(dsn: str) -> psycopg.Connection[Any]:
    # Names are looked up in public only, where extensions are: the role's own search_path could have our schema first.
    address = conninfo(dsn, "deploy", statement_seconds=0, lock_seconds=_LOCK_SECONDS, idle_seconds=60)
    connection = TokenBlockingConnection.connect(address)
    require_version(connection.info.server_version)
    connection.execute("SET search_path = public")
    connection.commit()
    return connection


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the server's error, which SQLAlchemy wraps in its own."""
    try:
        with translate_errors():
            try:
                yield
            except sa.exc.DBAPIError as error:
                raise (error.orig or error) from None
    except Unavailable as error:
        # Elsewhere a missing table means that the schema is outdated. Here it is a mistake in our own statements.
        if isinstance(error.__cause__, psycopg.ProgrammingError):
            raise error.__cause__ from None
        raise


def _files(*, before_tables: bool) -> list[str]:
    folder = files("dagmaster.database") / "sql" / "schema"
    paths = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [
        file.read_text(encoding="utf-8").strip() for file in paths if (int(file.name[:2]) < _TABLES_AT) == before_tables
    ]


def _run_files(connection: sa.Connection, *, before_tables: bool) -> None:
    _execute(connection, *_files(before_tables=before_tables))


def _execute(connection: sa.Connection, *texts: str) -> None:
    """Run SQL texts unchanged; each may have any number of statements."""
    for text in texts:
        _driver(connection).execute(text.encode())


def _driver(connection: sa.Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver
