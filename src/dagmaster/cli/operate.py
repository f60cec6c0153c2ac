"""What operators look at and do: queues and their valves, workers, orchestrators, dead letters."""

from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, as_json, pass_state
from dagmaster.cli.completion import complete_queues
from dagmaster.cli.printable import counted, one_line

if TYPE_CHECKING:
    from dagmaster.cli.tables import Row
    from dagmaster.client.answers import Json, Orchestrator, Queue, Worker

_MOST = 1000
_MOST_HANDLERS_SHOWN = 6
_limit = click.option("--limit", type=click.IntRange(1, _MOST), default=50, show_default=True)
_everyone = click.option("--all", "everyone", is_flag=True, help="Also those that are gone")


# --- queues ----------------------------------------------------------------------------------------------------------


@click.group(cls=Group)
def queues() -> None:
    """Look at queues; limit, pause and open them."""


@queues.command("ls")
@pass_state
def list_queues(state: State) -> None:
    """List queues: how full, how old, who serves them, how limited."""
    found = state.client.queues()
    if state.json:
        state.emit({"queues": found})
    else:
        _print_queues(state, found)


@queues.command("pause")
@click.argument("queue", shell_complete=complete_queues)
@pass_state
def pause(state: State, queue: str) -> None:
    """Start nothing more of a queue. What runs goes on."""
    _set_queue(state, queue, is_paused=True)


@queues.command("resume")
@click.argument("queue", shell_complete=complete_queues)
@pass_state
def resume(state: State, queue: str) -> None:
    """Open a paused queue again."""
    _set_queue(state, queue, is_paused=False)


@queues.command("limit")
@click.argument("queue", shell_complete=complete_queues)
@click.argument("max_running", metavar="N|none")
@pass_state
def limit(state: State, queue: str, max_running: str) -> None:
    """Let at most N tasks of a queue run at once, over all workers; `none` lifts the limit."""
    is_number = max_running.isascii() and max_running.isdigit()
    if is_number and int(max_running) == 0:
        raise click.BadParameter(f"at least 1; to stop it: dagmaster queues pause {queue}", param_hint="'N|none'")
    if max_running != "none" and not is_number:
        raise click.BadParameter("give a number of tasks, or `none`", param_hint="'N|none'")
    _set_queue(state, queue, max_running=None if max_running == "none" else int(max_running))


def _set_queue(state: State, name: str, **changed: "bool | int | None") -> None:
    """Change one of a queue's settings; the other stays, whoever changes that meanwhile."""
    line = state.client.set_queue(name, **changed)
    if state.json:
        state.emit(line)
    else:
        _print_queues(state, [line])


def _print_queues(state: State, found: "list[Json]") -> None:
    from dagmaster.cli.tables import Column, print_table
    from dagmaster.client.answers import Queue, read_all

    columns = [
        Column("queue"), Column("kind", drop=2), Column("state"), Column("waiting", is_number=True),
        Column("oldest", drop=1, is_number=True), Column("running", is_number=True), Column("limit", is_number=True),
        Column("live workers", is_number=True),
    ]  # fmt: skip
    print_table(state.console, columns, [_queue_row(queue, state) for queue in read_all(Queue, found)])


def _queue_row(queue: "Queue", state: State) -> "Row":
    from dagmaster.cli.tables import duration, state_text

    oldest = duration(queue.oldest_age_seconds) if queue.oldest_age_seconds is not None else ""
    # Submissions are taken up by orchestrators.
    is_served = queue.kind != "submissions"
    return (
        one_line(queue.queue), queue.kind, state_text("paused" if queue.is_paused else "open", state.console.encoding),
        str(queue.depth), oldest, str(queue.running_count) if is_served else "",
        str(queue.max_running) if queue.max_running is not None else "",
        str(queue.live_workers) if is_served else "",
    )  # fmt: skip


# --- workers and orchestrators ---------------------------------------------------------------------------------------


@click.group(cls=Group)
def workers() -> None:
    """Look at workers."""


@workers.command("ls")
@_everyone
@_limit
@pass_state
def list_workers(state: State, everyone: bool, limit: int) -> None:
    """List live workers: when they last showed themselves, what they offer, what they run."""
    found, is_more = _those_alive(state.client.workers(_MOST), everyone, limit)
    if state.json:
        state.emit({"workers": found})
        return
    if not found:
        state.note("no worker is alive; start one with `dagmaster worker`, or `dagmaster up`")
        return
    from dagmaster.cli.tables import Column, print_table
    from dagmaster.client.answers import Worker, read_all

    columns = [
        Column("worker"), Column("state"), Column("beat", is_number=True), Column("process", drop=3, is_long=True),
        Column("version", drop=4), Column("queues", drop=1, is_long=True), Column("handlers", drop=5, is_long=True),
        Column("runs", drop=2, is_long=True),
    ]  # fmt: skip
    print_table(state.console, columns, [_worker_row(worker, state) for worker in read_all(Worker, found)])
    if is_more:
        state.note(f"only the first {counted(limit, 'worker')}; more with --limit")


def _those_alive(page: "tuple[list[Json], str | None]", everyone: bool, limit: int) -> "tuple[list[Json], bool]":
    found = [line for line in page[0] if everyone or line.get("is_alive")]
    return found[:limit], len(found) > limit


def _worker_row(worker: "Worker", state: State) -> "Row":
    from dagmaster.cli.tables import duration, state_text

    handlers = sorted(worker.handlers)
    offered = ", ".join(handlers[:_MOST_HANDLERS_SHOWN])
    more = f" and {len(handlers) - _MOST_HANDLERS_SHOWN} more" if len(handlers) > _MOST_HANDLERS_SHOWN else ""
    running = ", ".join(task.handler for task in worker.running)
    runs = f"{worker.running_count}: {running}" if running else str(worker.running_count)
    return (
        worker.worker_id, state_text("alive" if worker.is_alive else "gone", state.console.encoding),
        duration(worker.heartbeat_age_seconds), f"{one_line(worker.host)} {worker.pid}", one_line(worker.software_version),
        ", ".join(worker.queues), f"{offered}{more}", runs,
    )  # fmt: skip


@click.group(cls=Group)
def orchestrators() -> None:
    """Look at orchestrators."""


@orchestrators.command("ls")
@_everyone
@_limit
@pass_state
def list_orchestrators(state: State, everyone: bool, limit: int) -> None:
    """List live orchestrators: when they last showed themselves, and how many jobs they own."""
    found, is_more = _those_alive(state.client.orchestrators(_MOST), everyone, limit)
    if state.json:
        state.emit({"orchestrators": found})
        return
    if not found:
        state.note("no orchestrator is alive; start one with `dagmaster orchestrator`, or `dagmaster up`")
        return
    from dagmaster.cli.tables import Column, print_table
    from dagmaster.client.answers import Orchestrator, read_all

    columns = [
        Column("orchestrator"), Column("state"), Column("beat", is_number=True), Column("process", drop=1, is_long=True),
        Column("version", drop=2), Column("started (UTC)", drop=3), Column("jobs", is_number=True),
    ]  # fmt: skip
    rows = [_orchestrator_row(orchestrator, state) for orchestrator in read_all(Orchestrator, found)]
    print_table(state.console, columns, rows)
    if is_more:
        state.note(f"only the first {counted(limit, 'orchestrator')}; more with --limit")


def _orchestrator_row(orchestrator: "Orchestrator", state: State) -> "Row":
    from dagmaster.cli.tables import at, duration, state_text

    return (
        orchestrator.owner_id, state_text("alive" if orchestrator.is_alive else "gone", state.console.encoding),
        duration(orchestrator.heartbeat_age_seconds), f"{one_line(orchestrator.host)} {orchestrator.pid}",
        one_line(orchestrator.software_version), at(orchestrator.started_at), str(orchestrator.job_count),
    )  # fmt: skip


# --- dead letters ----------------------------------------------------------------------------------------------------


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """Look into messages that could not be used, and try them again."""


@dead_letters.command("ls")
@click.option("--reason", metavar="REASON", help="Only those refused for this reason")
@_limit
@click.option("--after", metavar="CURSOR", help="Go on behind this one (`next` of the page before)")
@pass_state
def list_dead_letters(state: State, reason: str | None, limit: int, after: str | None) -> None:
    """List dead letters, newest first."""
    found, following = state.client.dead_letters(limit, after, reason)
    if state.json:
        state.emit({"dead_letters": found, "next": following})
        return
    if not found:
        state.note("no dead letters")
        return
    from dagmaster.cli.tables import Column, ago, print_table
    from dagmaster.client.answers import DeadLetter, read_all

    columns = [
        Column("dead letter"), Column("age", is_number=True), Column("queue", drop=2), Column("reason"),
        Column("what", drop=1, is_long=True),
    ]  # fmt: skip
    rows = [
        (
            letter.dead_letter_id, ago(letter.created_at, state.client.now), one_line(letter.queue),
            one_line(letter.reason), one_line(letter.description),
        )
        for letter in read_all(DeadLetter, found)
    ]  # fmt: skip
    print_table(state.console, columns, rows)
    if following:
        state.note(f"more with: --after '{following}'")


@dead_letters.command("show")
@click.argument("dead_letter")
@pass_state
def show_dead_letter(state: State, dead_letter: str) -> None:
    """Show a dead letter: why it could not be used, and what was in it. DEAD_LETTER is an id, or the beginning of one."""
    found = state.client.dead_letter(state.client.find_dead_letter(dead_letter))
    if state.json:
        state.emit(found)
        return
    from dagmaster.cli.tables import ago, at
    from dagmaster.client.answers import DeadLetter, read

    letter = read(DeadLetter, found)
    state.say(f"dead letter {letter.dead_letter_id}")
    state.say(f"queue       {one_line(letter.queue)}")
    if letter.message_id:
        state.say(f"message     {one_line(letter.message_id)}")
    state.say(f"created     {at(letter.created_at)} UTC, {ago(letter.created_at, state.client.now)} ago")
    state.say(f"reason      {one_line(letter.reason)}: {letter.description}")
    state.say(f"body        {as_json(found.get('body'))}")
    if letter.job_id:
        state.say(f"job         {letter.job_id}, node {letter.node_id}")
    what = "resume its job" if letter.job_id else "try it again"
    state.note(f"{what} with: dagmaster dead-letters replay {letter.dead_letter_id}")


@dead_letters.command("replay")
@click.argument("dead_letter")
@pass_state
def replay_dead_letter(state: State, dead_letter: str) -> None:
    """Try a dead letter again. A submission goes back into its queue and becomes a job, or a dead letter again under a new id. Of
    a task that was given up, its job is resumed: everything that is missing runs."""
    found = state.client.replay(state.client.find_dead_letter(dead_letter))
    if state.json:
        state.emit(found)
    elif job_id := found.get("job_id"):
        state.say(f"job {job_id} goes on")
        state.note(f"watch it with: dagmaster jobs watch {job_id}")
    else:
        state.say(f"back in queue {found.get('queue')}")
