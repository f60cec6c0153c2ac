"""`dagmaster workers` and `dagmaster orchestrators`: list the processes of a platform."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Group, State, limit_option, pass_state
from dagmaster.cli.tables import Column, at, print_records
from dagmaster.client.escaping import one_line
from dagmaster.quantities import counted, duration

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dagmaster.client.models.base import Json
    from dagmaster.client.models.operations import WorkerSummary

_MAX_PROCESSES = 1000
_MAX_HANDLERS_SHOWN = 6
_limit = limit_option(_MAX_PROCESSES, default=50)
_all = click.option("--all", "is_all", is_flag=True, help="Also list processes without a recent heartbeat")


@click.group(cls=Group)
def workers() -> None:
    """List workers."""


@workers.command("ls")
@_all
@_limit
@pass_state
def list_workers(state: State, is_all: bool, limit: int) -> None:
    """List live workers: the age of their last heartbeat, their queues and handlers, what they run."""
    from dagmaster.client.models.operations import WorkerSummary

    columns: list[Column[WorkerSummary]] = [
        Column("worker", lambda worker: str(worker.worker_id)),
        *_process_columns(drop=3),
        Column("queues", lambda worker: ", ".join(worker.queues), drop=1, is_long=True),
        Column("handlers", _handlers, drop=5, is_long=True),
        Column("runs", _running, drop=2, is_long=True),
    ]
    responses = [response for response in state.client.workers(_MAX_PROCESSES)[0] if is_all or response.get("is_alive")]
    _print(state, "worker", responses, limit, columns=columns, kind=WorkerSummary)


@click.group(cls=Group)
def orchestrators() -> None:
    """List orchestrators."""


@orchestrators.command("ls")
@_all
@_limit
@pass_state
def list_orchestrators(state: State, is_all: bool, limit: int) -> None:
    """List live orchestrators: the age of their last heartbeat, and how many jobs they own."""
    from dagmaster.client.models.operations import OrchestratorSummary

    columns: list[Column[OrchestratorSummary]] = [
        Column("orchestrator", lambda orchestrator: str(orchestrator.owner_id)),
        *_process_columns(drop=1),
        Column("started (UTC)", lambda orchestrator: at(orchestrator.started_at), drop=3),
        Column("jobs", lambda orchestrator: str(orchestrator.job_count), is_number=True),
    ]
    responses = [
        response for response in state.client.orchestrators(_MAX_PROCESSES)[0] if is_all or response.get("is_alive")
    ]
    _print(state, "orchestrator", responses, limit, columns=columns, kind=OrchestratorSummary)


def _process_columns(drop: int) -> list[Column[Any]]:
    return [
        Column("state", lambda instance: "alive" if instance.is_alive else "no_heartbeat", is_state=True),
        Column("heartbeat", lambda instance: duration(instance.heartbeat_age_seconds), is_number=True),
        Column("process", lambda instance: f"{one_line(instance.host)} {instance.pid}", drop=drop, is_long=True),
        Column("version", lambda instance: one_line(instance.software_version), drop=drop + 1),
    ]


def _print(
    state: State,
    role: str,
    responses: "list[Json]",
    limit: int,
    *,
    columns: Sequence[Column[Any]],
    kind: "type[BaseModel]",
) -> None:
    if state.json:
        state.emit({f"{role}s": responses[:limit]})
    elif responses:
        print_records(state, columns, kind, responses[:limit])
        if len(responses) > limit:
            state.note(f"only the first {counted(limit, role)}; more with --limit")
    else:
        state.note(f"no {role} is alive; start one with `dagmaster {role}`, or `dagmaster up`")


def _handlers(worker: "WorkerSummary") -> str:
    handlers = sorted(worker.handlers)
    more = f" and {len(handlers) - _MAX_HANDLERS_SHOWN} more" if len(handlers) > _MAX_HANDLERS_SHOWN else ""
    return ", ".join(handlers[:_MAX_HANDLERS_SHOWN]) + more


def _running(worker: "WorkerSummary") -> str:
    running = ", ".join(task.handler for task in worker.running)
    return f"{worker.running_count}: {running}" if running else str(worker.running_count)
