"""The application of the map server. Importing it configures nothing.

create_app(settings, dsn)
  ├── MapMiddleware: request id, host, caller, public URL, cache headers
  ├── / /maps /pages/… /livez /readyz /metrics /openapi.json
  ├── /stac/…              stac-fastapi-pgstac
  ├── /tiles/{asset_id}/…  TiTiler, on COGs and mosaics
  ├── /searches/…          mosaics of the items that a search finds
  ├── /tileMatrixSets /colorMaps /colormaps/… /conformance
  └── /files/{zone}/…      the files themselves
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster import __version__
from dagmaster.access.caller import Caller
from dagmaster.database.assets.keys import KeyStore
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.dataset_urls import SEARCHES
from dagmaster.listen import is_loopback
from dagmaster.serving import (
    caching,
    files,
    grids,
    health,
    landing,
    legends,
    pages,
    problems,
    searches,
    stac,
    stac_connections,
    tiles,
)
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.encoding import ENCODER
from dagmaster.serving.limits import PixelLimits
from dagmaster.serving.middleware import MapMiddleware
from dagmaster.serving.mosaics import MosaicCache
from dagmaster.serving.permissions import FOR_ANYONE, open_plain_routes, set_authentication
from dagmaster.serving.services import MapServices
from dagmaster.serving.shared_tasks import SharedTasks
from dagmaster.serving.sources import SourceResolver
from dagmaster.serving.stac_search import ItemSearch
from dagmaster.settings import Settings
from dagmaster.storage.zones import Storage, open_storage
from dagmaster.web.accept import prefers_html
from dagmaster.web.authentication import LOCAL_ADMIN, LOCAL_VIEWER, authentication_of, authentication_running
from dagmaster.web.metrics import RequestMetrics, name_route, route_of

# Tiles that are rendered at once: more would compete for the cores, and each has an open file and blocks in memory.
_MAX_THREADS = max(4, 2 * (os.cpu_count() or 1))
_CLOSE_IDLE_EVERY_SECONDS = 10.0
_DESCRIPTION = """Datasets of a dagmaster platform as maps: tiles, values, and the files themselves.

The catalogue is at `/stac`, and `/stac/api` describes it. Errors are RFC 9457 problems with a stable `code`."""


def create_app(settings: Settings, dsn: str, *, storage: Storage | None = None) -> FastAPI:
    """The map server on a database and a storage. Neither has to be available yet."""
    storage = storage or open_storage(settings)
    catalog = CatalogReader(dsn)
    access = AccessDecisions(catalog)
    stac_app = stac.create_stac(access, catalog)
    item_search = ItemSearch(stac_app)
    supported = grids.grids_named([name.strip() for name in settings.serving_grids.split(",") if name.strip()])
    services = MapServices(
        catalog=catalog,
        access=access,
        resolver=SourceResolver(catalog),
        storage=storage,
        mosaics=MosaicCache(storage.get),
        datasets=DatasetPool(),
        grids={name: supported.get(name) for name in supported.list()},
        item_search=item_search,
        search_summaries=SharedTasks(),
    )

    everyone = _everyone(settings)
    keys = KeyStore(dsn, "serving-keys", lookups=catalog.request_reads)
    authentication = authentication_of(settings, keys, everyone, keys.sessions)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = _MAX_THREADS
        async with (
            keys,
            authentication_running(authentication),
            catalog,
            stac_connections.connected(stac_app, dsn),
            _idle_datasets_closed(services.datasets),
        ):
            try:
                yield
            finally:
                ENCODER.close()

    app = FastAPI(
        title="dagmaster maps",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    problems.register(app)
    app.add_exception_handler(caching.NotModified, _on_not_modified)
    for each in (app, stac_app):
        set_authentication(each, settings.auth_enabled)
    # The routes that are requested most come first: routes are tried one after the other, and there are some sixty.
    app.include_router(files.router, dependencies=[FOR_ANYONE])
    app.include_router(tiles.router(supported), prefix=tiles.PREFIX, dependencies=[FOR_ANYONE])
    # As routes, not as a mount: the paths of the STAC app begin with the prefix.
    inner = _InnerApp(stac_app)
    catalogue = _CatalogueRoot(inner)
    app.router.routes += [
        Route(stac.PREFIX, catalogue),
        Route(f"{stac.PREFIX}/", catalogue),
        Route(f"{stac.PREFIX}/{{path:path}}", inner),
    ]
    app.include_router(searches.router(), prefix=SEARCHES, dependencies=[FOR_ANYONE])
    app.include_router(grids.router(supported), dependencies=[FOR_ANYONE])
    for module in (landing, legends, pages):
        app.include_router(module.router, dependencies=[FOR_ANYONE])
    app.include_router(health.router)
    open_plain_routes(app.routes)
    if settings.may_expose_maps:
        # A public server allows maps on other sites. On loopback, any site in the user's browser could read the data.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"],
            allow_methods=["GET", "HEAD", "POST", "OPTIONS"],
            allow_headers=["Authorization", "Content-Type", "If-None-Match", "Range", "X-API-Key"],
            expose_headers=["Accept-Ranges", "Content-Length", "Content-Range", "ETag", "X-Request-ID"],
        )
    app.add_middleware(PixelLimits)
    app.state.request_metrics = RequestMetrics("serving", services.metrics)
    app.add_middleware(
        MapMiddleware,
        metrics=app.state.request_metrics,
        own_host=settings.serving_host,
        public_url=settings.public_url,
        is_open_to_all=settings.may_expose_maps,
        authentication=authentication,
        access=access,
        refuses_other_sites=everyone == LOCAL_ADMIN and not settings.auth_enabled,
    )
    return app


def _everyone(settings: Settings) -> Caller:
    """The caller of every request if authentication is disabled: an administrator if only this machine can reach the
    server, else a viewer."""
    public_host = urlsplit(settings.public_url).hostname if settings.public_url else None
    is_local = not settings.serving_insecure and (public_host is None or is_loopback(public_host))
    return LOCAL_ADMIN if is_local else LOCAL_VIEWER


@asynccontextmanager
async def _idle_datasets_closed(datasets: DatasetPool) -> AsyncIterator[None]:
    """Close datasets that are no longer used, in the background and at the end."""

    async def close_idle() -> None:
        while True:
            await asyncio.sleep(_CLOSE_IDLE_EVERY_SECONDS)
            await asyncio.to_thread(datasets.close_idle)

    task = asyncio.create_task(close_idle())
    try:
        yield
    finally:
        task.cancel()
        datasets.close_idle(0)


class _InnerApp:
    """Calls an app without the router of the outer app in the scope: it would build URLs with the wrong routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.inner_app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = {name: part for name, part in scope.items() if name not in ("router", "route", "fastapi")}
        try:
            await self.inner_app(inner, receive, send)
        finally:
            name_route(scope, route_of(inner))


class _CatalogueRoot:
    """The root of the catalogue: a page for browsers, JSON for all other clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if prefers_html(Request(scope)):
            is_folder = scope["path"].endswith("/")  # links on the page are relative
            response = pages.page("stac.html") if is_folder else RedirectResponse(f".{stac.PREFIX}/")
            response.headers["Vary"] = "Accept"
            await response(scope, receive, send)
            return

        async def send_with_vary(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).add_vary_header("Accept")
            await send(message)

        await self._app(scope, receive, send_with_vary)


async def _on_not_modified(_request: Request, _error: Exception) -> Response:
    return Response(status_code=304)
