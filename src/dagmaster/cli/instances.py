"""`dagmaster workers` and `dagmaster orchestrators`: list the processes of a platform."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.cli.printable import counted, one_line

if TYPE_CHECKING:
    from dagmaster.cli.tables import Column, Row
    from dagmaster.client.models.base import Json
    from dagmaster.client.models.operations import OrchestratorSummary, WorkerSummary

_MOST = 1000
_MOST_HANDLERS_SHOWN = 6
_limit = click.option("--limit", type=click.IntRange(1, _MOST), default=50, show_default=True)
_all = click.option("--all", "everyone", is_flag=True, help="Also those without a recent heartbeat")


@click.group(cls=Group)
def workers() -> None:
    """List workers."""


@workers.command("ls")
@_all
@_limit
@pass_state
def list_workers(state: State, everyone: bool, limit: int) -> None:
    """List live workers: their last heartbeat, their queues and handlers, what they run."""
    from dagmaster.cli.tables import Column
    from dagmaster.client.models.base import read_all
    from dagmaster.client.models.operations import WorkerSummary

    columns = [
        Column("worker"),
        Column("state"),
        Column("beat", is_number=True),
        Column("process", drop=3, is_long=True),
        Column("version", drop=4),
        Column("queues", drop=1, is_long=True),
        Column("handlers", drop=5, is_long=True),
        Column("runs", drop=2, is_long=True),
    ]
    lines = [line for line in state.client.workers(_MOST)[0] if everyone or line.get("is_alive")]
    _show(
        state,
        "worker",
        lines,
        limit,
        columns=columns,
        rows=lambda: [_worker(each, state) for each in read_all(WorkerSummary, lines)],
    )


@click.group(cls=Group)
def orchestrators() -> None:
    """List orchestrators."""


@orchestrators.command("ls")
@_all
@_limit
@pass_state
def list_orchestrators(state: State, everyone: bool, limit: int) -> None:
    """List live orchestrators: their last heartbeat, and how many jobs they own."""
    from dagmaster.cli.tables import Column
    from dagmaster.client.models.base import read_all
    from dagmaster.client.models.operations import OrchestratorSummary

    columns = [
        Column("orchestrator"),
        Column("state"),
        Column("beat", is_number=True),
        Column("process", drop=1, is_long=True),
        Column("version", drop=2),
        Column("started (UTC)", drop=3),
        Column("jobs", is_number=True),
    ]
    lines = [line for line in state.client.orchestrators(_MOST)[0] if everyone or line.get("is_alive")]
    _show(
        state,
        "orchestrator",
        lines,
        limit,
        columns=columns,
        rows=lambda: [_orchestrator(each, state) for each in read_all(OrchestratorSummary, lines)],
    )


def _show(
    state: State,
    role: str,
    lines: "list[Json]",
    limit: int,
    *,
    columns: "Sequence[Column]",
    rows: "Callable[[], Sequence[Row]]",
) -> None:
    from dagmaster.cli.tables import print_table

    if state.json:
        state.emit({f"{role}s": lines[:limit]})
    elif lines:
        print_table(state.console, columns, rows()[:limit])
        if len(lines) > limit:
            state.note(f"only the first {counted(limit, role)}; more with --limit")
    else:
        state.note(f"no {role} is alive; start one with `dagmaster {role}`, or `dagmaster up`")


def _worker(worker: "WorkerSummary", state: State) -> "Row":
    handlers = sorted(worker.handlers)
    offered = ", ".join(handlers[:_MOST_HANDLERS_SHOWN])
    more = f" and {len(handlers) - _MOST_HANDLERS_SHOWN} more" if len(handlers) > _MOST_HANDLERS_SHOWN else ""
    running = ", ".join(task.handler for task in worker.running)
    runs = f"{worker.running_count}: {running}" if running else str(worker.running_count)
    return (str(worker.worker_id), *_process(worker, state), ", ".join(worker.queues), f"{offered}{more}", runs)


def _orchestrator(orchestrator: "OrchestratorSummary", state: State) -> "Row":
    from dagmaster.cli.tables import at

    process = _process(orchestrator, state)
    return (str(orchestrator.owner_id), *process, at(orchestrator.started_at), str(orchestrator.job_count))


def _process(instance: "WorkerSummary | OrchestratorSummary", state: State) -> "Row":
    from dagmaster.cli.tables import duration, state_text

    return (
        state_text("alive" if instance.is_alive else "gone", state.console.encoding),
        duration(instance.heartbeat_age_seconds),
        f"{one_line(instance.host)} {instance.pid}",
        one_line(instance.software_version),
    )
