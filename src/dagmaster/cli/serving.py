"""The role that serves maps: STAC API, tiles, files and pages, in a process without jobs.

It starts without its database too: probes say whether it is ready, and a restart would not help.
"""

import asyncio
import gc
import os
import socket
from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.cli.serve import settings_of_role, stop_on_signals

if TYPE_CHECKING:
    from dagmaster.settings import Settings


@click.command(cls=Command)
@click.option("--host", help="Where it listens (or SERVING_HOST); loopback, unless SERVING_INSECURE")
@click.option("--port", type=click.IntRange(0, 65535), help="Its port (or SERVING_PORT); 0 takes a free one")
@click.option("--fd", type=int, hidden=True)
@pass_state
def serving(state: State, host: str | None, port: int | None, fd: int | None) -> None:
    """Serve maps: the STAC catalogue, tiles, files, and pages to look at them."""
    given = {"serving_host": host, "serving_port": port}
    settings = settings_of_role(state)
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    require_software()
    # Before anything is loaded: a port that is taken is told at once, and who connects meanwhile is served then.
    # `up` hands over a port that it has taken itself.
    bound = socket.socket(fileno=fd) if fd is not None else _bound(settings)
    asyncio.run(_serve(settings, state.dsn, bound))


def _bound(settings: "Settings") -> socket.socket:
    from dagmaster.listen import SERVING, bind

    return bind(settings.serving_host, settings.serving_port, is_insecure=settings.serving_insecure, entrance=SERVING)


def is_installed() -> bool:
    from importlib.util import find_spec

    return all(find_spec(name) for name in ("titiler", "stac_fastapi", "rasterio"))


def require_software() -> None:
    from dagmaster.errors import InvalidRequest

    if not is_installed():
        raise InvalidRequest(
            "what serves maps is not installed", code="serving.not-installed", hint="pip install 'dagmaster[serving]'"
        )


async def _serve(settings: "Settings", dsn: str, bound: socket.socket) -> None:
    from dagmaster import __version__
    from dagmaster.observe import log
    from dagmaster.serving.app import create_app
    from dagmaster.serving.server import MapServer

    log.get("serving").info("starting", pid=os.getpid(), version=__version__, database=dsn)
    server = MapServer(create_app(settings, dsn), bound)
    stop_on_signals(server)
    gc.freeze()  # what was loaded until here stays: looking through it again and again would hold requests up
    await server.run()
