"""The STAC API: stac-fastapi-pgstac on the platform's database, for reading only.

It is a separate app whose paths begin with `/stac`: if it were mounted there, its links would lack the prefix.
`connected` opens its connections, because the lifespan of an app inside another one is not run.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import asyncpg
import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster import __version__
from dagmaster.addresses import Addresses, rebased
from dagmaster.database.catalog.datasets import CatalogReader, too_slow
from dagmaster.database.catalog.pgstac import not_deployed
from dagmaster.database.token_login import login_of, secure_mode
from dagmaster.dataset_urls import STAC
from dagmaster.errors import DagmasterError, InvalidRequest, NotFound, Unavailable
from dagmaster.serving import revisions
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.filters import (
    require_flat_text,
    require_simple_filter,
    require_simple_geometry,
    require_simple_json,
)
from dagmaster.serving.hydration import read_page
from dagmaster.serving.pages import page
from dagmaster.serving.permissions import FOR_ANYONE, FOR_MONITORS, open_plain_routes
from dagmaster.serving.problems import PROBLEMS, describe
from dagmaster.serving.queries import FilteringQueryExtension, both_filters, filter_of, move_query
from dagmaster.serving.revisions import RevisionReader
from dagmaster.web.problems import request_id_of

# On import stac-fastapi creates settings that are not used here, and warns that they are not set.
logging.getLogger("stac_fastapi.types.config").setLevel(logging.ERROR)

from stac_fastapi.api.routes import add_route_dependencies  # noqa: E402
from stac_fastapi.extensions import (  # noqa: E402
    CollectionSearchFilterExtension,
    ItemCollectionFilterExtension,
    SearchFilterExtension,
)
from stac_fastapi.extensions.query import QueryConformanceClasses  # noqa: E402
from stac_fastapi.extensions.sort import (  # noqa: E402
    ItemCollectionSortExtension,
    SearchSortExtension,
    SortConformanceClasses,
)
from stac_fastapi.pgstac.app import instantiate_api  # noqa: E402
from stac_fastapi.pgstac.config import Settings as StacSettings  # noqa: E402
from stac_fastapi.pgstac.core import CoreCrudClient, clean_search_args  # noqa: E402
from stac_fastapi.pgstac.db import con_init, translate_pgstac_errors  # noqa: E402
from stac_fastapi.pgstac.extensions.filter import FiltersClient  # noqa: E402
from stac_fastapi.pgstac.models.extensions import Extensions  # noqa: E402
from stac_fastapi.pgstac.models.links import ItemLinks, PagingLinks  # noqa: E402
from stac_fastapi.pgstac.utils import filter_fields  # noqa: E402
from stac_fastapi.types.errors import NotFoundError  # noqa: E402

Collections = tuple[str, ...] | None  # the collections that a caller may see; None means all

PREFIX = STAC
TITLE = "dagmaster"
ABOUT = "Datasets of this platform: validated, cloud-optimised, and served as maps"
_MAX_CONNECTIONS = 4
STATEMENT_SECONDS = 10.0
# How long a search waits for a connection while others use all of them.
WAIT_SECONDS = 20.0
# Items on one page, which has a link to the next one.
MAX_ITEMS = 1000
# Items that are completed before the event loop can run other requests.
_ITEMS_AT_ONCE = 50
_GEOJSON = "application/geo+json"
_HINT = "/stac/api describes the API"
_NO_COLLECTION = "-"  # not the id of a dataset; for pgSTAC an empty list means all
# Clients look for the classes of version 1.0; stac-fastapi claims those of 1.1 alone, which have the same content.
_SORT_1_0 = "https://api.stacspec.org/v1.0.0/{}#sort"
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


class _StacSettings(StacSettings):  # type: ignore[misc]
    """Settings from arguments only: not from the environment and not from `.env` files."""

    @classmethod
    def settings_customise_sources(
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class _Client(CoreCrudClient):  # type: ignore[misc]
    """Shows what the caller may see, limits searches, adds links to the map page, and replaces stored URLs of this
    server by current ones."""

    async def all_collections(self, request: Request, **search: Any) -> Any:
        _limit_search(search)
        listed = await _access(request).listed_collections(request)

        def adapt(document: Any) -> None:
            _update_urls(document["collections"], request)
            if not search.get("fields"):
                for collection in document["collections"]:
                    _add_map_link(collection, collection.get("id"), request)

        response = await super().all_collections(request=request, **search, listed=listed)
        return _adapted(response, adapt, "application/json")

    def _clean_search_args(self, base_args: Any, *args: Any, listed: Collections = None, **options: Any) -> Any:
        """The arguments for pgSTAC. A search for collections has `listed`, the collections that it may find."""
        clean = super()._clean_search_args(base_args, *args, **options)
        return clean if listed is None else {**clean, "ids": list(listed)}

    async def get_collection(self, collection_id: str, request: Request, **options: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                return await _revision_documents(request).collection(request, collection_id)
        await _require_listed(request, collection_id)
        collection = await super().get_collection(collection_id, request=request, **options)
        _update_urls([collection], request)
        return _add_map_link(collection, collection_id, request)

    async def get_item(self, item_id: str, collection_id: str, request: Request, **options: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                return await _revision_documents(request).item(request, collection_id, item_id)
        item = await super().get_item(item_id, collection_id, request=request, **options)
        _adapt_items([item], request, {})
        ordinal = (item.get("properties") or {}).get("dagmaster:version_ordinal")
        return _add_map_link(item, collection_id, request, None if ordinal is None else int(ordinal))

    async def item_collection(self, collection_id: str, request: Request, **search: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                document = await _revision_documents(request).items(request, collection_id)
            return Response(orjson.dumps(document), media_type=_GEOJSON)
        _limit_search(search)
        response = await super().item_collection(collection_id, request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def get_search(self, request: Request, **search: Any) -> Any:
        _limit_search(search)
        response = await super().get_search(request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def post_search(self, search_request: Any, request: Request, **options: Any) -> Any:
        require_simple_json(orjson.loads(await request.body()))
        _limit_body(search_request)
        response = await super().post_search(search_request, request=request, **options)
        fields = search_request.fields.model_dump() if getattr(search_request, "fields", None) else {}
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def _search_base(self, search_request: Any, request: Request) -> Any:
        """Replaces stac-fastapi's method, which fails for all items if the values of one have other types than those of
        its collection."""
        listed = await _access(request).listed_collections(request)
        page = await _read_items(_limited_to(search_request, listed), listed, request.app.state.readpool)
        fields = getattr(search_request, "fields", None)
        include, exclude = (set(getattr(fields, name, None) or ()) for name in ("include", "exclude"))
        include |= {"id", "collection"} if include else set()  # as pgSTAC selects them
        for number, item in enumerate(page["features"]):
            page["features"][number] = await _select_fields(item, include, exclude, request)
            if number % _ITEMS_AT_ONCE == 0:
                await asyncio.sleep(0)  # let the event loop run other requests
        tokens = {link["rel"]: link["href"].partition(f"token={link['rel']}:")[2] for link in page.get("links", ())}
        paging = PagingLinks(request=request, next=tokens.get("next"), prev=tokens.get("prev"))
        links = await paging.get_links()
        for link in links:
            if link["rel"] == "self":
                link["type"] = _GEOJSON  # stac-fastapi corrects it unless fields are selected
        return {**page, "links": links}


class _QueryablesClient(FiltersClient):  # type: ignore[misc]
    async def get_queryables(self, request: Request, collection_id: str | None = None, **_: Any) -> Any:
        """Replaces stac-fastapi's method: without a collection, the queryables of all that the caller may see."""
        ids: list[str] | None = None
        if collection_id is not None:
            await _require_listed(request, collection_id)
            ids = [collection_id]
        elif (listed := await _access(request).listed_collections(request)) is not None:
            ids = list(listed) or [_NO_COLLECTION]
        async with request.app.state.get_connection(request, "r") as connection:
            queryables = await connection.fetchval("SELECT get_queryables($1::text[])", ids)
        if not queryables:
            raise NotFoundError(f"Collection {collection_id} not found")
        return {**queryables, "$id": str(request.url)}


def _access(request: Request) -> AccessDecisions:
    access: AccessDecisions = request.app.state.access
    return access


def _revision_documents(request: Request) -> RevisionReader:
    documents: RevisionReader = request.app.state.revision_documents
    return documents


async def _require_listed(request: Request, collection_id: str) -> None:
    if not await _access(request).is_listed(request, collection_id):
        raise _no_collection(collection_id)


def _no_collection(collection_id: str) -> NotFoundError:
    """The error has the same message as that of stac-fastapi for an unknown collection."""
    return NotFoundError(f"Collection {collection_id} does not exist.")


@contextmanager
def _not_found_as(error: NotFoundError) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise error from None


def _limited_to(search_request: Any, listed: Collections) -> Any:
    """The search, in the listed collections only. pgSTAC does not read the partitions of others at all, so that neither
    a filter nor a sorting can reveal anything about them."""
    if listed is None:
        return search_request
    requested = search_request.collections
    limited = search_request.model_copy()
    limited.collections = list(listed) if requested is None else sorted({*requested} & {*listed})
    if _collection_of_token(getattr(search_request, "token", None)) not in (None, *limited.collections):
        raise _unreadable()
    return limited


def _collection_of_token(token: str | None) -> str | None:
    """The collection of the item at which a page begins: pgSTAC would compare with it, visible or not."""
    parts = (token or "").split(":")
    if len(parts) != 3:
        return None
    try:
        return bytes.fromhex(parts[1]).decode()
    except ValueError:
        return None


class ItemSearch:
    """Searches of other routes than those of the STAC API, with its models, checks, connections and limits."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def page(self, search: Mapping[str, Any], listed: Collections) -> dict[str, Any]:
        """A page of items for the body of a POST search, of the listed collections (None means all)."""
        model = _limited_to(self.parsed(search), listed)
        try:
            return await _read_items(model, listed, self._app.state.readpool)
        except tuple(_ERRORS) as error:
            raise _translated(error) from error

    def parsed(self, search: Mapping[str, Any]) -> Any:
        """The model of a search; refused if the STAC API would refuse it."""
        require_simple_json(search)
        try:
            model = self._app.state.search_model.model_validate(search)
        except ValidationError as error:
            message = describe(RequestValidationError(error.errors()))
            raise InvalidRequest(message, code="request.invalid", hint=_HINT) from None
        _limit_body(model)
        return model


async def _read_items(search_request: Any, listed: Collections, pool: asyncpg.Pool) -> dict[str, Any]:
    """A page of items. If the collections are limited, it uses a search that is planned fast even for many of them."""
    search_request.conf = {**(search_request.conf or {}), "nohydrate": True}
    search = search_request.model_dump_json(exclude_none=True, by_alias=True)
    async with _connection(pool) as connection:
        if listed is None:
            return read_page(await connection.fetchval("SELECT search($1::text::jsonb)::text", search))
        statement = "SELECT dagapp.search_listed($1::text::jsonb, $2::text[])::text"
        return read_page(await connection.fetchval(statement, search, search_request.collections))


async def _select_fields(item: dict[str, Any], include: set[str], exclude: set[str], request: Request) -> Any:
    """The selected fields of an item, with its links."""
    selected = filter_fields(item, include, exclude)
    if "links" not in exclude:
        links = ItemLinks(collection_id=item["collection"], item_id=item["id"], request=request)
        selected["links"] = await links.get_links(extra_links=selected.get("links"))
    return selected


def _limit_body(search_request: Any) -> None:
    limited = {"bbox": search_request.bbox, "limit": search_request.limit}
    _limit_search(limited)
    search_request.limit = limited["limit"]
    if search_request.query:
        search_request.filter_expr = both_filters(search_request.filter_expr, filter_of(search_request.query))
        search_request.query = None


def _limit_search(search: dict[str, Any]) -> None:
    _require_finite(search.get("bbox"))
    require_simple_filter(search.get("filter_expr"))
    for name in ("fields", "sortby"):
        _require_names(name, search.get(name))
    require_flat_text(search.get("query"))
    require_simple_geometry(search.get("intersects"))
    if search.get("limit") is not None:
        search["limit"] = min(search["limit"], MAX_ITEMS)
    move_query(search)


def _require_names(parameter: str, names: Iterable[str] | None) -> None:
    """Refuse empty names: stac-fastapi reads the first character of each name."""
    if not all(isinstance(name, str) and name.strip(" +-") for name in names or ()):
        raise InvalidRequest(f"{parameter} has an empty name", code="request.invalid", hint=_HINT)


def _require_finite(bbox: Iterable[float] | None) -> None:
    """Every comparison with NaN is false: pgSTAC would return arbitrary items."""
    if not all(math.isfinite(value) for value in bbox or ()):
        message = "the bbox must consist of finite numbers"
        raise InvalidRequest(message, code="request.invalid", hint="west,south,east,north in degrees")


def _adapted(response: Any, adapt: Callable[[Any], None], media_type: str) -> Response:
    """Adapt a document, and render it: FastAPI would first copy each of its values, which takes longer than the search.

    If the request selects fields, stac-fastapi has rendered it to a response already.
    """
    document = orjson.loads(response.body) if isinstance(response, Response) else response
    adapt(document)
    return Response(orjson.dumps(document), media_type=media_type)


def _adapt_items(items: list[dict[str, Any]], request: Request, fields: Mapping[str, Any]) -> None:
    _update_urls(items, request)
    include, exclude = (set(fields.get(name) or ()) for name in ("include", "exclude"))
    names = {"properties", "properties.datetime"}
    if (not include or include & names) and not names & (exclude - include):
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
    base, own_host = str(request.base_url), request.base_url.hostname
    for document in documents:
        for link in (*(document.get("links") or ()), *(document.get("assets") or {}).values()):
            if isinstance(href := link.get("href"), str):
                link["href"] = rebased(href, base, own_host)


def create_stac(access: AccessDecisions, catalog: CatalogReader) -> FastAPI:
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
    api = instantiate_api(client, _extensions(settings), settings=settings)
    app: FastAPI = api.app
    app.state.search_model = api.search_post_request_model
    app.state.access = access
    app.state.revision_documents = RevisionReader(access, catalog)
    # The landing page links to a route of this name.
    app.add_api_route(f"{PREFIX}/api.html", _get_help, name="swagger_ui_html", include_in_schema=False)
    open_plain_routes(app.routes)
    add_route_dependencies(app.routes, [{"path": "*", "method": "*"}], [FOR_ANYONE])
    add_route_dependencies(app.routes, [{"path": f"{PREFIX}/_mgmt/health", "method": "GET"}], [FOR_MONITORS])
    app.add_exception_handler(InvalidRequest, PROBLEMS.on_error)
    app.add_exception_handler(Unavailable, PROBLEMS.on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, PROBLEMS.on_http)
    for error in _ERRORS:
        app.add_exception_handler(error, _on_database_error)
    app.add_exception_handler(AttributeError, _on_attribute_error)
    app.add_exception_handler(Exception, _on_bug)
    return app


def _extensions(settings: _StacSettings) -> Extensions:
    return Extensions(
        settings=settings,
        search_map={
            "query": FilteringQueryExtension(),
            "filter": SearchFilterExtension(client=_QueryablesClient()),
            "sort": SearchSortExtension(
                conformance_classes=[SortConformanceClasses.ITEM_SEARCH_SORT, _SORT_1_0.format("item-search")]
            ),
        },
        item_collection_map={
            "query": FilteringQueryExtension(conformance_classes=[QueryConformanceClasses.ITEMS]),
            "filter": ItemCollectionFilterExtension(client=_QueryablesClient()),
            "sort": ItemCollectionSortExtension(
                conformance_classes=[SortConformanceClasses.FEATURES_SORT, _SORT_1_0.format("ogcapi-features")]
            ),
        },
        collection_search_map={
            "query": FilteringQueryExtension(conformance_classes=[QueryConformanceClasses.COLLECTIONS]),
            "filter": CollectionSearchFilterExtension(client=_QueryablesClient()),
        },
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
    async with _connection(request.app.state.readpool) as connection:
        yield connection


@asynccontextmanager
async def _connection(pool: asyncpg.Pool) -> AsyncIterator[Any]:
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


async def _get_help() -> Response:
    return page("stac.html")


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Replaces stac-fastapi's handler, which repeats the values and fails for those that JSON cannot represent."""
    assert isinstance(error, RequestValidationError)
    return await PROBLEMS.on_error(request, InvalidRequest(describe(error), code="request.invalid", hint=_HINT))


def _missing_catalog(error: Exception) -> DagmasterError:
    if "operator does not exist" in str(error):  # a filter compares values of different types
        return _unreadable(error)
    return not_deployed()


def _unavailable(_error: Exception) -> DagmasterError:
    return Unavailable("the database is not available", code="database.unavailable")


def _unreadable(_error: Exception | None = None) -> DagmasterError:
    return InvalidRequest("a value in the request is not valid", code="request.invalid", hint=_HINT)


# Errors of a search, and what the client receives instead.
_ERRORS: dict[type[Exception], Callable[[Exception], DagmasterError]] = {
    **dict.fromkeys(_NO_CATALOG_ERRORS, _missing_catalog),
    **dict.fromkeys(_UNAVAILABLE_ERRORS, _unavailable),
    **dict.fromkeys(_UNREADABLE_ERRORS, _unreadable),
    asyncpg.QueryCanceledError: lambda _error: too_slow(STATEMENT_SECONDS),
}


def _translated(error: Exception) -> DagmasterError:
    """The error of the closest class, as FastAPI selects handlers."""
    return next(_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS)(error)


async def _on_database_error(request: Request, error: Exception) -> Response:
    return await PROBLEMS.on_error(request, _translated(error))


async def _on_bug(request: Request, _error: Exception) -> Response:
    """The outer app logs the error: it is raised again after the response."""
    return PROBLEMS.bug(request.url.path, request_id_of(request))


async def _on_attribute_error(request: Request, error: Exception) -> Response:
    """A search that is not a JSON object: its model calls `get` on the body before it checks the type."""
    if request.method != "POST" or "has no attribute 'get'" not in str(error):
        raise error
    return await PROBLEMS.on_error(request, _unreadable(error))
