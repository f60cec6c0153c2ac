"""Connections to PostgreSQL as dagmaster wants them, and the translation of what can go wrong with one.

Who connects decides when to connect again; nothing here retries.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool

from dagmaster.errors import Unavailable
from dagmaster.log import redact

Connection = psycopg.AsyncConnection[Any]

# The engine reads by key, from tables that fill up before they are analysed. Left to its estimates the planner takes a batch
# of ten for ten thousand and reads a whole table to hash it.
BY_KEY = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    # With one way to read, planning a statement anew for each set of values can only cost.
    "plan_cache_mode": "force_generic_plan",
}

# A dead peer is noticed within some 25 seconds, well before leases run out.
_KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


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
    """Open one connection; a server that can't be reached is `Unavailable`."""
    timeouts = (statement_timeout_seconds, lock_timeout_seconds, idle_in_transaction_seconds)
    with translate_errors():
        address = conninfo(dsn, role, *timeouts, settings=settings)
        connection = await psycopg.AsyncConnection.connect(address, autocommit=autocommit)
    _speak_orjson(connection)
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
) -> AsyncConnectionPool[Connection]:
    """A pool of such connections, not opened yet. Each is in autocommit mode: transactions are explicit."""
    timeouts = (statement_timeout_seconds, lock_timeout_seconds, idle_in_transaction_seconds)
    return AsyncConnectionPool(
        conninfo(dsn, role, *timeouts),
        kwargs={"autocommit": True},
        min_size=min_size,
        max_size=max_size,
        open=False,
        configure=_configure,
        check=AsyncConnectionPool.check_connection,
        name=f"dagmaster-{role}",
        timeout=10,
    )


Database = AsyncConnectionPool[Connection]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Say `Unavailable` where the server is gone, full, busy or too slow. Mistakes in SQL stay what they are."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise Unavailable(
            f"the database is not available: {redact(_first_line(error))}",
            code="database.unavailable",
            hint="check that the server runs and that DATABASE_URL names it",
            sqlstate=error.sqlstate,
        ) from error


def conninfo(
    dsn: str,
    role: str,
    statement_seconds: float,
    lock_seconds: float,
    idle_seconds: float,
    *,
    settings: Mapping[str, str] | None = None,
) -> str:
    """The address with our settings; what it says itself about timeouts and keepalives has its way."""
    given = conninfo_to_dict(dsn)
    ours = _options(statement_seconds, lock_seconds, idle_seconds, settings or {})
    options = f"{ours} {given.pop('options', '')}".strip()
    return make_conninfo(**{**_KEEPALIVE, "application_name": f"dagmaster-{role}", **given, "options": options})


def _options(statement_seconds: float, lock_seconds: float, idle_seconds: float, more: Mapping[str, str]) -> str:
    """Settings as start-up options: they cost no round trip, and RESET ALL returns to them."""
    settings = {
        "TimeZone": "UTC",
        "statement_timeout": round(statement_seconds * 1000),
        "lock_timeout": round(lock_seconds * 1000),
        "idle_in_transaction_session_timeout": round(idle_seconds * 1000),
        # Short statements: compiling them would take longer than running them.
        "jit": "off",
        **more,
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


async def _configure(connection: Connection) -> None:
    _speak_orjson(connection)


def _speak_orjson(connection: Connection) -> None:
    set_json_dumps(orjson.dumps, connection)
    set_json_loads(orjson.loads, connection)


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
