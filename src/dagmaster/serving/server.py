"""The map server on a port: started and stopped as a role."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from dagmaster import log
from dagmaster.listen import url_of

_GRACE_SECONDS = 5
_KEEP_ALIVE_SECONDS = 30
_log = log.get("serving")


class MapServer:
    """Serves until `stop`; what is under way then is finished first."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._bound = bound
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS, server_header=False, proxy_headers=False,
        )  # fmt: skip
        self._server = _Server(config)

    @property
    def url(self) -> str:
        return url_of(self._bound)

    async def run(self) -> None:
        _log.info("maps are served", url=self.url)
        try:
            await self._server.serve(sockets=[self._bound])
        finally:
            self._bound.close()

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the role's business, not the server's."""
        yield
