"""`dagmaster up`: everything on this machine, until Ctrl-C."""

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Command, State, end_the_line, pass_state
from dagmaster.dataset_urls import MAPS

if TYPE_CHECKING:
    from dagmaster.local.platform import LocalPlatform
    from dagmaster.settings import Settings

_TICK_SECONDS = 0.1


@click.command(cls=Command)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of workers")
@click.option(
    "--orchestrators", type=click.IntRange(min=1), default=1, show_default=True, help="Number of orchestrators"
)
@pass_state
def up(state: State, workers: int, orchestrators: int) -> None:
    """Run the whole platform on this machine, with its own PostgreSQL.

    With DATABASE_URL or POSTGRES_HOST set, that server is used instead of an embedded one. Ctrl-C stops everything; the
    data stays, and the next start continues from there.
    """
    from dagmaster.local.platform import stopping_on_signals

    state.log()
    local = local_platform(
        state, state.settings, orchestrators=orchestrators, workers=workers, log_level=_log_level(state)
    )
    state.announce("starting …")
    with stopping_on_signals(local), local.running():
        _announce(state, local)
        while True:
            local.supervise()
            time.sleep(_TICK_SECONDS)
    where = f"in {local.cluster.folder}" if local.cluster else "on the server"
    state.announce(f"everything stopped; the data stays {where}")


def _store_first_key(state: State, key: str) -> None:
    """Print the first key, and store it for commands of this user. It is not printed again."""
    from dagmaster.client.credentials import store_key

    file = store_key(state.settings.model_copy(update={"server_url": None}), None, key)
    state.note(
        f"authentication is enabled. The first key, of an administrator, is shown only now:\n\n  {key}\n\n"
        f"it is stored in {file} for commands of this user"
    )


def local_platform(state: State, settings: "Settings", **options: Any) -> "LocalPlatform":
    """A platform with these settings, on the configured or a private server. Its messages go to standard error."""
    from dagmaster.local.discovery import data_folder
    from dagmaster.local.platform import LocalPlatform, database_of

    dsn, cluster = database_of(settings)
    state.use_tokens()
    return LocalPlatform(
        settings,
        data_folder(settings),
        dsn,
        state.note,
        cluster,
        on_stopping=partial(_say_stopping, state),
        on_first_key=partial(_store_first_key, state),
        **options,
    )


def _say_stopping(state: State) -> None:
    if not state.json:
        end_the_line()
        state.say("stopping …")


def _log_level(state: State) -> str:
    """By default warnings only, because logs of the child processes would mix with the output."""
    if state.verbose:
        return "info"
    return state.settings.log_level if "log_level" in state.settings.model_fields_set else "warning"


def _announce(state: State, local: "LocalPlatform") -> None:
    if state.json:
        state.emit(_facts(local), line=True)
        return
    from rich.table import Table

    if local.ui_url:
        state.say(f"open     {local.ui_url}\n")
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    for heading in ("role", "process", "where"):
        table.add_column(heading, no_wrap=True)
    for row in _rows(local):
        table.add_row(*row)
    state.console.print(table)
    state.say(f"\nready in {local.ready_seconds:.1f} s\n")
    if notice := local.settings.authentication_notice():
        state.say(f"{notice}\n")
    chosen = f" --data {local.folder}" if local.settings.data_folder else ""
    state.say(f"submit   dagmaster submit hello_world{chosen} -p name=You --wait")
    state.say(f"list     dagmaster jobs ls{chosen}")
    state.say("stop     Ctrl-C")


def _rows(local: "LocalPlatform") -> list[tuple[str, str, str]]:
    from dagmaster.observe.redaction import redact

    server = str(local.cluster.server_pid()) if local.cluster else ""
    where = f"socket in {local.cluster.socket_folder}" if local.cluster else redact(local.dsn)
    rows = [("PostgreSQL", server, where)]
    if local.cluster:
        rows.append(("", "", f"data in {local.cluster.folder}"))
    served = {"orchestrator 1": f"API at {local.api_url}/docs"} if local.api_url else {}
    if local.maps_url:
        served["serving 1"] = f"maps at {local.maps_url}{MAPS}"
    if local.gateway_url:
        served["gateway 1"] = f"gateway for partners at {local.gateway_url}"
    rows += [(child.name, str(child.pid), served.get(child.name, "")) for child in local.children]
    return [*rows, ("platform", str(os.getpid()), f"data folder {local.folder}")]


def _facts(local: "LocalPlatform") -> dict[str, Any]:
    from dagmaster.observe.redaction import redact

    return {
        "status": "ready",
        "seconds": round(local.ready_seconds, 3),
        "pid": os.getpid(),
        "data_folder": str(local.folder),
        "database_url": redact(local.dsn),
        "ui_url": local.ui_url,
        "api_url": local.api_url,
        "maps_url": local.maps_url,
        "serving_url": local.serving_url,
        "gateway_url": local.gateway_url,
        "postgres_pid": local.cluster.server_pid() if local.cluster else None,
        "children": [{"role": c.role, "number": c.number, "pid": c.pid} for c in local.children],
    }
