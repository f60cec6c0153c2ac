"""`dagmaster dead-letters`: list messages that could not be processed and tasks that were given up, and replay them."""

from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, as_json, page_options, pass_state
from dagmaster.cli.tables import Column, ago, at, print_records
from dagmaster.client.escaping import one_line

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """List messages that could not be processed and tasks that were given up, and replay them."""


@dead_letters.command("ls")
@click.option("--reason", metavar="REASON", help="Only dead letters with this reason")
@page_options(1000, default=50, entry="dead letter")
@pass_state
def list_dead_letters(state: State, reason: str | None, limit: int, after: str | None) -> None:
    """List dead letters, newest first."""
    page = state.client.dead_letters(limit, after, reason)
    state.print_page("dead_letters", page, _print_letters, noun="dead letters")


def _print_letters(state: State, page: "list[Json]") -> None:
    from dagmaster.client.models.operations import DeadLetterSummary

    columns: list[Column[DeadLetterSummary]] = [
        Column("dead letter", lambda letter: str(letter.dead_letter_id)),
        Column("age", lambda letter: ago(letter.created_at, state.client.now), is_number=True),
        Column("queue", lambda letter: one_line(letter.queue), drop=2),
        Column("reason", lambda letter: one_line(letter.reason)),
        Column("description", lambda letter: one_line(letter.description), drop=1, is_long=True),
    ]
    print_records(state, columns, DeadLetterSummary, page)


@dead_letters.command("show")
@click.argument("dead_letter")
@pass_state
def show_dead_letter(state: State, dead_letter: str) -> None:
    """Show a dead letter: its reason and its content. DEAD_LETTER is an id, or the beginning of one."""
    response = state.client.dead_letter(state.client.find_dead_letter(dead_letter))
    if state.json:
        state.emit(response)
        return
    from dagmaster.client.models.base import read
    from dagmaster.client.models.operations import DeadLetterSummary

    letter = read(DeadLetterSummary, response)
    facts = {
        "dead letter": letter.dead_letter_id,
        "queue": one_line(letter.queue),
        "message": letter.message_id and one_line(letter.message_id),
        "created": f"{at(letter.created_at)} UTC, {ago(letter.created_at, state.client.now)} ago",
        "reason": f"{one_line(letter.reason)}: {letter.description}",
        "body": as_json(response.get("body")),
        "job": letter.job_id and f"{letter.job_id}, node {letter.node_id}",
    }
    state.say_facts(facts, width=11)
    effect = "resume its job" if letter.job_id else "replay it"
    state.note(f"{effect} with: dagmaster dead-letters replay {letter.dead_letter_id}")


@dead_letters.command("replay")
@click.argument("dead_letter")
@pass_state
def replay_dead_letter(state: State, dead_letter: str) -> None:
    """Replay a dead letter. A submission goes back into its queue: it becomes a job, or a dead letter with a new id.
    For a task that was given up, its job is resumed."""
    response = state.client.replay(state.client.find_dead_letter(dead_letter))
    if state.json:
        state.emit(response)
    elif job_id := response.get("job_id"):
        state.say(f"job {job_id} is resumed")
        state.note(f"watch it with: dagmaster jobs watch {job_id}")
    else:
        state.say(f"the message is back in queue {response.get('queue')}")
