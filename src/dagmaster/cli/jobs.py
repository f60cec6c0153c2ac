"""`dagmaster jobs`: look at jobs, their nodes and events."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from uuid import UUID

    from dagmaster.database.reads import EventLine, NodeLine, Reads

T = TypeVar("T")

JOB_STATES = ("pending", "running", "completed", "partial_success", "failed", "cancelled")
NODE_STATES = ("pending", "ready", "dispatched", "running", "completed", "failed", "skipped", "cancelled")
_FOLLOW_SECONDS = 0.3
_DATA_LENGTH = 100


@click.group(cls=Group)
def jobs() -> None:
    """Look at jobs. JOB is an id, the beginning of one, or `last`."""


def _ask(state: State, question: "Callable[[Reads], Awaitable[T]]") -> T:
    async def asked() -> T:
        from dagmaster.database.reads import Reads

        async with Reads(state.dsn) as reads:
            return await question(reads)

    return asyncio.run(asked())


@jobs.command("ls")
@click.option("--status", type=click.Choice(JOB_STATES), help="Only jobs in this state")
@click.option("--workflow", metavar="ID", help="Only jobs of this workflow")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--after", metavar="CURSOR", help="Go on behind this job (`next` of the page before)")
@pass_state
def list_jobs(state: State, *, status: str | None, workflow: str | None, limit: int, after: str | None) -> None:
    """List jobs, newest first."""
    from dagmaster.cli.show import jobs_table

    cursor = _cursor(after)
    # One more than asked for tells whether there is another page.
    found = _ask(
        state, lambda reads: reads.list_jobs(limit=limit + 1, after=cursor, status=status, workflow_id=workflow)
    )
    page, following = found[:limit], str(found[limit - 1].job_id) if len(found) > limit else None
    if state.json:
        state.emit({"jobs": [{k: v for k, v in asdict(job).items() if k != "now"} for job in page], "next": following})
        return
    if not page:
        state.note("no jobs")
        return
    state.console.print(jobs_table(page))
    if following:
        state.note(f"more with: --after {following}")


def _cursor(after: str | None) -> "UUID | None":
    from uuid import UUID

    try:
        return UUID(after) if after else None
    except ValueError:
        raise InvalidRequest(f"--after {after}: not a job id", code="request.invalid") from None


@jobs.command("show")
@click.argument("job")
@pass_state
def show(state: State, job: str) -> None:
    """Show a job: its state, what failed first, its nodes and stages, its result."""
    from dagmaster.cli.show import Page, print_page

    page = _ask(state, lambda reads: Page.read(reads, job))
    if state.json:
        state.emit(page.public())
    else:
        print_page(state.console, page)


@jobs.command("watch")
@click.argument("job")
@pass_state
def watch(state: State, job: str) -> int:
    """Watch a job until it is over. Ctrl-C ends the watching, not the job."""
    from dagmaster.cli.follow import follow

    job_id = _ask(state, lambda reads: reads.find_job(job))
    return follow(state, job_id, live=True)


@jobs.command("events")
@click.argument("job")
@click.option("--node", metavar="NODE", help="Only events of this node (a child is NODE__INDEX)")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Go on behind this number")
@click.option("--follow", is_flag=True, help="Go on until the job is over")
@pass_state
def events(state: State, *, job: str, node: str | None, limit: int, after: int, follow: bool) -> None:
    """List the events of a job in order: everything that ever happened to it."""
    if follow:
        _follow_events(state, job, node, after)
        return
    found = _ask(state, lambda reads: _events(reads, job, node, limit + 1, after))
    page, following = found[:limit], found[limit - 1].sequence if len(found) > limit else None
    if state.json:
        state.emit({"events": [asdict(event) for event in page], "next": following})
        return
    for event in page:
        _print_event(state, event)
    if following is not None:
        state.note(f"more with: --after {following}")


async def _events(reads: "Reads", job: str, node: str | None, limit: int, after: int) -> "list[EventLine]":
    job_id = await reads.find_job(job)
    return await reads.page_events(job_id, limit=limit, after=after, node_id=node)


def _follow_events(state: State, job: str, node: str | None, after: int) -> None:
    try:
        _ask(state, lambda reads: _print_events(state, reads, job, node, after))
    except KeyboardInterrupt:
        if not state.json:
            state.note("\ndetached: the job goes on")


async def _print_events(state: State, reads: "Reads", job: str, node: str | None, after: int) -> None:
    from dagmaster.cli.follow import Patience
    from dagmaster.jobs.states import JOB_TERMINAL

    job_id, patience = await reads.find_job(job), Patience(state)

    async def news() -> "list[EventLine]":
        return await reads.page_events(job_id, limit=1000, after=after, node_id=node)

    while True:
        # Asked before the events: the last ones are written together with the end.
        is_over = await patience.with_(lambda: reads.outcome(job_id)) in JOB_TERMINAL
        while page := await patience.with_(news):
            after = page[-1].sequence
            for event in page:
                _print_event(state, event)
        if is_over:
            return
        await asyncio.sleep(_FOLLOW_SECONDS)


def _print_event(state: State, event: "EventLine") -> None:
    if state.json:
        state.emit(asdict(event), line=True)
    else:
        state.say(_event_text(event))


def _event_text(event: "EventLine") -> str:
    from dagmaster.cli.command import as_json

    attempt = f" attempt {event.attempt}" if event.attempt else ""
    data = f"  {as_json(event.event_data, indent=False)}" if event.event_data else ""
    if len(data) > _DATA_LENGTH:
        data = data[: _DATA_LENGTH - 1] + "…"
    at = event.created_at.strftime("%H:%M:%S.%f")[:-3]
    return f"{event.sequence:>6}  {at}  {event.event_type:<16} {event.node_id or ''}{attempt}{data}"


@jobs.command("nodes")
@click.argument("job")
@click.option("--parent", metavar="FAN_OUT", help="The children of this fan_out instead")
@click.option("--status", type=click.Choice(NODE_STATES), help="Only nodes in this state")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="N", help="Go on behind this one")
@pass_state
def nodes(state: State, *, job: str, parent: str | None, status: str | None, limit: int, after: int) -> None:
    """List a job's nodes, or with --parent the children of a fan_out, a page at a time."""
    from dagmaster.cli.show import nodes_table

    rows = _ask(state, lambda reads: _nodes(reads, job, parent, status=status, limit=limit + 1, after=after))
    page, following = rows[:limit], rows[limit - 1][0] if len(rows) > limit else None
    if state.json:
        state.emit({"nodes": [asdict(node) for _, node in page], "next": following})
        return
    state.console.print(nodes_table([node for _, node in page]))
    if following is not None:
        state.note(f"more with: --after {following}")


async def _nodes(
    reads: "Reads", job: str, parent: str | None, *, status: str | None, limit: int, after: int
) -> "list[tuple[int, NodeLine]]":
    """Nodes with their places: a child's index, or the place in the order of the graph."""
    from dagmaster.workflows.graph import build

    job_id = await reads.find_job(job)
    _, workflow = await reads.show_job(job_id)
    if parent is not None:
        _require_fan_out(workflow.nodes, parent)
        children = await reads.page_children(job_id, parent, limit=limit, after=after, status=status)
        return [(child.fan_out_index or 0, child) for child in children]
    snapshot = await reads.watch_job(job_id, build(workflow).order)
    placed = [(place, node) for place, node in enumerate(snapshot.nodes) if place > after]
    return [(place, node) for place, node in placed if status in (None, node.status)][:limit]


def _require_fan_out(nodes: dict[str, Any], name: str) -> None:
    fan_outs = [node_id for node_id, node in nodes.items() if node.type == "fan_out"]
    if name not in fan_outs:
        hint = f"fan_outs are: {', '.join(fan_outs)}" if fan_outs else "this workflow has none"
        raise NotFound(f"no fan_out is named '{name}'", code="node.not-found", hint=hint)
