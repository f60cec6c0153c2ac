"""`dagmaster jobs`: list and show jobs, their nodes, events and log lines; cancel, resume and retry them."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import (
    Callback,
    Group,
    State,
    as_json,
    limit_option,
    page_options,
    pass_state,
    reason_option,
    wait_options,
    words_option,
    yes_option,
)
from dagmaster.cli.completion import complete_jobs, complete_workflows
from dagmaster.client.escaping import one_line
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.quantities import shortened

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json

JOB_STATES = ("pending", "running", "completed", "partial_success", "failed", "cancelled")
NODE_STATES = ("pending", "ready", "dispatched", "running", "completed", "failed", "skipped", "cancelled")
_DATA_LENGTH = 100
_REPEATED = "may be repeated, or list several states with commas"


@click.group(cls=Group)
def jobs() -> None:
    """List and show jobs; cancel, resume and retry them. JOB is an id, the beginning of one, or `last`."""


def _time_options(command: Callback) -> Callback:
    since = "Only jobs created at or after this time: a time, a day, or an age such as 2h"
    until = click.option("--until", metavar="WHEN", help="Only jobs created before this time")
    return click.option("--since", metavar="WHEN", help=since)(until(command))


@jobs.command("ls")
@words_option("--status", words=JOB_STATES, text=f"Only jobs in this state; {_REPEATED}")
@click.option(
    "--search",
    "-q",
    "q",
    metavar="WORDS",
    help="Only jobs with all of these words, or beginnings of words, in their id, workflow, submitter, correlation id, "
    "idempotency key, asset id, inputs or error",
)
@_time_options
@click.option("--workflow", metavar="ID", shell_complete=complete_workflows, help="Only jobs of this workflow")
@click.option("--submitted-by", metavar="WHO", help="Only jobs of this submitter")
@click.option("--correlation-id", metavar="ID", help="Only jobs with this correlation id")
@page_options(1000, default=20, entry="job")
@pass_state
def list_jobs(
    state: State,
    /,
    *,
    workflow: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    after: str | None,
    **filters: Any,
) -> None:
    """List jobs, newest first. A time without a zone is in the local time zone; a day begins at midnight."""
    filters |= {"created_after": _moment(since, "--since"), "created_before": _moment(until, "--until")}
    page = state.client.jobs(limit, _cursor(after), workflow_id=workflow, **filters)
    state.print_page("jobs", page, _print_jobs)


def _print_jobs(state: State, page: "list[Json]") -> None:
    from dagmaster.cli.show import print_jobs
    from dagmaster.client.models.base import read_all
    from dagmaster.client.models.jobs import JobSummary

    print_jobs(state.console, read_all(JobSummary, page), state.client.now)


def _moment(text: str | None, option: str) -> str | None:
    from dagmaster.client.moments import parse_moment

    return parse_moment(text, option).isoformat() if text else None


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
    """Show a job: its state, its errors, what it waits for, its nodes and stages, its result."""
    from dagmaster.cli.show import print_page
    from dagmaster.client.outcome import JobPage

    page = JobPage.fetch(state.client, state.client.find_job(job))
    state.print_result(page.public(), lambda: print_page(state.console, page))


@jobs.command("watch")
@click.argument("job", shell_complete=complete_jobs)
@pass_state
def watch(state: State, job: str) -> int:
    """Watch a job until it has ended: exit code 0 if it completed, 1 otherwise.

    Ctrl-C stops watching, with exit code 130; the job continues. If the platform becomes unavailable, the command tries
    to reconnect for up to a minute.
    """
    from dagmaster.cli.follow import follow

    return follow(state, state.client.find_job(job), live=True)


_reason = reason_option("recorded with the job and your name")


def _rerun_options(command: Callback) -> Callback:
    dry_run = click.option("--dry-run", is_flag=True, help="Only show what would run")
    return dry_run(_reason(wait_options(command)))


def _request(reason: str | None) -> "Json":
    return {} if reason is None else {"reason": reason}


@jobs.command("bulk")
@click.argument("action", type=click.Choice(["cancel", "resume", "retry"]))
@words_option(
    "--status", words=JOB_STATES, text=f"Only jobs in this state; {_REPEATED}; by default all that can be changed"
)
@click.option("--search", "-q", "q", metavar="WORDS", help="Only jobs in which all of these words occur")
@_time_options
@click.option(
    "--workflow", metavar="ID", multiple=True, shell_complete=complete_workflows, help="Only jobs of this workflow"
)
@click.option("--submitted-by", metavar="WHO", multiple=True, help="Only jobs of this submitter")
@click.option("--correlation-id", metavar="ID", help="Only jobs with this correlation id")
@click.option(
    "--job", "job_ids", metavar="JOB", multiple=True, help="A job to change, instead of a filter; may be repeated"
)
@click.option("--node", metavar="NODE", help="For retry: a node, or one child of a fan_out (NODE__INDEX)")
@click.option("--stage", metavar="STAGE", help="For retry: a stage, by name or number")
@click.option("--failed-children", metavar="FAN_OUT", help="For retry: the failed children of a fan_out")
@_reason
@click.option("--dry-run", is_flag=True, help="Only show what would happen")
@yes_option
@pass_state
def bulk(state: State, /, *, action: str, reason: str | None, dry_run: bool, yes: bool, **options: Any) -> int:
    """Cancel, resume or retry many jobs: list what would happen to each, ask, then change exactly these jobs.

    Up to 1,000 jobs at a time, the newest first. Exit code 4 if a job was refused.
    """
    from dagmaster.cli.bulk import change_jobs, request_of

    return change_jobs(state, request_of(state, action, reason, is_dry_run=dry_run, **options), is_confirmed=yes)


@jobs.command("export")
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Where to write it [default: job-ID.json]"
)
@pass_state
def export(state: State, job: str, output: str | None) -> None:
    """Write a job with its whole history to one JSON file: definition, nodes, attempts, events and logs.

    Secrets are redacted. FILE may be `-` for the standard output.
    """
    from dagmaster.cli.files import save

    job_id = state.client.find_job(job)
    file = output or f"job-{job_id}.json"
    size = save(file, partial(state.client.export_job, job_id))
    if file != "-":
        state.print_result({"job_id": job_id, "file": file, "size_bytes": size}, f"{file} ({size:,} bytes)")


@jobs.command("cancel")
@click.argument("job", shell_complete=complete_jobs)
@_reason
@click.option(
    "--wait",
    type=click.FloatRange(0, 86_400),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Wait at most this long for the end of the job",
)
@pass_state
def cancel(state: State, *, job: str, reason: str | None, wait: float) -> int:
    """Cancel a job: waiting tasks never start; running handlers are asked to stop, and killed if they do not.

    Prints which workers have asked their handlers to stop. Ctrl-C stops waiting, with exit code 130; the job will
    still be cancelled.
    """
    from dagmaster.cli.intervene import cancel as cancel_job

    return cancel_job(state, state.client.find_job(job), _request(reason), wait)


@jobs.command("resume")
@click.argument("job", shell_complete=complete_jobs)
@_rerun_options
@pass_state
def resume(state: State, *, job: str, dry_run: bool, reason: str | None, wait: bool, watch: bool) -> int:
    """Resume an ended job: run nodes that failed or were cancelled, and those that were skipped because of them."""
    from dagmaster.cli.intervene import resume as resume_job

    _require_no_dry_wait(dry_run, wait or watch)
    job_id = state.client.find_job(job)
    return resume_job(state, job_id, _request(reason), is_dry_run=dry_run, wait=wait, watch=watch)


def _require_no_dry_wait(is_dry_run: bool, is_waiting: bool) -> None:
    if is_dry_run and is_waiting:
        raise InvalidRequest("--dry-run starts nothing, so --wait and --watch do not apply", code="usage")


@jobs.command("retry")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="A node, or one child of a fan_out (NODE__INDEX)")
@click.option("--stage", metavar="STAGE", help="A stage, by name or number")
@click.option("--failed-children", metavar="FAN_OUT", help="The failed children of a fan_out")
@_rerun_options
@pass_state
def retry(
    state: State,
    /,
    *,
    job: str,
    dry_run: bool,
    reason: str | None,
    wait: bool,
    watch: bool,
    **parts: str,
) -> int:
    """Run a part of an ended job again, with everything downstream of it and nothing else."""
    from dagmaster.cli.intervene import retry as retry_job

    part = {name: value for name, value in parts.items() if value is not None}
    if len(part) != 1:
        raise InvalidRequest("give exactly one of --node, --stage and --failed-children", code="usage")
    _require_no_dry_wait(dry_run, wait or watch)
    job_id = state.client.find_job(job)
    return retry_job(state, job_id, part, _request(reason), is_dry_run=dry_run, wait=wait, watch=watch)


_follow = click.option(
    "--follow", is_flag=True, help="Continue until the job has ended; Ctrl-C ends only this command, with exit code 130"
)


def _is_given(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _require_no_page(entries: str, *options: str) -> None:
    """Refuse options that select a page, for a command that prints all entries."""
    context = click.get_current_context()
    refused = [f"--{name}" for name in options if _is_given(context, name)]
    if refused:
        raise InvalidRequest(f"--follow prints all {entries}, so {' and '.join(refused)} cannot be used", code="usage")


@jobs.command("logs")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="Only lines of this node; for a fan_out, of its children")
@click.option("--attempt", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Only lines of this attempt")
@page_options(10_000, default=100, entry="line")
@_follow
@pass_state
def logs(
    state: State, *, job: str, node: str | None, attempt: int | None, limit: int, after: str | None, follow: bool
) -> int:
    """Show the last lines that each attempt logged, by node and attempt."""
    from dagmaster.cli.logs import follow_logs, text_of

    job_id = state.client.find_job(job)
    if follow:
        _require_no_page("lines", "limit", "after")
        return follow_logs(state, job_id, node, attempt)
    page = state.client.logs(job_id, limit, after, node_id=node, attempt=attempt)
    state.print_page("lines", page, partial(_print_lines, text_of), noun="log lines")
    return 0


def _print_lines(text_of: "Callable[[Json], str]", state: State, page: "list[Json]") -> None:
    for response in page:
        state.say(text_of(response))


@jobs.command("events")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--node", metavar="NODE", help="Only events of this node (a child is NODE__INDEX)")
@limit_option(10_000, default=100)
@click.option(
    "--after", type=click.IntRange(0, 2**53), default=0, metavar="SEQ", help="Continue after the event with this number"
)
@_follow
@pass_state
def events(state: State, *, job: str, node: str | None, limit: int, after: int, follow: bool) -> int:
    """List the events of a job in order: its whole history."""
    job_id = state.client.find_job(job)
    if follow:
        _require_no_page("events", "limit")
        _require_node(state, job_id, node)
        return _follow_events(state, job_id, node, after)
    page, next_cursor = state.client.events(job_id, limit, after, node)
    if not page:
        _require_node(state, job_id, node)
    state.print_page("events", (page, _number(next_cursor)), partial(_print_lines, _event_text))
    return 0


def _require_node(state: State, job_id: str, node: str | None) -> None:
    """Raise an error if no node has this name. A child of a fan_out may not exist yet."""
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
    from dagmaster.client.feed import Reconnection
    from dagmaster.client.json_client import Connected, Outage

    reconnection = Reconnection(state.note, job_id)
    try:
        for update in state.client.follow(job_id, after):
            match update:
                case Connected():
                    reconnection.succeeded()
                case Outage(error):
                    reconnection.failed(error)
                case event if event.sequence is not None:
                    response = orjson.loads(event.data)
                    if node in (None, response.get("node_id")):
                        _print_event(state, response)
    except KeyboardInterrupt:
        return detached(state, job_id)
    return 0


def _print_event(state: State, event: "Json") -> None:
    state.print_result(event, lambda: state.say(_event_text(event)), line=True)


def _event_text(response: "Json") -> str:
    from dagmaster.client.models.base import read
    from dagmaster.client.models.jobs import EventEntry

    event = read(EventEntry, response)
    attempt = f" attempt {event.attempt}" if event.attempt else ""
    data = _short(response.get("event_data"))
    at = event.created_at.strftime("%H:%M:%S.%f")[:-3]
    return f"{event.sequence:>6}  {at}  {event.event_type:<16} {one_line(event.node_id)}{attempt}{data}"


def _short(data: Any) -> str:
    text = f"  {as_json(data, indent=False)}" if data else ""
    return shortened(text, _DATA_LENGTH)


@jobs.command("nodes")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--parent", metavar="FAN_OUT", help="The children of this fan_out")
@words_option("--status", words=NODE_STATES, text=f"Only nodes in this state; {_REPEATED}")
@limit_option(10_000, default=50)
@click.option(
    "--after",
    type=click.IntRange(-1, 2**31 - 2),
    default=-1,
    metavar="N",
    help="Continue after this node (`next` of the previous page)",
)
@pass_state
def nodes(
    state: State, *, job: str, parent: str | None, status: tuple[str, ...] | None, limit: int, after: int
) -> None:
    """List a job's nodes, or with --parent the children of a fan_out, a page at a time."""
    client = state.client
    page, next_cursor = client.nodes(client.find_job(job), limit, after, parent=parent, status=status)
    state.print_page("nodes", (page, _number(next_cursor)), _print_nodes)


def _print_nodes(state: State, page: "list[Json]") -> None:
    from dagmaster.cli.show import print_nodes
    from dagmaster.client.models.base import read_all
    from dagmaster.client.models.nodes import PublicNode

    print_nodes(state.console, read_all(PublicNode, page), state.client.now)


@jobs.command("node")
@click.argument("job", shell_complete=complete_jobs)
@click.argument("node")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Only write the whole output of the node to this file, as JSON; - is standard output",
)
@pass_state
def show_node(state: State, job: str, node: str, output: str | None) -> None:
    """Show a node and its attempts: workers, times, errors with hints; with -v also tracebacks.

    A child of a fan_out is NODE__INDEX.
    """
    from dagmaster.cli.node import print_node, save_output

    if output is not None:
        save_output(state, state.client.find_job(job), node, output)
        return
    response = state.client.node(state.client.find_job(job), node)
    state.print_result(response, lambda: print_node(state.console, response, has_tracebacks=state.verbose))
