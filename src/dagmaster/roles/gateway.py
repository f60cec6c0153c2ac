"""The gateway as a process: it reads from views of the database, and forwards all other requests. It needs neither
GDAL nor write access."""

import socket

from dagmaster.listen import GATEWAY, bind
from dagmaster.observe import log
from dagmaster.roles.lifecycle import log_authentication, log_start, run_until_stopped, traced
from dagmaster.settings import Settings
from dagmaster.web.server import WebServer


async def serve_gateway(settings: Settings, fd: int | None) -> None:
    """`fd` is the socket that `dagmaster up` has bound."""
    from dagmaster.gateway.services import database_of

    dsn = database_of(settings)
    bound = socket.socket(fileno=fd) if fd is not None else _socket(settings)
    log_start("gateway", dsn)
    log_authentication(settings, GATEWAY)
    from dagmaster.gateway.app import create_app

    with traced(settings, "gateway"):
        await run_until_stopped(_GatewayServer(create_app(settings, dsn), bound))


class _GatewayServer(WebServer):
    async def run(self) -> None:
        log.get("gateway").info("the gateway listens", url=self.url)
        await super().run()

    def stop(self) -> None:
        self.finish()


def _socket(settings: Settings) -> socket.socket:
    return bind(settings.gateway_host, settings.gateway_port, may_expose=settings.may_expose_gateway, endpoint=GATEWAY)
