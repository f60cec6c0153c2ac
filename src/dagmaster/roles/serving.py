"""The map server as a process: STAC API, tiles, files and pages, without jobs.

It also starts while its database is unavailable: its readiness probe reports that, and a restart would not help.
"""

import socket
from importlib.util import find_spec

from dagmaster.errors import InvalidRequest
from dagmaster.listen import SERVING, bind
from dagmaster.roles.lifecycle import log_authentication, log_start, run_until_stopped, traced
from dagmaster.settings import Settings


def is_installed() -> bool:
    return all(find_spec(name) for name in ("titiler", "stac_fastapi", "rasterio"))


def require_software(extra: str = "serving") -> None:
    """Raise an error if the map server is not installed. Its hint names `extra`, which the caller needs."""
    if not is_installed():
        raise InvalidRequest(
            "the map server is not installed", code="serving.not-installed", hint=f"pip install 'dagmaster[{extra}]'"
        )


async def serve_maps(settings: Settings, dsn: str, fd: int | None) -> None:
    """`fd` is the socket that `dagmaster up` has bound."""
    require_software()
    # Before the imports below, which take seconds: a port in use is reported at once, and earlier requests queue up.
    bound = socket.socket(fileno=fd) if fd is not None else _socket(settings)
    log_start("serving", dsn)
    log_authentication(settings, SERVING)
    from dagmaster.serving.app import create_app
    from dagmaster.serving.server import MapServer

    with traced(settings, "serving"):
        await run_until_stopped(MapServer(create_app(settings, dsn), bound, settings.trusted_proxies))


def _socket(settings: Settings) -> socket.socket:
    return bind(settings.serving_host, settings.serving_port, may_expose=settings.may_expose_maps, endpoint=SERVING)
