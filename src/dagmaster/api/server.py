"""The app on a port, as a task beside the orchestrator's loop: started and stopped with it."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from dagmaster import log
from dagmaster.api.door import is_loopback
from dagmaster.api.parts import Parts
from dagmaster.errors import Conflict, InvalidRequest

_GRACE_SECONDS = 5
_KEEP_ALIVE_SECONDS = 30
_log = log.get("api")


def bind(host: str, port: int, *, is_insecure: bool = False) -> socket.socket:
    """Take the port before anything else starts: one that is taken already is told at once."""
    if not is_loopback(host) and not is_insecure:
        raise InvalidRequest(
            f"the API would listen on {host}, for anyone who reaches this machine, and it asks nobody who they are",
            code="api.not-loopback",
            hint="set API_HOST=127.0.0.1, or API_INSECURE=true where something in front keeps others out",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise InvalidRequest(f"API_HOST: {host}: {error.strerror}", code="api.bad-host") from None
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _refused(host: str, port: int, error: OSError) -> Conflict | InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} of {host} is taken", code="api.port-taken",
            hint="another orchestrator? choose a port with --port (0 takes a free one), or --no-api", port=port,
        )  # fmt: skip
    return InvalidRequest(f"the API can't listen on {host} port {port}: {error.strerror}", code="api.cannot-listen")


class ApiServer:
    """Serves until `stop`. Its streams end first, or they would keep it from stopping."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._app = app
        self._bound = bound
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS, server_header=False, proxy_headers=False,
        )  # fmt: skip
        self._server = _Server(config)

    @property
    def url(self) -> str:
        host, port = self._bound.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_started(self) -> bool:
        return self._server.started

    async def run(self) -> None:
        _log.info("the API listens", url=self.url)
        try:
            await self._server.serve(sockets=[self._bound])
        finally:
            self._bound.close()

    async def stop(self) -> None:
        parts: Parts = self._app.state.parts
        if self._server.started:
            await parts.follower.close()
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the role's business, not the server's."""
        yield
