"""The API inside a test: in memory, or on a port if the test needs real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from httpx2 import ASGITransport, AsyncClient

from dagmaster.api.app import create_app
from dagmaster.api.server import ApiServer
from dagmaster.handlers.registry import installed
from dagmaster.listen import bind
from tests.engine.harness import Engine, fast_settings
from tests.workflow_library import library_of

V1 = "/api/v1"


def app_of(dsn: str, running: Engine | None = None, *, heartbeat_seconds: float = 15.0, **settings: Any) -> Any:
    """The app on a database; with an engine, it has the handlers and workflows of the engine."""
    chosen = fast_settings(**settings)
    registry = running.registry if running else installed()
    catalog = running.library if running else library_of(chosen, registry)
    orchestrator = running.orchestrators[0] if running and running.orchestrators else None
    return create_app(chosen, dsn, catalog, registry, orchestrator=orchestrator, heartbeat_seconds=heartbeat_seconds)


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[AsyncClient]:
    in_memory = AsyncClient(transport=ASGITransport(app=app), base_url="http://localhost", timeout=30)
    async with app.router.lifespan_context(app), in_memory as client:
        yield client


@asynccontextmanager
async def api(dsn: str, running: Engine | None = None, **more: Any) -> AsyncIterator[AsyncClient]:
    async with client_of(app_of(dsn, running, **more)) as client:
        yield client


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[ApiServer]:
    """The app on a free port."""
    server = ApiServer(app, bind("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    while not server.is_started:
        assert not task.done(), task
        await asyncio.sleep(0.01)
    try:
        yield server
    finally:
        await server.stop()
        await asyncio.wait_for(task, 20)


async def ok(awaited: Any, status: int = 200) -> Any:
    """The body of a response that has the expected status."""
    response = await awaited
    assert response.status_code == status, response.text
    return response.json() if response.content else None


async def pages_of(client: AsyncClient, path: str, **params: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list."""
    pages: list[list[dict[str, Any]]] = []
    while True:
        page = await ok(client.get(path, params=params))
        pages.append(page["items"])
        if page["next"] is None:
            return pages
        params["after"] = page["next"]
