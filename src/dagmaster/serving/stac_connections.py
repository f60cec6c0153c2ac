"""Connections of the STAC API to the database: a pool of asyncpg, because stac-fastapi-pgstac uses it.

`connected` opens the pool of an app, because the lifespan of an app inside another one is not run.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import asyncpg
from fastapi import FastAPI, Request
from psycopg.conninfo import conninfo_to_dict
from stac_fastapi.pgstac.db import con_init, translate_pgstac_errors

from dagmaster.database.token_login import login_of, secure_mode
from dagmaster.errors import Unavailable

_MAX_CONNECTIONS = 4
STATEMENT_SECONDS = 10.0
# How long a search waits for a connection while others use all of them.
WAIT_SECONDS = 20.0
# The connection parameters that asyncpg supports; it would send others to the server as settings.
_CONNECTION_PARAMETERS = (
    *("host", "port", "user", "password", "dbname", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
)


@asynccontextmanager
async def connected(app: FastAPI, dsn: str) -> AsyncIterator[None]:
    """Give the app a pool. Connections are opened on demand: the database may become available later."""
    login = login_of(dsn)
    pool = asyncpg.create_pool(
        _asyncpg_dsn(dsn),
        **({"password": partial(asyncio.to_thread, login.token)} if login else {}),
        min_size=0,
        max_size=_MAX_CONNECTIONS,
        init=con_init,
        timeout=5,
        server_settings={
            "search_path": "pgstac,public",
            "application_name": "dagmaster-stac",
            "statement_timeout": str(round(STATEMENT_SECONDS * 1000)),
            # pgSTAC would store every search that it has not seen before, in a table that only grows.
            "pgstac.readonly": "true",
        },
    )
    async with pool:
        app.state.readpool = pool
        app.state.get_connection = _get_connection
        yield


@asynccontextmanager
async def _get_connection(request: Request, _readwrite: str = "r") -> AsyncIterator[Any]:
    """Replaces stac-fastapi's function, which waits for a free connection without limit."""
    async with acquired(request.app.state.readpool) as connection:
        yield connection


@asynccontextmanager
async def acquired(pool: asyncpg.Pool) -> AsyncIterator[Any]:
    with translate_pgstac_errors():
        try:
            connection = await pool.acquire(timeout=WAIT_SECONDS)
        except TimeoutError:
            raise _not_connected(pool) from None
        try:
            yield connection
        finally:
            await pool.release(connection)


def _not_connected(pool: asyncpg.Pool) -> Unavailable:
    # The pool was allowed to open another connection: it has waited for the database, not for other searches.
    if pool.get_size() < _MAX_CONNECTIONS:
        return Unavailable("the database is not available", code="database.unavailable")
    message = f"the server is busy with other searches: none ended within {WAIT_SECONDS:g} s"
    return Unavailable(message, code="serving.busy", hint="repeat the request later")


def _asyncpg_dsn(dsn: str) -> str:
    parameters = conninfo_to_dict(dsn)
    if login_of(dsn):
        parameters["sslmode"] = secure_mode(parameters)
    supported = {name: parameters[name] for name in _CONNECTION_PARAMETERS if parameters.get(name)}
    return f"postgresql://?{urlencode(supported)}"
