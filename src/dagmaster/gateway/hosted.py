"""The gateway inside another program that calls it for each request, such as the host of Azure Functions.

An app cannot rely on the lifespan messages of such a host. The host sends the startup with each of the first requests,
also with several at the same time, and the shutdown after its event loop was closed, or never. So the services of the
gateway start with the first request, once for each event loop, and the host's lifespan messages are only acknowledged.
"""

import asyncio
from contextlib import AsyncExitStack
from urllib.parse import unquote

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from dagmaster.errors import InvalidRequest
from dagmaster.gateway.app import create_app
from dagmaster.gateway.services import database_of
from dagmaster.settings import Settings


class HostedGateway:
    """An ASGI app. `close` ends its services; a host that cannot call it only loses records of the use of keys."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._services = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return  # the shutdown is not awaited: it would come in another event loop
        await self._start()
        await self._app(_corrected(scope), receive, send)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._starting = asyncio.Lock()  # services of a closed event loop can no longer be closed
            self._services = AsyncExitStack()
        async with self._starting:
            if self._loop is not loop:
                await self._services.enter_async_context(self._app.router.lifespan_context(self._app))
                self._loop = loop

    async def close(self) -> None:
        self._loop = None
        await self._services.aclose()


def _corrected(scope: Scope) -> Scope:
    """The scope as the ASGI specification requires it: the host sends the path as it is in the URL, header names in any
    case, and no client. The address of the client is the last one that the proxies in front of the host have added."""
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    forwarded = [value for name, value in headers if name == b"x-forwarded-for"]
    addresses = b",".join(forwarded).decode("latin-1").split(",")
    client = (_without_port(addresses[-1].strip()), 0) if forwarded else None
    return {**scope, "path": unquote(scope["path"]), "root_path": "", "headers": headers, "client": client}


def _without_port(address: str) -> str:
    """`192.0.2.1:5000` and `[2001:db8::1]:5000` without the port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def hosted_gateway(settings: Settings) -> HostedGateway:
    """The gateway with the settings of the environment. It does not start if anyone could reach it without a key."""
    if not settings.may_expose_gateway:
        raise InvalidRequest(
            "other machines can reach a hosted gateway, and authentication is disabled",
            code="gateway.no-authentication",
            hint="set AUTH_ENABLED=true",
        )
    return HostedGateway(create_app(settings, database_of(settings)))
