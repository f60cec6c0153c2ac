"""`dagmaster jobs`: look at jobs, their nodes, events and log lines; cancel, resume and retry them."""

from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Group, State, as_json, pass_state
from dagmaster.cli.completion import complete_jobs, complete_workflows
from dagmaster.cli.printable import one_line
from dagmaster.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from dagmaster.client.answers import Json

JOB_STATES = ("pending", "running", "completed", "partial_success", "failed", "cancelled")
NODE_STATES = ("pending", "ready", "dispatched", "running", "completed", "failed", "skipped", "cancelled")
_DATA_LENGTH = 100


@click.group(cls=Group)
def jobs() -> None:
    """Look at jobs; cancel, resume and retry them. JOB is an id, the beginning of one, or `last`."""


@jobs.command("ls")
@click.option("--status", type=click.Choice(JOB_STATES), help="Only jobs in this state")
@click.option("--workflow", metavar="ID", shell_complete=complete_workflows, help="Only jobs of this workflow")
@click.option("--submitted-by", metavar="WHO", help="Only jobs that they asked for")
@click.option("--correlation-id", metavar="ID", help="Only jobs with this id of yours")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on behind this job (`next` of the page before)")
@pass_state
def list_jobs(
    state: State, *, status: str | None, workflow: str | None, submitted_by: str | None, correlation_id: str | None,
    limit: int, after: str | None,
) -> None:  # fmt: skip
    """List jobs, newest first."""
    page, following = state.client.jobs(
        limit, _cursor(after), status=status, workflow_id=workflow, submitted_by=submitted_by,
        correlation_id=correlation_id,
    )  # fmt: skip
    if state.json:
        state.emit({"jobs": page, "next": following})
        return
    if not page:
        state.note("no jobs")
        return
    from dagmaster.cli.show import print_jobs
    from dagmaster.client.answers import JobLine, read_all

    print_jobs(state.console, read_all(JobLine, page), state.client.now)
    _say_more(state, following)


def _say_more(state: State, following: object) -> None:
    if following is not None:
        state.note(f"more with: --after {following}")


def _cursor(after: str | None) -> str | None:
    from uuid import UUID

    try:
        return str(UUID(after)) if after else None
    except ValueError:
        raise InvalidRequest(f"--after {after}: not a job id", code="request.invalid") from None


@jobs.command("show")
@click.argument("job", shell_complete=complete_jobs)
@pass_state
def show(state: State, job: str) -> None:
    """Show a job: its state, what failed first, what it waits for, its nodes and stages, its result."""
    from dagmaster.cli.show import Page, print_page

    page = Page.ask(state.client, state.client.find_job(job))
    if state.json:
        state.emit(page.public())
    else:
        print_page(state.console, page)


@jobs.command("watch")
@click.argument("job", shell_complete=complete_jobs)
@pass_state
def watch(state: State, job: str) -> int:
    """Watch a job until it is over: exit code 0 if it completed, 1 otherwise.

    Ctrl-C ends the watching, not the job, with exit code 130: its end is not known then. A platform that goes away meanwhile
    is waited for, up to a minute.
    """
    from dagmaster.cli.follow import follow

    return follow(state, state.client.find_job(job), live=True)


_by = click.option("--by", metavar="NAME", help="Who asks for it, up to 64 characters; kept with the job")
_reason = click.option("--reason", metavar="TEXT", help="Why; kept with the job")


def _wish(by: str | None, reason: str | None) -> "Json":
    return {name: value for name, value in (("by", by), ("reason", reason)) if value is not None}


@jobs.command("cancel")
@click.argument("job", shell_complete=complete_jobs)
@_reason
@_by
@click.option(
    "--wait", type=click.FloatRange(0, 86_400), default=10, show_default=True, metavar="SECONDS",
    help="Stay until it is over, at most so long",
)  # fmt: skip
@pass_state
def cancel(state: State, *, job: str, reason: str | None, by: str | None, wait: float) -> int:
    """Cancel a job: what waits never starts, running handlers are told, and ended if they don't stop.

    Says which worker told its handler. Ctrl-C ends the waiting, with exit code 130; the job is cancelled all the same.
    """
    from dagmaster.cli.intervene import cancel as cancel_job

    return cancel_job(state, state.client.find_job(job), _wish(by, reason), wait)


@jobs.command("resume")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--dry-run", is_flag=True, help="Only say what would run")
@_reason
@_by
@click.option("--wait", is_flag=True, help="Stay until it is over, and print the result")
@click.option("--watch", is_flag=True, help="Show live progress, then the result")
@pass_state
def resume(
    state: State, *, job: str, dry_run: bool, reason: str | None, by: str | None, wait: bool, watch: bool
) -> int:
    """Let a job that has ended go on: only what failed, was cancelled, or was skipped because of that runs again."""
    from dagmaster.cli.intervene import resume as resume_job

    _refuse_dry_waiting(dry_run, wait or watch)
    job_id = state.client.find_job(job)
    return resume_job(state, job_id, _wish(by, reason), is_dry_run=dry_run, wait=wait, watch=watch)


def _refuse_dry_waiting(is_dry_run: bool, stays: bool) -> None:
    if is_dry_run and stays:
        raise InvalidRequest("a dry run starts nothing to wait for", code="usage")


@jobs.command("retry")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="A node, or one child of a fan_out (NODE__INDEX)")
@click.option("--stage", metavar="STAGE", help="A stage, by name or number")
@click.option("--failed-children", metavar="FAN_OUT", help="The children of a fan_out that failed")
@click.option("--dry-run", is_flag=True, help="Only say what would run")
@_reason
@_by
@click.option("--wait", is_flag=True, help="Stay until it is over, and print the result")
@click.option("--watch", is_flag=True, help="Show live progress, then the result")
@pass_state
def retry(
    state: State, *, job: str, node: str | None, stage: str | None, failed_children: str | None, dry_run: bool,
    reason: str | None, by: str | None, wait: bool, watch: bool,
) -> int:  # fmt: skip
    """Run a part of a job that has ended once more, with everything downstream of it and nothing else."""
    from dagmaster.cli.intervene import retry as retry_job

    named = {"node": node, "stage": stage, "failed_children": failed_children}
    part = {name: value for name, value in named.items() if value is not None}
    if len(part) != 1:
        raise InvalidRequest("name what to run again: --node, --stage or --failed-children, one of them", code="usage")
    _refuse_dry_waiting(dry_run, wait or watch)
    job_id = state.client.find_job(job)
    return retry_job(state, job_id, part, _wish(by, reason), is_dry_run=dry_run, wait=wait, watch=watch)


_follow = click.option(
    "--follow", is_flag=True, help="Go on until the job is over; Ctrl-C leaves it, with exit code 130"
)


@jobs.command("logs")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="Only lines of this node; of a fan_out, of its children")
@click.option("--attempt", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Only lines of this attempt")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on behind this line (`next` of the page before)")
@_follow
@pass_state
def logs(
    state: State, *, job: str, node: str | None, attempt: int | None, limit: int, after: str | None, follow: bool
) -> int:
    """Read what handlers logged: by node and attempt, the last lines of each."""
    from dagmaster.cli.logs import follow_logs, text_of

    job_id = state.client.find_job(job)
    if follow:
        return follow_logs(state, job_id, node, attempt)
    page, following = state.client.logs(job_id, limit, after, node_id=node, attempt=attempt)
    if state.json:
        state.emit({"lines": page, "next": following})
        return 0
    if not page:
        state.note("no log lines")
    for line in page:
        state.say(text_of(line))
    if following is not None:
        state.note(f"more with: --after '{following}'")
    return 0


@jobs.command("events")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="Only events of this node (a child is NODE__INDEX)")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", type=click.IntRange(0, 2**53), default=0, metavar="SEQ", help="Go on behind this number")
@_follow
@pass_state
def events(state: State, *, job: str, node: str | None, limit: int, after: int, follow: bool) -> int:
    """List the events of a job in order: everything that ever happened to it."""
    job_id = state.client.find_job(job)
    if follow:
        _require_node(state, job_id, node)
        return _follow_events(state, job_id, node, after)
    page, following = state.client.events(job_id, limit, after, node)
    if not page:
        _require_node(state, job_id, node)
    if state.json:
        state.emit({"events": page, "next": _number(following)})
        return 0
    for event in page:
        state.say(_event_text(event))
    _say_more(state, following)
    return 0


def _require_node(state: State, job_id: str, node: str | None) -> None:
    """Nothing to tell of a node may mean that there is none of that name. A child need not exist yet."""
    if node is None:
        return
    try:
        state.client.node(job_id, node)
    except NotFound:
        fan_out = node.rpartition("__")[0]
        if not fan_out or state.client.node(job_id, fan_out).get("type") != "fan_out":
            raise


def _number(cursor: str | None) -> int | None:
    return int(cursor) if cursor is not None else None


def _follow_events(state: State, job_id: str, node: str | None, after: int) -> int:
    import orjson

    from dagmaster.cli.follow import detached
    from dagmaster.client.feed import Reconnection, resumed

    reconnection = Reconnection(state.note, job_id)
    try:
        for event in resumed(state.client, job_id, after, reconnection.wait, on_connected=reconnection.succeeded):
            told = orjson.loads(event.data)
            if node in (None, told.get("node_id")):
                _tell_event(state, told)
    except KeyboardInterrupt:
        return detached(state, job_id)
    return 0


def _tell_event(state: State, event: "Json") -> None:
    if state.json:
        state.emit(event, line=True)
    else:
        state.say(_event_text(event))


def _event_text(answer: "Json") -> str:
    from dagmaster.client.answers import Event, read

    event = read(Event, answer)
    attempt = f" attempt {event.attempt}" if event.attempt else ""
    data = _short(answer.get("event_data"))
    at = event.created_at.strftime("%H:%M:%S.%f")[:-3]
    return f"{event.sequence:>6}  {at}  {event.event_type:<16} {one_line(event.node_id)}{attempt}{data}"


def _short(data: Any) -> str:
    text = f"  {as_json(data, indent=False)}" if data else ""
    return text if len(text) <= _DATA_LENGTH else text[: _DATA_LENGTH - 1] + "…"


@jobs.command("nodes")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--parent", metavar="FAN_OUT", help="The children of this fan_out instead")
@click.option("--status", type=click.Choice(NODE_STATES), help="Only nodes in this state")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", type=click.IntRange(-1, 2**31 - 2), default=-1, metavar="N", help="Go on behind this one")
@pass_state
def nodes(state: State, *, job: str, parent: str | None, status: str | None, limit: int, after: int) -> None:
    """List a job's nodes, or with --parent the children of a fan_out, a page at a time."""
    client = state.client
    page, following = client.nodes(client.find_job(job), limit, after, parent=parent, status=status)
    if state.json:
        state.emit({"nodes": page, "next": _number(following)})
        return
    if not page:
        state.note("no nodes")
        return
    from dagmaster.cli.show import print_nodes
    from dagmaster.client.answers import Node, read_all

    print_nodes(state.console, read_all(Node, page), client.now)
    _say_more(state, following)


@jobs.command("node")
@click.argument("job", shell_complete=complete_jobs)
@click.argument("node")
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True),
    help="Write its whole output to this file instead, as JSON; - is standard output",
)  # fmt: skip
@pass_state
def show_node(state: State, job: str, node: str, output: str | None) -> None:
    """Show a node and its attempts: workers, times, errors with their hints; with -v their tracebacks.

    A fan_out's child is NODE__INDEX.
    """
    from dagmaster.cli.node import print_node, save_output

    if output is not None:
        save_output(state, state.client.find_job(job), node, output)
        return
    answer = state.client.node(state.client.find_job(job), node)
    if state.json:
        state.emit(answer)
    else:
        print_node(state.console, answer, has_tracebacks=state.verbose)
