"""A job as a page, and lists of jobs and nodes as tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagmaster.cli.command import as_json
from dagmaster.cli.follow import failure_facts, failure_lines, failures
from dagmaster.cli.live import counts_of, remark_of, seconds_of, state_of, state_text
from dagmaster.database.reads import JobLine, NodeLine, Reads, Snapshot
from dagmaster.jobs.model import Job
from dagmaster.workflows.graph import Graph, build

_RESULT_LENGTH = 4000


@dataclass(frozen=True, slots=True)
class Stage:
    """Nodes that belong together for people. Its seconds reach from its first beginning to its last end."""

    number: int
    name: str
    status: str
    nodes: int
    completed: int
    failed: int
    children: int
    children_failed: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Page:
    job: Job
    graph: Graph
    snapshot: Snapshot
    failed: list[NodeLine]

    @classmethod
    async def read(cls, reads: Reads, name: str) -> "Page":
        job_id = await reads.find_job(name)
        job, workflow = await reads.show_job(job_id)
        graph = build(workflow)
        snapshot = await reads.watch_job(job_id, graph.order)
        return cls(job, graph, snapshot, await failures(reads, job_id, snapshot))

    def stages(self) -> list[Stage]:
        groups: dict[tuple[int, str], list[NodeLine]] = {}
        for node in self.snapshot.nodes:
            groups.setdefault(self.graph.stages[node.node_id], []).append(node)
        return [stage_of(number, name, nodes) for (number, name), nodes in sorted(groups.items())]

    def public(self) -> dict[str, Any]:
        types = {node_id: node.type for node_id, node in self.graph.workflow.nodes.items()}
        stages = {node_id: name for node_id, (_, name) in self.graph.stages.items()}
        extra = [{"type": types[n.node_id], "stage": stages[n.node_id]} for n in self.snapshot.nodes]
        return {
            "job": self.job.public(),
            "seconds": round(self.snapshot.seconds, 3),
            "failed": [failure_facts(node) for node in self.failed],
            "stages": [asdict(stage) for stage in self.stages()],
            "nodes": [asdict(node) | more for node, more in zip(self.snapshot.nodes, extra, strict=True)],
        }


def stage_of(number: int, name: str, nodes: Sequence[NodeLine]) -> Stage:
    states = Counter(state_of(node) for node in nodes)
    begun = [at for node in nodes if (at := node.dispatched_at or node.started_at or node.completed_at)]
    ended = [node.completed_at for node in nodes if node.completed_at]
    return Stage(
        number, name, _combined(states), len(nodes), states["completed"], states["failed"],
        sum(node.total or 0 for node in nodes), sum(node.failed_count or 0 for node in nodes),
        round((max(ended) - min(begun)).total_seconds(), 3) if begun and ended else None,
    )  # fmt: skip


def _combined(states: Counter[str]) -> str:
    """The one word for several nodes: what is wrong first, then what is under way."""
    for state in ("failed", "cancelled", "running", "dispatched", "ready"):
        if states[state]:
            return "running" if state in {"dispatched", "ready"} else state
    if states["pending"]:
        return "running" if states["completed"] else "pending"
    return "completed" if states["completed"] else "skipped"


def print_page(console: Console, page: Page) -> None:
    job = page.job
    console.print(Text.assemble(("job ", "bold"), str(job.job_id), "  ", state_text(str(job.status))))
    for name, value in _facts(page):
        console.print(Text(f"{name:<10} {value}"), soft_wrap=True)
    if job.error_message or page.failed:
        console.print(Text("\nerrors", style="bold red"))
        for line in [job.error_message or "", *failure_lines(page.failed)]:
            if line:
                console.print(Text(line), soft_wrap=True)
    console.print(Text("\nnodes", style="bold"))
    console.print(nodes_table(page.snapshot.nodes, page))
    if any(stage.nodes > 1 for stage in page.stages()):
        console.print(Text("\nstages", style="bold"))
        console.print(_stages_table(page.stages()))
    if job.result_data is not None:
        console.print(Text("\nresult", style="bold"))
        console.print(Text(_short_result(job.result_data)), soft_wrap=True)


def _short_result(result: Any) -> str:
    text = as_json(result)
    return (
        text if len(text) <= _RESULT_LENGTH else f"{text[:_RESULT_LENGTH]}\n… {len(text)} characters; all with --json"
    )


def _facts(page: Page) -> list[tuple[str, str]]:
    job = page.job
    facts = [
        ("workflow", f"{job.workflow_id} version {job.workflow_version} ({job.definition_hash[:12]})"),
        ("inputs", as_json(job.input_params, indent=False)),
        ("created", f"{_at(job.created_at)} UTC, {_ago(job.created_at, page.snapshot.now)} ago"),
        ("took" if page.snapshot.is_over else "runs for", f"{page.snapshot.seconds:.2f} s"),
        ("priority", str(job.priority)),
    ]
    optional = {
        "submitted": job.submitted_by, "correlate": job.correlation_id,
        "resumed": f"{job.resume_count} times" if job.resume_count else None,
        "owner": f"{job.owner_id} (epoch {job.epoch})" if job.owner_id else None,
    }  # fmt: skip
    return facts + [(name, value) for name, value in optional.items() if value]


def jobs_table(jobs: Sequence[JobLine]) -> Table:
    table = _table("job", "workflow", "state", "created (UTC)", "age", "seconds", "error")
    for job in jobs:
        ended = job.completed_at or (job.now if job.status in {"pending", "running"} else None)
        took = f"{(ended - job.created_at).total_seconds():.1f}" if ended else ""
        created, age = _at(job.created_at), _ago(job.created_at, job.now)
        error = (job.error_message or "").splitlines()
        table.add_row(
            str(job.job_id),
            Text(job.workflow_id),
            state_text(job.status),
            created,
            age,
            took,
            Text(error[0] if error else ""),
        )
    return table


def nodes_table(nodes: Sequence[NodeLine], page: Page | None = None) -> Table:
    table = _table("node", *(("type", "stage") if page else ("label",)), "state", "attempt", "seconds", "remarks")
    for node in nodes:
        now = page.snapshot.now if page else node.completed_at
        kind = (page.graph.workflow.nodes[node.node_id].type, page.graph.stages[node.node_id][1]) if page else ()
        seconds = seconds_of(node, now)
        parts = (counts_of(node), remark_of(node, now) if now else node.error_message or "")
        table.add_row(
            Text(node.node_id), *(kind or (Text(node.label or ""),)), state_text(state_of(node)), str(node.attempt or ""),
            f"{seconds:.2f}" if seconds is not None else "", Text("; ".join(part for part in parts if part)),
        )  # fmt: skip
    return table


def _stages_table(stages: Sequence[Stage]) -> Table:
    table = _table("stage", "name", "state", "nodes", "children", "seconds")
    for stage in stages:
        children = (
            f"{stage.children} ({stage.children_failed} failed)" if stage.children_failed else str(stage.children)
        )
        seconds = f"{stage.seconds:.2f}" if stage.seconds is not None else ""
        table.add_row(
            str(stage.number), Text(stage.name), state_text(stage.status), f"{stage.completed}/{stage.nodes}",
            children if stage.children else "", seconds,
        )  # fmt: skip
    return table


def _table(*headings: str) -> Table:
    """Ids and states stay whole, to be read and copied; what is long gives way where it is narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        is_long = heading in {"error", "remarks", "label"}
        table.add_column(heading, no_wrap=not is_long, overflow="fold")
    return table


def _at(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _ago(moment: datetime, now: datetime) -> str:
    seconds = max(0.0, (now - moment).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
