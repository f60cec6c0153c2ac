"""The gateway as a process: it reads views, and forwards the rest. It needs neither GDAL nor credentials that write."""

import socket

from dagmaster.errors import InvalidRequest
from dagmaster.listen import GATEWAY, bind
from dagmaster.observe import log
from dagmaster.roles.lifecycle import log_authentication, log_start, run_until_stopped
from dagmaster.settings import Settings
from dagmaster.web.server import WebServer


async def serve_gateway(settings: Settings, fd: int | None) -> None:
    """`fd` is the socket that `dagmaster up` has bound."""
    dsn = settings.gateway_database_url
    if not dsn:
        raise InvalidRequest(
            "the gateway needs a database role of its own",
            code="gateway.no-database",
            hint="run `dagmaster db gateway-role` where the database can be administered, and set GATEWAY_DATABASE_URL "
            "to what it prints",
        )
    if not settings.orchestrator_urls:
        raise InvalidRequest(
            "the gateway has no orchestrator to forward requests to",
            code="gateway.no-orchestrators",
            hint="set ORCHESTRATOR_URLS, for example http://10.0.0.5:8000,http://10.0.0.6:8000",
        )
    bound = socket.socket(fileno=fd) if fd is not None else _socket(settings)
    log_start("gateway", dsn)
    log_authentication(settings, GATEWAY)
    from dagmaster.gateway.app import create_app

    await run_until_stopped(_GatewayServer(create_app(settings, dsn), bound))


class _GatewayServer(WebServer):
    async def run(self) -> None:
        log.get("gateway").info("the gateway listens", url=self.url)
        await super().run()

    def stop(self) -> None:
        self.finish()


def _socket(settings: Settings) -> socket.socket:
    return bind(settings.gateway_host, settings.gateway_port, is_insecure=settings.may_expose_gateway, endpoint=GATEWAY)
