"""`dagmaster janitor`: list what the janitor did, and run it now."""

from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, page_options, pass_state
from dagmaster.cli.tables import Column, at, print_records
from dagmaster.client.escaping import one_line
from dagmaster.quantities import counted

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json


@click.group(cls=Group)
def janitor() -> None:
    """List what the janitor did; run it now."""


@janitor.command("actions")
@click.option("--type", "action_type", metavar="ACTION", help="Only actions of this type, such as lease_lapsed")
@click.option(
    "--target", "target_id", metavar="ID", help="Only actions on this job, task, queue or session; the full id"
)
@page_options(1000, default=50, entry="action")
@pass_state
def list_actions(state: State, /, *, limit: int, after: str | None, **filters: str | None) -> None:
    """List what the janitor did, newest first."""
    page = state.client.janitor_actions(limit, after, **filters)
    state.print_page("actions", page, _print_actions, noun="janitor actions")


@janitor.command("run")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be done")
@pass_state
def run_janitor(state: State, dry_run: bool) -> None:
    """Run the janitor now. Every orchestrator also runs it regularly; only those regular runs delete old jobs."""
    response = state.client.run_janitor(is_dry_run=dry_run)
    if state.json:
        state.emit(response)
        return
    from dagmaster.client.models.base import read
    from dagmaster.client.models.operations import JanitorRun

    run = read(JanitorRun, response)
    if run.actions:
        state.say("would do:" if run.is_dry_run else "did:")
        _print_actions(state, response["actions"])
    else:
        state.say("nothing to do")
    if run.left_to_others:
        state.note(f"skipped, because another janitor is working on it: {', '.join(run.left_to_others)}")
    if run.prunable_jobs:
        state.note(f"{counted(run.prunable_jobs, 'job')} past retention will be deleted by the orchestrators")


def _print_actions(state: State, actions: "list[Json]") -> None:
    from dagmaster.jobs.model import JanitorAction

    columns: list[Column[JanitorAction]] = [
        Column("when (UTC)", lambda action: at(action.created_at), drop=2),
        Column("action", lambda action: one_line(action.action_type)),
        Column("kind", lambda action: one_line(action.target_type), drop=1),
        Column("target", lambda action: one_line(action.target_id)),
        Column("reason", lambda action: one_line(action.reason), is_below=True, is_long=True),
    ]
    print_records(state, columns, JanitorAction, actions)
