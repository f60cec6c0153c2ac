"""The STAC API: stac-fastapi-pgstac on the platform's database, for reading only.

It is a separate app whose paths begin with `/stac`: if it were mounted there, its links would lack the prefix.
`connected` opens its connections, because the lifespan of an app inside another one is not run.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
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
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster import __version__
from dagmaster.addresses import STAC, Addresses, rebased
from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.serving.filters import require_flat_json, require_flat_text, require_simple_filter
from dagmaster.serving.pages import page
from dagmaster.serving.problems import PROBLEMS, describe

# On import it creates settings that are not used here, and warns that they are not set.
logging.getLogger("stac_fastapi.types.config").setLevel(logging.ERROR)

from stac_fastapi.pgstac.app import instantiate_api  # noqa: E402
from stac_fastapi.pgstac.config import Settings as StacSettings  # noqa: E402
from stac_fastapi.pgstac.core import CoreCrudClient, clean_search_args  # noqa: E402
from stac_fastapi.pgstac.db import con_init, get_connection  # noqa: E402
from stac_fastapi.pgstac.models.extensions import Extensions  # noqa: E402

PREFIX = STAC
TITLE = "dagmaster"
ABOUT = "Datasets of this platform: validated, cloud-optimised, and served as maps"
_MAX_CONNECTIONS = 4
_STATEMENT_SECONDS = 10
# On one page: it has a link to the next.
MAX_ITEMS = 1000
_HINT = "/stac/api describes the API"
# The connection parameters that asyncpg supports; it would send others to the server as settings.
_CONNECTION_PARAMETERS = (
    *("host", "port", "user", "password", "dbname", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
)
_NO_CATALOG_ERRORS = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
_UNAVAILABLE_ERRORS = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidCatalogNameError,
)
# Raised for values that PostgreSQL, pgSTAC or a parser cannot read. The messages may quote data: they are not returned.
_UNREADABLE_ERRORS = (asyncpg.DataError, asyncpg.RaiseError, orjson.JSONDecodeError)


class _StacSettings(StacSettings):  # type: ignore[misc]
    """Settings from arguments only: not from the environment and not from `.env` files."""

    @classmethod
    def settings_customise_sources(
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class _Client(CoreCrudClient):  # type: ignore[misc]
    """Limits searches, adds links to the map page, and replaces stored URLs of this server by current ones."""

    async def all_collections(self, request: Request, **search: Any) -> Any:
        _limit_search(search)

        def adapt(document: Any) -> None:
            _update_urls(document["collections"], request)
            if not search.get("fields"):
                for collection in document["collections"]:
                    _add_map_link(collection, collection.get("id"), request)

        return _adapted(await super().all_collections(request=request, **search), adapt)

    async def get_collection(self, collection_id: str, request: Request, **options: Any) -> Any:
        collection = await super().get_collection(collection_id, request=request, **options)
        _update_urls([collection], request)
        return _add_map_link(collection, collection_id, request)

    async def get_item(self, item_id: str, collection_id: str, request: Request, **options: Any) -> Any:
        item = await super().get_item(item_id, collection_id, request=request, **options)
        _adapt_items([item], request, {})
        ordinal = (item.get("properties") or {}).get("dagmaster:version_ordinal")
        return _add_map_link(item, collection_id, request, None if ordinal is None else int(ordinal))

    async def item_collection(self, collection_id: str, request: Request, **search: Any) -> Any:
        _limit_search(search)
        response = await super().item_collection(collection_id, request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields))

    async def get_search(self, request: Request, **search: Any) -> Any:
        _limit_search(search)
        response = await super().get_search(request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields))

    async def post_search(self, search_request: Any, request: Request, **options: Any) -> Any:
        require_flat_json(orjson.loads(await request.body()))
        limited = {"bbox": search_request.bbox, "limit": search_request.limit}
        _limit_search(limited)
        search_request.limit = limited["limit"]
        response = await super().post_search(search_request, request=request, **options)
        fields = search_request.fields.model_dump() if getattr(search_request, "fields", None) else {}
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields))


def _limit_search(search: dict[str, Any]) -> None:
    _require_finite(search.get("bbox"))
    require_simple_filter(search.get("filter_expr"))
    for name in ("query", "intersects"):
        require_flat_text(search.get(name))
    if search.get("limit") is not None:
        search["limit"] = min(search["limit"], MAX_ITEMS)


def _require_finite(bbox: Iterable[float] | None) -> None:
    """Every comparison with NaN is false: pgSTAC would return arbitrary items."""
    if not all(math.isfinite(value) for value in bbox or ()):
        message = "the bbox must consist of finite numbers"
        raise InvalidRequest(message, code="request.invalid", hint="west,south,east,north in degrees")


def _adapted(response: Any, adapt: Callable[[Any], None]) -> Any:
    """Adapt a document. If the request selects fields, stac-fastapi has rendered it to a response already."""
    if not isinstance(response, Response):
        adapt(response)
        return response
    document = orjson.loads(response.body)
    adapt(document)
    return type(response)(document)


def _adapt_items(items: list[dict[str, Any]], request: Request, fields: Mapping[str, Any]) -> None:
    _update_urls(items, request)
    include, exclude = (set(fields.get(name) or ()) for name in ("include", "exclude"))
    names = {"properties", "properties.datetime"}
    if include & names if include else not exclude & names:
        for item in items:
            # The field is required, and null for an interval; pgSTAC drops nulls.
            item.setdefault("properties", {}).setdefault("datetime", None)


def _add_map_link(document: Any, dataset: str | None, request: Request, ordinal: int | None = None) -> Any:
    if dataset and "links" in document:
        url = Addresses(str(request.base_url)).map(dataset, ordinal)
        document["links"].append({"rel": "alternate", "type": "text/html", "title": "Map", "href": url})
    return document


def _update_urls(documents: Iterable[dict[str, Any]], request: Request) -> None:
    """Let stored URLs of this server begin with its current URL: it may have had another port when they were stored."""
    base = str(request.base_url)
    for document in documents:
        for link in (*(document.get("links") or ()), *(document.get("assets") or {}).values()):
            if isinstance(href := link.get("href"), str):
                link["href"] = rebased(href, base, request.base_url.hostname)


def create_stac() -> FastAPI:
    """The app. It can serve requests within `connected`."""
    settings = _StacSettings(
        prefix_path=PREFIX,
        openapi_url=f"{PREFIX}/api",
        docs_url="",  # the page would load scripts from other servers
        stac_fastapi_title=TITLE,
        stac_fastapi_description=ABOUT,
        stac_fastapi_landing_id=TITLE,
        stac_fastapi_version=__version__,
        enable_transactions_extensions=False,
        cors_origins=(),  # the outer app sets CORS for all routes
    )
    client = partial(_Client, landing_page_id=TITLE, title=TITLE, description=ABOUT)
    api = instantiate_api(client, Extensions(settings=settings), settings=settings)
    app: FastAPI = api.app
    # The landing page links to a route of this name.
    app.add_api_route(f"{PREFIX}/api.html", _get_help, name="swagger_ui_html", include_in_schema=False)
    app.add_exception_handler(InvalidRequest, PROBLEMS.on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, PROBLEMS.on_http)
    for error in _NO_CATALOG_ERRORS:
        app.add_exception_handler(error, _on_no_catalog)
    for error in _UNAVAILABLE_ERRORS:
        app.add_exception_handler(error, _on_unavailable)
    for error in _UNREADABLE_ERRORS:
        app.add_exception_handler(error, _on_unreadable)
    app.add_exception_handler(AttributeError, _on_attribute_error)
    return app


@asynccontextmanager
async def connected(app: FastAPI, dsn: str) -> AsyncIterator[None]:
    """Give the app a pool. Connections are opened on demand: the database may become available later."""
    pool = asyncpg.create_pool(
        _asyncpg_dsn(dsn),
        min_size=0,
        max_size=_MAX_CONNECTIONS,
        init=con_init,
        timeout=5,
        server_settings={
            "search_path": "pgstac,public",
            "application_name": "dagmaster-stac",
            "statement_timeout": str(_STATEMENT_SECONDS * 1000),
        },
    )
    async with pool:
        app.state.readpool = pool
        app.state.get_connection = get_connection
        yield


def _asyncpg_dsn(dsn: str) -> str:
    parameters = conninfo_to_dict(dsn)
    supported = {name: parameters[name] for name in _CONNECTION_PARAMETERS if parameters.get(name)}
    return f"postgresql://?{urlencode(supported)}"


async def _get_help() -> Response:
    return page("stac.html")


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Replaces stac-fastapi's handler, which repeats the values and fails for those that JSON cannot represent."""
    assert isinstance(error, RequestValidationError)
    return await PROBLEMS.on_error(request, InvalidRequest(describe(error), code="request.invalid", hint=_HINT))


async def _on_no_catalog(request: Request, _error: Exception) -> Response:
    return await PROBLEMS.on_error(request, not_deployed())


async def _on_unavailable(request: Request, _error: Exception) -> Response:
    unavailable = Unavailable("the database is not available", code="database.unavailable")
    return await PROBLEMS.on_error(request, unavailable)


async def _on_attribute_error(request: Request, error: Exception) -> Response:
    """A search that is not a JSON object: its model calls `get` on the body before it checks the type."""
    if request.method != "POST" or "has no attribute 'get'" not in str(error):
        raise error
    return await _on_unreadable(request, error)


async def _on_unreadable(request: Request, _error: Exception) -> Response:
    unreadable = InvalidRequest("a value cannot be read", code="request.invalid", hint=_HINT)
    return await PROBLEMS.on_error(request, unreadable)
