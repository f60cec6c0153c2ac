"""`dagmaster queues`: list queues; limit, pause and resume them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.cli.completion import complete_queues
from dagmaster.cli.tables import Column, print_records
from dagmaster.client.escaping import one_line
from dagmaster.quantities import duration

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json
    from dagmaster.client.models.operations import QueueSummary

T = TypeVar("T")


@click.group(cls=Group)
def queues() -> None:
    """List queues; limit, pause and resume them."""


@queues.command("ls")
@pass_state
def list_queues(state: State) -> None:
    """List queues: their length, the age of the oldest task, live workers, limits."""
    responses = state.client.queues()
    state.print_result({"queues": responses}, lambda: _print_queues(state, responses))


@queues.command("pause")
@click.argument("queue", shell_complete=complete_queues)
@pass_state
def pause(state: State, queue: str) -> None:
    """Start no more tasks of a queue. Running tasks continue."""
    _set_queue(state, queue, is_paused=True)


@queues.command("resume")
@click.argument("queue", shell_complete=complete_queues)
@pass_state
def resume(state: State, queue: str) -> None:
    """Resume a paused queue."""
    _set_queue(state, queue, is_paused=False)


@queues.command("limit")
@click.argument("queue", shell_complete=complete_queues)
@click.argument("max_running", metavar="N|none")
@pass_state
def limit(state: State, queue: str, max_running: str) -> None:
    """Run at most N tasks of a queue at the same time, over all workers; `none` removes the limit."""
    is_number = max_running.isascii() and max_running.isdigit()
    if is_number and int(max_running) == 0:
        raise click.BadParameter(
            f"must be at least 1; to stop the queue, run: dagmaster queues pause {queue}", param_hint="'N|none'"
        )
    if max_running != "none" and not is_number:
        raise click.BadParameter("expected a number of tasks, or `none`", param_hint="'N|none'")
    _set_queue(state, queue, max_running=None if max_running == "none" else int(max_running))


def _set_queue(state: State, name: str, **changed: "bool | int | None") -> None:
    """Change some settings of a queue. The others are not sent, so that a simultaneous change of them is kept."""
    response = state.client.set_queue(name, **changed)
    state.print_result(response, lambda: _print_queues(state, [response]))


def _print_queues(state: State, responses: "list[Json]") -> None:
    from dagmaster.client.models.operations import QueueSummary

    columns: list[Column[QueueSummary]] = [
        Column("queue", lambda queue: one_line(queue.queue)),
        Column("kind", lambda queue: queue.kind, drop=2),
        Column("state", lambda queue: "paused" if queue.is_paused else "open", is_state=True),
        Column("waiting", lambda queue: str(queue.depth), is_number=True),
        Column("oldest", lambda queue: _if_known(queue.oldest_age_seconds, duration), drop=1, is_number=True),
        Column("running", lambda queue: _of_workers(queue, queue.running_count), is_number=True),
        Column("limit", lambda queue: _if_known(queue.max_running, str), is_number=True),
        Column("live workers", lambda queue: _of_workers(queue, queue.live_workers), is_number=True),
    ]
    print_records(state, columns, QueueSummary, responses)


def _if_known(value: T | None, text_of: Callable[[T], str]) -> str:
    return "" if value is None else text_of(value)


def _of_workers(queue: "QueueSummary", count: int) -> str:
    """The count, or nothing for submissions, which orchestrators take instead of workers."""
    return "" if queue.kind == "submissions" else str(count)
