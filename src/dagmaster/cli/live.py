"""Three ways to show a job as it runs: a picture on a terminal, lines elsewhere, JSON lines for programs.

Each gets snapshots and decides what of them is new. A fan_out is one line, however many children it has.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dagmaster.cli.command import State
from dagmaster.database.reads import NodeLine, Snapshot
from dagmaster.workflows.graph import Graph

_STYLES = {
    "completed": "green", "partial_success": "yellow", "failed": "bold red", "cancelled": "magenta",
    "running": "cyan", "dispatched": "blue", "ready": "blue", "skipped": "dim", "pending": "dim",
}  # fmt: skip
_SIGNS = {
    "completed": "✔", "partial_success": "!", "failed": "✖", "cancelled": "■",
    "running": "▶", "dispatched": "»", "ready": "»", "skipped": "–", "pending": "·",
}  # fmt: skip
_LINES_AROUND = 8  # of a terminal's height: head, headings, summary and the prompt


def state_of(node: NodeLine) -> str:
    """The word for a node. A fan_out completes for the engine when all its children exist; people mean the children."""
    if node.remaining and node.status in {"ready", "completed"}:
        return "running"
    return str(node.status)


def state_text(status: str, *, is_unicode: bool = True) -> Text:
    """Never colour alone: a sign and a word."""
    sign = f"{_SIGNS.get(status, ' ')} " if is_unicode else ""
    return Text(f"{sign}{status.replace('_', ' ')}", style=_STYLES.get(status, ""), no_wrap=True)


def counts_of(node: NodeLine) -> str:
    """Done, running, failed and waiting children of a fan_out, those that there are."""
    if node.total is None:
        return ""
    failed, cancelled = node.failed_count or 0, node.cancelled_count or 0
    done = node.ended_count - failed - cancelled
    waiting = node.waiting_count - min(node.retrying_count, node.waiting_count)
    parts = [
        (node.running_count, "running"), (node.retrying_count, "retrying"), (waiting, "waiting"),
        (failed, "failed"), (cancelled, "cancelled"),
    ]  # fmt: skip
    return ", ".join([f"{done}/{node.total} done", *(f"{count} {word}" for count, word in parts if count)])


def seconds_of(node: NodeLine, snapshot_now: Any) -> float | None:
    begun = node.dispatched_at or node.started_at
    if begun is None:
        return None
    ended = node.completed_at or (snapshot_now if state_of(node) in {"running", "dispatched"} else None)
    return max(0.0, (ended - begun).total_seconds()) if ended else None


def remark_of(node: NodeLine, now: Any) -> str:
    """Why a node is as it is: the retry it waits for, how far it got, what went wrong."""
    parts: list[str] = []
    if node.not_before and node.not_before > now:
        wait = (node.not_before - now).total_seconds()
        parts.append(f"retry {node.retry_count} of {node.max_retries} in {wait:.1f} s")
    elif node.retry_count:
        parts.append(f"{node.retry_count} of {node.max_retries} retries")
    if node.loss_count:
        parts.append(f"lost {node.loss_count}×")
    if node.progress:
        parts.append(_progress_text(node.progress))
    if node.reason:
        parts.append(node.reason.replace("_", " "))
    if node.error_message:
        parts.append(node.error_message.splitlines()[0])
    return "; ".join(part for part in parts if part)


def _progress_text(progress: dict[str, Any]) -> str:
    fraction = progress.get("fraction")
    share = f"{fraction:.0%}" if isinstance(fraction, int | float) else ""
    return " ".join(part for part in (share, str(progress.get("message") or "")) if part)


class Picture:
    """A table that redraws itself in place. Only what matters is drawn where not everything fits."""

    def __init__(self, console: Console, job_id: UUID, graph: Graph) -> None:
        self._console = console
        self._job_id = job_id
        self._graph = graph
        self._sizes = Counter(number for number, _ in graph.stages.values())
        self._is_unicode = (console.encoding or "").lower().startswith("utf")
        # Drawn when there is something new, not by a clock of its own.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(self._drawn(snapshot), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _drawn(self, snapshot: Snapshot) -> RenderableType:
        head = Text.assemble(
            (self._graph.workflow.workflow_id, "bold"), f"  {self._job_id}  ",
            state_text(str(snapshot.status), is_unicode=self._is_unicode), f"  {snapshot.seconds:.1f} s",
        )  # fmt: skip
        shown = self._fitting(snapshot)
        rest = [node for node in snapshot.nodes if node not in shown] if len(shown) < len(snapshot.nodes) else []
        parts: list[RenderableType] = [head, self._table(snapshot, shown)]
        if rest:
            tally = Counter(state_of(node) for node in rest)
            parts.append(Text(f"… {len(rest)} more: {', '.join(f'{n} {s}' for s, n in tally.items())}", style="dim"))
        return Group(*parts)

    def _fitting(self, snapshot: Snapshot) -> list[NodeLine]:
        room = max(3, self._console.height - _LINES_AROUND)
        if len(snapshot.nodes) <= room:
            return list(snapshot.nodes)
        urgency = {"failed": 0, "running": 1, "dispatched": 1, "ready": 2, "cancelled": 3, "completed": 4, "pending": 5}
        places = {node.node_id: place for place, node in enumerate(snapshot.nodes)}
        chosen = sorted(snapshot.nodes, key=lambda node: (urgency.get(state_of(node), 6), places[node.node_id]))[:room]
        return sorted(chosen, key=lambda node: places[node.node_id])

    def _table(self, snapshot: Snapshot, nodes: list[NodeLine]) -> Table:
        """Where it is narrow the remarks give way, never the names."""
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        has_stages = any(size > 1 for size in self._sizes.values())
        if has_stages:
            table.add_column("stage", no_wrap=True, style="dim", max_width=16)
        table.add_column("node", no_wrap=True, max_width=28)
        table.add_column("state", no_wrap=True, min_width=12)
        table.add_column("progress", width=24 if self._console.width >= 100 else 10)
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("")
        last_stage = 0
        for node in nodes:
            number, name = self._graph.stages[node.node_id]
            # A node without a label is a stage of its own, which needs no telling.
            is_told = number != last_stage and self._sizes[number] > 1
            stage = [Text(name if is_told else "")] if has_stages else []
            table.add_row(*stage, *self._cells(node, snapshot))
            last_stage = number
        return table

    def _cells(self, node: NodeLine, snapshot: Snapshot) -> Iterator[RenderableType]:
        seconds = seconds_of(node, snapshot.now)
        yield Text(node.node_id)
        yield state_text(state_of(node), is_unicode=self._is_unicode)
        yield _bar(node)
        yield Text(f"{seconds:.2f}" if seconds is not None else "")
        parts = (counts_of(node), remark_of(node, snapshot.now))
        yield Text("; ".join(part for part in parts if part), no_wrap=True, overflow="ellipsis")


def _bar(node: NodeLine) -> RenderableType:
    if node.total:
        finished = "red" if node.failed_count else "green"
        return ProgressBar(node.total, node.ended_count, complete_style="cyan", finished_style=finished)
    fraction = (node.progress or {}).get("fraction")
    if isinstance(fraction, int | float):
        return ProgressBar(1.0, float(fraction), complete_style="cyan")
    return ""


class Lines:
    """A line for each change. A fan_out says where it stands at most once a second, and something is said now and then."""

    def __init__(self, say: Callable[[str], None], graph: Graph, heartbeat_seconds: float) -> None:
        self._say = say
        self._graph = graph
        self._heartbeat_seconds = heartbeat_seconds
        self._seen: dict[str, tuple[str, str]] = {}
        self._counted_at: dict[str, float] = {}
        self._status: str | None = None
        self._said_at = 0.0

    def show(self, snapshot: Snapshot) -> None:
        for node in snapshot.nodes:
            if self._is_news(node, snapshot):
                parts = (state_of(node), counts_of(node), remark_of(node, snapshot.now))
                self._tell(snapshot, f"{node.node_id}: {', '.join(part for part in parts if part)}")
        if snapshot.status != self._status:
            self._status = str(snapshot.status)
            self._tell(snapshot, f"job {snapshot.status}")
        if time.monotonic() - self._said_at >= self._heartbeat_seconds:
            self._tell(snapshot, _in_short(snapshot))

    def close(self) -> None:
        """Nothing is left open."""

    def _is_news(self, node: NodeLine, snapshot: Snapshot) -> bool:
        state, counts = state_of(node), counts_of(node)
        before = self._seen.get(node.node_id)
        now = time.monotonic()
        if before is None and state == "pending":
            self._seen[node.node_id] = (state, counts)
            return False
        is_recount = before is not None and before[0] == state
        if before == (state, counts) or (is_recount and now - self._counted_at.get(node.node_id, 0) < 1.0):
            # The last count of a finished fan_out comes with its change of state, never by itself.
            return False
        self._seen[node.node_id] = (state, counts)
        self._counted_at[node.node_id] = now
        return True

    def _tell(self, snapshot: Snapshot, text: str) -> None:
        self._say(f"{snapshot.seconds:7.1f}s  {text}")
        self._said_at = time.monotonic()


def _in_short(snapshot: Snapshot) -> str:
    tally = Counter(state_of(node) for node in snapshot.nodes)
    return f"job {snapshot.status}: nodes {', '.join(f'{count} {state}' for state, count in tally.items())}"


class JsonLines:
    """A JSON object for each change, on a line of its own."""

    def __init__(self, state: State, job_id: UUID) -> None:
        self._state = state
        self._job_id = job_id
        self._last: dict[str, Any] | None = None

    def show(self, snapshot: Snapshot) -> None:
        facts = {
            "job_id": str(self._job_id),
            "status": snapshot.status,
            "nodes": {node.node_id: _node_facts(node) for node in snapshot.nodes},
        }
        if facts != self._last:
            self._last = facts
            self._state.emit({**facts, "seconds": round(snapshot.seconds, 3)}, line=True)

    def close(self) -> None:
        """Nothing is left open."""


def _node_facts(node: NodeLine) -> dict[str, Any]:
    facts: dict[str, Any] = {"status": node.status}
    if node.total is not None:
        facts |= {
            "total": node.total,
            "ended": node.ended_count,
            "running": node.running_count,
            "failed": node.failed_count or 0,
            "waiting": node.waiting_count,
        }
    return facts
