"""The API in the process of a test, as a worker without database access uses it: with a key, over ASGI."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient
from tests.api.serving import app_of
from tests.engine.harness import fast_settings

from dagmaster.api import problems, worker
from dagmaster.api.middleware import ApiMiddleware
from dagmaster.api.services import ApiServices
from dagmaster.client.connection import ApiConnection, authorization
from dagmaster.client.limits import MAX_BODY_BYTES, PREFIX
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.keys import create_key

URL = "http://localhost"


async def a_key(dsn: str, name: str, scopes: Sequence[str] = ("worker",), queues: Sequence[str] | None = None) -> str:
    """The text of a new key."""
    async with KeyStore(dsn) as store:
        request = KeyRequest(name=name, scopes=list(scopes), queues=list(queues) if queues else None)
        return (await create_key(store, request, KeyChange("test"))).key


@asynccontextmanager
async def platform(dsn: str, **settings: Any) -> AsyncIterator[Any]:
    """A running app with authentication."""
    app = app_of(dsn, auth_enabled=True, **settings)
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def worker_api(dsn: str, **settings: Any) -> AsyncIterator[Any]:
    """Only the routes for workers, with the middleware of the API; much faster to create than the whole app."""
    chosen = fast_settings(auth_enabled=True, **settings)
    app = FastAPI()
    app.state.services = services = ApiServices(chosen, dsn, WorkflowLibrary({}), {})
    problems.register(app)
    app.include_router(worker.router, prefix=PREFIX)
    app.add_middleware(
        ApiMiddleware,
        max_body_bytes=MAX_BODY_BYTES,
        own_hosts=[],
        is_open_to_all=True,
        authentication=services.authentication,
    )
    async with services.running():
        yield app


def services_of(app: Any) -> ApiServices:
    return app.state.services


def client_with(app: Any, key: str | None) -> AsyncClient:
    return AsyncClient(transport=ASGITransport(app=app), base_url=URL, headers=authorization(key), timeout=30)


def connection_with(app: Any, key: str) -> ApiConnection:
    """The connection of a worker to an app in this process."""
    connection = ApiConnection(lambda: URL)
    connection._connected = URL, client_with(app, key)
    connection._is_url_known = True
    return connection
