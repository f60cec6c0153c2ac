"""A job as a page, and lists of jobs and nodes as tables."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from dagmaster.cli.command import as_json
from dagmaster.cli.follow import failure_lines, reason_of, remedy_for
from dagmaster.cli.tables import Column, ago, at, print_table, state_text, time_left
from dagmaster.client.blockers import blockers_of
from dagmaster.client.escaping import one_line
from dagmaster.client.models.base import read, read_all
from dagmaster.client.models.jobs import Deliverable, JobDetail, JobSummary, Outcomes
from dagmaster.client.models.nodes import FailedNode, PublicNode, StageSummary, WaitingNodes
from dagmaster.client.node_remarks import in_seconds, joined, remarks_of, seconds_of
from dagmaster.client.outcome import JobPage
from dagmaster.quantities import counted, duration

_RESULT_LENGTH = 4000


def print_page(console: Console, page: JobPage) -> None:
    job = page.detail.job
    console.print(Text.assemble(("job ", "bold"), str(job.job_id), "  ", state_text(job.status, console.encoding)))
    for name, value in _facts(page):
        console.print(Text(f"{name:<11} {value}"), soft_wrap=True)
    if stop := job.stop_reason:
        console.print(Text(f"{'stopped' if job.is_over else 'stopping':<11} {stop}", style="yellow"), soft_wrap=True)
    if job.error_message or page.failed:
        reason = reason_of(page.detail) if job.is_over else job.error_message or ""
        _print_lines(console, "errors", [reason, *failure_lines(read_all(FailedNode, page.failed))], "bold red")
    console.print(Text("\nnodes", style="bold"))
    print_nodes(console, page.detail.nodes, page.detail.now, has_stages=True)
    if any(stage.nodes > 1 for stage in page.detail.stages):
        console.print(Text("\nstages", style="bold"))
        print_table(console, _STAGE_COLUMNS, page.detail.stages)
    if page.waiting is not None:
        _print_waiting(console, read(WaitingNodes, page.waiting))
    if page.detail.outcomes:
        _print_lines(console, "outcomes", _outcome_lines(page.detail.outcomes, str(job.job_id)), "bold")
    if page.detail.deliverables:
        _print_lines(console, "deliverables", _deliverable_lines(page.detail.deliverables), "bold")
    if (result := page.response["job"].get("result_data")) is not None:
        _print_lines(console, "result", [_short_result(result)], "bold")
    if remedy := remedy_for(job):
        console.print(Text(f"\nhint: {remedy}", style="yellow"), soft_wrap=True)


def _print_lines(console: Console, heading: str, lines: Sequence[str], style: str) -> None:
    console.print(Text(f"\n{heading}", style=style))
    for line in lines:
        if line:
            console.print(Text(line), soft_wrap=True)


def _print_waiting(console: Console, waiting: WaitingNodes) -> None:
    lines = [
        f"  {node.node_id}: {'; '.join(reason.detail for reason in node.reasons)}"
        for node in waiting.nodes
        if node.reasons
    ]
    if lines:
        _print_lines(console, "waiting", lines, "bold")
    for line in blockers_of(waiting):
        console.print(Text(f"hint: {line}", style="yellow"), soft_wrap=True)


def _outcome_lines(outcomes: Outcomes, job_id: str) -> list[str]:
    """The primary outcome, then each other node that did not complete, and how to run it again."""
    primary = outcomes.primary
    lines = [f"  {_status_text(primary.status)}: {one_line(primary.description)} ({one_line(primary.details)})"]
    for node in outcomes.secondary:
        description = f" ({one_line(node.description)})" if node.description != node.node_id else ""
        reason = f": {one_line(node.error)}" if node.error else ""
        lines.append(f"  {_status_text(node.status)}: {node.importance} node {node.node_id}{description}{reason}")
        if node.recovery:
            lines.append(f"    run it again with: dagmaster jobs resume {job_id}")
    return lines


def _deliverable_lines(deliverables: Mapping[str, Deliverable]) -> list[str]:
    return [
        f"  {name}: {_count_text(each)}{f', {one_line(each.location)}' if each.location else ''}"
        for name, each in deliverables.items()
    ]


def _count_text(deliverable: Deliverable) -> str:
    return counted(deliverable.count, "item") if deliverable.usable else "missing"


def _status_text(status: str) -> str:
    return status.replace("_", " ")


def _short_result(result: object) -> str:
    text = as_json(result)
    return text if len(text) <= _RESULT_LENGTH else f"{text[:_RESULT_LENGTH]}\n… {len(text)} characters; --json has all"


def _facts(page: JobPage) -> list[tuple[str, str]]:
    job, run_time = page.detail.job, f"{page.detail.seconds:.2f} s{_with_pauses(page.detail)}"
    facts = [
        ("workflow", f"{job.workflow_id} version {job.workflow_version} ({job.definition_hash[:12]})"),
        ("inputs", as_json(page.response["job"].get("input_params"), indent=False)),
        ("created", f"{at(job.created_at)} UTC, {duration(_age_seconds(page))} ago"),
        ("took" if page.detail.is_over else "runs for", joined(", ", run_time, time_left(page.detail.eta_seconds))),
        ("priority", str(job.priority)),
    ]
    optional = {
        "submitter": one_line(job.submitted_by),
        "correlation": one_line(job.correlation_id),
        "key": one_line(job.idempotency_key),
        "resumed": counted(job.resume_count, "time") if job.resume_count else None,
        "owner": f"{job.owner_id} (epoch {job.epoch})" if job.owner_id else None,
    }
    return facts + [(name, value) for name, value in optional.items() if value]


def _age_seconds(page: JobPage) -> float:
    """The date of a response has whole seconds and may be too early; a job is never younger than its duration."""
    if not page.detail.is_over:
        return page.detail.seconds
    return max(page.detail.seconds, (page.now - page.detail.job.created_at).total_seconds())


def _with_pauses(detail: JobDetail) -> str:
    return " since its submission, including the time before it was resumed" if detail.job.resume_count else ""


def print_jobs(console: Console, jobs: Sequence[JobSummary], now: datetime) -> None:
    columns: list[Column[JobSummary]] = [
        Column("job", lambda job: str(job.job_id)),
        Column("workflow", lambda job: job.workflow_id, is_below=True),
        Column("state", lambda job: job.status, is_state=True),
        Column("created (UTC)", lambda job: at(job.created_at), drop=2),
        Column("age", lambda job: ago(job.created_at, now), is_number=True),
        Column("seconds", lambda job: f"{_seconds(job, now):.1f}", drop=1, is_number=True),
        Column("error", lambda job: one_line(job.error_message), is_long=True, is_below=True),
    ]
    print_table(console, columns, jobs)


def _seconds(job: JobSummary, now: datetime) -> float:
    return max(0.0, ((job.completed_at or now) - job.created_at).total_seconds())


def print_nodes(console: Console, nodes: Sequence[PublicNode], now: datetime, *, has_stages: bool = False) -> None:
    kinds: list[Column[PublicNode]] = [Column("label", lambda node: one_line(node.label), drop=1, is_long=True)]
    if has_stages:
        kinds = [
            Column("type", lambda node: node.type, drop=2),
            Column("stage", lambda node: one_line(node.stage), drop=1),
        ]
    columns: list[Column[PublicNode]] = [
        Column("node", lambda node: node.node_id),
        *kinds,
        Column("state", lambda node: node.state, is_state=True),
        Column("attempt", lambda node: str(node.attempt or ""), drop=3, is_number=True),
        Column("seconds", lambda node: in_seconds(seconds_of(node, now)), drop=4, is_number=True),
        Column("remarks", lambda node: remarks_of(node, now), is_long=True),
    ]
    print_table(console, columns, nodes)


def _children(stage: StageSummary) -> str:
    failed = f" ({stage.children_failed} failed)" if stage.children_failed else ""
    return f"{stage.children}{failed}" if stage.children else ""


_STAGE_COLUMNS: list[Column[StageSummary]] = [
    Column("stage", lambda stage: str(stage.number), is_number=True),
    Column("name", lambda stage: one_line(stage.name)),
    Column("state", lambda stage: stage.status, is_state=True),
    Column("nodes", lambda stage: f"{stage.completed}/{stage.nodes}"),
    Column("children", _children),
    Column("seconds", lambda stage: in_seconds(stage.seconds), is_number=True),
]
