"""Connections to PostgreSQL with dagmaster's settings, and the translation of PostgreSQL's errors.

This module does not retry: the caller decides when to connect again.
"""

import re
import select
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import psycopg
from psycopg import sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import scalar_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool

from dagmaster.database import OLDEST_MAJOR
from dagmaster.database.reads import lenient
from dagmaster.database.token_login import TokenConnection
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.observe.redaction import redact
from dagmaster.records import SCHEMA

Connection = psycopg.AsyncConnection[Any]
ConnectionPool = AsyncConnectionPool[Connection]

# Times that Python cannot represent are read as these: a day from its limits, so that they exist in every time zone.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

MAX_PORT = 65535
SUM_OUT_OF_RANGE = "DM004"  # SQLSTATE: the results of children cannot be summed up
REVIEWED = "DM005"  # SQLSTATE of triggers: a revision was reviewed or purged, and must not change

# The engine reads by key, from tables that grow before they are analysed. PostgreSQL's planner would
# estimate a batch of ten rows at ten thousand, and read a whole table to hash it.
BY_KEY = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    # Only one plan is possible, so planning a statement again for each set of values would waste time.
    "plan_cache_mode": "force_generic_plan",
}

# A dead peer is noticed within about 25 seconds, before leases expire.
_KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


# After an outage a pool would reconnect with growing pauses, and requests would fail although the server is available
# again. So it gives up after this time, and reconnects with the next request.
_RECONNECT_SECONDS = 3.0


async def connect(
    dsn: str,
    *,
    role: str,
    autocommit: bool = True,
    statement_timeout_seconds: float = 15,
    lock_timeout_seconds: float = 3,
    idle_in_transaction_seconds: float = 10,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """Open one connection; a server that cannot be reached raises `Unavailable`."""
    timeouts = (statement_timeout_seconds, lock_timeout_seconds, idle_in_transaction_seconds)
    with translate_errors():
        address = conninfo(dsn, role, *timeouts, settings=settings)
        connection = await TokenConnection.connect(address, autocommit=autocommit)
    require_version(connection.info.server_version)
    _read_leniently(connection, lenient.loads)
    return connection


def pool(
    dsn: str,
    role: str,
    min_size: int,
    max_size: int,
    *,
    statement_timeout_seconds: float = 15,
    lock_timeout_seconds: float = 3,
    idle_in_transaction_seconds: float = 10,
    wait_seconds: float = 10,
    settings: Mapping[str, str] | None = None,
) -> ConnectionPool:
    """A pool of connections, not yet opened. They are in autocommit mode: transactions are explicit."""
    timeouts = (statement_timeout_seconds, lock_timeout_seconds, idle_in_transaction_seconds)
    return AsyncConnectionPool(
        conninfo(dsn, role, *timeouts, settings=settings),
        connection_class=TokenConnection,
        kwargs={"autocommit": True},
        min_size=min_size,
        max_size=max_size,
        open=False,
        configure=configure,
        check=check_connection,
        name=f"dagmaster-{role}",
        timeout=wait_seconds,
        reconnect_timeout=_RECONNECT_SECONDS,
    )


def pool_on_pooler(dsn: str, role: str, max_size: int, *, wait_seconds: float = 10) -> ConnectionPool:
    """A pool of connections to a pooler such as pgbouncer. Nothing may be kept in a session: no prepared statements,
    and settings for one transaction only (`settings_statement`). A pooler refuses start-up options."""
    parameters = _parsed(dsn, "DATABASE_POOLER_URL")
    address = make_conninfo(**{**_KEEPALIVE, "application_name": f"dagmaster-{role}", **parameters})
    return AsyncConnectionPool(
        address,
        connection_class=TokenConnection,
        kwargs={"autocommit": True, "prepare_threshold": None},
        min_size=0,
        max_size=max_size,
        open=False,
        configure=configure,
        check=check_connection,
        name=f"dagmaster-{role}",
        timeout=wait_seconds,
        reconnect_timeout=_RECONNECT_SECONDS,
    )


def settings_statement(
    settings: Mapping[str, str],
    statement_timeout_seconds: float = 15,
    lock_timeout_seconds: float = 3,
    idle_in_transaction_seconds: float = 10,
) -> sql.Composed:
    """Our settings until the end of a transaction, in one round trip."""
    timeouts = (statement_timeout_seconds, lock_timeout_seconds, idle_in_transaction_seconds)
    calls = [
        sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(str(value)))
        for name, value in _settings(*timeouts, settings).items()
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls))


@asynccontextmanager
async def connection_of(connections: ConnectionPool) -> AsyncIterator[Connection]:
    """A connection of a pool, for one call. Errors of PostgreSQL are translated."""
    with translate_errors():
        async with connections.connection() as connection:
            yield connection


async def check_connection(connection: Connection) -> None:
    """Raise an error if the connection was closed. A query is sent only if the socket has something to read, such as
    the server's last message: otherwise each request would need one more round trip."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await AsyncConnectionPool.check_connection(connection)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate errors of PostgreSQL into ours: unavailable, not allowed, not deployed, read-only. Others pass."""
    try:
        yield
    except psycopg.Error as error:
        translated = meaning_of(error)
        if translated is None:
            raise
        raise translated from error


def not_deployed() -> Unavailable:
    return Unavailable(
        "the database has no dagmaster schema", code="database.not-deployed", hint="run `dagmaster db deploy`"
    )


def require_version(server_version: int) -> None:
    """Refuse a server that is too old. libpq reports the version as a number such as 150004."""
    if server_version < OLDEST_MAJOR * 10_000:
        raise too_old(server_version)


def too_old(server_version: int) -> Unavailable:
    return Unavailable(
        f"the server is PostgreSQL {server_version // 10_000}, but {OLDEST_MAJOR} or newer is required",
        code="database.too-old",
        hint="upgrade the server, or set DATABASE_URL to a newer one",
    )


async def require_own_session(connection: Connection) -> None:
    """Refuse a connection through a pooler: LISTEN, prepared statements and settings need a session of their own.
    Through a pooler, the backend process that responds is not the one announced when the connection was made."""
    cursor = connection.cursor(row_factory=scalar_row)
    backend_pid = await (await cursor.execute("SELECT pg_backend_pid()")).fetchone()
    if backend_pid != connection.info.backend_pid:
        raise pooled()


def pooled() -> Unavailable:
    return _pooler("the backend process is not the one announced at login")


def _pooler(message: str) -> Unavailable:
    return Unavailable(
        f"a connection pooler responds instead of the database: {message}",
        code="database.pooler",
        hint="use the address of the server in DATABASE_URL: LISTEN and session settings need a connection of their "
        "own. The address of a pooler belongs in DATABASE_POOLER_URL",
    )


def read_only(message: str, **facts: str | None) -> Unavailable:
    return Unavailable(
        f"the database is read-only: {message}",
        code="database.read-only",
        hint="it is a standby, or set to read-only: use the primary in DATABASE_URL, and add "
        "target_session_attrs=read-write if it names several servers",
        **facts,
    )


def meaning_of(error: psycopg.Error) -> DagmasterError | None:
    message = redact(error.diag.message_primary or _first_line(error))
    if error.sqlstate == REVIEWED:
        return Conflict(message, code="revision.reviewed", hint=error.diag.message_hint)
    match error:
        case psycopg.errors.InsufficientPrivilege():
            hint = f"grant this role what it needs on the schema {SCHEMA}, or connect as its owner"
            return NotAllowed(f"the database denies access: {message}", code="database.not-allowed", hint=hint)
        case psycopg.errors.ReadOnlySqlTransaction():
            return read_only(message, sqlstate=error.sqlstate)
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName() if SCHEMA in message:
            return not_deployed()
        case psycopg.errors.UndefinedColumn():
            return _outdated(message, error)
        case psycopg.errors.UndefinedFunction() if f"{SCHEMA}." in message:
            return _outdated(message, error)
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return _meaning_of_text(message, error)
    return None


def _outdated(message: str, error: psycopg.Error) -> Unavailable:
    text = f"the schema of the database has another version: {message}"
    return _unavailable(text, "database.outdated", error, "run `dagmaster db migrate`")


def _unavailable(message: str, code: str, error: psycopg.Error, hint: str) -> Unavailable:
    return Unavailable(message, code=code, hint=hint, sqlstate=error.sqlstate)


# libpq passes on the text of a refused connection, but not its code.
_REFUSALS: tuple[tuple[re.Pattern[str], Callable[[str], DagmasterError]], ...] = (
    (
        re.compile(r'role "[^"]*" does not exist|not permitted to log in'),
        lambda message: NotAllowed(
            f"the database refuses the connection: {message}",
            code="database.not-allowed",
            hint="correct the user in DATABASE_URL, or create it: CREATE ROLE … LOGIN PASSWORD '…'",
        ),
    ),
    (
        re.compile(r"authentication failed|no password supplied|pg_hba\.conf|permission denied for database"),
        lambda message: NotAllowed(
            f"the database refuses the connection: {message}",
            code="database.not-allowed",
            hint="correct user and password in DATABASE_URL, and see that pg_hba.conf and the privilege CONNECT allow "
            "that user to connect",
        ),
    ),
    (
        re.compile(r'database "[^"]*" does not exist'),
        lambda message: NotFound(
            f"the server has no such database: {message}",
            code="database.unknown",
            hint="create it (`createdb NAME`), or correct the name at the end of DATABASE_URL",
        ),
    ),
    (
        re.compile(r"unsupported startup parameter"),
        _pooler,
    ),
    (
        re.compile(r"invalid \w+ value|invalid port number|invalid integer value|bad value for"),
        lambda message: _bad_address(message.rpartition(": ")[0].rpartition("invalid ")[2] + " is not valid"),
    ),
    (
        re.compile(r"too many clients|remaining connection slots|too many connections"),
        lambda message: Unavailable(
            f"the database has no connection left: {message}",
            code="database.unavailable",
            hint="raise max_connections of the server, or run fewer processes",
        ),
    ),
    (
        re.compile(r"failed to resolve host|could not translate host name"),
        lambda message: Unavailable(
            f"the database is not available: {message}",
            code="database.unavailable",
            hint="check the name of the host in DATABASE_URL",
        ),
    ),
)


def _meaning_of_text(message: str, error: psycopg.Error) -> DagmasterError:
    if error.sqlstate is None:
        for pattern, meaning in _REFUSALS:
            if pattern.search(message):
                return meaning(_server_message(message))
    return _unavailable(
        f"the database is not available: {message}",
        "database.unavailable",
        error,
        "check that the server runs and that DATABASE_URL is its address",
    )


def _server_message(message: str) -> str:
    """The text without the prefix of libpq."""
    return re.split(r"FATAL:\s+", message)[-1]


def conninfo(
    dsn: str,
    role: str,
    statement_seconds: float,
    lock_seconds: float,
    idle_seconds: float,
    *,
    settings: Mapping[str, str] | None = None,
) -> str:
    """The address with our settings. Timeouts and keepalives in the address take precedence."""
    parameters = _parsed(dsn)
    own_options = _options(statement_seconds, lock_seconds, idle_seconds, settings or {})
    options = f"{own_options} {parameters.pop('options', '')}".strip()
    return make_conninfo(**{**_KEEPALIVE, "application_name": f"dagmaster-{role}", **parameters, "options": options})


def require_address(dsn: str, variable: str) -> None:
    """Refuse a malformed address, with the name of the variable that contains it."""
    _parsed(dsn, variable)


def _parsed(dsn: str, variable: str = "DATABASE_URL") -> dict[str, Any]:
    """The parts of an address. Errors are described without libpq's text, which could contain the password."""
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise _bad_address(_mistake_in(dsn, str(error)), variable) from None
    if "\0" in dsn:
        raise _bad_address("it contains a NUL character", variable)
    # What libpq reads as a host or a port may be the end of a password.
    if "@" in str(parameters.get("host") or ""):
        raise _bad_address("write an @ in its password as %40", variable)
    if not all(_is_port(port) for port in str(parameters.get("port") or "").split(",")):
        raise _bad_address(
            f"its port is not a number from 1 to {MAX_PORT}, or a / in its password is not written as %2F", variable
        )
    if not str(parameters.get("connect_timeout") or 0).lstrip("-").isdecimal():
        raise _bad_address("connect_timeout is not a whole number of seconds", variable)
    return parameters


def _is_port(text: str) -> bool:
    return not text or (text.isdecimal() and len(text) <= 5 and 0 < int(text) <= MAX_PORT)


def _mistake_in(dsn: str, message: str) -> str:
    scheme = re.match(r"([a-z][a-z0-9+.-]{0,30}):", dsn, re.IGNORECASE)
    if scheme and not dsn.startswith(("postgresql://", "postgres://")):
        return f"it begins with {scheme[1]}:, not with postgresql://"
    if parameter := re.search(r'(?:query parameter:|connection option) "([a-z_]{1,40})"', message):
        return f"there is no parameter {parameter[1]}"
    if "IPv6" in message:
        return "the brackets of its IPv6 address do not match"
    if "percent" in message:
        return "a % in it must be written as %25"
    return "it is neither postgresql://… nor host=… dbname=…"


def _bad_address(reason: str, variable: str = "DATABASE_URL") -> InvalidRequest:
    return InvalidRequest(
        f"{variable} is not the address of a database: {reason}",
        code="database.bad-address",
        hint="write postgresql://USER@HOST:5432/DATABASE, and percent-encode special characters of the password",
    )


def _options(statement_seconds: float, lock_seconds: float, idle_seconds: float, more: Mapping[str, str]) -> str:
    """Settings as start-up options: they need no round trip, and RESET ALL restores them."""
    settings = _settings(statement_seconds, lock_seconds, idle_seconds, more)
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _settings(
    statement_seconds: float, lock_seconds: float, idle_seconds: float, more: Mapping[str, str]
) -> dict[str, str | int]:
    return {
        "TimeZone": "UTC",
        "statement_timeout": round(statement_seconds * 1000),
        "lock_timeout": round(lock_seconds * 1000),
        "idle_in_transaction_session_timeout": round(idle_seconds * 1000),
        # Compiling short statements would take longer than running them.
        "jit": "off",
        **more,
    }


async def configure(connection: Connection) -> None:
    """Prepare a new connection of a pool."""
    _read_leniently(connection, lenient.loads_to_show)


def _read_leniently(connection: Connection, loads: Callable[[bytes | str], Any]) -> None:
    """Read and write JSON with orjson. Values that Python cannot represent are read as values close to them."""
    set_json_dumps(orjson.dumps, connection)
    set_json_loads(loads, connection)
    connection.adapters.register_loader("timestamptz", _TimeLoader)


class _TimeLoader(Loader):
    """PostgreSQL also has infinite times, and times outside of Python's range."""

    _exact = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, psycopg.pq.Format.TEXT)

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        assert self._exact is not None
        self._loader = self._exact(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            return self._loader.load(data)  # type: ignore[no-any-return]
        except psycopg.DataError:
            return EARLIEST if bytes(data).startswith(b"-") or bytes(data).endswith(b"BC") else LATEST


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
