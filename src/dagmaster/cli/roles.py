"""The commands that run one role: `orchestrator`, `worker`, `serving` and `gateway`."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Command, State, pass_state

if TYPE_CHECKING:
    from dagmaster.settings import Settings


@click.command(cls=Command)
@click.option("--host", help="Address on which the API listens (or API_HOST); non-loopback addresses need AUTH_ENABLED")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the API (or API_PORT); 0 takes a free one")
@click.option("--no-api", is_flag=True, help="Do not serve the API (or API_ENABLED=false)")
@click.option("--fd", type=int, hidden=True)
@click.option("--hold", type=int, hidden=True)
@pass_state
def orchestrator(
    state: State, /, *, host: str | None, port: int | None, no_api: bool, fd: int | None, hold: int | None
) -> None:
    """Run one orchestrator: it decides what jobs do next. Its process also serves the API."""
    settings = _settings(state, api_host=host, api_port=port, api_enabled=False if no_api else None)
    from dagmaster.roles.lifecycle import run_role
    from dagmaster.roles.orchestrator import orchestrator_role

    asyncio.run(run_role("orchestrator", settings, state.dsn, partial(orchestrator_role, fd=fd), hold))


@click.command(cls=Command)
@click.option("--queues", metavar="A,B", help="Queues to serve (or WORKER_QUEUE)")
@click.option("--slots", type=click.IntRange(min=1), help="Maximum number of async handlers at once (or WORKER_SLOTS)")
@click.option(
    "--processes", type=click.IntRange(min=1), help="Maximum number of plain handlers at once (or WORKER_PROCESSES)"
)
@click.option("--hold", type=int, hidden=True)
@pass_state
def worker(state: State, queues: str | None, slots: int | None, processes: int | None, hold: int | None) -> None:
    """Run one worker: it runs the handlers of tasks.

    With DAG_CALLBACK_URL it uses only the HTTP API of the platform, with DAGMASTER_KEY, and needs no database.
    """
    names = tuple(part.strip() for part in (queues or "").split(",") if part.strip())
    chosen = {"worker_queue": names or None, "worker_slots": slots, "worker_processes": processes}
    if state.settings.dag_callback_url and hold is None:  # workers of `up` have --hold, and use its database
        from dagmaster.roles.remote_worker import run_remote_worker

        asyncio.run(run_remote_worker(_settings_without_database(state, **chosen)))
        return
    settings = _settings(state, **chosen)
    from dagmaster.roles.lifecycle import run_role
    from dagmaster.roles.worker import worker_role

    asyncio.run(run_role("worker", settings, state.dsn, worker_role, hold))


@click.command(cls=Command)
@click.option(
    "--host", help="Address on which the map server listens (or SERVING_HOST); non-loopback addresses need AUTH_ENABLED"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port (or SERVING_PORT); 0 takes a free one")
@click.option("--fd", type=int, hidden=True)
@pass_state
def serving(state: State, host: str | None, port: int | None, fd: int | None) -> None:
    """Serve maps: the STAC catalogue, tiles, files, and web pages that show them."""
    settings = _settings(state, serving_host=host, serving_port=port)
    from dagmaster.roles.serving import serve_maps

    asyncio.run(serve_maps(settings, state.dsn, fd))


@click.command(cls=Command)
@click.option(
    "--host", help="Address on which the gateway listens (or GATEWAY_HOST); non-loopback addresses need AUTH_ENABLED"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port (or GATEWAY_PORT); 0 takes a free one")
@click.option("--fd", type=int, hidden=True)
@pass_state
def gateway(state: State, host: str | None, port: int | None, fd: int | None) -> None:
    """Run the gateway, with which partners submit data and poll the status of their submissions.

    It reads submissions, assets and jobs from views of the database, and forwards all other requests to orchestrators.
    """
    from dagmaster.roles.gateway import serve_gateway

    asyncio.run(serve_gateway(_settings_without_database(state, gateway_host=host, gateway_port=port), fd))


def _settings(state: State, **chosen: Any) -> "Settings":
    """The settings of a role, with those chosen on the command line. Its logs follow LOG_LEVEL."""
    _ = state.dsn  # first, because finding the database configures logging as for other commands
    return _settings_without_database(state, **chosen)


def _settings_without_database(state: State, **chosen: Any) -> "Settings":
    from dagmaster.observe import log

    log.configure("debug" if state.verbose else state.settings.log_level, state.settings.log_format)
    return state.settings.model_copy(update={name: value for name, value in chosen.items() if value is not None})
