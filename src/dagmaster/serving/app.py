"""The map server: others' servers put together on one catalogue. Nothing is configured at import.

create_app(settings, dsn)
  ├── Door: request id, host, public address, how long answers may be kept
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
from dagmaster.database.catalog.datasets import Served
from dagmaster.serving import caching, files, health, legends, pages, problems, stac, tiles
from dagmaster.serving.handles import Handles
from dagmaster.serving.middleware import MapMiddleware
from dagmaster.serving.mosaics import Mosaics
from dagmaster.serving.services import MapServices
from dagmaster.serving.sources import PgstacSources, Remembered
from dagmaster.settings import Settings
from dagmaster.storage.zones import Storage, open_storage

# Tiles made at once: more would take turns on the cores, and each has a file open and blocks of it in memory.
_MOST_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
_TIDY_SECONDS = 10.0
_DESCRIPTION = """Datasets of a dagmaster platform as maps: tiles, values, and the files themselves.

The catalogue is at `/stac`, with a description of its own at `/stac/api`. Errors are RFC 9457 problems with a stable `code`."""


def create_app(settings: Settings, dsn: str, *, storage: Storage | None = None) -> FastAPI:
    """The map server on a database and a storage. Neither has to be there yet."""
    where = storage or open_storage(settings)
    catalogue = stac.create_stac()
    served = Served(dsn)
    services = MapServices(served, Remembered(PgstacSources(served)), where, Mosaics(where.get), Handles())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = _MOST_AT_ONCE
        async with served, stac.connected(catalogue, dsn), _tidied(services.handles):
            yield

    app = FastAPI(
        title="dagmaster maps", version=__version__, description=_DESCRIPTION, lifespan=lifespan, docs_url=None,
        redoc_url=None,
    )  # fmt: skip
    app.state.services = services
    problems.register(app)
    app.add_exception_handler(caching.Unchanged, _on_unchanged)
    app.include_router(tiles.router(), prefix=tiles.PREFIX)
    for module in (files, health, legends, pages):
        app.include_router(module.router)
    # As routes, not as a mount: the app's own routes begin with the prefix.
    inner = _Inner(catalogue)
    app.router.routes += [Route(stac.PREFIX, inner), Route(f"{stac.PREFIX}/{{rest:path}}", inner)]
    if settings.serving_insecure:
        # Who serves to everybody wants maps on other sites to read it; on loopback such a site could be anyone's.
        app.add_middleware(
            CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "HEAD", "POST", "OPTIONS"],
            allow_headers=["Content-Type", "Range", "If-None-Match"],
            expose_headers=["Accept-Ranges", "Content-Length", "Content-Range", "ETag", "X-Request-ID"],
        )  # fmt: skip
    app.add_middleware(
        MapMiddleware,
        own_host=settings.serving_host,
        public_url=settings.public_url,
        is_open_to_all=settings.serving_insecure,
    )
    return app


@asynccontextmanager
async def _tidied(handles: Handles) -> AsyncIterator[None]:
    """Files that nobody asks for any more don't stay open."""

    async def tidy() -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            await asyncio.to_thread(handles.close_unused)

    tidying = asyncio.create_task(tidy())
    try:
        yield
    finally:
        tidying.cancel()
        handles.close_unused(0)


class _Inner:
    """An app inside another, which finds its own routes by their names and not the outer one's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({name: part for name, part in scope.items() if name != "router"}, receive, send)


async def _on_unchanged(_request: Request, _error: Exception) -> Response:
    return Response(status_code=304)
