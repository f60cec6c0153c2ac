"""`dagmaster jobs node`: a node with its attempts and their errors."""

import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from rich.console import Console
from rich.text import Text

from dagmaster.cli.command import State, as_json
from dagmaster.cli.files import save
from dagmaster.cli.follow import fault_text
from dagmaster.cli.tables import Column, at, print_table, state_text
from dagmaster.client.escaping import one_line
from dagmaster.client.models.base import Json, read
from dagmaster.client.models.nodes import Attempt, NodeDetail, SavedCheckpoint, error_facts
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import counted

_VALUE_LENGTH = 300


def print_node(console: Console, response: Json, *, has_tracebacks: bool) -> None:
    detail = read(NodeDetail, response)
    node = detail.node
    console.print(Text.assemble(("node ", "bold"), node.node_id, "  ", state_text(node.status, console.encoding)))
    for name, value in _facts(response, detail):
        console.print(Text(f"{name:<10} {value}"), soft_wrap=True)
    error = error_facts(node.error)
    if error or node.error_message:
        console.print(Text(f"error      {fault_text(error, node.error_message)}", style="bold red"), soft_wrap=True)
        if error and error.hint:
            console.print(Text(f"hint       {error.hint}", style="yellow"), soft_wrap=True)
    if detail.attempts:
        console.print(Text("\nattempts, the last one first", style="bold"))
        print_table(console, _ATTEMPT_COLUMNS, detail.attempts)
    if detail.checkpoints:
        console.print(Text("\ncheckpoints, the last one first", style="bold"))
        print_table(console, _CHECKPOINT_COLUMNS, detail.checkpoints)
    for attempt in detail.attempts if has_tracebacks else ():
        error = error_facts(attempt.error)
        if error and error.traceback:
            console.print(Text(f"\ntraceback of attempt {attempt.attempt}", style="bold"))
            console.print(Text(error.traceback.rstrip()), soft_wrap=True)


def _facts(response: Json, detail: NodeDetail) -> Iterator[tuple[str, str]]:
    node, raw = detail.node, response["node"]
    yield "job", str(raw.get("job_id"))
    yield "type", detail.type
    if one_line(detail.stage) != node.node_id:
        yield "stage", one_line(detail.stage)
    if node.label:
        yield "label", one_line(node.label)
    if node.reason:
        yield "reason", node.reason.replace("_", " ")
    if node.retry_count:
        yield "retries", f"{node.retry_count} of {node.max_retries}"
    if node.loss_count:
        yield "lost", counted(node.loss_count, "time")
    if node.total is not None:
        failed = f", {node.failed_count} failed" if node.failed_count else ""
        yield (
            "children",
            f"{node.total}{failed}; see `dagmaster jobs nodes {raw.get('job_id')} --parent {node.node_id}`",
        )
    if node.completed_at:
        yield "ended", f"{at(node.completed_at)} UTC"
    latest: Json = next(iter(response["attempts"]), {})
    if (params := latest.get("params") or latest.get("params_ref") or raw.get("input_params")) is not None:
        yield "params", _short(params)
    if raw.get("output") is not None:
        yield "output", _short(raw["output"])
    if isinstance(reference := raw.get("output_ref"), dict):
        size = f"{reference['bytes']:,} bytes" if isinstance(reference.get("bytes"), int) else _short(reference)
        yield "output", f"{size}; get it with `dagmaster jobs node {raw.get('job_id')} {node.node_id} --output FILE`"


def save_output(state: State, job_id: str, node_id: str, name: str) -> None:
    if name == "-" and sys.stdout.isatty():
        raise InvalidRequest("--output - does not write to a terminal; use a pipe", code="usage")
    size = save(name, partial(state.client.download_output, job_id, node_id))
    if name != "-":
        state.print_result({"file": name, "bytes": size}, f"{size:,} bytes written to {name}")


def _short(value: object) -> str:
    text = as_json(value, indent=False)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}… ({len(text)} characters; --json has all)"


def _artifacts(saved: SavedCheckpoint) -> str:
    return ", ".join(one_line(str(artifact.get("uri"))) for artifact in saved.artifacts or ())


def _seconds(started: datetime | None, ended: datetime | None) -> str:
    return f"{max(0.0, (ended - started).total_seconds()):.2f} s" if started and ended else ""


def _remark(attempt: Attempt) -> str:
    parts = []
    if error := error_facts(attempt.error):
        parts.append(one_line(fault_text(error, None)))
        parts.append(f"hint: {one_line(error.hint)}" if error.hint else "")
    if attempt.accepted is False:
        parts.append("reported too late; not accepted")
    return "; ".join(part for part in parts if part)


_ATTEMPT_COLUMNS: list[Column[Attempt]] = [
    Column("attempt", lambda attempt: str(attempt.attempt), is_number=True),
    Column("state", lambda attempt: attempt.status, is_state=True),
    Column("queued (UTC)", lambda attempt: at(attempt.queued_at), drop=2),
    Column("waited", lambda attempt: _seconds(attempt.queued_at, attempt.started_at), drop=3, is_number=True),
    Column("ran", lambda attempt: _seconds(attempt.started_at, attempt.finished_at), is_number=True),
    Column("queue", lambda attempt: one_line(attempt.queue), drop=4),
    Column("worker", lambda attempt: str(attempt.worker_id or ""), drop=1),
    Column("error", _remark, is_below=True, is_long=True),
]
_CHECKPOINT_COLUMNS: list[Column[SavedCheckpoint]] = [
    Column("checkpoint", lambda saved: one_line(saved.name)),
    Column("attempt", lambda saved: str(saved.attempt), is_number=True),
    Column("saved (UTC)", lambda saved: at(saved.saved_at)),
    Column("artifacts", _artifacts, is_long=True),
]
