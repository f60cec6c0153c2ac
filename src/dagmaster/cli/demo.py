"""`dagmaster demo`: a platform of its own, a workflow with hundreds of tasks, live; then everything is gone again."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Command, State, as_json, pass_state

if TYPE_CHECKING:
    from uuid import UUID

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

    code = 130
    with _temporary(state, workers) as local, stopping_on_signals(local):
        if not state.json:
            state.say("starting a private PostgreSQL, an orchestrator and workers …")
        with local.running():
            if not state.json:
                state.say(f"ready in {local.ready_seconds:.1f} s; running workflow `{_WORKFLOW}`\n")
            code = asyncio.run(_run(state, local, count))
    if not state.json:
        state.say("\neverything stopped, its data removed" if code == 0 else "\nstopped, its data removed")
    return code


@contextmanager
def _temporary(state: State, workers: int) -> "Iterator[LocalPlatform]":
    """A platform whose data lives no longer than it does."""
    from dagmaster.cli.local import LocalPlatform
    from dagmaster.database.embedded import Cluster

    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-demo-"))
    # Root's clusters live elsewhere, since PostgreSQL's user can't enter root's folders.
    cluster = Cluster.at(None if os.geteuid() == 0 else folder, f"demo-{os.getpid()}")
    try:
        yield LocalPlatform(_own_settings(state), folder, cluster.dsn, state.note, cluster, workers=workers)
    finally:
        cluster.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _own_settings(state: State) -> "Settings":
    """Whatever server is configured is none of the demonstration's business."""
    return state.settings.model_copy(update={"database_url": None, "postgres_host": None})


def _remove_leftovers() -> None:
    """A demonstration ended by SIGKILL takes its processes along but leaves its files."""
    for folder in Path("/var/lib/dagmaster").glob("demo-*") if os.geteuid() == 0 else ():
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(f"/run/dagmaster-{folder.name}", ignore_errors=True)


async def _run(state: State, local: "LocalPlatform", count: int) -> int:
    from dagmaster.cli.follow import Patience, watch
    from dagmaster.cli.show import Page
    from dagmaster.cli.submit import create_job
    from dagmaster.database.reads import Reads

    state.__dict__["dsn"] = local.dsn
    job_id = await create_job(local.dsn, _demo_workflow(state), {"count": count}, {})
    async with Reads(local.dsn) as reads:
        await watch(state, reads, job_id, Patience(state), on_tick=local.tend, heartbeat_seconds=1.0)
        page = await Page.read(reads, str(job_id))
        totals = await reads.task_totals(job_id)
    history = await _history(local.dsn, job_id)
    _summarise(state, page, totals, history)
    return 0 if page.job.status == "completed" and history["is_clean"] is not False else 1


def _demo_workflow(state: State) -> Any:
    from dagmaster.cli.submit import find_workflow

    return find_workflow(state, _WORKFLOW)


async def _history(dsn: str, job_id: "UUID") -> dict[str, Any]:
    from dagmaster.cli.history import public, summary
    from dagmaster.database.history import verify

    report = await verify(dsn, [job_id], lambda *_: None)
    return public(report) | {"summary": summary(report)}


def _summarise(state: State, page: "Page", totals: "dict[str, TaskTotals]", history: dict[str, Any]) -> None:
    facts = _facts(page, totals)
    if state.json:
        state.emit({**facts, "history": history}, line=True)
        return
    state.say(f"\njob {facts['status']} in {facts['seconds']:.2f} s")
    state.say(
        f"{facts['tasks']} tasks, {facts['attempts']} attempts, {facts['retries']} retries; "
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
    seconds = page.snapshot.seconds
    return {
        "job_id": str(page.job.job_id),
        "status": page.job.status,
        "seconds": round(seconds, 3),
        "tasks": tasks,
        "attempts": attempts,
        "retries": attempts - tasks,
        "tasks_per_second": round(tasks / seconds, 1) if seconds else 0.0,
        "stages": [row for row in (_stage_row(page, totals, name) for name in _stage_names(page)) if row],
        "result": page.job.result_data,
        "error": page.job.error_message,
    }


def _stage_names(page: "Page") -> list[str]:
    return [stage.name for stage in page.stages()]


def _stage_row(page: "Page", totals: "dict[str, TaskTotals]", name: str) -> dict[str, Any] | None:
    """A stage lasts from its first task's dispatch to its last task's end."""
    mine = [t for node_id, t in totals.items() if page.graph.stages[node_id][1] == name]
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
