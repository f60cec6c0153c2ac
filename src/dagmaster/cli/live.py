"""Three ways to show a running job: a live table on a terminal, lines elsewhere, JSON lines for programs.

Each is called repeatedly with the current job, and shows what has changed. A fan_out is one line, however many children
it has.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dagmaster.cli.command import State
from dagmaster.cli.tables import state_text, time_left
from dagmaster.client.models.base import Json
from dagmaster.client.models.jobs import JobDetail
from dagmaster.client.models.nodes import PublicNode
from dagmaster.client.node_remarks import counts_of, in_seconds, joined, progress_text, remarks_of, seconds_of

_OTHER_LINES = 8  # lines of the terminal for title, headings, summary and prompt


class LiveTable:
    """A table that is redrawn in place. If not all nodes fit, the most important ones are shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Redrawn by each call of `show`, not by a timer of rich.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()

    def show(self, detail: JobDetail, blockers: Sequence[str] = ()) -> None:
        self._live.update(self._drawn(detail, blockers), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _drawn(self, detail: JobDetail, blockers: Sequence[str]) -> RenderableType:
        job = detail.job
        title = Text.assemble(
            (job.workflow_id, "bold"),
            f"  {job.job_id}  ",
            self._state(job.status),
            f"  {detail.seconds:.1f} s",
            (f"  {left}" if (left := time_left(detail.eta_seconds)) else "", "dim"),
            (f"  {job.stop_reason}" if job.stop_reason else "", "yellow"),
        )
        shown = self._fitting(detail.nodes, len(blockers))
        parts: list[RenderableType] = [title, self._table(detail, shown)]
        if len(shown) < len(detail.nodes):
            hidden = Counter(node.state for node in detail.nodes if node not in shown)
            states = ", ".join(f"{count} {state}" for state, count in hidden.items())
            parts.append(Text(f"… {hidden.total()} more: {states}", style="dim"))
        parts += [Text(line, style="yellow") for line in blockers]
        return Group(*parts)

    def _state(self, status: str) -> Text:
        return state_text(status, self._console.encoding)

    def _fitting(self, nodes: list[PublicNode], lines_taken: int) -> list[PublicNode]:
        max_rows = max(3, self._console.height - _OTHER_LINES - lines_taken)
        if len(nodes) <= max_rows:
            return nodes
        urgency = {"failed": 0, "running": 1, "dispatched": 1, "ready": 2, "cancelled": 3, "completed": 4, "pending": 5}
        places = {node.node_id: place for place, node in enumerate(nodes)}
        chosen = sorted(nodes, key=lambda node: (urgency.get(node.state, 6), places[node.node_id]))[:max_rows]
        return sorted(chosen, key=lambda node: places[node.node_id])

    def _table(self, detail: JobDetail, nodes: list[PublicNode]) -> Table:
        """In a narrow terminal the remarks are cut, never the names."""
        sizes = Counter(node.stage for node in detail.nodes)
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        has_stages = any(size > 1 for size in sizes.values())
        if has_stages:
            table.add_column("stage", no_wrap=True, style="dim", max_width=16)
        table.add_column("node", no_wrap=True, max_width=28)
        table.add_column("state", no_wrap=True, min_width=12)
        table.add_column("progress", width=24 if self._console.width >= 100 else 10)
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("")
        last_stage = None
        for node in nodes:
            # A node without a stage label is its own stage, whose name would repeat the node's.
            is_shown = node.stage != last_stage and sizes[node.stage] > 1
            stage = [Text(node.stage if is_shown else "")] if has_stages else []
            table.add_row(*stage, *self._cells(node, detail.now))
            last_stage = node.stage
        return table

    def _cells(self, node: PublicNode, now: datetime) -> Iterator[RenderableType]:
        yield Text(node.node_id)
        yield self._state(node.state)
        yield _bar(node)
        yield Text(in_seconds(seconds_of(node, now)))
        remarks = joined(" ", remarks_of(node, now), time_left(node.eta_seconds))
        yield Text(remarks, no_wrap=True, overflow="ellipsis")


def _bar(node: PublicNode) -> RenderableType:
    if node.children and node.children.total:
        finished = "red" if node.children.failed else "green"
        return ProgressBar(node.children.total, node.children.ended, complete_style="cyan", finished_style=finished)
    fraction = (node.progress or {}).get("fraction")
    if isinstance(fraction, int | float):
        return ProgressBar(1.0, float(fraction), complete_style="cyan")
    return ""


class Lines:
    """A line for each change; counts and progress at most once a second; a summary after a while without lines."""

    def __init__(self, say: Callable[[str], None], heartbeat_seconds: float) -> None:
        self._say = say
        self._heartbeat_seconds = heartbeat_seconds
        self._seen: dict[str, tuple[str, str]] = {}
        self._counted_at: dict[str, float] = {}
        self._status: str | None = None
        self._stop: str | None = None
        self._blockers: Sequence[str] = ()
        self._printed_at = 0.0

    def show(self, detail: JobDetail, blockers: Sequence[str] = ()) -> None:
        for node in detail.nodes:
            if self._has_changed(node):
                remarks = remarks_of(node, detail.now, ", ")
                self._print(detail, f"{node.node_id}: {joined(', ', node.state, remarks)}")
        if detail.job.status != self._status:
            self._status = detail.job.status
            self._print(detail, f"job {self._status}")
        if detail.job.stop_reason != self._stop:
            self._stop = detail.job.stop_reason
            self._print(detail, self._stop or "the job continues")
        if blockers != self._blockers:
            self._blockers = blockers
            for line in blockers:
                self._print(detail, line)
        if time.monotonic() - self._printed_at >= self._heartbeat_seconds:
            self._print(detail, _summary(detail))

    def close(self) -> None:
        """Nothing to close."""

    def _has_changed(self, node: PublicNode) -> bool:
        state, counts = node.state, f"{counts_of(node)} {progress_text(node.progress)}"
        before = self._seen.get(node.node_id)
        now = time.monotonic()
        if before is None and state == "pending":
            self._seen[node.node_id] = (state, counts)
            return False
        is_recount = before is not None and before[0] == state
        if before == (state, counts) or (is_recount and now - self._counted_at.get(node.node_id, 0) < 1.0):
            # The last counts of a fan_out come with its change of state.
            return False
        self._seen[node.node_id] = (state, counts)
        self._counted_at[node.node_id] = now
        return True

    def _print(self, detail: JobDetail, text: str) -> None:
        self._say(f"{detail.seconds:7.1f}s  {text}")
        self._printed_at = time.monotonic()


def _summary(detail: JobDetail) -> str:
    tally = Counter(node.state for node in detail.nodes)
    return f"job {detail.job.status}: nodes {', '.join(f'{count} {state}' for state, count in tally.items())}"


class JsonLines:
    """A JSON object for each change, on a line of its own."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last: Json | None = None

    def show(self, detail: JobDetail, blockers: Sequence[str] = ()) -> None:
        facts: Json = {
            "job_id": detail.job.job_id,
            "status": detail.job.status,
            "nodes": {node.node_id: _node_facts(node) for node in detail.nodes},
        }
        if detail.job.stop_reason:
            facts["stop"] = detail.job.stop_reason
        if blockers:
            facts["blockers"] = facts["held_up"] = list(blockers)  # `held_up` is the former name
        if facts != self._last:
            self._last = facts
            self._state.emit({**facts, "seconds": round(detail.seconds, 3)}, line=True)

    def close(self) -> None:
        """Nothing to close."""


def _node_facts(node: PublicNode) -> dict[str, Any]:
    facts: dict[str, Any] = {"status": node.status}
    if node.progress:
        facts["progress"] = node.progress
    if (children := node.children) is not None:
        facts |= {
            "total": children.total,
            "ended": children.ended,
            "running": children.running,
            "failed": children.failed,
            "waiting": children.waiting + children.retrying,
        }
    return facts
