"""The STAC API: stac-fastapi-pgstac on the platform's own database, for reading only.

It is an app of its own, and knows that its routes begin with `/stac`: mounted there as others are, its links would lack that.
Its connections are opened by us, since nobody runs the lifespan of an app inside another.
"""

import logging
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import asyncpg
import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg.conninfo import conninfo_to_dict
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from starlette.responses import JSONResponse, Response

from dagmaster import __version__
from dagmaster.addresses import STAC, Addresses, rebased
from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.serving.pages import page
from dagmaster.serving.problems import PROBLEMS

# At import it makes settings that nobody uses, and warns that they are not set.
logging.getLogger("stac_fastapi.types.config").setLevel(logging.ERROR)

from stac_fastapi.pgstac.app import instantiate_api  # noqa: E402
from stac_fastapi.pgstac.config import Settings as StacSettings  # noqa: E402
from stac_fastapi.pgstac.core import CoreCrudClient  # noqa: E402
from stac_fastapi.pgstac.db import con_init, get_connection  # noqa: E402
from stac_fastapi.pgstac.models.extensions import Extensions  # noqa: E402

PREFIX = STAC
TITLE = "dagmaster"
ABOUT = "Datasets of this platform: validated, cloud-optimised, and served as maps"
_MOST_CONNECTIONS = 4
_STATEMENT_SECONDS = 10
# On one page: whoever wants more follows its link to the next.
MOST_ITEMS = 1000
_HINT = "see /stac/api for what there is"
# What asyncpg understands of a PostgreSQL address; the rest it would send to the server as settings.
_OF_ADDRESS = ("host", "port", "user", "password", "dbname", "passfile", "service", "target_session_attrs",
               "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword")  # fmt: skip
_NO_CATALOGUE = (
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
)
_AWAY = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InvalidAuthorizationSpecificationError,
         asyncpg.OperatorInterventionError, asyncpg.InsufficientResourcesError, asyncpg.InvalidCatalogNameError)  # fmt: skip

# Values that PostgreSQL, pgSTAC or the parsers of queries can't read. Their words may quote anything, so they are not repeated.
_UNREADABLE = (asyncpg.DataError, asyncpg.RaiseError, orjson.JSONDecodeError)


class _Settings(StacSettings):  # type: ignore[misc]
    """Only what is said here: the environment and files beside us have no say."""

    @classmethod
    def settings_customise_sources(
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class _Client(CoreCrudClient):  # type: ignore[misc]
    """Adds what depends on where this server is: where a person can look at what is catalogued, and today's addresses."""

    async def all_collections(self, request: Request, **asked: Any) -> Any:
        _require_box(asked.get("bbox"))
        found = await super().all_collections(request=request, **asked)
        if isinstance(found, Response):  # as JSON already where only some fields are asked for
            read = orjson.loads(found.body)
            _readdress(read["collections"], request)
            return JSONResponse(read)
        _readdress(found["collections"], request)
        for collection in found["collections"]:
            _add_map(collection, collection.get("id"), request)
        return found

    async def get_collection(self, collection_id: str, request: Request, **asked: Any) -> Any:
        found = await super().get_collection(collection_id, request=request, **asked)
        _readdress([found], request)
        return _add_map(found, collection_id, request)

    async def _search_base(self, search_request: Any, request: Request) -> Any:
        """Every item that is answered comes by here."""
        _require_box(search_request.bbox)
        if search_request.limit is not None:
            search_request.limit = min(search_request.limit, MOST_ITEMS)
        found = await super()._search_base(search_request, request=request)
        _readdress(found["features"], request)
        if _is_datetime_asked(getattr(search_request, "fields", None)):
            for item in found["features"]:
                # Required, and null for an interval; pgSTAC drops nulls.
                item.setdefault("properties", {}).setdefault("datetime", None)
        return found

    async def get_item(self, item_id: str, collection_id: str, request: Request, **asked: Any) -> Any:
        found = await super().get_item(item_id, collection_id, request=request, **asked)
        version = (found.get("properties") or {}).get("dagmaster:version_ordinal")
        return _add_map(found, collection_id, request, None if version is None else int(version))


def _require_box(bbox: Iterable[float] | None) -> None:
    """No comparison holds with what is no number: pgSTAC would answer, with anything."""
    if not all(math.isfinite(value) for value in bbox or ()):
        raise InvalidRequest("a bbox is of numbers", code="request.invalid", hint="west,south,east,north in degrees")


def _add_map(found: Any, dataset: str | None, request: Request, ordinal: int | None = None) -> Any:
    if dataset and "links" in found:
        address = Addresses(str(request.base_url)).map(dataset, ordinal)
        found["links"].append({"rel": "alternate", "type": "text/html", "title": "Map", "href": address})
    return found


def _readdress(found: Iterable[dict[str, Any]], request: Request) -> None:
    """Let stored addresses of ours begin as the server is reached now: it may have had another port when they were written."""
    base = str(request.base_url)
    for one in found:
        for holder in (*(one.get("links") or ()), *(one.get("assets") or {}).values()):
            if isinstance(href := holder.get("href"), str):
                holder["href"] = rebased(href, base, request.base_url.hostname)


def _is_datetime_asked(fields: Any) -> bool:
    """Whether `fields` leave it in: what was left out on purpose is not null."""
    include, exclude = (set(getattr(fields, name, None) or ()) for name in ("include", "exclude"))
    names = {"properties", "properties.datetime"}
    return bool(include & names) if include else not exclude & names


def create_stac() -> FastAPI:
    """The app; it answers once `connected`."""
    settings = _Settings(
        prefix_path=PREFIX,
        openapi_url=f"{PREFIX}/api",
        docs_url="",  # its page would load scripts from elsewhere
        stac_fastapi_title=TITLE,
        stac_fastapi_description=ABOUT,
        stac_fastapi_landing_id=TITLE,
        stac_fastapi_version=__version__,
        enable_transactions_extensions=False,
        cors_origins=(),  # who may read across origins is decided for all of it at once
    )
    client = partial(_Client, landing_page_id=TITLE, title=TITLE, description=ABOUT)
    api = instantiate_api(client, Extensions(settings=settings), settings=settings)
    app: FastAPI = api.app
    # Its front page links to a page of this name.
    app.add_api_route(f"{PREFIX}/api.html", _get_help, name="swagger_ui_html", include_in_schema=False)
    app.add_exception_handler(InvalidRequest, PROBLEMS.on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    for kind in _NO_CATALOGUE:
        app.add_exception_handler(kind, _on_no_catalogue)
    for kind in _AWAY:
        app.add_exception_handler(kind, _on_away)
    for kind in _UNREADABLE:
        app.add_exception_handler(kind, _on_unreadable)
    app.add_exception_handler(AttributeError, _on_odd_body)
    return app


@asynccontextmanager
async def connected(app: FastAPI, dsn: str) -> AsyncIterator[None]:
    """No connection is opened before it is needed: a database that is away now may be there later."""
    pool = asyncpg.create_pool(
        _address(dsn), min_size=0, max_size=_MOST_CONNECTIONS, init=con_init, timeout=5,
        server_settings={
            "search_path": "pgstac,public", "application_name": "dagmaster-stac",
            "statement_timeout": str(_STATEMENT_SECONDS * 1000),
        },
    )  # fmt: skip
    async with pool:
        app.state.readpool = pool
        app.state.get_connection = get_connection
        yield


def _address(dsn: str) -> str:
    given = conninfo_to_dict(dsn)
    return f"postgresql://?{urlencode({name: given[name] for name in _OF_ADDRESS if given.get(name)})}"


async def _get_help() -> Response:
    return page("stac.html")


async def _on_invalid(request: Request, error: Exception) -> Response:
    """In place of its own, which repeats what was sent, and fails where JSON has no word for that."""
    assert isinstance(error, RequestValidationError)
    mistakes = "; ".join(f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg']}" for e in error.errors()[:5])
    return await PROBLEMS.on_ours(request, InvalidRequest(mistakes, code="request.invalid", hint=_HINT))


async def _on_no_catalogue(request: Request, _error: Exception) -> Response:
    return await PROBLEMS.on_ours(request, not_deployed())


async def _on_away(request: Request, _error: Exception) -> Response:
    away = Unavailable("the database is not available", code="database.unavailable")
    return await PROBLEMS.on_ours(request, away)


async def _on_odd_body(request: Request, error: Exception) -> Response:
    """A search that is no JSON object: its model looks into it before it asks what it is."""
    if request.method != "POST" or "has no attribute 'get'" not in str(error):
        raise error
    return await _on_unreadable(request, error)


async def _on_unreadable(request: Request, _error: Exception) -> Response:
    unreadable = InvalidRequest("a value can't be read", code="request.invalid", hint=_HINT)
    return await PROBLEMS.on_ours(request, unreadable)
