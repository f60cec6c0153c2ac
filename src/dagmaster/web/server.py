"""Serve an app with uvicorn on a port that is already bound."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from dagmaster.listen import url_of

_GRACE_SECONDS = 5
_KEEP_ALIVE_SECONDS = 30
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """Closes connections whose request is sent too slowly, or not at all: uvicorn waits for them without a limit.

    The timeout of the head starts with the connection, or with the first byte of a later request; the timeout of the
    body starts after the head. Between requests, uvicorn's keep-alive timeout applies.
    """

    head_seconds: ClassVar[float] = 10.0
    body_seconds: ClassVar[float] = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._part: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._await_part("head")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_part(self._awaited_part())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_part(self._awaited_part())

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_part(None)
        super().connection_lost(exc)

    def _awaited_part(self) -> str | None:
        """The part of a request that has begun and not ended."""
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        is_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        return "head" if self.conn.their_state is h11.IDLE and is_begun else None

    def _await_part(self, part: str | None) -> None:
        if part == self._part:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._part, self._timer = part, None
        if part is not None:
            seconds = self.head_seconds if part == "head" else self.body_seconds
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        is_open = self.cycle is None or self.cycle.response_complete or not self.cycle.response_started
        if is_open and not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
        self.transport.close()


class WebServer:
    """Serves until `finish` is called."""

    def __init__(self, app: FastAPI, bound: socket.socket, trusted_proxies: Sequence[str] = ()) -> None:
        """For requests of `trusted_proxies` (addresses or networks), the forwarded headers determine the address of the
        client and the scheme. For other requests these headers are ignored."""
        self._app = app
        self._bound = bound
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            http=TimedProtocol,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
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
