"""The gateway in a test: with its own database role, in front of APIs that listen on real ports."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from httpx2 import ASGITransport, AsyncClient

from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.schema.gateway_role import ensure_gateway_role
from dagmaster.gateway.app import create_app
from dagmaster.operations.keys import create_key
from dagmaster.settings import Settings
from tests.api.serving import app_of, served

NO_SERVER = "http://127.0.0.1:1"


async def key_of(dsn: str, name: str, *scopes: str, platform: str | None = None) -> str:
    async with KeyStore(dsn) as keys:
        request = KeyRequest(name=name, scopes=list(scopes), platform_id=platform)
        return (await create_key(keys, request, KeyChange("test"))).key


async def gateway_dsn(dsn: str) -> str:
    return await asyncio.to_thread(ensure_gateway_role, dsn, with_password=True)


@asynccontextmanager
async def gateway(
    dsn: str, folder: Path, *, orchestrators: int = 1, dead: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[AsyncClient]:
    """A client of the gateway. `dead` are URLs without a server, which come before those of the orchestrators."""
    chosen = {"auth_enabled": True, "gateway_burst": 10_000, **settings}
    async with AsyncExitStack() as stack:
        urls = list(dead)
        for _ in range(orchestrators):
            api = app_of(dsn, auth_enabled=chosen["auth_enabled"], storage_folder=folder)
            server = await stack.enter_async_context(served(api))
            urls.append(server.url)
        app = create_app(Settings(orchestrator_urls=",".join(urls), **chosen), await gateway_dsn(dsn))
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = ASGITransport(app=app, client=("127.0.0.1", 5))
        yield await stack.enter_async_context(AsyncClient(transport=transport, base_url="http://localhost", timeout=30))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
