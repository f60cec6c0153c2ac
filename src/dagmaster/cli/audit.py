"""`dagmaster audit`: who changed assets, platforms and keys, ran direct commands or changed many jobs."""

import click

from dagmaster.cli.command import Group, State, page_options, pass_state
from dagmaster.cli.completion import platform_option


@click.group(cls=Group)
def audit() -> None:
    """Show who changed assets, platforms and keys, ran direct commands or changed many jobs."""


@audit.command("ls")
@platform_option("Only events of this platform, its keys and its assets")
@click.option("--actor", metavar="NAME", help="Only events that this caller caused")
@click.option("--action", metavar="ACTION", help="Only events of this kind, for example key_created")
@page_options(1000, default=20, entry="event")
@pass_state
def list_events(state: State, /, *, after: str | None, limit: int, **filters: str | None) -> None:
    """List changes with actor, time and reason, newest first. Requires the key of an administrator."""
    from dagmaster.cli.asset_pages import print_audit

    state.print_page("events", state.client.audit(limit, after, **filters), print_audit)
