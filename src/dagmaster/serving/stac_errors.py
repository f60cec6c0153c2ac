"""Errors of the STAC API as problem responses."""

from collections.abc import Callable

import asyncpg
import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster.database.catalog.datasets import too_slow
from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable
from dagmaster.serving import stac_connections
from dagmaster.serving.problems import PROBLEMS, describe
from dagmaster.web.problems import request_id_of

HINT = "/stac/api describes the API"
_NO_CATALOG_ERRORS = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
_UNAVAILABLE_ERRORS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)
# Raised for values that PostgreSQL, pgSTAC or a parser cannot read. The messages may quote data: they are not returned.
_UNREADABLE_ERRORS = (
    asyncpg.DataError,
    asyncpg.RaiseError,
    asyncpg.InternalServerError,  # raised by PostGIS for a geometry
    asyncpg.SyntaxOrAccessError,  # in the SQL that pgSTAC builds from a filter or a text search
    asyncpg.ProgramLimitExceededError,
    orjson.JSONDecodeError,
)


def register(app: FastAPI) -> None:
    """Turn every error into a problem response."""
    app.add_exception_handler(InvalidRequest, PROBLEMS.on_error)
    app.add_exception_handler(Unavailable, PROBLEMS.on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, PROBLEMS.on_http)
    for error in ERRORS:
        app.add_exception_handler(error, _on_database_error)
    app.add_exception_handler(AttributeError, _on_attribute_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Replaces stac-fastapi's handler, which repeats the values and fails for those that JSON cannot represent."""
    assert isinstance(error, RequestValidationError)
    return await PROBLEMS.on_error(request, InvalidRequest(describe(error), code="request.invalid", hint=HINT))


def _missing_catalog(error: Exception) -> DagmasterError:
    if "operator does not exist" in str(error):  # a filter compares values of different types
        return unreadable(error)
    return not_deployed()


def _unavailable(_error: Exception) -> DagmasterError:
    return Unavailable("the database is not available", code="database.unavailable")


def unreadable(_error: Exception | None = None) -> DagmasterError:
    return InvalidRequest("a value in the request is not valid", code="request.invalid", hint=HINT)


# Errors of a search, and what the client receives instead.
ERRORS: dict[type[Exception], Callable[[Exception], DagmasterError]] = {
    **dict.fromkeys(_NO_CATALOG_ERRORS, _missing_catalog),
    **dict.fromkeys(_UNAVAILABLE_ERRORS, _unavailable),
    **dict.fromkeys(_UNREADABLE_ERRORS, unreadable),
    asyncpg.QueryCanceledError: lambda _error: too_slow(stac_connections.STATEMENT_SECONDS),
}


def translated(error: Exception) -> DagmasterError:
    """The error of the closest class, as FastAPI selects handlers."""
    return next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)(error)


async def _on_database_error(request: Request, error: Exception) -> Response:
    return await PROBLEMS.on_error(request, translated(error))


async def _on_bug(request: Request, _error: Exception) -> Response:
    """The outer app logs the error: it is raised again after the response."""
    return PROBLEMS.bug(request.url.path, request_id_of(request))


async def _on_attribute_error(request: Request, error: Exception) -> Response:
    """A search that is not a JSON object: its model calls `get` on the body before it checks the type."""
    if request.method != "POST" or "has no attribute 'get'" not in str(error):
        raise error
    return await PROBLEMS.on_error(request, unreadable(error))
