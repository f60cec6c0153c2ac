"""The application of the map server. Importing it configures nothing.

create_app(settings, dsn)
  ├── MapMiddleware: request id, host, public URL, cache headers
  ├── / /pages/… /livez /readyz /openapi.json
  ├── /stac/…              stac-fastapi-pgstac
  ├── /tiles/{asset_id}/…  TiTiler, on COGs and mosaics
  └── /files/{zone}/…      the files themselves
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster import __version__
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.serving import caching, files, health, legends, pages, problems, stac, tiles
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.middleware import MapMiddleware
from dagmaster.serving.mosaics import MosaicCache
from dagmaster.serving.services import MapServices
from dagmaster.serving.sources import CachedResolver, PgstacResolver
from dagmaster.settings import Settings
from dagmaster.storage.zones import Storage, open_storage

# Tiles that are rendered at once: more would compete for the cores, and each has an open file and blocks in memory.
_MAX_THREADS = max(4, 2 * (os.cpu_count() or 1))
_CLOSE_IDLE_EVERY_SECONDS = 10.0
_DESCRIPTION = """Datasets of a dagmaster platform as maps: tiles, values, and the files themselves.

The catalogue is at `/stac`, and `/stac/api` describes it. Errors are RFC 9457 problems with a stable `code`."""


def create_app(settings: Settings, dsn: str, *, storage: Storage | None = None) -> FastAPI:
    """The map server on a database and a storage. Neither has to be available yet."""
    storage = storage or open_storage(settings)
    stac_app = stac.create_stac()
    catalog = CatalogReader(dsn)
    services = MapServices(
        catalog=catalog,
        resolver=CachedResolver(PgstacResolver(catalog)),
        storage=storage,
        mosaics=MosaicCache(storage.get),
        datasets=DatasetPool(),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = _MAX_THREADS
        async with catalog, stac.connected(stac_app, dsn), _idle_datasets_closed(services.datasets):
            yield

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
    app.include_router(tiles.router(), prefix=tiles.PREFIX)
    for module in (files, health, legends, pages):
        app.include_router(module.router)
    # As routes, not as a mount: the paths of the STAC app begin with the prefix.
    inner = _InnerApp(stac_app)
    app.router.routes += [Route(stac.PREFIX, inner), Route(f"{stac.PREFIX}/{{path:path}}", inner)]
    if settings.serving_insecure:
        # A public server allows maps on other sites. On loopback, any site in the user's browser could read the data.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"],
            allow_methods=["GET", "HEAD", "POST", "OPTIONS"],
            allow_headers=["Content-Type", "Range", "If-None-Match"],
            expose_headers=["Accept-Ranges", "Content-Length", "Content-Range", "ETag", "X-Request-ID"],
        )
    app.add_middleware(
        MapMiddleware,
        own_host=settings.serving_host,
        public_url=settings.public_url,
        is_open_to_all=settings.serving_insecure,
    )
    return app


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
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({name: part for name, part in scope.items() if name != "router"}, receive, send)


async def _on_not_modified(_request: Request, _error: Exception) -> Response:
    return Response(status_code=304)
