"""Serve an app with uvicorn on a port that is already bound."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from dagmaster.listen import url_of

_GRACE_SECONDS = 5
_KEEP_ALIVE_SECONDS = 30


class WebServer:
    """Serves until `finish` is called."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._app = app
        self._bound = bound
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            server_header=False,
            proxy_headers=False,
        )
        self._server = _UvicornServer(config)

    @property
    def url(self) -> str:
        return url_of(self._bound)

    @property
    def is_started(self) -> bool:
        return self._server.started

    async def run(self) -> None:
        try:
            await self._server.serve(sockets=[self._bound])
        finally:
            self._server.has_started.set()
            self._bound.close()

    async def until_started(self) -> None:
        """Wait until the server has started, or has failed to start."""
        await self._server.has_started.wait()

    def finish(self) -> None:
        """Stop the server. Open requests are completed first, within the grace period."""
        self._server.should_exit = True


class _UvicornServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the role handles signals."""
        yield
