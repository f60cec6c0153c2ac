"""`dagmaster demo`: a platform of its own, a workflow with hundreds of tasks, live; then everything is gone again."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from dagmaster.cli.command import Command, State, as_json, pass_state
from dagmaster.cli.printable import counted

if TYPE_CHECKING:
    from dagmaster.cli.local import LocalPlatform
    from dagmaster.cli.show import Page
    from dagmaster.database.reads import TaskTotals
    from dagmaster.settings import Settings

_WORKFLOW = "demo"


@click.command(cls=Command)
@click.option("--count", type=click.IntRange(1, 20_000), default=300, show_default=True, help="Chunks to process")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@pass_state
def demo(state: State, count: int, workers: int) -> int:
    """See it work: a private platform, a workflow with retries, live progress, a summary, and nothing left behind."""
    from dagmaster.cli.up import stopping_on_signals

    state.log()
    code = 130
    with _temporary(state, workers) as local, stopping_on_signals(local):
        if not state.json:
            state.say("starting a private PostgreSQL, an orchestrator and workers …")
        with local.running():
            if not state.json:
                state.say(f"ready in {local.ready_seconds:.1f} s; running workflow `{_WORKFLOW}`\n")
            code = _run(state, local, count)
    if not state.json:
        state.say("\neverything stopped, its data removed" if code == 0 else "\nstopped, its data removed")
    return code


@contextmanager
def _temporary(state: State, workers: int) -> "Iterator[LocalPlatform]":
    """A platform whose data lives no longer than it does."""
    from dagmaster.cli.local import LocalPlatform
    from dagmaster.cli.up import say_stopping
    from dagmaster.database.embedded import Cluster

    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-demo-"))
    # Root's clusters live elsewhere, since PostgreSQL's user can't enter root's folders.
    cluster = Cluster.at(None if os.geteuid() == 0 else folder, f"demo-{os.getpid()}")
    try:
        yield LocalPlatform(
            _own_settings(state), folder, cluster.dsn, state.note, cluster, workers=workers,
            on_stopping=lambda: say_stopping(state),
        )  # fmt: skip
    finally:
        cluster.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _own_settings(state: State) -> "Settings":
    """Whatever server is configured is none of the demonstration's business, nor the port that others shall find."""
    own = {"database_url": None, "postgres_host": None, "api_enabled": True, "api_host": "127.0.0.1", "api_port": 0}
    return state.settings.model_copy(update=own)


def _remove_leftovers() -> None:
    """A demonstration ended by SIGKILL takes its processes along but leaves its files."""
    for folder in Path("/var/lib/dagmaster").glob("demo-*") if os.geteuid() == 0 else ():
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(f"/run/dagmaster-{folder.name}", ignore_errors=True)


def _run(state: State, local: "LocalPlatform", count: int) -> int:
    import asyncio

    from dagmaster.cli.feed import Patience
    from dagmaster.cli.follow import watch
    from dagmaster.cli.show import Page

    state.server = local.api_url
    client = state.client
    job_id = client.submit({"workflow_id": _WORKFLOW, "input_params": {"count": count}})["job_id"]
    watch(state, job_id, Patience(state, job_id), on_tick=local.tend, heartbeat_seconds=1.0)
    page = Page.ask(client, job_id)
    totals, history = asyncio.run(_measured(local.dsn, UUID(job_id)))
    _summarise(state, page, totals, history)
    return 0 if page.detail.job.status == "completed" and history["is_clean"] is not False else 1


async def _measured(dsn: str, job_id: UUID) -> "tuple[dict[str, TaskTotals], dict[str, Any]]":
    """What the API does not tell: sums over attempts, and whether the history is clean."""
    from dagmaster.cli.history import public, summary
    from dagmaster.database.history import verify
    from dagmaster.database.reads import Reads

    async with Reads(dsn) as reads:
        totals = await reads.task_totals(job_id)
    report = await verify(dsn, [job_id], lambda *_: None)
    return totals, public(report) | {"summary": summary(report)}


def _summarise(state: State, page: "Page", totals: "dict[str, TaskTotals]", history: dict[str, Any]) -> None:
    facts = _facts(page, totals)
    if state.json:
        state.emit({**facts, "history": history}, line=True)
        return
    state.say(f"\njob {facts['status']} in {facts['seconds']:.2f} s")
    state.say(
        f"{counted(facts['tasks'], 'task')}, {counted(facts['attempts'], 'attempt')}, "
        f"{counted(facts['retries'], 'retry', 'retries')}; "
        f"{facts['tasks_per_second']:.0f} tasks/s from submission to end"
    )
    state.say("where the time went:")
    for stage in facts["stages"]:
        state.say(
            f"  {stage['name']:<10} {stage['seconds']:>6.2f} s   {stage['tasks']:>5} tasks, {stage['retries']:>3} retries; "
            f"mean wait {stage['mean_wait_ms']:.0f} ms, mean run {stage['mean_run_ms']:.1f} ms"
        )
    state.say(f"result: {as_json(facts['result'], indent=False)}")
    state.say(f"history: {history['summary']}")


def _facts(page: "Page", totals: "dict[str, TaskTotals]") -> dict[str, Any]:
    tasks, attempts = sum(t.tasks for t in totals.values()), sum(t.attempts for t in totals.values())
    job, seconds = page.answer["job"], page.detail.seconds
    return {
        "job_id": job["job_id"],
        "status": job["status"],
        "seconds": round(seconds, 3),
        "tasks": tasks,
        "attempts": attempts,
        "retries": attempts - tasks,
        "tasks_per_second": round(tasks / seconds, 1) if seconds else 0.0,
        "stages": [row for row in (_stage_row(page, totals, stage.name) for stage in page.detail.stages) if row],
        "result": job["result_data"],
        "error": job["error_message"],
    }


def _stage_row(page: "Page", totals: "dict[str, TaskTotals]", name: str) -> dict[str, Any] | None:
    """A stage lasts from its first task's dispatch to its last task's end."""
    mine = [totals[node.node_id] for node in page.detail.nodes if node.stage == name and node.node_id in totals]
    begun, ended = [t.first_at for t in mine if t.first_at], [t.last_at for t in mine if t.last_at]
    attempts = sum(t.attempts for t in mine)
    if not begun or not ended:
        return None
    return {
        "name": name,
        "seconds": round((max(ended) - min(begun)).total_seconds(), 3),
        "tasks": sum(t.tasks for t in mine),
        "retries": attempts - sum(t.tasks for t in mine),
        "mean_wait_ms": round(1000 * sum(t.waited_seconds for t in mine) / attempts, 1),
        "mean_run_ms": round(1000 * sum(t.ran_seconds for t in mine) / attempts, 2),
    }
