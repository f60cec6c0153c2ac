"""A node in words: its children, its retries, its progress, its error."""

from datetime import datetime

from dagmaster.client.escaping import one_line
from dagmaster.client.models.base import Json
from dagmaster.client.models.nodes import PublicNode
from dagmaster.quantities import counted


def counts_of(node: PublicNode) -> str:
    """How many children of a fan_out are done, running, failed and waiting; without zeros."""
    children = node.children
    if children is None:
        return ""
    # Children of an ended fan_out do not wait.
    active = () if node.state in {"cancelled", "failed"} else ("running", "retrying", "waiting")
    words = (*active, "failed", "cancelled")
    parts = [f"{count} {word}" for word in words if (count := getattr(children, word))]
    return ", ".join([f"{children.done}/{children.total} done", *parts])


def seconds_of(node: PublicNode, now: datetime) -> float | None:
    started = node.dispatched_at or node.started_at
    if started is None:
        return None
    ended = node.completed_at or (now if node.state in {"running", "dispatched"} else None)
    return max(0.0, (ended - started).total_seconds()) if ended else None


def in_seconds(seconds: float | None) -> str:
    return f"{seconds:.2f}" if seconds is not None else ""


def remarks_of(node: PublicNode, now: datetime, separator: str = "; ") -> str:
    """Remarks on a node: its children, its next retry, its progress, its error."""
    reason = (node.reason or "").replace("_", " ")
    remark = joined("; ", _retries(node, now), progress_text(node.progress), reason, one_line(node.error_message))
    return joined(separator, counts_of(node), remark)


def joined(separator: str, *parts: str) -> str:
    return separator.join(part for part in parts if part)


def _retries(node: PublicNode, now: datetime) -> str:
    """Retries after failures, and lost workers, which are counted separately."""
    lost = f"lost {counted(node.loss_count, 'time')}" if node.loss_count else ""
    if node.not_before and node.not_before > now:
        retry = f"retry {node.retry_count} of {node.max_retries}" if node.retry_count else "next attempt"
        wait = f"{retry} in {(node.not_before - now).total_seconds():.1f} s"
        return f"{wait} ({lost})" if lost else wait
    retries = f"{node.retry_count} of {counted(node.max_retries, 'retry', 'retries')}" if node.retry_count else ""
    return joined(", ", retries, lost)


def progress_text(progress: Json | None) -> str:
    """`40% tile 3 (tiles 3, bytes 512)`; each part is optional."""
    counters = dict(progress or {})
    fraction, message = counters.pop("fraction", None), counters.pop("message", None)
    share = f"{fraction:.0%}" if isinstance(fraction, int | float) else ""
    counts = ", ".join(f"{name} {count}" for name, count in counters.items())
    return joined(" ", share, one_line(str(message or "")), f"({counts})" if counts else "")
